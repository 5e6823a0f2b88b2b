"""A rate-limited scheduled executor for asyncio: millions of pending calls, started on time, under a rate.

Names are imported when they are first used, so that ``import ratelimited_executor`` costs next to nothing: the pytest
plugin lives in this package, and every pytest run of its users imports it.

``dir()`` shows the names that most programs need. The others live in public modules, each with one topic:

================  ==========================================================
module            names
================  ==========================================================
``policies``      rates, quotas, and what they mean for starts close together
``orders``        which task starts first
``handles``       what the methods of an executor return
``cycles``        the handle of ``every``, and the stores of its progress
``peers``         ways to share a rate between processes
``retries``       retries, and the parser of ``Retry-After``
``insight``       statistics, explanations, observers, and which kernel runs
``exceptions``    all errors
``abc``           protocols that a program may implement
``typing``        types for annotations
``slots``         pools of slots: limits on how many holders work at once
``blocking``      permits and slots for threads without an event loop
``durable``       tasks that survive the process
``metrics``       metrics for monitoring, through OpenTelemetry
================  ==========================================================

All names except those of ``typing``, ``slots``, ``blocking``, ``durable`` and ``metrics`` can also be imported from
this package, as the same objects.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it; ``typing`` takes longer to load than all the rest of a plain import
if TYPE_CHECKING:
    from typing import Any, Final

    from ratelimited_executor._core.fleet.insight import FleetStatistics as FleetStatistics
    from ratelimited_executor._core.fleet.insight import GroupLimit as GroupLimit
    from ratelimited_executor._core.fleet.peer_states import PeerState as PeerState
    from ratelimited_executor._core.fleet.policies import Outage as Outage
    from ratelimited_executor._core.fleet.policies import Strictness as Strictness
    from ratelimited_executor._core.order.fair import Fair as Fair
    from ratelimited_executor._core.order.ordering import Ageing as Ageing
    from ratelimited_executor._core.order.ordering import TaskView as TaskView
    from ratelimited_executor._core.order.ordering import default_order as default_order
    from ratelimited_executor._core.order.ordering import earliest_due_first as earliest_due_first
    from ratelimited_executor._core.order.ordering import latest_due_first as latest_due_first
    from ratelimited_executor._core.permits.adaptive import Adaptive as Adaptive
    from ratelimited_executor._core.permits.rates import Rate as Rate
    from ratelimited_executor._core.repeat.repeating import MissedTick as MissedTick
    from ratelimited_executor._core.repeat.repeating import OnError as OnError
    from ratelimited_executor._core.repeat.retries import Retry as Retry
    from ratelimited_executor._kernel.choice import Kernel as Kernel
    from ratelimited_executor._kernel.choice import kernel as kernel
    from ratelimited_executor._kernel.pacing import Pacing as Pacing
    from ratelimited_executor._kernel.states import TaskState as TaskState
    from ratelimited_executor._runtime.insight.insight import Explanation as Explanation
    from ratelimited_executor._runtime.insight.insight import Hold as Hold
    from ratelimited_executor._runtime.insight.insight import LimitStatistics as LimitStatistics
    from ratelimited_executor._runtime.insight.insight import Statistics as Statistics
    from ratelimited_executor._runtime.insight.observers import Observation as Observation
    from ratelimited_executor._runtime.insight.observers import observe as observe
    from ratelimited_executor._runtime.life.executor import ExecutorManager as ExecutorManager
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor as RateLimitedExecutor
    from ratelimited_executor._runtime.limits.policy import Burst as Burst
    from ratelimited_executor._runtime.limits.policy import Paced as Paced
    from ratelimited_executor._runtime.limits.policy import WhenFull as WhenFull
    from ratelimited_executor._runtime.limits.policy import Window as Window
    from ratelimited_executor._runtime.limits.quota import Quota as Quota
    from ratelimited_executor._runtime.repeat.cycle import CycleHandle as CycleHandle
    from ratelimited_executor._runtime.repeat.cycle import CycleStatistics as CycleStatistics
    from ratelimited_executor._runtime.repeat.repeating import RepeatingHandle as RepeatingHandle
    from ratelimited_executor._runtime.repeat.retrying import parse_retry_after as parse_retry_after
    from ratelimited_executor._runtime.task.batches import BatchHandle as BatchHandle
    from ratelimited_executor._runtime.task.batches import BatchSummary as BatchSummary
    from ratelimited_executor._runtime.task.batches import Outcome as Outcome
    from ratelimited_executor._runtime.task.handles import CallHandle as CallHandle
    from ratelimited_executor._runtime.task.handles import TaskHandle as TaskHandle
    from ratelimited_executor._runtime.task.permit import Permit as Permit
    from ratelimited_executor._runtime.threads.futures import FuturesFace as FuturesFace
    from ratelimited_executor.abc import Clock as Clock
    from ratelimited_executor.abc import Fleet as Fleet
    from ratelimited_executor.abc import Observer as Observer
    from ratelimited_executor.abc import Peers as Peers
    from ratelimited_executor.abc import Progress as Progress
    from ratelimited_executor.abc import TaskStore as TaskStore
    from ratelimited_executor.exceptions import BacklogFullError as BacklogFullError
    from ratelimited_executor.exceptions import ExecutorNotStartedError as ExecutorNotStartedError
    from ratelimited_executor.exceptions import ExecutorStoppedError as ExecutorStoppedError
    from ratelimited_executor.exceptions import IllegalTransitionError as IllegalTransitionError
    from ratelimited_executor.exceptions import RateLimitedExecutorError as RateLimitedExecutorError
    from ratelimited_executor.exceptions import RetryLater as RetryLater
    from ratelimited_executor.exceptions import RunTimeoutError as RunTimeoutError
    from ratelimited_executor.exceptions import SlotLostError as SlotLostError
    from ratelimited_executor.exceptions import StoreUnavailableError as StoreUnavailableError
    from ratelimited_executor.exceptions import TaskDroppedError as TaskDroppedError
    from ratelimited_executor.exceptions import TaskExpiredError as TaskExpiredError
    from ratelimited_executor.exceptions import WrongLoopError as WrongLoopError
    from ratelimited_executor.peers.redis.peers import RedisPeers as RedisPeers
    from ratelimited_executor.peers.static import StaticPeers as StaticPeers
    from ratelimited_executor.peers.stored.file import FilePeers as FilePeers
    from ratelimited_executor.peers.stored.postgres import PostgresPeers as PostgresPeers
    from ratelimited_executor.stores.progress.memory import MemoryProgress as MemoryProgress
    from ratelimited_executor.stores.progress.redis import RedisProgress as RedisProgress
    from ratelimited_executor.stores.progress.sqlite import SQLiteProgress as SQLiteProgress

__version__: str  # read from the metadata of the distribution when somebody asks

__all__ = [
    "Adaptive",
    "Ageing",
    "BacklogFullError",
    "BatchHandle",
    "BatchSummary",
    "Burst",
    "CallHandle",
    "Clock",
    "CycleHandle",
    "CycleStatistics",
    "ExecutorManager",
    "ExecutorNotStartedError",
    "ExecutorStoppedError",
    "Explanation",
    "Fair",
    "FilePeers",
    "Fleet",
    "FleetStatistics",
    "FuturesFace",
    "GroupLimit",
    "Hold",
    "IllegalTransitionError",
    "Kernel",
    "LimitStatistics",
    "MemoryProgress",
    "MissedTick",
    "Observation",
    "Observer",
    "OnError",
    "Outage",
    "Outcome",
    "Paced",
    "Pacing",
    "PeerState",
    "Peers",
    "Permit",
    "PostgresPeers",
    "Progress",
    "Quota",
    "Rate",
    "RateLimitedExecutor",
    "RateLimitedExecutorError",
    "RedisPeers",
    "RedisProgress",
    "RepeatingHandle",
    "Retry",
    "RetryLater",
    "RunTimeoutError",
    "SQLiteProgress",
    "SlotLostError",
    "StaticPeers",
    "Statistics",
    "StoreUnavailableError",
    "Strictness",
    "TaskDroppedError",
    "TaskExpiredError",
    "TaskHandle",
    "TaskState",
    "TaskStore",
    "TaskView",
    "WhenFull",
    "Window",
    "WrongLoopError",
    "default_order",
    "earliest_due_first",
    "kernel",
    "latest_due_first",
    "observe",
    "parse_retry_after",
]

# What most programs need, which `dir()` shows; the others are shown by the modules of their topics.
_ESSENTIAL: Final = (
    "BacklogFullError",
    "BatchHandle",
    "ExecutorManager",
    "ExecutorStoppedError",
    "MissedTick",
    "OnError",
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
)

_MODULES: Final = {
    "_core.fleet.insight": ("FleetStatistics", "GroupLimit"),
    "_core.fleet.peer_states": ("PeerState",),
    "_core.fleet.policies": (
        "Outage",
        "Strictness",
    ),
    "_core.order.fair": ("Fair",),
    "_core.order.ordering": (
        "Ageing",
        "TaskView",
        "default_order",
        "earliest_due_first",
        "latest_due_first",
    ),
    "_core.permits.adaptive": ("Adaptive",),
    "_core.permits.rates": ("Rate",),
    "_core.repeat.repeating": (
        "MissedTick",
        "OnError",
    ),
    "_core.repeat.retries": ("Retry",),
    "_kernel.choice": ("Kernel", "kernel"),
    "_kernel.pacing": ("Pacing",),
    "_kernel.states": ("TaskState",),
    "_runtime.insight.insight": (
        "Explanation",
        "Hold",
        "LimitStatistics",
        "Statistics",
    ),
    "_runtime.insight.observers": ("Observation", "observe"),
    "_runtime.life.executor": ("ExecutorManager", "RateLimitedExecutor"),
    "_runtime.limits.policy": (
        "Burst",
        "Paced",
        "WhenFull",
        "Window",
    ),
    "_runtime.limits.quota": ("Quota",),
    "_runtime.repeat.cycle": (
        "CycleHandle",
        "CycleStatistics",
    ),
    "_runtime.repeat.repeating": ("RepeatingHandle",),
    "_runtime.repeat.retrying": ("parse_retry_after",),
    "_runtime.task.batches": (
        "BatchHandle",
        "BatchSummary",
        "Outcome",
    ),
    "_runtime.task.handles": (
        "CallHandle",
        "TaskHandle",
    ),
    "_runtime.task.permit": ("Permit",),
    "_runtime.threads.futures": ("FuturesFace",),
    "abc": (
        "Clock",
        "Fleet",
        "Observer",
        "Peers",
        "Progress",
        "TaskStore",
    ),
    "exceptions": (
        "BacklogFullError",
        "ExecutorNotStartedError",
        "ExecutorStoppedError",
        "IllegalTransitionError",
        "RateLimitedExecutorError",
        "RetryLater",
        "RunTimeoutError",
        "SlotLostError",
        "StoreUnavailableError",
        "TaskDroppedError",
        "TaskExpiredError",
        "WrongLoopError",
    ),
    "peers.redis.peers": ("RedisPeers",),
    "peers.static": ("StaticPeers",),
    "peers.stored.file": ("FilePeers",),
    "peers.stored.postgres": ("PostgresPeers",),
    "stores.progress.memory": ("MemoryProgress",),
    "stores.progress.redis": ("RedisProgress",),
    "stores.progress.sqlite": ("SQLiteProgress",),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _read_version()
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def _read_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # it takes longer than all the rest

    try:
        found = globals()["__version__"] = version("ratelimited-executor")
    except PackageNotFoundError:
        raise AttributeError("__version__ is unknown: the distribution ratelimited-executor is not installed") from None
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ESSENTIAL, "__version__"})
