"""Decides which failed tasks are retried, and after what pause: by our policy, or by one of tenacity's."""

from __future__ import annotations

import asyncio
import math
import re
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.queue.records import Options, TriedOnce
from ratelimited_executor._core.repeat.retries import Attempts, Retry
from ratelimited_executor._kernel.records import Record
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.task.batch_items import BatchItem
from ratelimited_executor._runtime.task.deferred import LapsedStartError
from ratelimited_executor.exceptions import RetryLater

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable

    from ratelimited_executor._runtime.task.deferred import DeferredStart
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor._runtime.time.clock import Moments
    from ratelimited_executor._runtime.time.hooks import RandomNumbers

_SECONDS: Final = r"[0-9]+(\.[0-9]+)?"

__all__ = ["Retries", "check_retry", "parse_retry_after", "pause_before_retry"]


def check_retry(name: str, policy: Any) -> Any:
    """Return a policy: a ``Retry``, an object of tenacity's (with ``retry``, ``stop`` and ``wait``), or None.

    Raises:
        TypeError: if it is anything else.
    """
    if policy is None or isinstance(policy, Retry):
        return policy
    if isinstance(policy, type) or not all(callable(getattr(policy, part, None)) for part in ("retry", "stop", "wait")):
        raise TypeError(
            f"{name} must be a Retry, an object such as tenacity.AsyncRetrying(...), or None, got {policy!r}"
        )
    return policy


