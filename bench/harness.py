"""What every section of the benchmarks is made of: options, turns, fresh processes, figures, targets and tables.

A *section* is a module with three names, entered in ``bench/sections.py``::

    NAME = "throughput"
    DESCRIPTION = "one line for --list"

    def run(options: Options) -> list[Table]: ...

A section measures its *sides* in turns and hands back tables. In one process::

    with options.runner() as runner:  # an asyncio.Runner on the loop that --uvloop chose; one loop for all rounds
        rounds = options.in_turns({
            "theirs": lambda: runner.run(measure_theirs(count)),
            "ours": lambda: runner.run(measure_ours(count)),
        }, label="delays 0 to 10 s")  # {"theirs": [...], "ours": [...]}: one result a round, warm-up left out

or, where memory or the state of the garbage collector matters, each round of each side in a fresh process::

    rounds = options.in_turns({
        "theirs": lambda: fresh("bench.memory:measure", side="theirs", count=count),
        "ours": lambda: fresh("bench.memory:measure", side="ours", count=count),
    }, warm_up=0)

and then::

    theirs = Figure([m["cpu_us"] for m in rounds["theirs"]], "us")
    ours = Figure([m["cpu_us"] for m in rounds["ours"]], "us")
    gain = ratio(theirs.values, ours.values, target=Target(">= 8 x asyncio", 8))
    table = Table("CPU a call", columns=["theirs", "ours", "ratio"], notes=["..."])
    table.add("delays 0 to 10 s", {"theirs": theirs, "ours": ours, "ratio": gain})

What a section must keep to: sizes come from ``options.size(full, quick)``; the number of rounds from ``options.rounds``;
what is printed goes through ``options.note`` (standard error); facts that a test can assert (counts, nothing early,
nothing lost) go into ``Table.checks``, where every value has to be 0; packages that are extras are imported in ``run``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Chart", "Figure", "Options", "Series", "Table", "Target", "fresh", "has_module", "loop_factory", "ratio"]

ROOT = Path(__file__).resolve().parent.parent
FRESH_SECONDS_MAX = 3600.0  # for one measurement in a process of its own: 20 million tasks take some minutes
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Target:
    """A value that a figure has to reach.

    Attributes:
        text: the target in the words of the design, such as ">= 8 x asyncio".
        bound: the number that the median is compared with, in the figure's unit; the target is met if they are equal.
    """

    text: str
    bound: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity.

    Attributes:
        values: one value for each round, in the order of the rounds.
        unit: "us", "B", "ms", "x" for a ratio, "" for a count.
        smaller_is_better: None if neither smaller nor larger is better.
        target: what the median has to reach.
    """

    values: Sequence[float]
    unit: str
    smaller_is_better: bool | None = True
    target: Target | None = None

    @property
    def median(self) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        """Return the minimum of the rounds."""
        return min(self.values)

    @property
    def greatest(self) -> float:
        """Return the maximum of the rounds."""
        return max(self.values)

    @property
    def met(self) -> bool | None:
        """Return whether the median reaches the target; None if there is no target."""
        if self.target is None:
            return None
        return self.median <= self.target.bound if self.smaller_is_better else self.median >= self.target.bound


def ratio(theirs: Sequence[float], ours: Sequence[float], *, target: Target | None = None) -> Figure:
    """Return theirs divided by ours, pair by pair; if both are costs, more is better for us."""
    pairs = zip(theirs, ours, strict=True)
    return Figure([a / b if b else float("inf") for a, b in pairs], "x", smaller_is_better=False, target=target)


@dataclass(frozen=True, slots=True)
class Series:
    """One line or set of bars of a chart; ``x`` holds numbers for lines and labels for bars."""

    name: str
    x: Sequence[Any]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of some series.

    Attributes:
        kind: "line" or "bar".
        log: the axes that are logarithmic: "", "x", "y" or "xy".
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: str = "line"
    log: str = ""


