"""The cost of deciding which key's task starts next, with a million due tasks of ten thousand keys.

The pure queue runs in virtual time, as in ``bench/overflow.py``: no loop, no timers, nothing is called. Either each
start has a wake-up of its own, which takes in what is due, decides, and computes the time of the next one; or a wake-up
starts the permits of two milliseconds, twenty of them, as in an executor at that rate on an event loop. The limits of
keys are applied as in the engine: a key that may not start is set aside until its time.
"""

from __future__ import annotations

import gc
import time
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

from bench.harness import Figure, Table, Target, fresh
from bench.overflow import RATE, emptied, filled
from ratelimited_executor import Paced, Rate, default_order
from ratelimited_executor._core.keys.gate import KeyGate
from ratelimited_executor._core.queue.records import KeyOptions
from ratelimited_executor._runtime.limits.policy import limit_of_key, rule_of
from ratelimited_executor.orders import Fair

if TYPE_CHECKING:
    from bench.harness import Options

__all__ = ["measure", "measure_queue"]

ROUNDS = 3
SHARED_SECONDS = 0.002  # between two wake-ups, if several starts share one
_TARGET = Target(">= 200,000 /s", 200_000)

_COLUMNS = ["starts, a wake-up each", "starts, wake-ups shared", "CPU, a wake-up each", "CPU, wake-ups shared"]

# Form -> (whether keys share fairly, the rate of each key as a factor of its share; None for no limits).
_FORMS: Final = {
    "default order, no keys": (False, None),
    "Fair()": (True, None),
    "Fair(), limits of keys that hold nobody": (True, 2.0),
    "Fair(), limits of keys that hold each after each start": (True, 0.5),
}


def measure(options: Options) -> Table:
    """Measure each form in fresh processes."""
    length, key_count = options.size(1_000_000, 1_000), options.size(10_000, 50)
    function = "bench.overload.decision:measure_queue"
    rounds = options.in_turns(
        {form: partial(fresh, function, form=form, length=length, key_count=key_count) for form in _FORMS},
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label="decision",
    )
    table = Table(f"Pure decision of a start: {length:,} tasks of {key_count:,} keys", _COLUMNS)
    for form, results in rounds.items():
        target = None if form.startswith("default") else _TARGET
        own, shared = ([each[f"{kind}_us"] for each in results] for kind in ("own", "shared"))
        figures = [
            Figure([1e6 / cost for cost in costs], "/s", smaller_is_better=False, target=target)
            for costs in (own, shared)
        ]
        table.add(form, dict(zip(_COLUMNS, [*figures, Figure(own, "us"), Figure(shared, "us")], strict=True)))
        table.check("starts lost", sum(each["lost"] for each in results))
        table.check("keys more than a task ahead of another", sum(each["ahead"] for each in results))
        table.check("starts that their key's limits forbid", sum(each["forbidden"] for each in results))
    table.notes.append(f"Shared: a wake-up each {SHARED_SECONDS * 1e3:g} ms, {RATE * SHARED_SECONDS:g} starts.")
    table.notes.append("The limits are a rate and one task at a time, for each key; a task ends at once.")
    return table


# In a process of its own.


def measure_queue(*, form: str, length: int, key_count: int) -> dict[str, float]:
    """Fill a queue with due tasks, and time how it is emptied, with a wake-up for each start and with shared ones."""
    is_fair, part = _FORMS[form]
    key_rate = None if part is None else Rate(RATE * part / key_count)
    results: dict[str, float] = {"lost": 0, "ahead": 0, "forbidden": 0}
    for kind, pause in (("own", 0.0), ("shared", SHARED_SECONDS)):
        gate = None if key_rate is None else _gate(key_rate)
        keys = [KeyOptions(key) for key in range(key_count)] if is_fair else [None]
        queue, now = filled(Fair() if is_fair else default_order, islice(cycle(keys), length), gate)
        gc.collect()
        before = time.process_time()
        records = emptied(queue, now, pause=pause)
        results[f"{kind}_us"] = (time.process_time() - before) * 1e6 / length
        started = [(at, record.key) for at, record in records]
        results["lost"] += abs(length - len(started))
        results["ahead"] += _ahead([key for _, key in started[: length // 2]], key_count) if is_fair else 0
        results["forbidden"] += 0 if key_rate is None else _forbidden(started, key_rate)
    return results


def _gate(key_rate: Rate) -> KeyGate:
    return KeyGate(
        limit_of=lambda _: limit_of_key(rule_of(Paced()), key_rate, 0),
        concurrency_of=lambda _: 1,
    )


def _ahead(keys: list[Any], key_count: int) -> int:
    """Count the keys that are more than one task ahead of the key with the fewest; all keys have as many tasks."""
    counts = dict.fromkeys(range(key_count), 0)
    for key in keys:
        counts[key] += 1
    least = min(counts.values())
    return sum(count > least + 1 for count in counts.values())


def _forbidden(started: list[tuple[float, Any]], key_rate: Rate) -> int:
    """Count the starts that follow the previous one of their key sooner than rate and slack permit."""
    gap = 1 / float(key_rate) - Paced().slack
    last: dict[Any, float] = {}
    count = 0
    for now, key in started:
        count += now - last.get(key, float("-inf")) < gap
        last[key] = now
    return count
