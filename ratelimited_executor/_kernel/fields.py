"""The fields of the classes on the hot paths: slots in pure Python, a C struct where the kernel is compiled.

Each class with such fields inherits from its base here, and is the same Python class in both cases. A compiled body
reads and writes these fields without a look-up; the rest of the class may be slow and clear.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import compiled

if TYPE_CHECKING:
    from array import array
    from collections import deque
    from collections.abc import Callable
    from contextvars import Context
    from weakref import ref

    from ratelimited_executor._kernel.states import Pacing, TaskClass, TaskState

__all__ = [
    "AccountFields", "AdmissionFields", "BatchFields", "BucketFields", "CalendarFields", "CallbackFields", "ContextFields",
    "CoroutineFields", "DescriptorFields", "EngineFields", "ExecutorFields", "GridFields", "HandleFields", "PlanFields",
    "QueueFields", "ReadyFields", "RecordFields", "RecordRunFields", "RisingFields", "RunFields", "RunnerFields",
    "StarterFields", "StreamFields", "StretchFields", "TimelineFields", "WindowFields",
]  # fmt: skip


class BucketFields:
    """Fields of ``buckets.Bucket``, which documents them."""

    __slots__ = (
        "_boundary", "_late", "_origin", "args", "calendar", "calls", "contexts", "dues", "frozen", "gone",
        "has_records", "opened", "shift",
    )  # fmt: skip

    _boundary: int
    _late: list[int] | None
    _origin: array[int] | None
    args: list[Any]
    calendar: Any
    calls: list[Any]
    contexts: list[Any] | None
    dues: array[float]
    frozen: bool
    gone: int
    has_records: bool
    opened: bool
    shift: int


class CalendarFields:
    """Fields of ``calendar.Calendar``."""

    __slots__ = (
        "_current", "cancelled_count", "end", "epoch_offset", "future", "groups", "numbers", "on_cancelled", "opened",
        "opened_count", "per_second", "ready", "soon_class", "take_count_max",
    )  # fmt: skip

    _current: Any
    cancelled_count: int
    end: float
    epoch_offset: float
    future: dict[int, Any]
    groups: deque[list[Any]]
    numbers: list[int]
    on_cancelled: Callable[[], None] | None
    opened: list[Any]
    opened_count: int
    per_second: float
    ready: Any
    soon_class: TaskClass
    take_count_max: int


class RecordFields:
    """Fields of ``records.Record``, and of the handles that are records."""

    __slots__ = (
        "__weakref__", "_call", "_callbacks", "_class", "_context", "_due", "_engine", "_options", "_outcome", "_place",
        "_state",
    )  # fmt: skip

    _call: Any
    _callbacks: Any
    _class: TaskClass
    _context: Any
    _due: float
    _engine: Any
    _options: Any
    _outcome: Any
    _place: Any
    _state: TaskState


class ReadyFields:
    """Fields of ``ready.ReadyQueues``."""

    __slots__ = ("_count", "_queues", "active")

    _count: int
    _queues: dict[Any, deque[Any]]
    active: list[Any]


class BatchFields:
    """Fields of ``batches.BatchSource``."""

    __slots__ = (
        "_gap", "_started", "count", "dues", "first", "indexes", "is_plain", "is_watched", "owner", "rank", "revoked",
        "started_count",
    )  # fmt: skip

    _gap: float
    _started: bytearray | None
    count: int
    dues: array[float] | None
    first: float
    indexes: Any
    is_plain: bool
    is_watched: bool
    owner: Any
    rank: tuple[float, TaskClass]
    revoked: bool
    started_count: int


class RisingFields:
    """Fields of ``batches.RisingOrder``."""

    __slots__ = ("_next", "_source", "_stop")

    _next: int
    _source: Any
    _stop: int


class RunFields:
    """Fields of ``runs.Run``."""

    __slots__ = ("_cursor", "_number", "_positions", "source")

    _cursor: int
    _number: int
    _positions: Any
    source: Any


class StreamFields:
    """Fields of ``calendar._Stream``, a source in an open interval."""

    __slots__ = ("order", "source")

    order: Any
    source: Any


class RecordRunFields:
    """Fields of ``runs.RecordRun``."""

    __slots__ = ("_numbers", "_stale_count", "calendar", "cursor", "records")

    _numbers: Any
    _stale_count: int
    calendar: Any
    cursor: int
    records: list[Any]


class StretchFields:
    """Fields of ``stretch.Stretch``."""

    __slots__ = ("_calendar", "_count", "_is_paid", "_positions", "_queue", "_run", "skipped_count", "source")

    _calendar: Any
    _count: int
    _is_paid: bool
    _positions: Any
    _queue: Any
    _run: Any
    skipped_count: int
    source: Any


class QueueFields:
    """Fields of ``intervals.Intervals``, with its calendars."""

    __slots__ = (
        "_is_all_ready", "_is_bursty", "_is_plain", "_is_planned", "_is_single", "_is_sorting", "_later_on_time_count",
        "_opening_at", "_pulled_at", "admission", "chores", "counts_effects", "early", "end", "expiry", "interval_end",
        "is_by_importance", "is_changed", "is_dense", "is_halted", "is_special", "is_unlimited", "later_count", "on_start",
        "on_time", "pacing", "passing", "phase_seconds", "plan", "rekeying", "spread", "stretch", "timeline", "untold_count",
        "wake_at", "wall",
    )  # fmt: skip

    _is_all_ready: bool
    _is_bursty: bool
    _is_plain: bool
    _is_planned: bool
    _is_single: bool
    _is_sorting: bool
    _later_on_time_count: int
    _opening_at: float
    _pulled_at: float
    admission: Any
    chores: Any
    counts_effects: bool
    early: bool
    end: float
    expiry: Any
    interval_end: float
    is_by_importance: bool
    is_changed: bool
    is_dense: bool
    is_halted: bool
    is_special: bool
    is_unlimited: bool
    later_count: int
    on_start: Callable[[float, float], None] | None
    on_time: Any
    pacing: Pacing
    passing: list[Any]
    phase_seconds: float
    plan: Any
    rekeying: list[Any]
    spread: Any
    stretch: Any
    timeline: Any
    untold_count: int
    wake_at: float
    wall: Any


class TimelineFields:
    """Fields of ``timeline.Timeline``."""

    __slots__ = ("loop_time", "offset_ns")

    loop_time: Callable[[], float] | None
    offset_ns: int


class AdmissionFields:
    """Fields of ``admission.Admission``."""

    __slots__ = (
        "_counted_at", "_timeline", "count", "effects", "is_unlimited", "next_at", "per_second", "permits", "usable_max",
        "usable_until",
    )  # fmt: skip

    _counted_at: float
    _timeline: Any
    count: int
    effects: Any
    is_unlimited: bool
    next_at: float
    per_second: float
    permits: Any
    usable_max: float
    usable_until: float


class GridFields:
    """Fields of ``permits.PermitGrid``: numbers of any size."""

    __slots__ = (
        "_first", "_last", "_log", "_looked_ns", "_next", "_pieces", "_void_to", "open_ticket", "peers", "rank", "slack_ns",
        "usable_until_ns",
    )  # fmt: skip

    _first: int
    _last: int
    _log: Any
    _looked_ns: int
    _next: int
    _pieces: list[Any]
    _void_to: int | None
    open_ticket: list[Any] | None
    peers: int
    rank: int
    slack_ns: int
    usable_until_ns: int


class WindowFields:
    """Fields of ``window.WindowLimit``: numbers of any size."""

    __slots__ = ("_grain_ns", "_log", "_margin_ns", "_pending", "_width_ns", "permits", "used")

    _grain_ns: int
    _log: deque[list[int]]
    _margin_ns: int
    _pending: list[list[int]]
    _width_ns: int
    permits: int
    used: int


class PlanFields:
    """Fields of ``pacing.SpreadPlan``."""

    __slots__ = ("_late_count", "_slack", "end", "next_at")

    _late_count: int
    _slack: float
    end: float
    next_at: float


class AccountFields:
    """Fields of an executor's accounts."""

    __slots__ = (
        "accepted_count", "calls", "counts", "holding", "is_inside", "max_concurrency", "on_end", "on_room",
        "on_task_end", "running", "started_count",
    )  # fmt: skip

    accepted_count: int
    calls: Any
    counts: dict[TaskState, int]
    holding: dict[Any, Any]
    is_inside: bool
    max_concurrency: int | None
    on_end: Callable[[], None] | None
    on_room: Callable[[], None] | None
    on_task_end: Callable[[Any, TaskState], None] | None
    running: dict[int, Any]
    started_count: int