@dataclass(slots=True)
class Table:
    """Figures by case and column.

    Attributes:
        title: what was measured.
        columns: the names of the columns, in the order in which they are printed.
        rows: the figures, or plain text, by case and column; a case may leave columns out.
        notes: sentences that are printed below the table.
        charts: pictures of the table.
        checks: facts that hold at every size and speed, by name; each must be 0 (calls lost, calls started early).
    """

    title: str
    columns: Sequence[str]
    rows: dict[str, Mapping[str, Figure | str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    checks: dict[str, int] = field(default_factory=dict)

    def add(self, case: str, cells: Mapping[str, Figure | str]) -> None:
        """Add a row."""
        assert case not in self.rows, case
        assert set(cells) <= set(self.columns), (case, sorted(cells))
        self.rows[case] = cells

    def check(self, name: str, count: int) -> None:
        """Add to a count of events that must never happen, such as lost calls."""
        self.checks[name] = self.checks.get(name, 0) + count


class Progress(Protocol):
    """Shows how far a run has come."""

    def note(self, text: str, *, part: float = 0.0) -> None:
        """Say what is being done, after a part of the section."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of the command line.

    Attributes:
        quick: use tiny sizes, to see whether everything works; no target is judged.
        scale: a factor for all full sizes.
        rounds_wanted: the number of rounds for each side; None for the number that the section chooses.
        uvloop: whether sections that run on one loop run on uvloop.
        progress: receives the texts of ``note``.
    """

    quick: bool = False
    scale: float = 1.0
    rounds_wanted: int | None = None
    uvloop: bool = False
    progress: Progress | None = None

    @property
    def is_judged(self) -> bool:
        """Return whether the sizes are those that the targets are meant for."""
        return not self.quick and self.scale == 1

    def size(self, full: int, quick: int) -> int:
        """Return a number, at least 1: ``full`` times the scale, or ``quick`` in a quick run."""
        return quick if self.quick else max(1, round(full * self.scale))

    def seconds(self, full: float, quick: float) -> float:
        """Return a duration: ``quick`` in a quick run, else ``full``. The scale changes numbers, not durations."""
        return quick if self.quick else full

    def rounds(self, full: int = 5) -> int:
        """Return how many rounds count: those that the user wants, else 1 in a quick run and ``full`` in another."""
        return self.rounds_wanted or (1 if self.quick else full)

    def note(self, text: str, *, part: float = 0.0) -> None:
        """Tell the user what is being done, and which part of the section is done, if that is known."""
        if self.progress is not None:
            self.progress.note(text, part=part)

    def in_turns(
        self,
        sides: Mapping[str, Callable[[], _T]],
        *,
        rounds: int | None = None,
        warm_up: int | None = None,
        label: str = "",
    ) -> dict[str, list[_T]]:
        """Measure every side once in a round, in alternating order: A B, B A, A B.

        Args:
            sides: functions by name; each measures one round.
            rounds: how many rounds count; ``self.rounds()`` by default.
            warm_up: how many rounds before those do not count; 1 by default, 0 in a quick run. Fresh processes need
                none.
            label: what is shown as progress.
        """
        rounds = self.rounds() if rounds is None else rounds
        warm_up = int(not self.quick) if warm_up is None else warm_up
        results: dict[str, list[_T]] = {name: [] for name in sides}
        for turn in range(warm_up + rounds):
            for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
                number = "warm-up" if turn < warm_up else f"round {turn - warm_up + 1} of {rounds}"
                self.note(f"{label}: {name}, {number}")
                results[name].append(sides[name]())
        return {name: measured[warm_up:] for name, measured in results.items()}

    @contextlib.contextmanager
    def runner(self, *, uvloop: bool | None = None) -> Iterator[asyncio.Runner]:
        """Provide a loop for several rounds, without the library's warnings of a blocked loop.

        A million calls that are scheduled in one go do block the loop, and are what is measured.
        """
        logger = logging.getLogger("ratelimited_executor")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with asyncio.Runner(loop_factory=loop_factory(self.uvloop if uvloop is None else uvloop)) as runner:
                yield runner
        finally:
            logger.setLevel(level)


def loop_factory(uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a function that makes an event loop: uvloop's, or asyncio's own."""
    if uvloop:
        import uvloop as package  # noqa: PLC0415  # an extra, imported on use

        return package.new_event_loop
    return asyncio.SelectorEventLoop


def has_module(name: str) -> bool:
    """Return whether a package is installed."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a folder without code has a spec, too


def fresh(function: str, /, *, python: Sequence[str] = (sys.executable,), **arguments: Any) -> Any:
    """Call a function in a fresh process and return its result; if it fails, a RuntimeError has its standard error.

    Args:
        function: "module:name", such as "bench.memory:measure".
        python: the interpreter and its options.
        arguments: keyword arguments of the function, which JSON must be able to hold.
    """
    command = [*python, "-m", "bench.fresh", function, json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(  # noqa: S603  # our own interpreter and our own functions
        command, capture_output=True, text=True, check=False, env=environment, timeout=FRESH_SECONDS_MAX
    )
    if done.returncode:
        raise RuntimeError(f"{function} with {arguments} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
