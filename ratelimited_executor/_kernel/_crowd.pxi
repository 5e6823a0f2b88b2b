# Several due tasks at a time: they become ready, and start in stretches. Included by ``_compiled.pyx``.
#
# At 100,000 calls a second a wake-up starts hundreds of calls. It costs some 20 microseconds less than in Python,
# beside 80 for the calls. So there is a wake-up every three milliseconds instead of every four, and due tasks wait for
# a shorter time.

cdef Py_ssize_t READY_RECORD_COUNT_MAX = sizes.READY_RECORD_COUNT_MAX, STRETCH_COUNT_MAX = sizes.STRETCH_COUNT_MAX
cdef Py_ssize_t START_COUNT_MAX = sizes.START_COUNT_MAX


cdef Py_ssize_t GROUP_COUNT_MAX = 32  # streams that are merged by looking at each


# Intervals.

def enter(QueueFields self, double now, double wall):
    cdef CalendarFields on_time = self.on_time, spread = self.spread
    cdef double since = self.interval_end
    cdef Py_ssize_t late_count = 0 if self.is_dense else spread.opened_count
    cdef bint is_begin = now >= self.interval_end
    number = self.ticks.number_at(now)
    self.end = self.ticks.start_of(number + 1)
    open_calendar(on_time, number, self.end)
    open_calendar(spread, number, self.end)
    if is_begin:
        (<object>self).begin_interval(now, late_count)
    self.later_count = self._later_on_time_count = 0
    if self.last_tick > number:
        self.later_count = (<object>spread).waiting_until(self.last_tick) - spread.opened_count
        self._later_on_time_count = (<object>on_time).waiting_until(self.last_tick) - on_time.opened_count
    if is_begin and is_pending(self.wall):
        (<object>self)._read_wall(now, wall, since)


def begin_interval(QueueFields self, double now, Py_ssize_t late_count):
    cdef PlanFields plan = self.plan
    if self.ticks is not self.timeline:
        pure["Intervals.begin_interval"](self, now, late_count)
        return
    self.last_tick, self.interval_end = (<CalendarFields>self.on_time).number, self.end
    plan.next_at = <double>self.ticks.start_of(self.last_tick) + self.phase_seconds
    plan.end, plan._late_count = self.interval_end + self.phase_seconds, late_count


def _note_opening(QueueFields self):
    return note_opening(self)


cdef double note_opening(QueueFields self) except? -1:
    """Note when a calendar should open or prepare its next bucket: ``Intervals._note_opening``."""
    self._opening_at = next_opening(self.on_time)
    if self.spread.numbers:
        self._opening_at = min(self._opening_at, next_opening(self.spread))
    return self._opening_at


def open_until(CalendarFields self, number, double end):
    open_calendar(self, number, end)


cdef int open_calendar(CalendarFields self, object number, double end) except -1:
    """Open every interval up to one: ``Calendar.open_until``."""
    self._current = self._current_group = None
    if self.opened:
        (<object>self)._prune()
    self.number, self.end = number, end
    while self.numbers and not number < self.numbers[0]:
        open_interval(self, heappop(self.numbers))
    return 0


def _open(CalendarFields self, number):
    open_interval(self, number)


cdef int open_interval(CalendarFields self, object number) except -1:
    """Open an interval: ``Calendar._open``."""
    cdef list group = []
    cdef double end
    if number in self.future:
        pure["Calendar._open"](self, number)
        return 0
    self.groups.append(group)
    if number == self.number:
        self._current_group = group
    end = self.end if number == self.number else self.timeline.start_of(number + 1)
    for source in self.parcels.pop(number, ()):
        open_batch(self, <BatchFields?>source, number, end, group)
    return 0


def _open_batch(CalendarFields self, BatchFields source not None, number, double end, list group):
    open_batch(self, source, number, end, group)