class Retries:
    """The retries of one executor.

    Args:
        policy: the policy of tasks that bring none of their own; None if they are not retried.
        engine: accepts tasks that wait again.
        moments: the source of time.
        numbers: the random numbers for jitter; different in every run if None.
        penalty_max: the longest pause, in seconds, that the remote service may ask for.
        overloaded: called when the remote service signals an overload.
        on_key_end: called at the end of an attempt that is followed by another, as at the end of a task.
        warn: logs a warning, like ``RateLimitedWarnings.warn``, of a policy that raises.

    Attributes:
        count: attempts that have failed and were, or will be, followed by another.
    """

    __slots__ = (
        "_engine", "_moments", "_numbers", "_on_key_end", "_overloaded", "_warn", "count", "penalty_max", "policy",
    )  # fmt: skip

    def __init__(
        self,
        policy: Any,
        *,
        engine: Intake,
        moments: Moments,
        numbers: RandomNumbers | None,
        penalty_max: float,
        overloaded: Callable[[], None],
        on_key_end: Callable[[Any], None],
        warn: Callable[..., None],
    ) -> None:
        self.policy = policy
        self.penalty_max = penalty_max
        self.count = 0
        self._engine = engine
        self._moments = moments
        self._numbers = numbers
        self._overloaded = overloaded
        self._on_key_end = on_key_end
        self._warn = warn

    def again(self, owner: Any, error: BaseException, origin: contextvars.Context | None) -> bool:
        """Make a failed task wait for another attempt; return False if it is not to be retried.

        Args:
            owner: the owner of the task.
            error: the exception that it raised.
            origin: the context variables that it was scheduled with.
        """
        if type(owner) is BatchItem:
            return self._item_again(owner, error)
        if isinstance(error, LapsedStartError):
            self.wait_anew(owner, error.start, origin)
            return True
        return isinstance(owner, Record) and self._record_again(owner, error, origin)

    def _record_again(self, record: Any, error: BaseException, origin: contextvars.Context | None) -> bool:
        options = record._options
        if isinstance(error, RetryLater):
            self._overloaded()
        if isinstance(record._call, TriedOnce):
            return False
        attempts = None if options is None else options.attempts
        policy = self.policy if attempts is None else attempts.policy
        if policy is None or self._engine.queue.is_halted:
            return False
        count = 1 if attempts is None else attempts.count + 1
        first = record._context if attempts is None or attempts.first is None else attempts.first
        pause = self._pause(policy, count, error, first, record.name)
        now = self._moments.monotonic()
        if pause is None or (attempts is not None and now + pause >= attempts.until(record._due)):
            return False
        self._attempt_ended(record, error)
        options = _own_options(record)
        if options.attempts is None:
            options.attempts = Attempts(policy)
        options.attempts.count = count
        options.attempts.first = first
        options.attempts.failed(record._due)
        if options.attempts.within is not None:
            options.expires = options.attempts.expires_by(now + pause)
        options.wall = None
        _uncharge(options)
        record._wait_again(now + pause, origin)
        self.count += 1
        engine = self._engine
        engine.now()  # it may be due in another interval
        engine.queue.add_record(record)
        self._added(record._due)
        return True

    def wait_anew(self, record: Any, start: DeferredStart, origin: contextvars.Context | None) -> None:
        """Return a task to its place in the queue: its start has lapsed before it took effect, and never counted.

        Args:
            record: the record of the task.
            start: the start.
            origin: the context variables that it was scheduled with.
        """
        engine = self._engine
        start.void()
        engine.accounts.started_count -= 1
        self._on_key_end(record)
        if engine.queue.is_halted:
            _close(start.resumed)
            engine.accounts.end(record, TaskState.CANCELLED, None)
            return
        options = _own_options(record)
        options.resumed = start.resumed
        _uncharge(options)
        if start.resumed is not None:
            record._on_end(lambda _: _close(options.resumed))
        record._wait_anew(origin)  # noqa: SLF001  # a record of ours
        engine.now()  # another interval may have begun
        engine.queue.return_record(record)
        engine.wake()
        engine.accounts.notify_waiters()

    def _item_again(self, owner: BatchItem, error: BaseException) -> bool:
        """Make a failed task of a batch wait for another attempt, likewise."""
        if isinstance(error, RetryLater):
            self._overloaded()
        handle, index = owner.batch, owner.index
        if handle.retry is None or self._engine.queue.is_halted:
            return False
        attempts = handle._attempts.pop(index, None) or Attempts(handle.retry)
        now = self._moments.monotonic()
        if attempts.first is None:
            attempts.first = now
        attempts.count += 1
        pause = self._pause(handle.retry, attempts.count, error, attempts.first, f"{handle.name}[{index}]")
        if pause is None:
            return False
        self._attempt_ended(owner, error)
        handle._attempts[index] = attempts
        self.count += 1
        engine = self._engine
        engine.now()
        source = owner.source.again(index, now + pause)
        handle._take_back(source, owner.items)
        engine.queue.add_batch(source, joined=source.first < engine.queue.interval_end)
        self._added(source.first)
        return True

    def _attempt_ended(self, owner: Any, error: BaseException) -> None:
        """Record that an attempt has failed, and is followed by another."""
        self._on_key_end(owner)
        accounts = self._engine.accounts
        if accounts.on_retried is not None:
            accounts.on_retried(owner)
        if accounts.on_failed is not None:
            accounts.on_failed(owner, error, TaskState.WAITING)

    def _added(self, due: float) -> None:
        """Record that a task that was accepted before waits again."""
        engine = self._engine
        engine.queue.is_changed = True
        engine.wake_for(due)
        engine.accounts.notify_waiters()

    def _pause(self, policy: Any, count: int, error: BaseException, first: float | None, name: str) -> float | None:
        """Return the seconds to wait before the next attempt; None if there is none.

        Args:
            policy: as returned by :func:`check_retry`.
            count: attempts so far, this one included.
            error: the exception of the last one.
            first: loop time at which the first one started.
            name: the name of the task.
        """
        if self._numbers is None:
            import random  # noqa: PLC0415  # most executors have no failures

            self._numbers = random.Random()  # noqa: S311  # nobody gains by guessing it
        try:
            return pause_before_retry(
                policy,
                count,
                error,
                first=first,
                now=self._moments.monotonic(),
                numbers=self._numbers,
                penalty_max=self.penalty_max,
            )
        except Exception as raised:  # noqa: BLE001  # a policy is user code: if it raises, the task has failed
            self._warn("retry", "the retry policy of %s raised %r; the task is not retried", name, raised)
            return None