class ContextFields:
    """Fields of the shared contexts of an executor's tasks."""

    __slots__ = ("_last", "scratch")

    _last: ref[Context] | None
    scratch: Context


class CoroutineFields:
    """Fields of the runner of an executor's coroutines."""

    __slots__ = (
        "_contexts", "_moments", "_number", "_queue", "accounts", "is_starting", "loop", "on_free", "running",
    )  # fmt: skip

    _contexts: Any
    _moments: Any
    _number: int
    _queue: Any
    accounts: Any
    is_starting: bool
    loop: Any
    on_free: Callable[[], None]
    running: dict[int, Any]


class EngineFields:
    """Fields of an executor's engine."""

    __slots__ = (
        "_is_full", "_member", "_runner", "accounts", "adapting", "armed", "callbacks", "contexts", "is_coarse", "loop",
        "monotonic", "queue", "starter",
    )  # fmt: skip

    _is_full: bool
    _member: Any
    _runner: Any
    accounts: Any
    adapting: Any
    armed: float
    callbacks: Any
    contexts: Any
    is_coarse: bool
    loop: Any
    monotonic: Callable[[], float]
    queue: Any
    starter: Any


class StarterFields:
    """Fields of the starter of an executor's tasks."""

    __slots__ = (
        "_accounts", "_batch", "_contexts", "_coroutine_count", "_coroutines", "_is_ahead", "_kinds", "_monotonic", "_queue",
        "_stretch",
    )  # fmt: skip

    _accounts: Any
    _batch: Any
    _contexts: Any
    _coroutine_count: int
    _coroutines: Any
    _is_ahead: bool
    _kinds: frozenset[type]
    _monotonic: Callable[[], float]
    _queue: Any
    _stretch: Any


