"""Checks of the settings of an executor: each names the parameter and the remedy, and changes nothing."""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from ratelimited_executor._core.order.fair import Fair
from ratelimited_executor._core.permits.adaptive import Adaptive
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._runtime.arguments import callable_of, count_of, name_remedy, utf8_of

__all__ = [
    "check_adaptive",
    "check_name",
    "count_or_function",
    "order_of",
    "rate_or_function",
    "threads_of",
    "with_remedies",
]

F = TypeVar("F", bound=Callable[..., None])

_NOT_OF_THREADS: Final = {"ProcessPoolExecutor", "InterpreterPoolExecutor"}  # by name: importing them takes long
_OF_MANAGER: Final = ("interval", "clock", "precision")  # settings of the loop that executors share
_THREAD_COUNT: Final = 40  # maximum number of worker threads of one executor, as in anyio's own default


def with_remedies(init: F) -> F:
    """Let a constructor name the remedy for a keyword argument that it does not have, as ``schedule`` does."""
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def checked(*args: Any, **options: Any) -> None:
        unknown = [name for name in options if name not in known]
        name_remedy(unknown)
        for name in unknown:
            if name in _OF_MANAGER:
                raise TypeError(
                    f"unknown argument {name}=: it is a setting of the manager, ExecutorManager({name}=...), or "
                    f"BlockingManager({name}=...) without asyncio; pass that as manager="
                )
            raise TypeError(f"unknown argument {name}= of an executor")
        init(*args, **options)

    return checked  # type: ignore[return-value]  # it takes what the constructor takes


def check_name(name: Any) -> None:
    """Refuse a name that is not a str, is empty, or cannot be written to a log or sent to a server."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a str that is not empty, got {name!r}")
    utf8_of("name", name)


def threads_of(count: Any, pool: Any) -> tuple[int, concurrent.futures.Executor | None]:
    """Return the maximum number of the executor's own threads, and a pool to use instead of them or None.

    Raises:
        TypeError: if an argument has a wrong type, or both are given.
        ValueError: if the count is out of range.
    """
    if count is not None:
        count_of("max_threads", count, least=1)
    if pool is None:
        return _THREAD_COUNT if count is None else count, None
    if not isinstance(pool, concurrent.futures.Executor):
        raise TypeError(f"thread_pool must be a concurrent.futures.Executor of threads, got {pool!r}")
    if not _NOT_OF_THREADS.isdisjoint(kind.__name__ for kind in type(pool).__mro__):
        raise TypeError(f"thread_pool must run calls in threads of this interpreter, got {pool!r}")
    if count is not None:
        raise TypeError("max_threads and thread_pool exclude each other: a thread pool has its own limit")
    return _THREAD_COUNT, pool


def check_adaptive(adaptive: Any, rate: Rate) -> Adaptive | None:
    """Refuse a value that is not an ``Adaptive``, or one whose bounds exclude the initial rate."""
    if adaptive is None:
        return None
    if not isinstance(adaptive, Adaptive):
        raise TypeError(f"adaptive must be an Adaptive, got {adaptive!r}")
    if not adaptive.floor <= float(rate) <= adaptive.ceiling:
        raise ValueError(
            f"rate must be the initial rate for adaptive, from {adaptive.floor:g} to {adaptive.ceiling:g} permits a second, "
            f"got {rate!r}"
        )
    return adaptive


def order_of(order: Any) -> Any:
    """Return an order: a key function or a ``Fair``; a class, which is a likely mistake, is refused."""
    if isinstance(order, type):
        raise TypeError(f"order must be a function of a task, or a Fair, got the class {order.__name__}: call it first")
    return order if isinstance(order, Fair) else callable_of("order", order)


def rate_or_function(name: str, rate: Any) -> Any:
    """Return a rate, a function of a key that returns it, or None."""
    if rate is None or callable(rate):
        return rate
    _refuse_mapping(name, rate)
    try:
        return Rate.of(rate)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def count_or_function(name: str, count: Any) -> Any:
    """Return a count, a function of a key that returns it, or None."""
    if count is None or callable(count):
        return count
    _refuse_mapping(name, count)
    return count_of(name, count)


def _refuse_mapping(name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        raise TypeError(
            f"{name} must be one value for all keys, or a function of the key, got a mapping: pass its method get"
        )
