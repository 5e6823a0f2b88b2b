"""Retries: what to do when the other side says no."""

from __future__ import annotations

from ratelimited_executor._core.repeat.retries import Retry
from ratelimited_executor._runtime.repeat.retrying import parse_retry_after
from ratelimited_executor.exceptions import RetryLater

__all__ = [
    "Retry",
    "RetryLater",
    "parse_retry_after",
]
