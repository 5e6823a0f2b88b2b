# The starts of simple simulations, computed from columns: included by ``_compiled.pyx``.
#
# A week of 1.3 million jobs is a few nested decisions for each: the next due time, the earliest end, the value of a meter. In
# Python these take 5 microseconds a job, here 0.1.

from libc.math cimport fabs
from libc.string cimport memcpy
from libcpp.algorithm cimport lower_bound
from libcpp.queue cimport queue as line

cdef object DOUBLES = array("d"), INTEGERS = array("q")
cdef double MINUTE_SECONDS = 60.0  # ``CHUNK_SECONDS`` in ``simulation/feeds.py``


# Columns.

def draw_columns(JobFields job not None, chance, Py_ssize_t count):
    cdef carray.array seconds = carray.clone(DOUBLES, count, False), lucks = carray.clone(DOUBLES, count, False)
    cdef object draw = chance.random, mu, sigma
    cdef double part
    cdef Py_ssize_t at
    if is_log_normal(job):
        mu, sigma = job.known._mu, job.known._sigma
        for at in range(count):
            found = draw()
            part = found
            seconds.data.as_doubles[at] = exp(INV_CDF(found if part else 0.5, mu, sigma))
            lucks.data.as_doubles[at] = draw()
    else:
        for at in range(count):
            seconds.data.as_doubles[at] = job.duration.draw(chance)
            lucks.data.as_doubles[at] = draw()
    return seconds, lucks


def due_times(carray.array times not None, carray.array counts not None, double chunk):
    cdef carray.array dues = carray.clone(DOUBLES, len(times), False)
    cdef int64_t* stops = <int64_t*>counts.data.as_chars
    cdef Py_ssize_t number, at = 0
    cdef double begin
    for number in range(len(counts)):
        begin = number * chunk
        while at < stops[number]:
            dues.data.as_doubles[at] = begin + (times.data.as_doubles[at] - begin)
            at += 1
    return dues


# Meters.

@cython.final
cdef class Counted:
    """``_Counted`` in ``simulation/shortcut/passing.py``: the sum is kept as exact parts, as ``math.fsum`` makes them."""

    cdef vector[double] parts, longest
    cdef vector[int64_t] counts
    cdef double total_seconds
    cdef size_t gathered

    cdef inline int add(self, double value, size_t bucket) except -1:
        self.gathered += 1
        if bucket >= self.counts.size():
            self.counts.resize(bucket + 1)
            self.longest.resize(bucket + 1)
        self.counts[bucket] += 1
        if value > self.longest[bucket]:
            self.longest[bucket] = value
        if value:
            self.add_exactly(value)
        return 0

    cdef inline int add_exactly(self, double value) except -1:
        cdef size_t kept = 0, at
        cdef double other, high, low
        for at in range(self.parts.size()):
            other = self.parts[at]
            if fabs(value) < fabs(other):
                value, other = other, value
            high = value + other
            low = other - (high - value)
            if low:
                self.parts[kept] = low
                kept += 1
            value = high
        self.parts.resize(kept)
        self.parts.push_back(value)
        return 0

    cdef int count(self) except -1:
        self.total_seconds += fsum(self.parts)
        self.parts.clear()
        self.gathered = 0
        return 0

    cdef object take(self):
        cdef size_t bucket
        self.count()
        used = [bucket for bucket in range(self.counts.size()) if self.counts[bucket]]
        found = new_histogram()
        found.add_counted(
            used, [self.counts[bucket] for bucket in used], [self.longest[bucket] for bucket in used], self.total_seconds
        )
        self.counts.clear()
        self.longest.clear()
        self.total_seconds = 0.0
        return found


# Starts.

cdef double* doubles_of(carray.array column):
    return column.data.as_doubles


