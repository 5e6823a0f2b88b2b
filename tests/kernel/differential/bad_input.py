"""Calls with arguments that are refused: both kernels must refuse the same calls, with the same words."""

from __future__ import annotations

import datetime
import math
import threading
from collections.abc import Callable
from typing import Any


def _nothing(*_: Any) -> None:
    """Do nothing."""


async def _coroutine() -> None:
    """Do nothing."""


def _with_coroutine(method: Callable[..., Any]) -> Any:
    """Call a method with a coroutine object in place of a function."""
    coroutine = _coroutine()
    try:
        return method(coroutine)
    finally:
        coroutine.close()


_NAIVE = datetime.datetime(2024, 1, 1)
_TEXTS: dict[str, Any] = {
    "nan": math.nan, "inf": math.inf, "minus inf": -math.inf, "a text": "soon", "None": None, "complex": 1j, "a list": [1], "huge": 10**400,
    "True": True, "negative": -0.5, "a duration": "250ms", "a timedelta": datetime.timedelta(seconds=1), "an int": 1,
}  # fmt: skip


def _calls() -> dict[str, Callable[[Any], Any]]:
    """Return the calls by name; each takes an executor. Both kernels must agree on the few that are accepted, too."""
    calls: dict[str, Callable[[Any], Any]] = {}
    for name, value in _TEXTS.items():
        calls[f"call_later {name}"] = lambda x, value=value: x.call_later(value, _nothing)
        calls[f"call_at {name}"] = lambda x, value=value: x.call_at(value, _nothing)
        calls[f"schedule delay {name}"] = lambda x, value=value: x.schedule(_nothing, delay=value)
        calls[f"schedule at {name}"] = lambda x, value=value: x.schedule(_nothing, at=value)
        calls[f"expires {name}"] = lambda x, value=value: x.submit(_nothing, expires=value)
        calls[f"priority {name}"] = lambda x, value=value: x.submit(_nothing, priority=value)
        calls[f"delays {name}"] = lambda x, value=value: x.schedule_many(_nothing, [1], delays=[value])
        calls[f"over {name}"] = lambda x, value=value: x.schedule_many(_nothing, [1, 2], over=value)
        calls[f"reschedule {name}"] = lambda x, value=value: x.call_later(0.5, _nothing).reschedule(value)
        for method in ("call_soon", "submit", "execute", "schedule"):
            calls[f"{method} no callable {name}"] = lambda x, value=value, method=method: getattr(x, method)(value)
    calls |= {
        "no argument": lambda x: x.call_later(),
        "one argument": lambda x: x.call_later(1),
        "call_later no callable": lambda x: x.call_later(1, None),
        "call_later twice wrong": lambda x: x.call_later("x", None),
        "call_later keyword": lambda x: x.call_later(1, _nothing, key=1),
        "call_soon nothing": lambda x: x.call_soon(),
        "submit nothing": lambda x: x.submit(),
        "execute keyword": lambda x: x.execute(_nothing, delay=1),
        "context": lambda x: x.call_later(1, _nothing, context="no"),
        "context soon": lambda x: x.call_soon(_nothing, context={}),
        "context schedule": lambda x: x.schedule(_nothing, delay=1, context=1),
        "coroutine submit": lambda x: _with_coroutine(x.submit),
        "coroutine schedule": lambda x: _with_coroutine(x.schedule),
        "coroutine soon": lambda x: _with_coroutine(x.call_soon),
        "coroutine later": lambda x: _with_coroutine(lambda coroutine: x.call_later(1, coroutine)),
        "two times": lambda x: x.schedule(_nothing, delay=1, at=1),
        "naive": lambda x: x.schedule(_nothing, at=_NAIVE),
        "timeout": lambda x: x.schedule(_nothing, timeout=1),
        "unknown": lambda x: x.submit(_nothing, delayed=1),
        "name": lambda x: x.submit(_nothing, name=3),
        "run_timeout": lambda x: x.submit(_nothing, run_timeout=0),
        "cost": lambda x: x.submit(_nothing, cost=0),
        "key": lambda x: x.submit(_nothing, key=[]),
        "items": lambda x: x.schedule_many(_nothing, 5),
        "items and times": lambda x: x.schedule_many(_nothing, [1], delay=1, over=1),
        "delays few": lambda x: x.schedule_many(_nothing, [1, 2], delays=[1]),
        "delays many": lambda x: x.schedule_many(_nothing, [1], delays=[1, 2]),
        "count": lambda x: x.schedule_many(_nothing, [1], count=2),
        "rate": lambda x: setattr(x, "rate", "fast"),
        "pacing": lambda x: setattr(x, "pacing", "SPREAD"),
        "max_concurrency": lambda x: setattr(x, "max_concurrency", 0),
        "misspelt": lambda x: setattr(x, "rat", 1),
        "explain": lambda x: x.explain(x.call_soon(_nothing)),
        "result": lambda x: x.schedule(_nothing, delay=0.5).result(),
        "exception": lambda x: x.schedule(_nothing, delay=0.5).exception(),
        "bool": lambda x: bool(x.schedule(_nothing, delay=0.5)),
        "equal": lambda x: x.call_soon(_nothing) == x.call_soon(_nothing),
        "settle": lambda x: x.submit(_nothing).settle(5),
        "wrong thread": lambda x: _in_thread(lambda: x.call_later(0.5, _nothing)),
        "wrong thread submit": lambda x: _in_thread(lambda: x.submit(_nothing)),
    }
    return calls


def _in_thread(call: Callable[[], Any]) -> Any:
    """Make the call in another thread, and raise here what it raises there."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((result, error),) = found
    if error is not None:
        raise error
    return result


BAD_CALLS = _calls()