cdef int open_batch(CalendarFields self, BatchFields source, object number, double end, list group) except -1:
    """Open the tasks of a batch that are due in an interval: ``Calendar._open_batch`` and ``Calendar._add_parcel``."""
    cdef Py_ssize_t start = source.opened_count, stop = 0, high = source.count, middle
    cdef StreamFields stream
    cdef RisingFields order
    source.parcel = None
    while stop < high:  # count_before()
        middle = (stop + high) // 2
        if due_of(source, middle) < end:
            stop = middle + 1
        else:
            high = middle
    if stop > start:
        order = RLE_NEW(RISING_ORDER, NO_ARGS)
        order._source, order._dues, order._next, order._stop = source, source.dues, start, stop
        stream = RLE_NEW(STREAM, NO_ARGS)
        stream.source, stream.order = source, order
        group.append(stream)
        source.opened_count = stop
        self.opened_count += stop - start
    if stop < source.count:
        number = max(self.timeline.number_at(due_of(source, stop)), number + 1)
        parcels = self.parcels.get(number)
        if parcels is None:
            parcels = self.parcels[number] = {}
            if number not in self.future:
                heappush(self.numbers, number)
        parcels[source] = None
        source.parcel = number
    return 0


def opening_time(CalendarFields self):
    return next_opening(self)


cdef double next_opening(CalendarFields self) except? -1:
    """Return the loop time at which the next interval should open: ``Calendar.opening_time``."""
    cdef double start, due = INF
    if not self.numbers:
        return INF
    number = self.numbers[0]
    parcels = self.parcels.get(number)
    if self.future or not parcels:
        return pure["Calendar.opening_time"](self)
    if number != self._next_number:
        self._next_number, self._next_start = number, self.timeline.start_of(number)
    start = self._next_start
    if start == INF or not self._is_punctual:
        return start
    for source in parcels:
        due = min(due, due_of(<BatchFields?>source, (<BatchFields>source).opened_count))
    return max(start, due)


# From due to ready.

cdef bint pull(QueueFields self, double now) except -1:
    """Make the due tasks ready: ``PlainQueue._pull``."""
    cdef CalendarFields on_time = self.on_time, spread = self.spread
    cdef double steps = PULL_STEPS, begin = INF
    if self.is_halted or self.rekeying or PyObject_Length(self.chores):
        return self._pull(now)
    if self._opening_at <= now and note_opening(self) <= now:
        return self._pull(now)
    self._pulled_at = now
    if not self.is_unlimited and spread.groups and not active_of(on_time.ready) and not active_of(spread.ready):
        begin = min(next_spread_due(self), next_due(on_time))  # ``PlainQueue._next_begin``
    if on_time.groups:
        steps = pull_due(on_time, seen_until(self.timeline, now), steps)
    if spread.groups:
        steps = pull_due(spread, self.interval_end if self.early else now - self.phase_seconds, steps)
    self._is_sorting = self._is_bursty and steps <= 0
    self.is_dense = False
    if not self.is_unlimited and spread.opened_count + self.later_count > 0:
        self.is_dense = is_dense(self, now) or (bool(self.passing) and self._is_passing())
        if self.is_dense and begin <= now:
            (<AdmissionFields>self.admission).permits.begin_at(self.timeline.to_ns(begin))
    (<AdmissionFields>self.admission).count = 0
    return steps > 0 and not PyObject_Length(self.chores)