cdef class Pass:
    """``Pass`` in ``simulation/shortcut/passing.py``."""

    cdef list inflows, meters
    cdef vector[PyObject*] meter  # the meters, without a look-up
    cdef vector[double*] dues, seconds, lucks, starts
    cdef vector[double] failures
    cdef vector[Py_ssize_t] executions
    cdef vector[vector[Py_ssize_t]] waits
    cdef QueueFields queue
    cdef bint is_unsure
    cdef double workers, running_seconds, seen_at, per_log, offset
    cdef int64_t running, started, retried, done, failed

    def __init__(self, inflows, double workers, QueueFields queue, Py_ssize_t meter_count):
        self.inflows, self.workers, self.queue = list(inflows), workers, queue
        self.meters = [Counted() for _ in range(meter_count)]
        for each in self.meters:
            self.meter.push_back(<PyObject*>each)
        self.per_log = new_histogram()._per_log
        self.offset = 1 - math.log(SMALLEST_SECONDS) * self.per_log
        for each in self.inflows:  # which hold the columns while their addresses are used
            self.dues.push_back(doubles_of(each.dues))
            self.seconds.push_back(doubles_of(each.seconds))
            self.lucks.push_back(doubles_of(each.lucks))
            self.starts.push_back(doubles_of(each.starts))
            self.failures.push_back(each.failures)
            self.executions.push_back(each.executions)
            self.waits.push_back(each.waits)

    cdef int pass_until(self, double moment) except -1:
        raise NotImplementedError

    cdef int64_t depth(self, double moment) except -1:
        raise NotImplementedError

    cdef object run(self, moments, is_step, taking):
        cdef double moment
        cdef Py_ssize_t number
        cdef int64_t depth
        passed = pure["Passed"]()
        for number, moment in enumerate(moments):
            self.pass_until(moment)
            depth = self.depth(moment)
            if self.is_unsure:
                passed.is_unsure = True
                break
            passed.started.append(self.started)
            passed.retried.append(self.retried)
            passed.done.append(self.done)
            passed.failed.append(self.failed)
            passed.running.append(self.running)
            passed.depth.append(depth)
            passed.workers.append(self.workers)
            passed.running_seconds.append(self.running_seconds + self.running * (moment - self.seen_at))
            if is_step[number]:
                for meter in self.meters:
                    if (<Counted>meter).gathered > GATHER_COUNT:
                        (<Counted>meter).count()
            for index in taking.get(number, ()):
                passed.taken.append((number, index, (<Counted>self.meters[index]).take()))
        return passed

    cdef inline int measure(self, Py_ssize_t inflow, double wait, double seconds) except -1:
        """Count a start: its wait, and its duration."""
        cdef size_t bucket = self.bucket_of(wait), each
        for each in range(self.waits[inflow].size()):
            (<Counted>self.meter[self.waits[inflow][each]]).add(wait, bucket)
        (<Counted>self.meter[self.executions[inflow]]).add(seconds, self.bucket_of(seconds))
        self.started += 1
        return 0

    cdef inline size_t bucket_of(self, double value) noexcept:
        return 0 if value <= SMALLEST_SECONDS else <size_t>(self.offset + log(value) * self.per_log)

    cdef inline int note_running(self, double now, int64_t change) except -1:
        """Add up the running time; from now on one job more, or one less, runs."""
        self.running_seconds += self.running * (now - self.seen_at)
        self.seen_at = now
        self.running += change
        return 0


