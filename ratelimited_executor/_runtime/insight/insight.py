"""Inspection of an executor: counts, backlog, and what holds a task."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.queue.looking import is_spread, ready_tasks
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.insight.observing import started_at
from ratelimited_executor._runtime.task.coroutines import watched
from ratelimited_executor.exceptions import WrongLoopError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping
    from fractions import Fraction

    from ratelimited_executor._core.fleet.insight import FleetStatistics
    from ratelimited_executor._core.limits.combined import CombinedPermits
    from ratelimited_executor._core.permits.rates import Rate
    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._runtime.life.controls import Controls
    from ratelimited_executor._runtime.limits.backlog import Backlog
    from ratelimited_executor._runtime.limits.limits import Limits
    from ratelimited_executor._runtime.repeat.retrying import Retries
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.handles import TaskHandle
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor._runtime.time.clock import Moments

__all__ = [
    "Explanation",
    "Hold",
    "Insights",
    "LimitStatistics",
    "Statistics",
    "backlog_seconds",
    "explain",
    "explain_briefly",
    "statistics",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatistics:
    """One limit at one instant.

    Attributes:
        resource: the resource; ``permits`` for the executor's own.
        limit: the rate or quota, as a text; in a group, all of the resource.
        kind: ``rate``, ``window``, ``burst`` or ``quota``; ``group`` if the processes of a group share the limit.
        left: how much can be used now; negative after an overdraft; with ``group``, only what this process holds.
    """

    resource: str
    limit: str
    kind: str
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The counts of an executor at one instant; accepted = waiting + running + the five final ones.

    Attributes:
        name: the name of the executor.
        rate: the rate in force, ignoring pauses.
        is_paused: True while it is paused.
        accepted: tasks accepted so far.
        waiting: tasks that have not started.
        overdue: those that are due, or will be within the running interval.
        running: tasks that have started and not ended, held permits included.
        started: tasks that have started so far.
        done: tasks that returned.
        failed: tasks that raised an exception.
        cancelled: tasks that were cancelled, before their start or while they ran.
        expired: tasks that did not start before their deadline.
        dropped: tasks dropped before their start.
        retried: attempts that have failed and were, or will be, followed by another.
        waiters: producers that wait for room in ``schedule_wait`` and similar methods.
        penalty: remaining seconds of a penalty.
        keys: the number of keys for which the limits keep state.
        limits: what is left of each limit except the rate that paces.
        peers: the number of processes that share the rate.
        fleet: the process's part in a group that shares its limits; None without one.
    """

    name: str
    rate: Rate
    is_paused: bool
    accepted: int
    waiting: int
    overdue: int
    running: int
    started: int
    done: int
    failed: int
    cancelled: int
    expired: int
    dropped: int
    retried: int
    waiters: int
    penalty: float
    keys: int
    limits: tuple[LimitStatistics, ...]
    peers: int
    fleet: FleetStatistics | None = None


class Hold(Enum):
    """What keeps a task from starting."""

    NOTHING = "nothing"
    """It is about to start, runs, or has ended."""

    DUE = "due"
    """Its due time has not come."""

    SPREAD = "spread"
    """It is due, and starts at a later instant of its interval for the sake of an even load."""

    RATE = "rate"
    """It is first in its order, and the next permit is not available yet."""

    WINDOW = "window"
    """It is first in its order, and a window of one of the rates is full."""

    QUOTA = "quota"
    """It is first in its order, and the quota of the running period is used up."""

    RESOURCE = "resource"
    """It is first in its order, and a resource that it needs is short."""

    KEY_RATE = "key rate"
    """The rate of its key has no permit for it."""

    KEY_CONCURRENCY = "key concurrency"
    """The maximum number of tasks of its key is running."""

    KEYS = "keys"
    """Its key is new, and ``max_keys`` others are remembered."""

    SLOTS = "slots"
    """It needs slots that others hold."""

    PENALTY = "penalty"
    """The executor, or its key, starts nothing for a time, because the remote service asked for it."""

    ORDER = "order"
    """More important tasks take the next permits."""

    CONCURRENCY = "concurrency"
    """All places of ``max_concurrency`` are taken."""

    PAUSE = "pause"
    """The executor is paused, or its rate is 0."""

    OUTAGE = "outage"
    """The authority of the group's limits does not answer, and the outage policy leaves it none."""

    GROUP = "group"
    """A limit that the processes of a group share, or their fair shares in it."""

    QUARANTINE = "quarantine"
    """Nothing starts in the group until all earlier permits have lapsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a task has not started, and when it will.

    Attributes:
        state: the state of the task.
        hold: what keeps it from starting.
        position: how many tasks start before it, as far as known; None unless it is due.
        expected_start: epoch seconds, if no more important task arrives; None if unknown.
        detail: the limit, resource or key that holds it, where there may be several.
        expected_in: seconds from the explanation to ``expected_start``; None if unknown, and once the task has started.
    """

    state: TaskState
    hold: Hold
    position: int | None
    expected_start: float | None
    detail: str | None = None
    expected_in: float | None = None

    def __str__(self) -> str:
        ahead = "" if self.position is None else f", {self.position} ahead"
        if self.detail is not None:
            ahead = f" ({self.detail}){ahead}"
        when = "" if self.expected_in is None else f", expected in {format_duration(self.expected_in)}"
        held = "not due yet" if self.hold is Hold.DUE else f"held by {self.hold.value}"
        return f"{self.state.value}: {held}{ahead}{when}"


