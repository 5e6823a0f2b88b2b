# Several due tasks at a time: they become ready, and start in stretches. Included by ``_compiled.pyx``.
#
# At 100,000 calls a second a wake-up starts hundreds of calls. It costs some 20 microseconds less than in Python,
# beside 80 for the calls. So there is a wake-up every three milliseconds instead of every four, and due tasks wait for
# a shorter time.

cdef Py_ssize_t READY_RECORD_COUNT_MAX = sizes.READY_RECORD_COUNT_MAX, STRETCH_COUNT_MAX = sizes.STRETCH_COUNT_MAX
cdef Py_ssize_t START_COUNT_MAX = sizes.START_COUNT_MAX


# From due to ready.

cdef bint pull(QueueFields self, double now) except -1:
    """Make the due tasks ready: ``PlainQueue._pull``."""
    cdef CalendarFields on_time = self.on_time, spread = self.spread
    cdef double steps = PULL_STEPS
    if self.is_halted or self.rekeying or PyObject_Length(self.chores) or self._opening_at <= now:
        return self._pull(now)
    if not self.is_unlimited and spread.opened_count + self.later_count > 0:
        return self._pull(now)
    self._pulled_at = now
    if on_time.groups:
        steps = pull_due(on_time, seen_until(self.timeline, now), steps)
    if spread.groups:
        steps = pull_due(spread, self.interval_end if self.early else now - self.phase_seconds, steps)
    self._is_sorting = self._is_bursty and steps <= 0
    self.is_dense = False
    (<AdmissionFields>self.admission).count = 0
    return steps > 0 and not PyObject_Length(self.chores)


cdef double pull_due(CalendarFields calendar, double now, double steps) except? -1:
    """Make the due tasks of a calendar ready: ``Calendar.pull`` and ``Calendar._pull_stream``."""
    cdef list group = calendar.groups[0]
    cdef StreamFields stream
    cdef Py_ssize_t count_max
    if len(calendar.groups) != 1 or len(group) != 1 or not isinstance(calendar.ready, ReadyFields) or steps <= 0:
        return calendar.pull(now, steps)
    stream = <StreamFields>group[0]
    while head_of(stream.order) <= now:
        if not stream.order.prepare():
            steps -= 1
        else:
            count_max = calendar.take_count_max
            if isinstance(stream.source, BucketFields) and (<BucketFields>stream.source).has_records:
                count_max = min(count_max, READY_RECORD_COUNT_MAX)
            positions = stream.order.take(now, count_max)
            add_due(calendar, stream.source, positions)
            steps -= 0.01 + <double>len(positions) / count_max
        if steps <= 0:
            return 0
    # The order function may have scheduled a task, and so added to the group.
    if stream is not calendar._current and len(group) == 1 and head_of(stream.order) == INF:
        group.clear()
        if calendar.groups and calendar.groups[0] is group and group is not (<object>calendar)._current_group:
            calendar.groups.popleft()
            if calendar.groups:
                return calendar.pull(now, steps)
    return steps


cdef int add_due(CalendarFields calendar, object source, object positions) except -1:
    """Make tasks that were taken in due order ready: ``Calendar._make_ready`` and ``ReadyQueues.push_run``."""
    cdef BucketFields bucket
    cdef ReadyFields ready = calendar.ready
    rank = PLAIN_RANK
    if isinstance(source, BucketFields):
        bucket = <BucketFields>source
        if len(bucket.calls) == bucket.gone:
            return 0
        if bucket.has_records:
            (<object>calendar)._split(bucket, positions)
            return 0
    else:
        rank = (<BatchFields>source).rank
    (<object>ready).push_run(source, positions, rank)
    return 0


# Taking.

