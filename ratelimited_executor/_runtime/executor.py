"""The executor as its users see it, every face on one object, and the manager that makes them."""

from __future__ import annotations

from inspect import isfunction, unwrap
from typing import Any

from ratelimited_executor._runtime.faces.cycles import CycleFace
from ratelimited_executor._runtime.faces.limiter import LimiterFace
from ratelimited_executor._runtime.faces.loop import LoopFace
from ratelimited_executor._runtime.faces.repeating import RepeatingFace
from ratelimited_executor._runtime.manager import ManagerBase

__all__ = ["ExecutorManager", "RateLimitedExecutor"]


class ExecutorManager(ManagerBase["RateLimitedExecutor"]):
    """Owns the interval runner, the timeline and the peers of its executors.

    Args:
        interval: seconds in one interval, from 0.01 to 3600: the span over which tasks are spread.
        clock: where the time is read; the system's by default.
        peers: with whom the rates are shared; nobody by default.
        precision: the shortest time between two wake-ups of the event loop by timers, in seconds, 0 to 1. What falls due
            within it starts together: 0 paces every start by itself, to tens of microseconds where the system has timer
            descriptors (Linux); more costs less CPU. By default half a millisecond; for executors without a
            limit, which have nothing to pace, one, and four while so much falls due that waking up costs more than it.

    Use it as an async context manager; leaving it normally closes every executor as leaving that executor would.

    >>> async def main():
    ...     async with ExecutorManager() as manager:
    ...         mail = manager.executor("mail", rate=100)
    ...         sms = manager.executor("sms", rate="5/min")
    """

    __slots__ = ()

    def executor(self, name: str, **options: Any) -> RateLimitedExecutor:
        """Make an executor of this manager; it starts with the manager, or at once if that has started.

        Args:
            name: unlike that of every other executor of the manager.
            options: as for :class:`RateLimitedExecutor`.

        Raises:
            ValueError: if an open executor has this name.
            ExecutorStoppedError: if the manager is closed.
        """
        return RateLimitedExecutor(name, manager=self, **options)

    @property
    def executors(self) -> dict[str, RateLimitedExecutor]:
        """The executors by name, those that are closed left out."""
        return dict(self._executors)


class RateLimitedExecutor(CycleFace, RepeatingFace, LoopFace, LimiterFace):
    """Starts callables at or after their due time, never faster than its rate, the most important first.

    Args:
        name: unlike that of every other executor of its manager; appears in logs and errors.
        rate: permits over time, as ``Rate.of`` takes it: ``100`` a second, ``"5/min"``, ``Rate(5, per=60)``; 0 pauses,
            infinity (the default) lifts the limit.
        pacing: ``Pacing.SPREAD`` starts the tasks of an interval evenly over it, if they fit its permits, and so up to
            one interval late; ``Pacing.ON_TIME`` starts each at its due time.
        policy: how starts are limited in time: :class:`Paced`, :class:`Window` or :class:`Burst`.
        order: a key function of :class:`TaskView`, of which the smallest starts first, where more tasks are due than may;
            or :class:`Fair`, which gives each key its share.
        resources: rates of what starts take beside permits, such as tokens, by name; see ``cost=``.
        max_concurrency: how many tasks may run at once; a permit is taken only when a place is free.
        key_rate: the rate of each key, or a function of the key that tells it.
        key_concurrency: how many tasks of each key may run at once, or a function of the key; with ``RedisPeers`` in the whole
            group.
        max_pending: how many tasks may wait.
        key_max_pending: how many tasks of each key may wait.
        when_full: what becomes of a task beyond that.
        retry: how tasks that fail are tried again: a :class:`Retry`, an object of tenacity's, or None. By default those that
            raise :class:`RetryLater`, five times in all.
        adaptive: how the rate follows what the other side can take; None if it does not.
        penalty_max: seconds that the other side is obeyed at most, by :meth:`penalize` or ``RetryLater(after=)``.
        expires: seconds after its due time by which a task must start, where its own call says nothing; None for never. Not
            for the asyncio face, whose callbacks always come, as those of an event loop do.
        drain_timeout: seconds for which accepted tasks may go on when the executor is left; None for as long as they
            take. Set it in a server: a task due in an hour would hold its shutdown for an hour.
        early: whether a task may start anywhere in the interval of its due time, so up to one interval early.
        max_threads: worker threads at most, for ``in_thread=True``; 40 if None.
        thread_pool: a pool of your own in place of these threads, such as a ``ThreadPoolExecutor``. It is yours to shut down.
        peers: with whom the rate is shared, as for :class:`ExecutorManager`; not together with ``manager``, which has its own.
        manager: runs it on a timeline shared with others; it makes its own if None.

    Use it as an async context manager. Leaving it normally drains it, see :meth:`aclose`; leaving it by an exception
    cancels what waits and runs.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range, or the name is in use.
    """

    __slots__ = ()

    _make_manager = ExecutorManager

    @property
    def manager(self) -> ExecutorManager:
        """The manager that runs it; of its own if it was made without one."""
        manager: Any = self._manager
        return manager  # type: ignore[no-any-return]  # those of users are


# Errors about arguments, and help(), speak of the class that users know, not of the faces that it is made of.
for _class, _owners in ((RateLimitedExecutor, RateLimitedExecutor.__mro__[1:-1]), (ExecutorManager, (ManagerBase,))):
    for _owner in _owners:
        for _name, _member in vars(_owner).items():
            _function = unwrap(_member)  # behind a compiled body is the pure one, which says what is wrong
            if isfunction(_function):
                _member.__qualname__ = _function.__qualname__ = f"{_class.__qualname__}.{_name}"
RateLimitedExecutor.__init__.__annotations__["manager"] = "ExecutorManager | None"