class Insights(Protocol):
    """The parts of a started executor that inspection uses."""

    @property
    def engine(self) -> Intake:
        """The engine, which knows the time and opens the current interval."""
        ...

    @property
    def controls(self) -> Controls:
        """The settings in force."""
        ...

    @property
    def queue(self) -> TaskQueue:
        """The queue of its tasks."""
        ...

    @property
    def accounts(self) -> Accounts:
        """The counts of accepted, running and ended tasks."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of its starts."""
        ...

    @property
    def backlog(self) -> Backlog:
        """The backlog, with its waiters."""
        ...

    @property
    def retries(self) -> Retries:
        """The retries of failed tasks."""
        ...

    @property
    def moments(self) -> Moments:
        """The source of time."""
        ...


def statistics(parts: Insights) -> Statistics:
    """Return the counts of an executor's tasks; in another thread, each is of a moment of its own, the last but for a stretch."""
    is_here = not _is_elsewhere(parts)
    if is_here:
        parts.accounts.catch_up()
    count = partial(parts.accounts.count, catches_up=is_here)
    waiting = parts.accounts.waiting_count(catches_up=is_here)
    now = parts.controls.decided_at()
    now_ns = parts.queue.timeline.to_ns(now)
    combined = parts.limits.combined
    return Statistics(
        name=parts.controls.name,
        rate=parts.controls.rate,
        is_paused=parts.controls.is_paused,
        accepted=parts.accounts.accepted_count,
        waiting=waiting if is_here else max(0, waiting),
        overdue=parts.queue.ready_count(),
        running=parts.accounts.running_count(),
        started=parts.accounts.started_count,
        done=count(TaskState.DONE),
        failed=count(TaskState.FAILED),
        cancelled=count(TaskState.CANCELLED),
        expired=count(TaskState.EXPIRED),
        dropped=count(TaskState.DROPPED),
        retried=parts.retries.count,
        waiters=0 if parts.backlog.room is None else parts.backlog.room.waiter_count,
        penalty=0.0 if combined is None else max(0, combined.penalty_ns - now_ns) / NS,
        keys=0 if parts.queue.gate is None else parts.queue.gate.key_count,
        limits=() if combined is None else tuple(_limit_statistics(combined, now_ns, is_here=is_here)),
        peers=parts.queue.permits.peers,
        fleet=None if parts.controls.member is None else parts.controls.member.statistics(now),
    )


def _now(parts: Insights) -> float:
    """Return the loop time of a question; within a decision that of the decision, whose tickets must not lapse meanwhile."""
    deciding_at = parts.queue.deciding_at
    return parts.engine.now() if deciding_at is None else deciding_at


def _is_elsewhere(parts: Insights) -> bool:
    """True if another thread runs the loop at this moment: what that thread works with may be read here, and not changed."""
    loop = parts.engine.loop
    return loop.is_running() and asyncio._get_running_loop() is not loop


def _limit_statistics(combined: CombinedPermits, now_ns: int, *, is_here: bool) -> Iterator[LimitStatistics]:
    for bound in combined.bounds:
        limit = bound.limit if is_here else bound.limit.trial(lambda: now_ns)
        left = limit.count(now_ns)
        if left < UNLIMITED:
            yield LimitStatistics(resource=bound.resource, limit=bound.text, kind=bound.kind, left=left)


