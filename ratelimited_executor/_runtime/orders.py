"""Orders of the user, as the queue asks them: isolated from context variables, and reported where they raise."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING

from ratelimited_executor._core.fair import Fair
from ratelimited_executor._core.ordering import default_order

if TYPE_CHECKING:
    from ratelimited_executor._core.ordering import Order
    from ratelimited_executor._runtime.engine import Engine

__all__ = ["isolated", "report_order_error"]


def isolated(order: Order | Fair) -> Order | Fair:
    """Let an order neither see nor leave context variables; the default one has none, and the queue knows it."""
    if isinstance(order, Fair):
        return order.wrapped(lambda function: lambda value: Context().run(function, value))
    return order if order is default_order else lambda task: Context().run(order, task)


def report_order_error(engine: Engine, error: BaseException) -> None:
    """Warn of code of the user that raised while the next task was being chosen."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        engine.loop.call_soon(_leave, error)  # once the tasks that are being ordered have their places
        return
    message = "%s: the order raised %r; the task goes last"
    if isinstance(engine.queue.order, Fair):
        message = "%s: by or weights of Fair raised %r; the task goes by no key, or by a weight of 1"
    engine.runner.warnings.warn("order", message, engine.name, error)


def _leave(error: BaseException) -> None:
    raise error
