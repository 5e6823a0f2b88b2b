"""The parts of the section: each measures its sides in turns on one server, and fills a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench.harness import Figure, Table
from bench.shared import figures, node
from bench.shared.adapters import SIDES
from bench.shared.counter import START
from bench.shared.limit import Job, Limit, Load
from bench.shared.model import busy, serving
from bench.shared.rounds import FIRST_SECONDS, first_start, joined, measure, wait_for
from bench.shared.worker import HOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.harness import Options
    from bench.shared.adapters import Side
    from bench.shared.rounds import Round
    from bench.shared.server import Server

__all__ = ["PARTS", "Bench", "sides_here"]

ROUNDS: Final = 3
SETTLE_SECONDS: Final = 4.0
HOT_SETTLE_SECONDS: Final = 15.0  # the backlog of a hot key grows, and what it does to others shows only after a while
SECONDS: Final = 10.0
MODEL_SECONDS: Final = 60.0
RECEIVED: Final = "starts that the counter did not receive"
FAR: Final = 1_000  # processes of which the load on the server is extrapolated
_SPARE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Column:
    """A column: how a figure is read from a round; None if there is nothing to read."""

    name: str
    unit: str
    read: Callable[[Round], float | None]
    smaller_is_better: bool | None = True


def _starts(measured: Round) -> int:
    return sum(row.kind == START for row in measured.starts)


def _each(amount: Callable[[Round], float], factor: float = 1.0) -> Callable[[Round], float | None]:
    """Return an amount divided by the number of starts."""
    return lambda measured: factor * amount(measured) / _starts(measured) if _starts(measured) else None


def _worst(measured: Round) -> float:
    return figures.most_in([row.at for row in measured.starts if row.kind == START], 1.0)


def _waits(measured: Round) -> list[float]:
    """Return the milliseconds from asking to starting, by the clock of the process that asked; without the hot key."""
    return [1000 * (r.told - r.submitted) for r in measured.starts if r.kind == START and r.key != HOT]


RATE = Column("starts a second", "/s", lambda measured: _starts(measured) / measured.seconds, smaller_is_better=False)
WORST = Column("worst 1 s", "", _worst)
SHARE = Column("least / most served", "", figures.share, smaller_is_better=False)
P50 = Column("wait p50", "ms", lambda measured: figures.percentile(_waits(measured), 0.5))
P99 = Column("wait p99", "ms", lambda measured: figures.percentile(_waits(measured), 0.99))
SERVER = Column("server CPU a start", "us", _each(lambda measured: measured.server_cpu, 1e6))
COMMANDS = Column("commands a start", "", _each(lambda measured: measured.commands))
TRIPS = Column("round trips a start", "", _each(lambda measured: measured.reads))
CLIENT = Column("client CPU a start", "us", _each(lambda measured: measured.client_cpu, 1e6))
COSTS = [SERVER, COMMANDS, TRIPS, CLIENT]


@dataclass(frozen=True, slots=True)
class Bench:
    """What the parts measure with.

    Attributes:
        options: the choices of the command line.
        server: the server of this part.
        sides: the sides that can be measured here.
    """

    options: Options
    server: Server
    sides: Sequence[Side]

    def sides_for(self, ability: str, *, names: Sequence[str] = ()) -> list[Side]:
        """Return the sides that can share this; in a quick run the first of ours and one other."""
        able = [side for side in self.sides if ability in side.can and (not names or side.name in names)]
        if not self.options.quick:
            return able
        return [side for side in able if side.is_ours][:1] + [side for side in able if not side.is_ours][:1]

    def job(self, limit: Limit, load: Load, processes: int = 4) -> Job:
        """Return a round of the usual length."""
        settle, seconds = self.options.seconds(SETTLE_SECONDS, 0.0), self.options.seconds(SECONDS, 0.5)
        return Job(limit, load, min(processes, 2) if self.options.quick else processes, settle, seconds)

    def in_turns(self, sides: Sequence[Side], each: Callable[[Side], Any], *, label: str, rounds: int = ROUNDS) -> Any:
        """Measure the sides in turns; processes are fresh, so no round warms up the next."""
        return self.options.in_turns(
            {side.name: partial(each, side) for side in sides},
            rounds=self.options.rounds(rounds),
            warm_up=0,
            label=label,
        )

    def table(
        self, title: str, sides: Sequence[Side], job: Job, columns: Sequence[Column], *, rounds: int = ROUNDS
    ) -> Table:
        """Measure a job by each side, and make a row of each."""
        table = Table(title, [column.name for column in columns])
        measured = self.in_turns(sides, lambda side: measure(self.server, side, job), label=title, rounds=rounds)
        for name, results in measured.items():
            table.add(name, {column.name: _figure(map(column.read, results), column) for column in columns})
            table.check(RECEIVED, sum(each.lost for each in results))
        return table


def _figure(values: Any, column: Column) -> Figure | str:
    there = [value for value in values if value is not None]
    return Figure(there, column.unit, smaller_is_better=column.smaller_is_better) if there else "no start"


def pace(bench: Bench) -> list[Table]:
    """A common pace, and always more waiters than it has room for."""
    job = bench.job(Limit(200), Load("closed", workers=16))
    title = "200 starts a second, 64 waiters in 4 processes"
    table = bench.table(title, bench.sides_for("rate"), job, [RATE, WORST, SHARE, *COSTS])
    table.notes.append("worst 1 s: the most starts in any second, as the resource received them")
    return [table]


def idle(bench: Bench) -> list[Table]:
    """How long a start takes while the limit has room."""
    job = bench.job(Limit(200), Load("sparse"))
    title = "Idle: from asking to starting, a start each 0.1 to 0.3 s in each of 4 processes, of 200 a second"
    return [bench.table(title, bench.sides_for("rate"), job, [P50, P99, RATE, *COSTS])]


def keys(bench: Bench) -> list[Table]:
    """Many keys, hardly any of which reaches its limit; then beside one key with ten times its limit."""
    limit = Limit(2_000, key_count=2)
    served = Column("started of asked", "%", _served, smaller_is_better=False)
    worst = Column("worst key in 1 s", "", lambda measured: figures.most_of_a_key(measured.starts, 1.0))
    hot = Column("hot key a second", "/s", lambda measured: _hot(measured) / measured.seconds, smaller_is_better=False)
    sides = bench.sides_for("keys")
    title = "1,000 keys of 2 starts a second each, 185 arrivals a second in 4 processes"
    job = bench.job(limit, Load("arrivals", rate=185 / 4, keys=1_000))
    tables = [bench.table(title, sides, job, [served, P50, P99, worst, *COSTS])]
    job = bench.job(limit, Load("arrivals", rate=200 / 4, keys=999, hot=0.1))
    job = dataclasses.replace(job, settle=bench.options.seconds(HOT_SETTLE_SECONDS, 0.0))
    title = "1,000 keys of 2 starts a second each, 200 arrivals a second in 4 processes, 20 of them of one key"
    tables.append(bench.table(title, sides, job, [served, P50, P99, hot, worst, *COSTS]))
    tables[1].notes.append("started of asked, wait: of the other keys; the hot key is allowed 2 of the 20")
    return tables


def _hot(measured: Round) -> int:
    return sum(row.kind == START and row.key == HOT for row in measured.starts)


def _served(measured: Round) -> float | None:
    return 100 * (_starts(measured) - _hot(measured)) / measured.asked if measured.asked else None


def loops(bench: Bench) -> list[Table]:
    """Workers of which each asks again as soon as it has started."""
    table = Table("Closed loops in one process, 200 a second: starts a second", [])
    counts = (4,) if bench.options.quick else (1, 4, 16, 64)
    sides = bench.sides_for("rate")
    rows: dict[str, dict[str, Figure | str]] = {side.name: {} for side in sides}
    for count in counts:
        column = dataclasses.replace(RATE, name=f"{count} worker{'s' * (count > 1)}")
        job = bench.job(Limit(200), Load("closed", workers=count), processes=1)
        part = bench.table(column.name, sides, job, [column], rounds=1)
        table.columns = [*table.columns, column.name]
        for name, cells in part.rows.items():
            rows[name].update(cells)
        for name, number in part.checks.items():
            table.check(name, number)
    for name, row in rows.items():
        table.add(name, row)
    return [table]


def working(bench: Bench) -> list[Table]:
    """Starts that take a little CPU time of the loop that also speaks to the server."""
    job = bench.job(Limit(120), Load("closed", workers=3, work=0.0005), processes=2)
    title = "120 starts a second, three workers in each of 2 processes, 0.5 ms of CPU time a start"
    return [bench.table(title, bench.sides_for("rate"), job, [RATE, WORST, SHARE, CLIENT])]


def growth(bench: Bench) -> list[Table]:
    """What more processes cost, while the rate stays the same."""
    options = bench.options
    sizes = (1, 2) if options.quick else (2, 10, 40)
    wanted = ("ours, Paced", "ours, Window", "throttled-py, GCRA", "limits, moving window")
    sides = bench.sides_for("rate", names=wanted)
    columns = [*(f"{size} processes" for size in sizes), f"{FAR:,} processes, extrapolated"]
    table = Table("200 starts a second over more processes, 4 waiters in each", columns)
    seen: dict[str, dict[int, list[Round]]] = {side.name: {} for side in sides}
    for size in sizes:
        job = bench.job(Limit(200), Load("closed", workers=4), processes=size)
        label = f"growth, {size} processes"
        for name, rounds in bench.in_turns(
            sides, lambda side, job=job: measure(bench.server, side, job), label=label, rounds=1
        ).items():
            seen[name][size] = rounds
            table.check(RECEIVED, sum(each.lost for each in rounds))
    trips = Column("round trips a second", "/s", lambda measured: measured.reads / measured.seconds)
    core = Column("server core", "%", lambda measured: 100 * measured.server_cpu / measured.seconds)
    for name, by_size in seen.items():
        for column in (RATE, SHARE, trips, core):
            cells = {f"{size} processes": _figure(map(column.read, rounds), column) for size, rounds in by_size.items()}
            points = {
                size: cell.median
                for size, cell in zip(by_size, cells.values(), strict=True)
                if isinstance(cell, Figure)
            }
            if column in (trips, core) and len(points) > 1:
                cells[columns[-1]] = Figure([figures.extrapolated(points, FAR)], column.unit)
            table.add(f"{name}: {column.name}", cells)
    table.notes.append(
        f"extrapolated: the straight line through the sizes at {FAR:,}; a side that polls grows with its waiters and is cut "
        "off by the server's core, so a figure above 100 % says that it cannot be served by one core"
    )
    return [table]


def slots(bench: Bench) -> list[Table]:
    """From the end of a hold in one process to the begin of the next one in another."""
    lease = bench.options.seconds(10.0, 1.0)
    job = bench.job(Limit(slots=1, lease=lease), Load("slots", workers=2, work=0.005))
    columns = [
        Column("hand-off p50", "ms", lambda measured: figures.percentile(figures.hand_offs(measured.starts), 0.5)),
        Column("hand-off p99", "ms", lambda measured: figures.percentile(figures.hand_offs(measured.starts), 0.99)),
        dataclasses.replace(RATE, name="holds a second"),
        Column("overlaps", "", lambda measured: figures.overlaps(measured.starts, 1)),
        SHARE,
        SERVER,
        CLIENT,
    ]
    title = "One slot, two holders of 5 ms in each of 4 processes"
    return [bench.table(title, bench.sides_for("slots"), job, columns)]


_FIRST: Final[Mapping[str, tuple[str, Limit, Load]]] = {
    "a pace of 50/s": ("ours, Paced", Limit(50), Load()),
    "Window of 50/s": ("ours, Window", Limit(50), Load()),
    "two rates, Paced": ("ours, Paced", Limit(50, more={"rate": "50/s, 1000/min"}), Load()),
    "rate of keys": ("ours, Window", Limit(1_000, key_count=2), Load("arrivals", rate=50, keys=10)),
    "key_concurrency": (
        "ours, Window",
        Limit(1_000, more={"key_concurrency": 2}),
        Load("arrivals", rate=50, keys=10),
    ),
    "slots": ("ours, Window", Limit(slots=1), Load("slots", workers=1)),
}


def first(bench: Bench) -> list[Table]:
    """From the begin of the only process of a new group to its first start."""
    cases = dict(list(_FIRST.items())[: 1 if bench.options.quick else None])
    table = Table("The first start of a new group", ["first start"])
    named = {side.name: side for side in bench.sides}
    jobs = {
        f"ours, {case}": (named[name], Job(limit, load, 1, 0.0, 0.0)) for case, (name, limit, load) in cases.items()
    }
    for side in bench.sides_for("rate"):
        if not side.is_ours:
            jobs[side.name] = (side, Job(Limit(50), Load(), 1, 0.0, 0.0))
    rounds = bench.options.in_turns(
        {name: partial(first_start, bench.server, *job) for name, job in jobs.items()},
        rounds=bench.options.rounds(ROUNDS),
        warm_up=0,
        label="first start",
    )
    column = Column("first start", "s", lambda _: None)
    for name, seconds in rounds.items():
        table.add(name, {"first start": _figure(seconds, column)})
    table.notes.append(
        f"with its connection; its modules are imported before; none within {FIRST_SECONDS:g} s: no start"
    )
    return [table]


@dataclass(frozen=True, slots=True)
class _Used:
    requests: float
    tokens: float
    refused: int


def model(bench: Bench) -> list[Table]:
    """Calls of a language model that allows requests and tokens, beside other work on the machine."""
    options = bench.options
    period, windows = options.seconds(MODEL_SECONDS, 1.0), 2
    # On average a request costs what keeps both limits equally full.
    limit = Limit(round(300 * period / 60) or 1, seconds=period, tokens=round(60_000 * period / 60))
    costs = (100, 300)

    def used(side: Side) -> _Used:
        with serving(limit) as (port, stop), busy(2 * FIRST_SECONDS + windows * period + _SPARE_SECONDS):
            job = Job(limit, Load("model", workers=64, port=port, costs=costs), 3, 0.0, windows * period)
            with joined(bench.server, side, job) as counter:
                wait_for(lambda: any(row.kind == START for row in list(counter.rows)))
                wait_for(lambda: False, windows * period + 0.5)
            verdicts = stop()
        begin = verdicts.accepted[0][0] if verdicts.accepted else 0.0
        within = [tokens for at, tokens in verdicts.accepted if at < begin + windows * period]
        whole = windows / 100
        return _Used(
            requests=len(within) / limit.count / whole,
            tokens=sum(within) / (limit.tokens or 1) / whole,
            refused=sum(at < begin + windows * period for at in verdicts.refused),
        )

    title = f"A language model of {limit.count} requests and {limit.tokens:,} tokens in {period:g} s, 3 processes, one CPU busy"
    table = Table(title, ["requests used", "tokens used", "429"])
    for name, rounds in bench.in_turns(bench.sides_for("model"), used, label="model", rounds=1).items():
        table.add(
            name,
            {
                "requests used": Figure([each.requests for each in rounds], "%", smaller_is_better=False),
                "tokens used": Figure([each.tokens for each in rounds], "%", smaller_is_better=False),
                "429": Figure([each.refused for each in rounds], ""),
            },
        )
    table.notes.append(
        f"used: of {windows} whole periods from the first accepted request on, by the server's own exact count; a client "
        "that is refused does not try again"
    )
    return [table]


PARTS: Final[Mapping[str, Callable[[Bench], list[Table]]]] = {
    "pace": pace,
    "idle": idle,
    "keys": keys,
    "loops": loops,
    "working": working,
    "growth": growth,
    "slots": slots,
    "first": first,
    "model": model,
}


def sides_here(options: Options) -> tuple[list[Side], list[str]]:
    """Return the sides that can be measured, and notes about the others."""
    sides, notes = [], []
    for side in SIDES:
        if why := side.missing(may_install=not options.quick):
            notes.append(f"{side.name}: skipped, {why}")
        else:
            sides.append(side)
            notes += [f"{side.name}: {node.versions()}"] if side.kind == "bottleneck" else []
    return sides, notes
