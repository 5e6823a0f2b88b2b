"""The command ``bench``, run through its parser against a real HTTP service and against functions.

Loads run in real time, as sockets do, so tests assert counts, kinds and statuses, or durations ten times apart.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ratelimited_executor.cli.bench.inputs import check_output
from ratelimited_executor.cli.bench.options import BenchOptions, search_range_of, settings_of
from ratelimited_executor.cli.commands import cli
from ratelimited_executor.cli.exits import CommandError
from tests.cli.bench.service import Service, served
from tests.cli.refusals import assert_refused
from tests.load.models import figures_of, measurement_of

TARGETS = """
import asyncio, sys, time
from contextlib import asynccontextmanager

events = []

async def note(number):
    events.append(number)
    await asyncio.sleep(0.001)

async def with_class(number, name):
    events.append((number, name))

async def without_number():
    events.append("called")

def plain(number):
    time.sleep(0.01)
    events.append(number)

def fail(number):
    if number % 2:
        raise KeyError(number)

async def leave(number):
    sys.exit(3)

@asynccontextmanager
async def prepared():
    events.append("set up")
    try:
        yield note
    finally:
        events.append("torn down")

class Prepared:
    async def __aenter__(self):
        return plain
    async def __aexit__(self, *exception):
        events.append("torn down")

@asynccontextmanager
async def unprepared():
    raise OSError("no database")
    yield

@asynccontextmanager
async def yields_none():
    yield None

@asynccontextmanager
async def not_torn_down():
    yield note
    raise OSError("still busy")

@asynccontextmanager
async def hangs():
    print("hangs", flush=True)
    await asyncio.sleep(3600)
    yield note
"""

real_time = pytest.mark.real_time("sockets and threads have no virtual time")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Run one service for all tests of this file."""
    with served() as running:
        yield running


@pytest.fixture
def targets(place) -> str:
    """Write a module of targets into the current directory, and yield its name."""
    place.write(f"{place.module}_bench.py", TARGETS)
    yield f"{place.module}_bench"
    sys.modules.pop(f"{place.module}_bench", None)


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments])


def measured(*arguments: str) -> tuple[Result, dict[str, Any]]:
    """Run a quiet measurement, and return its result and the figures of its JSON file."""
    result = bench(*arguments, "--quiet", "--json", "out.json")
    assert result.exit_code in (0, 1), result.output
    with open("out.json", encoding="utf-8") as file:
        return result, json.load(file)["figures"]


# HTTP.


@real_time
def test_every_request_is_sent_and_counted(place, service) -> None:
    """Figures count every request, byte and status, and the report has the durations from both starts."""
    result, figures = measured(f"{service.url}/", "--rate", "100", "--for", "1s")

    assert 0 == result.exit_code
    assert (100, {}, {"200": 100}, 1000) == tuple(figures[name] for name in ("count", "errors", "statuses", "received"))
    assert 0 < figures["service_times"]["p50"] <= figures["response_times"]["p99"]
    assert "response time" in result.stdout
    assert "our lateness" in result.stdout


@pytest.mark.parametrize(
    ("is_installed", "options", "loop"),
    [(True, [], "uvloop"), (True, ["--no-uvloop"], "asyncio"), (False, [], "asyncio")],
)
@real_time
def test_url_is_loaded_on_uvloop_if_it_is_installed(place, service, monkeypatch, is_installed, options, loop) -> None:
    """The settings name the loop that was used, which is the lighter one by default."""
    if is_installed:
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    result, figures = measured(f"{service.url}/", "--rate", "100", "--for", "200ms", *options)

    assert (20, 0) == (figures["count"], figures["error_share"])
    assert f"loop {loop}" in result.output.splitlines()[0]


@real_time
def test_frozen_server_shows_in_the_p99_from_the_intended_start_alone(place, service) -> None:
    """While the server is frozen for 2 s, its four connections have four slow requests of 1,000; the others wait."""
    service.frozen_from = None
    _, figures = measured(f"{service.url}/freezing", "--rate", "200", "--for", "5s", "--connections", "4")

    assert (1000, {}) == (figures["count"], figures["errors"])
    assert figures["response_times"]["p99"] > 1.5
    assert figures["service_times"]["p99"] < figures["response_times"]["p99"] / 2  # milliseconds on an idle machine
    assert figures["full_seconds"] > 1.5


@real_time
@pytest.mark.parametrize(
    ("path", "kind"),
    [("/status/503", "status 503"), ("/status/404", "status 404"), ("/slow", "timeout"), ("/cut", "connection broken")],
)
def test_errors_are_counted_by_kind(place, service, path, kind) -> None:
    """Each kind of error is counted by its name, and the exit status is 1, as no request succeeded."""
    timeout = "300ms" if kind == "timeout" else "30s"
    result, figures = measured(f"{service.url}{path}", "--rate", "20", "--for", "500ms", "--timeout", timeout)

    assert {kind: 10} == figures["errors"]
    assert 1 == result.exit_code
    assert kind in result.stdout


