"""The parts of the demo: its load, its evaluation of arrivals, and its views."""

from __future__ import annotations

import io
from collections import Counter
from zlib import crc32

import pytest
from aiohttp.test_utils import TestClient, TestServer
from rich.console import Console

from ratelimited_executor.cli.demo import server
from ratelimited_executor.cli.demo.figures import DemoVerdict, Half, judge, mean_delays, per_bin
from ratelimited_executor.cli.demo.load import Delivery, base_load, due_by_priority, stretch
from ratelimited_executor.cli.demo.report import print_report, print_verdict
from ratelimited_executor.cli.demo.view import LiveView, PlainView


def deliveries(*dues_and_priorities: tuple[float, int]) -> list[Delivery]:
    """Return a load with these due times and priorities."""
    return [
        Delivery(index, due, priority, f"event-{priority}", 1)
        for index, (due, priority) in enumerate(dues_and_priorities)
    ]


def console(width: int = 80) -> tuple[Console, io.StringIO]:
    """Return a console that is not a terminal, and the file it prints to."""
    file = io.StringIO()
    return Console(file=file, width=width), file


def test_the_load_is_the_same_every_time() -> None:
    """Every run of the demo, on every Python, has the same deliveries."""
    assert 2_215_725_904 == crc32(repr(base_load()).encode())


def test_the_load_has_a_burst_and_priorities() -> None:
    """The load has 2,200 deliveries in due order: 400 overdue, 1,000 at second 3, in three priorities."""
    load = base_load()
    dues = Counter(delivery.due for delivery in load)
    assert (2_200, True, 1_000) == (len(load), dues[0.0] >= 400, dues[3.0])
    assert ({1, 5, 9}, sorted(d.due for d in load)) == ({d.priority for d in load}, [d.due for d in load])


@pytest.mark.parametrize(
    ("seconds", "rate", "count", "burst"),
    [(20.0, 200, 2_200, 1_000), (10.0, 200, 1_100, 500), (4.0, 20, 44, 20), (20.0, 1000, 11_000, 5_000)],
)
def test_stretching_keeps_the_shape(seconds: float, rate: int, count: int, burst: int) -> None:
    """Another time or rate changes the number of deliveries, not their distribution."""
    load = stretch(base_load(), seconds=seconds, rate=rate)
    at_burst = sum(1 for delivery in load if delivery.due == pytest.approx(3.0 * seconds / 20))
    assert (count, burst, list(range(count))) == (len(load), at_burst, [delivery.index for delivery in load])


def test_due_by_priority_counts_what_is_due() -> None:
    """The most important priority comes first, and priorities with nothing due are included."""
    load = deliveries((0.0, 1), (1.0, 5), (1.0, 1), (2.0, 9))
    assert [("9", 0), ("5", 1), ("1", 2)] == [(str(key), n) for key, n in due_by_priority(load, 1.0).items()]


def test_bins_hold_every_arrival() -> None:
    """Every arrival is counted, also one at or beyond the end, in the last bin."""
    assert [2, 0, 2] == per_bin([0.0, 0.99, 2.5, 3.01], width=1.0, end=3.0)


def test_mean_delays_are_from_due_to_arrival() -> None:
    """Delays are averaged by priority, the most important first."""
    half = Half(name="x", arrivals=[(1.0, 0), (2.0, 1), (2.0, 2)])
    assert [(9, 1.0), (1, 1.5)] == list(mean_delays(half, deliveries((0.0, 1), (1.0, 9), (0.0, 1))).items())


EVEN = [index / 10 for index in range(30)]


@pytest.mark.parametrize(
    ("starts", "arrivals", "most", "is_held", "missing"),
    [
        (EVEN, EVEN, (10, 10), True, 0),
        ([0.0] * 30, [0.0] * 30, (30, 30), False, 0),
        (EVEN, [at + 0.04 * (at < 1) for at in EVEN], (10, 11), True, 0),  # the network's delay varies
        (EVEN, [0.0] * 30, (10, 30), False, 0),  # more than the network's delay explains
        ([*EVEN[:10], 0.99, *EVEN[11:]], EVEN, (11, 10), False, 0),  # the server need not see it
        (EVEN[:29], EVEN[:29], (10, 10), True, 1),
        ([], [], (0, 0), False, 30),
    ],
)
def test_the_verdict_is_of_starts_and_arrivals(
    starts: list[float], arrivals: list[float], most: tuple[int, int], is_held: bool, missing: int
) -> None:
    """The rate is held if no second has more starts than it, and the arrivals agree."""
    seen = sorted((at, index) for index, at in enumerate(arrivals))
    verdict = judge(Half(name="x", starts=starts, arrivals=seen), rate=10, count=30)
    assert (most, is_held, missing) == (
        (verdict.most_started, verdict.most_arrived),
        verdict.is_held,
        verdict.missing,
    )


def test_the_verdict_finds_what_came_twice() -> None:
    """A delivery that arrived twice counts as one too many, and the one it replaced as missing."""
    arrivals = [(at, min(index, 28)) for index, at in enumerate(EVEN)]
    assert 2 == judge(Half(name="x", starts=EVEN, arrivals=arrivals), rate=10, count=30).missing


def test_a_second_ends_before_the_next_begins() -> None:
    """Rounding of epoch seconds does not put starts a second apart into one second."""
    epoch = 1_800_000_000.0
    assert (
        10
        == judge(
            Half(name="x", starts=[epoch + at for at in EVEN], arrivals=[(1.0, 0)]), rate=10, count=30
        ).most_started
    )


