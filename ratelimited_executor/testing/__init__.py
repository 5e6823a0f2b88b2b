"""Virtual time for asyncio programs, an audit of their starts against a rate, and a search for faults that break them.

The names are imported on first use: pytest loads this package in every run, for its fixtures, and must not pay for
asyncio.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .auditing import AuditReport as AuditReport
    from .auditing import RateHistory as RateHistory
    from .auditing import audit as audit
    from .auditing import worst_window as worst_window
    from .clock import VirtualClock as VirtualClock
    from .draining import drain as drain
    from .errors import DeadlockError as DeadlockError
    from .errors import RealIOError as RealIOError
    from .errors import TimeLimitError as TimeLimitError
    from .errors import TurnLimitError as TurnLimitError
    from .errors import VirtualTimeError as VirtualTimeError
    from .outstanding import TimeHold as TimeHold
    from .running import VirtualLoopFactory as VirtualLoopFactory
    from .running import run_virtual as run_virtual
    from .search_loop import HistoryEvent as HistoryEvent
    from .searching import ScenarioFailedError as ScenarioFailedError
    from .searching import SearchReport as SearchReport
    from .searching import search_faults as search_faults
    from .virtual import RealIOPolicy as RealIOPolicy
    from .virtual import VirtualEventLoop as VirtualEventLoop
    from .world import Fault as Fault
    from .world import World as World

__all__ = [
    "AuditReport",
    "DeadlockError",
    "Fault",
    "HistoryEvent",
    "RateHistory",
    "RealIOError",
    "RealIOPolicy",
    "ScenarioFailedError",
    "SearchReport",
    "TimeHold",
    "TimeLimitError",
    "TurnLimitError",
    "VirtualClock",
    "VirtualEventLoop",
    "VirtualLoopFactory",
    "VirtualTimeError",
    "World",
    "audit",
    "drain",
    "run_virtual",
    "search_faults",
    "worst_window",
]

_MODULES = {
    "AuditReport": "auditing",
    "DeadlockError": "errors",
    "Fault": "world",
    "HistoryEvent": "search_loop",
    "RateHistory": "auditing",
    "RealIOError": "errors",
    "RealIOPolicy": "virtual",
    "ScenarioFailedError": "searching",
    "SearchReport": "searching",
    "TimeHold": "outstanding",
    "TimeLimitError": "errors",
    "TurnLimitError": "errors",
    "VirtualClock": "clock",
    "VirtualEventLoop": "virtual",
    "VirtualLoopFactory": "running",
    "VirtualTimeError": "errors",
    "World": "world",
    "audit": "auditing",
    "drain": "draining",
    "run_virtual": "running",
    "search_faults": "searching",
    "worst_window": "auditing",
}


def __getattr__(name: str) -> object:
    if name == "Hold":  # until 0.2
        warnings.warn("ratelimited_executor.testing.Hold is TimeHold now", DeprecationWarning, stacklevel=2)
        name = "TimeHold"
    if name not in _MODULES:
        raise importlib.import_module("ratelimited_executor._names").unknown_name(__name__, name)
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
