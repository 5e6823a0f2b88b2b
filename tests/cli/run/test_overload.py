"""Keys, costs and retries on the command line."""

from __future__ import annotations

import json

import pytest

TARGETS = """
import asyncio
from ratelimited_executor import RetryLater

order = []
tries = {}

async def note(line):
    order.append(line["key"])

async def flaky(line):
    tries[line["n"]] = tries.get(line["n"], 0) + 1
    if tries[line["n"]] < line["fails"] + 1:
        raise RetryLater(0.0)
    return tries[line["n"]]

async def always(line):
    raise ValueError("never")

running = most = 0

async def crowd(line):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.01)
    running -= 1
"""


@pytest.fixture(name="place")
def _place(place):
    """A workplace with the targets of this file."""
    place.write(f"{place.module}.py", TARGETS)
    return place


def _lines(place, rows):
    return place.write("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def test_fair_gives_each_key_its_share(place):
    """With ``--fair`` a hundred lines of one key do not delay the two of another."""
    rows = [{"key": "big"}] * 100 + [{"key": "small"}] * 2
    result = place.run("note", _lines(place, rows), "--jsonl", "--key-field", "key", "--fair", "--rate", "500", "-q")

    assert (0, "") == (result.exit_code, result.stdout)
    order = place.seen("order")
    assert {"big": 100, "small": 2} == {key: order.count(key) for key in set(order)}


def test_costs_are_audited(place):
    """Lines of higher cost take more time, and the summary counts permits."""
    rows = [{"key": 1, "points": 5}, {"key": 1}, {"key": 1, "points": None}, {"key": 2, "points": 3}]
    result = place.run("note", _lines(place, rows), "--jsonl", "--cost-field", "points", "--rate", "100", "-q")

    assert 0 == result.exit_code
    assert "permits in" in result.stderr
    assert "the rate was held" in result.stderr


def test_lines_are_tried_again(place):
    """Failed lines are retried up to the given number, and results have the number of attempts."""
    rows = [{"n": 1, "fails": 0}, {"n": 2, "fails": 1}, {"n": 3, "fails": 5}]
    result = place.run("flaky", _lines(place, rows), "--jsonl", "--retry", "3", "--results", "out.jsonl", "-q")

    assert 1 == result.exit_code
    found = {row["line"]: (row["state"], row.get("attempts")) for row in place.rows("out.jsonl")}
    assert {1: ("done", None), 2: ("done", 2), 3: ("failed", 3)} == found


def test_key_concurrency_bounds_the_calls_of_a_key(place):
    """``--key-concurrency 2`` runs two calls of a key at a time."""
    result = place.run("crowd", _lines(place, [{"key": "a"}] * 10), "--jsonl", "--key-field", "key",
        "--key-concurrency", "2", "-q",
    )  # fmt: skip

    assert 0 == result.exit_code
    assert 2 == place.seen("most")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fair"], "--fair needs --key-field"),
        (["--key-rate", "5/s"], "--key-rate needs --key-field"),
        (["--key-concurrency", "5"], "--key-concurrency needs --key-field"),
        (["--key-field", "key"], "--key-field needs --jsonl"),
        (["--cost-field", "key"], "--cost-field needs --jsonl"),
        (["--jsonl", "--key-field", "key", "--key-rate", "0"], "--key-rate 0 would never start a line"),
        (["--retry", "0"], "retry"),
    ],
)
def test_options_that_do_not_go_together_are_refused(place, options, words):
    """Options that do not fit together are refused with the reason, before anything is read."""
    result = place.run("note", _lines(place, [{"key": 1}]), *options)

    assert 2 == result.exit_code
    assert words in result.stderr


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"key": [1]}, "field 'key' must be a string or a number, got an array"),
        ({"key": True}, "field 'key' must be a string or a number, got a truth value"),
        ({"key": 1, "cost": 0}, "field 'cost' must be an integer >= 1, got 0"),
        ({"key": 1, "cost": 2.5}, "field 'cost' must be an integer >= 1, got 2.5"),
    ],
)
def test_fields_of_a_wrong_kind_end_the_input(place, row, words):
    """A field of a wrong type ends the input, with the line's number and what was expected."""
    result = place.run("note", _lines(place, [row]), "--jsonl", "--key-field", "key", "--cost-field", "cost", "-q")

    assert 2 == result.exit_code
    assert f"line 1: {words}" in result.stderr


def test_field_that_no_line_has_is_told(place):
    """A field that no line has is reported: else a typing error would silently lift the limits of keys."""
    _lines(place, [{"key": "a"}, {"key": "b"}])
    for field, is_told in (("kay", True), ("key", False)):
        result = place.run("note", "in.jsonl", "--jsonl", "--key-field", field, "--key-rate", "100/s")
        assert is_told == (f"no line had a field '{field}'" in result.stderr), result.stderr