def test_the_verdict_in_words() -> None:
    """A line says whether the rate was held, and how much arrived; another why more may arrive than start."""
    screen, file = console()
    half = Half(name="executor", arrivals=[], failed=2)
    verdict = DemoVerdict(most_started=200, most_arrived=203, is_held=True, missing=0)
    print_verdict(screen, half, verdict, rate=200, count=9)
    good = Half(name="call_later", arrivals=[])
    verdict = DemoVerdict(most_started=1_100, most_arrived=1_098, is_held=False, missing=0)
    print_verdict(screen, good, verdict, rate=200, count=9)
    verdict = DemoVerdict(most_started=200, most_arrived=300, is_held=False, missing=0)
    print_verdict(screen, good, verdict, rate=200, count=9)
    half = Half(name="executor", arrivals=[])
    verdict = DemoVerdict(most_started=199, most_arrived=200, is_held=True, missing=0)
    print_verdict(screen, half, verdict, rate=200, count=9)
    assert file.getvalue() == (
        "executor: never more than 200 starts in any second; 0 of 9 missing or doubled, 2 refused\n"
        "  (up to 203 arrivals in one second, as some take longer on the way)\n"
        "call_later: MORE than 200 starts in a second: 1,100; all 9 arrived once\n"
        "call_later: the server counted 300 in one second, more than delays of 50 ms on the way explain; all 9 arrived once\n"
        "executor: never more than 200 starts in any second; all 9 arrived once\n"
    )


def test_the_report_fits_eighty_columns() -> None:
    """The report fits 80 columns, and shows table, plots and delays of both halves."""
    load = deliveries(*[(0.0, 1)] * 20, *[(1.0, 9)] * 20)
    even = Half(name="executor", arrivals=[((index + 0.5) / 10, index) for index in range(40)])
    burst = Half(name="call_later", arrivals=[(delivery.due + 0.01, delivery.index) for delivery in load])
    screen, file = console()
    print_report(screen, even, burst, load, rate=10)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    full, over = "█" * 24, "█" * 23 + ">"
    assert lines[:6] == [
        "Deliveries per second, as the server saw them",
        "second  executor  (bar: 10)                 call_later  (bar: 10)",
        f"     0        10  {full}          20  {over}",
        f"     1        10  {full}          20  {over}",
        f"     2        10  {full}",
        f"     3        10  {full}",
    ]
    assert lines[-4:] == [
        "Mean delay from due to arrival",
        "priority (larger is more important)  executor  call_later",
        "9  event-9                            2.000 s     0.010 s",
        "1  event-1                            1.000 s     0.010 s",
    ]
    titles = [line.strip() for line in lines if "100 ms" in line]
    assert ["executor: arrivals per 100 ms, at most 1", "call_later: arrivals per 100 ms, at most 20"] == titles
    assert max(map(len, lines)) <= 80


def test_the_report_of_nothing_does_not_fail() -> None:
    """A report without arrivals does not fail."""
    screen, file = console()
    print_report(screen, Half(name="a", arrivals=[]), Half(name="b", arrivals=[]), deliveries((0.0, 1)), rate=10)
    assert "Mean delay" in file.getvalue()


def test_the_plain_view_prints_each_second_once() -> None:
    """The plain view prints a line for each second that is over."""
    screen, file = console()
    view = PlainView(screen)
    view.begin("title")
    for seconds in ([5], [7, 1], [7, 3], [7, 9, 4, 1]):
        view.show(seconds, {9: 0, 1: 12})
    view.end()
    assert file.getvalue() == (
        "title\n"
        "  second  0:     7 arrived; waiting: 12 of priority 1\n"
        "  second  1:     9 arrived; waiting: 12 of priority 1\n"
        "  second  2:     4 arrived; waiting: 12 of priority 1\n"
    )


def test_the_live_view_fits_a_plain_terminal() -> None:
    """The live view has at most 80 columns and 24 lines, however long the demo."""
    screen, file = console()
    screen.print(LiveView(screen, rate=200).draw([1_000_000] * 60, {9: 10_000, 5: 10_000, 1: 10_000}))
    lines = file.getvalue().splitlines()
    assert (True, True) == (len(lines) <= 24, max(map(len, lines)) <= 80)


async def test_the_server_notes_each_arrival() -> None:
    """The server counts each half separately, once it has been announced."""
    async with TestClient(TestServer(server.make_app())) as client:
        assert 404 == (await client.post("/hook/a", json={"index": 0})).status
        assert 204 == (await client.post("/begin/a")).status
        assert 204 == (await client.post("/begin/b")).status
        for index in (3, 1, 3):
            assert 204 == (await client.post("/hook/a", json={"index": index})).status
        rows = await (await client.get("/arrivals/a")).json()
        assert [3, 1, 3] == [index for _, index in rows]
        assert sorted(at for at, _ in rows) == [at for at, _ in rows]
        assert 3 == sum((await (await client.get("/seconds/a")).json())["seconds"])
        assert [] == await (await client.get("/arrivals/b")).json()


async def test_the_server_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit the server refuses arrivals, and keeps what it has."""
    monkeypatch.setattr(server, "ARRIVALS_MAX", 1)
    async with TestClient(TestServer(server.make_app())) as client:
        await client.post("/begin/a")
        assert [204, 507] == [(await client.post("/hook/a", json={"index": 0})).status for _ in range(2)]
