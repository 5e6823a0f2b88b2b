"""A good guest: how long the executor's own work holds the loop, and how often it wakes up an idle one."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

from bench.guest import holding, idle
from bench.harness import Figure, Table, Target, fresh

if TYPE_CHECKING:
    from bench.harness import Options

NAME = "guest"
DESCRIPTION = "longest hold of the loop by our own work, and wake-ups when idle"
ROUNDS = 3
COUNT, HOUR_COUNT = 1_000_000, 5_000_000
FILL_SECONDS = 8e-6  # per task, to schedule all of them before the first is due
IDLE_SECONDS = 5.0
HOLD = Target("<= 5 ms", 5.0)


def run(options: Options) -> list[Table]:
    """Measure both; each case runs in processes of its own."""
    return [_holds(options), _wake_ups(options)]


def _holds(options: Options) -> Table:
    table = Table(
        "The longest hold of the loop, all tasks scheduled",
        [
            "ours, CPU",
            "with collections",
            "ours, clock",
            "collections",
            "gap, CPU",
            "gap, clock",
            "ours over 5 ms",
            "round trips",
        ],
    )
    counts = {
        load: options.size(HOUR_COUNT if load.endswith("1 h") else COUNT, 5_000)
        for load in (list(holding.LOADS)[::3] if options.quick else holding.LOADS)
    }
    rounds = options.in_turns(
        {
            load: partial(
                fresh,
                "bench.guest.holding:measure",
                load=load,
                count=count,
                lead=options.seconds(1.5 + count * FILL_SECONDS, 0.2),
            )
            for load, count in counts.items()
        },
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label="longest hold",
    )
    for load, results in rounds.items():
        is_ours = not load.startswith("control")
        cells: dict[str, Figure | str] = {
            "gap, CPU": Figure([m["gap_cpu"] * 1e3 for m in results], "ms"),
            "gap, clock": Figure([m["gap_wall"] * 1e3 for m in results], "ms"),
            "round trips": Figure([float(m["turns"]) for m in results], "", smaller_is_better=False),
        }
        if is_ours:
            cells["ours, CPU"] = Figure([m["ours_cpu"] * 1e3 for m in results], "ms", target=HOLD)
            cells["ours, clock"] = Figure([m["ours_wall"] * 1e3 for m in results], "ms")
            cells["with collections"] = Figure([m["ours_all"] * 1e3 for m in results], "ms")
            cells["collections"] = Figure([m["ours_gc"] * 1e3 for m in results], "ms")
            cells["ours over 5 ms"] = Figure([float(m["ours_long_count"]) for m in results], "")
        table.add(f"{load}{f', {counts[load]:,}' * is_ours}", cells)
        table.check("tasks lost or run twice", sum(m["lost"] for m in results))
    table.notes += [
        "ours: the longest callback of the library, with the trivial tasks that it started",
        "CPU time leaves out what the operating system took, the clock does not",
        "collections walk all that the program holds, a million kept handles here, and fall on whoever allocates",
        "collections are timed apart; judged is what is left",
        "gap: the longest between two round trips of a task that does nothing else; the control has no executor",
    ]
    return table


def _wake_ups(options: Options) -> Table:
    seconds = options.seconds(IDLE_SECONDS, 0.3)
    table = Table(f"Wake-ups in {seconds:g} idle seconds", ["turns of the loop", "context switches", "turns more"])
    rounds = options.in_turns(
        {state: partial(fresh, "bench.guest.idle:measure", state=state, seconds=seconds) for state in idle.STATES},
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label="idle",
    )
    control = statistics.median(m["turns"] for m in next(iter(rounds.values())))
    for state, results in rounds.items():
        more = [m["turns"] - control for m in results]
        table.add(
            state,
            {
                "turns of the loop": Figure([float(m["turns"]) for m in results], ""),
                "context switches": Figure([float(m["switches"]) for m in results], ""),
                "turns more": "" if state.startswith("control") else Figure(more, "", target=Target("0", 0)),
            },
        )
    table.notes.append("the control's turns are those of its own sleep; a context switch is a wait of any kind")
    return table
