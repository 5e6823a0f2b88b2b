"""The tasks of one slice of time, as parallel columns in order of arrival.

Theory. The main cost of a pending task is not its bytes but the garbage collector's passes over it: with one small
object per task, a million tasks are a million tracked objects, and adding them triggers collection after collection. So
a bucket keeps plain columns (a due time in an ``array``, a callable, an argument tuple), a handle names a place in it,
and no tracked object outlives the call that made it. Tasks that are awaited bring an object of their own, a *record*,
which stands in the column of callables with :data:`RECORD` beside it.

Arrival order is kept because nothing is compared until the bucket's time has come (see ``due_order.py``).

Cancelling frees the references of the task at once, and its place in the columns later: when more than half of the
places are empty, the bucket is compacted, and handles find their place by bisection in the column of first places. A
cancel is O(1), amortised. Above :data:`STEP` places, compaction runs in steps, so that no call blocks the loop. An open
bucket is not compacted: it lives for less than one more width, unless its tasks overflow.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.fields import BucketFields
from ratelimited_executor._kernel.sizes import SPARE_COUNT
from ratelimited_executor._kernel.states import RECORD as RECORD

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator
    from contextvars import Context

    from ratelimited_executor._kernel.records import Record

__all__ = ["RECORD", "STEP", "Bucket", "folded", "name_of", "unfolded"]

STEP: Final = 8192  # places moved in one step: about a millisecond
_FREE_COUNT: Final = 1 << 17  # places of a column freed in one step: half a millisecond


class Bucket(BucketFields):
    """Columns of tasks; a task is the same position in each of them.

    Attributes:
        dues: loop time at which each task is due.
        calls: the callable of each task, or its record; None once it has started or been cancelled.
        args: its positional arguments as :func:`folded` keeps them, :data:`RECORD` beside a record.
        contexts: the context variables it was scheduled with; None as long as no task of the bucket had any.
        gone: the number of tasks in the columns that have started, expired or been cancelled.
        has_records: True if any of the callables may be a record.
        opened: True once its interval has begun: positions must no longer move.
        frozen: True if positions must not move although its interval has not begun: they are being put in order.
    """

    __slots__ = ()

    key: Final = None  # a task with a key has a record, and so has one that costs more than a permit
    needs: Final = None
    is_plain: Final = True
    is_watched: Final = False

    def __init__(self, calendar: Any) -> None:
        self.dues = array("d")
        self.calls: list[Any] = []
        self.args: list[Any] = []
        self.contexts: list[Context | None] | None = None
        self.gone = 0
        self.has_records = False
        self.opened = False
        self.frozen = False
        self.shift = 0  # number of places removed: a new task's first place is shift + len(calls)
        self._boundary = 0  # first places below it are looked up in _origin, the others are shifted
        self._origin: array[int] | None = None  # first place of each task that has moved
        self._late: list[int] | None = None  # first places cancelled while a compaction runs
        self.calendar = calendar

    @property
    def live(self) -> int:
        """The number of waiting tasks in the columns."""
        return len(self.calls) - self.gone

    def add(self, due: float, call: Any, args: Any, context: Context | None = None) -> int:
        """Append a task and return its first place, by which :meth:`cancel` finds it later."""
        calls = self.calls
        count = len(calls)
        try:
            if context is not None or self.contexts is not None:
                if self.contexts is None:
                    self.contexts = [None] * count
                self.contexts.append(context)
            self.dues.append(due)
            calls.append(call)
            is_single = args and not args[1:] and type(args[0]) is not tuple  # folded(), inlined
            self.args.append(args[0] if is_single else args)
        except BaseException:
            self.trim(count)
            raise
        return self.shift + count

    def add_record(self, record: Record) -> None:
        """Append a record."""
        self.has_records = True
        record._place = self
        count = len(self.calls)
        try:
            if self.contexts is not None:
                self.contexts.append(None)
            self.dues.append(record._due)
            self.calls.append(record)
            self.args.append(RECORD)
        except BaseException:
            self.trim(count)
            raise

    def trim(self, count: int) -> None:
        """Give the columns equal length again, after a signal handler raised during an append."""
        for column in (self.dues, self.calls, self.args, self.contexts):
            if column is not None:
                del column[count:]

    def set_due(self, place: int, due: float) -> bool:
        """Change the due time of the task whose first place is ``place`` to another within this bucket.

        Returns:
            False if it has started or gone, if the bucket is open, or while positions are put in order or moved.
        """
        position = place - self.shift if self._origin is None else self._position(place)
        if self.opened or self.frozen or self._late is not None or position is None or self.calls[position] is None:
            return False
        self.dues[position] = due
        return True

    def cancel(self, place: int) -> bool:
        """Remove the task whose first place is ``place``; False if it has already started or gone."""
        position = self._position(place)
        if position is None or self.calls[position] is None:
            return False
        self.clear(position)
        if self._late is not None:
            self._late.append(place)
        self._check()
        return True

    def call_at(self, place: int) -> Any:
        """Return the callable of the task whose first place is ``place``; None if it has started or gone."""
        position = self._position(place)
        return None if position is None else self.calls[position]

    def context_at(self, place: int, empty: Context) -> Context | None:
        """Return the context in which the task whose first place is ``place`` will run; None if it has started or gone.

        From then on the task runs in that object itself, as changes made to it must reach the task and no other.

        Args:
            place: the first place.
            empty: the context for a task that was scheduled without variables.
        """
        position = self._position(place)
        if position is None or self.calls[position] is None:
            return None
        if self.contexts is None:
            self.contexts = [None] * len(self.calls)
        contexts: list[Any] = self.contexts  # a context, or a tuple of the one to run in itself
        if type(contexts[position]) is not tuple:
            contexts[position] = (empty if contexts[position] is None else contexts[position].copy(),)
        context: Context = contexts[position][0]
        return context

    def take(self, place: int) -> tuple[Any, Any, Context | None] | None:
        """Remove the task whose first place is ``place``; return callable, arguments and context, None if it has gone."""
        position = self._position(place)
        if position is None or self.calls[position] is None:
            return None
        call, args = self.calls[position], self.args[position]
        if type(args) is not tuple:  # unfolded(), inlined
            args = (args,)
        self.calls[position] = self.args[position] = context = None
        if self.contexts is not None:
            context, self.contexts[position] = self.contexts[position], None
        self.gone += 1
        if self._late is not None:
            self._late.append(place)
        self._check()
        return call, args, context

    def cancel_record(self) -> None:
        """Note that a record in the columns no longer waits; its place is freed later."""
        self.gone += 1
        self._check()

    def clear(self, position: int) -> None:
        """Empty a place, because its task starts, moves on or is cancelled."""
        self._empty(position)
        self.gone += 1

    def take_call(self, position: int) -> tuple[Any, Any, Any]:
        """Remove and return callable, arguments and context of the task at ``position``, because it starts."""
        found = (
            self.calls[position],
            unfolded(self.args[position]),
            None if self.contexts is None else self.contexts[position],
        )
        self.clear(position)
        return found

    def take_record(self, position: int) -> Record:
        """Remove and return a record that waits at ``position``, because it is due."""
        record: Record = self.calls[position]
        record._place = None
        self.calls[position] = None
        self.gone += 1
        return record

    def note_started(self, count: int) -> None:
        """Record that ``count`` tasks have started whose places are already empty."""
        self.gone += count

    def discard(self) -> None:
        """Free all columns: every task has gone, though handles may still point here."""
        for _ in self.discard_steps():
            pass

    def discard_with(self, chores: deque[Iterator[None]]) -> None:
        """Discard the bucket: at once if it is small, otherwise its memory is freed as a chore."""
        is_large = len(self.calls) > STEP
        steps = self.discard_steps()
        next(steps)
        if is_large:
            chores.append(steps)

    def discard_steps(self) -> Iterator[None]:
        """Discard the bucket in steps: it drops its columns before the first yield, and they shrink afterwards."""
        columns: list[Any] = [self.dues, self.calls, self.args, self.contexts or []]
        self.gone = 0
        self._boundary = self.shift = 1 << 62
        self._origin = None
        self.dues = array("d")
        self.calls = []
        self.args = []
        self.contexts = None
        yield
        for column in columns:
            while column:
                del column[-_FREE_COUNT:]
                yield

    def positions(self) -> Iterator[int]:
        """Walk the positions of the waiting tasks."""
        return (position for position in range(len(self.calls)) if self.is_waiting(position))

    def is_waiting(self, position: int) -> bool:
        """True if the task at ``position`` still waits here."""
        if position >= len(self.calls):  # the columns were freed, because all tasks had gone
            return False
        call = self.calls[position]
        return call is not None and (self.args[position] is not RECORD or _waits(call, self))

    def due_of(self, position: int) -> float:
        """Return the loop time at which a task is due."""
        return self.dues[position]

    def cost_of(self, position: int) -> int:  # noqa: ARG002  # the signature of Source
        """Return how many permits the start of a task takes."""
        return 1

    def name_of(self, position: int) -> str:
        """Return the name of a task: that of its callable."""
        return name_of(self.calls[position])

    def _fn_of(self, position: int) -> Any:
        """Return the callable of a task that waits without a record; None once it has gone."""
        return self.calls[position] if position < len(self.calls) else None

    def _args_of(self, position: int) -> Any:
        """Return the arguments of such a task."""
        return () if self._fn_of(position) is None else unfolded(self.args[position])

    def compact(self) -> Iterator[None]:
        """Compact the columns, :data:`STEP` places between two yields; gives up if the bucket is opened or frozen."""
        fresh = Bucket(self.calendar)
        origin: array[int] = array("Q")
        self._late = []
        position = 0
        while position < len(self.calls):
            stop = min(position + STEP, len(self.calls))
            self.move_survivors(fresh, origin, position, stop)
            position = stop
            yield
            if self.opened or self.frozen:
                self._late = None
                return
        late, self._late = self._late, None
        self._boundary = self.shift + len(self.calls)
        self.shift = self._boundary - len(fresh.calls)
        self.gone -= len(self.calls) - len(fresh.calls)  # the remainder went after being moved
        self._origin = origin
        self.dues, self.calls, self.args, self.contexts = fresh.dues, fresh.calls, fresh.args, fresh.contexts
        for place in late:
            moved = self._position(place)
            if moved is not None:
                self._empty(moved)

    @two_bodies
    def move_survivors(self, fresh: Bucket, origin: array[int], start: int, stop: int) -> None:
        """Append the waiting tasks between two positions to another bucket, and their first places to ``origin``."""
        for position in filter(self.is_waiting, range(start, stop)):
            context = None if self.contexts is None else self.contexts[position]
            fresh.add(self.dues[position], self.calls[position], (), context)
            fresh.args[-1] = self.args[position]  # as stored: it is folded already
            origin.append(self._place(position))

    def compact_with(self, chores: deque[Iterator[None]]) -> None:
        """Compact the columns: at once if the bucket is small, else as a chore."""
        steps = self.compact()
        if len(self.calls) <= STEP:
            for _ in steps:
                pass
        else:
            self._late = []  # from now on, so that a cancel before the first step requests no second compaction
            chores.append(steps)

    def _check(self) -> None:
        if not self.opened and not self.frozen and self._late is None and self.gone > self.live + SPARE_COUNT:
            self.calendar.note_sparse(self)

    def _empty(self, position: int) -> None:
        self.calls[position] = None
        self.args[position] = None
        if self.contexts is not None:
            self.contexts[position] = None

    def _place(self, position: int) -> int:
        """Return the first place of the task at ``position``."""
        origin = self._origin
        return origin[position] if origin is not None and position < len(origin) else position + self.shift

    def _position(self, place: int) -> int | None:
        """Return the current position of the task with a first place; None if it has gone."""
        if self._origin is None or place >= self._boundary:
            position = place - self.shift
            return position if 0 <= position < len(self.calls) else None
        position = bisect_left(self._origin, place)
        return position if position < len(self._origin) and self._origin[position] == place else None


def folded(args: tuple[Any, ...]) -> Any:
    """Return arguments as stored in the column: a single one bare, which saves a tuple (48 bytes a task)."""
    return args[0] if len(args) == 1 and type(args[0]) is not tuple else args


def unfolded(kept: Any) -> Any:
    """Return the tuple of arguments that :func:`folded` was given."""
    return kept if type(kept) is tuple else (kept,)


@used_there
def name_of(call: Any) -> str:
    """Return the qualified name of a callable, of the one inside a partial, or its type's; never fails."""
    try:
        name = getattr(getattr(call, "func", call), "__qualname__", None)
    except Exception:  # noqa: BLE001  # a proxy may raise anything for an attribute, and a name is not worth a task
        name = None
    return name if isinstance(name, str) else type(call).__qualname__


def _waits(record: Record, bucket: Bucket) -> bool:
    return record._place is bucket
