"""What ``bench`` shows during a measurement, and the sentences of its reports."""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from ratelimited_executor.cli.bench.open_load import Live
from ratelimited_executor.cli.bench.page import render
from ratelimited_executor.cli.bench.view import (
    failure_text,
    found_text,
    live_picture,
    measurement_tables,
    show_live,
    tool_limit_text,
    trial_text,
    verdict_text,
)
from ratelimited_executor.cli.screen import block_for
from ratelimited_executor.load.figures import Participant
from ratelimited_executor.load.recording import Recent
from ratelimited_executor.load.search import Found, Trial
from ratelimited_executor.load.verdicts import Verdict
from tests.load.models import figures_of, figures_of_classes, measurement_of

LIVE = Live(
    is_warm_up=True,
    seconds=4,
    total=60,
    rate=1500,
    in_flight=7,
    waiting=3,
    ended=5990,
    errors=12,
    recent=Recent(p50=0.012, p99=0.25, counts=(0, 0, 0, 0, 0, 0, 600, 0, 0, 399, *[0] * 8, 1)),
)


async def shown(*, is_terminal: bool, width: int) -> str:
    """Return the output of a load of 11 s."""
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=width)
    showing = asyncio.ensure_future(show_live(console, lambda: LIVE, label="load"))
    await asyncio.sleep(11)
    showing.cancel()
    await asyncio.wait({showing})
    return console.file.getvalue()


async def test_pipe_gets_a_line_every_five_seconds(virtual_loop) -> None:
    """A pipe gets whole lines, however narrow the width is."""
    line = (
        "load: 4 s of 1m, 1,500.0/s, 7 in flight, 3 wait for a connection, 5,990 ended, 12 errors, p50 12 ms, "
        "p99 250 ms, warm-up\n"
    )
    assert line * 2 == await shown(is_terminal=False, width=20)


async def test_terminal_gets_a_table_of_eighty_columns(virtual_loop) -> None:
    """The table of a terminal with 80 columns has every figure, and cuts nothing off."""
    text = await shown(is_terminal=True, width=80)

    assert "load, warm-up" in text
    for part in ("1,500.0/s", "in flight", "waiting", "5,990", "errors", "250 ms"):
        assert part in text
    assert "…" not in text


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
async def test_no_figure_is_cut_however_narrow_the_terminal_is(virtual_loop, width) -> None:
    """On a narrow terminal, large figures stand beside each other as they fit, each whole, and bars are shorter."""
    large = replace(LIVE, seconds=83.4, total=1200, rate=12_500, waiting=15_200, ended=1_034_220, errors=20_345)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(live_picture(large, "trial 3, 12500/s", console))
    text = console.file.getvalue()
    assert "…" not in text
    for part in ("1m23s of 20m", "12,500.0/s", "15,200", "1,034,220", "20,345", "250 ms", "60.0%", "up to 10 ms"):
        assert part in text
    assert max(map(len, text.splitlines())) <= width
    bar = next(line for line in text.splitlines() if "60.0%" in line)
    assert bar.count(block_for(console)) == math.ceil(0.6 * min(40, width - 24))


async def test_terminal_gets_a_histogram_of_the_latest_response_times(virtual_loop) -> None:
    """Bars have the share of each part, from the first that is not empty to the last; a small share is seen."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", await shown(is_terminal=True, width=80)).replace("█", "#")

    for line in ("up to 10 ms   ########################  60.0%", "up to 20 ms                             0.0%",
                 "up to 100 ms  ################          39.9%", "longer        #                         0.1%"):  # fmt: skip
        assert line in text
    assert "up to 5 ms" not in text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            Found(held=500, held_votes=(3, 3), failed=525, failed_votes=(1, 1), above=500, below=525),
            "The highest rate held is 500/s, in 3 of 3 trials; 525/s was not held, in 1 of 1 trial. "
            "The limit is between 500/s and 525/s: every trial up to the first held, and none from the second on.",
        ),
        (
            Found(held=500, held_votes=(2, 3), failed=None, failed_votes=(0, 0), above=400),
            "The highest rate held is 500/s, in 2 of 3 trials; it was the highest that was tried. "
            "The limit is above 400/s: every trial up to that held.",
        ),
        (
            Found(held=500, held_votes=(2, 3), failed=525, failed_votes=(2, 2), below=525, reason="x"),
            "The highest rate held is 500/s, in 2 of 3 trials; 525/s was not held, in 2 of 2 trials. The search ended early: "
            "x. The limit is below 525/s: no trial from that on held.",
        ),
        (
            Found(held=500, held_votes=(2, 3), failed=None, failed_votes=(0, 0)),
            "The highest rate held is 500/s, in 2 of 3 trials; it was the highest that was tried. "
            "The trials do not agree: make them longer by --every.",
        ),
        (
            Found(held=None, held_votes=(0, 0), failed=2, failed_votes=(2, 2)),
            "No rate was held: 2/s was the lowest that was tried, and failed in 2 of 2 trials.",
        ),
        (
            Found(held=None, held_votes=(0, 0), failed=None, failed_votes=(0, 0), reason="at 9/s x"),
            "No rate was held. The search ended early: at 9/s x.",
        ),
    ],
)
def test_end_of_a_search_is_told_in_sentences(found, text) -> None:
    """The sentences on a search's end say how many trials agree, and how sure the result is."""
    assert text == found_text(found).plain


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (Verdict(broken=(), is_clear=True), "Every threshold was kept."),
        (
            Verdict(broken=(), is_clear=False, doubts=("errors (0 of 9 requests failed)",)),
            "Every threshold was kept, but chance is not ruled out for errors (0 of 9 requests failed): measure for longer.",
        ),
        (Verdict(broken=("a", "b"), is_clear=True), "Not kept: a; b."),
        (
            Verdict(broken=("a",), is_clear=False, doubts=("c",)),
            "Not kept: a, though not by enough to rule out chance: measure for longer.",
        ),
    ],
)
def test_verdict_is_a_sentence(verdict, text) -> None:
    """Which names the thresholds that decided it, or that are in doubt."""
    assert text == verdict_text(verdict).plain


