"""The resource that a group shares: it counts each start by datagram, at the time at which the kernel received it.

Tasks report their start in their first statement, together with the time since the decision to start them, and their end
together with the time since their work should have ended. If there are more busy processes than cores, a process may be
delayed in between, and no limiter in the process can see that.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from bench.shared.counter import TimedSocket

START, LEAVE, READY = range(3)  # kinds of messages
# Kind, process, family, number of the task, cost, key, fence, monotonic time, seconds since the decision or the end due.
MESSAGE = struct.Struct("!BHBIIIQdd")
EFFECT = 0.005  # seconds from a decision to the first statement that limits allow for


class Start(NamedTuple):
    """A start: when it arrived, and when it should have: at most ``EFFECT`` after the decision."""

    at: float
    cost: int
    key: int
    process: int
    fence: int
    number: int
    arrived: float
    decided: float


@dataclass(slots=True)
class Body:
    """The time that a task spends in its body, as far as its process runs."""

    start: float
    end: float
    key: int
    process: int
    fence: int


@dataclass(slots=True)
class Absences:
    """When processes were killed or stopped, by the resource's clock."""

    killed: dict[int, float] = field(default_factory=dict)
    stopped: list[tuple[int, float]] = field(default_factory=list)


class Resource:
    """Receives what the processes tell; a context manager that opens and closes its socket.

    All its times are of the monotonic clock, so that no step of a clock matters.
    """

    def __init__(self) -> None:
        self.absences = Absences()
        self._starts: dict[int, list[tuple[float, tuple[Any, ...]]]] = defaultdict(list)
        self._leaves: dict[tuple[int, int, int], float] = {}
        self.ready: set[int] = set()
        self._socket = TimedSocket()
        self._ahead = time.time() - time.monotonic()  # of the wall clock, by which the kernel stamps
        self._is_closed = False
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Resource:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed = True
        self._thread.join()
        self._socket.socket.close()

    @property
    def port(self) -> int:
        """The port."""
        return self._socket.port

    def _receive(self) -> None:
        while not self._is_closed:
            received = self._socket.receive(0.1)
            if received is not None:
                self.note(received[0] - self._ahead, *MESSAGE.unpack(received[1]))

    def note(self, arrived: float, kind: int, process: int, family: int, number: int, *rest: Any) -> None:
        """Note a message: the rest is cost, key, fence, monotonic time, and seconds since the decision or the end due."""
        if kind == START:
            self._starts[family].append((arrived, (process, number, *rest)))
        elif kind == LEAVE:
            self._leaves[process, family, number] = arrived - max(0.0, rest[-1] - EFFECT)
        else:
            self.ready.add(process)

    def count(self, family: int, start: float, end: float) -> int:
        """Count the arrivals of a family between two times."""
        return sum(start <= arrived < end for arrived, _ in list(self._starts[family]))

    def arrivals(self, family: int, start: float) -> list[float]:
        """Return the arrivals of a family from a time on."""
        return [arrived for arrived, _ in list(self._starts[family]) if arrived >= start]

    def starts(self, family: int) -> list[Start]:
        """Return the starts of a family, by the times at which they count."""
        found = []
        for arrived, (process, number, cost, key, fence, own, held_up) in list(self._starts[family]):
            late = max(0.0, arrived - (own - held_up))
            found.append(
                Start(arrived - max(0.0, late - EFFECT), cost, key, process, fence, number, arrived, arrived - late)
            )
        return sorted(found)

    def bodies(self, family: int) -> list[Body]:
        """Return the bodies of a family; one whose process is killed or stopped is over for the resource."""
        found = []
        for start in self.starts(family):
            ended = [self._leaves.get((start.process, family, start.number), inf)]
            ended.append(self.absences.killed.get(start.process, inf))
            ended += [at for process, at in self.absences.stopped if process == start.process and at >= start.arrived]
            found.append(Body(start.arrived, min(ended), start.key, start.process, start.fence))
        return found


# Laws.


@dataclass(frozen=True)
class Found:
    """What a law found: the most that there was of what it allows, and when; broken if that is more."""

    law: str
    most: float
    allowed: float
    at: float
    note: str = ""

    @property
    def is_broken(self) -> bool:
        """True if there was more than is allowed."""
        return self.most > self.allowed

    def __str__(self) -> str:
        return f"{self.law}: {self.most:g}/{self.allowed:g}"


