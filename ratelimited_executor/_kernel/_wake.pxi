# The fast path of a start under a rate, from one wake-up of the loop to the next: included by ``_compiled.pyx``.
#
# A process that starts a task now and then finds its caches cold: a wake-up costs as much as the memory that it
# touches. In Python this is a hundred small functions, 36 microseconds at 1,000 starts a second; here it is 14.

cdef Py_ssize_t COMPACT_COUNT = sizes.COMPACT_COUNT, FEW_COUNT = sizes.FEW_COUNT, MARGIN_COUNT = sizes.MARGIN_COUNT, CROWD_COUNT = sizes.CROWD_COUNT
cdef double BLOCKED_SECONDS = sizes.BLOCKED_SECONDS, SLICE_SECONDS = sizes.SLICE_SECONDS
cdef long long FAR_NS = 1 << 62  # times in nanoseconds up to here fit, with room for their sums
cdef double DESCRIPTOR_SECONDS_MAX = sizes.DESCRIPTOR_SECONDS_MAX, PULL_STEPS = sizes.PULL_STEPS, ROUND_UP = sizes.ROUND_UP
cdef object SPREAD = Pacing.SPREAD
cdef object INERT_TYPES = frozenset((list, tuple, range, array))  # as in ``_runtime/task/batch_items.py``


# What is due.

def count_until(BatchFields self, double now, Py_ssize_t start, Py_ssize_t stop):
    return due_until(self, now, start, stop)


cdef Py_ssize_t due_until(BatchFields self, double now, Py_ssize_t start, Py_ssize_t stop) except -1:
    cdef Py_ssize_t middle
    while start < stop:
        middle = (start + stop) // 2
        if now < due_of(self, middle):
            stop = middle
        else:
            start = middle + 1
    return start


cdef double head_of(object order) except? -1:
    """Return the earliest due time left in an order, as its ``head()`` does."""
    cdef RisingFields rising
    cdef BatchFields source
    if type(order) is DueOrder:
        return (<DueOrder>order).head_()
    if type(order) is not RISING_ORDER:
        return order.head()
    rising = <RisingFields>order
    source = <BatchFields>rising._source
    return INF if rising._next >= rising._stop or source.revoked else due_of(source, rising._next)


cdef inline double due_of(BatchFields source, Py_ssize_t position) except? -1:
    if source.dues is None:
        return source.first + position * source._gap
    if type(source.dues) is array and 0 <= position < Py_SIZE(source.dues):
        return (<carray.array>source.dues).data.as_doubles[position]
    return source.dues[position]


def number_at(TimelineFields self, double loop_time):
    cdef long long now_ns, interval_ns
    if to_ns(self, min(loop_time, FAR_SECONDS), &now_ns) and now_ns >= 0 and fits(self.interval_ns, &interval_ns):
        return now_ns // interval_ns
    return pure["Timeline.number_at"](self, loop_time)


def start_of(TimelineFields self, number):
    cdef long long interval_ns, count
    if fits(self.interval_ns, &interval_ns) and fits(number, &count) and 0 <= count < FAR_NS // interval_ns:
        return to_loop(self, count * interval_ns)
    return pure["Timeline.start_of"](self, number)


cdef inline bint is_pending(object wall) except -1:
    """True if any task waits by the wall clock: ``WallWheel.is_pending``."""
    if isinstance(wall, WallFields):
        return len((<WallFields>wall)._buckets) > 0 or len((<WallFields>wall)._batches) > 0
    return wall.is_pending


cdef inline object active_of(object ready):
    """Return the queues of a calendar that have ready tasks."""
    return (<ReadyFields>ready).active if isinstance(ready, ReadyFields) else ready.active


cdef inline double due_at(object source, Py_ssize_t position) except? -1:
    """Return the loop time at which a task of a bucket or a batch is due."""
    cdef BucketFields bucket
    if not isinstance(source, BucketFields):
        return due_of(<BatchFields>source, position)
    bucket = <BucketFields>source
    return bucket.dues.data.as_doubles[position] if position < len(bucket.dues) else -INF  # freed: all tasks had gone


