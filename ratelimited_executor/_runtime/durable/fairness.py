"""Claims in turn by key, for an executor whose order is ``Fair``."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durable.tasks import NO_KEY, key_from
from ratelimited_executor._core.durable.turns import place_of, share_for, turns_ahead, turns_of
from ratelimited_executor._core.order.fair import Fair
from ratelimited_executor._runtime.limits.orders import isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ratelimited_executor._core.durable.tasks import Claimed, Turns
    from ratelimited_executor._runtime.durable.run import DurableRun
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor

__all__ = ["Fairness"]

_PRIORITIES_MAX: Final = 100  # of which the last key is known
_SHARE_MAX: Final = 1e12  # beyond which no round of claims brings more


class Fairness:
    """The turns of one process.

    Args:
        executor: whose order counts at each claim.
        runs: the tasks that this process has claimed.
        now: returns the loop time.
    """

    def __init__(self, executor: RateLimitedExecutor, runs: Collection[DurableRun], now: Callable[[], float]) -> None:
        self._executor = executor
        self._runs = runs
        self._now = now
        self._last_keys: dict[float, str] = {}  # by priority: claims go on with the next key

    @property
    def fair(self) -> Fair | None:
        """The order, if it goes by the key of tasks; None if claims are not in turn by key."""
        order = self._executor.order
        return order if isinstance(order, Fair) and order.by is None else None

    def turns(self, *, share: float, above: float, count: int) -> Turns | None:
        """Return the turns of a claim.

        Args:
            share: up to which keys get claimed tasks, by their weights; 0 for one of each key that has none.
            above: the least priority of unstarted tasks that more urgent ones are to precede; minus infinity for any.
            count: the largest number of tasks.
        """
        fair = self.fair
        if fair is None:
            return None
        held = self._unstarted()
        if above == -math.inf:
            return turns_of(held, self._weights(fair, held), self._last_keys, share=share)
        return turns_ahead(held, self._last_keys, least=above, count=count)

    def next_share(self, share: float, room: int) -> float:
        """Return the share of the next round of claims, after one that left some keys' tasks; infinity to end them."""
        fair = self.fair
        if fair is None:
            return 0.0
        held = self._unstarted()
        larger = max(2 * share, share_for(held, self._weights(fair, held), room))
        return larger if larger <= _SHARE_MAX else math.inf

    def before(self, priority: float, last_us: int) -> int | None:
        """Return ``before_us`` of a claim of tasks that precede waiting ones.

        Args:
            priority: the least of the waiting tasks.
            last_us: the time until the last of them is due.
        """
        if self.fair is None:
            return last_us
        is_ahead = any(count > 1 and place[0] == priority for place, count in self._unstarted().items())
        return max(last_us, 1) if is_ahead or last_us > 0 else None  # others that are due, as soon as they are put

    def note(self, tasks: Iterable[Claimed]) -> None:
        """Note what was claimed."""
        for claimed in tasks:
            priority, key = place_of(claimed)
            self._last_keys.pop(priority, None)
            self._last_keys[priority] = key
        while len(self._last_keys) > _PRIORITIES_MAX:
            del self._last_keys[next(iter(self._last_keys))]

    def _unstarted(self) -> Counter[tuple[float, str]]:
        """Count the tasks that are due and have not started."""
        now = self._now()
        return Counter(place_of(run.claimed) for run in self._runs if not run.is_started and run.due <= now)

    def _weights(self, fair: Fair, held: Iterable[tuple[float, str]]) -> dict[str, float]:
        order = isolated(fair)
        assert isinstance(order, Fair)
        return {key: _weight(order, key) for _, key in held}


def _weight(fair: Fair, key: str) -> float:
    """Return the weight of a key; 1 if its function raises: the executor reports that when it weighs the task."""
    try:
        return fair.weight(None if key == NO_KEY else key_from(key))
    except BaseException:  # noqa: BLE001  # user code: no error in it may end the claims
        return 1.0