cdef double pull_due(CalendarFields calendar, double now, double steps) except? -1:
    """Make the due tasks of a calendar ready: ``Calendar.pull`` and ``Calendar._pull_stream``."""
    cdef list group
    cdef StreamFields stream
    cdef Py_ssize_t count_max
    while len(calendar.groups) and steps > 0:
        group = calendar.groups[0]
        if not isinstance(calendar.ready, ReadyFields) or not may_merge(group):
            return calendar.pull(now, steps)
        if len(group) != 1 or type((<StreamFields>group[0]).order) is RISING_ORDER:
            steps = pull_group(calendar, group, now, steps)
        else:
            stream = <StreamFields>group[0]
            while steps > 0 and head_of(stream.order) <= now:
                if not stream.order.prepare():
                    steps -= 1
                    continue
                count_max = calendar.take_count_max
                if isinstance(stream.source, BucketFields) and (<BucketFields>stream.source).has_records:
                    count_max = min(count_max, READY_RECORD_COUNT_MAX)
                positions = stream.order.take(now, count_max)
                add_due(calendar, stream.source, positions)
                steps -= 0.01 + <double>len(positions) / count_max
            # The order function may have scheduled a task, and so added to the group.
            if steps > 0 and stream is not calendar._current and len(group) == 1 and head_of(stream.order) == INF:
                group.clear()
        if group or group is calendar._current_group:
            break
        if len(calendar.groups) and calendar.groups[0] is group:
            calendar.groups.popleft()
    return max(steps, 0.0)


cdef bint may_merge(list group) except -1:
    """True if a group has one stream, or a few of batches."""
    if len(group) > GROUP_COUNT_MAX:
        return False
    if len(group) > 1:
        for each in group:
            if type((<StreamFields>each).order) is not RISING_ORDER:
                return False
    return True


cdef double pull_group(CalendarFields calendar, list group, double now, double steps) except? -1:
    """Make the due tasks of a few batches ready, merged by due time: ``Calendar._pull_group``."""
    cdef StreamFields stream
    cdef RisingFields rising
    cdef Py_ssize_t index, first, second, count_max = calendar.take_count_max, begin
    cdef double head, least, limit
    while True:
        first = second = -1
        least = limit = now
        for index in range(len(group)):
            head = head_of((<StreamFields>group[index]).order)
            if head > now:
                continue
            if first < 0 or head < least:
                first, second, least, limit = index, first, head, least
            elif second < 0 or head < limit:
                second, limit = index, head
        if first < 0:
            break
        if second < 0:
            limit = now
        elif second < first:  # it goes first where due times are equal
            limit = nextafter(limit, -INF)
        stream = group[first]
        rising = stream.order
        begin = rising._next
        rising._next = due_until(<BatchFields>stream.source, limit, begin, min(begin + count_max, rising._stop))
        add_due(calendar, stream.source, range(begin, rising._next))
        steps -= 0.01 + <double>(rising._next - begin) / count_max
        if steps <= 0:
            return 0
    group[:] = [each for each in group if each is calendar._current or head_of((<StreamFields>each).order) < INF]
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
    if type(ready) is READY_QUEUES:
        add_run(ready, source, positions, rank)
    else:
        (<object>ready).push_run(source, positions, rank)
    return 0


def push_run(ReadyFields self, source, positions, rank):
    add_run(self, source, positions, rank)


cdef int add_run(ReadyFields self, object source, object positions, object rank) except -1:
    """Add tasks of one source and rank, in due order: ``ReadyQueues.push_run``."""
    cdef RunFields run
    queue = self._queues.get(rank)
    if self._by_due is not None:
        queue = (<object>self)._queue(rank)
    elif queue is None:
        queue = self._queues[rank] = deque()
        heappush(self.active, rank)
    run = RLE_NEW(RUN, NO_ARGS)
    run.source, run._positions, run._number, run._cursor = source, positions, self._count, 0
    queue.append(run)
    self._count += len(positions)
    return 0


cdef inline object first_run(object ready):
    """Return the run from which to take the first task: ``ReadyQueues.pop``."""
    if type(ready) is READY_QUEUES:
        return (<ReadyFields>ready)._queues[(<ReadyFields>ready).active[0]][0]
    return ready.pop()


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
        first = on_time.ready.head() if active_of(on_time.ready) else None
        second = spread.ready.head() if active_of(spread.ready) else None
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
            self._is_planned = earliest_of(spread.ready) is not None  # nothing is special here, so only due times count
        else:
            return None
        run = earliest_run(calendar.ready) if self._is_planned else first_run(calendar.ready)
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