cdef double next_due(CalendarFields calendar) except? -1:
    """Return the earliest due time in the open intervals: ``Calendar.next_due``."""
    cdef double due = INF
    for group in calendar.groups:
        for stream in <list>group:
            due = min(due, head_of((<StreamFields>stream).order))
    return due


cdef bint is_read(list group) except -1:
    """True if the streams of an interval have no more tasks."""
    for stream in group:
        if head_of((<StreamFields>stream).order) < INF:
            return False
    return True


cdef object take_due(CalendarFields calendar, double now, bint is_lone):
    """Take the first due task directly, while no task is ready: ``Calendar.take_lone``, or its ``take_first``."""
    cdef StreamFields found = None, stream
    cdef RisingFields rising
    cdef list group
    if len(calendar.groups) > 1 and is_read(calendar.groups[0]):
        calendar.groups.popleft()
    if not is_lone and (len(calendar.groups) != 1 or len(calendar.groups[0]) != 1):
        return None
    if len(calendar.groups) != 1 or type(calendar.groups[0]) is not list or not len(<list>calendar.groups[0]):
        return calendar.take_lone(now) if is_lone else calendar.take_first(now)
    group = calendar.groups[0]
    if len(group) > 1 and not isinstance(calendar.ready, ReadyFields):
        return calendar.take_lone(now)
    if len(group) > 1 and (<ReadyFields>calendar.ready).active:
        return None
    for each in group:
        stream = <StreamFields>each
        if head_of(stream.order) <= now:
            if found is not None:
                return None
            found = stream
    if found is None:
        return None
    if type(found.order) is RISING_ORDER:
        rising = <RisingFields>found.order
        if is_lone and rising._next + 1 < rising._stop and due_of(<BatchFields>rising._source, rising._next + 1) <= now:
            return None
        rising._next += 1
        position = rising._next - 1
    else:
        position = found.order.take_lone(now) if is_lone else found.order.take_first(now)
    if position is None:
        return None
    if len(group) > 1 and found is not calendar._current and head_of(found.order) == INF:
        group.remove(found)
    return taken(found.source, position)


cdef inline bint is_waiting(BatchFields batch, Py_ssize_t position) except -1:
    """True if a task of a batch waits: ``BatchSource.is_waiting``."""
    if batch.revoked:
        return False
    return position >= batch.started_count if batch._started is None else not (<bytearray>batch._started)[position]


cdef object taken(object source, Py_ssize_t position):
    """Return a task that was taken from the order; None if it has gone: ``calendar._taken``."""
    cdef BucketFields bucket
    cdef RecordFields record
    if not isinstance(source, BucketFields):
        return (source, position) if is_waiting(<BatchFields?>source, position) else None
    bucket = <BucketFields>source
    call = bucket.calls[position] if position < len(bucket.args) else None  # see append()
    if call is None:
        return None
    if bucket.args[position] is not RECORD:
        return source, position
    record = <RecordFields?>call
    if record.place is not bucket:
        return None
    record.place = None
    if not PyObject_GC_IsTracked(record):
        PyObject_GC_Track(record)
    bucket.calls[position] = None
    bucket.gone += 1
    return None, record


cdef object take_from(object run):
    """Take the task that ``head_due()`` of a run found, as (source, position) or (None, record)."""
    cdef RunFields plain
    if not isinstance(run, RunFields):
        return run.source, run.take()
    plain = <RunFields>run
    position = plain._positions[plain._cursor]
    plain._cursor += 1
    return plain.source, position


cdef inline double seen_until(object timeline, double now) except? -1:
    return now if (<TimelineFields>timeline).loop_time is None else timeline.seen_until(now)


cdef inline bint is_all_ready(CalendarFields calendar, double now) except -1:
    """Make the due tasks of a calendar ready; False if there is more to do: ``queue._bring_up``."""
    return (len(calendar.groups) == 1 and next_due(calendar) > now) or pull_due(calendar, now, PULL_STEPS) > 0


# Taking.

