"""The cost of deciding which of many due tasks starts next at a finite rate, by the length of the overflow.

The pure queue runs in virtual time, without a loop or timers, and no task is called. Every start is at the next permit,
and is that of the most important due task. With the default order the cost must not depend on how many wait; an order
of the user's own uses a heap and may grow with the logarithm. The second table is the whole executor, of which the
decision is a part, on the test kit's event loop, whose time is virtual, too.
"""

from __future__ import annotations

import gc
import random
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.harness import Chart, Figure, Series, Table, Target, fresh
from ratelimited_executor import Pacing, Rate, RateLimitedExecutor, default_order
from ratelimited_executor._core.order.ordering import TaskClass
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._core.queue.queue import TaskQueue
from ratelimited_executor._core.queue.records import Options as TaskOptions
from ratelimited_executor._core.queue.records import TaskRecord
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._kernel.timeline import NS, Timeline
from ratelimited_executor.orders import latest_due_first
from ratelimited_executor.testing import run_virtual

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.harness import Options
    from ratelimited_executor._core.keys.gate import KeyGate

NAME = "overflow"
DESCRIPTION = "decision cost of a start, with a thousand to a million tasks that are due"
LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
QUICK_LENGTHS = (100, 1_000)
ROUNDS = 3
STARTS_MIN = 100_000  # how many starts are timed at least: short overflows are emptied several times
RATE = 10_000  # permits a second; in bench/overload/decision.py, each of as many keys has its turn once a second
PRIORITIES = 10
FACTOR_MAX = 2.0
SEED = 1
_FORMS = {
    "default order": "",
    "ten priorities": "",
    "an order of one's own": "a heap: grows with the logarithm",
}


def run(options: Options) -> list[Table]:
    """Measure each length in processes of its own."""
    lengths = QUICK_LENGTHS if options.quick else tuple(options.size(length, length) for length in LENGTHS)
    starts_min = 0 if options.quick else options.size(STARTS_MIN, 0)
    return [
        _table(options, title, function, lengths, starts_min)
        for title, function in (
            ("Pure decision of a start", "bench.overflow:measure_queue"),
            ("A start of the executor in virtual time", "bench.overflow:measure_executor"),
        )
    ]


def _table(options: Options, title: str, function: str, lengths: tuple[int, ...], starts_min: int) -> Table:
    table = Table(f"{title}, by the length of the overflow", ["CPU a start", "against the shortest"])
    series = []
    for form, remark in _FORMS.items():
        costs: dict[int, list[float]] = {}
        for length in lengths:
            rounds = options.in_turns(
                {form: partial(fresh, function, form=form, length=length, starts_min=starts_min)},
                rounds=options.rounds(ROUNDS),
                warm_up=0,
                label=f"{title}, {length:,}",
            )
            costs[length] = [m["cpu_us"] for m in rounds[form]]
            for check in ("lost", "disordered"):
                table.check(f"starts {check}", sum(m[check] for m in rounds[form]))
            table.add(f"{form}, {length:,}", _row(costs[length], costs[lengths[0]], is_flat=not remark))
        if remark:
            table.notes.append(f"{form}: {remark}")
        series.append(Series(form, list(lengths), [Figure(values, "us").median for values in costs.values()]))
    table.charts.append(Chart(title, "overflow", "CPU us a start", series, log="x"))
    return table


def _row(costs: list[float], shortest: list[float], *, is_flat: bool) -> Mapping[str, Figure | str]:
    target = Target(f"flat: <= {FACTOR_MAX:g} x", FACTOR_MAX) if is_flat else None
    growth = [mine / first for mine, first in zip(costs, shortest, strict=True)]
    return {"CPU a start": Figure(costs, "us"), "against the shortest": Figure(growth, "x", target=target)}


# In a process of its own.


class _Record(TaskRecord):
    """A task without a shell."""

    __slots__ = ()

    def __init__(self, due: float, options: Any) -> None:
        self._due = due
        self._class = TaskClass.OTHER
        self._place = None
        self._state = TaskState.WAITING
        self._options = options

    @property
    def name(self) -> str:
        return "task"


