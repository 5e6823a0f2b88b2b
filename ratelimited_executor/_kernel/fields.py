"""The fields of the classes on the hot paths: slots in pure Python, a C struct where the kernel is compiled.

Each class with such fields inherits from its base here, and is the same Python class in both cases. A compiled body
reads and writes these fields without a look-up; the rest of the class may be slow and clear.

This is the only list of them: the build makes the structs of it (``.packaging/structs.py``). The annotation says what C
has. ``bool``, ``float`` and ``int`` are C numbers, an ``int`` of 64 bits. A list, a dict, an array or a class of this
file is checked when it is set, and read without a check. All else is any object, also ``list[Any] | None``.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._kernel.choice import compiled

if TYPE_CHECKING:
    from array import array
    from collections import deque
    from collections.abc import Callable
    from contextvars import Context
    from weakref import ref

    from ratelimited_executor._kernel.states import Pacing, TaskClass, TaskState

__all__ = [
    "AccountFields", "AdmissionFields", "ArrivalFields", "BatchFields", "BucketFields", "CalendarFields", "CallbackFields",
    "ClockFields", "ContextFields", "CoroutineFields", "CurrentFields", "DescriptorFields", "EngineFields",
    "ExecutorFields", "GridFields", "HandleFields", "JobFields", "ListenersFields", "MemberFields", "ObserverFields",
    "PlanFields", "PopulationFields", "QueueFields", "ReadyFields", "RecordFields", "RecordRunFields", "RisingFields",
    "RunFields", "RunnerFields", "StarterFields", "StreamFields", "StretchFields", "TimelineFields", "WaitFields",
    "WakerFields", "WallFields", "WindowFields",
]  # fmt: skip


BigInt: TypeAlias = int  # an int of any size, which C has as an object


class BucketFields:
    """Fields of ``buckets.Bucket``, which documents them."""

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

    __slots__ = tuple(__annotations__)


class CalendarFields:
    """Fields of ``calendar.Calendar``."""

    _ahead: dict[int, Any]
    _current: Any
    _current_group: Any
    _is_punctual: bool
    _next_number: int | None
    _next_start: float
    cancelled_count: int
    end: float
    epoch_offset: float
    future: dict[int, Any]
    groups: deque[list[Any]]
    number: BigInt
    numbers: list[int]
    on_cancelled: Callable[[], None] | None
    opened: list[Any]
    opened_count: int
    parcels: dict[int, Any]
    per_second: float
    ready: Any
    soon_class: TaskClass
    take_count_max: int
    timeline: Any

    __slots__ = tuple(__annotations__)


class RecordFields:
    """Fields of ``records.Record``, and of the handles that are records."""

    __weakref__: Any
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

    __slots__ = tuple(__annotations__)


class ReadyFields:
    """Fields of ``ready.ReadyQueues``."""

    _by_due: list[Any] | None
    _count: int
    _earliest: Any
    _queues: dict[Any, deque[Any]]
    active: list[Any]

    __slots__ = tuple(__annotations__)


class BatchFields:
    """Fields of ``batches.BatchSource``."""

    _gap: float
    _started: bytearray | None
    count: int
    dues: array[float] | None
    first: float
    indexes: Any
    is_plain: bool
    is_watched: bool
    opened_count: int
    owner: Any
    parcel: int | None
    rank: tuple[float, TaskClass]
    revoked: bool
    started_count: int

    __slots__ = tuple(__annotations__)


class RisingFields:
    """Fields of ``batches.RisingOrder``."""

    _dues: Any
    _next: int
    _source: Any
    _stop: int

    __slots__ = tuple(__annotations__)


class RunFields:
    """Fields of ``runs.Run``."""

    _cursor: int
    _number: int
    _positions: Any
    source: Any

    __slots__ = tuple(__annotations__)


class StreamFields:
    """Fields of ``calendar._Stream``, a source in an open interval."""

    order: Any
    source: Any

    __slots__ = tuple(__annotations__)


class RecordRunFields:
    """Fields of ``runs.RecordRun``."""

    _numbers: Any
    _stale_count: int
    calendar: Any
    cursor: int
    records: list[Any]

    __slots__ = tuple(__annotations__)


class StretchFields:
    """Fields of ``stretch.Stretch``."""

    _calendar: Any
    _count: int
    _is_paid: bool
    _positions: Any
    _queue: Any
    _run: Any
    skipped_count: int
    source: Any

    __slots__ = tuple(__annotations__)


class QueueFields:
    """Fields of ``intervals.Intervals``, with its calendars."""

    _is_all_ready: bool
    _is_bursty: bool
    _is_planned: bool
    _is_single: bool
    _is_sorting: bool
    _later_on_time_count: int
    _may_be_lone: bool
    _opening_at: float
    _pulled_at: float
    admission: AdmissionFields
    chores: Any
    counts_effects: bool
    early: bool
    end: float
    expiry: Any
    gate: Any
    interval_end: float
    last_tick: BigInt
    ticks: Any
    is_by_importance: bool
    is_changed: bool
    is_dense: bool
    is_halted: bool
    is_special: bool
    is_unlimited: bool
    later_count: int
    on_start: Callable[[float, float], None] | None
    on_time: CalendarFields
    pacing: Pacing
    passing: list[Any]
    phase_seconds: float
    plan: PlanFields
    rekeying: list[Any]
    spread: CalendarFields
    stretch: Any
    tells_order: bool
    timeline: Any
    untold_count: int
    wake_at: float
    wall: Any

    __slots__ = tuple(__annotations__)


class TimelineFields:
    """Fields of ``timeline.Timeline``."""

    interval_ns: BigInt
    loop_time: Callable[[], float] | None
    offset_ns: BigInt

    __slots__ = tuple(__annotations__)


class AdmissionFields:
    """Fields of ``admission.Admission``."""

    _counted_at: float
    _timeline: Any
    count: int
    effects: Any
    is_paused: bool
    is_unlimited: bool
    next_at: float
    per_second: float
    permits: Any
    usable_max: float
    usable_until: float

    __slots__ = tuple(__annotations__)


class GridFields:
    """Fields of ``permits.PermitGrid``: numbers of any size."""

    _first: BigInt
    _last: BigInt
    _log: Any
    _looked_ns: BigInt
    _next: BigInt
    _pieces: list[Any]
    _void_to: int | None
    open_receipt: list[Any] | None
    peers: BigInt
    rank: BigInt
    slack_ns: BigInt
    usable_until_ns: BigInt

    __slots__ = tuple(__annotations__)


class WindowFields:
    """Fields of ``window.WindowLimit``: numbers of any size."""

    _grain_ns: BigInt
    _log: deque[list[int]]
    _margin_ns: BigInt
    _pending: list[list[int]]
    _width_ns: BigInt
    permits: BigInt
    used: BigInt

    __slots__ = tuple(__annotations__)


class PlanFields:
    """Fields of ``pacing.SpreadPlan``."""

    _late_count: int
    _slack: float
    end: float
    next_at: float

    __slots__ = tuple(__annotations__)


class AccountFields:
    """Fields of an executor's accounts."""

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

    __slots__ = tuple(__annotations__)


