"""Limits of every kind at once over a real group: processes, and a counter of starts outside of the fleet.

A start needs a permit of a pace and of an exact window, tokens of a pace and of an exact window, and in one executor the rate
of its key, in another a slot; in ``together`` both. The first statement of a task reads the monotonic clock that all processes
of a machine share, and ten processes report these times. Every law is checked in every window that begins or ends with a start.
For each law, a line shows the largest amount in one of its windows, and the *spare*: the shortest time in which more started,
minus the window. Below 0 the law was broken. If there are more processes than cores, a start may be delayed between the
decision and its first statement, and no limiter can prevent that: the report shows the longest delay as well.

``used`` is the part of the limit that was used most. Half of the tasks are of one key, so that its rate is used up, too.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .processes import wait_until
from .real_slots import SlotFleet
from .ticket_group import most_in
from .ticket_worker import BEGUN, ENTER, LEAVE, LOST, MESSAGE, NO_KEY, TOLD, WAIT

PROCESSES = 10
QUARANTINE = 2 * 1.0 + 0.25 + 3 * 0.019 + 0.25  # of tickets, with the default settings of processes
INTERVAL = 0.25
MANY_KEYS = 10_001  # so that hardly any task waits for another one of its key
MARGIN = 0.1  # beyond an interval, until a command is known to all


@dataclass(frozen=True)
class Law:
    """At most ``most`` in any ``seconds``: of starts, ``tokens``, or starts of each ``key``."""

    most: int
    seconds: float
    of: str = "starts"

    def __str__(self) -> str:
        return f"{self.of} {self.most}/{self.seconds:g}s"


@dataclass(frozen=True)
class Plan:
    """The options of the processes, and the laws that must hold for all of them."""

    options: dict[str, Any]
    laws: tuple[Law, ...]


def plan_of(
    *, rate: int = 40, share: int = 30, seconds: int = 5, policy: str = "Paced", slots: int = 4, keys: int = 13
) -> Plan:
    """Return limits of every kind.

    Args:
        rate: starts a second.
        share: starts a second over ``seconds``; about as many as there are tokens for.
        seconds: length of the longer windows.
        policy: policy of the shorter rates.
        slots: number of concurrent tasks that need one; 0 for no such tasks.
        keys: number of keys; 0 for no tasks with a key.
    """
    starts, tokens, key, token_rate = share * seconds, round(9.8 * share * seconds), 5, 25 * rate
    laws = [Law(rate, 1), Law(starts, seconds), Law(tokens, seconds, "tokens"), Law(key, 1, "key")]
    if policy == "Window":
        laws.append(Law(token_rate, 1, "tokens"))
    return Plan(
        {
            "rates": f"{rate}/s, {starts}/{seconds}s", "resources": {"tokens": f"{token_rate}/s, {tokens}/{seconds}s"},
            "key_rate": f"{key}/s", "keys": keys, "hot": 0.5, "policy": policy, "limit": slots, "is_together": False,
            "work": 0.05, "load": 1000,
        },
        tuple(laws),
    )  # fmt: skip


class TicketFleet(SlotFleet):
    """Processes whose starts are under limits of every kind, and all that they have reported.

    Args:
        plan: the plan of all processes.
    """

    worker = "ticket_worker"

    def __init__(self, plan: Plan, **options: Any) -> None:
        self.plan = plan
        self.costs: list[
            tuple[float, int, int, float]
        ] = []  # of each start: time, tokens, key, and time of the decision
        self.by: list[tuple[float, int]] = []  # time, process
        self.held_up: list[float] = []
        self.told: list[float] = []  # when commands were done
        super().__init__(**{**plan.options, **options})

    def _count(self) -> None:
        while not self._is_closed:
            try:
                message = self._socket.recv(64)
            except TimeoutError:
                continue
            kind, process, value, number, cost, key, held_up = MESSAGE.unpack(message)
            if kind == ENTER:
                if key == NO_KEY or self.options["is_together"]:
                    self.entered[process, number] = value
                self.costs.append((value, cost, key, value - held_up))
                self.by.append((value, process))
                self.held_up.append(held_up)
            elif kind in (LEAVE, LOST):
                self.left[process, number] = value
                if kind == LOST:
                    self.lost.append((value, process, number))
            elif kind == WAIT:
                self.waits.append(value)
            elif kind == BEGUN:
                self.begun[process] = value
            elif kind == TOLD:
                self.told.append(value)

    def command(self, process: int) -> float:
        """Let a process do its next command, and return when that was done."""
        count = len(self.told)
        os.kill(self.processes[process].pid, signal.SIGUSR2)
        wait_until(lambda: len(self.told) > count, "the command is done")
        return self.told[-1]

    def wait_for_entry(self, seconds: float = 60.0, *, number: int | None = None) -> float:
        """Wait for the next start, of one process or of any, and return its time."""
        begin = time.monotonic()

        def found() -> float | None:
            return next((when for when, who in list(self.by) if when >= begin and number in (None, who)), None)

        wait_until(lambda: found() is not None, "something starts", seconds=seconds)
        started = found()
        assert started is not None
        return started

    # Figures.

    def under(
        self, law: Law, start: float = 0.0, end: float = float("inf"), *, is_decided: bool = False
    ) -> dict[int, list[tuple[float, int]]]:
        """Return what a law counts, as (time, cost), by key; or by executor, named by one of its keys."""
        found: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for when, cost, key, decided in list(self.costs):
            if start <= when < end and not (law.of == "key" and key == NO_KEY):
                name = key if law.of == "key" or key == NO_KEY else 0
                found[name].append((decided if is_decided else when, cost if law.of == "tokens" else 1))
        return found

    def most_of(self, law: Law, start: float = 0.0, end: float = float("inf")) -> int:
        """Return the most in any window of a law."""
        return max((most_in(each, law.seconds) for each in self.under(law, start, end).values()), default=0)

    def spare(self, law: Law, start: float = 0.0, end: float = float("inf"), *, is_decided: bool = False) -> float:
        """Return how much longer than a law's window the shortest time with more was; negative if it broke the law."""
        found = self.under(law, start, end, is_decided=is_decided)
        return min((_spare(law, each) for each in found.values()), default=float("inf"))

    def broken(self, laws: Iterable[Law], start: float = 0.0, end: float = float("inf")) -> list[str]:
        """Describe the laws, and the limit of slots, that were broken between two times."""
        words = [
            f"{law}: {self.most_of(law, start, end)}, {1e3 * self.spare(law, start, end, is_decided=True):.1f} ms"
            for law in laws
            if self.spare(law, start, end, is_decided=True) < 0
        ]
        if self.most(start, end) > self.limit:
            words.append(f"slots {self.limit}: {self.most(start, end)}")
        return words

    def used_of(self, law: Law, start: float, end: float, *, key: int = 0) -> float:
        """Return the part of a limit used between two times by one of the executors."""
        total = sum(cost for _, cost in self.under(law, start, end)[key])
        return total * law.seconds / (law.most * (end - start))

    def used_of_key(self, start: float, end: float) -> float:
        """Return the part of the rate used by the key in demand."""
        (law,) = (law for law in self.plan.laws if law.of == "key")
        count = sum(key == 0 and start <= when < end for when, _, key, _ in list(self.costs))
        return count * law.seconds / (law.most * (end - start))

    def used_most(self, start: float, end: float, *, key: int = 0) -> float:
        """Return the used part of the limit used most, by one of the executors."""
        return max(self.used_of(law, start, end, key=key) for law in self.plan.laws if law.of != "key")

    def used_by_both(self, start: float, end: float) -> str:
        """Return the used part of both executors, in words."""
        return f"{self.used_most(start, end):.3f} ({self.used_most(start, end, key=NO_KEY):.3f} by those with slots)"

    def count_of(self, process: int | None, start: float, end: float = float("inf")) -> int:
        """Count the starts of one process, or of all."""
        return sum(process in (None, who) and start <= when < end for when, who in list(self.by))


def _spare(law: Law, costs: list[tuple[float, int]]) -> float:
    ordered, first, total, shortest = sorted(costs), 0, 0, float("inf")
    for when, cost in ordered:
        total += cost
        while total - ordered[first][1] > law.most:  # without the first there is still too much
            total -= ordered[first][1]
            first += 1
        if total > law.most:
            shortest = min(shortest, when - ordered[first][0])
    return shortest - law.seconds


@contextmanager
def fleet(plan: Plan, **options: Any) -> Iterator[TicketFleet]:
    """Yield a fleet without processes, and end it."""
    running = TicketFleet(plan, **options)
    try:
        yield running
    finally:
        running.close()
