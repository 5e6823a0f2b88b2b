"""The executor with all its faces on one object, and the manager that creates executors."""

from __future__ import annotations

from inspect import isfunction, unwrap
from typing import Any

from ratelimited_executor._runtime.faces.cycles import CycleFace
from ratelimited_executor._runtime.faces.limiter import LimiterFace
from ratelimited_executor._runtime.faces.loop import LoopFace
from ratelimited_executor._runtime.faces.repeating import RepeatingFace
from ratelimited_executor._runtime.life.manager import ManagerBase

__all__ = ["ExecutorManager", "RateLimitedExecutor"]


class ExecutorManager(ManagerBase["RateLimitedExecutor"]):
    """Owns the interval runner, the timeline and the peers of its executors.

    Args:
        interval: seconds in one interval, from 0.01 to 3600: the span over which tasks are spread.
        clock: the source of time; the event loop's by default.
        peers: the processes that share the rates; none by default.
        precision: the shortest time between two wake-ups of the event loop by timers, in seconds, 0 to 1. Tasks that fall due
            within it start together: 0 paces every start separately, to tens of microseconds where the system has timer
            descriptors (Linux); a larger value costs less CPU. By default half a millisecond; for executors without a limit,
            which have nothing to pace, one millisecond, and three while more than 64 tasks a wake-up fall due.

    Use it as an async context manager; leaving it normally closes every executor as leaving that executor would.

    >>> async def main():
    ...     async with ExecutorManager() as manager:
    ...         mail = manager.executor("mail", rate=100)
    ...         sms = manager.executor("sms", rate="5/min")
    """

    __slots__ = ()

    def executor(self, name: str, **options: Any) -> RateLimitedExecutor:
        """Create an executor of this manager; it starts with the manager, or at once if the manager has started.

        Args:
            name: its name, different from that of every other open executor of the manager.
            options: as for :class:`RateLimitedExecutor`.

        Raises:
            ValueError: if an open executor has this name.
            ExecutorStoppedError: if the manager is closed.
        """
        return RateLimitedExecutor(name, manager=self, **options)

    @property
    def executors(self) -> dict[str, RateLimitedExecutor]:
        """The open executors by name."""
        return dict(self._executors)


class RateLimitedExecutor(CycleFace, RepeatingFace, LoopFace, LimiterFace):
    """Starts callables at or after their due time, never faster than its rate, the most important first.

    Args:
        name: its name, different from that of every other open executor of its manager; appears in logs and errors.
        rate: permits over time, as ``Rate.of`` takes it: ``100`` a second, ``"5/min"``, ``Rate(5, per=60)``; 0 pauses,
            infinity (the default) lifts the limit.
        pacing: ``Pacing.SPREAD`` starts the tasks of an interval evenly over it, if they fit its permits, and so up to
            one interval late; ``Pacing.ON_TIME`` starts each at its due time.
        policy: limits starts over time: :class:`Paced`, :class:`Window` or :class:`Burst`.
        order: a key function of :class:`TaskView`; the smallest key starts first where more tasks are due than may start. Or
            :class:`Fair`, which gives each key its share.
        resources: the rates of resources that starts use beside permits, such as tokens, by name; see ``cost=``.
        max_concurrency: how many tasks may run at once; a permit is used only while a place is free.
        key_rate: the rate of each key, or a function of the key that returns it.
        key_concurrency: how many tasks of each key may run at once, or a function of the key; with ``RedisPeers`` in the whole
            group.
        max_pending: how many tasks may wait.
        key_max_pending: how many tasks of each key may wait.
        max_keys: how many keys may be remembered because of their rates or penalties, at about 180 bytes each beside the
            key; while there are so many, tasks of other keys wait.
        when_full: what happens to a task beyond ``max_pending`` or ``key_max_pending``.
        retry: how tasks that fail are retried: a :class:`Retry`, an object of tenacity's, or None. By default those that
            raise :class:`RetryLater`, five times in all.
        adaptive: adjusts the rate to what the remote service accepts; None for a fixed rate.
        penalty_max: the longest pause, in seconds, that :meth:`penalize` or ``RetryLater(after=)`` can cause.
        expires: seconds after its due time within which a task must start, unless its call says otherwise; None for never.
            It does not apply to the asyncio face, whose callbacks always run, as on an event loop.
        drain_timeout: seconds for which accepted tasks may continue when the executor is left; None for as long as they
            take. Set it in a server: a task due in an hour would hold its shutdown for an hour.
        early: True if a task may start anywhere in the interval of its due time, so up to one interval early.
        max_threads: the maximum number of worker threads for ``in_thread=True``; 40 if None.
        thread_pool: a pool of your own instead of these threads, such as a ``ThreadPoolExecutor``. You shut it down.
        peers: share the rate with other processes, as for :class:`ExecutorManager`; not together with ``manager``.
        manager: runs the executor on a timeline shared with others; None creates a manager.

    Use it as an async context manager. Leaving it normally drains it, see :meth:`aclose`; leaving it by an exception
    cancels waiting and running tasks.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range, or the name is in use.
    """

    __slots__ = ()

    _make_manager = ExecutorManager

    @property
    def manager(self) -> ExecutorManager:
        """The manager that runs the executor; its own if it was created without one."""
        manager: Any = self._manager
        return manager  # type: ignore[no-any-return]  # those of users are


# Errors about arguments, and help(), speak of the class that users know, not of the faces that it is made of.
for _class, _owners in ((RateLimitedExecutor, RateLimitedExecutor.__mro__[1:-1]), (ExecutorManager, (ManagerBase,))):
    for _owner in _owners:
        for _name, _member in vars(_owner).items():
            _function = unwrap(_member)  # behind a compiled body is the pure one, which says what is wrong
            if isfunction(_function):
                _member.__qualname__ = _function.__qualname__ = f"{_class.__qualname__}.{_name}"
unwrap(RateLimitedExecutor.__init__).__annotations__["manager"] = "ExecutorManager | None"