class ContextFields:
    """Fields of the shared contexts of an executor's tasks."""

    _last: ref[Context] | None
    scratch: Context

    __slots__ = tuple(__annotations__)


class CoroutineFields:
    """Fields of the runner of an executor's coroutines."""

    _contexts: Any
    _moments: Any
    _number: BigInt  # a key, for which C would create an object each time
    _queue: Any
    accounts: Any
    is_starting: bool
    loop: Any
    on_free: Callable[[], None]
    running: dict[int, Any]

    __slots__ = tuple(__annotations__)


class EngineFields:
    """Fields of an executor's engine."""

    _is_full: bool
    _member: Any
    _runner: RunnerFields
    accounts: AccountFields
    adapting: Any
    armed: float
    callbacks: Any
    contexts: ContextFields
    is_coarse: bool
    loop: Any
    monotonic: Callable[[], float]
    queue: QueueFields
    starter: StarterFields

    __slots__ = tuple(__annotations__)


class StarterFields:
    """Fields of the starter of an executor's tasks."""

    _accounts: AccountFields
    _batch: Any
    _contexts: ContextFields
    _coroutine_count: int
    _coroutines: Any
    _is_ahead: bool
    _kinds: frozenset[type]
    _monotonic: Callable[[], float]
    _queue: QueueFields
    _stretch: Any

    __slots__ = tuple(__annotations__)


class HandleFields:
    """Fields of the handle of a batch."""

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

    __slots__ = tuple(__annotations__)


