"""Orders: which task starts first where more are due than may start."""

from __future__ import annotations

from ratelimited_executor._core.order.fair import Fair
from ratelimited_executor._core.order.ordering import (
    Ageing,
    TaskView,
    default_order,
    earliest_due_first,
    latest_due_first,
)

__all__ = [
    "Ageing",
    "Fair",
    "TaskView",
    "default_order",
    "earliest_due_first",
    "latest_due_first",
]