cdef object take(QueueFields self, double now, long long limit):
    """Take the next of the ready tasks, or a stretch of them: ``PlainQueue._take``."""
    cdef CalendarFields on_time = self.on_time, spread = self.spread, calendar
    cdef AdmissionFields admission = self.admission
    cdef StretchFields stretch
    cdef object first, second, run, source
    if self.is_special:  # since a moment ago
        return self._take(now, limit)
    while True:
        if self._is_sorting or (not admission.count and now < admission.next_at):
            return None
        first = on_time.ready.head() if on_time.ready.active else None
        second = spread.ready.head() if spread.ready.active else None
        if first is None and second is None:
            return None
        if not self.is_unlimited and not find_permits(self, now):
            return None
        self._is_planned = False
        if first is not None:
            calendar = spread if second is not None and not self.is_unlimited and second < first else on_time
        elif self.is_dense or self.pacing is ON_TIME:
            calendar = spread
        elif self._pulled_at >= (<PlanFields>self.plan).next_at and not self.wall.is_reading:
            calendar = spread
            self._is_planned = spread.ready.earliest() is not None  # nothing is special here, so only due times count
        else:
            return None
        run = calendar.ready.pop_earliest() if self._is_planned else calendar.ready.pop()
        source = run.source
        count = 1
        if limit != 1 and not self._is_single:
            if self.on_start is None:
                count = stretch_count(self, calendar)
            elif self.untold_count > 1:
                count = min(stretch_count(self, calendar), self.untold_count)
        if count > 1 and (source is None or is_loose(source)):
            stretch = self.stretch
            stretch._calendar, stretch._run, stretch.source = calendar, run, source
            stretch._count = min(count, limit, STRETCH_COUNT_MAX)
            stretch._is_paid = not self.is_unlimited or calendar is not on_time
            return stretch
        found = take_from(run)
        if admit(self, calendar, (<tuple>found)[0], (<tuple>found)[1], now):
            return found


cdef long long stretch_count(QueueFields self, CalendarFields calendar) except -1:
    """Count the tasks that may start in succession: ``PlainQueue._stretch_count`` and ``SpreadPlan.count_until``."""
    cdef PlanFields plan = self.plan
    cdef long long count = UNLIMITED, left, planned
    cdef double gap
    if not self.is_unlimited:
        other = self.spread if calendar is self.on_time else self.on_time
        count = (<AdmissionFields>self.admission).count if other.ready.head() is None else 1
    if self._is_planned and not (<object>calendar.ready).is_in_due_order:
        return 1
    if calendar is self.spread and self.pacing is SPREAD and not self.is_dense:
        left = calendar.opened_count + self.later_count
        gap = (plan.end - plan.next_at) / max(left, 1)
        if gap <= 0:
            return min(count, max(left, 1))
        planned = 1
        if self._pulled_at - plan.next_at <= plan._slack:
            planned += <long long>min((self._pulled_at - plan.next_at) / gap, <double>left)
        count = min(count, max(1, min(left, plan._late_count + planned)))
    return count


cdef inline bint is_loose(object source) noexcept:
    """True if tasks of a source may start in succession, with no decision or notification in between."""
    return isinstance(source, BucketFields) or ((<BatchFields>source).is_plain and not (<BatchFields>source).is_watched)


# Starting.

def start_many(StarterFields self, StretchFields stretch, double now, double stop):
    return start_stretch(self, stretch, now, stop)


cdef double start_stretch(StarterFields self, StretchFields stretch, double now, double stop) except? -1:
    cdef QueueFields queue = self._queue
    cdef AccountFields accounts = self._accounts
    cdef long long before = accounts.started_count
    stop = min(stop, (<AdmissionFields>queue.admission).usable_until)
    if stretch.source is None:
        now = (<object>self)._start_records(stretch, now, stop)
    else:
        now = (<object>self)._start_plain(stretch, now, stop)
        if queue.counts_effects:
            note_effect(queue, now)
    if queue.on_start is not None and not stretch._is_paid:
        queue.untold_count = max(0, queue.untold_count - (accounts.started_count - before))
    if accounts.on_end is not None:
        accounts.on_end()
    if accounts.on_room is not None:
        accounts.on_room()
    return now