@real_time
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_broken_connection_is_an_error_and_no_request_is_repeated(place, service, method) -> None:
    """The service sees each request once, whatever its method, and each that it breaks off is an error."""
    service.seen.clear()
    lines = ['{"url": "echo/a"}', '{"url": "cut"}']  # the second one breaks a reused connection
    place.write("requests.jsonl", "\n".join(lines))
    _, figures = measured(
        service.url + "/", "--rate", "20", "--for", "1s", "--method", method, "--requests", "requests.jsonl",
        "--connections", "1",
    )  # fmt: skip

    assert {"connection broken": 10} == figures["errors"]
    assert [method] * 20 == [each[0] for each in service.seen]


@real_time
def test_json_body_says_so_unless_a_header_does(place, service) -> None:
    """A JSON object is accepted by a service that asks for its type; another body, and another header, stay as they are."""
    common = [f"{service.url}/picky", "--rate", "10", "--for", "200ms"]
    result, sent = measured(*common, "--body", '{"id": {n}}')
    _, text = measured(*common, "--body", "{n}")
    _, other = measured(*common, "--body", '{"id": {n}}', "--header", "content-type: application/x-own")

    assert "content type application/json" in result.stdout
    assert [{}, {"status 422": 2}, {"status 422": 2}] == [each["errors"] for each in (sent, text, other)]
    assert "application/octet-stream" in text["samples"]["status 422"]
    assert "application/x-own" in other["samples"]["status 422"]


@real_time
@pytest.mark.parametrize("query", ["", "?deflated"])
def test_report_quotes_the_most_frequent_error(place, service, query) -> None:
    """The beginning of a response with the most frequent bad status is in all reports, in one line and without escapes."""
    result, figures = measured(
        f"{service.url}/picky{query}", "--rate", "10", "--for", "200ms", "--method", "POST", "--html", "page.html"
    )
    quoted = 'The most frequent error, status 422: {"detail": "no'
    assert f'{quoted}\\x1b[2J application/octet-stream"}} x x x' in result.stdout
    assert len(next(line for line in result.stdout.splitlines() if line.startswith(quoted))) < 350
    assert len(figures["samples"]["status 422"]) == 301
    assert "The most frequent error, status 422: {&quot;detail&quot;: &quot;no" in place.text("page.html")


