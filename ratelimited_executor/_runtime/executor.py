"""The executor as its users see it: every face on one object."""

from __future__ import annotations

from inspect import isfunction

from ratelimited_executor._runtime.faces.cycles import CycleFace
from ratelimited_executor._runtime.faces.limiter import LimiterFace
from ratelimited_executor._runtime.faces.loop import LoopFace
from ratelimited_executor._runtime.faces.repeating import RepeatingFace

__all__ = ["RateLimitedExecutor"]


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
        key_concurrency: how many tasks of each key may run at once, or a function of the key.
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
        manager: runs it on a timeline shared with others; it makes its own if None.

    Use it as an async context manager. Leaving it normally drains it, see :meth:`aclose`; leaving it by an exception
    cancels what waits and runs.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range, or the name is in use.
    """

    __slots__ = ()


# Errors about arguments, and help(), speak of the class that users know, not of the faces that it is made of.
for _owner in RateLimitedExecutor.__mro__[1:-1]:
    for _name, _member in vars(_owner).items():
        if isfunction(_member):
            _member.__qualname__ = f"{RateLimitedExecutor.__qualname__}.{_name}"