cdef object take_lone(QueueFields self, double now):
    """Take the next task to start, if it is alone: ``PlainQueue._take_lone``."""
    cdef AdmissionFields admission = self.admission
    cdef CalendarFields on_time = self.on_time, spread = self.spread
    if not may_take_lone(self, now):
        return None
    if spread.opened_count or not isinstance(on_time.ready, ReadyFields) or (<ReadyFields>on_time.ready).active:
        return take_one(self, now)
    if not self.is_unlimited and not count_permits(admission, now):
        return None
    self._pulled_at = now
    found = take_due(on_time, seen_until(self.timeline, now), True)
    if found is not None and admit(self, on_time, (<tuple>found)[0], (<tuple>found)[1], now):
        return found
    return None


cdef bint may_take_lone(QueueFields self, double now) except -1:
    """True if nothing but a start is to be done now, and a permit may be there: ``PlainQueue._may_take_lone``."""
    if self.is_halted or PyObject_Length(self.chores) or (self.expiry.is_used and self._is_sweep_due(now)):
        return False
    if self._opening_at <= now and note_opening(self) <= now:
        return False
    if self.is_unlimited:
        return True
    self.admission.count = 0
    return now >= self.admission.next_at


cdef object take_lone_of_key(QueueFields self, double now):
    """Take the only due task, if its key may start one: ``TaskQueue._take_lone_of_key``."""
    cdef CalendarFields on_time = self.on_time, spread = self.spread, calendar = on_time
    cdef AdmissionFields admission = self.admission
    cdef double until
    cdef long long now_ns
    cdef tuple found
    if self.gate.asks_for_slots or active_of(on_time.ready) or active_of(spread.ready) or not may_take_lone(self, now):
        return None
    if not self.is_unlimited and not count_permits(admission, now):
        return None
    if not to_ns(self.timeline, now, &now_ns):
        return self._take_lone_of_key(now)
    self._pulled_at = now
    until = seen_until(self.timeline, now)
    if spread.opened_count:
        if self.early or self.passing or self.pacing is ON_TIME or next_due(on_time) <= until:
            return None
        self.is_dense = not self.is_unlimited and is_dense(self, now)
        if self.is_dense or not is_one(self, now):
            return None
        calendar, until = spread, now - self.phase_seconds
    found = take_due(calendar, until, True)
    if found is None:
        return None
    source, item = found
    if source is not None:
        key, cost = source.key, source.cost_of(item)
    elif (<RecordFields?>item)._options is None:
        key, cost = None, 1
    elif type((<RecordFields>item)._options) is KEY_OPTIONS:
        key, cost = (<RecordFields>item)._options.key, 1
    else:
        key, cost = item._key, item.cost
    if key is None or self.gate.is_free(key, cost, now_ns):
        return found if admit(self, calendar, source, item, now) else None
    if source is None:
        calendar.ready.push_record(item)
    else:
        calendar.ready.push_position(source, item, source.rank)
    return None


cdef inline bint is_one(QueueFields self, double now) except -1:
    """True if the planned instant of one task to be spread, and no other, has come: ``SpreadPlan.is_one``."""
    cdef PlanFields plan = self.plan
    cdef Py_ssize_t left = (<CalendarFields>self.spread).opened_count + self.later_count
    return now >= plan.next_at and not plan._late_count and (left <= 1 or (now - plan.next_at) * left < plan.end - plan.next_at)


cdef object take_one(QueueFields self, double now):
    """Take the next task to start, where a task is ready or waits to be spread: ``PlainQueue._take_one``."""
    cdef CalendarFields on_time = self.on_time, spread = self.spread, calendar
    cdef bint is_spread = spread.opened_count > 0
    cdef long long count = UNLIMITED if self.is_unlimited else count_permits(self.admission, now)
    if not count or (is_spread and (self.early or self.passing)):
        return None
    self._pulled_at = now
    if is_spread:
        self.is_dense = not self.is_unlimited and is_dense(self, now)
        if self.is_dense and not active_of(on_time.ready) and not active_of(spread.ready):
            return None  # a backlog may begin
    if on_time.groups and not is_all_ready(on_time, seen_until(self.timeline, now)):
        return None
    first = on_time.ready.head() if active_of(on_time.ready) else None
    second = None
    if is_spread:
        if first is None and not self.is_dense and self.pacing is SPREAD:
            return take_planned(self, now)
        if spread.groups and not is_all_ready(spread, now - self.phase_seconds):
            return None
        second = spread.ready.head() if active_of(spread.ready) else None
    if (first is None and second is None) or (count > 1 and on_time.opened_count + spread.opened_count > 1):
        return None
    self._is_planned = False
    calendar = on_time if second is None or (first is not None and not second < first) else spread
    found = take_from(first_run(calendar.ready))
    return found if admit(self, calendar, (<tuple>found)[0], (<tuple>found)[1], now) else None