@real_time
def test_refused_connections_are_errors(place) -> None:
    """Requests to a port where nobody listens are counted as refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        _, figures = measured(f"http://127.0.0.1:{taken.getsockname()[1]}/", "--rate", "20", "--for", "500ms")

    assert {"refused": 10} == figures["errors"]


@real_time
def test_redirect_is_an_answer_and_is_not_followed(place, service) -> None:
    """A redirect counts as a successful answer; following it would make two requests of one."""
    _, figures = measured(f"{service.url}/status/302", "--rate", "10", "--for", "500ms")

    assert ({}, {"302": 5}) == (figures["errors"], figures["statuses"])


@real_time
def test_number_method_header_and_body_are_sent(place, service) -> None:
    """The number is filled into URL and body, and a body makes the request a POST unless a method is given."""
    place.write("body.json", '{"id": {n}}')
    service.seen.clear()
    common = ["--rate", "10", "--for", "200ms", "--header", "X-Test: yes"]
    measured(f"{service.url}/echo/{{n:03}}?a={{n}}", *common, "--body", "@body.json")
    measured(f"{service.url}/echo/x", *common, "--method", "delete")

    assert [
        ("POST", "/echo/000?a=0", '{"id": 0}', "yes"),
        ("POST", "/echo/001?a=1", '{"id": 1}', "yes"),
        ("DELETE", "/echo/x", "", "yes"),
        ("DELETE", "/echo/x", "", "yes"),
    ] == service.seen


@real_time
def test_requests_of_a_file_are_sent_in_turn(place, service) -> None:
    """The lines of a file of requests are sent in turn, relative to the target."""
    place.write("requests.jsonl", '{"url": "echo/a"}\n{"url": "echo/b/{n}", "method": "PUT", "body": [{}]}\n')
    service.seen.clear()
    measured(f"{service.url}/", "--rate", "10", "--for", "400ms", "--requests", "requests.jsonl")

    assert [
        ("GET", "/echo/a", "", None),
        ("PUT", "/echo/b/1", "[{}]", None),
        ("GET", "/echo/a", "", None),
        ("PUT", "/echo/b/3", "[{}]", None),
    ] == service.seen


@real_time
def test_steps_have_a_row_each_and_ramps_are_one(place, service) -> None:
    """Each step is a row of the table and a phase of the JSON file; a ramp is one phase, without its warm-up."""
    result, steps = measured(f"{service.url}/", "--rate", "20..60", "--step", "20", "--every", "500ms")
    _, ramp = measured(f"{service.url}/", "--rate", "20..60", "--for", "1s", "--warm-up", "200ms")

    assert [(20, 10), (40, 20), (60, 30)] == [(phase["first"], phase["count"]) for phase in steps["phases"]]
    assert "60/s" in result.stdout
    assert [(20, 60, 40)] == [(phase["first"], phase["last"], phase["count"]) for phase in ramp["phases"]]


# Classes.


@real_time
def test_classes_have_rates_requests_and_rows_of_their_own(place, service) -> None:
    """Each class has its rate and its requests, and its rows in the table, JSON file, page and comparison."""
    place.write(
        "requests.jsonl", '{"url": "echo/{class}/{n}"}\n{"url": "echo/now", "class": "urgent", "body": "{class}"}\n'
    )
    service.seen.clear()
    arguments = ["--rate", "ordinary=40", "--rate", "urgent=10", "--for", "1s", "--requests", "requests.jsonl"]
    result, figures = measured(f"{service.url}/", *arguments, "--html", "page.html")
    compared = bench("compare", "out.json", "out.json")

    assert (0, 50) == (result.exit_code, figures["count"])
    assert [("ordinary", 40), ("urgent", 10)] == [(each["name"], each["count"]) for each in figures["classes"]]
    paths = [path for _, path, _, _ in service.seen]
    assert (40, 5, 5) == tuple(
        sum(path.startswith(begin) for path in paths) for begin in ("/echo/ordinary/", "/echo/urgent/", "/echo/now")
    )
    assert {"urgent"} == {body for _, path, body, _ in service.seen if path == "/echo/now"}
    assert "by class" in result.stdout and "rate ordinary 40/s and urgent 10/s" in result.stdout
    assert "Response times by class" in place.text("page.html")
    assert "urgent: p99 service time" in compared.stdout


@real_time
def test_class_is_the_second_argument_and_header(place, service, targets) -> None:
    """A function with two parameters gets the class as the second one, and ``{class}`` in a header becomes its name."""
    measured(f"{targets}:with_class", "--rate", "a=10", "--rate", "b=5", "--for", "1s")
    service.seen.clear()
    measured(f"{service.url}/echo/x", "--rate", "b=5", "--for", "200ms", "--header", "X-Test: {class}")

    events = sys.modules[targets].events
    assert [*range(15)] == sorted(number for number, _ in events)
    assert (10, 5) == tuple(sum(name == each for _, name in events) for each in "ab")
    assert ["b"] == [header for *_, header in service.seen]


# Thresholds.


@real_time
def test_exit_status_follows_the_thresholds(place, service) -> None:
    """The exit status, for CI, is 0 if every threshold was kept, and otherwise 1 with the reason."""
    base = ["--rate", "20", "--for", "500ms", "--quiet"]
    good = bench(f"{service.url}/", *base, "--p99", "20s", "--errors", "1%", "--html", "page.html")
    slow = bench(f"{service.url}/", *base, "--p99", "1ms", "--warm-up", "100ms", "--connections", "1")
    bad = bench(f"{service.url}/status/500", *base, "--errors", "50%")

    assert (0, 1) == (good.exit_code, bad.exit_code)
    assert "Every threshold was kept" in good.stdout
    assert "Not kept: errors 100 % are above 50 %" in bad.stdout
    assert "No request succeeded; the most frequent error is 'status 500', 10 of 10." in bad.stdout
    assert "Every threshold was kept" in place.text("page.html")
    assert (slow.exit_code == 1) == ("is above 1 ms" in slow.stdout)  # a fast machine may keep it


@real_time
def test_target_rate_that_is_not_reached_is_a_failure_if_asked(place, service) -> None:
    """With one connection, each request for as long as the time-out, few of the load are sent before its end."""
    base = ["--rate", "20", "--for", "1s", "--timeout", "300ms", "--connections", "1", "--quiet", "--errors", "100%"]
    result = bench(f"{service.url}/slow", *base, "--reach", "99%")

    assert 1 == result.exit_code
    assert re.search(r"Not kept: sent [\d.]+/s, [\d.]+ % of 20\.0/s, is below 99 %\.", result.stdout)
    assert 0 == bench(f"{service.url}/", "--rate", "20", "--for", "1s", "--quiet", "--reach", "10%").exit_code


@real_time
def test_table_of_comma_separated_values_is_written(place, service) -> None:
    """It has a row for each second."""
    bench(f"{service.url}/", "--rate", "20", "--for", "1s", "--quiet", "--csv", "out.csv")

    assert ["load,,20,0", "phase,20/s,20,0", "second,0,20,0"] == [
        ",".join(line.split(",")[:4]) for line in place.text("out.csv").splitlines()[1:]
    ]


@real_time
def test_class_has_thresholds_of_its_own(place, service) -> None:
    """A class's own threshold applies to that class in place of the general one, whether it is looser or stricter."""
    place.write("requests.jsonl", '{"url": "", "class": "ordinary"}\n{"url": "status/500", "class": "urgent"}\n')
    base = [f"{service.url}/", "--rate", "ordinary=20", "--rate", "urgent=10", "--for", "500ms"]
    base += ["--requests", "requests.jsonl", "--quiet", "--json", "out.json"]
    allowed = bench(*base, "--p99", "urgent=30s", "--p99", "20s", "--errors", "0", "--errors", "urgent=100%")
    settings = json.loads(place.text("out.json"))["settings"]
    refused = bench(*base, "--errors", "100%", "--errors", "urgent=0.1%", "--p99", "ordinary=20s")

    assert (0, 1) == (allowed.exit_code, refused.exit_code)
    assert ("urgent 30 s and 20 s otherwise", "urgent 100 % and 0 % otherwise") == (
        settings["p99 at most"],
        settings["errors at most"],
    )
    assert "p99 at most urgent 30 s and 20 s otherwise" in allowed.stdout
    assert "Every threshold was kept" in allowed.stdout
    assert "Not kept: urgent: errors 100 % are above 0.1 %" in refused.stdout
    assert "p99 at most ordinary 20 s, errors at most urgent 0.1 % and 100 % otherwise" in refused.stdout