class HandleFields:
    """Fields of the handle of a batch."""

    __slots__ = (
        "_attempts", "_call", "_changed", "_context", "_counts", "_drawn_count", "_feeder", "_is_complete", "_listeners",
        "_on_end", "_outcomes", "_own_context", "_parts",
    )  # fmt: skip

    _attempts: dict[int, Any]
    _call: Callable[[Any], Any]
    _changed: dict[Any, None]
    _context: Context | None
    _counts: dict[TaskState, int]
    _drawn_count: int
    _feeder: Any
    _is_complete: bool
    _listeners: list[Any]
    _on_end: Callable[[int, TaskState, Any], None] | None
    _outcomes: dict[int, Any] | None
    _own_context: bool
    _parts: dict[Any, Any]


class RunnerFields:
    """Fields of the runner that wakes the event loop for a manager's executors."""

    __slots__ = (
        "_call_at", "_heap", "_is_running", "_monotonic", "_numbers", "_precision", "_timer_at", "_waker", "earliest", "loop",
        "precision_crowded", "precision_unlimited",
    )  # fmt: skip

    _call_at: float
    _heap: list[tuple[float, int, Any]]
    _is_running: bool
    _monotonic: Callable[[], float]
    _numbers: Any
    _precision: float
    _timer_at: float
    _waker: Any
    earliest: float
    loop: Any
    precision_crowded: float
    precision_unlimited: float


class DescriptorFields:
    """Fields of the timer descriptor that wakes the loop."""

    __slots__ = ("_callback", "_fd", "_handle", "_is_readable", "_set_at")

    _callback: Callable[[], None]
    _fd: int
    _handle: Any
    _is_readable: bool
    _set_at: float


class CallbackFields:
    """Fields of the caller of an executor's done callbacks."""

    __slots__ = ("_is_armed", "_is_debug", "_pending")

    _is_armed: bool
    _is_debug: bool
    _pending: deque[Any]


class ExecutorFields:
    """Fields of an executor."""

    __slots__ = ("_engine", "_expires", "_home")

    _engine: Any
    _expires: float | None
    _home: Any


FIELDS: Final[dict[str, tuple[str, ...]]] = {name: globals()[name].__slots__ for name in __all__}


def state_of(owner: Any) -> tuple[None, dict[str, Any]]:
    """Return the state of an object for a copy: all its slots, including the fields of a struct."""
    slots = (FIELDS.get(cls.__name__) or cls.__dict__.get("__slots__", ()) for cls in type(owner).__mro__)
    return None, {name: getattr(owner, name) for name in chain(*slots) if name != "__weakref__"}


if not TYPE_CHECKING and compiled is not None:
    globals().update({name: getattr(compiled, name) for name in __all__})