cdef object take_planned(QueueFields self, double now):
    """Take the first task to be spread, if its planned instant has come: ``PlainQueue._take_planned``."""
    cdef CalendarFields spread = self.spread
    if not is_one(self, now):
        return None
    due = earliest_of(spread.ready) if active_of(spread.ready) else None
    if due is None:
        found = take_due(spread, now - self.phase_seconds, False)
        if found is None:
            return None
    else:
        if spread.groups and next_due(spread) < <double>due:
            return None
        found = take_from(earliest_run(spread.ready))
    return found if admit(self, spread, (<tuple>found)[0], (<tuple>found)[1], now) else None


cdef bint is_dense(QueueFields self, double now) except -1:
    """True if more tasks wait for this interval than it has permits: ``PlainQueue._is_dense``."""
    cdef AdmissionFields admission = self.admission
    cdef Py_ssize_t waiting = (<CalendarFields>self.on_time).opened_count + (<CalendarFields>self.spread).opened_count
    cdef double since = now if admission.count else admission.next_at
    cdef long long count
    waiting += self.later_count + self._later_on_time_count
    if waiting <= 1:
        return False
    if since > -INF and waiting <= (self.interval_end - max(since, now)) * admission.per_second - MARGIN_COUNT:
        return False
    if waiting > (self.interval_end - now) * admission.per_second + admission.usable_max + MARGIN_COUNT:
        return True
    count = permits_until(self, now)
    return self._is_dense(now) if count < 0 else waiting > count


cdef bint admit(QueueFields self, CalendarFields calendar, object source, object item, double now) except -1:
    """Count a task that was taken as started, and pay for it: ``PlainQueue._admit``."""
    cdef BatchFields batch
    cdef double due
    if source is None:
        if (<RecordFields?>item)._options is not None:
            return admit_options(self, calendar, <RecordFields>item, now, True)
        due = (<RecordFields>item)._due
    elif isinstance(source, BucketFields):
        due = (<BucketFields>source).dues.data.as_doubles[<Py_ssize_t>item]
    else:
        batch = <BatchFields?>source
        if not batch.is_plain:
            return self._admit(calendar, source, item, now)
        due = due_of(batch, item)
        if batch._started is None and <Py_ssize_t>item == batch.started_count:
            batch.started_count += 1
        else:
            source.start(item)
        if batch.started_count == batch.count:
            calendar.finish(source)
    calendar.opened_count -= 1
    spend(self, calendar, due, now, 1)
    return True


cdef bint admit_options(QueueFields self, CalendarFields calendar, RecordFields record, double now, bint is_paid) except -1:
    """Count a record with options as started, and pay for it: ``PlainQueue.admit_record``."""
    if type(record._options) is not KEY_OPTIONS:
        return pure["PlainQueue.admit_record"](self, calendar, record, now, is_paid=is_paid)
    calendar.opened_count -= 1
    if (<object>self).drops is not None:
        (<object>self).drops.discard(record)
    pay(self, calendar, record._due, now, 1)
    (<object>self)._charge_record(record, now)
    tell(self, record._due, now, 1)
    return True


def admit_record(QueueFields self, CalendarFields calendar, RecordFields record, double now, *, bint is_paid):
    return admit_options(self, calendar, record, now, is_paid)


# When to ask again.

def _next_wake(QueueFields self, double now, *, bint may_start):
    return next_wake(self, now, may_start)