@real_time
def test_search_judges_each_class_by_its_own_threshold(place, service) -> None:
    """As one class always fails its own threshold, no rate holds, although the other class succeeds."""
    place.write("requests.jsonl", '{"url": "", "class": "ordinary"}\n{"url": "status/500", "class": "urgent"}\n')
    result = bench(
        f"{service.url}/", "--rate", "ordinary=20", "--rate", "urgent=10", "--requests", "requests.jsonl",
        "--find-max", "--every", "100ms", "--errors", "100%", "--errors", "urgent=1%", "--quiet",
    )  # fmt: skip

    assert 1 == result.exit_code, result.output
    assert "not held, urgent: errors 100 % are above 1 %" in result.stdout
    assert "No rate was held" in result.stdout


@pytest.mark.parametrize(
    ("p99", "most"),
    [
        ({}, None),
        ({"": 0.2}, 0.2),
        ({"": 0.2, "a": 0.5}, 0.5),
        ({"": 0.9, "a": 0.5, "b": 0.1}, 0.5),
        ({"a": 0.5}, None),
    ],
)
def test_longest_request_that_may_count_is_that_of_the_loosest_class(p99, most) -> None:
    """It is None if one class has no p99: no request may be given up early then."""
    assert most == BenchOptions(target="x:y", rates={"a": (1, 1), "b": (1, 1)}, p99=p99).p99_most


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ({"": 0.01}, "1 %"),
        ({"b": 0.02, "a": 0.01}, "a 1 % and b 2 %"),
        ({"": 0.5, "b": 0.02, "a": 0.01}, "a 1 % and b 2 %"),
        ({"": 0.5, "b": 0.02}, "b 2 % and 50 % otherwise"),
    ],
)
def test_settings_have_the_thresholds_in_force(errors, text) -> None:
    """Settings list thresholds in the order of the classes, so that participants agree however each wrote them."""
    options = BenchOptions(target="x:y", rates={"a": (1, 1), "b": (1, 1)}, errors=errors)
    assert text == settings_of(options, connections=1, requests=None)["errors at most"]


@pytest.mark.parametrize(("more", "high"), [({}, 100_000), ({"processes": 3}, 300_000), ({"every": 2000.0}, 50_000)])
def test_search_tries_no_rate_that_nothing_can_send(more, high) -> None:
    """A search from one rate on ends where a load would be refused."""
    options = BenchOptions(target="x", rates={"": (1_000, 1_000)}, find_max=True, p99={"": 1.0}, **more)
    assert high == search_range_of(options).high