@cython.final
cdef class Passing(Pass):
    """``_Passing`` in ``simulation/shortcut/passing.py``."""

    cdef vector[Py_ssize_t] heads, begun, counts, levels
    cdef vector[line[Py_ssize_t]] ready  # inflows, by level: the jobs of an inflow start in due order
    cdef priority_queue[pair[double, int]] ends  # the least first: of negated times, with 1 if the job fails
    cdef double permit_at, head_due
    cdef int64_t ready_count, new_count

    def __init__(self, inflows, double workers, QueueFields queue, Py_ssize_t meter_count):
        cdef Py_ssize_t level_count = 1
        Pass.__init__(self, inflows, workers, queue, meter_count)
        self.permit_at = INF
        for inflow in self.inflows:
            self.heads.push_back(0)
            self.begun.push_back(0)
            self.counts.push_back(len(inflow.dues))
            self.levels.push_back(inflow.level)
            level_count = max(level_count, <Py_ssize_t>inflow.level + 1)
        self.ready.resize(level_count)
        self.find_head()

    cdef int64_t depth(self, double moment) except -1:
        self.pull(moment)
        return self.ready_count

    cdef int pass_until(self, double moment) except -1:
        cdef double end, other
        cdef bint was_full
        while not self.is_unsure:
            end = INF if self.ends.empty() else -self.ends.top().first
            other = INF
            if self.running < self.workers:
                other = min(self.head_due, self.permit_at if self.ready_count else INF)
            if min(end, other) > moment:
                return 0
            if end > other:
                self.look(other)
                continue
            if self.ends.top().second:
                self.failed += 1
            else:
                self.done += 1
            self.ends.pop()
            was_full = self.running == self.workers
            self.note_running(end, -1)
            if was_full:
                self.look(end)
        return 0

    cdef int look(self, double now) except -1:
        """Start what may start now."""
        cdef AdmissionFields admission = None if self.queue is None else self.queue.admission
        self.pull(now)
        if self.ready.size() > 1 and self.new_count > RUN_COUNT:
            self.is_unsure = True
            return 0
        self.new_count = 0
        self.permit_at = INF
        if admission is not None:
            admission.count = 0
        while self.ready_count and self.running < self.workers:
            if admission is not None:
                if (not admission.count and now < admission.next_at) or not find_permits(self.queue, now):
                    self.permit_at = admission.next_at
                    return 0
                take_permits(admission, 1, now)
            self.start(now)
            if admission is not None:
                note_effect(self.queue, now)
        return 0

    cdef int start(self, double now) except -1:
        cdef size_t level = 0
        cdef Py_ssize_t inflow, position
        while self.ready[level].empty():
            level += 1
        inflow = self.ready[level].front()
        self.ready[level].pop()
        position = self.begun[inflow]
        self.begun[inflow] += 1
        self.ready_count -= 1
        self.note_running(now, 1)
        self.starts[inflow][position] = now
        self.measure(inflow, now - self.dues[inflow][position], self.seconds[inflow][position])
        self.ends.push(
            pair[double, int](
                -(now + self.seconds[inflow][position]), self.lucks[inflow][position] < self.failures[inflow]
            )
        )
        return 0

    cdef inline void find_head(self) noexcept:
        """Note the next due time of all inflows."""
        cdef size_t inflow
        self.head_due = INF
        for inflow in range(self.dues.size()):
            if self.heads[inflow] < self.counts[inflow]:
                self.head_due = min(self.head_due, self.dues[inflow][self.heads[inflow]])

    cdef int pull(self, double now) except -1:
        """Make ready what is due, in due order."""
        cdef Py_ssize_t inflow, first
        while self.head_due <= now:
            first = -1
            for inflow in range(<Py_ssize_t>self.dues.size()):
                if self.heads[inflow] == self.counts[inflow] or self.dues[inflow][self.heads[inflow]] != self.head_due:
                    continue
                if first < 0:
                    first = inflow
                    continue
                self.is_unsure = True
                return 0
            self.heads[first] += 1
            self.ready[self.levels[first]].push(first)
            self.ready_count += 1
            self.new_count += 1
            self.find_head()
        return 0


def pass_jobs(inflows, double workers, queue, moments, is_step, taking, Py_ssize_t meter_count):
    cdef Passing self = Passing(inflows, workers, queue, meter_count)
    return self.run(moments, is_step, taking)


# Starts, by the queue.

cdef Py_ssize_t HAND_OVER = -1, SHIFT = -2


cdef extern from *:
    """
    #include <cstdint>
    struct RLE_Event {
        double time;
        int64_t number;
        Py_ssize_t inflow, index;
        bool is_failed;
        bool operator<(const RLE_Event &other) const {  /* the earliest is the greatest, as a heap has that first */
            return time != other.time ? time > other.time : number > other.number;
        }
    };
    """
    cdef cppclass Event "RLE_Event":
        double time
        int64_t number  # among equal times
        Py_ssize_t inflow
        Py_ssize_t index  # of the job that ends; HAND_OVER, or SHIFT with the number of the shift as the inflow
        bint is_failed


