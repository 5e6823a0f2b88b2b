"""Whether a task that has failed is tried again, and after what pause: by our own policy, or by one of tenacity's."""

from __future__ import annotations

import asyncio
import math
import random
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.retries import Retry
from ratelimited_executor._runtime.orders import report_order_error
from ratelimited_executor.exceptions import RetryLater

if TYPE_CHECKING:
    from ratelimited_executor._runtime.engine import Engine

_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")

__all__ = ["check_retry", "parse_retry_after", "pause_before_retry", "random_for"]


def random_for(loop: asyncio.AbstractEventLoop) -> random.Random:
    """Return what jitter is drawn from: a loop's attribute ``random`` if it has one, so that virtual time can be repeated."""
    return getattr(loop, "random", None) or random.Random()  # noqa: S311  # nobody gains by guessing it


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


def pause_before_retry(
    policy: Any, count: int, error: BaseException, engine: Engine, started: float | None
) -> float | None:
    """Return the seconds to wait before the next attempt; None if there is none.

    Args:
        policy: what :func:`check_retry` has let through.
        count: attempts so far, this one included.
        error: what the last one raised.
        engine: of the task.
        started: loop time at which the first one started.
    """
    after = 0.0
    is_told = isinstance(error, RetryLater)
    if isinstance(error, RetryLater) and error.after is not None:
        after = min(error.after, engine.overload.penalty_max)
    try:
        if isinstance(policy, Retry):
            if count >= policy.attempts or not (is_told or (isinstance(error, Exception) and policy.wants(error))):
                return None
            return after + policy.pause(count, engine.overload.random.random())
        return _by_tenacity(policy, count, error, after, engine, started)
    except Exception as raised:  # noqa: BLE001  # a policy is user code: if it cannot say, the task has failed
        report_order_error(engine, raised)
        return None


def _by_tenacity(
    policy: Any, count: int, error: BaseException, after: float, engine: Engine, started: float | None
) -> float | None:
    from tenacity import RetryCallState  # noqa: PLC0415  # only those have it who hand in such an object

    state = RetryCallState(retry_object=policy, fn=None, args=(), kwargs={})
    state.start_time = engine.monotonic() if started is None else started
    state.attempt_number = count
    state.set_exception((type(error), error, error.__traceback__))
    state.outcome_timestamp = engine.monotonic()
    if not isinstance(error, RetryLater):
        answer = policy.retry(state)
        if asyncio.iscoroutine(answer):
            answer.close()
            raise TypeError(f"the condition of {policy!r} is async: it must be able to say at once")
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
        TypeError: if it is no text.

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
        raise TypeError(f"value must be the text of a header, or None, got {value!r}")
    text = value.strip()
    if _SECONDS.fullmatch(text):
        seconds = float(text)
        return seconds if seconds < math.inf else None
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    present = datetime.now(UTC).timestamp() if now is None else now
    return max(0.0, when.timestamp() - present)
