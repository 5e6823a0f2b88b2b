"""The workload of the Java original: n trivial tasks with random delays of 0 to 5 s, beside the JVM's own executor.

A ``ScheduledThreadPoolExecutor`` with a thread for each core, warmed up, to which one thread or 16 submit, is measured
beside one thread of Python. Each round of each side runs in a fresh process, from the first task scheduled to the last
one run.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.countdown import STRIDE
from bench.harness import Chart, Figure, Series, Table, Target, fresh, ratio
from bench.java import jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bench.harness import Options

__all__ = ["DESCRIPTION", "NAME", "run"]

NAME = "java"
DESCRIPTION = "the Java original's workload, beside the JVM's own ScheduledThreadPoolExecutor"

SIZES = (1_000_000, 5_000_000, 20_000_000)
JUDGED = 20_000_000  # the size that the targets are meant for
PRODUCERS = (1, 16)
FACES = ("call_later", "schedule_many")
COLUMNS = ["schedule", "total", "tasks a second", "CPU a task", "memory", "JVM's total by ours", "JVM's CPU by ours"]
LATE_COLUMNS = ["least", "p50", "p99", "greatest", "JVM's p99 by ours"]

# Ratio -> (key, its target for 20 million tasks).
_RATIOS = {
    "JVM's total by ours": ("total_seconds", Target(">= 3 x", 3)),
    "JVM's CPU by ours": ("cpu_seconds", Target(">= 2 x", 2)),
    "JVM's p99 by ours": ("p99_ms", Target(">= 1 x", 1)),
}
_BETTER = (
    "'JVM's ... by ours': the better of the JVM's sides in the same round, divided by ours; more is better for us."
)
_NOTES = [
    _BETTER,
    "Memory: ours, the resident peak of the process; the JVM's, the sum of the peaks of its heap's pools, garbage included.",
    "Published by the authors of the Java original for their machine: 421,949 tasks a second, the JVM's executor 157,959.",
]
_NO_JVM = "The JVM is left out: there is no JDK on the path, or too little memory for its heap."
_LATE_NOTES = [_BETTER, f"Lateness is that of one task in {STRIDE}; below 0 is early."]


def run(options: Options) -> list[Table]:
    """Measure every size; without a JDK measure only our side."""
    with _jvm_sides(options) as sides_of:
        tables = [_measure(options, count, sides_of) for count in _sizes(options)]
    first = [each for each, _ in tables]
    first[-1].charts += [_chart(first, "total", "seconds"), _chart(first, "CPU a task", "microseconds")]
    return [table for pair in tables for table in pair]


def _sizes(options: Options) -> list[int]:
    return [options.size(0, 2_000)] if options.quick else [options.size(size, 0) for size in SIZES]


@contextlib.contextmanager
def _jvm_sides(options: Options) -> Iterator[Callable[[int, float], dict[str, Callable[[], dict[str, Any]]]]]:
    """Provide a function of count and spread that returns the JVM's sides, or none where they cannot run."""
    with contextlib.ExitStack() as stack:
        classes = stack.enter_context(jvm.compiled()) if jvm.has_jdk() else None
        if classes is None:
            options.note("the JVM: skipped, as there is no JDK (javac and java) on the path")

        def sides(count: int, spread: float) -> dict[str, Callable[[], dict[str, Any]]]:
            if classes is None or jvm.heap_bytes() < count * jvm.BYTES_PER_TASK:
                return {}
            return {
                f"JVM, {producers} producer{'s' * (producers > 1)}": partial(
                    _jvm_round, options, classes, count, spread, producers
                )
                for producers in PRODUCERS
            }

        yield sides


def _jvm_round(options: Options, classes: Path, count: int, spread: float, producers: int) -> dict[str, Any]:
    return jvm.measure(
        classes,
        count=count,
        spread=spread,
        producers=producers,
        warm_up_count=options.size(100_000, 500),
        warm_up_rounds=1 if options.quick else 5,
    )


def _measure(
    options: Options, count: int, sides_of: Callable[[int, float], dict[str, Callable[[], dict[str, Any]]]]
) -> tuple[Table, Table]:
    spread = options.seconds(5.0, 0.05)
    theirs = sides_of(count, spread)
    ours = {
        f"ours, {face}": partial(fresh, "bench.java.ours:measure", face=face, count=count, spread=spread)
        for face in FACES
    }
    rounds = options.in_turns(
        theirs | ours, rounds=options.rounds(2 if count >= JUDGED else 3), warm_up=0, label=f"{count:,} tasks"
    )
    title = f"{count:,} tasks with random delays of 0 to {spread:g} s"
    table, late = (
        Table(title, COLUMNS, notes=list(_NOTES)),
        Table(f"{title}: lateness", LATE_COLUMNS, notes=list(_LATE_NOTES)),
    )
    for name, results in rounds.items():
        cells = _cells(results, count)
        if name in ours and theirs:
            cells |= _ratios(results, [rounds[side] for side in theirs], is_judged=count == JUDGED)
        table.add(name, {column: cells[column] for column in COLUMNS if column in cells})
        late.add(name, {column: cells[column] for column in LATE_COLUMNS if column in cells})
        table.check(f"tasks lost, {name}", sum(abs(count - each["ran"]) for each in results))
        late.check("tasks of ours started early", sum(each.get("early", 0) for each in results))
    table.notes.append(_about(rounds[next(iter(theirs))][0]) if theirs else _NO_JVM)
    return table, late


def _about(result: dict[str, Any]) -> str:
    return "JVM: {version}, a pool of {threads} threads, collectors {collectors}.".format_map(result)


def _cells(results: Sequence[dict[str, Any]], count: int) -> dict[str, Figure | str]:
    def figure(key: str, unit: str, factor: float = 1.0, *, smaller_is_better: bool | None = True) -> Figure:
        return Figure([each[key] * factor for each in results], unit, smaller_is_better=smaller_is_better)

    speed = [count / each["total_seconds"] for each in results]
    return {
        "schedule": figure("schedule_seconds", "s"),
        "total": figure("total_seconds", "s"),
        "tasks a second": Figure(speed, "/s", smaller_is_better=False),
        "CPU a task": figure("cpu_seconds", "us", 1e6 / count),
        "memory": figure("peak_bytes", "MB", 1e-6),
        "least": figure("least_ms", "ms", smaller_is_better=None),
        "p50": figure("p50_ms", "ms"),
        "p99": figure("p99_ms", "ms"),
        "greatest": figure("max_ms", "ms"),
    }


def _ratios(
    ours: Sequence[dict[str, Any]], theirs: Sequence[Sequence[dict[str, Any]]], *, is_judged: bool
) -> dict[str, Figure | str]:
    """Divide the better of the JVM's figures by ours, round by round."""
    return {
        column: ratio(
            [min(each[key] for each in pair) for pair in zip(*theirs, strict=True)],
            [each[key] for each in ours],
            target=target if is_judged else None,
        )
        for column, (key, target) in _RATIOS.items()
    }


def _chart(tables: Sequence[Table], column: str, unit: str) -> Chart:
    sizes = [int(table.title.split()[0].replace(",", "")) for table in tables]
    series = []
    for name in tables[0].rows:
        points = [
            (size, cell.median)
            for size, table in zip(sizes, tables, strict=True)
            if isinstance(cell := table.rows.get(name, {}).get(column), Figure)
        ]
        series.append(Series(name, [size for size, _ in points], [median for _, median in points]))
    return Chart(f"{column} by number of tasks", "tasks", unit, series, log="xy")
