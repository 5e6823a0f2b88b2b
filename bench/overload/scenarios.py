"""Four things that go wrong with more work than the rate permits, each for a few seconds of real time.

A start is the moment at which a waiter has its permit and goes on. If something does not happen before the scenario
ends, the time until the end counts, so that a figure as long as the scenario means "not within it".
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness import Figure, Table
from bench.overload.systems import HEAVY, KEYED, TENANTS, WINDOWS
from ratelimited_executor.testing import worst_window

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bench.harness import Options
    from bench.overload.systems import Acquire, Crowd, System

__all__ = ["measure"]

ROUNDS = 3
# On a busy machine a waiter may run this much later than its start was decided; checks allow for it, figures do not.
LATE_SECONDS = 0.25

WINDOW_PERMITS = 50
HEAVY_RATE, HEAVY_COST, STREAM_COUNT = 100, 20, 20
TENANT_RATE, TENANT_B_COUNT, TENANT_FACTOR = 50, 100, 20
KEYED_RATE, KEY_RATES, KEY_A_COUNT = 100, {"A": 10, "B": 50}, 400
B_GAP_SECONDS = 0.05


def measure(options: Options) -> list[Table]:
    """Measure every scenario with whatever is installed."""
    return [_windows(options), _heavy(options), _tenants(options), _keyed(options)]


def _rounds(
    options: Options, label: str, systems: Sequence[System], scenario: Callable[..., Any], *arguments: Any
) -> tuple[dict[str, list[Any]], list[str]]:
    """Run a scenario with each system in turns; return the results, and notes on systems that are not installed."""
    sides, notes = {}, []
    for system in systems:
        if not system.is_installed:
            notes.append(f"{system.name}: skipped, as {system.package} is not installed")
        elif not isinstance(system.opened, str):
            sides[system.name] = partial(_one_round, options, scenario, system.opened, *arguments)
    measured = options.in_turns(sides, rounds=options.rounds(ROUNDS), warm_up=0, label=label)
    return measured, notes


def _one_round(options: Options, scenario: Callable[..., Any], *arguments: Any) -> Any:
    gc.collect()
    with options.runner() as runner:
        return runner.run(scenario(*arguments))


def _cannot(table: Table, systems: Sequence[System]) -> None:
    """Add a row and a note for each system that cannot do a scenario."""
    for system in systems:
        if isinstance(system.opened, str):
            table.add(system.name, {table.columns[0]: "cannot"})
            table.notes.append(f"{system.name} {system.opened}.")


# The worst window.


def _windows(options: Options) -> Table:
    permits, per = options.size(WINDOW_PERMITS, 5), options.seconds(1.0, 0.1)
    systems = [system for system in WINDOWS if system.per_min <= per]
    rounds, notes = _rounds(options, "worst window", systems, _window_scenario, permits, per)
    table = Table(
        f"Worst window: N = {permits} starts in {per:g} s",
        ["most in a window", "by N", "seconds for all"],
        notes=notes,
    )
    for name, results in rounds.items():
        most = [float(worst_window(starts, width=per)[0]) for starts, _ in results]
        table.add(
            name,
            {
                "most in a window": Figure(most, ""),
                "by N": Figure([value / permits for value in most], "x"),
                "seconds for all": Figure([seconds for _, seconds in results], "s"),
            },
        )
        table.check("waiters that never started", sum(abs(4 * permits - len(starts)) for starts, _ in results))
        if name == "ours, Window()":
            beyond = [
                worst_window(starts, width=per - min(LATE_SECONDS, per / 2))[0] - permits for starts, _ in results
            ]
            table.check("starts of ours beyond N", sum(max(0, count) for count in beyond))
    table.notes.append(f"Twice {2 * permits} waiters come at once, and between them nobody for {1.5 * per:g} s.")
    table.notes.append(
        f"'By N': 1 is the promise as a server counts it. The least time at that promise: {2 * per:g} s."
    )
    table.notes.append("A window has both its ends; a start counts when the waiter goes on, late as that may be.")
    return table


async def _window_scenario(opened: Any, permits: int, per: float) -> tuple[list[float], float]:
    starts: list[float] = []
    spent = 0.0

    async def call(key: str) -> None:  # noqa: ARG001  # all are one's
        starts.append(time.monotonic())

    async with opened(permits, per) as crowd:
        for number in range(2):
            if number:
                await asyncio.sleep(1.5 * per)
            began = time.monotonic()
            await crowd(call, ["A"] * (2 * permits))
            spent += starts[-1] - began
    return starts, spent


# A heavy task among light ones.


def _heavy(options: Options) -> Table:
    rate, cost = options.size(HEAVY_RATE, 400), HEAVY_COST
    horizon = options.seconds(3.0, 0.2)
    rounds, notes = _rounds(options, "heavy task", HEAVY, _heavy_scenario, rate, cost, horizon)
    table = Table(
        f"Starvation: a task of cost {cost}, {rate} permits a second",
        ["wait", "by the time of its permits", "starved"],
        notes=notes,
    )
    for name, results in rounds.items():
        waits = [wait for wait, _ in results]
        starved = sum(wait >= horizon for wait in waits)
        table.add(
            name,
            {
                "wait": Figure(waits, "s"),
                "by the time of its permits": Figure([wait * rate / cost for wait in waits], "x"),
                "starved": f"{starved} of {len(waits)}",
            },
        )
        if name.startswith("ours"):
            table.check("light starts missing beside ours", sum(not light for _, light in results))
    _cannot(table, HEAVY)
    table.notes.append(f"{STREAM_COUNT} others take a permit each, again and again, so that there is none to spare.")
    table.notes.append(
        f"Its permits take {cost / rate:g} s, and those of whoever asked before it as long: 2 x is in turn."
    )
    table.notes.append(
        f"Starved: not started within {horizon:g} s, in rounds; in an exact window it waits for the next one."
    )
    return table


async def _heavy_scenario(opened: Any, rate: int, cost: int, horizon: float) -> tuple[float, int]:
    light_count = 0

    async def stream(acquire: Acquire) -> None:
        nonlocal light_count
        while True:
            await acquire("light")
            light_count += 1

    async with opened(rate, 1.0, cost) as acquire:
        tasks = [asyncio.create_task(stream(acquire)) for _ in range(STREAM_COUNT)]
        await asyncio.sleep(horizon / 4)
        began = time.monotonic()
        heavy = asyncio.create_task(acquire("heavy", cost))
        await asyncio.wait([heavy], timeout=horizon)
        wait = time.monotonic() - began
        await _end([*tasks, heavy])
    return min(wait, horizon), light_count


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; an error of a task fails the scenario."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


# Two tenants.


def _tenants(options: Options) -> Table:
    rate, count = options.size(TENANT_RATE, 200), options.size(TENANT_B_COUNT, 50)
    horizon = options.seconds(2.0, 0.2)
    rounds, notes = _rounds(options, "tenants", TENANTS, _tenant_scenario, rate, count, horizon)
    table = Table(
        f"Tenants: A queues {count * TENANT_FACTOR:,} and B {count} at once",
        ["Jain index", "starts of B in 100", "wait of B's first"],
        notes=notes,
    )
    for name, results in rounds.items():
        table.add(
            name,
            {
                "Jain index": Figure([_jain(a, b) for a, b, _ in results], "", smaller_is_better=False),
                "starts of B in 100": Figure(
                    [100 * b / max(1, a + b) for a, b, _ in results], "", smaller_is_better=None
                ),
                "wait of B's first": Figure([wait for *_, wait in results], "s"),
            },
        )
        if name == "ours, order=Fair()":
            table.check("starts of ours beyond a fair share", sum(max(0, abs(a - b) - 2) for a, b, _ in results))
    table.notes.append(f"{rate} permits a second; what the first {horizon:g} s have brought.")
    table.notes.append(
        "Jain index: 1 if both start as much, 0.5 if one has everything; each has more to do than its half."
    )
    table.notes.append(
        f"A wait of {horizon:g} s is the end of the measurement; in the order of asking it is A's whole queue."
    )
    table.notes.append(
        "A limiter for each tenant, at half the rate, is fair, and leaves half unused when one has nothing."
    )
    return table


def _jain(a: int, b: int) -> float:
    return (a + b) ** 2 / (2 * (a * a + b * b)) if a or b else 0.0


async def _tenant_scenario(opened: Any, rate: int, count: int, horizon: float) -> tuple[int, int, float]:
    starts: dict[str, list[float]] = {"A": [], "B": []}

    async def call(key: str) -> None:
        starts[key].append(time.monotonic())

    async with opened(rate, 1.0) as crowd:
        began = time.monotonic()
        keys = ["A"] * (count * TENANT_FACTOR) + ["B"] * count
        running = asyncio.ensure_future(_run_crowd(crowd, call, keys))
        await asyncio.wait([running], timeout=horizon)
        await _end([running])
    first = [starts[key] for key in "AB"]
    a, b = (sum(start <= began + horizon for start in each) for each in first)
    return a, b, min(horizon, (first[1][0] if first[1] else float("inf")) - began)


async def _run_crowd(crowd: Crowd, call: Callable[[str], Awaitable[None]], keys: Sequence[str]) -> None:
    await crowd(call, keys)


# A key that is at its limit.


def _keyed(options: Options) -> Table:
    count, horizon = options.size(KEY_A_COUNT, 100), options.seconds(2.0, 0.3)
    rounds, notes = _rounds(options, "keys", KEYED, _keyed_scenario, KEYED_RATE, KEY_RATES, count, horizon)
    table = Table(
        f"Keys: {count} of key A wait for its limit",
        ["median delay of B", "greatest delay of B", "starts of A"],
        notes=notes,
    )
    for name, results in rounds.items():
        table.add(
            name,
            {
                "median delay of B": Figure([statistics.median(delays) * 1e3 for delays, _ in results], "ms"),
                "greatest delay of B": Figure([max(delays) * 1e3 for delays, _ in results], "ms"),
                "starts of A": Figure([len(starts) / horizon for _, starts in results], "/s", smaller_is_better=None),
            },
        )
        if name.startswith("ours"):
            most = round(KEY_RATES["A"] * (1 + LATE_SECONDS)) + 1
            beyond = [max(0, worst_window(starts, width=1.0)[0] - most) for _, starts in results]
            table.check("starts of ours beyond a key's rate", sum(beyond))
    _cannot(table, KEYED)
    table.notes.append(
        f"A may start {KEY_RATES['A']} a second, all together {KEYED_RATE}; B asks each {B_GAP_SECONDS * 1e3:g} ms."
    )
    table.notes.append(
        f"B may start {KEY_RATES['B']} a second and asks for {1 / B_GAP_SECONDS:g}: nothing of its own delays it."
    )
    table.notes.append(
        f"What had not started after {horizon:g} s counts with its wait until then: with a longer queue of A, more."
    )
    table.notes.append(
        "'Key last': a waiter takes a permit of all, and then waits for its key with it; 'key first' is the other way round."
    )
    return table


async def _keyed_scenario(
    opened: Any, rate: int, key_rates: dict[str, int], count: int, horizon: float
) -> tuple[list[float], list[float]]:
    delays: list[float] = []
    starts: list[float] = []
    end = float("inf")

    async def of_a(acquire: Acquire) -> None:
        await acquire("A")
        starts.append(time.monotonic())

    async def of_b(acquire: Acquire) -> None:
        asked = time.monotonic()
        try:
            await acquire("B")
        finally:
            delays.append(min(time.monotonic(), end) - asked)

    async with opened(rate, key_rates) as acquire:
        tasks = [asyncio.create_task(of_a(acquire)) for _ in range(count)]
        began = time.monotonic()
        await asyncio.sleep(B_GAP_SECONDS)
        while time.monotonic() < began + horizon:
            tasks.append(asyncio.create_task(of_b(acquire)))
            await asyncio.sleep(B_GAP_SECONDS)
        end = time.monotonic()
        with contextlib.suppress(asyncio.CancelledError):
            await _end(tasks)
    return delays, [start for start in starts if start <= end]
