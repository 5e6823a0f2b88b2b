"""How late calls start at a rate, how evenly, and what each start costs.

Three sides are measured in turns: a bare timerfd loop as the control, which shows what the machine can do;
``loop.call_at``; and ours with each precision of the manager. Lateness is the time from the planned instant, for ours
that of the permit, to the start.
"""

from __future__ import annotations

import inspect
import statistics
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.harness import Chart, Figure, Series, Table, Target, has_module
from bench.pacing.sides import Starts, call_at, control, executor
from bench.pacing.timerfd import is_available
from ratelimited_executor import ExecutorManager

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from bench.harness import Options

NAME = "pacing"
DESCRIPTION = "lateness, evenness and CPU of starts at 10 to 50,000 a second, beside a bare timerfd"
RATES = (10, 100, 1_000, 10_000, 50_000)
LOADED_RATES = (1_000, 10_000)
JUDGED_RATES = (1_000, 10_000)  # the targets are meant for these
EVEN_RATE = 1_000
ROUNDS = 9
SECONDS = 1.0  # the length of a round, if that is enough for 50 starts
STARTS_MIN = 50
_COLUMNS = ["p50", "p99", "greatest", "evenness", "CPU a start", "CPU against call_at", "lapsed permits"]
_PRECISE, _COARSE = "ours, precision 0", "ours, precision 0.5 ms"


def run(options: Options) -> list[Table]:
    """Measure each rate on each event loop, idle and loaded."""
    tables = []
    for is_uvloop in (False, True) if has_module("uvloop") else (False,):
        name = "uvloop" if is_uvloop else "asyncio"
        table = Table(f"Pacing lateness on {name}", _COLUMNS)
        medians: dict[str, list[tuple[int, float, float]]] = {}
        with options.runner(uvloop=is_uvloop) as runner:
            for is_loaded in (False, True):
                for rate in _rates(options, is_loaded=is_loaded):
                    rounds = _measure(options, runner, rate, is_loaded=is_loaded)
                    _add(table, f"{rate:,}/s, {'loaded' if is_loaded else 'idle'}", rate, rounds, is_loaded=is_loaded)
                    for side, results in rounds.items() if not is_loaded else ():
                        p99 = statistics.median(_quantile(m.lateness_ns, 99) / 1e6 for m in results)
                        cpu = statistics.median(m.cpu_a_start * 1e6 for m in results)
                        medians.setdefault(side, []).append((rate, p99, cpu))
        table.notes.append(
            "percentiles of each round, their median (least to greatest) over the rounds; "
            "evenness: (95th - 5th percentile of the gaps) / mean gap; CPU a start includes scheduling"
        )
        if not is_available():
            table.notes.append("this system has no timerfd: the control sleeps")
        table.charts += _charts(name, medians)
        tables.append(table)
    return tables


def sides() -> dict[str, dict[str, Any]]:
    """Return our sides by name with settings of the manager: one side for each precision, if there is a choice."""
    if "precision" not in inspect.signature(ExecutorManager.__init__).parameters:
        return {"ours": {}}
    return {_PRECISE: {"precision": 0}, _COARSE: {"precision": 0.0005}}


def _rates(options: Options, *, is_loaded: bool) -> Sequence[int]:
    if options.quick:
        return (1_000,)
    return LOADED_RATES if is_loaded else RATES


def _measure(options: Options, runner: asyncio.Runner, rate: int, *, is_loaded: bool) -> dict[str, list[Starts]]:
    seconds = options.seconds(SECONDS, 0.1)
    count = max(round(options.size(round(rate * seconds), round(rate * seconds))), STARTS_MIN)
    turns: dict[str, Callable[[], Starts]] = {
        "control": partial(control, count, rate, is_loaded=is_loaded),
        "call_at": lambda: runner.run(call_at(count, rate, is_loaded=is_loaded)),
    }
    for name, settings in sides().items():
        turns[name] = partial(_ours, runner, count, rate, is_loaded=is_loaded, settings=settings)
    return options.in_turns(turns, rounds=options.rounds(ROUNDS), label=f"{rate:,}/s{', loaded' * is_loaded}")


def _ours(runner: asyncio.Runner, count: int, rate: int, *, is_loaded: bool, settings: dict[str, Any]) -> Starts:
    return runner.run(executor(count, rate, is_loaded=is_loaded, settings=settings))


def _add(table: Table, case: str, rate: int, rounds: Mapping[str, list[Starts]], *, is_loaded: bool) -> None:
    """Add a row for each side."""
    control_p99 = statistics.median(_quantile(m.lateness_ns, 99) / 1e6 for m in rounds["control"])
    call_at_cpu = [m.cpu_a_start for m in rounds["call_at"]]
    for side, results in rounds.items():
        lateness = [m.lateness_ns for m in results]
        is_ours = side.startswith("ours")
        late, cpu, even = _targets(side, rate, control_p99) if is_ours else (None, None, None)
        cells: dict[str, Figure | str] = {
            "p50": Figure([_quantile(values, 50) / 1e6 for values in lateness], "ms"),
            "p99": Figure([_quantile(values, 99) / 1e6 for values in lateness], "ms", target=late),
            "greatest": Figure([max(values) / 1e6 for values in lateness], "ms"),
            "evenness": Figure([_evenness(m.at_ns) for m in results], "", target=even),
        }
        if not is_loaded:  # the load spins, and its CPU time belongs to no side
            costs = [m.cpu_a_start for m in results]
            cells["CPU a start"] = Figure([cost * 1e6 for cost in costs], "us")
            against = [mine / theirs for mine, theirs in zip(costs, call_at_cpu, strict=True)]
            cells["CPU against call_at"] = Figure(against, "x", target=cpu)
        if is_ours:
            cells["lapsed permits"] = Figure([float(m.lapsed) for m in results], "")
            table.check("rounds of ours beyond the law of the rate", sum(not m.is_lawful for m in results))
        table.add(f"{case}: {side}", cells)
        table.check("calls lost or run twice", sum(m.lost for m in results))


def _targets(side: str, rate: int, control_p99: float) -> tuple[Target | None, Target | None, Target | None]:
    """Return the targets of the p99, of the CPU against call_at, and of the evenness."""
    if rate not in JUDGED_RATES:
        return None, None, None
    even = Target("<= 0.2", 0.2) if rate == EVEN_RATE and side != _COARSE else None
    allowed_ms, factor = (0.6, 1.5) if side == _COARSE else (0.1, 4)
    late = Target(f"<= control + {allowed_ms:g} ms", control_p99 + allowed_ms)
    return late, Target(f"<= {factor:g} x", factor), even


def _charts(name: str, medians: Mapping[str, Sequence[tuple[int, float, float]]]) -> list[Chart]:
    late = [Series(side, [row[0] for row in rows], [row[1] for row in rows]) for side, rows in medians.items()]
    cpu = [Series(side, [row[0] for row in rows], [row[2] for row in rows]) for side, rows in medians.items()]
    return [
        Chart(f"p99 of pacing lateness on {name}, idle", "starts a second", "ms", late, log="x"),
        Chart(f"CPU a start on {name}, idle", "starts a second", "us", cpu, log="xy"),
    ]


def _quantile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def _evenness(at_ns: Sequence[int]) -> float:
    gaps = [after - before for before, after in pairwise(at_ns)]
    return (_quantile(gaps, 95) - _quantile(gaps, 5)) / statistics.fmean(gaps)
