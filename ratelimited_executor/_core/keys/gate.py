"""Which keys may start a task now: a rate and a limit on running tasks for each key.

A key that may start nothing is *parked*: its tasks leave the order until it may start again, so they never hold back
tasks of other keys. A key resumes at a known time (rate, penalty) or when one of its tasks ends (concurrency).

A key is *known* while it has work, and while its starts may still be settled. Then its limits are kept as a few numbers
(``memory.py``) until they are as for a new key. As many keys are remembered as allowed: at the maximum, no task of
another key starts, because forgetting a key early would break the law of its rate.

Where a group counts the running tasks of a key, each task takes a slot of the key. The slot is requested when the task
would start next but for the slot, or ahead, together with a permit of the group. Slots are requested for several keys at a time, in the order of their tasks. While a
request has no answer yet, the tasks after it wait as well.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.keys.memory import KeyMemory
from ratelimited_executor._core.keys.states import KeyState, Span
from ratelimited_executor._core.lazy_heap import GuardedHeap, LazyHeap
from ratelimited_executor._core.slots.asking import IDLE_NS, SOON_NS
from ratelimited_executor._core.slots.lines import SlotLine, stored_key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from ratelimited_executor._core.limits.effects import Effects
    from ratelimited_executor._core.limits.limit import Limit
    from ratelimited_executor._core.slots.asking import SlotAsker
    from ratelimited_executor._kernel.contracts import Source

__all__ = ["KeyGate", "KeyHold", "Span"]

_SWEEP_COUNT: Final = 4096  # idle keys examined in an interval, plus two for each start in it
_SWEEP_STEP_COUNT: Final = 1024  # in one step: half a millisecond
_MANY: Final = 1 << 30

KeyHold = str  # "rate", "concurrency", "penalty", "slots" or "keys"


_Timer: TypeAlias = tuple[int, int, "Hashable", KeyState]
"""Time, number, key and state of a parked key; stale once the key has another timer."""


def _is_stale(timer: _Timer) -> bool:
    return timer[3].timer is not timer


def _is_never_stale(_: object) -> bool:
    return False


class KeyGate:
    """The limits of keys.

    Args:
        limit_of: creates the rate limit of a key; returns None if the key has no rate.
        concurrency_of: returns how many tasks of a key may run at once; None for no limit.
        slots_of: creates the slot requester for a key and its limit; returns None if no group counts the key's tasks.
        parts: returns into how many parts the limit of a key is split; None while the group alone counts.
        is_away: returns True if only these parts count, because the group cannot be asked for slots.
        ahead_count: returns for how many keys slots may be requested at a time.
        note_lost: called with the key of a running task whose slot may have passed to another holder.
        keys_max: how many keys may be remembered; None for any number.
        note_full: called when a task has to wait because of that.
        is_over: returns whether a task, as (source, position) or (None, record), has expired by a time.

    Attributes:
        look_count: changes when what was found to be admitted may no longer be: user functions were called when a key was
            met, or held slots were given back.
        is_put_off: True if the key asked about last must be asked about again once earlier requests are answered.
        asks_for_slots: True if there are lines, or keys whose running tasks a group counts.
        is_looking: True while only looking for what may start: then no slots are requested.
    """

    __slots__ = (
        "_ahead", "_ahead_count", "_concurrency_of", "_full", "_is_away", "_keys", "_keys_max", "_limit_of", "_lines",
        "_memory", "_newest", "_note_full", "_note_lost", "_numbers", "_parts", "_put_off", "_slots_of",
        "_start_count", "_sweeping", "_timers", "_unasked", "_used_count", "_without_room", "asks_for_slots",
        "is_looking", "is_over", "is_put_off", "look_count",
    )  # fmt: skip

    def __init__(
        self,
        *,
        limit_of: Callable[[Any], Limit | None],
        concurrency_of: Callable[[Any], int | None],
        slots_of: Callable[[Any, int], SlotAsker | None] = lambda _, __: None,
        parts: Callable[[], int | None] = lambda: None,
        is_away: Callable[[], bool] = lambda: False,
        ahead_count: Callable[[], int] = lambda: 1,
        note_lost: Callable[[Any], None] = lambda _: None,
        keys_max: int | None = None,
        note_full: Callable[[], None] = lambda: None,
        is_over: Callable[[tuple[Source | None, Any], int], bool] = lambda _, __: False,
    ) -> None:
        self._limit_of = limit_of
        self._concurrency_of = concurrency_of
        self._slots_of = slots_of
        self._parts = parts
        self._is_away = is_away
        self._ahead_count = ahead_count
        self._note_lost = note_lost
        self._keys_max = math.inf if keys_max is None else keys_max
        self._note_full = note_full
        self.is_over = is_over
        self._memory = KeyMemory()
        self._used_count = 0  # known keys that have something to remember
        # Keys with a slot that no task has started with, or with a request that has no answer yet.
        self._ahead: dict[Hashable, KeyState] = {}
        self._keys: dict[Hashable, KeyState] = {}
        self._timers: LazyHeap[_Timer] = LazyHeap(_is_stale)
        self._full: dict[Hashable, None] = {}  # keys parked at their concurrency limit
        self._unasked: dict[Hashable, None] = {}  # parked keys with no known event that will resume them
        self._without_room: dict[Hashable, None] = {}  # new keys parked because no more can be remembered
        self._numbers = count()
        # Keys put off, as (importance of the first task, number, key); some were resumed by another event meanwhile.
        self._put_off: GuardedHeap[tuple[Any, int, Hashable]] = GuardedHeap(_is_never_stale)
        self._sweeping: deque[Hashable] = deque()  # known keys to examine: do they have work?
        # Limit and receipt of the last start, if it may not have taken effect.
        self._newest: tuple[Limit, Any] | None = None
        self._start_count = 0  # since the last sweep
        self.look_count = 0
        self.asks_for_slots = False
        self.is_looking = False
        self.is_put_off = False
        self._lines: set[SlotLine] = set()  # lines with unused slots, or waiting for slots

    @property
    def key_count(self) -> int:
        """How many keys are known or remembered."""
        return len(self._keys) + len(self._memory)

    def knows(self, key: Hashable) -> bool:
        """True if the limits of a key are known, so that :meth:`admits` calls no user function."""
        if isinstance(key, SlotLine):
            return key.held_key is None or key.held_key in self._keys
        return key in self._keys

    def meet(self, key: Hashable, now_ns: int) -> None:
        """Read the limits of a key by calling user functions, which may change anything: look at everything again."""
        key = stored_key(key)
        if key not in self._keys:
            self._meet(key, now_ns)

    def cost_max(self, key: Hashable) -> int | None:
        """Return the largest cost that the rate of a known key ever admits; None if any is."""
        limit = self._keys[key].limit
        return None if limit is None else limit.cost_max

    def limit(self, key: Hashable) -> Limit | None:
        """Return the limit of a known key's rate; None if it has none, or is not known."""
        state = self._keys.get(stored_key(key))
        return None if state is None else state.limit

    def is_parked(self, key: Hashable) -> bool:
        """True if tasks of a key have left the order."""
        if isinstance(key, SlotLine):
            return bool(key.parked) or (key.held_key is not None and self.is_parked(key.held_key))
        state = self._keys.get(key)
        return state is not None and bool(state.parked)

    def admits(self, key: Hashable, cost: int, now_ns: int) -> bool:
        """True if a task of a key may start now; requests the slots that it needs, unless it is too early for that."""
        self.is_put_off = False
        if isinstance(key, SlotLine):
            if key.held_key is not None and not self.admits(key.held_key, cost, now_ns):
                held = self._keys[key.held_key]
                if not (self.is_put_off or held.is_asking or held.comes_soon(cost, now_ns)):
                    self.look_count += key.slots.is_there
                    self._drop(key)
                return False
            if self.is_looking and key.slots.request is None:
                return True
            self._lines.add(key)
            self.asks_for_slots = True
            is_there = key.slots.has_slots(now_ns)
            state = self._ahead.get(key.held_key) if key.slots.is_waiting else None
            if state is not None and not any(
                other.held_key == key.held_key and other.slots.is_there for other in self._lines
            ):
                self.look_count += state.slots is not None and state.slots.is_there
                self._drop_slot(key.held_key, state)  # do not hold one slot while waiting for another
            return is_there
        state = self._keys.get(key) or self._meet(key, now_ns)
        if not (state.is_open(cost, now_ns) and self._has_room(state)):
            return False
        if state.slots is None or (state.concurrency < math.inf and self._is_away()):
            return True
        return self._has_slot(key, state.slots, state, now_ns)

    def is_free(self, key: Hashable, cost: int, now_ns: int) -> bool:
        """True if a task of a known key may start now, and needs no slots of a group."""
        state = self._keys.get(key)
        if state is None or state.slots is not None or not state.is_open(cost, now_ns):
            return False
        return state.is_used or self._has_room(state)

    def _has_slot(self, key: Hashable, slots: SlotAsker, state: KeyState, now_ns: int) -> bool:
        """True if the next task of a key has a slot of the group; requests one if allowed."""
        if slots.request is None:
            if self._ahead and len(self._ahead) >= self._ahead_count():
                self.is_put_off = True
                return False
            if self.is_looking:
                return True
        request = slots.request
        is_there = slots.has_slots(now_ns)
        if slots.request is not request:
            self._ahead[key] = state
        return is_there

    def hold(self, key: Hashable, cost: int, now_ns: int) -> KeyHold | None:
        """Return what keeps a key from starting a task; None if nothing does."""
        if isinstance(key, SlotLine):
            held = None if key.held_key is None else self.hold(key.held_key, cost, now_ns)
            return "slots" if held is None and (key.parked or key.slots.is_waiting) else held
        state = self._known(key, now_ns)
        if state is None:
            return None
        if state.is_open(cost, now_ns):
            if not self._has_room(state):
                return "keys"
            return "concurrency" if state.is_waiting else None
        return state.hold(cost, now_ns)

    def quarantine(self, key: Hashable) -> float:
        """Return for how many seconds no group hands over a slot of a key, because holders may have been forgotten."""
        state = self._keys.get(stored_key(key))
        return 0.0 if state is None or state.slots is None else state.slots.quarantine

    def when_count(self, key: Hashable, count: int, now_ns: int) -> int | None:
        """Estimate when rate and penalty allow the ``count``-th task of a key from now to start; None if never."""
        state = self._known(stored_key(key), now_ns)
        if state is None:
            return now_ns
        return state.when_count(count, now_ns)

    def count_until(self, key: Hashable, cost: int, span: Span, now_ns: int) -> float:
        """Estimate how many tasks of a key, each of a cost, could start in a span; 1 if its limits are unknown."""
        if isinstance(key, SlotLine):
            if key.held_key is None:
                return math.inf
            key = key.held_key
        state = self._keys.get(key)
        return 1 if state is None else state.count_until(cost, span, now_ns)

    def count_parked(self, span: Span, most: float, now_ns: int) -> float:
        """Estimate how many tasks of all parked keys could start in a span; may stop counting at ``most``."""
        total = 0.0
        for key in self._opening(span.end_ns):
            state = self._keys[key]
            cost = min((cost for _, cost, _ in state.parked), default=1)
            count = min(state.count_until(cost, span, now_ns), most)
            if count > 0:
                total += min(count, sum(waiting(count) for _, _, waiting in state.parked))
            if total >= most:
                break
        return total

    def _opening(self, end_ns: int) -> Iterator[Hashable]:
        """Walk the parked keys that may start a task before a time, each once, reading only that part of the heap."""
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
        """Call ``resume`` once, when a task of a key may start again; return True if what allows that is known.

        Args:
            key: the key of the tasks.
            cost: the cost of the first task.
            now_ns: the time at which it may not start.
            resume: the function to call.
            waiting: counts the tasks up to a maximum; 1 by default.
        """
        if isinstance(key, SlotLine):
            if key.held_key is None or (key.slots.request is not None and not key.slots.is_there):
                key.parked.append(resume)
                return True  # resumed at hand-over of the slots
            key = key.held_key
        state = self._keys[key]
        state.parked.append((resume, cost, waiting))
        state.is_ahead = False
        if state.is_full:
            self._full[key] = None
            return True  # resumed when a running task ends
        if state.is_open(cost, now_ns):
            if not self._has_room(state):
                self._without_room[key] = None
                self._note_full()
                return True  # resumed when a key is forgotten
            if state.slots is not None:
                return True  # resumed at hand-over of the slot
        when = state.when(cost, now_ns)
        if when is not None and (state.timer is None or when < state.timer[0]):
            self._stop_timer(state)
            state.timer = (when, next(self._numbers), key, state)
            self._timers.push(state.timer)
        if when is None:
            self._unasked[key] = None
        return when is not None

    @property
    def is_asking(self) -> bool:
        """True if some slot request has no answer yet."""
        return any(state.is_asking for state in self._ahead.values())

    def put_off(
        self, key: Hashable, head: Any, cost: int, resume: Callable[[], None], waiting: Callable[[float], int]
    ) -> None:
        """Call ``resume`` once, when slots of a key may be requested: the maximum number of keys is ahead of it now.

        Args:
            key: the key of the tasks.
            head: the importance of its first task: keys with the smallest resume first.
            cost: the cost of that task.
            resume: the function to call.
            waiting: counts its tasks up to a maximum.
        """
        if isinstance(key, SlotLine):
            key = key.held_key
        self._keys[key].parked.append((resume, cost, waiting))
        self._unasked[key] = None
        self._put_off.push((head, next(self._numbers), key))

    def _go_on(self) -> None:
        """Resume keys that were put off, as many as there is room for."""
        if self._put_off.first() is None:
            return
        room = self._ahead_count() - len(self._ahead)
        while room > 0 and self._put_off.first() is not None:
            *_, key = self._put_off.pop()
            if key in self._unasked:
                room -= 1
                self._resume(key, self._keys[key])

    def start(self, key: Hashable, cost: int, now_ns: int) -> tuple[Limit, Any] | None:
        """Record the start of a task of a key; return (limit, receipt), by which its cost may be settled later."""
        if isinstance(key, SlotLine):
            self._newest = None
            return None if key.held_key is None else self.start(key.held_key, cost, now_ns)
        state = self._keys.get(key) or self._meet(key, now_ns)
        receipt, limit = None, state.limit
        if limit is not None:
            if not state.is_used:
                self._note_used(state)
            receipt = limit, limit.take(cost if cost == 1 else state.cost(cost), now_ns)
        self._newest = receipt if limit is not None and limit.counts_effects else None
        state.running_count += 1
        if state.slots is not None:
            self._take_slot(key, state, state.slots)
        self._start_count += 1
        return receipt

    def take_effect(self, now_ns: int) -> None:
        """Record that the last recorded start has taken effect by ``now_ns``."""
        if self._newest is not None:
            (limit, receipt), self._newest = self._newest, None
            limit.take_effect(receipt, now_ns)

    def defer(self, effects: Effects) -> None:
        """Defer the effect of the last start until ``effects`` begin."""
        if self._newest is not None:
            (limit, receipt), self._newest = self._newest, None
            limit.defer(receipt, effects)

    def end(self, key: Hashable) -> bool:
        """Record the end of a task of a key; return True if that allows another to start."""
        if isinstance(key, SlotLine):
            return key.held_key is not None and self.end(key.held_key)
        state = self._keys.get(key)
        if state is None or not state.running_count:  # limits were set after its start was decided
            return False
        state.running_count -= 1
        if len(state.held) > state.running_count:
            state.held.pop().release()
        if not state.running_count and not state.is_listed:
            state.is_listed = True
            self._sweeping.append(key)
        if state.running_count < state.concurrency <= state.running_count + 1:
            if state.parked:
                self._resume(key, state)
            return True  # permits of a group are requested for those that have not been looked at yet
        return bool(self._without_room) and not state.running_count  # it can be forgotten for another key

    def penalize(self, key: Hashable, until_ns: int, now_ns: int) -> None:
        """Start nothing of a key before a time."""
        state = self._keys.get(key) or self._meet(key, now_ns)
        if not state.is_used:
            self._note_used(state)
        state.penalty_ns = max(state.penalty_ns, until_ns)

    def look_again(self, key: Hashable) -> None:
        """Resume a key, even if it may not start yet: its tasks or limits have changed."""
        if isinstance(key, SlotLine):
            key.resume()
            if key.held_key is None:
                return
            key = key.held_key
        state = self._keys.get(key)
        if state is not None:
            self._resume(key, state)

    def open_due(self, now_ns: int) -> None:
        """Resume the keys whose time has come, and new keys as far as there is room to remember them."""
        if self._without_room:
            self.sweep(_SWEEP_STEP_COUNT, now_ns)
            room = self._keys_max - self._used_count - len(self._memory)
            while room > 0 and self._without_room:
                room -= 1
                key = next(iter(self._without_room))
                self._resume(key, self._keys[key])
        while (first := self._timers.first()) is not None and first[0] <= now_ns:
            _, _, key, state = self._timers.pop()
            state.timer = None
            self._resume(key, state)

    def open_all(self) -> None:
        """Resume every key, even if it may not start yet: its limits are read again."""
        for key, state in list(self._keys.items()):
            self._resume(key, state)
        for line in list(self._lines):
            line.resume()
        self._timers.clear()
        self._put_off.clear()

    # Slots.

    @property
    def is_quiet(self) -> bool:
        """True if no slots are unused or awaited, and no parked key waits for a time or for room."""
        return not (self._lines or self._ahead or self._without_room or self._timers.first() is not None)

    @property
    def has_slots(self) -> bool:
        """True if there are unused slots, or lines that wait for slots."""
        return bool(self._lines or self._ahead)

    def ask_ahead(self, line: SlotLine, now_ns: int) -> None:
        """Request the slots of a line whose first task may soon start otherwise."""
        if line.waiting_count and line.slots.request is None:
            self._lines.add(line)
            line.slots.has_slots(now_ns)

    def startable_with_slots(self, key: Hashable, now_ns: int, *, asks: bool) -> int:
        """Return how many tasks of a known key could start, given permits, with the slots that they need.

        A group counts the tasks that it lets start. So slots are requested together with permits, and no permits are
        requested for tasks that wait for slots: those would lapse.

        Args:
            key: the key of the tasks.
            now_ns: the time.
            asks: True to request slots that are not requested yet; else permits are requested first.
        """
        line, held_key = (key, key.held_key) if isinstance(key, SlotLine) else (None, key)
        state = self._keys.get(held_key)
        own = None if state is None or (state.concurrency < math.inf and self._is_away()) else state.slots
        if state is not None and own is not None:
            if asks and own.request is None and now_ns >= state.penalty_ns and len(self._ahead) < self._ahead_count():
                self._ahead[held_key], state.is_ahead = state, True
                own.has_slots(now_ns)
            if not own.is_near:
                return int(own.request is None and not asks)
        if line is None:
            return _MANY if own is None else 1
        if asks and (own is None or own.is_there):  # no slot of a line is held while the key has to wait
            self.ask_ahead(line, now_ns)
        return int(line.slots.is_near or (line.slots.request is None and not asks))

    def trim(self, now_ns: int, *, may_start: bool, permit_ns: float, may_be_told: bool = False) -> int | None:
        """Give back slots that no task is about to use; return when to look again, None if no slots are left.

        Args:
            now_ns: the time.
            may_start: True if the concurrency limit allows a start.
            permit_ns: when the next permit comes up, as far as known.
            may_be_told: True if a group may admit a start at any time, so that slots are kept for a moment.
        """
        for line in list(self._lines):
            held = self._keys.get(line.held_key)
            if not line.waiting_count or line.slots.request is None or (held is not None and held.is_waiting):
                self._drop(line)
        unused: list[tuple[SlotAsker | None, Callable[[], None]]] = [
            *((line.slots, partial(self._drop, line)) for line in self._lines),
            *((state.slots, partial(self._drop_slot, key, state)) for key, state in self._ahead.items()),
        ]
        again = None
        for slots, drop in unused:
            if slots is None or not slots.is_there:
                continue
            until_ns = slots.idle_end(now_ns, SOON_NS if may_be_told else IDLE_NS)
            if until_ns > now_ns and (may_be_told or (may_start and permit_ns <= until_ns)):
                again = until_ns if again is None else min(again, until_ns)
                continue
            drop()
            if (may_start or may_be_told) and until_ns <= now_ns:
                again = now_ns
        return again

    def close(self) -> None:
        """Give back all unused slots and withdraw all requests: nothing will start any more."""
        for line in list(self._lines):
            line.slots.drop()
        for state in self._keys.values():
            if state.slots is not None:
                state.slots.drop()
        self._lines.clear()
        self._ahead.clear()

    def leave(self, line: SlotLine) -> None:
        """Give back the slots of a line without waiting tasks."""
        if line in self._lines:
            self._drop(line)

    @property
    def may_get_slots(self) -> bool:
        """True if some line waits for slots of pools that are not halted: other holders may release some."""
        return any(
            line.slots.request is not None and all(pool.limit != 0 for pool in line.statistics())
            for line in list(self._lines)
        )

    def _drop(self, line: SlotLine) -> None:
        """Return the slots of a line; tasks parked for them rejoin the order, and request slots again in turn."""
        self._lines.discard(line)
        line.slots.drop()
        line.resume()

    def _take_slot(self, key: Hashable, state: KeyState, slots: SlotAsker) -> None:
        """Give the held slot to a task of a key that has started, or request one while it runs."""
        if slots.is_there:
            self._ahead.pop(key, None)
            state.is_ahead = False
            self._go_on()
            state.take_slot(slots, lambda: self._note_lost(key))
            self._resume(key, state)  # other tasks of the key that waited for that slot request the next
        state.ask_for_running(lambda: self._note_lost(key))

    def _drop_slot(self, key: Hashable, state: KeyState) -> None:
        """Give back the unused slot of a key; its tasks rejoin the order."""
        self._ahead.pop(key, None)
        state.is_ahead = False
        if state.slots is not None:
            state.slots.drop()
        self._resume(key, state)
        self._go_on()

    def told(self, key: Hashable) -> None:
        """Record that a slot of a key was handed over, or that its request must wait."""
        state = self._keys.get(key)
        if state is None or state.slots is None or state.slots.request is None:
            return
        if state.slots.is_waiting:
            self._ahead.pop(key, None)
            self._go_on()
            return
        self._ahead[key] = state
        state.is_ahead = state.is_ahead or any(waiting(1) for _, _, waiting in state.parked)
        if state.is_ahead:
            self._resume(key, state)
        else:
            self._drop_slot(key, state)  # no task waits for it any more

    def refresh(self, now_ns: int) -> None:
        """Read the limits of every known key again, and put them in force from ``now_ns`` on."""
        for key, state in list(self._keys.items()):
            fresh = self._limit_of(key)
            if fresh is None or state.limit is None or type(fresh) is not type(state.limit):
                state.limit = fresh
            else:
                state.limit.change_to(fresh, now_ns)
            self._count_by(key, state, self._concurrency_of(key))
        memory, self._memory = self._memory, KeyMemory()
        for key in memory:
            state = memory.recall(key, self._limit_of(key), now_ns)
            if key not in self._keys and not self._put_away(key, state, now_ns):  # user functions may have met it
                self._add(key, state, self._concurrency_of(key))
        self.open_all()

    def _count_by(self, key: Hashable, state: KeyState, concurrency: int | None) -> None:
        """Put a concurrency limit of a key in force, counted by the group or here."""
        fresh = self._slots_of(key, concurrency) if concurrency else None
        parts = None if fresh is None else self._parts()
        is_here = concurrency is not None and (fresh is None or parts is not None)
        if fresh is None or state.slots is None or is_here or fresh.limit != state.slots.limit:
            if state.slots is not None:
                self._drop_slot(key, state)
            state.slots = fresh
        self.asks_for_slots = self.asks_for_slots or fresh is not None
        state.concurrency = concurrency // (parts or 1) if is_here and concurrency is not None else math.inf
        state.ask_for_running(lambda: self._note_lost(key))

    def next_time(self) -> int | None:
        """Return when the next parked key may start again; None if no time is known."""
        first = self._timers.first()
        when = None if first is None else first[0]
        if not self._without_room:
            return when
        forget_ns = self._memory.next_time()
        if self._used_count + len(self._memory) < self._keys_max:
            forget_ns = 0
        return when if forget_ns is None else forget_ns if when is None else min(when, forget_ns)

    @property
    def is_without_room(self) -> bool:
        """True if tasks of keys wait until others are forgotten."""
        return bool(self._without_room)

    # Forgetting.

    def forget_time(self) -> int | None:
        """Return from when on a sweep may forget a key; None if all keys have work."""
        return 0 if self._sweeping else self._memory.next_time()

    def sweep_steps(self, now_ns: int) -> Iterator[None]:
        """Forget idle keys, as a chore; one an interval forgets more keys than can have become idle in it."""
        count = _SWEEP_COUNT + 2 * self._start_count
        self._start_count = 0
        for start in range(0, count, _SWEEP_STEP_COUNT):
            if not self.sweep(min(_SWEEP_STEP_COUNT, count - start), now_ns):
                break
            yield

    def sweep(self, count: int, now_ns: int) -> int:
        """Examine at most ``count`` keys, and forget those with nothing left to remember; return how many were examined."""
        done = self._memory.forget(count, now_ns)
        kept = []  # with starts that may still be settled
        while done < count and self._sweeping:
            done += 1
            key = self._sweeping.popleft()
            state = self._keys[key]
            if state.running_count or state.parked:
                state.is_listed = False  # listed again when its last task ends
            elif (state.slots is not None and state.slots.request is not None) or not self._put_away(
                key, state, now_ns
            ):
                kept.append(key)
            else:
                del self._keys[key]
                self._used_count -= state.is_used
        self._sweeping.extend(kept)
        return done

    def _put_away(self, key: Hashable, state: KeyState, now_ns: int) -> bool:
        """Forget or remember a key without work; return False if it must stay known."""
        if self._newest is not None and self._newest[0] is state.limit:
            self._newest = None  # the task has ended
        return self._memory.put_away(key, state, now_ns)

    def _has_room(self, state: KeyState) -> bool:
        """True if the start of a task of a key can be remembered."""
        return state.is_used or state.limit is None or self._used_count + len(self._memory) < self._keys_max

    def _note_used(self, state: KeyState) -> None:
        """Record that a known key has something to remember from now on."""
        state.is_used = True
        self._used_count += 1

    def _known(self, key: Hashable, now_ns: int) -> KeyState | None:
        """Return the state of a key that is known or remembered; else None."""
        return self._meet(key, now_ns) if key in self._memory else self._keys.get(key)

    def _meet(self, key: Hashable, now_ns: int) -> KeyState:
        limit, concurrency = self._limit_of(key), self._concurrency_of(key)
        self.look_count += 1
        state = self._keys.get(key)
        if state is None:  # the user functions may have met the key themselves
            state = self._memory.recall(key, limit, now_ns)
            self._add(key, state, concurrency)
        return state

    def _add(self, key: Hashable, state: KeyState, concurrency: int | None) -> None:
        self._keys[key] = state
        self._used_count += state.is_used
        self._count_by(key, state, concurrency)
        self._sweeping.append(key)

    def _stop_timer(self, state: KeyState) -> None:
        if state.timer is not None:
            state.timer = None
            self._timers.note_stale()

    def _resume(self, key: Hashable, state: KeyState) -> None:
        self._stop_timer(state)
        self._full.pop(key, None)
        self._unasked.pop(key, None)
        self._without_room.pop(key, None)
        if not state.is_listed and not state.running_count:
            state.is_listed = True
            self._sweeping.append(key)
        parked, state.parked = state.parked, []
        for resume, _, _ in parked:
            resume()
