"""One round of one side, and the row of a case."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.harness import Figure, Table, Target, ratio
from ratelimited_executor.insight import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from bench.harness import Options

__all__ = [
    "VERIFIED_COUNT_MAX",
    "Counter",
    "Measured",
    "compare",
    "fill_and_wait",
    "interval_of",
    "new_table",
    "random_delays",
    "set_variables",
]

SEED = 1
ROUNDS = 3  # of a million calls each; a round of both sides takes half a minute
COLUMNS = ("theirs: schedule", "theirs: start", "ours: schedule", "ours: start", "ratio")
VERIFIED_COUNT_MAX = 50_000  # calls whose due times are checked one by one, in a round that is not measured
_VARIABLES = [contextvars.ContextVar[object](f"variable_{index}") for index in range(3)]


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one round of one side.

    Attributes:
        schedule: CPU seconds to schedule all calls.
        start: CPU seconds from then until the last call has run.
        lost: how many calls did not run.
        early: 1 if the last call ran before it was due.
    """

    schedule: float
    start: float
    lost: int = 0
    early: int = 0


class Counter:
    """Callables that count down, as cheaply as possible, and a future for the end.

    Attributes:
        call: takes no arguments.
        call_one: takes one argument.
        call_two: takes two arguments.
        done: a future that the last call sets.
    """

    def __init__(self, count: int) -> None:
        self.done = done = asyncio.get_running_loop().create_future()
        left = count

        def call() -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set_result(None)

        def call_one(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set_result(None)

        def call_two(_: object, __: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set_result(None)

        self.call, self.call_one, self.call_two = call, call_one, call_two
        self.left: Callable[[], int] = lambda: left


async def fill_and_wait(fill: Callable[[], Any], counter: Counter, *, last: float) -> Measured:
    """Measure ``fill``, which schedules everything, and the time from then until the last call has run.

    Args:
        fill: schedules the calls; its result (handles, or nothing) is kept until the end of the round.
        counter: the callables that ``fill`` schedules.
        last: the last call is early if it runs before this number of seconds has passed.
    """
    loop_time = asyncio.get_running_loop().time
    gc.collect()
    begin = loop_time()
    before = time.process_time()
    kept = fill()
    scheduled = time.process_time()
    await counter.done
    after = time.process_time()
    early = int(loop_time() - begin < last)
    await asyncio.sleep(0)  # a call too many would run now
    del kept
    return Measured(scheduled - before, after - scheduled, abs(counter.left()), early)


def random_delays(count: int, spread: float) -> list[float]:
    """Return a number of delays from 0 to ``spread`` seconds, the same in each call."""
    chosen = random.Random(SEED)
    return [chosen.random() * spread for _ in range(count)]


def interval_of(options: Options) -> float:
    """Return the manager's interval in seconds: the default, or a short one in a quick run, which waits for its end."""
    return options.seconds(1.0, 0.05)


def set_variables(count: int) -> None:
    """Set a number of context variables, at most 3, in the running context."""
    for variable in _VARIABLES[:count]:
        variable.set(object())


def new_table(title: str) -> Table:
    """Return a table for :func:`compare`."""
    return Table(
        title, COLUMNS, notes=["microseconds of CPU time of the process a call; the ratio is that of the totals"]
    )


def compare(
    table: Table,
    case: str,
    options: Options,
    runner: asyncio.Runner,
    *,
    theirs: Callable[[], Coroutine[Any, Any, Measured]],
    ours: Callable[[], Coroutine[Any, Any, Measured]],
    count: int,
    target: float | None = None,
) -> None:
    """Measure a case in turns, each round in a context of its own, and add a row for it."""

    def turn(side: Callable[[], Coroutine[Any, Any, Measured]]) -> Measured:
        return runner.run(side(), context=contextvars.Context())

    rounds = options.in_turns(
        {"theirs": lambda: turn(theirs), "ours": lambda: turn(ours)}, rounds=options.rounds(ROUNDS), label=case
    )

    def cost(side: Sequence[Measured], *parts: str) -> list[float]:
        return [sum(getattr(m, part) for part in parts) * 1e6 / count for m in side]

    wanted = None if target is None or not kernel.is_compiled else Target(f">= {target:g} x", target)
    cells: dict[str, Figure | str] = {
        f"{name}: {part}": Figure(cost(side, part), "us")
        for name, side in rounds.items()
        for part in ("schedule", "start")
    }
    cells["ratio"] = ratio(
        cost(rounds["theirs"], "schedule", "start"), cost(rounds["ours"], "schedule", "start"), target=wanted
    )
    table.add(case, cells)
    table.check("calls lost or run twice", sum(m.lost for side in rounds.values() for m in side))
    table.check("rounds of ours that ended early", sum(m.early for m in rounds["ours"]))