cdef double next_wake(QueueFields self, double now, bint may_start) except? -1:
    """Return the loop time at which to ask again: ``PlainQueue._next_wake``."""
    cdef CalendarFields on_time = self.on_time, spread = self.spread
    cdef double wake
    cdef bint is_known = not self.admission.is_paused and not self.expiry.is_used
    if not may_start and is_known and self.gate is None:
        return self.interval_end if is_pending(self.wall) else INF
    if may_start and is_known and (self.gate is None or not (active_of(on_time.ready) or active_of(spread.ready))):
        wake = next_instant(self, now)
        if wake < self.end and not (on_time.numbers and is_large(on_time)) and not (spread.numbers and is_large(spread)):
            self._opening_at = self.end
        else:
            wake = min(wake, note_opening(self))
            if is_pending(self.wall):
                wake = min(wake, self.interval_end)
        return wake if self.gate is None else self._next_wake_of_keys(now, wake, may_start=True)
    return pure["PlainQueue._next_wake"](self, now, may_start=may_start)


cdef inline bint is_large(CalendarFields calendar) except -1:
    """True if the next bucket should be prepared before its time comes: ``Calendar.is_large_ahead``."""
    bucket = calendar.future.get(calendar.numbers[0])
    return bucket is not None and len((<BucketFields>bucket).calls) >= LARGE_COUNT


cdef inline double next_time(QueueFields self, double now) except? -1:
    """Return the loop time at which a permit may be taken: ``Admission.next_time``."""
    cdef AdmissionFields admission = self.admission
    if not admission.count and admission.next_at > now:
        return admission.next_at
    return admission.next_time(now, self.interval_end)


cdef double next_on_time(QueueFields self, double now, bint is_ready) except? -1:
    """Return the next start instant if no task waits to be spread: ``PlainQueue._next_on_time``."""
    cdef AdmissionFields admission = self.admission
    cdef CalendarFields on_time = self.on_time
    cdef bint is_few = not self.is_special and on_time.opened_count <= FEW_COUNT
    cdef double permit, due
    if is_ready and self.is_unlimited:
        return now
    permit = next_time(self, now) if is_ready else INF
    if is_ready and is_few:
        return permit
    due = next_due(on_time)
    if is_few and due < admission.next_at and not admission.count:
        return admission.next_at
    return min(due, permit)


cdef inline double next_spread_due(QueueFields self) except? -1:
    """Return when the next task to be spread is read as due: ``PlainQueue._next_spread_due``."""
    cdef double due = next_due(self.spread)
    return (due + self.phase_seconds) * ROUND_UP if self.phase_seconds else due


cdef double next_instant(QueueFields self, double now) except? -1:
    """Return the loop time of the next start instant: ``PlainQueue._next_instant``."""
    cdef CalendarFields on_time = self.on_time, spread = self.spread
    cdef bint is_ready = bool(active_of(on_time.ready)) and on_time.ready.head() is not None
    cdef bint is_spread_ready = bool(active_of(spread.ready)) and spread.ready.head() is not None
    cdef double instant, planned, spread_due, permit
    if not spread.opened_count:
        return next_on_time(self, now, is_ready)
    instant = next_due(on_time)
    if is_spread_ready and instant > self.interval_end:
        instant = self.interval_end
    planned = now if self.is_dense or self.pacing is ON_TIME else (<PlanFields>self.plan).next_at
    spread_due = now if is_spread_ready else next_spread_due(self)
    if self.early and not is_spread_ready and spread_due < INF:
        spread_due = self.interval_end
    permit = next_time(self, now) if not self.is_unlimited and (is_ready or is_spread_ready) else now
    if is_ready or (is_spread_ready and self.is_dense and not self.is_unlimited):
        return min(instant, permit)
    return min(instant, max(planned, spread_due, permit))


# The question.

def poll(QueueFields self, double now, long long limit):
    return answer(self, now, limit)


