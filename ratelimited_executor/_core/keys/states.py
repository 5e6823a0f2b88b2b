"""The state of one key: its rate, its penalty and its running tasks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from ratelimited_executor._core.limits.limit import asked_at
from ratelimited_executor._core.slots.asking import SOON_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.limits.limit import Limit
    from ratelimited_executor._core.slots.asking import SlotAsker
    from ratelimited_executor._core.slots.keeping import SlotRequest

__all__ = ["KeyState", "Span"]


class Span(Protocol):
    """A span of time in which tasks could start: [``begin_ns``, ``end_ns``)."""

    begin_ns: int
    end_ns: int

    def places(self, free: float, taken: int) -> float:
        """Estimate how many tasks could start, given numbers of free and taken places."""
        ...


class KeyState:
    """The state of a key.

    Attributes:
        limit: its rate; None for none.
        concurrency: how many of its tasks may run at once; infinity for no limit, or while the group alone counts them.
        slots: requests the slot of its next task, where a group counts its tasks; else None.
        held: the slots of its running tasks; a running task without a slot waits for one here.
        running_count: how many of its tasks run.
        penalty_ns: the time before which none of its tasks start.
        parked: functions to call when it may start again, with the cost of the first task and a counter of the tasks.
        timer: when rate and penalty allow the next start; None if no time is known.
        is_listed: True if the key is in the list of keys to examine for being forgotten.
        is_used: True if it may have something to remember.
        is_ahead: True if its slot was requested for a task that has not been parked for it since.
    """

    __slots__ = (
        "concurrency",
        "held",
        "is_ahead",
        "is_listed",
        "is_used",
        "limit",
        "parked",
        "penalty_ns",
        "running_count",
        "slots",
        "timer",
    )

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
        self.is_used = False
        self.is_ahead = False

    def cost(self, cost: int) -> int:
        """Return what a task costs the key: at most the largest cost that its limit ever admits."""
        if self.limit is None:
            return cost
        most = self.limit.cost_max
        return cost if not most else min(cost, most)

    @property
    def is_full(self) -> bool:
        """True if the concurrency limit is reached."""
        return self.running_count >= self.concurrency

    def is_open(self, cost: int, now_ns: int) -> bool:
        """True if a task may start now, apart from a slot of the group."""
        if self.running_count >= self.concurrency or now_ns < self.penalty_ns:
            return False
        limit = self.limit
        return limit is None or limit.admits(cost if cost == 1 else self.cost(cost), now_ns)

    def hold(self, cost: int, now_ns: int) -> str | None:
        """Return what keeps a task of a cost back while :meth:`is_open` is False; None if that is a limit of all keys."""
        if self.is_full:
            return "concurrency"
        if now_ns < self.penalty_ns:
            return "penalty"
        return "rate" if self.limit is not None and self.limit.refuses(self.cost(cost), now_ns) else None

    def take_slot(self, slots: SlotAsker, note_lost: Callable[[], None]) -> None:
        """Give the held slot to a starting task."""
        request = slots.take()
        self.held.append(request)
        self._run_with(request, note_lost)

    def ask_for_running(self, note_lost: Callable[[], None]) -> None:
        """Request slots for tasks that run without one, so that the group counts them before any new start."""
        while self.slots is not None and len(self.held) < self.running_count:
            self.held.append(self.slots.ask_for_running(lambda request: self._run_with(request, note_lost)))

    def _run_with(self, request: SlotRequest, note_lost: Callable[[], None]) -> None:
        """Give a requested slot to a running task."""

        def lost() -> None:
            """Request another slot: this one may have passed to another holder."""
            if request in self.held:
                self.held.remove(request)
                request.release()
                note_lost()
                self.ask_for_running(note_lost)

        request.lost = lost
        request.start()

    @property
    def is_waiting(self) -> bool:
        """True if the slot request is known to have to wait."""
        return self.slots is not None and self.slots.is_waiting

    @property
    def is_asking(self) -> bool:
        """True if the slot request has no answer yet."""
        slots = self.slots
        return slots is not None and slots.request is not None and not slots.is_there and not slots.is_waiting

    def count_until(self, cost: int, span: Span, now_ns: int) -> float:
        """Estimate how many of its tasks, each of a cost, could start in a span."""
        begin_ns = max(now_ns, self.penalty_ns, span.begin_ns)
        if begin_ns >= span.end_ns or self.is_waiting:
            return 0
        count = math.inf
        if self.limit is not None:
            limit = asked_at(self.limit, begin_ns, now_ns)
            count = limit.starts_until(self.cost(cost), begin_ns, span.end_ns)
        if self.concurrency < math.inf:
            count = min(count, span.places(self.concurrency - self.running_count, self.running_count))
        return count

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when rate and penalty admit a task; None if never."""
        begin_ns = max(now_ns, self.penalty_ns)
        if self.limit is None:
            return begin_ns
        return asked_at(self.limit, begin_ns, now_ns).when(self.cost(cost), begin_ns)

    def comes_soon(self, cost: int, now_ns: int) -> bool:
        """True if a group may admit a task shortly, so that its slots are kept."""
        if self.limit is None or self.limit.is_foreseeable or self.is_full:
            return False
        when = self.when(cost, now_ns)
        return when is None or when <= now_ns + SOON_NS

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Estimate when rate and penalty allow the ``count``-th task from now to start; None if never."""
        begin_ns = max(now_ns, self.penalty_ns)
        return begin_ns if self.limit is None else asked_at(self.limit, begin_ns, now_ns).when_count(count, begin_ns)
