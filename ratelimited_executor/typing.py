"""Types for annotations in users' code."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from ratelimited_executor._core.order.ordering import Order as Order
from ratelimited_executor._core.permits.rates import RateLike as RateLike

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from datetime import datetime

    from ratelimited_executor._core.repeat.retries import Retry
    from ratelimited_executor._runtime.limits.quota import Quota
    from ratelimited_executor._runtime.limits.slots import Slots

__all__ = [
    "BatchOptions",
    "CostLike",
    "DurationLike",
    "Order",
    "RateLike",
    "RatesLike",
    "ScheduleOptions",
    "SubmitOptions",
]

DurationLike: TypeAlias = float | timedelta | str  # no text, as those who read annotations at runtime lack its names
RatesLike: TypeAlias = "RateLike | Quota | Sequence[RateLike | Quota]"
CostLike: TypeAlias = "int | Mapping[str, int]"


class SubmitOptions(TypedDict, total=False):
    """The keyword arguments of ``submit``."""

    priority: float
    expires: DurationLike | None
    run_timeout: DurationLike | None
    in_thread: bool
    name: str | None
    context: contextvars.Context | None
    key: Hashable
    cost: CostLike
    retry: Retry | Any
    deadline: DurationLike | None
    slots: Slots | Sequence[Slots] | None


class ScheduleOptions(SubmitOptions, total=False):
    """The keyword arguments of ``schedule``."""

    delay: DurationLike | None
    at: datetime | float | None


class BatchOptions(TypedDict, total=False):
    """The keyword arguments of ``schedule_many``."""

    delay: DurationLike | None
    delays: Iterable[float] | None
    at: datetime | float | None
    over: DurationLike | None
    count: int | None
    priority: float
    expires: DurationLike | None
    results: bool
    name: str | None
    context: contextvars.Context | None
    key: Hashable | Callable[[Any], Hashable]
    cost: CostLike | Callable[[Any], CostLike]
    retry: Retry | Any
