"""Several tasks of one run that start one after the other, with nothing to decide between them.

That is possible where the rate is unlimited, or where several permits are usable and no other task waits for them.

Theory. Most of a trivial call's cost is bookkeeping: incrementing an attribute costs as much as the call itself. So
nothing is counted while a stretch is being started. Only the iterator over its positions knows the progress
(``__length_hint__`` of a list's or range's iterator), and :meth:`Stretch.catch_up` brings the counts up to date whenever
they are read: at the end, or when a started call asks for anything that depends on them.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.fields import StretchFields
from ratelimited_executor._kernel.sizes import STRETCH_COUNT_MAX as STRETCH_COUNT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimited_executor._kernel.calendar import Calendar
    from ratelimited_executor._kernel.records import Record

__all__ = ["STRETCH_COUNT_MAX", "Stretch"]


class Payer(Protocol):
    """The part of its queue that a stretch uses: the accounting of starts."""

    def spend(self, calendar: Calendar, due: float, now: float, count: int = 1) -> None:
        """Use the permits of starts that are counted already."""
        ...

    def note_untold(self, count: int) -> None:
        """Record starts that no listener is notified of."""
        ...

    def admit_record(self, calendar: Calendar, record: Record, now: float, *, is_paid: bool) -> bool:
        """Count a record as started, and pay for it; False if it has expired."""
        ...


class Stretch(StretchFields):
    """The stretch of a queue that is being started, if one is.

    Args:
        queue: the queue of the tasks.

    Attributes:
        source: the source of the tasks; None for records.
        skipped_count: positions read since the last :meth:`catch_up` whose tasks had gone; the reader counts them.
    """

    __slots__ = ()

    def __init__(self, queue: Payer) -> None:
        self._queue = queue
        self._calendar = None
        self._run = None
        self._positions = None  # an iterator; None if nothing is being started, or the positions were released
        self._count = 0  # tasks that may start, or records that still may
        self._is_paid = False  # True if each start takes a permit, or is planned
        self.source = None
        self.skipped_count = 0

    def begin(self, calendar: Calendar, run: Any, count: int, *, is_paid: bool) -> Stretch:
        """Begin with a chosen run, of which ``count`` tasks may start."""
        self._calendar = calendar
        self._run = run
        self._count = min(count, STRETCH_COUNT_MAX)
        self._is_paid = is_paid
        self.source = run.source
        return self

    @property
    def is_paid(self) -> bool:
        """True if each start takes a permit, or is planned, and so must be reported to the queue."""
        return self._is_paid

    def positions(self) -> Iterator[int]:
        """Walk the positions to start; the reader counts those whose tasks have gone as skipped."""
        self._positions = self._run.positions()
        return islice(self._positions, self._count)

    @property
    def first(self) -> int:
        """The first position."""
        first: int = self._run.first
        return first

    def take_record(self, now: float) -> Any:
        """Take the next record to start; None if there is none."""
        run = self._run
        records = run.records
        while self._count > 0 and run.cursor < len(records):
            record = records[run.cursor]
            records[run.cursor] = None
            run.cursor += 1
            if record._place is not run:
                continue  # it was cancelled
            record._place = None
            self._count -= 1
            if record._options is None and not self._is_paid:
                self._calendar.opened_count -= 1
                return record
            if self._queue.admit_record(self._calendar, record, now, is_paid=self._is_paid):
                return record
        return None

    def catch_up(self, now: float) -> int:
        """Count the starts so far, at loop time ``now``; return how many of them are new."""
        if self._positions is None:
            return 0
        started: int = self._run.advance(self._positions) - self.skipped_count
        self.skipped_count = 0
        if started:
            self._calendar.opened_count -= started
            self.source.note_started(started)
            if self._is_paid:
                self._queue.spend(self._calendar, self._run.last_due(), now, started)
                self._queue.note_untold(started)
        return started

    def detach(self) -> None:
        """Release the positions after those of the last :meth:`catch_up`: others may take them from now on."""
        self._positions = None

    def end(self) -> None:
        """End the stretch, once its starts are counted; a batch all of whose tasks have started is forgotten."""
        source, calendar = self.source, self._calendar
        self._positions = self._run = self._calendar = self.source = None
        if type(source) is BatchSource and not source.live and not source.revoked:
            calendar.finish(source)