cdef object answer(QueueFields self, double now, long long limit):
    """Take what starts at loop time ``now``: ``PlainQueue.poll``."""
    cdef object found = None
    cdef bint is_changed = self.is_changed
    self.is_changed = False
    if is_changed and limit and (self._may_be_lone or not self.is_special):
        found = take_lone_of_key(self, now) if self.is_special else take_lone(self, now)
        if found is not None:
            self._is_all_ready, self._is_sorting = True, False
            return found
    if self.is_special and (is_changed or not self._may_be_lone or active_of(self.on_time.ready) or active_of(self.spread.ready)):
        return self._decide_special(now, limit, is_changed=is_changed)
    if is_changed:
        self._is_all_ready = pull(self, now)
        if self.expiry.is_used:
            self.expire(now)
    if limit and not self.is_special:  # else nothing is ready
        found = take(self, now, limit)
    if found is None:
        self.is_changed = not self._is_all_ready
        self.wake_at = next_wake(self, now, limit > 0) if self._is_all_ready else -INF
    return found


# Running.

def run(EngineFields self, double now, double stop):
    return run_engine(self, now, stop)


cdef double run_engine(EngineFields self, double now, double stop) except? -1:
    cdef QueueFields queue = self.queue
    cdef AccountFields accounts = self.accounts
    cdef StarterFields starter = self.starter
    cdef double begin
    cdef long long start_count = 0, before, room, most
    cdef object found
    if queue.is_halted:
        return INF
    if now >= queue.end:
        now = (<object>self).now()
    begin = now
    self._is_full = False
    queue.is_changed = True
    while True:
        before = accounts.started_count
        room = UNLIMITED
        if accounts.max_concurrency is not None:
            room = not fits(accounts.max_concurrency, &most) or len(accounts.running) + len(accounts.holding) < most
        found = (<object>queue).poll(now, room)
        if found is not None:
            if found is queue.stretch:
                now = start_stretch(starter, <StretchFields>found, now, stop)
            else:
                now = start_taken(starter, (<tuple>found)[0], (<tuple>found)[1], now)
            found = None
            if now >= queue.end:
                now = (<object>self).now()
            start_count += accounts.started_count - before
        elif queue.wake_at > -INF:
            self._is_full = not room
            return rest(self, now, begin, start_count)
        else:
            now = (<object>self).now()
            start_count += 1
        if now >= stop or start_count >= START_COUNT_MAX:
            return now


def _freed(EngineFields self):
    use_place(self)


cdef inline int use_place(EngineFields self) except -1:
    """Run the engine if there was no place for a task: ``Engine.wake``."""
    if self._is_full:
        self.queue.is_changed = True
        if -INF < self.armed:
            arm(self._runner, self, -INF)
    return 0


cdef int arm(RunnerFields self, EngineFields engine, double when) except -1:
    """Run an engine at a time earlier than the one that it is armed for: ``Runner.arm``."""
    engine.armed = when
    heappush(self._heap, (when, next(self._numbers), engine))
    if not self._is_running and when < self._timer_at and not self.loop.is_closed():
        set_waker(self, when)
    return 0


cdef double rest(EngineFields self, double now, double begin, long long start_count) except? -1:
    """Finish a run in which every task that may start has started: ``Engine._rest``."""
    cdef QueueFields queue = self.queue
    cdef AccountFields accounts = self.accounts
    cdef RunnerFields runner = self._runner
    cdef CalendarFields on_time = queue.on_time, spread = queue.spread
    cdef double wake, earliest
    if (on_time.opened and not on_time.opened_count) or (spread.opened and not spread.opened_count):
        (<object>queue).rest()
    if self.adapting is not None:
        self.adapting.rest(now)
    if accounts.on_room is not None:
        accounts.on_room()
    if self._member is not None:
        self._member.look(now)
    wake, earliest = -INF if queue.is_changed else queue.wake_at, runner.earliest
    if queue.is_unlimited:
        earliest = max(earliest, begin + (runner.precision_unlimited if start_count < CROWD_COUNT else runner.precision_crowded))
    if wake == INF or (<object>queue).is_forgetting:
        (<object>accounts).notify_waiters()
    return max(wake, earliest)