@cython.final
cdef class Queued(Pass):
    """``_Queued`` in ``simulation/shortcut/queued.py``."""

    cdef list shifts
    cdef object pause, due_count
    cdef vector[int64_t*] counts
    cdef vector[Py_ssize_t] chunk_counts, chunks, shift_counts
    cdef vector[vector[int64_t]] begun  # the columns of the attempts
    cdef vector[vector[double]] begun_due, begun_at, begun_for, outages
    cdef vector[unordered_map[Py_ssize_t, int64_t]] failed_counts  # of jobs that are tried again
    cdef priority_queue[Event] events
    cdef bint is_full
    cdef double wake
    cdef int64_t number

    def __init__(self, inflows, double workers, QueueFields queue, shifts, pause, due_count, Py_ssize_t meter_count):
        cdef Py_ssize_t number
        Pass.__init__(self, inflows, workers, queue, meter_count)
        self.shifts, self.pause, self.due_count = list(shifts), pause, due_count
        self.wake = INF
        for each in self.inflows:
            self.counts.push_back(<int64_t*>doubles_of(each.counts))
            self.chunk_counts.push_back(len(each.counts))
            self.outages.push_back([time for outage in each.outages for time in (outage.begin, outage.end)])
        number = len(self.inflows)
        self.chunks.resize(number)
        self.begun.resize(number)
        self.begun_due.resize(number)
        self.begun_at.resize(number)
        self.begun_for.resize(number)
        self.failed_counts.resize(number)
        self.shift_counts.resize(len(self.shifts))
        self.queue._is_single = True
        for number, (first, _) in enumerate(self.shifts):
            self.plan(first, number, SHIFT, False)
        for number in sorted(range(len(self.inflows)), key=lambda number: self.inflows[number].is_feed):
            self.hand_over(0.0, number)

    cdef int64_t depth(self, double moment) except -1:
        return self.due_count(moment)

    cdef inline int plan(self, double time, Py_ssize_t inflow, Py_ssize_t index, bint is_failed) except -1:
        cdef Event event
        self.number += 1
        event.time, event.number, event.inflow, event.index, event.is_failed = time, self.number, inflow, index, is_failed
        self.events.push(event)
        return 0

    cdef int pass_until(self, double moment) except -1:
        cdef double at, now = self.seen_at
        cdef bint is_wake
        cdef Event event
        while True:
            at = INF if self.events.empty() else self.events.top().time
            is_wake = self.wake < at
            if is_wake:
                at = self.wake
            if at > moment:
                return 0
            now = max(now, at)
            if is_wake:
                self.wake = -INF
                self.wake = self.ask(now)
                continue
            event = self.events.top()
            self.events.pop()
            if event.index >= 0:
                self.end(now, event)
                continue
            self.change(now, event)
            while not self.events.empty() and self.events.top().time == now and self.events.top().index < 0:
                event = self.events.top()
                self.events.pop()
                self.change(now, event)

    cdef int change(self, double now, Event event) except -1:
        if event.index == HAND_OVER:
            return self.hand_over(now, event.inflow)
        first, shift = self.shifts[event.inflow]
        self.shift_counts[event.inflow] += 1
        self.plan(<double>first + self.shift_counts[event.inflow] * HOUR_SECONDS, event.inflow, SHIFT, False)
        self.workers, is_asked = shift(now)
        if is_asked:
            self.wake = -INF
        return 0

    cdef int hand_over(self, double now, Py_ssize_t number) except -1:
        cdef Py_ssize_t chunk = self.chunks[number], first, stop, split
        cdef double* dues = self.dues[number]
        self.chunks[number] += 1
        first, stop = self.counts[number][chunk - 1] if chunk else 0, self.counts[number][chunk]
        if stop > first:
            self.enter(now)
            split = lower_bound(dues + first, dues + stop, self.queue.interval_end) - dues
            if split > first:
                self.add(self.inflows[number].part(number, first, split))
            if stop > split:
                self.add(self.inflows[number].part(number, split, stop))
        if chunk + 1 < self.chunk_counts[number]:
            self.plan((chunk + 1) * MINUTE_SECONDS, number, HAND_OVER, False)
        return 0

    cdef int add(self, source) except -1:
        cdef QueueFields queue = self.queue
        cdef double due = source.first
        (<object>queue).add_batch(source, joined=due < queue.interval_end)
        queue.is_changed = True
        if due >= queue.end:
            due = min(<double>queue.on_time.opening_time(), <double>queue.spread.next_start(), due)
        self.wake = min(self.wake, due)
        return 0

    cdef inline int enter(self, double now) except -1:
        if now >= self.queue.end:
            (<object>self.queue).enter(now, self.queue.timeline.to_epoch(now))
        return 0

    cdef double ask(self, double now) except? -1:
        cdef QueueFields queue = self.queue
        cdef int64_t room
        cdef Py_ssize_t turn
        self.enter(now)
        self.is_full = False
        queue.is_changed = True
        for turn in range(START_COUNT_MAX):
            room = UNLIMITED if self.workers == INF else self.running < self.workers
            found = answer(queue, now, room)
            if found is not None:
                self.start(now, <BatchFields?>(<tuple>found)[0], (<tuple>found)[1])
                if queue.counts_effects:
                    note_effect(queue, now)
            elif queue.wake_at > -INF:
                self.is_full = not room
                return now if queue.is_changed else max(now, queue.wake_at)
        return now

    cdef int start(self, double now, BatchFields source, Py_ssize_t position) except -1:
        cdef Py_ssize_t number = source.owner, index = source.indexes[position]
        cdef double due = due_of(source, position), seconds, luck
        self.note_running(now, 1)
        if not self.failed_counts[number].empty() and self.failed_counts[number].count(index):
            luck, seconds = self.inflows[number].drawn_again(index, self.failed_counts[number][index])
        else:
            self.starts[number][index] = now
            luck, seconds = self.lucks[number][index], self.seconds[number][index]
        self.measure(number, now - due, seconds)
        self.begun[number].push_back(index)
        self.begun_due[number].push_back(due)
        self.begun_at[number].push_back(now)
        self.begun_for[number].push_back(seconds)
        return self.plan(now + seconds, number, index, luck < self.failures[number] or self.is_hit(number, now, luck))

    cdef inline bint is_hit(self, Py_ssize_t number, double now, double luck) except -1:
        """True if an outage makes a job fail."""
        cdef size_t at
        for at in range(0, self.outages[number].size(), 2):
            if self.outages[number][at] <= now < self.outages[number][at + 1]:
                if luck < <double>self.inflows[number].outages[at // 2].part(now):
                    return True
        return False

    cdef int end(self, double now, Event event) except -1:
        self.note_running(now, -1)
        if not event.is_failed:
            self.done += 1
        elif not self.try_again(now, event.inflow, event.index):
            self.failed += 1
        if self.is_full:
            self.queue.is_changed = True
            self.wake = -INF
        return 0

    cdef bint try_again(self, double now, Py_ssize_t number, Py_ssize_t index) except -1:
        cdef int64_t failures = 1
        if self.failed_counts[number].count(index):
            failures += self.failed_counts[number][index]
        pause = self.pause(failures)
        if pause is None:
            return False
        self.failed_counts[number][index] = failures
        self.retried += 1
        self.enter(now)
        self.add(self.inflows[number].again(number, index, now + <double>pause))
        return True


cdef carray.array column_of(carray.array model, void* data, Py_ssize_t count):
    """Return a column of values of 8 bytes each."""
    cdef carray.array made = carray.clone(model, count, False)
    if count:
        memcpy(made.data.as_chars, data, 8 * count)
    return made


def pass_by_queue(inflows, double workers, queue, shifts, pause, due_count, moments, is_step, taking, Py_ssize_t meter_count):
    cdef Queued self = Queued(inflows, workers, queue, shifts, pause, due_count, meter_count)
    cdef Py_ssize_t number, count
    passed = self.run(moments, is_step, taking)
    for number, inflow in enumerate(self.inflows):
        count = self.begun[number].size()
        inflow.attempts = pure["AttemptColumns"](
            column_of(INTEGERS, self.begun[number].data(), count), column_of(DOUBLES, self.begun_due[number].data(), count),
            column_of(DOUBLES, self.begun_at[number].data(), count), column_of(DOUBLES, self.begun_for[number].data(), count),
        )
    return passed


def late_waits(inflow, double within, ends):
    cdef double* times = doubles_of(inflow.times)
    cdef double* starts = doubles_of(inflow.starts)
    cdef vector[double] periods = ends
    cdef size_t number
    cdef Py_ssize_t at
    found = [[] for _ in ends]
    for at in range(len(inflow.times)):
        if starts[at] - times[at] <= within:
            continue
        number = upper_bound(periods.begin(), periods.end(), times[at]) - periods.begin()
        while number < periods.size() and periods[number] < starts[at]:
            if periods[number] - times[at] > within:
                found[number].append(periods[number] - times[at])
            number += 1
    return found
