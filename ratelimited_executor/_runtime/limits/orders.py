"""Orders of the user, isolated from context variables; their errors are logged."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING

from ratelimited_executor._core.order.fair import Fair
from ratelimited_executor._core.order.ordering import default_order

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ratelimited_executor._core.order.ordering import Order

__all__ = ["isolated", "order_reporter"]


def isolated(order: Order | Fair) -> Order | Fair:
    """Isolate an order from context variables in both directions; the default order needs no wrapper."""
    if isinstance(order, Fair):
        return order.wrapped(lambda function: lambda value: Context().run(function, value))
    return order if order is default_order else lambda task: Context().run(order, task)


def order_reporter(
    queue_order: Callable[[], Order | Fair], loop: asyncio.AbstractEventLoop, warn: Callable[..., None]
) -> Callable[[BaseException], None]:
    """Return a function that logs errors of the user's code raised while the next task was chosen.

    Args:
        queue_order: returns the order in force.
        loop: receives errors that end the program.
        warn: logs a warning, like ``RateLimitedWarnings.warn``.
    """

    def report(error: BaseException) -> None:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            loop.call_soon(_leave, error)  # once the tasks that are being ordered are in place
        elif isinstance(queue_order(), Fair):
            warn("order", "by or weights of Fair raised %r; the task has no key, or its key has weight 1", error)
        else:
            warn("order", "the order raised %r; the task goes last", error)

    return report


def _leave(error: BaseException) -> None:
    raise error