class RunnerFields:
    """Fields of the runner that wakes the event loop for a manager's executors."""

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

    __slots__ = tuple(__annotations__)


class DescriptorFields:
    """Fields of the timer descriptor that wakes the loop."""

    _callback: Callable[[], None]
    _fd: int
    _handle: Any
    _is_readable: bool
    _set_at: float

    __slots__ = tuple(__annotations__)


class CallbackFields:
    """Fields of the caller of an executor's done callbacks."""

    _is_armed: bool
    _is_debug: bool
    _pending: deque[Any]

    __slots__ = tuple(__annotations__)


class ExecutorFields:
    """Fields of an executor."""

    _engine: Any
    _expires: float | None
    _home: Any

    __slots__ = tuple(__annotations__)


class ListenersFields:
    """Fields of the listeners of an executor."""

    _freed: Callable[[], None]
    _on_freed: tuple[Callable[[], None], ...]

    __slots__ = tuple(__annotations__)


class ClockFields:
    """Fields of a virtual clock."""

    _monotonic: float

    __slots__ = tuple(__annotations__)


class WallFields:
    """Fields of the tasks of an executor that are due by the wall clock."""

    _batches: list[Any]
    _buckets: dict[int, Any]

    __slots__ = tuple(__annotations__)


class WakerFields:
    """Fields of what wakes the executors of a manager in a simulation."""

    at: float
    run_due: Callable[[float], float]

    __slots__ = tuple(__annotations__)


class CurrentFields:
    """Fields of what happens at a moment of a simulation."""

    cause: float | None
    key: Any
    wait: float | None

    __slots__ = tuple(__annotations__)


class ArrivalFields:
    """Fields of a job that arrives in a simulation."""

    attempts: int
    key: Any
    luck: float
    priority: Any
    seconds: float

    __slots__ = tuple(__annotations__)


class JobFields:
    """Fields of a kind of job in a simulation."""

    _chance: Any
    _clock: ClockFields
    _current: CurrentFields
    _execution_time: Any
    _fails: Callable[[Any], float] | None
    _failures: float
    _has_end: bool
    _is_sync: bool
    _luck: float
    _needs_group: bool
    _on_failure: Callable[[Any], object] | None
    _outage_duration: Any
    _then: Callable[[Any], object] | None
    _turns: list[int]
    _waits: Any
    duration: Any
    name: Any
    population: Any

    __slots__ = tuple(__annotations__)


class MemberFields:
    """Fields of a key of a population in a simulation."""

    active: int
    failures: int
    group: str | None
    key: Any
    longest: float
    number: int
    population: Any
    synced_at: float
    syncs: int
    weight: float

    __slots__ = tuple(__annotations__)


class PopulationFields:
    """Fields of a population in a simulation."""

    add_interval: Callable[[float], object]
    conflict_count: int
    members: dict[Any, Any]
    outage_count: int
    outages: dict[str, Any]

    __slots__ = tuple(__annotations__)


class WaitFields:
    """Fields of the waits of a kind of job in a simulation."""

    _by_priority: dict[int, Any]
    _meter: Any
    _recent: dict[Any, Any] | None

    __slots__ = tuple(__annotations__)


class ObserverFields:
    """Fields of what measures an executor of a simulation."""

    _clock: ClockFields
    _current: CurrentFields
    _running: Any
    _running_seconds: float
    _seen_at: float
    _start_delay: Any
    ended_at: float

    __slots__ = tuple(__annotations__)


FIELDS: Final[dict[str, tuple[str, ...]]] = {name: globals()[name].__slots__ for name in __all__}


def state_of(owner: Any) -> tuple[None, dict[str, Any]]:
    """Return the state of an object for a copy: all its slots, including the fields of a struct."""
    slots = (FIELDS.get(cls.__name__) or cls.__dict__.get("__slots__", ()) for cls in type(owner).__mro__)
    return None, {name: getattr(owner, name) for name in chain(*slots) if name != "__weakref__"}


def _refuse_copy(owner: Any) -> None:
    """Refuse to copy an object that others know by its identity, as a compiled struct does."""
    raise TypeError(f"cannot pickle {type(owner).__name__!r} object")


if not TYPE_CHECKING:
    if compiled is not None:
        globals().update({name: getattr(compiled, name) for name in __all__})
    else:
        for name in __all__:
            globals()[name].__getstate__ = _refuse_copy