# Starting one task.

def start_one(StarterFields self, source, item, double now):
    return start_taken(self, source, item, now)


cdef double start_taken(StarterFields self, object source, object item, double now) except? -1:
    cdef AccountFields accounts = self._accounts
    cdef ContextFields contexts = self._contexts
    cdef QueueFields queue = self._queue
    cdef object call
    cdef double after
    accounts.started_count += 1
    if source is None:
        call = (<RecordFields?>item)._call
        if has_key_at_most(<RecordFields>item):
            start_record(self, accounts, contexts, item, call, now)
        else:
            (<object>self)._start_special(item, call, now)
    elif isinstance(source, BatchFields):
        call = start_item(self, accounts, contexts, source, item, now)
    else:
        call = start_call(self, accounts, contexts, source, item)
    item = None
    if accounts.on_end is not None:
        accounts.on_end()
    after = read_clock(self._monotonic)
    if queue.counts_effects:
        note_effect(queue, after)
    if after - now > LONG_HOLD_SECONDS:
        (<object>self)._note_hold(call, after - now)
    return after


cdef object start_item(
    StarterFields self, AccountFields accounts, ContextFields contexts, BatchFields source, object position, double now
):
    """Start an item of a batch; return the callable: ``Starter._start_item``."""
    cdef HandleFields handle = source.owner
    cdef object call = handle._call, origin = handle._context, items = handle._parts.get(source), context, index, result
    if accounts.on_task_end is not None or type(items) not in INERT_TYPES:
        return (<object>self)._start_item(source, position, now)
    if source.started_count == source.count:
        del handle._parts[source]
    index = source.indexes[position]
    context = contexts.scratch if origin is None else origin if handle._own_context else PyContext_Copy(origin)
    accounts.is_inside = True
    try:
        result = call_job_in(context, call, items[index]) if is_job(call) else call_in(context, call, items[index], True)
    except BaseException as error:
        accounts.is_inside = False
        if PyObject_Length(contexts.scratch):
            contexts.clean()
        tell_failed(accounts, context, (<object>self).item_of(source, index, items, now), error, origin)
        return call
    accounts.is_inside = False
    if result is not None and is_to_last(self._coroutines, result) and (<Lasting>result).host is None:
        (<Lasting>result).source, (<Lasting>result).index, (<Lasting>result).items = source, index, items
        (<Lasting>result).began = now
        begin_lasting(self._coroutines, <Lasting>result, origin)
    elif result is not None and RLE_IS_AWAITABLE(result):
        run_left(self, (<object>self).item_of(source, index, items, now), result, context, origin)
    else:
        accounts.counts[IS_DONE] += 1
        if handle._attempts or handle._on_end is not None or handle._listeners or handle._outcomes is not None:
            (<object>handle)._item_ended(index, IS_DONE, result)
        else:
            handle._counts[IS_DONE] += 1
            wake_batch(handle)
    if PyObject_Length(contexts.scratch):
        contexts.clean()
    return call


cdef object start_call(StarterFields self, AccountFields accounts, ContextFields contexts, BucketFields source, Py_ssize_t at):
    """Start a call of a bucket; return the callable: ``Starter._start_call``."""
    cdef object call, args, origin = None, context = contexts.scratch, result
    cdef object owner = accounts.calls  # with observers, each start gets an owner of its own
    if at >= len(source.calls) or source.calls[at] is None:
        return (<object>self)._start_call(source, at)
    call, args = source.calls[at], source.args[at]
    if source.contexts is not None:
        origin = (<list>source.contexts)[at]
        (<list>source.contexts)[at] = None
    source.calls[at] = source.args[at] = None
    source.gone += 1
    if type(origin) is tuple:
        context = origin = origin[0]
    elif origin is not None:
        context = PyContext_Copy(origin)
    accounts.is_inside = True
    try:
        result = call_in(context, call, args, type(args) is not tuple)
    except BaseException as error:
        accounts.is_inside = False
        if PyObject_Length(contexts.scratch):
            contexts.clean()
        tell_failed(accounts, context, owner.of(call, args if type(args) is tuple else (args,)), error, origin)
        return call
    accounts.is_inside = False
    if result is not None and RLE_IS_AWAITABLE(result):
        run_left(self, owner, result, context, origin)
    else:
        accounts.counts[IS_DONE] += 1
        if accounts.on_task_end is not None:
            accounts.on_task_end(owner, IS_DONE)
    if PyObject_Length(contexts.scratch):
        contexts.clean()
    return call