@real_time
def test_search_finds_where_a_function_begins_to_fail(place) -> None:
    """For a function that allows about 60 calls a second, the highest rate held is near that."""
    place.write(
        f"{place.module}_limited.py",
        "import time\nstarts = []\n"
        "async def limited(number):\n"
        "    now = time.monotonic()\n"
        "    starts[:] = [start for start in starts if start > now - 0.5] + [now]\n"
        "    if len(starts) > 31:\n"
        "        raise BufferError\n",
    )
    result, figures = measured(
        f"{place.module}_limited:limited", "--rate", "20..200", "--find-max", "--every", "1s", "--errors", "0"
    )
    sys.modules.pop(f"{place.module}_limited", None)
    with open("out.json", encoding="utf-8") as file:
        search = json.load(file)["search"]

    # On a busy machine the tool may be the limit: then the search says so, and ends.
    assert "The highest rate held is" in result.stdout or "the load generator was the bottleneck" in result.stdout
    assert search["held"] is None or 20 <= search["held"] <= 80
    assert len(search["trials"]) >= 1
    assert all(trial["held"] or trial["broken"] for trial in search["trials"])
    assert {} == figures["errors"] or search["held"] is None


# Functions.


@real_time
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("note", [0, 1, 2, 3, 4]),
        ("without_number", ["called"] * 5),
        ("prepared", ["set up", 0, 1, 2, 3, 4, "torn down"]),
        ("plain", [0, 1, 2, 3, 4]),
        ("Prepared", [0, 1, 2, 3, 4, "torn down"]),
    ],
)
def test_function_is_called_with_the_number(targets, name, expected) -> None:
    """A function is called with the number if it takes one: async or plain, by itself or from a context manager."""
    result, figures = measured(f"{targets}:{name}", "--rate", "25", "--for", "200ms")

    events = sys.modules[targets].events
    numbers = iter(sorted(each for each in events if isinstance(each, int)))  # one thread may overtake another

    assert (0, 5) == (result.exit_code, figures["count"])
    assert expected == [next(numbers) if isinstance(each, int) else each for each in events]


@real_time
def test_errors_of_a_function_are_counted_by_type(targets) -> None:
    """An exception of a function is counted by its type, even SystemExit, which does not end the process."""
    result, failing = measured(f"{targets}:fail", "--rate", "20", "--for", "500ms")
    _, leaving = measured(f"{targets}:leave", "--rate", "20", "--for", "500ms")

    assert ({"KeyError": 5}, {"SystemExit": 10}) == (failing["errors"], leaving["errors"])
    assert "The most frequent error, KeyError: 1\n" in result.stdout


@real_time
def test_interrupted_measurement_reports_what_it_has(place, service) -> None:
    """At the first Ctrl-C the command reports the figures until then, writes the JSON file and exits with 130."""
    command = [sys.executable, "-m", "ratelimited_executor", "bench", f"{service.url}/echo/x", "--rate", "50"]
    service.seen.clear()
    with subprocess.Popen(
        [*command, "--for", "10m", "--json", "out.json"], cwd=place.path, stdout=-1, stderr=-1
    ) as process:
        until = time.monotonic() + 60
        while len(service.seen) < 20 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert 130 == process.returncode, err
    written = json.loads(place.text("out.json"))
    assert b"Interrupted" in out
    assert 20 <= written["figures"]["count"] < 10_000
    assert written["incomplete"].startswith("it was interrupted after ")


@real_time
def test_interrupted_search_reports_its_trials(place, service) -> None:
    """The rates that were tried until then are not lost."""
    command = [sys.executable, "-m", "ratelimited_executor", "bench", f"{service.url}/echo/x", "--rate", "20"]
    with subprocess.Popen(
        [*command, "--find-max", "--every", "200ms", "--errors", "100%"], cwd=place.path, stdout=-1, text=True
    ) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)

    assert (130, "20/s: held") == (process.returncode, first[:10])
    assert "The highest rate held is " in out
    assert "The search ended early: it was interrupted." in out


# Reports.


@real_time
def test_page_is_complete_and_asks_no_host(place, service) -> None:
    """The page is one small file with three plots; it loads nothing, and escapes what the user gave."""
    result = bench(f"{service.url}/?a=<b>", "--rate", "20", "--for", "500ms", "--html", "page.html", "--quiet")
    page = place.text("page.html")

    assert 0 == result.exit_code, result.output
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert 3 == page.count("<svg ")
    assert len(page) < 100_000
    assert "default-src 'none'" in page


@real_time
def test_secrets_of_a_url_are_neither_printed_nor_written(place, service) -> None:
    """User name, password and secret values of a URL stand neither in the report nor in a file that is written."""
    url = service.url.replace("://", "://user:hunter2@") + "/?api_key=hunter3&page=7"
    result = bench(url, "--rate", "20", "--for", "500ms", "--html", "page.html", "--json", "out.json", "--quiet")

    assert 0 == result.exit_code, result.output
    for text in (result.output, place.text("page.html"), place.text("out.json")):
        assert "hunter" not in text
        assert "page=7" in text


