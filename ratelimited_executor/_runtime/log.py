"""One logger for the whole library, and warnings that cannot flood it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LOGGER", "Masked", "RateLimitedWarnings"]

LOGGER: Final = logging.getLogger("ratelimited_executor")
_QUIET_SECONDS: Final = 10.0  # between two warnings of one kind


class Masked:
    """A value for a log line, which writes its ``repr`` without passwords in URLs, as pages and commands do."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        from ratelimited_executor._core.urls import masked_text  # noqa: PLC0415  # few programs log one

        return masked_text(repr(self._value))


class RateLimitedWarnings:
    """Warnings of several kinds, each at most once in ten seconds; the next one counts those suppressed.

    Args:
        monotonic: returns the time in seconds.
        logger: the logger.
    """

    def __init__(self, monotonic: Callable[[], float], logger: logging.Logger = LOGGER) -> None:
        self._monotonic = monotonic
        self._logger = logger
        self._last: dict[str, tuple[float, int]] = {}  # kind -> when the last one was logged, how many were suppressed

    def warn(self, kind: str, message: str, *args: Any) -> None:
        """Log a warning of a kind, unless one was logged within the last ten seconds."""
        now = self._monotonic()
        last, kept_back = self._last.get(kind, (-_QUIET_SECONDS * 2, 0))
        if now - last < _QUIET_SECONDS and kind in self._last:
            self._last[kind] = last, kept_back + 1
            return
        self._last[kind] = now, 0
        if kept_back:
            message += f" ({kept_back} more of this kind since the last warning)"
        self._logger.warning(message, *args)