def backlog_seconds(parts: Insights, key: Hashable = None) -> float:
    """Return the seconds of work in tasks that are due or will be within the running interval.

    0 while they fit the permits as they come; infinity if tasks are due and the rate is 0, or an outage of the fleet leaves
    them no permits; at least what :func:`_until_free` returns. O(1), but O(due tasks) for one key, or where keys have limits or
    starts have costs.
    """
    permits: Any = parts.queue.permits
    if _is_elsewhere(parts):
        if (
            key is not None
            or parts.queue.costs is not None
            or parts.queue.gate is not None
            or parts.limits.combined is not None
        ):
            raise WrongLoopError(parts.controls.name)
        now, permits = parts.engine.monotonic(), permits.trial()
    else:
        parts.accounts.detach()
        now = _now(parts)
    if key is not None:
        return _backlog(parts, key, now)
    count = parts.queue.ready_count()
    if count == 0:
        return 0.0
    if permits.is_unlimited and parts.queue.gate is None:
        return _until_free(parts, now, count)
    if parts.queue.costs is not None or parts.queue.gate is not None:
        return _backlog(parts, None, now)
    begin = _begin(parts, now, count)
    if begin == math.inf:
        return math.inf
    when = permits.time_after(parts.queue.timeline.to_ns(begin), count)
    return math.inf if when is None else max(_until_free(parts, now, count), parts.queue.timeline.to_loop(when) - now)