@real_time
def test_compare_shows_both_and_what_differs(place, service) -> None:
    """The comparison has the figures of both side by side, and only the settings that differ."""
    for name, path in (("a.json", "/"), ("b.json", "/status/500")):
        bench(f"{service.url}{path}", "--rate", "100", "--for", "500ms", "--json", name, "--quiet")
    result = bench("compare", "a.json", "b.json")

    assert 0 == result.exit_code, result.output
    row = next(line for line in result.stdout.splitlines() if "errors" in line)
    assert "0 %" in row and "100 %" in row and "worse" in row
    assert f"target: {service.url}/, then {service.url}/status/500" in result.stdout
    assert "requests: " not in result.stdout


def test_compare_shows_no_escape_sequence_of_a_file(place) -> None:
    """Control characters of a file are written as escapes, as a terminal would obey them."""
    for name, rate in (("a.json", "5/s"), ("b.json", "\x1b[2J")):
        text = json.dumps(measurement_of(figures_of([0.1]), settings={"rate": rate}).to_json())
        (place.path / name).write_text(text, encoding="utf-8")
    result = bench("compare", "a.json", "b.json")

    assert 0 == result.exit_code, result.output
    assert r"rate: 5/s, then \x1b[2J" in result.stdout
    assert "\x1b" not in result.stdout


def test_compare_has_a_help_of_its_own() -> None:
    """``bench --help`` lists ``compare`` as a command, and ``bench compare --help`` has only what belongs to it."""
    of_bench, own = bench("--help").stdout, bench("compare", "--help").stdout

    assert re.search(r"^Commands:\n  compare +Show two measurements side by side\.$", of_bench, re.MULTILINE)
    assert "TARGET" in of_bench and "--rate" in of_bench
    assert re.search(r"bench compare \[OPTIONS\] BEFORE AFTER\n", own)
    assert "Exit status: 0 compared" in own and "--rate" not in own


@real_time
def test_file_or_module_named_compare_is_a_target(place) -> None:
    """Only the word ``compare`` alone is the command; a file or a module of that name is a target."""
    place.write("compare.py", "async def compare(number): pass\n")
    for target in ("compare.py:compare", "compare:compare"):
        result, figures = measured(target, "--rate", "50", "--for", "100ms")
        assert (0, 5) == (result.exit_code, figures["count"])
        assert result.stdout.startswith(f"{target}: rate 50/s")
    sys.modules.pop("compare", None)


@real_time
def test_compare_notices_other_requests_to_the_same_target(place, service) -> None:
    """Requests with another body differ by their digest; credentials do not count, and the JSON file has none."""
    texts = {}
    for name, body, token in (("a.json", "one", "t1"), ("b.json", "two", "t1"), ("c.json", "two", "t2")):
        header = f"Authorization: Bearer {token}"
        bench(f"{service.url}/", "--rate", "50", "--for", "200ms", "--body", body, "--header", header, "--json", name)
        texts[name] = place.text(name)
    other, same = bench("compare", "a.json", "b.json"), bench("compare", "b.json", "c.json")

    assert re.search(
        r"requests: POST, 1 header, 3 bytes, digest \w{8}, then POST, 1 header, 3 bytes, digest \w{8}", other.stdout
    )
    assert "settings" not in same.stdout
    assert [] == [name for name, text in texts.items() if "Bearer" in text]


@real_time
def test_target_between_colons_is_no_emoji(place) -> None:
    """The heading shows a target such as ``smiling.py:two`` unchanged, although it looks like an emoji's name."""
    (place.path / "smiling.py").write_text("async def two(number): pass\n")

    assert bench("smiling.py:two", "--rate", "50", "--for", "100ms").stdout.startswith("smiling.py:two: rate 50/s")


