"""Which keys may start a task now: a rate and a number of running tasks for each key.

A key that may not is *parked*: its tasks leave the order until it may again, so that they never stand before the tasks
of other keys. What resumes it is a time (its rate, a penalty) or an end (its concurrency). A key is known from its first
look until nothing is left to remember: none runs, none is parked, and its rate and penalty are as if it were new.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ratelimited_executor._core.lazy_heap import LazyHeap
from ratelimited_executor._core.limits.limit import starts_until
from ratelimited_executor._core.slot_lanes import IDLE_NS, SlotLane

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from ratelimited_executor._core.limits.limit import Limit

__all__ = ["KeyGate", "KeyHold", "Span"]

_SWEEP_COUNT: Final = 4096  # idle keys looked at in an interval, beside two for each start of it
_SWEEP_STEP_COUNT: Final = 1024  # at a stretch: half a millisecond

KeyHold = str  # "rate", "concurrency", "penalty" or "slots"


class Span(Protocol):
    """A time in which tasks could start: [``begin_ns``, ``end_ns``)."""

    begin_ns: int
    end_ns: int

    def places(self, free: float, taken: int) -> float:
        """Estimate how many tasks could start in so many places that are free, and in so many that are taken."""
        ...


class _Key:
    """What is known of a key.

    Attributes:
        limit: its rate; None for none.
        concurrency: how many of its tasks may run at once; infinity for no limit.
        running_count: how many do.
        penalty_ns: before it nothing of it starts.
        parked: what to call when it may start again, with the cost of its first task, and what counts its tasks.
        timer: when that is, as far as its rate and penalty are concerned; None if no time is known.
        is_listed: whether it is to be looked at, whether it can be forgotten.
    """

    __slots__ = ("concurrency", "is_listed", "limit", "parked", "penalty_ns", "running_count", "timer")

    def __init__(self, limit: Limit | None, concurrency: int | None) -> None:
        self.limit = limit
        self.concurrency: float = math.inf if concurrency is None else concurrency
        self.running_count = 0
        self.penalty_ns = 0
        self.parked: list[tuple[Callable[[], None], int, Callable[[float], int]]] = []
        self.timer: _Timer | None = None
        self.is_listed = True

    def cost(self, cost: int) -> int:
        """Return what a task costs the key: all that its limit ever admits, if it is more than that."""
        if cost == 1 or self.limit is None:
            return cost
        most = self.limit.cost_max
        return cost if not most else min(cost, most)

    @property
    def is_full(self) -> bool:
        """Whether as many tasks run as may."""
        return self.running_count >= self.concurrency


_Timer: TypeAlias = tuple[int, int, "Hashable", _Key]
"""Time, number and key of something parked; stale unless it is that of the key."""


def _is_stale(timer: _Timer) -> bool:
    return timer[3].timer is not timer


class KeyGate:
    """The limits of keys.

    Args:
        limit_of: makes the limit of a key's rate; None if it has none.
        concurrency_of: tells how many tasks of a key may run at once; None for no limit.

    Attributes:
        met_count: how many keys have been met so far: if it changes, functions of the user were called.
        is_looking: whether it is only asked when something may start: then no slots are asked for.
    """

    __slots__ = (
        "_concurrency_of",
        "_full",
        "_keys",
        "_lanes",
        "_limit_of",
        "_newest",
        "_numbers",
        "_start_count",
        "_sweeping",
        "_timers",
        "_unasked",
        "is_looking",
        "met_count",
    )

    def __init__(self, *, limit_of: Callable[[Any], Limit | None], concurrency_of: Callable[[Any], int | None]) -> None:
        self._limit_of = limit_of
        self._concurrency_of = concurrency_of
        self._keys: dict[Hashable, _Key] = {}
        self._timers: LazyHeap[_Timer] = LazyHeap(_is_stale)
        self._full: dict[Hashable, None] = {}  # keys that were parked because as many of their tasks ran as may
        self._unasked: dict[
            Hashable, None
        ] = {}  # keys that were parked, of which nothing is known that will resume them
        self._numbers = count()
        self._sweeping: deque[Hashable] = deque()  # keys to look at, whether they can be forgotten
        # Limit and ticket of the last start, if it may not have taken effect.
        self._newest: tuple[Limit, Any] | None = None
        self._start_count = 0  # since the last time that they were looked at
        self.met_count = 0
        self.is_looking = False
        self._lanes: set[SlotLane] = set()  # which have slots that no task has started with, or wait for some

    @property
    def key_count(self) -> int:
        """How many keys are known."""
        return len(self._keys)

    def knows(self, key: Hashable) -> bool:
        """Whether the limits of a key are known, so that :meth:`admits` calls no function of the user."""
        if isinstance(key, SlotLane):
            return key.held_key is None or key.held_key in self._keys
        return key in self._keys

    def meet(self, key: Hashable) -> None:
        """Ask for the limits of a key, by functions of the user: look at everything anew afterwards."""
        if isinstance(key, SlotLane):
            key = key.held_key
        if key not in self._keys:
            self._meet(key)

    def cost_max(self, key: Hashable) -> int | None:
        """Return the largest cost that the rate of a known key ever admits; None if any is."""
        limit = self._keys[key].limit
        return None if limit is None else limit.cost_max

    def limit(self, key: Hashable) -> Limit | None:
        """Return the limit of a known key's rate; None if it has none, or is not known."""
        if isinstance(key, SlotLane):
            key = key.held_key
        state = self._keys.get(key)
        return None if state is None else state.limit

    def is_parked(self, key: Hashable) -> bool:
        """Whether something of a key has left the order."""
        if isinstance(key, SlotLane):
            return bool(key.parked) or (key.held_key is not None and self.is_parked(key.held_key))
        state = self._keys.get(key)
        return state is not None and bool(state.parked)

    def admits(self, key: Hashable, cost: int, now_ns: int) -> bool:
        """Whether a task of a key may start now; slots that it needs are asked for, unless it is too early for that."""
        if isinstance(key, SlotLane):
            if key.held_key is not None and not self.admits(key.held_key, cost, now_ns):
                self._drop(key)
                return False
            if self.is_looking and key.request is None:
                return True
            self._lanes.add(key)
            return key.has_slots(now_ns)
        state = self._keys.get(key) or self._meet(key)
        if state.running_count >= state.concurrency or now_ns < state.penalty_ns:
            return False
        return state.limit is None or state.limit.admits(state.cost(cost), now_ns)

    def hold(self, key: Hashable, cost: int, now_ns: int) -> KeyHold | None:
        """Tell what keeps a key from starting a task; None if nothing does."""
        if isinstance(key, SlotLane):
            held = None if key.held_key is None else self.hold(key.held_key, cost, now_ns)
            return "slots" if held is None and key.parked else held
        state = self._keys.get(key)
        if state is None or self.admits(key, cost, now_ns):
            return None
        if state.is_full:
            return "concurrency"
        return "penalty" if now_ns < state.penalty_ns else "rate"

    def when_count(self, key: Hashable, count: int, now_ns: int) -> int | None:
        """Estimate when rate and penalty let the ``count``-th task of a key from now start; None if never."""
        if isinstance(key, SlotLane):
            key = key.held_key
        state = self._keys.get(key)
        if state is None:
            return now_ns
        begin_ns = max(now_ns, state.penalty_ns)
        return begin_ns if state.limit is None else _asked_at(state.limit, begin_ns, now_ns).when_count(count, begin_ns)

    def count_until(self, key: Hashable, cost: int, span: Span, now_ns: int) -> float:
        """Estimate how many tasks of a key, of a cost, could start in a span; one, if its limits are not known yet."""
        if isinstance(key, SlotLane):
            if key.held_key is None:
                return math.inf
            key = key.held_key
        state = self._keys.get(key)
        return 1 if state is None else self._count_until(state, cost, span, now_ns)

    def count_parked(self, span: Span, most: float, now_ns: int) -> float:
        """Estimate how many tasks of all keys that are parked could start in a span; ``most`` need not be exceeded."""
        total = 0.0
        for key in self._opening(span.end_ns):
            state = self._keys[key]
            cost = min((cost for _, cost, _ in state.parked), default=1)
            count = min(self._count_until(state, cost, span, now_ns), most)
            if count > 0:
                total += min(count, sum(waiting(count) for _, _, waiting in state.parked))
            if total >= most:
                break
        return total

    def _count_until(self, state: _Key, cost: int, span: Span, now_ns: int) -> float:
        begin_ns = max(now_ns, state.penalty_ns, span.begin_ns)
        if begin_ns >= span.end_ns:
            return 0
        count = math.inf
        if state.limit is not None:
            count = starts_until(_asked_at(state.limit, begin_ns, now_ns), state.cost(cost), begin_ns, span.end_ns)
        if state.concurrency < math.inf:
            count = min(count, span.places(state.concurrency - state.running_count, state.running_count))
        return count

    def _opening(self, end_ns: int) -> Iterator[Hashable]:
        """Walk the parked keys that may start a task before a time, each once; of a heap only as much as that."""
        yield from self._full
        yield from (key for _, _, key, _ in self._timers.below((end_ns,)) if key not in self._full)
        yield from self._unasked

    def park(
        self,
        key: Hashable,
        cost: int,
        now_ns: int,
        resume: Callable[[], None],
        waiting: Callable[[float], int] = lambda _: 1,
    ) -> bool:
        """Call ``resume`` once when a task of a key may start again; return whether it is known what will let it.

        Args:
            key: of the tasks.
            cost: of the first of them.
            now_ns: the time at which it may not start.
            resume: what to call.
            waiting: counts them, as far as a number; one by default.
        """
        if isinstance(key, SlotLane):
            if key.held_key is None or self.admits(key.held_key, cost, now_ns):
                key.parked.append(resume)
                return True  # the slots resume it
            key = key.held_key
        state = self._keys[key]
        state.parked.append((resume, cost, waiting))
        if state.is_full:
            self._full[key] = None
            return True  # the end of one that runs resumes it
        when = self._when(state, cost, now_ns)
        if when is not None and (state.timer is None or when < state.timer[0]):
            self._stop_timer(state)
            state.timer = (when, next(self._numbers), key, state)
            self._timers.push(state.timer)
        if when is None:
            self._unasked[key] = None
        return when is not None

    def start(self, key: Hashable, cost: int, now_ns: int) -> tuple[Limit, Any] | None:
        """Note that a task of a key starts; return limit and ticket, if its cost may be settled later."""
        if isinstance(key, SlotLane):
            self._newest = None
            return None if key.held_key is None else self.start(key.held_key, cost, now_ns)
        state = self._keys.get(key) or self._meet(key)
        ticket = None if state.limit is None else (state.limit, state.limit.take(state.cost(cost), now_ns))
        self._newest = ticket if state.limit is not None and state.limit.counts_effects else None
        state.running_count += 1
        self._start_count += 1
        return ticket

    def take_effect(self, now_ns: int) -> None:
        """Note that the start that was noted last has taken effect by ``now_ns``."""
        if self._newest is not None:
            (limit, ticket), self._newest = self._newest, None
            limit.take_effect(ticket, now_ns)

    def defer(self, effects: list[list[int]]) -> None:
        """Let the start that was noted last take effect when ``note_effect()`` is called with ``effects``."""
        if self._newest is not None:
            (limit, ticket), self._newest = self._newest, None
            limit.defer(ticket, effects)

    def end(self, key: Hashable) -> bool:
        """Note that a task of a key has ended; return whether that lets another start."""
        if isinstance(key, SlotLane):
            return key.held_key is not None and self.end(key.held_key)
        state = self._keys.get(key)
        if state is None:
            return False
        state.running_count -= 1
        if not state.running_count and not state.is_listed:
            state.is_listed = True
            self._sweeping.append(key)
        if state.parked and state.running_count < state.concurrency <= state.running_count + 1:
            self._resume(key, state)
            return True
        return False

    def penalize(self, key: Hashable, until_ns: int) -> None:
        """Start nothing of a key before a time."""
        state = self._keys.get(key) or self._meet(key)
        state.penalty_ns = max(state.penalty_ns, until_ns)

    def look_again(self, key: Hashable) -> None:
        """Resume a key, whether it may start or not: something of it has changed."""
        if isinstance(key, SlotLane):
            key.resume()
            if key.held_key is None:
                return
            key = key.held_key
        state = self._keys.get(key)
        if state is not None:
            self._resume(key, state)

    def open_due(self, now_ns: int) -> None:
        """Resume the keys whose time has come."""
        while (first := self._timers.first()) is not None and first[0] <= now_ns:
            _, _, key, state = self._timers.pop()
            state.timer = None
            self._resume(key, state)

    def open_all(self) -> None:
        """Resume every key, whether it may start or not: its limits are to be asked anew."""
        for key, state in list(self._keys.items()):
            self._resume(key, state)
        for lane in list(self._lanes):
            lane.resume()
        self._timers.clear()

    # Slots.

    @property
    def has_slots(self) -> bool:
        """Whether some lane has slots that no task has started with, or waits for some."""
        return bool(self._lanes)

    def trim(self, now_ns: int, *, may_start: bool, permit_ns: float) -> int | None:
        """Give back the slots that no task is about to start with; return when to look again, None if there are none.

        Args:
            now_ns: the time.
            may_start: whether a place to run in is free.
            permit_ns: when the next permit comes up, as far as that is known.
        """
        again = None
        for lane in list(self._lanes):
            if not lane.waiting_count or lane.request is None:
                self._drop(lane)
            elif lane.request.fence:
                until_ns = IDLE_NS + (now_ns if lane.held_ns is None else lane.held_ns)
                if not may_start or permit_ns > until_ns or until_ns <= now_ns:
                    self._drop(lane)
                else:
                    again = until_ns if again is None else min(again, until_ns)
        return again

    def leave(self, lane: SlotLane) -> None:
        """Give back the slots of a lane of which nothing waits any more."""
        if lane in self._lanes:
            self._drop(lane)

    @property
    def may_get_slots(self) -> bool:
        """Whether some lane waits for slots of pools that are not halted: others may give some back."""
        return any(
            lane.request is not None and all(pool.limit for pool in lane.statistics()) for lane in list(self._lanes)
        )

    def _drop(self, lane: SlotLane) -> None:
        """Give back the slots of a lane; what is parked for them comes back into the order, and asks anew in its turn."""
        self._lanes.discard(lane)
        lane.drop()
        lane.resume()

    def refresh(self, now_ns: int) -> None:
        """Ask for the limits of every known key anew; they are in force from ``now_ns`` on."""
        for key, state in list(self._keys.items()):
            fresh = self._limit_of(key)
            if fresh is None or state.limit is None or type(fresh) is not type(state.limit):
                state.limit = fresh
            else:
                state.limit.change_to(fresh, now_ns)
            concurrency = self._concurrency_of(key)
            state.concurrency = math.inf if concurrency is None else concurrency
        self.open_all()

    def next_time(self) -> int | None:
        """Tell when the next parked key may start again; None if no time is known."""
        first = self._timers.first()
        return None if first is None else first[0]

    @property
    def is_remembering(self) -> bool:
        """Whether there are keys of which nothing runs or waits, that may be forgotten with time."""
        return bool(self._sweeping)

    def sweep_steps(self, now_ns: int) -> Iterator[None]:
        """Forget idle keys, as a chore: one of an interval forgets as many as may have become idle in it, and more."""
        count = _SWEEP_COUNT + 2 * self._start_count
        self._start_count = 0
        for start in range(0, min(count, len(self._sweeping)), _SWEEP_STEP_COUNT):
            self.sweep(min(_SWEEP_STEP_COUNT, count - start), now_ns)
            yield

    def sweep(self, count: int, now_ns: int) -> None:
        """Look at so many keys at most, and forget those of which nothing is left to remember."""
        for _ in range(min(count, len(self._sweeping))):
            key = self._sweeping.popleft()
            state = self._keys[key]
            if state.running_count or state.parked:
                state.is_listed = False  # until its last task has ended
                continue
            if now_ns < state.penalty_ns or not (state.limit is None or state.limit.is_idle(now_ns)):
                self._sweeping.append(key)
            else:
                del self._keys[key]

    def _meet(self, key: Hashable) -> _Key:
        limit, concurrency = self._limit_of(key), self._concurrency_of(key)
        self.met_count += 1
        state = self._keys.get(key)
        if state is None:  # the functions may have met it themselves
            state = self._keys[key] = _Key(limit, concurrency)
            self._sweeping.append(key)
        return state

    def _when(self, state: _Key, cost: int, now_ns: int) -> int | None:
        """Tell when rate and penalty admit a task; None if they never do."""
        begin_ns = max(now_ns, state.penalty_ns)
        if state.limit is None:
            return begin_ns
        return _asked_at(state.limit, begin_ns, now_ns).when(state.cost(cost), begin_ns)

    def _stop_timer(self, state: _Key) -> None:
        if state.timer is not None:
            state.timer = None
            self._timers.note_stale()

    def _resume(self, key: Hashable, state: _Key) -> None:
        self._stop_timer(state)
        self._full.pop(key, None)
        self._unasked.pop(key, None)
        if not state.is_listed and not state.running_count:
            state.is_listed = True
            self._sweeping.append(key)
        parked, state.parked = state.parked, []
        for resume, _, _ in parked:
            resume()


def _asked_at(limit: Limit, time_ns: int, now_ns: int) -> Limit:
    """Return a limit, or a copy of it if it is to be asked about a time to come."""
    return limit if time_ns <= now_ns else limit.trial(lambda: now_ns)
