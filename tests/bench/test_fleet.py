"""The section of shared limits: its figures, its processes and its server in virtual time."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench import fleet
from bench.fleet.cases import CASES, Case, Fault, Load
from bench.fleet.figures import (
    Law,
    excess,
    gaps_after,
    laws_of,
    least_over_most,
    most_at_once,
    quantile,
    recovery,
)
from bench.fleet.programs import run_case
from bench.fleet.server import Network, VirtualServer
from bench.fleet.world import World
from bench.harness import Options
from ratelimited_executor import Burst, Window

# Figures.


def test_first_rate_follows_the_policy_and_the_others_are_windows() -> None:
    """A bucket has a depth and a rate, a window has permits and a width."""
    assert laws_of("100/s, 600/10s", Burst(20)) == [
        Law("100/s", 20, 0.0, 100.0),
        Law("600/10s", 600, 10.0, 60.0),
    ]
    assert laws_of("5/min", Window()) == [Law("5/min", 5, 60.0, 5 / 60)]
    assert laws_of("") == []


@pytest.mark.parametrize(
    ("times", "expected"),
    [([0.0, 0.4, 1.0], (2, 0)), ([0.0, 0.4, 0.999], (3, 1)), ([], (0, -2))],
)
def test_excess_of_a_window(times: list[float], expected: tuple[int, int]) -> None:
    """Starts that are a whole width apart are in no window together."""
    assert excess(Law("2/s", 2, 1.0, 2.0), times) == expected


@pytest.mark.parametrize(("count", "too_many"), [(20, 0), (21, 1), (25, 5)])
def test_excess_of_a_bucket(count: int, too_many: int) -> None:
    """A bucket allows its depth at one instant."""
    assert excess(Law("10/s", 20, 0.0, 10.0), [5.0] * count)[1] == too_many


def test_bucket_refills() -> None:
    """What the rate gives meanwhile may start as well, and no more."""
    law = Law("10/s", 20, 0.0, 10.0)

    assert excess(law, [0.0] * 20 + [1.0] * 10)[1] <= 0
    assert excess(law, [0.0] * 20 + [1.0] * 11)[1] == 1


def test_a_process_that_got_nothing_makes_the_least_share_nothing() -> None:
    """Who takes part is told by the weights, not by the counts."""
    assert least_over_most({0: 5}, {0: 1.0, 1: 1.0}) == 0.0
    assert least_over_most({0: 5, 1: 15}, {0: 1.0, 1: 3.0}) == 1.0
    assert least_over_most({}, {0: 1.0}) == 0.0


def test_quantiles_are_values_that_occurred() -> None:
    """The part of all values is not exceeded, and no value is invented between two."""
    values = [float(number) for number in range(1, 101)]

    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert quantile([], 0.5) != quantile([], 0.5)


def test_spans_that_touch_do_not_run_at_once() -> None:
    """A slot that is given back may be taken at the same instant."""
    assert most_at_once([(0.0, 1.0), (1.0, 2.0)]) == 1
    assert most_at_once([(0.0, 1.0), (0.5, 2.0), (0.9, 1.0)]) == 3
    assert most_at_once([]) == 0


def test_gaps_are_those_to_the_next_start() -> None:
    """An end after the last start has none."""
    assert gaps_after([1.0, 2.0, 9.0], [0.0, 1.5, 2.0]) == [0.5, 0.0]


def test_recovery_needs_a_whole_second_at_the_rate() -> None:
    """A few starts after a fault are no recovery: a second that begins then has most of the rate."""
    steady = [3.0 + number / 10 for number in range(40)]

    assert recovery([1.0, *steady], 1.0, 10.0, 7.0) == 2.0
    assert recovery([1.0, 1.1], 1.0, 10.0, 7.0) == float("inf")
    assert recovery(steady, 6.5, 10.0, 7.0) == float("inf")  # it ends before a second is over


# Processes and the server.


def test_each_process_has_a_core_of_its_own() -> None:
    """A callback that uses the core delays its own process, and neither another one nor the time of the world."""
    world, woken = World(2), {}

    async def main(process: int) -> None:
        if process == 0:
            world.loops[0].block_for(1.0)
        await asyncio.sleep(0.5)
        woken[process] = world.loops[process].time(), world.now
        await asyncio.sleep(100)

    for process in range(2):
        world.start(process, main(process))
    world.run(3.0)
    world.close()

    assert woken == {1: (0.5, 0.5), 0: (1.5, 1.5)}


def test_a_message_waits_for_a_busy_core_and_is_read_in_order() -> None:
    """A message that arrives while the core is busy is read as soon as it is free."""
    world, read = World(1), []

    async def main() -> None:
        await asyncio.sleep(1.0)
        world.loops[0].block_for(0.5)
        await asyncio.sleep(100)

    world.start(0, main())
    for when in (0.5, 1.25, 2.0):
        world.at(when, world.deliver, 0, lambda: read.append(world.loops[0].time()))
    world.run(3.0)
    world.close()

    assert read == [0.5, 1.5, 2.0]


def test_a_killed_process_runs_nothing_more() -> None:
    """Neither a timer nor a message wakes it; the program can still be closed."""
    world, woken = World(1), []

    async def main() -> None:
        while True:
            await asyncio.sleep(1.0)
            woken.append(world.now)

    world.start(0, main())
    world.at(2.5, world.kill, 0)
    world.at(3.0, world.deliver, 0, woken.append, "message")
    world.run(5.0)

    assert woken == [1.0, 2.0]
    world.close()


def test_an_error_of_a_process_is_raised() -> None:
    """A program that fails is no measurement."""
    world = World(1)

    async def main() -> None:
        raise ZeroDivisionError

    world.start(0, main())
    with pytest.raises(ZeroDivisionError):
        world.run(1.0)
    world.close()


@pytest.mark.parametrize(
    ("trip", "call_seconds", "expected"), [(0.1, 0.0, [0.1, 0.1]), (0.1, 0.01, [0.11, 0.12]), (0.0, 0.5, [0.5, 1.0])]
)
def test_calls_wait_for_those_before_them(trip: float, call_seconds: float, expected: list[float]) -> None:
    """The server is one queue, and messages travel side by side."""
    world = World(2)
    server = VirtualServer(world, Network((trip,), jitter=0.0, skew=0.0), call_seconds=call_seconds)
    answered = []

    async def main(process: int) -> None:
        assert await server.call(process, lambda: (process, 0)) == process
        answered.append(world.loops[process].time())
        await asyncio.sleep(100)

    for process in range(2):
        world.start(process, main(process))
    world.run(5.0)
    world.close()

    assert answered == pytest.approx(expected)
    assert server.calls == 2
    assert server.busy == pytest.approx(2 * call_seconds)


@pytest.mark.parametrize(
    ("network", "is_away", "heard", "is_answered"),
    [
        (Network(loss=1.0), False, 0, False),
        (Network(twice=1.0), False, 2, True),
        (Network(), True, 0, False),
        (Network(), False, 1, True),
    ],
)
def test_network_loses_and_repeats_calls(network: Network, is_away: bool, heard: int, is_answered: bool) -> None:
    """A lost call has no effect and no answer, a repeated one has two effects and one answer."""
    world = World(1)
    server = VirtualServer(world, network)
    server.is_away = is_away
    answers = []

    async def main() -> None:
        answers.append(await server.call(0, lambda: ("answer", 1)))
        await asyncio.sleep(100)

    world.start(0, main())
    world.run(5.0)
    world.close()

    assert server.calls == heard
    assert answers == ["answer"] * is_answered


def test_clock_of_the_server_steps_and_drifts() -> None:
    """A step changes the time at once, a drift from now on."""
    world = World(1)
    server = VirtualServer(world, Network())
    begin = server.now_us()

    world.run(1.0)
    assert server.now_us() - begin == 1_000_000
    server.step(-3.0)
    assert server.now_us() - begin == -2_000_000
    server.slew(0.5)
    assert server.now_us() - begin == -2_000_000
    world.run(3.0)
    assert server.now_us() - begin == 1_000_000
    world.close()


# Cases.


def test_cases_have_names_of_their_own_and_goals_for_known_figures() -> None:
    """A name stands for one case, and every goal for a figure of the tables."""
    assert len({case.id for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.goals.keys() <= fleet.FIGURES.keys()
        assert case.goals


@pytest.mark.parametrize("kind", ["permits", "tasks", "arrivals"])
def test_a_program_is_the_same_every_time(kind: str) -> None:
    """Two runs of a case have equal figures."""
    case = Case(
        group="g", name="n", limit=50, settings={"rate": "50/s"}, loads=(Load(kind=kind, count=20),), processes=2
    )

    assert run_case(case, is_quick=True) == run_case(case, is_quick=True)


def test_a_broken_law_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that share nothing exceed the limit together, which the report says."""
    monkeypatch.setattr(VirtualServer, "peers", lambda *_, **__: None)
    settings = {"rate": "10/s", "policy": Window(), "key_rate": "8/s"}
    case = Case(group="g", name="n", limit=10, settings=settings, loads=(Load(keys=1),), processes=2)

    report = run_case(case, is_quick=True)

    assert report.broken == ["10/s : 16 in a window, 6 too many", "8/s k0: 16 in a window, 8 too many"]
    assert report.worst == ["16 of 10/s", "16 of 8/s"]