# Bad usage.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://x/"], ["--rate is missing"]),
        (["x", "--rate", "1"], ["module:function", "http://localhost:8000/"]),
        (["localhost:8000", "--rate", "1"], ["http://localhost:8000/", "got 'localhost:8000'"]),
        (["http://x/", "http://y/", "--rate", "1"], ["one TARGET", "got 2"]),
        (["ftp://x/", "--rate", "1"], ["TARGET: ", "must look like http://"]),
        (["http://x/", "--rate", "0"], ["must be > 0"]),
        (["http://x/", "--rate", "inf/s"], ["must be > 0 and finite"]),
        (
            ["http://x/", "--rate", "1e9", "--for", "1s"],
            ["--rate: 1e+09/s cannot be sent", "at most 100,000/s", "--peers"],
        ),
        (["http://x/", "--rate", "a=60000", "--rate", "b=1..60000"], ["--rate: 120,000/s", "at most 100,000/s"]),
        (["http://x/", "--rate", "250000", "--processes", "2"], ["--rate: 250,000/s", "at most 200,000/s"]),
        (["http://x/", "--rate", "1..1e6", "--find-max", "--p99", "1s"], ["--rate: 1e+06/s", "at most 100,000/s"]),
        (["http://x/", "--rate", "90000", "--for", "1h"], ["324,000,000 requests are too many", "at most 100,000,000"]),
        (
            ["http://x/", "--rate", "9e4", "--find-max", "--p99", "1s", "--every", "1h"],
            ["324,000,000 requests are too many", "make the load shorter"],
        ),
        (["http://x/", "--rate", "1..2..3"], ["100..1000"]),
        (["http://x/", "--rate", "fast"], ["a rate looks like 500"]),
        (["http://x/", "--rate", "1", "--rate", "2"], ["each needs a name", "urgent=20"]),
        (["http://x/", "--rate", "1", "--rate", "a=2"], ["each needs a name"]),
        (["http://x/", "--rate", "a=1", "--rate", "a=2"], ["'a' has two rates"]),
        (["http://x/", "--rate", "a b=1"], ["name of a class"]),
        (["http://x/", "--rate", "=1"], ["name of a class", "got ''"]),
        (["http://x/", *(f"--rate=c{number}=1" for number in range(101))], ["at most 100"]),
        (["http://x/", "--rate", "a=1..2", "--rate", "b=2", "--step", "1"], ["--step is for one --rate"]),
        (["http://x/", "--rate", "a=1..2", "--rate", "b=2", "--find-max", "--p99", "1s"], ["the proportion"]),
        (["http://x/", "--rate", "1", "--errors", "101%"], ["1% or 0.01"]),
        (["http://x/", "--rate", "1", "--errors", "x"], ["1% or 0.01"]),
        (["http://x/", "--rate", "1", "--p99", "fast"], ["--p99", "a duration looks like"]),
        (["http://x/", "--rate", "1", "--p99", "200"], ["--p99", "needs a unit: 200ms or 200s"]),
        (["http://x/", "--rate", "a=1", "--p99", "a= 0.2 "], ["--p99", "0.2ms or 0.2s"]),
        (["http://x/", "--rate", "1", "--p99", "1s", "--p99", "2s"], ["--p99", "one threshold is for all"]),
        (["http://x/", "--rate", "a=1", "--p99", "a=1s", "--p99", "a=2s"], ["'a' has two thresholds"]),
        (["http://x/", "--rate", "a=1", "--errors", "a b=1%"], ["--errors", "name of a class"]),
        (["http://x/", "--rate", "a=1", "--p99", "=1s"], ["--p99", "name of a class", "got ''"]),
        (["http://x/", "--rate", "a=1", "--rate", "b=1", "--p99", "c=1s"], ["--p99", "'c'", "classes are a, b"]),
        (["http://x/", "--rate", "a=1", "--errors", "c=1%", "--find-max"], ["--errors", "'c'", "classes are a"]),
        (["http://x/", "--rate", "1", "--errors", "c=1%"], ["there are none, and --rate c=20 makes one"]),
        (["http://x/", "--rate", "1", "--step", "5"], ["--step needs a range"]),
        (["http://x/", "--rate", "1..9", "--step", "5", "--for", "1s"], ["--step and --for"]),
        (["http://x/", "--rate", "1..9999", "--step", "0.1"], ["give a larger step"]),
        (["http://x/", "--rate", "1", "--every", "5s"], ["--every needs --step or --find-max"]),
        (["http://x/", "--rate", "1", "--find-max"], ["--find-max needs --p99 or --errors"]),
        (["http://x/", "--rate", "1", "--find-max", "--p99", "1s", "--for", "1s"], ["--find-max and --for"]),
        (["http://x/", "--rate", "1..9", "--find-max", "--p99", "1s", "--step", "1"], ["--find-max and --step"]),
        (["http://x/", "--rate", "1", "--reach", "x"], ["--reach", "1% or 0.01"]),
        (["http://x/", "--rate", "1", "--csv", "."], ["--csv must be a file"]),
        (["http://x/", "--rate", "1", "--find-max", "--p99", "1s", "--reach", "1"], ["--find-max and --reach"]),
        (["http://x/", "--rate", "1", "--header", "nothing"], ["'Name: value'"]),
        (["http://u:p@x/", "--rate", "1", "--header", "Authorization: a"], ["TARGET", "give one of them"]),
        (["user:pass@x:80", "--rate", "1"], ["TARGET must be a URL", "got 'user:***@x:80'"]),
        (["http://x/", "--rate", "1", "--method", "GET /"], ["--method: ", "a word such as GET"]),
        (["http://x/{class}", "--rate", "1"], ["{class} needs classes", "--rate urgent=20"]),
        (["http://x/", "--rate", "1", "--header", "A: {class}"], ["{class} needs classes"]),
        (["http://x/", "--rate", "1", "--body", "@missing"], ["--body @missing: No such file or directory\n"]),
        (["http://x/", "--rate", "1", "--requests", "missing"], ["--requests missing: No such file or directory\n"]),
        (["http://x/", "--rate", "1", "--json", "no/where.json"], ["--json", "does not exist"]),
        (["http://x/", "--rate", "1", "--html", "."], ["--html must be a file"]),
        (["http://x/", "--rate", "1", "--csv", "x" * 300], ["--csv: ", "cannot be written: File name too long"]),
        (["json:dumps", "--rate", "1", "--method", "PUT"], ["--method is for URLs"]),
        (["json:nothing", "--rate", "1"], ["nothing"]),
        (["compare", "a.json"], ["bench compare --help", "Missing argument 'AFTER'"]),
        (["compare", "a.json", "b.json", "c.json"], ["unexpected extra argument (c.json)"]),
        (["compare", "a.json", "b.json", "--rate", "1"], ["bench compare", "No such option", "--rate"]),
        (["--quiet", "compare", "a.json", "b.json"], ["compare comes right after bench"]),
        (["compare", "a.json", "b.json"], ["a.json cannot be read: No such file or directory\n"]),
    ],
)
def test_bad_usage_is_refused_before_anything_is_sent(place, arguments, words) -> None:
    """Bad usage has exit status 2, and its message names the option and the remedy."""
    assert_refused(bench(*arguments), *words)


