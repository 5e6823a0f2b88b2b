"""Types for annotations in users' code."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ratelimited_executor._core.ordering import Order as Order
from ratelimited_executor._core.rates import RateLike as RateLike

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Iterable
    from datetime import datetime, timedelta

__all__ = ["BatchOptions", "Order", "RateLike", "ScheduleOptions", "SubmitOptions"]


class SubmitOptions(TypedDict, total=False):
    """The keyword arguments of ``submit``."""

    priority: float
    expires: float | timedelta | None
    run_timeout: float | timedelta | None
    in_thread: bool
    name: str | None
    context: contextvars.Context | None


class ScheduleOptions(SubmitOptions, total=False):
    """The keyword arguments of ``schedule``."""

    delay: float | timedelta | None
    at: datetime | float | None


class BatchOptions(TypedDict, total=False):
    """The keyword arguments of ``schedule_many``."""

    delay: float | timedelta | None
    delays: Iterable[float] | None
    at: datetime | float | None
    over: float | timedelta | None
    count: int | None
    priority: float
    expires: float | timedelta | None
    results: bool
    name: str | None
    context: contextvars.Context | None
