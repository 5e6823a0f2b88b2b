"""What is known of one key: its rate and penalty, and how many of its tasks run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from ratelimited_executor._core.limits.limit import starts_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.limits.limit import Limit
    from ratelimited_executor._core.slot_asking import SlotAsker
    from ratelimited_executor._core.slot_keeping import SlotRequest

__all__ = ["KeyState", "Span"]


class Span(Protocol):
    """A time in which tasks could start: [``begin_ns``, ``end_ns``)."""

    begin_ns: int
    end_ns: int

    def places(self, free: float, taken: int) -> float:
        """Estimate how many tasks could start in so many places that are free, and in so many that are taken."""
        ...


class KeyState:
    """What is known of a key.

    Attributes:
        limit: its rate; None for none.
        concurrency: how many of its tasks may run at once; infinity for no limit, or while a group counts them alone.
        slots: asks for that of its next task, where a group counts them; else None.
        held: the slots that its tasks run with or, if they were started or left without, wait for while they run.
        running_count: how many do.
        penalty_ns: before it nothing of it starts.
        parked: what to call when it may start again, with the cost of its first task, and what counts its tasks.
        timer: when that is, as far as its rate and penalty are concerned; None if no time is known.
        is_listed: True if it is to be looked at, whether it can be forgotten.
    """

    __slots__ = ("concurrency", "held", "is_listed", "limit", "parked", "penalty_ns", "running_count", "slots", "timer")

    def __init__(self, limit: Limit | None) -> None:
        self.limit = limit
        self.concurrency: float = math.inf
        self.slots: SlotAsker | None = None
        self.held: list[SlotRequest] = []
        self.running_count = 0
        self.penalty_ns = 0
        self.parked: list[tuple[Callable[[], None], int, Callable[[float], int]]] = []
        self.timer: Any = None
        self.is_listed = True

    def cost(self, cost: int) -> int:
        """Return what a task costs the key: all that its limit ever admits, if it is more than that."""
        if cost == 1 or self.limit is None:
            return cost
        most = self.limit.cost_max
        return cost if not most else min(cost, most)

    @property
    def is_full(self) -> bool:
        """True if as many tasks run as may."""
        return self.running_count >= self.concurrency

    def is_open(self, cost: int, now_ns: int) -> bool:
        """True if a task may start now, as far as nobody else is asked for a slot."""
        if self.running_count >= self.concurrency or now_ns < self.penalty_ns:
            return False
        return self.limit is None or self.limit.admits(self.cost(cost), now_ns)

    def take_slot(self, slots: SlotAsker, note_lost: Callable[[], None]) -> None:
        """Give the available slot to a starting task."""
        request = slots.take()
        self.held.append(request)
        self._run_with(request, note_lost)

    def ask_for_running(self, note_lost: Callable[[], None]) -> None:
        """Ask for the slots of tasks that run without: so a group counts them again, before any that is to start."""
        while self.slots is not None and len(self.held) < self.running_count:
            self.held.append(self.slots.ask_for_running(lambda request: self._run_with(request, note_lost)))

    def _run_with(self, request: SlotRequest, note_lost: Callable[[], None]) -> None:
        """Give a requested slot to a running task."""

        def lost() -> None:
            """Ask for another: the slot may be another's by now."""
            if request in self.held:
                self.held.remove(request)
                request.release()
                note_lost()
                self.ask_for_running(note_lost)

        request.lost = lost
        request.start()

    @property
    def is_waiting(self) -> bool:
        """True if it is known that a slot has to be waited for."""
        return self.slots is not None and self.slots.is_waiting

    @property
    def is_asking(self) -> bool:
        """True if a slot was asked for of which it is not known yet whether it has to be waited for."""
        slots = self.slots
        return slots is not None and slots.request is not None and not slots.is_there and not slots.is_waiting

    def count_until(self, cost: int, span: Span, now_ns: int) -> float:
        """Estimate how many of its tasks, of a cost, could start in a span."""
        begin_ns = max(now_ns, self.penalty_ns, span.begin_ns)
        if begin_ns >= span.end_ns or self.is_waiting:
            return 0
        count = math.inf
        if self.limit is not None:
            count = starts_until(_asked_at(self.limit, begin_ns, now_ns), self.cost(cost), begin_ns, span.end_ns)
        if self.concurrency < math.inf:
            count = min(count, span.places(self.concurrency - self.running_count, self.running_count))
        return count

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when rate and penalty admit a task; None if they never do."""
        begin_ns = max(now_ns, self.penalty_ns)
        if self.limit is None:
            return begin_ns
        return _asked_at(self.limit, begin_ns, now_ns).when(self.cost(cost), begin_ns)

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Estimate when they let the ``count``-th task from now start; None if never."""
        begin_ns = max(now_ns, self.penalty_ns)
        return begin_ns if self.limit is None else _asked_at(self.limit, begin_ns, now_ns).when_count(count, begin_ns)


def _asked_at(limit: Limit, time_ns: int, now_ns: int) -> Limit:
    """Return a limit, or a copy of it if it is to be asked about a time to come."""
    return limit if time_ns <= now_ns else limit.trial(lambda: now_ns)