def test_too_many_tasks_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do processes that do not share a pool of slots."""
    monkeypatch.setattr(VirtualServer, "peers", lambda *_, **__: None)
    case = Case(group="g", name="n", limit=10, settings={}, loads=(Load(count=5, work=0.1),), processes=2, slots=2)

    report = run_case(case, is_quick=True)

    assert report.broken == ["slots: 4 run at once, of 2"]


def test_section_shows_each_case_with_its_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case is a row, with targets for its goals; laws are a check."""
    cases = (
        Case(group="one", name="a", limit=20, settings={"rate": "20/s"}, goals={"use": 0.5, "first start": 99}),
        Case(
            group="two",
            name="b",
            limit=20,
            settings={"rate": "20/s", "policy": Window()},
            processes=3,
            faults=(Fault(0.5, "kill", (2,)), Fault(0.6, "away"), Fault(0.7, "back")),
            goals={"recovery": 60},
        ),
    )
    monkeypatch.setattr(fleet, "CASES", cases)

    tables = fleet.run(Options(quick=True))

    assert [(table.title, list(table.rows)) for table in tables] == [
        ("Shared limits: one", ["a"]),
        ("Shared limits: two", ["b"]),
    ]
    assert [table.checks for table in tables] == [{"laws broken": 0}] * 2
    assert tables[0].rows["a"]["use"].target.text == ">= 0.5"
    assert tables[0].rows["a"]["first start"].met
    assert tables[1].rows["b"]["recovery"].target.bound == 60
    assert tables[1].rows["b"]["most in a window"] == "20 of 20/s"