# Waking the loop.

def run_due(RunnerFields self, double now):
    return run_due_in(self, now)


cdef double run_due_in(RunnerFields self, double now) except? -1:
    self.earliest = now
    self._timer_at = INF
    self._is_running = True
    try:
        run_engines(self, now)
    finally:
        self._is_running = False
    self._timer_at = next_armed(self)
    return self._timer_at


def _on_readable(DescriptorFields self):
    if self._set_at < INF:
        self._is_readable = True
        self._callback()


def _on_timer(RunnerFields self):
    cdef double now, when
    try:
        now = read_clock(self._monotonic)
        if now - self._call_at > BLOCKED_SECONDS:
            (<object>self)._note_blocked(now - self._call_at)
        self.earliest = min(now, self._call_at) + self._precision
        self._timer_at = INF
        self._is_running = True
        run_engines(self, now)
        self._is_running = False
        when = next_armed(self)
        if not self.loop.is_closed():
            set_waker(self, when)
    except BaseException:
        (<object>self)._rearm()
        raise


cdef int run_engines(RunnerFields self, double now) except -1:
    """Run the due engines; fast if there is only one: ``Runner._run``."""
    cdef list heap = self._heap
    cdef tuple entry = None, other
    cdef EngineFields engine
    cdef double wake
    while heap and <double>(<tuple>heap[0])[0] <= now:
        other = heappop(heap)
        if not isinstance(other[2], EngineFields):
            pass
        elif (<EngineFields>other[2]).armed != <double>other[0]:
            continue  # it has been armed anew
        elif entry is None:
            entry = other
            continue
        heappush(heap, other)
        if entry is not None:
            heappush(heap, entry)
        (<object>self)._run(now)
        return 0
    if entry is None:
        return 0
    engine = entry[2]
    engine.armed = -INF
    try:
        wake = run_engine(engine, now, now + SLICE_SECONDS)
    except BaseException:
        engine.armed = INF
        (<object>self).arm(engine, -INF)
        raise
    engine.armed = wake
    if wake < INF:
        heappush(self._heap, (wake, next(self._numbers), engine))
    return 0


cdef double next_armed(RunnerFields self) except? -1:
    """Return the loop time of the next run; infinity if there is none: ``Runner._next``."""
    cdef list heap = self._heap
    cdef tuple entry
    while heap:
        entry = heap[0]
        if not isinstance(entry[2], EngineFields):
            return (<object>self)._next()
        if (<EngineFields>entry[2]).armed == <double>entry[0]:
            return <double>entry[0] if len(heap) < COMPACT_COUNT else (<object>self)._next()
        heappop(heap)
    return INF


cdef inline int set_waker(RunnerFields self, double when) except -1:
    """Set the waker: ``Runner._set_timer``, and ``TimerDescriptor.set`` for a time in the future."""
    cdef DescriptorFields descriptor
    cdef double now = read_clock(self._monotonic)
    if now < when < self.earliest:
        when = self.earliest
    self._timer_at = when
    self._call_at = max(when, now)
    if isinstance(self._waker, WakerFields):
        (<WakerFields>self._waker).at = when
        return 0
    if type(self._waker) is TIMER_DESCRIPTOR and now < when < DESCRIPTOR_SECONDS_MAX:
        descriptor = <DescriptorFields>self._waker
        if descriptor._handle is None and descriptor._fd >= 0:
            if when == descriptor._set_at and not descriptor._is_readable:
                return 0
            if rle_set_timer(descriptor._fd, <long long>ceil(when * NS)) == 0:
                descriptor._is_readable = False
                descriptor._set_at = when
                return 0
    self._waker.set(when, now)
    return 0