class Law(NamedTuple):
    """A law of one family, by what it limits."""

    name: str
    allowed: int
    seconds: float = 1.0
    of: str = "starts"  # or tokens
    per_key: bool = False

    def look(self, resource: Resource, family: int) -> Found:
        """Return the most in any window, of starts that should and did take effect in it."""
        by_key: dict[int, list[Start]] = defaultdict(list)
        for start in resource.starts(family):
            by_key[start.key if self.per_key else 0].append(start)
        worst = Found(self.name, 0, self.allowed, 0.0)
        for starts in by_key.values():
            costs = [start.cost if self.of == "tokens" else 1 for start in starts]
            most, at = most_within(
                [(start.at, start.arrived, cost) for start, cost in zip(starts, costs, strict=True)], self.seconds
            )
            if most > worst.most:
                worst = Found(self.name, most, self.allowed, at)
            if most > self.allowed and most == worst.most:
                arrivals = [(start.arrived, cost) for start, cost in zip(starts, costs, strict=True)]
                early = -1e3 * spare(sorted(arrivals), self.allowed, self.seconds)
                worst = replace(worst, note=f"early by {early:.1f} ms")
        return worst


class Bucket(NamedTuple):
    """At most ``capacity + rate * w`` decisions in any ``w`` seconds."""

    name: str
    capacity: int
    rate: float

    def look(self, resource: Resource, family: int) -> Found:
        """Return by how much the worst window exceeds its law; 0 is allowed, but for the precision of clocks."""
        starts = resource.starts(family)
        decided = self._excess(sorted(start.decided for start in starts))
        arrived = self._excess(sorted(start.arrived for start in starts))
        excess, at = min(decided, arrived)  # one alone is what processes were held up for
        return Found(self.name, round(excess, 2), 0, at)

    def _excess(self, times: Iterable[float]) -> tuple[float, float]:
        """Return the most by which any window exceeds the law, less what a millisecond allows, and when it ends."""
        excess, lowest, at = -float(self.capacity), inf, 0.0
        for count, when in enumerate(times):
            lowest = min(lowest, count - self.rate * when)
            now = count + 1 - self.rate * (when + 0.001) - lowest - self.capacity
            if now > excess:
                excess, at = now, when
        return excess, at


class AtOnce(NamedTuple):
    """At most so many bodies at the same time."""

    name: str
    allowed: int
    per_key: bool = False

    def look(self, resource: Resource, family: int) -> Found:
        """Return the most bodies at the same time."""
        by_key: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for body in resource.bodies(family):
            by_key[body.key if self.per_key else 0] += [(body.start, 1), (body.end, -1)]
        worst = Found(self.name, 0, self.allowed, 0.0)
        for edges in by_key.values():
            now = 0
            for at, step in sorted(edges, key=lambda edge: (edge[0], edge[1])):
                now += step
                if now > worst.most:
                    worst = Found(self.name, now, self.allowed, at)
        return worst


class Fences(NamedTuple):
    """No fence twice."""

    name: str = "fences twice"

    def look(self, resource: Resource, family: int) -> Found:
        """Count the fences that more than one holder had."""
        counts = Counter(start.fence for start in resource.starts(family))
        twice = [fence for fence, count in counts.items() if count > 1]
        return Found(self.name, len(twice), 0, 0.0)


class Quota(NamedTuple):
    """At most so many in each minute of the clock."""

    name: str
    allowed: int
    seconds: float = 60.0

    def look(self, resource: Resource, family: int) -> Found:
        """Return the most starts in a minute of the clock."""
        counts = Counter((start.at + resource._ahead) // self.seconds for start in resource.starts(family))
        return Found(self.name, max(counts.values(), default=0), self.allowed, 0.0)

    def is_spent(self, resource: Resource, family: int, now: float) -> bool:
        """Return True if the present minute's part is used, or nearly so."""
        begin = now - (now + resource._ahead) % self.seconds
        return resource.count(family, begin, now + 1) >= self.allowed * 0.9


def spare(times: list[tuple[float, int]], allowed: int, seconds: float) -> float:
    """Return by how much longer than its window the shortest time with more than allowed was; below 0 it was shorter."""
    found, total, first = inf, 0, 0
    for when, cost in times:
        total += cost
        while total - times[first][1] > allowed:
            total -= times[first][1]
            first += 1
        if total > allowed:
            found = min(found, when - times[first][0] - seconds)
    return found


AnyLaw = Law | Bucket | AtOnce | Fences | Quota


def most_within(spans: list[tuple[float, float, int]], seconds: float) -> tuple[int, float]:
    """Return the most cost of spans that lie within any half-open window of ``seconds``, and when it begins.

    A span is (begin, end, cost); they are sorted. A start spans the time in which it should have taken effect and did.
    """
    most, at, last = 0, 0.0, 0
    for index, (begin, _, _) in enumerate(spans):
        while last < len(spans) and spans[last][0] < begin + seconds:
            last += 1
        inside = sum(cost for _, end, cost in spans[index:last] if end < begin + seconds)
        if inside > most:
            most, at = inside, begin
    return most, at