def test_file_is_tried_before_the_load_and_left_as_it_was(tmp_path) -> None:
    """A file that is there keeps its contents, no other is left behind, and one that cannot be made is refused."""
    there, absent = tmp_path / "there.json", tmp_path / "absent.json"
    there.write_text("before")
    for path in (there, absent):
        check_output("--json", path)

    assert "before" == there.read_text()
    assert [there] == [*tmp_path.iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="the directory is one of Linux")
def test_directory_in_which_nothing_can_be_written_is_refused() -> None:
    """Root may write everywhere but there."""
    with pytest.raises(CommandError, match="--json: /proc/x.json cannot be written"):
        check_output("--json", Path("/proc/x.json"))


def test_file_that_is_no_measurement_is_refused(place) -> None:
    """The message names the file that is not a measurement or not JSON."""
    place.write("a.json", "{}")
    place.write("b.json", "{")
    assert_refused(bench("compare", "a.json", "a.json"), "a.json", "not a measurement")
    assert_refused(bench("compare", "b.json", "a.json"), "b.json is not a file written by bench --json")
    place.write("b.json", "[" * 100_000)
    assert_refused(bench("compare", "b.json", "a.json"), "b.json is not a file written by bench --json")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unprepared", ["set-up of TARGET failed", "no database"]),
        ("yields_none", ["must yield a function", "NoneType"]),
    ],
)
def test_target_that_cannot_be_set_up_is_refused(targets, name, words) -> None:
    """The exit status is 2, and the message has the reason, such as the error that the set-up raised."""
    assert_refused(bench(f"{targets}:{name}", "--rate", "1"), *words)


@real_time
def test_failing_tear_down_is_told_after_the_report(targets) -> None:
    """The report and the JSON file are written before the failed tear-down is reported."""
    result = bench(f"{targets}:not_torn_down", "--rate", "20", "--for", "200ms", "--quiet", "--json", "out.json")

    assert_refused(result, "tear-down of TARGET failed", "still busy")
    assert "our lateness" in result.stdout
    with open("out.json", encoding="utf-8") as file:
        assert 4 == json.load(file)["figures"]["count"]


@real_time
def test_signal_ends_a_set_up_that_hangs(place, targets) -> None:
    """SIGINT during the set-up of a target ends the process at once with status 130."""
    command = [sys.executable, "-m", "ratelimited_executor", "bench", f"{targets}:hangs", "--rate", "50"]
    with subprocess.Popen(command, cwd=place.path, stdout=-1, stderr=-1, text=True) as process:
        assert "hangs" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert (130, "") == (process.returncode, err)


def test_missing_extra_is_named(place, monkeypatch) -> None:
    """Without the extra the message names the missing package and the command that installs it."""
    monkeypatch.setattr("ratelimited_executor.cli.bench.inputs.find_spec", lambda name: None)
    assert_refused(bench("http://x/", "--rate", "1"), "hdrhistogram", "ratelimited-executor[load]")
