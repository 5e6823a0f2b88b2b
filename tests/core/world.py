"""A queue, a clock and records, without a shell."""

from __future__ import annotations

import math
from collections import deque

from ratelimited_executor._kernel.buckets import Bucket
from ratelimited_executor._core.permits.exact import ExactGrid
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._core.order.ordering import TaskClass, default_order
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._core.queue.queue import TaskQueue
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.records import Options, TaskRecord

from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._kernel.timeline import NS, Timeline


class CoreRecord(TaskRecord):
    """A record without a shell."""

    __slots__ = ("_name",)

    def __init__(
        self,
        name: str = "task",
        *,
        due: float = 0.0,
        priority: float = 0,
        rank: TaskClass = TaskClass.OTHER,
        expires: float | None = None,
    ) -> None:
        self._name = name
        self._due = due
        self._class = rank
        self._place = None
        self._state = TaskState.WAITING
        self._options = None
        if priority or expires is not None:
            self._options = Options(priority=priority, expires=expires)
            if expires is not None:
                self._options.deadline = due + expires

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return self._name


class CountingCalendar:
    """Takes the place of the owner of buckets and ready queues: compacts them, and counts the tasks that have gone."""

    def __init__(self) -> None:
        self.chores: deque = deque()
        self.gone = 0

    def note_sparse(self, bucket) -> None:
        bucket.compact_with(self.chores)

    def note_gone(self, place) -> None:
        self.gone += 1

    def step(self) -> None:
        """Do one step of the first chore."""
        if self.chores and next(self.chores[0], self) is self:
            self.chores.popleft()


class World:
    """A queue, a clock, and the starts as text."""

    def __init__(
        self,
        record_class,
        *,
        rate=math.inf,
        pacing=Pacing.SPREAD,
        interval=1.0,
        early=False,
        is_exact=False,
        tick: float = 0.0,
    ) -> None:
        self.record_class = record_class
        self.takes_lone = True  # as an executor does
        self.lone_count = 0  # of the pure kernel, as the other one decides in one piece
        self.tick = tick  # resolution of the times at which the queue can be woken; 0 if unlimited
        self.now = 0.0
        self.log: list[str] = []
        timeline = Timeline(monotonic=0.0, wall=36000.0, interval_ns=int(interval * NS))
        grid = ExactGrid if is_exact else PermitGrid
        self.queue = TaskQueue(
            timeline,
            now=0.0,
            permits=grid(Rate.of(rate), slack_ns=20_000_000, now_ns=timeline.to_ns(0.0)),
            slack=0.02,
            pacing=pacing,
            order=default_order,
            early=early,
            report_order_error=lambda error: None,
        )
        self.queue._take_lone = self._take_lone
        self.queue.on_gone = lambda source, item, state: self.log.append(f"{item!r}{self.now:.3f}{state.value}")

    def add(self, name, due=None, **options):
        """Add a record, due now unless a time is given."""
        record = self.record_class(
            name,
            due=self.now if due is None else due,
            rank=TaskClass.IMMEDIATE if due is None else TaskClass.OTHER,
            **options,
        )
        if due is None:
            self.queue.add_immediate(record)
        else:
            self.queue.add_record(record)
        return record

    def run(self, until):
        """Start what the queue chooses, at the times that it returns."""
        queue = self.queue
        for _ in range(10_000):
            if self.now >= queue.end:
                queue.enter(self.now, self.now + 36000.0)
            queue.is_changed = True
            start_count = len(self.log)
            while (taken := self._poll()) is not None or queue.wake_at == -math.inf:
                if taken is not None:
                    self._start(*taken)
            wake = queue.wake_at
            assert wake > self.now or len(self.log) > start_count, (
                "the queue asks for a wake-up at once, but starts nothing"
            )
            if self.tick and wake < math.inf:
                wake = math.ceil(wake / self.tick) * self.tick
            if wake > until:
                self.now = until
                return
            self.now = max(self.now, wake)
        raise AssertionError("the queue does not come to rest")

    def _take_lone(self, now):
        taken = TaskQueue._take_lone(self.queue, now)
        self.lone_count += taken is not None
        return taken

    def _poll(self):
        """Ask the queue, by way of the ready tasks unless lone ones are taken directly."""
        queue = self.queue
        if queue.is_changed and not self.takes_lone:
            make_all_ready(queue, self.now)
        return queue.poll(self.now, 1)

    def _start(self, source, item):
        due = item._due if source is None else source.due_of(item)
        if self.queue.counts_effects:
            self.queue.take_effect(self.now)
        if isinstance(source, Bucket):
            name, _, _ = source.take_call(item)
        elif source is not None:
            name = source.name_of(item)
        else:
            name = repr(item)
        assert due <= self.now or self.queue.early
        self.log.append(f"{name}{self.now:.3f}")

    def text(self):
        return " ".join(self.log)


def make_all_ready(queue, now):
    """Make the due tasks of a queue ready before it is asked, so that it takes none of them directly."""
    while not queue.pull(now):
        pass
    queue.expire(now)
    queue.is_changed = False