def test_failure_of_all_requests_is_told_with_its_reason() -> None:
    """As the exit status is 1 without any threshold."""
    assert failure_text(figures_of([0.1] * 10, errors=9)) is None
    assert (
        "the most frequent error is 'tls', 10 of 10."
        in failure_text(figures_of([0.1] * 10, errors=10, kind="tls")).plain
    )
    assert "No request was sent." == failure_text(figures_of([])).plain


def test_page_has_the_outcome() -> None:
    """Escaped."""
    assert '<p class="outcome">Not kept: &lt;b&gt;</p>' in render(measurement_of(figures_of([0.1])), ["Not kept: <b>"])


def test_trial_tells_why_it_did_not_hold_or_count() -> None:
    """One line for each trial says whether it held, clearly or not, and why it did not hold or does not count."""
    assert "9/s: held, but not clearly" == trial_text(Trial(rate=9, has_held=True, is_clear=False), []).plain
    assert "9/s: not held, a; b" == trial_text(Trial(rate=9, has_held=False), ["a", "b"]).plain
    assert "does not count" in trial_text(Trial(rate=9, has_held=False, tool_limit="late"), ["a"]).plain


def test_tables_show_what_others_named_without_obeying_it() -> None:
    """Control characters and markup in a kind of error are shown as text."""
    console = Console(file=io.StringIO(), width=200)
    for table in measurement_tables(measurement_of(figures_of([0.1] * 10, errors=3, kind="[red]\x1b[2J"))):
        console.print(table)

    assert "[red]\\x1b[2J" in console.file.getvalue()


def test_classes_have_a_row_each() -> None:
    """Each class has a row with the response times, and one with the service times."""
    console = Console(file=io.StringIO(), width=200)
    for table in measurement_tables(measurement_of(figures_of_classes(ordinary=[0.5] * 20, urgent=[0.01] * 20)))[-2:]:
        console.print(table)
    rows = console.file.getvalue()

    assert ["response times by class", "service times by class"] == re.findall("[a-z]+ times by class", rows)
    assert 2 == rows.count("ordinary") == rows.count("urgent")
    assert 6 == rows.count("10 ms")  # p50, p99 and max from each start


def test_no_figure_is_cut_off_on_a_narrow_terminal() -> None:
    """In 80 columns each figure of a class is in one piece, and in 40 each character is still there."""
    figures = figures_of_classes(**{"ordinary-requests": [0.0168] * 20_000, "urgent": [0.0279] * 20})
    participants = [Participant(name="node-7.workers.example:1234", sent_part=1.0, count=20_020, cpu_share=1.06)]
    tables = measurement_tables(replace(measurement_of(figures), participants=participants))
    for width in (80, 40):
        console = Console(file=io.StringIO(), width=width)
        for table in tables:
            console.print(table)
        text = console.file.getvalue()
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        if width == 80:
            rows = [line for line in text.splitlines() if "ordinary-requests" in line]
            assert [3, 3] == [row.count("16.8 ms") for row in rows]


def test_tool_as_the_limit_is_told_loudly() -> None:
    """The report says that the load generator was the bottleneck, and nothing if it was not."""
    assert tool_limit_text(figures_of([1.0] * 100)) is None
    assert tool_limit_text(figures_of([0.1] * 100, cpu_share=1.06)).plain == (
        "The load generator was the bottleneck: it used 106 % of a core, so responses waited to be read. The service is faster "
        "than these figures show: lower the rate, give the load generator a machine of its own, or share the load between "
        "several machines."
    )
    assert (
        "it started requests late itself, by 50 ms at p99, when they took 100 ms."
        in tool_limit_text(figures_of([0.1] * 100, lateness=0.05)).plain
    )