def _own_options(record: Any) -> Options:
    """Return the options of a record, made its own if it has none or shares them."""
    if type(record._options) is not Options:
        record._options = Options(key=record._key)
    options: Options = record._options
    return options


def _uncharge(options: Options) -> None:
    """Prepare the options of a task that has started for another start."""
    if options.charge is not None:
        options.charge.receipts = None
        options.charge.needs = options.charge.reserved
    if options.line is not None:
        options.line.waiting_count += 1


def _close(resumed: tuple[Any, contextvars.Context] | None) -> None:
    """Close the coroutine of a task that will not run, else Python warns that it was never awaited."""
    if resumed is not None and asyncio.iscoroutine(resumed[0]):
        resumed[0].close()


def pause_before_retry(
    policy: Any,
    count: int,
    error: BaseException,
    *,
    first: float | None,
    now: float,
    numbers: RandomNumbers,
    penalty_max: float = math.inf,
) -> float | None:
    """Return the seconds to wait before the next attempt; None if there is none.

    Args:
        policy: as returned by :func:`check_retry`, and not None.
        count: attempts so far, this one included.
        error: the exception of the last one.
        first: loop time at which the first one started; None if that is not known.
        now: the loop time.
        numbers: the random numbers for jitter.
        penalty_max: the longest pause, in seconds, that the remote service may ask for.

    Raises:
        Exception: any exception of a policy, which is user code.
    """
    is_told = isinstance(error, RetryLater)
    after = min(error.after, penalty_max) if isinstance(error, RetryLater) and error.after is not None else 0.0
    if isinstance(policy, Retry):
        if count >= policy.attempts or not (is_told or (isinstance(error, Exception) and policy.wants(error))):
            return None
        return after + policy.pause(count, numbers.random())
    return _pause_by_tenacity(policy, count, error, after, first=first, now=now)


def _pause_by_tenacity(
    policy: Any, count: int, error: BaseException, after: float, *, first: float | None, now: float
) -> float | None:
    from tenacity import RetryCallState  # noqa: PLC0415  # it is installed only where such an object exists

    state = RetryCallState(retry_object=policy, fn=None, args=(), kwargs={})
    state.start_time = now if first is None else first
    state.attempt_number = count
    state.set_exception((type(error), error, error.__traceback__))
    state.outcome_timestamp = now
    if not isinstance(error, RetryLater):
        answer = policy.retry(state)
        if asyncio.iscoroutine(answer):
            answer.close()
            raise TypeError(f"the condition of {policy!r} is async: it must be a plain function")
        if not answer:
            return None
    pause = max(after, float(policy.wait(state) if policy.wait else 0.0))
    state.upcoming_sleep = pause
    return None if policy.stop(state) else pause


def parse_retry_after(value: str | None, *, now: float | None = None) -> float | None:
    """Read a ``Retry-After`` header: seconds, or an HTTP date (RFC 9110, section 10.2.3).

    Args:
        value: the header; None if there is none.
        now: epoch seconds; the system's clock if None.

    Returns:
        Seconds from now, >= 0, with a fraction if the server sends one; None if the header is missing or says nothing of use.

    Raises:
        TypeError: if it is not a text.

    >>> parse_retry_after("120")
    120.0
    >>> parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now=1445412400)
    80.0
    >>> parse_retry_after("soon") is None
    True
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"value must be the value of a header, or None, got {value!r}")
    text = value.strip()
    if re.fullmatch(_SECONDS, text):
        seconds = float(text)
        return seconds if seconds < math.inf else None
    from datetime import UTC, datetime  # noqa: PLC0415  # with the next, it takes a tenth of the time of a start
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # as above

    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    present = datetime.now(UTC).timestamp() if now is None else now
    return max(0.0, when.timestamp() - present)
