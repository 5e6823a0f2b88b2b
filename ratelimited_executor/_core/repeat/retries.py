"""When a failed task is retried: attempts, back-off and jitter.

The pause before retry n (1, 2, ...) is drawn uniformly from 0 to ``min(cap, base x 2^(n-1))``: "full jitter", the best
way to separate tasks that failed together. Source: M. Brooker, "Exponential backoff and jitter", AWS architecture blog,
2015. The remote service's ``after`` is a minimum, to which the jitter is added, because all refused callers got the
same time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Attempts", "Retry"]

_DOUBLINGS_MAX: Final = 60  # of the base; beyond it, only the cap applies


class Retry:
    """Retries a task after the errors of ``on``: ``Retry(4, on=OSError)``; without it, only after ``RetryLater``.

    Args:
        attempts: the number of attempts, including the first, >= 1; ``expires`` of a task applies to each.
        base: seconds; the pause before the first retry is drawn from 0 to this, > 0.
        cap: the largest upper end of that range in seconds, >= base.
        on: exceptions, in addition to ``RetryLater``, after which a task is retried: classes, or a function of the exception.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if it is out of range.
    """

    __slots__ = ("attempts", "base", "cap", "on")

    def __init__(
        self,
        attempts: int = 5,
        *,
        base: DurationLike = 1.0,
        cap: DurationLike = 60.0,
        on: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] = (),
    ) -> None:
        if isinstance(attempts, bool) or not isinstance(attempts, int):
            raise TypeError(f"attempts must be an integer, got {attempts!r}")
        if attempts < 1:
            raise ValueError(f"attempts must be >= 1, got {attempts!r}")
        base_seconds = seconds_of("base", base)
        cap_seconds = seconds_of("cap", cap)
        if cap_seconds < base_seconds:
            raise ValueError(f"cap must be >= base, {base!r}, got {cap!r}")
        is_function = callable(on) and not isinstance(on, type)
        if not (is_function or all(_is_error(kind) for kind in (on if isinstance(on, tuple) else (on,)))):
            raise TypeError(f"on must be exception classes or a function of an exception, got {on!r}")
        self.attempts = attempts
        self.base = base_seconds
        self.cap = cap_seconds
        self.on = on

    def wants(self, error: BaseException) -> bool:
        """True if ``on`` includes an error."""
        if isinstance(self.on, (tuple, type)):
            return isinstance(error, self.on)
        return bool(self.on(error))

    def pause(self, retry_number: int, drawn: float) -> float:
        """Return the seconds before a retry.

        Args:
            retry_number: 1 before the second attempt, and so on.
            drawn: a random number from 0 to 1.
        """
        return drawn * min(self.cap, self.base * 2.0 ** min(retry_number - 1, _DOUBLINGS_MAX))

    def __repr__(self) -> str:
        return f"Retry({self.attempts}, base={self.base:g}, cap={self.cap:g}, on={self.on!r})"


class Attempts:
    """The attempts of one task.

    Attributes:
        policy: decides how often the task may be tried.
        count: the number of failed attempts.
        first: loop time at which the first attempt started.
        within: seconds after the first due time by which the last attempt must have ended; None for no such deadline.
        expires: seconds after its due time by which each attempt must start, as passed by the caller.
    """

    __slots__ = ("_until", "count", "expires", "first", "policy", "within")

    def __init__(self, policy: object, *, within: float | None = None, expires: float | None = None) -> None:
        self.policy = policy
        self.count = 0
        self.first: float | None = None
        self.within = within
        self.expires = expires
        self._until: float | None = None

    def until(self, due: float) -> float:
        """Return the loop time by which the last attempt must have ended; infinity without a deadline.

        Args:
            due: loop time at which the current attempt was due; used if it is the first.
        """
        if self.within is None:
            return math.inf
        return due + self.within if self._until is None else self._until

    def expires_by(self, due: float) -> float | None:
        """Return the seconds after a due time by which another attempt must start; None if it need not."""
        assert self._until is not None
        left = self._until - due
        return left if self.expires is None else min(self.expires, left)

    def failed(self, due: float) -> None:
        """Record the failure of an attempt that was due at a loop time."""
        self._until = None if self.within is None else self.until(due)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
