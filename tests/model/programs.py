"""Random programs for an executor: what they are made of, and how one is drawn from a seed.

A program is a list of timed operations ``(at, what, name, arguments)``. It prints as Python that can be pasted into
``replay``. Its times are whole ticks of 1/512 s from the program's beginning: floats of seconds and whole nanoseconds both
hold those exactly, so that times that should be equal are equal.

Operations happen at odd ticks; tasks are due, and intervals begin, at even ones, and what runs for a time ends at neither.
What an operation and a start mean for each other at the very same instant is not what these programs ask.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any

SECOND = 512
TICK_NS = 1_953_125  # exactly
LENGTH_NS = 11_000  # what runs for a number of ticks takes this much longer

# Features that are not drawn because the library is known to differ there. The change that corrects one switches it on.
IS_CALL_COUNTED = (
    False  # in an interval of more than a second, calls of the asyncio face in a later second are not counted as held
)
IS_PACING_RENEWED = False  # what was scheduled under ON_TIME is never spread, even if the pacing changes later
IS_ARRIVAL_KEPT = False  # of equal due times in a later interval, single tasks start before those of batches
IS_SLACK_KEPT = (
    False  # of planned instants that lie before the first due time, by slack at most, several are used at once
)
IS_EXPIRED_UNCOUNTED = False  # an expired task counts as held until it is swept, so that others start sooner
IS_JOINING_COUNTED = False  # what joins, and is due later in the interval, does not count as held until the next start
IS_OVERFLOW_SPREAD = False  # a single task left over counts as late, and is not spread with those of the next interval

Op = tuple[int, str, str, dict[str, Any]]


@dataclass(frozen=True)
class Program:
    """The settings of an executor, and the operations on it."""

    ops: list[Op]
    until: int = 20 * SECOND
    begin: int = 0  # when the executor starts, in ticks of the loop's time
    interval: int = SECOND
    rate: str = "inf/s"
    pacing: str = "SPREAD"
    order: str = "default"
    early: bool = False
    peers: tuple[int, int] = (1, 0)  # the arguments of StaticPeers: how many there are, and the rank of this one
    key_concurrency: int | None = None
    strictness: str = "EXACT"
    siblings: int = 0  # executors that the same manager has made before

    def __repr__(self) -> str:
        """Return Python code that makes the program; fields with their default are left out."""
        lines = ["Program("]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "ops" and value != item.default:
                lines.append(f"    {item.name}={value!r},")
        lines.append("    ops=[")
        lines += [f"        {op!r}," for op in self.ops]
        return "\n".join([*lines, "    ],", ")"])


RATES = ["inf/s", "1/s", "2/s", "3/s", "10/s", "10/s", "40/s", "100/s", "7/3s", "1/2s", "50/60s", "1000/s"]
INTERVALS = [SECOND // 8, SECOND // 2, SECOND, SECOND, SECOND, 3 * SECOND, 60 * SECOND]
PRIORITIES = [0, 0, 0, 1, -1, 5]
ORDERS = ["default", "earliest", "latest", "unimportant"]


class Draw:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.interval = rng.choice(INTERVALS)
        self.begin = rng.choice([0, rng.randint(0, 800) * SECOND // 8])
        self.span = rng.choice([1, SECOND, 2 * SECOND, 2 * self.interval, 5 * self.interval])
        self.pacing = rng.choice(["SPREAD", "ON_TIME"])
        self.rate = rng.choice(RATES)
        has_keys = rng.random() < 0.15
        self.is_plain = rng.random() < 0.3  # nothing but delays
        self.has_priorities = not has_keys and rng.random() < 0.6
        self.has_costs = self.pacing == "ON_TIME" and rng.random() < 0.3
        self.has_expires = rng.random() < 0.4
        self.has_settings = rng.random() < 0.4
        self.has_pacings = rng.random() < 0.2
        self.has_orders = rng.random() < 0.2
        self.has_lengths = has_keys or rng.random() < 0.2
        self.key_concurrency = rng.choice([1, 2]) if has_keys and self.pacing == "ON_TIME" else None
        self.families = rng.sample(["timeline", "asyncio"], 2)
        self.is_early = self.interval <= SECOND and not self.has_pacings and rng.random() < 0.1
        # If settings that arrival depends on change, or keys have queues of their own, no two due times are equal.
        self.is_distinct = self.has_pacings or self.has_orders or self.key_concurrency is not None
        self.at = self.ticks(0, self.span)
        self.used: set[int] = set()  # instants of operations
        self.alone: set[int] = set()  # instants that one operation has for itself

    def program(self) -> Program:
        """Draw settings and operations."""
        rng = self.rng
        ops = [op for number in range(rng.randint(3, 30)) for op in self.op(f"t{number}")]
        peers = rng.choice([1, 1, 1, 2, 3])
        return Program(
            ops=sorted(ops, key=lambda op: op[0]),
            until=max([op[0] for op in ops], default=0) + 4 * self.interval + 5 * SECOND | 1,
            begin=self.begin,
            interval=self.interval,
            rate=self.rate,
            pacing=self.pacing,
            order=rng.choice(ORDERS) if self.has_priorities and rng.random() < 0.3 else "default",
            early=self.is_early,
            peers=(peers, rng.randrange(peers)),
            key_concurrency=self.key_concurrency,
            strictness=rng.choice(["EXACT", "NOMINAL"]),
            siblings=rng.choice([0, 0, 1, 2, 7]),
        )

    def free(self, at: int, *, alone: bool = False) -> int:
        """Return this instant or the next that no operation has for itself; with ``alone``, one that none has."""
        while at in self.alone or (alone and at in self.used):
            at += 2
        self.used.add(at)
        if alone:
            self.alone.add(at)
        return at

    def ticks(self, low: int, high: int) -> int:
        """Draw an odd number of ticks."""
        return self.rng.randint(low, high) // 2 * 2 + 1

    def due(self, at: int, family: str) -> int:
        """Draw a due time at an even tick after an odd one."""
        if IS_ARRIVAL_KEPT:
            return self.common_due(at)
        if self.is_distinct and not family.startswith("batch"):
            family = f"{family} {len(self.families)}"
        if family not in self.families:
            self.families.append(family)
        place = self.families.index(family)  # no two families share due times; each batch is a family
        later = at + 256 + self.rng.randint(0, 3 * self.interval)
        due = later - later % 256 + 4 * place + 2 if place else self.common_due(at) + 3 & ~3
        if family == "timeline" and (self.begin + due) // self.interval == (self.begin + at) // self.interval:
            return self.due(at, f"joined {len(self.families)}")
        return due

    def common_due(self, at: int) -> int:
        """Draw a due time that any task may have; often a round one, at or after the beginning of an interval."""
        rng, interval = self.rng, self.interval
        later = at + 1 + rng.randint(0, 3 * interval) // 2 * 2
        boundary = ((self.begin + at) // interval + rng.randint(1, 3)) * interval - self.begin
        return rng.choice([later, later, boundary, boundary + interval // 4, boundary + interval // 2])

    def op(self, name: str) -> list[Op]:
        """Draw an operation, and sometimes its cancellation; operations often share an instant."""
        rng = self.rng
        at = self.at = rng.choice([self.at, self.ticks(0, self.span), self.ticks(0, self.span)])
        if self.is_plain:
            self.free(at)
            return [(at, "schedule", name, {"delay": self.due(at, "timeline") - at})]
        if self.has_settings and rng.random() < 0.15:
            # A task without a limit that meets one in the same turn keeps its class: later permits may overtake it.
            return self.setting(self.free(at, alone=True), name)
        what = rng.choice(["schedule"] * 4 + ["submit", "many", "many", "call_later", "call_at", "soon", "permit"])
        if not IS_CALL_COUNTED and self.interval > SECOND and self.pacing == "SPREAD" and what.startswith("call"):
            what = "schedule"
        if what == "soon":
            what = rng.choice(["execute", "call_soon"])
        # A permit is asked for a turn of the loop after other calls of its instant. The first cost is a limit, too.
        is_alone = what == "permit" or (self.has_costs and (self.has_settings or self.rate == "inf/s"))
        is_alone = is_alone or (self.is_distinct and not IS_ARRIVAL_KEPT)
        at = self.free(at, alone=is_alone)
        ops = [(at, what, name, getattr(self, what)(at))]
        if what != "execute" and (what, "length" in ops[0][3]) != ("permit", True) and rng.random() < 0.15:
            cancelled_at = rng.choice([at, at + self.ticks(0, 2 * self.interval)])
            ops.append((self.free(cancelled_at + 1 - cancelled_at % 2), "cancel", f"c{name}", {"of": name}))
        return ops

    def setting(self, at: int, name: str) -> list[Op]:
        """Draw a change of a setting, or a pause and its end."""
        rng = self.rng
        what = rng.choice(["rate", "rate", "rate", "pause", "pacing", "order"])
        if what == "pause":
            later = self.free(at + self.ticks(0, 2 * self.interval) // 2 * 2)
            return [(at, "pause", name, {}), (later, "resume", f"r{name}", {})]
        if what == "rate":
            return [(at, "rate", name, {"rate": rng.choice([*RATES, "0/s"])})]
        if what == "pacing" and self.has_pacings:
            return [
                (
                    at,
                    "pacing",
                    name,
                    {"pacing": rng.choice(["SPREAD", "ON_TIME"] if IS_PACING_RENEWED else ["ON_TIME"])},
                )
            ]
        if what == "order" and self.has_orders and self.has_priorities:
            return [(at, "order", name, {"order": rng.choice(ORDERS)})]
        return []

    # Arguments.

    def common(self) -> dict[str, Any]:
        """Draw the options that all scheduled tasks may have."""
        rng, given = self.rng, {}
        if self.has_priorities:
            given["priority"] = rng.choice(PRIORITIES)
        if self.has_expires and rng.random() < 0.5:
            given["expires"] = rng.choice([0, rng.randint(0, SECOND), rng.randint(0, 3 * self.interval)])
        if self.has_costs and rng.random() < 0.5:
            given["cost"] = rng.randint(2, 5)
        if self.has_lengths and rng.random() < 0.5:
            given["length"] = rng.choice([rng.randint(0, SECOND), rng.randint(0, 2 * self.interval)])
        if self.has_lengths and self.key_concurrency is not None:
            given["key"] = rng.choice(["a", "a", "b", None])
        return {name: value for name, value in given.items() if value}

    def schedule(self, at: int) -> dict[str, Any]:
        """Draw the options of a task with a delay, or with a time of the wall clock."""
        given = self.common()
        if self.rng.random() < 0.3:
            given.pop("expires" if not IS_ARRIVAL_KEPT else "", None)
            times = {"at": self.due(at, f"wall {len(self.families)}")}
        else:
            times = {"delay": self.due(at, f"expiring {len(self.families)}" if "expires" in given else "timeline") - at}
        return {**times, **given, "fails": self.rng.random() < 0.1}

    def submit(self, at: int) -> dict[str, Any]:
        """Draw the options of a task that is due now."""
        return self.common()

    permit = submit

    def many(self, at: int) -> dict[str, Any]:
        """Draw a batch in one of its forms."""
        rng, count = self.rng, self.rng.randint(1, 8)
        form = rng.choice(["now", "delay", "delays", "over", "at"])
        if not IS_ARRIVAL_KEPT and (
            form == "now" or (form == "over" and (self.has_priorities or self.key_concurrency))
        ):
            form = "delay"
        given = self.common()
        if form == "at" and not IS_ARRIVAL_KEPT:
            given.pop("expires", None)
        family = f"batch {len(self.families)}"
        times: dict[str, Any] = {
            "now": {},
            "delay": {"delay": self.due(at, family) - at},
            "delays": {"delays": [self.due(at, family) - at for _ in range(count)]},
            "over": {
                "over": rng.randint(0, 3 * self.interval // count) // 2 * 2 * count + 1
            },  # only the first item is due at a tick
            "at": {"at": self.due(at, family)},
        }[form]
        return {"count": count, **times, **given, "results": rng.random() < 0.5}

    def call_later(self, at: int) -> dict[str, Any]:
        """Draw a call of the asyncio face after a delay."""
        return {"delay": self.due(at, "asyncio") - at}

    def call_at(self, at: int) -> dict[str, Any]:
        """Draw a call of the asyncio face at a loop time; one in the past is due now."""
        due = self.due(at, "asyncio")
        return {"when": self.rng.choice([due, due, at - SECOND]) if IS_ARRIVAL_KEPT else due}

    def execute(self, at: int) -> dict[str, Any]:
        """Return no options: the call is all there is."""
        return {}

    call_soon = execute


def draw(seed: int) -> Program:
    """Draw the program of a seed."""
    return Draw(seed).program()