def _until_free(parts: Insights, now: float, count: int) -> float:
    """Estimate the seconds until ``max_concurrency`` has let ``count`` due tasks start; 0 if there are places for all.

    The running ones are taken to be halfway through, as they are on average if all take equally long and began evenly, and
    the due ones to take as long. So the estimate rises for as long as nothing ends. 0 if no start of a running task was
    recorded, and infinity if there are no places.
    """
    most = parts.accounts.max_concurrency
    if most is None:
        return 0.0
    running = [
        *list(parts.accounts.running.values()),
        *list(parts.accounts.holding),
    ]  # each in one step, for other threads
    held_up = count - max(0, most - len(running))
    if held_up <= 0:
        return 0.0
    owners = ((watched(each)[0] or each) for each in running[:: 1 + len(running) // _SAMPLE_COUNT])
    known = [begin for begin in map(started_at, owners) if begin is not None]
    if most and not known:
        return 0.0
    return 2 * (now - fmean(known)) * held_up / most if most else math.inf


def _begin(parts: Insights, now: float, count: int) -> float:
    """Return the loop time from which permits come, and their number; infinity if a fleet cannot know."""
    fleet = None if parts.controls.member is None else parts.controls.member.hold(now, count)
    if fleet is None:
        return now
    end: float | None = fleet[2]
    return math.inf if end is None else end


def _backlog(parts: Insights, key: Hashable, now: float) -> float:
    """Return the seconds until the last due task, of one key or of all, is expected to start."""
    queue = parts.queue
    while not queue.pull(now):
        pass
    tasks = ready_tasks(queue)
    mine = tasks if key is None else [task for task in tasks if task[1] == key]
    if not mine:
        return 0.0
    if queue.permits.is_stopped:
        return math.inf
    last = max(mine, key=itemgetter(0))
    ahead = [task for task in tasks if task is not last] if key is None else _ahead_of(parts, last, tasks, now)
    begin = _begin(parts, now, len(ahead) + 1)
    expected = None if begin == math.inf else _when_permitted(parts, last[2], begin, ahead)
    if expected is None:
        return math.inf
    if queue.gate is not None:
        now_ns = parts.queue.timeline.to_ns(now)
        costs: Counter[Hashable] = Counter()
        for _, each, needs, _ in mine:
            costs[each] += _cost(needs)
        for each, cost in costs.items():
            if each is not None:
                queue.gate.meet(each, now_ns)
                when_ns = queue.gate.when_count(each, cost, now_ns)
                if when_ns is None or (key is not None and queue.gate.hold(each, 1, now_ns) == "concurrency"):
                    return math.inf
                expected = max(expected, parts.queue.timeline.to_loop(when_ns))
    return max(_until_free(parts, now, len(ahead) + 1), expected - now)


def _ahead_of(parts: Insights, task: Any, tasks: list[Any], now: float) -> list[Any]:
    """Return the tasks that start before one, in order, without those whose own keys have to wait."""
    gate, now_ns = parts.queue.gate, parts.queue.timeline.to_ns(now)
    return sorted(
        (
            other
            for other in tasks
            if other[0] < task[0]
            and (
                gate is None
                or other[1] is None
                or other[1] == task[1]
                or gate.hold(other[1], _cost(other[2]), now_ns) is None
            )
        ),
        key=itemgetter(0),
    )


def _cost(needs: Mapping[str, int] | None) -> int:
    return 1 if needs is None else needs.get(PERMITS, 1)


def explain(parts: Insights, handle: TaskHandle[Any]) -> Explanation:
    """Return what holds a task, how many are ahead of it, and its expected start: O(waiting due tasks)."""
    state = handle.state
    if state is not TaskState.WAITING or handle._place is None:  # or an observer is notified of its start or end
        return Explanation(state=state, hold=Hold.NOTHING, position=None, expected_start=handle.started_at)
    parts.accounts.detach()  # a stretch relies on permits counted before, which pull() counts again
    now = _now(parts)
    queue = parts.queue
    while not queue.pull(now):
        pass
    if handle.state is not TaskState.WAITING:  # the order function, which has just been called, has ended it
        return explain(parts, handle)
    due = _due(parts, handle, now)
    if due > now:
        return _explain_undue(parts, due, now)
    tasks = ready_tasks(queue)
    task = next((each for each in tasks if each[3] is handle), None)
    ahead = [] if task is None else _ahead_of(parts, task, tasks, now)
    hold, detail, expected = _hold(parts, handle, now, ahead)
    position = len(ahead)
    if hold in _KEY_HOLDS.values() and expected is not None:  # tasks behind it start as well, while it has to wait
        others = [task for task in tasks if task[1] != handle._key]
        passing = _permits_until(queue, now, expected)
        own_count = sum(task[1] == handle._key for task in ahead)
        position = max(position, min(passing - own_count, len(others)) + own_count)
    return _explanation(parts, hold, detail, position, expected)


def explain_briefly(parts: Insights, handle: TaskHandle[Any]) -> tuple[Explanation, bool]:
    """Explain a task in a bounded step of work, however many tasks are due.

    Returns:
        The explanation; and True if it is that of :func:`explain`, False if ``position`` and ``expected_start`` are upper
        bounds. ``expected_start`` is then None where costs, the limits of a key or several rates decide how long the tasks
        ahead take.
    """
    state = handle.state
    if state is not TaskState.WAITING or handle._place is None:  # as in explain()
        return explain(parts, handle), True
    parts.accounts.detach()
    now = _now(parts)
    parts.queue.pull(now)
    if handle.state is not TaskState.WAITING:  # as in explain()
        return explain(parts, handle), True
    due = _due(parts, handle, now)
    if due > now:
        return _explain_undue(parts, due, now), True
    is_first = _is_first(parts.queue, handle)
    ahead = _Crowd(0 if is_first else max(0, parts.queue.ready_count() - 1))
    hold, detail, expected = _hold(parts, handle, now, ahead)
    if ahead.count and handle._key is not None and parts.queue.gate is not None:
        expected = None  # how many tasks of its key are ahead is not known
    position, is_exact = ahead.count, is_first
    if is_first and handle._key is not None and hold in _KEY_HOLDS.values() and expected is not None:  # as in explain()
        position = min(_permits_until(parts.queue, now, expected), max(0, parts.queue.ready_count() - 1))
        is_exact = not position
    return _explanation(parts, hold, detail, position, expected), is_exact


def _permits_until(queue: TaskQueue, now: float, until: float) -> int:
    """Return how many permits come up from now until a later loop time."""
    return queue.permits.count_until(queue.timeline.to_ns(now), queue.timeline.to_ns(until))


def _explain_undue(parts: Insights, due: float, now: float) -> Explanation:
    """Explain a task that is due at a later loop time."""
    is_halted = parts.queue.permits.is_stopped or parts.accounts.max_concurrency == 0
    ready_count = parts.queue.ready_count()
    begin = _begin(parts, now, ready_count + 1)
    if begin < math.inf:
        due = max(due, begin)
    elif ready_count:  # else the authority has not been asked since, and may be back by then
        is_halted = True
    return _explanation(parts, Hold.DUE, None, None, None if is_halted else due)


def _explanation(
    parts: Insights, hold: Hold, detail: str | None, position: int | None, expected: float | None
) -> Explanation:
    """Return the explanation of a waiting task that is expected to start at a loop time."""
    return Explanation(
        state=TaskState.WAITING,
        hold=hold,
        position=position,
        expected_start=None if expected is None else parts.queue.timeline.to_epoch(expected),
        detail=detail,
        expected_in=None if expected is None else max(0.0, expected - _now(parts)),
    )


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The tasks ahead of one, where only their maximum number is known, which is its length."""

    count: int

    def __len__(self) -> int:
        return self.count


def _is_first(queue: TaskQueue, handle: TaskHandle[Any]) -> bool:
    """True if a due task is the next one in the order of its executor; False also if it waits for a planned instant."""
    if is_spread(queue, handle) and queue.pacing is Pacing.SPREAD:
        return False
    first, second = queue.on_time.ready.head(), queue.spread.ready.head()
    if first is None is second:
        return False
    is_second = first is None or (second is not None and not queue.is_unlimited and second < first)
    _, item = (queue.spread if is_second else queue.on_time).ready.peek()
    return item is handle


def _hold(
    parts: Insights, handle: TaskHandle[Any], now: float, ahead: list[Any] | _Crowd
) -> tuple[Hold, str | None, float | None]:
    """Return what holds a due task, the name of the limit, and the loop time at which the task will start."""
    others = _rate_of_others(parts)
    if parts.queue.permits.is_stopped or (others is not None and not others[0]):
        return Hold.PAUSE, others and others[1], None
    fleet = None if parts.controls.member is None else parts.controls.member.hold(now, len(ahead) + 1)
    if fleet is not None:
        kind, detail, end = fleet
        return Hold(kind), detail, None if end is None else _when_permitted(parts, handle.needs, end, ahead)
    expected = _when_permitted(parts, handle.needs, now, ahead)
    if not parts.accounts.has_place():
        return Hold.CONCURRENCY, None, None
    by_key = _hold_by_key(parts, handle, now, ahead, expected)
    if by_key is not None:
        return by_key
    planned = _planned(parts, handle, now, len(ahead))
    if expected is not None and planned > expected:
        return Hold.SPREAD, None, planned
    hold, detail = _hold_by_limit(parts, handle, now, ahead, expected)
    if hold in (Hold.GROUP, Hold.RESOURCE) and parts.controls.member is not None:
        detail = parts.controls.member.source() or detail
        begin = parts.controls.member.expected_at()
        expected = expected if begin is None or expected is None else max(expected, begin)
    if detail is None and hold in (Hold.RATE, Hold.ORDER):
        detail = None if others is None else others[1]
        if detail is None and parts.controls.member is not None:
            detail = parts.controls.member.source()
    return hold, detail, expected


def _rate_of_others(parts: Insights) -> tuple[Fraction, str] | None:
    """Return the rate in force, and a text about it, if another process of the group has set it."""
    rate = None if parts.controls.member is None or parts.controls.is_paused else parts.controls.member.rate_of_others()
    return None if rate is None else (rate, f"the group goes by {float(rate):.6g}/s, set by another process")


def _hold_by_key(
    parts: Insights, handle: TaskHandle[Any], now: float, ahead: list[Any] | _Crowd, expected: float | None
) -> tuple[Hold, str, float | None] | None:
    """Return what holds a task whose key has to wait, as :func:`_hold` does; None if it does not."""
    gate = parts.queue.gate
    if handle._key is None or gate is None:
        return None
    now_ns = parts.queue.timeline.to_ns(now)
    held = gate.hold(handle._key, handle.cost, now_ns)
    if isinstance(ahead, _Crowd):
        if held is None:
            return None
        before = ahead.count
    else:
        before = sum(_cost(needs) for _, key, needs, _ in ahead if key == handle._key)
    when_ns = None if held == "concurrency" else gate.when_count(handle._key, before + 1, now_ns)
    when = None if when_ns is None else parts.queue.timeline.to_loop(when_ns)
    if held is None and when is not None and (expected is None or when <= expected):
        return None
    latest = None if when is None or expected is None else max(expected, when)
    if held == "keys":
        return Hold.KEYS, f"key {handle.key!r} is new, and as many others are remembered as max_keys allows", None
    if held == "slots":
        return Hold.SLOTS, _slots_of(handle), None
    quarantine = _quarantine(gate.quarantine(handle._key)) if held == "concurrency" else ""
    return _KEY_HOLDS[held or "rate"], f"key {handle.key!r}{quarantine}", latest


def _slots_of(handle: TaskHandle[Any]) -> str:
    """Name the pools whose slots a task needs, and their holders."""
    texts = []
    for now in handle._options.line.statistics():  # type: ignore[union-attr]  # it has waited for some
        names = ", ".join(holder.name for holder in now.holders)
        limit = "an unknown limit" if now.limit is None else now.limit
        held = f"{now.held} of {limit} held{f' by {names}' if names else ''}"
        texts.append(f"slots {now.name!r}: {held}, {now.waiting} waiting{_quarantine(now.quarantine)}")
    return "; ".join(texts)


def _quarantine(seconds: float) -> str:
    """Say for how long a group hands over no slot, why, and what would shorten it; nothing if it does."""
    if not seconds:
        return ""
    return f", no slot is handed over for {seconds:.1f} s: the server may have forgotten holders (less with a shorter lease=)"


def _hold_by_limit(
    parts: Insights, handle: TaskHandle[Any], now: float, ahead: list[Any] | _Crowd, expected: float | None
) -> tuple[Hold, str | None]:
    """Return which limit of the executor holds a task, and its name if there may be several."""
    combined = parts.limits.combined
    now_ns = parts.queue.timeline.to_ns(now)
    if combined is not None and now_ns < combined.penalty_ns:
        return Hold.PENALTY, None
    if expected is not None and expected <= now:
        return Hold.NOTHING, None
    if ahead:
        return Hold.ORDER, None
    bound = None if combined is None else combined.holding(handle.needs or {PERMITS: 1}, now_ns)
    if bound is None:
        return Hold.RATE, None
    if bound.resource == PERMITS:
        return _BOUND_HOLDS.get(bound.kind, Hold.RATE), bound.text
    return Hold.RESOURCE, f"{bound.resource} {bound.text}"


def _when_permitted(
    parts: Insights, needs: Mapping[str, int] | None, now: float, ahead: list[Any] | _Crowd
) -> float | None:
    """Return the loop time at which rates and resources admit a task, those ahead of it first; None if never, or unknown."""
    combined, now_ns = parts.limits.combined, parts.queue.timeline.to_ns(now)
    if isinstance(ahead, _Crowd):
        if ahead.count and combined is not None and (parts.queue.costs is not None or combined.has_several_rates):
            return None  # several rates together take longer than the slowest of them alone
        if not ahead.count:
            ahead = []
    if combined is not None and parts.queue.costs is not None:
        assert not isinstance(ahead, _Crowd)
        when = combined.when_in_turn([other or _ONE_PERMIT for _, _, other, _ in ahead], needs or _ONE_PERMIT, now_ns)
    else:
        when = parts.queue.permits.time_after(now_ns, len(ahead) + 1)
    return None if when is None else max(now, parts.queue.timeline.to_loop(when))


_SAMPLE_COUNT: Final = 100  # running tasks whose ages are read: their mean is within a tenth or so of that of all
_ONE_PERMIT: Final = {PERMITS: 1}
_KEY_HOLDS: Final = {
    "rate": Hold.KEY_RATE,
    "concurrency": Hold.KEY_CONCURRENCY,
    "penalty": Hold.PENALTY,
}
_BOUND_HOLDS: Final = {  # for any other kind: the next permit has not come up
    "window": Hold.WINDOW,
    "quota": Hold.QUOTA,
    "group": Hold.GROUP,
}


def _due(parts: Insights, handle: TaskHandle[Any], now: float) -> float:
    """Return the loop time at which a task is due; by the wall clock, assuming that it does not step again."""
    queue = parts.queue
    if handle._place.calendar is not queue.wall:
        return handle._due
    return max(queue.interval_end, now + handle._due - parts.moments.wall())


def _planned(parts: Insights, handle: TaskHandle[Any], now: float, position: int) -> float:
    """Return the loop time of a task's planned instant; now if it is not spread."""
    queue = parts.queue
    if not is_spread(queue, handle) or queue.pacing is not Pacing.SPREAD:
        return now
    gap = max(0.0, queue.plan.end - queue.plan.next_at) / (queue.spread.opened_count or 1)
    return max(now, queue.plan.next_at + min(position, queue.spread.opened_count) * gap)
