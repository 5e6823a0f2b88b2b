"""A rate-limited scheduled executor for asyncio: millions of pending calls, started on time, under a rate.

Names are imported when they are first used, so that ``import ratelimited_executor`` costs next to nothing: the pytest
plugin lives in this package, and every pytest run of its users imports it.

The names that most programs need are here. The others are in public modules, each with one topic:

================  ==========================================================
module            names
================  ==========================================================
``policies``      rates, quotas, and what they mean for starts close together
``orders``        which task starts first
``handles``       what the methods of an executor return
``cycles``        the handle of ``every``, and the stores of its progress
``peers``         ways to share a rate between processes
``retries``       retries, and the parser of ``Retry-After``
``insight``       statistics, explanations, observers
``exceptions``    all errors
``abc``           protocols that a program may implement
``typing``        types for annotations
``slots``         pools of slots: limits on how many holders work at once
``blocking``      a scheduled executor, permits and slots for threads without an event loop
``durable``       tasks that survive the process
``front``         an HTTP front for durable tasks
``dashboard``     a live page of executors
``metrics``       metrics for monitoring, through OpenTelemetry
``tracing``       spans of tasks, through OpenTelemetry
``spread``        offsets and slots of keys, in a cycle
``simulation``    the simulator
``testing``       the test kit: virtual time, an audit of the rate
================  ==========================================================
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it; ``typing`` takes longer to load than all the rest of a plain import
if TYPE_CHECKING:
    from typing import Any, Final

    from ratelimited_executor._core.order.ordering import default_order as default_order
    from ratelimited_executor._core.permits.rates import Rate as Rate
    from ratelimited_executor._core.repeat.repeating import MissedTick as MissedTick
    from ratelimited_executor._core.repeat.repeating import OnError as OnError
    from ratelimited_executor._core.repeat.retries import Retry as Retry
    from ratelimited_executor._kernel.choice import kernel as kernel
    from ratelimited_executor._kernel.pacing import Pacing as Pacing
    from ratelimited_executor._kernel.states import TaskState as TaskState
    from ratelimited_executor._runtime.life.executor import ExecutorManager as ExecutorManager
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor as RateLimitedExecutor
    from ratelimited_executor._runtime.limits.policy import Burst as Burst
    from ratelimited_executor._runtime.limits.policy import Paced as Paced
    from ratelimited_executor._runtime.limits.policy import WhenFull as WhenFull
    from ratelimited_executor._runtime.limits.policy import Window as Window
    from ratelimited_executor._runtime.repeat.repeating import RepeatingHandle as RepeatingHandle
    from ratelimited_executor._runtime.task.batches import BatchHandle as BatchHandle
    from ratelimited_executor._runtime.task.batches import BatchSummary as BatchSummary
    from ratelimited_executor._runtime.task.handles import TaskHandle as TaskHandle
    from ratelimited_executor._runtime.task.permit import Permit as Permit
    from ratelimited_executor.exceptions import BacklogFullError as BacklogFullError
    from ratelimited_executor.exceptions import ExecutorStoppedError as ExecutorStoppedError
    from ratelimited_executor.exceptions import RateLimitedExecutorError as RateLimitedExecutorError
    from ratelimited_executor.exceptions import RetryLater as RetryLater
    from ratelimited_executor.exceptions import RunTimeoutError as RunTimeoutError
    from ratelimited_executor.exceptions import TaskDroppedError as TaskDroppedError
    from ratelimited_executor.exceptions import TaskExpiredError as TaskExpiredError

__version__: str  # read from the metadata of the distribution when somebody asks

__all__ = [
    "BacklogFullError",
    "BatchHandle",
    "BatchSummary",
    "Burst",
    "ExecutorManager",
    "ExecutorStoppedError",
    "MissedTick",
    "OnError",
    "Paced",
    "Pacing",
    "Permit",
    "Rate",
    "RateLimitedExecutor",
    "RateLimitedExecutorError",
    "RepeatingHandle",
    "Retry",
    "RetryLater",
    "RunTimeoutError",
    "TaskDroppedError",
    "TaskExpiredError",
    "TaskHandle",
    "TaskState",
    "WhenFull",
    "Window",
    "default_order",
    "kernel",
]

_MODULES: Final = {
    "_core.order.ordering": ("default_order",),
    "_core.permits.rates": ("Rate",),
    "_core.repeat.repeating": ("MissedTick", "OnError"),
    "_core.repeat.retries": ("Retry",),
    "_kernel.choice": ("kernel",),
    "_kernel.pacing": ("Pacing",),
    "_kernel.states": ("TaskState",),
    "_runtime.life.executor": ("ExecutorManager", "RateLimitedExecutor"),
    "_runtime.limits.policy": ("Burst", "Paced", "WhenFull", "Window"),
    "_runtime.repeat.repeating": ("RepeatingHandle",),
    "_runtime.task.batches": ("BatchHandle", "BatchSummary"),
    "_runtime.task.handles": ("TaskHandle",),
    "_runtime.task.permit": ("Permit",),
    "exceptions": (
        "BacklogFullError",
        "ExecutorStoppedError",
        "RateLimitedExecutorError",
        "RetryLater",
        "RunTimeoutError",
        "TaskDroppedError",
        "TaskExpiredError",
    ),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}
# Names that were here, too: until 0.2.
_MOVED: Final = {
    "abc": ("Clock", "Fleet", "Observer", "Peers", "Progress", "TaskStore"),
    "cycles": ("CycleHandle", "CycleStatistics", "MemoryProgress", "RedisProgress", "SQLiteProgress"),
    "exceptions": (
        "ExecutorNotStartedError",
        "IllegalTransitionError",
        "SlotLostError",
        "StoreUnavailableError",
        "WrongLoopError",
    ),
    "handles": ("CallHandle", "FuturesFace", "Outcome"),
    "insight": ("Explanation", "Hold", "Kernel", "LimitStatistics", "Observation", "Statistics", "observe"),
    "orders": ("Ageing", "Fair", "TaskView", "earliest_due_first", "latest_due_first"),
    "peers": (
        "FilePeers",
        "FleetStatistics",
        "GroupLimit",
        "Outage",
        "PeerState",
        "PostgresPeers",
        "RedisPeers",
        "StaticPeers",
    ),
    "policies": ("Adaptive", "Quota", "Strictness"),
    "retries": ("parse_retry_after",),
}
_MOVED_TO: Final = {name: module for module, names in _MOVED.items() for name in names}


if not TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return _read_version()
        if name in _MOVED_TO:
            return _moved(name, f"{__name__}.{_MOVED_TO[name]}")
        if name in _MOVED:
            return import_module(f"{__name__}.{name}")
        module = _MODULE_OF.get(name)
        if module is None:
            raise import_module(f"{__name__}._names").unknown_name(__name__, name)
        value = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value


def _moved(name: str, module: str) -> Any:
    import warnings  # noqa: PLC0415  # few programs get here

    text = f"{name} has moved: write 'from {module} import {name}'; the old place ends with 0.2"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return getattr(import_module(module), name)


def _read_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # it takes longer than all the rest

    try:
        found = globals()["__version__"] = version("ratelimited-executor")
    except PackageNotFoundError:
        raise AttributeError("__version__ is unknown: the distribution ratelimited-executor is not installed") from None
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