def measure_queue(*, form: str, length: int, starts_min: int) -> dict[str, float]:
    """Fill a queue with due tasks and time how it is emptied, repeatedly until there were enough starts."""
    repeats = max(1, -(-starts_min // length))
    cpu, lost, disordered = 0.0, 0, 0
    for _ in range(repeats):
        chosen = random.Random(SEED)
        priorities = [chosen.randrange(PRIORITIES) if form == "ten priorities" else 0 for _ in range(length)]
        queue, now = filled(
            latest_due_first if form == "an order of one's own" else default_order,
            [TaskOptions(priority=priority) if priority else None for priority in priorities],
        )
        gc.collect()
        before = time.process_time()
        started = emptied(queue, now)
        cpu += time.process_time() - before
        lost += abs(length - len(started))
        disordered += _disorder(form, [record for _, record in started], queue.timeline)
    return {"cpu_us": cpu * 1e6 / (length * repeats), "lost": lost, "disordered": disordered}


def filled(order: Any, options: Iterable[Any], gate: KeyGate | None = None) -> tuple[TaskQueue, float]:
    """Return a queue with a due task for each of some options, which may be None, and the loop time."""
    chosen = random.Random(SEED)
    timeline = Timeline(monotonic=0.0, wall=1_700_000_000.0, interval_ns=NS)
    queue = TaskQueue(
        timeline,
        now=0.0,
        permits=PermitGrid(Rate(0), slack_ns=15_000_000, now_ns=timeline.to_ns(0.0)),
        slack=0.015,
        pacing=Pacing.ON_TIME,
        order=order,
        early=False,
        report_order_error=_raise,
    )
    if gate is not None:
        queue.set_gate(gate)
    for each in options:
        queue.add_record(_Record(1.0 + chosen.random(), each))
    now = 4.0
    while now >= queue.end:
        queue.enter(now, 1_700_000_000.0 + now)
    while not queue.pull(now):  # the queue sorts them and makes them ready, which is not measured
        pass
    queue.set_rate(Rate(RATE), now)
    return queue, now


def emptied(queue: TaskQueue, now: float, *, pause: float = 0.0) -> list[tuple[float, Any]]:
    """Start all tasks as the engine does, when the queue asks for it or a pause later; each task ends at once.

    Returns:
        The loop time and the record of each start.
    """
    gate = queue.gate
    started: list[tuple[float, Any]] = []
    while now < float("inf"):
        if now >= queue.end:
            queue.enter(now, 1_700_000_000.0 + now)
        queue.is_changed = True
        while (taken := queue.poll(now, 1)) is not None or queue.wake_at == -float("inf"):
            if taken is not None:
                if gate is not None:
                    gate.end(taken[1].key)
                started.append((now, taken[1]))
        now = max(queue.wake_at, now + pause)
    return started


def _disorder(form: str, started: list[_Record], timeline: Timeline) -> int:
    """Count neighbours in the wrong order; an order sees due times in epoch seconds, whose resolution is 0.24 us."""
    keys: list[Any] = (
        [-timeline.to_epoch(record._due) for record in started]
        if form == "an order of one's own"
        else [(-record.priority, record._due) for record in started]
    )
    return sum(first > second for first, second in pairwise(keys))


def _raise(error: BaseException) -> None:
    raise error


def measure_executor(*, form: str, length: int, starts_min: int) -> dict[str, float]:
    """Submit a number of tasks at once and time how the executor starts them in virtual time, repeatedly as above."""
    repeats = max(1, -(-starts_min // length))
    results = [run_virtual(_work_off(form, length)) for _ in range(repeats)]
    cpu = sum(spent for spent, _, _ in results)
    lost, disordered = sum(row[1] for row in results), sum(row[2] for row in results)
    return {"cpu_us": cpu * 1e6 / (length * repeats), "lost": lost, "disordered": disordered}


async def _work_off(form: str, length: int) -> tuple[float, int, int]:
    chosen = random.Random(SEED)
    order = latest_due_first if form == "an order of one's own" else default_order
    started: list[float] = []
    async with RateLimitedExecutor("bench", rate=0, order=order, pacing=Pacing.ON_TIME) as executor:
        for _ in range(length):
            priority = chosen.randrange(PRIORITIES) if form == "ten priorities" else 0
            executor.submit(started.append, -priority, priority=priority)
        gc.collect()
        executor.rate = RATE
        before = time.process_time()
        await executor.aclose()
        spent = time.process_time() - before
    disordered = sum(first > second for first, second in pairwise(started))
    return spent, abs(length - len(started)), disordered
