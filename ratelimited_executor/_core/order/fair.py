"""Weighted fair queueing between keys, within a priority.

Theory: start-time fair queueing. When a task of key k with cost c reaches the head of its key's queue, it gets a *start
tag* S; F_k, the *finish tag* of its key, becomes S + c / w_k once it has started. The task with the smallest start tag
starts first. While a key has waiting tasks, S = F_k. The first task of a key without waiting tasks gets

    S = max(F_k, min(v, s + c / w_k))

with s the smallest start tag of all waiting tasks, and v the *virtual time*. It advances by c / W with each start, W
the sum of the weights of all keys with tasks, and is never less than the start tag of a started task.

Law: over any span in which keys f and g both have waiting tasks,

    | cost(f) / w_f  -  cost(g) / w_g |  <=  c_f / w_f  +  c_g / w_g

with c the largest cost of a task of each: the shares are right to within one task of each. A key held back by its own
limit competes as if it had waited, with a credit of at most four of its tasks: a key whose rate is below its share gets
its rate, a key whose rate is above its share gets its share, and a long penalty accumulates no credit. A key that
returns from idleness starts at v: it has saved nothing, and owes only what it got in advance. So the first task of a
key waits for at most one task of every other key (by weight), not for their queues. A key with a queue is not starved
by a stream of new keys: v passes its start tag after as many starts as there are keys.

Each priority has its own virtual time, shared by the two calendars of an executor (tasks that start on time, and tasks
that are spread). Keys without tasks are forgotten as soon as v has passed their finish tag. Keys that return at v
mostly do so in order of their tags, and then wait in a plain queue instead of a heap.
Cost: O(log keys) a task, and nothing per waiting task beyond its place in its key's queue.

Rejected: deficit round robin (O(1), but a heavy key waits for whole rounds), stochastic fairness (keys that share a hash
share a fate), finish tags as the order (a light key's next task waits for a heavy task that has not started), v as the
start tag in service alone (it stands still while one new key after another is served, and all others starve).
Sources: P. Goyal, H. Vin, H. Cheng, "Start-time fair queueing", IEEE/ACM Transactions on Networking 5(5), 1997; for v:
J. Bennett, H. Zhang, "Hierarchical packet fair queueing algorithms", the same, 1997.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.keys.keys import KeyTable, given_key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from ratelimited_executor._core.keys.gate import KeyGate
    from ratelimited_executor._core.order.ordering import TaskView

__all__ = ["Fair", "FairClock", "Flow", "Level"]

_LEAST: Final = 1e-6  # the least weight; the largest is its inverse: virtual times are floats, of 16 digits
_PURGE_COUNT: Final = 2  # idle keys examined at each start: twice as many as can become idle
_PURGE_STEP_COUNT: Final = 1024  # idle keys examined in one step of a chore, when nothing waits any more


class Fair:
    """An order: priority first; among tasks of equal priority, each key gets its share, by weight.

    Within a key, tasks start in the order in which they become due. Tasks without a key share one.

    Args:
        by: a function that returns the key of a :class:`TaskView`; the task's ``key=`` by default.
        weights: the weights of keys, from 1e-6 to 1e6, as a mapping or a function of the key; 1 for a key that a mapping omits.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if a weight is out of range.
    """

    __slots__ = ("_by", "_weights")

    def __init__(
        self,
        by: Callable[[TaskView], Hashable] | None = None,
        *,
        weights: Mapping[Any, float] | Callable[[Any], float] | None = None,
    ) -> None:
        if by is not None and not callable(by):
            raise TypeError(f"by must be a function of a task, or None for the key it was scheduled with, got {by!r}")
        if weights is not None and not callable(weights):
            if not hasattr(weights, "items"):
                raise TypeError(
                    f"weights must be a mapping from key to weight, or a function of the key, got {weights!r}"
                )
            weights = {key: _weight_of(key, weight) for key, weight in weights.items()}
        self._by = by
        self._weights = weights

    @property
    def by(self) -> Callable[[TaskView], Hashable] | None:
        """The function that returns a task's key; None for the key it was scheduled with."""
        return self._by

    @property
    def is_even(self) -> bool:
        """True if all keys have the same weight."""
        return self._weights is None

    def weight(self, key: Hashable) -> float:
        """Return the weight of a key.

        Raises:
            ValueError: if the function of the key returns a value that is not a number from 1e-6 to 1e6.
        """
        weights = self._weights
        if weights is None:
            return 1.0
        if isinstance(weights, dict):
            return weights.get(key, 1.0)
        return _weight_of(key, weights(key))

    def wrapped(self, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Fair:
        """Return a copy of this order with each function wrapped."""
        weights = self._weights
        fair = Fair(None if self._by is None else wrap(self._by))
        fair._weights = wrap(weights) if callable(weights) else weights
        return fair

    def __repr__(self) -> str:
        by = "" if self._by is None else f"by={self._by!r}"
        weights = "" if self._weights is None else f"weights={self._weights!r}"
        return f"Fair({', '.join(filter(None, (by, weights)))})"


class Flow:
    """The tasks of one key and priority, of weight 1.

    Attributes:
        key: the key.
        weight: its weight.
        finish: the finish tag of its last started task, or the start tag of its next task if larger.
        first: its entries in the first calendar: None, an item, or a deque of items.
        second: its entries in the second calendar.
    """

    __slots__ = ("finish", "first", "key", "second")

    weight: float = 1.0

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.finish = 0.0
        self.first: Any = None
        self.second: Any = None


class _WeightedFlow(Flow):
    """A flow of any weight."""

    __slots__ = ("weight",)

    def __init__(self, key: Hashable, weight: float) -> None:
        super().__init__(key)
        self.weight = weight


class Level:
    """The flows of one priority, and their virtual time.

    Attributes:
        now: the virtual time.
        latest: the largest finish tag.
        flows: the flows by key.
        heaps: for each calendar, the flows with waiting tasks, as (start tag, number, flow).
        fresh: for each calendar, flows that came in order of their start tags, which are their finish tags.
        moved: flows whose finish tag has changed while they may be among the fresh flows.
        is_active: for each calendar, True if it uses this level.
        ghosts: a heap of (finish tag, number, flow): idle flows, not forgotten yet.
        waiting_count: the number of pairs of a calendar and a flow waiting in it, including the flow being taken from.
        weight_sum: the weights of the flows of these pairs.
    """

    __slots__ = (
        "flows", "fresh", "ghosts", "heaps", "is_active", "latest", "moved", "now", "waiting_count", "weight_sum"
    )  # fmt: skip

    def __init__(self) -> None:
        self.now = 0.0
        self.latest = 0.0
        self.flows: dict[Hashable, Flow] = {}
        self.heaps: tuple[list[tuple[float, int, Flow]], ...] = ([], [])
        self.fresh: tuple[deque[Flow], ...] = (deque(), deque())
        self.moved: set[Flow] = set()
        self.is_active = [False, False]
        self.ghosts: list[tuple[float, int, Flow]] = []
        self.waiting_count = 0
        self.weight_sum = 0.0

    def settle_fresh(self, index: int, numbers: Iterator[int]) -> None:
        """Move flows that are out of place from the head of the fresh flows to the heap."""
        fresh = self.fresh[index]
        while fresh and fresh[0] in self.moved:
            flow = fresh.popleft()
            heapq.heappush(self.heaps[index], (flow.finish, next(numbers), flow))

    def least_tag(self, numbers: Iterator[int]) -> float:
        """Return the smallest known start tag of all waiting tasks; infinity if there are none."""
        if self.moved:
            for index in (0, 1):
                self.settle_fresh(index, numbers)
        least = math.inf
        for heap in self.heaps:
            if heap and heap[0][0] < least:
                least = heap[0][0]
        for fresh in self.fresh:
            if fresh and fresh[0].finish < least:
                least = fresh[0].finish
        return least


class FairClock:
    """The virtual times of an executor.

    Args:
        fair: the order.
        gate: the limits of keys; None if there are none.
        chores: receives deferred work, as iterators whose steps take about a millisecond.
        report: called with errors of the functions for keys and weights.
        to_epoch: converts a due time to epoch seconds.
    """

    __slots__ = (
        "arrivals",
        "chores",
        "fair",
        "gate",
        "is_even",
        "keys",
        "last",
        "levels",
        "numbers",
        "refunds",
        "report",
        "to_epoch",
    )

    def __init__(
        self,
        fair: Fair,
        *,
        gate: KeyGate | None,
        chores: deque[Iterator[None]],
        report: Callable[[BaseException], None],
        to_epoch: Callable[[float], float],
    ) -> None:
        self.fair = fair
        self.gate = gate
        self.is_even = fair.is_even
        self.chores = chores
        self.report = report
        self.to_epoch = to_epoch
        self.levels: dict[float, Level] = {}  # by negated priority
        self.numbers = count()
        self.arrivals = count(1)
        self.keys = KeyTable()  # for keys that ``by`` returns
        self.last: tuple[float, Flow] | None = None  # of the task started last, with its negated priority
        self.refunds: dict[Flow, int] = {}  # permits that a flow with waiting tasks need not pay at its next starts

    def flow(self, minus_priority: float, key: Hashable) -> tuple[Level, Flow]:
        """Return the flow of a priority and key."""
        level = self.levels.get(minus_priority)
        flow = None if level is None else level.flows.get(key)
        if level is None or flow is None:
            weight = self._weight(key)
            level = self.levels.get(minus_priority)  # only now: the function may have let tasks of the key become due
            if level is None:
                level = self.levels[minus_priority] = Level()
            flow = level.flows.get(key)
            if flow is None:
                flow = level.flows[key] = Flow(key) if weight == 1.0 else _WeightedFlow(key, weight)
        return level, flow

    def _weight(self, key: Hashable) -> float:
        """Return the weight of a key; 1 if its function raises."""
        if self.is_even:
            return 1.0
        try:
            return self.fair.weight(given_key(key))
        except BaseException as error:  # noqa: BLE001  # weights are user code: no error in it may lose a task
            self.report(error)
            return 1.0

    def serve(self, minus_priority: float, level: Level, flow: Flow, tag: float, cost: int) -> None:
        """Record the start of a task."""
        self.last = minus_priority, flow
        if self.refunds:
            cost = self._less_refund(flow, cost)
        now = level.now + cost / max(level.weight_sum, flow.weight)
        level.now = now if now > tag else tag  # noqa: FURB136  # this is the path of every start
        flow.finish = finish = tag + cost / flow.weight
        if finish > level.latest:  # noqa: PLR1730  # this is the path of every start
            level.latest = finish
        if level.ghosts:
            self._purge(level, _PURGE_COUNT)

    def settle(self, share: tuple[float, Flow], change: int) -> None:
        """Charge a flow with a started task for ``change`` permits more, or for fewer if negative.

        Waiting tasks keep their places: a refund makes the next start of the flow cheaper.
        """
        minus_priority, flow = share
        level = self.levels.get(minus_priority)
        if level is None:  # no competitor, as in rest()
            return
        found = level.flows.get(flow.key)
        if found is not None and change < 0 and (found.first is not None or found.second is not None):
            self.refunds[found] = self.refunds.get(found, 0) - change
            return
        if found is None:
            if change < 0:
                return
            found = level.flows[flow.key] = flow  # the flow was forgotten, because it owed nothing
            flow.finish = level.now
        found.finish += change / found.weight
        level.latest = max(level.latest, found.finish)
        if found.first is None is found.second:
            heapq.heappush(level.ghosts, (found.finish, next(self.numbers), found))
        else:
            level.moved.add(found)

    def _less_refund(self, flow: Flow, cost: int) -> int:
        refund = self.refunds.pop(flow, 0)
        if refund > cost:
            self.refunds[flow] = refund - cost
        return max(0, cost - refund)

    def rest(self, minus_priority: float, level: Level, flow: Flow) -> None:
        """Record that a calendar has no waiting task of a flow; forget the flow unless its finish tag is needed."""
        level.waiting_count -= 1
        level.weight_sum -= flow.weight
        if flow.first is not None or flow.second is not None:
            return
        level.moved.discard(flow)
        if self.refunds:
            flow.finish -= self.refunds.pop(flow, 0) / flow.weight
        if flow.finish <= level.now:
            if level.flows.get(flow.key) is flow:
                del level.flows[flow.key]
        else:
            heapq.heappush(level.ghosts, (flow.finish, next(self.numbers), flow))
        if level.waiting_count == 0:  # no competitor: all tags are treated as past
            level.now = max(level.now, level.latest)
            level.weight_sum = 0.0
            self.chores.append(self._purge_steps(minus_priority, level))

    def _purge(self, level: Level, limit: int) -> None:
        """Forget idle flows whose finish tag has passed."""
        ghosts = level.ghosts
        while limit and ghosts and ghosts[0][0] <= level.now:
            limit -= 1
            finish, _, flow = heapq.heappop(ghosts)
            if flow.finish == finish and flow.first is None is flow.second and level.flows.get(flow.key) is flow:
                del level.flows[flow.key]

    def _purge_steps(self, minus_priority: float, level: Level) -> Iterator[None]:
        while level.ghosts and level.ghosts[0][0] <= level.now:
            self._purge(level, _PURGE_STEP_COUNT)
            yield
        if not level.flows and not level.waiting_count and self.levels.get(minus_priority) is level:
            del self.levels[minus_priority]


def _weight_of(key: object, weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not _LEAST <= weight <= 1 / _LEAST:
        raise ValueError(f"weights must be numbers from {_LEAST:g} to {1 / _LEAST:g}, got {weight!r} for {key!r}")
    return float(weight)
