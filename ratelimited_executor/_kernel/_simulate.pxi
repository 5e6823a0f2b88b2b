# Simulated time: the loop, its timers, jobs that last, and what measures them: included by ``_compiled.pyx``.
#
# In a simulation nothing else takes time, so what happens around a start costs as much as the start: the loop moves the
# clock, the executor runs, the job begins, three values are measured, and the job ends. In Python this is 30 calls.
# Known bound methods are called without Python, and a job of a batch gets an owner only if somebody asks for it.

from libc.float cimport DBL_MAX
from libc.math cimport exp, log

from functools import partial
from math import fsum

cdef object LASTING_COROUTINES = None, BATCH_ITEM = None, JOB = None, JOB_FAILED = None, LOG_NORMAL = None, ARRIVAL = None, STEP_QUANTILES = None, new_histogram = None
cdef object INV_CDF = None, BEGIN = None, MONOTONIC = None, STARTED = None, ENDED = None, ENDED_COROUTINE = None, FREED = None, RUN_DUE = None


cdef extern from "Python.h":
    bint PyMethod_Check(object)
    PyObject* PyMethod_GET_FUNCTION(object)
    PyObject* PyMethod_GET_SELF(object)


cdef inline bint is_of(object method, object body) noexcept:
    """True if an object is a bound method whose function is a body here."""
    return PyMethod_Check(method) and PyMethod_GET_FUNCTION(method) == <PyObject*>body


# The clock.

def monotonic(ClockFields self):
    return self._monotonic


cdef double read_other(object clock) except? -1:
    """Read a clock that is not the system's."""
    return (<ClockFields>PyMethod_GET_SELF(clock))._monotonic if is_of(clock, MONOTONIC) else clock()


# Values.

cdef double SMALLEST_SECONDS = 1e-6  # as in ``_core/histogram.py``
cdef size_t GATHER_COUNT = 2000
cdef double HOUR_SECONDS = 3600.0


@cython.final
cdef class Meter:
    """``simulation.meters.Meter``."""

    cdef public object source, metric, add
    cdef vector[double] step, gathered, longest
    cdef vector[long long] counts
    cdef double total_seconds, per_log, offset
    cdef object found  # the histogram of all values that were counted; None if there are others
    cdef bint is_kept

    def __init__(self, source, metric):
        self.source, self.metric, self.add = source, metric, self._append
        self.per_log = new_histogram()._per_log
        self.offset = 1 - math.log(SMALLEST_SECONDS) * self.per_log

    def _append(self, double value):
        self.step.push_back(value)

    @property
    def values(self):
        return list(self.step)

    def extend(self, values):
        cdef double value
        for value in values:
            self.step.push_back(value)

    def extend_by_excess(self, Meter other not None, double least):
        cdef double value
        for value in other.step:
            self.step.push_back(value - least if value > least else 0.0)

    def adopt(self, histogram):
        self.forget()
        self.found = histogram

    def forget(self):
        self.step.clear()
        self.gathered.clear()
        self.counts.clear()
        self.longest.clear()
        self.total_seconds, self.found = 0.0, None

    def keep(self, write, key):
        def add(double value):
            self.step.push_back(value)
            write((self.source, self.metric, key(), value))

        self.add, self.is_kept = add, True

    def take(self):
        cdef size_t count = self.step.size()
        if not count:
            return None
        sort(self.step.begin(), self.step.end())
        found = STEP_QUANTILES(
            count, fsum(self.step) / count, self.step[0], self.step[(count - 1) // 2], self.step[(9 * count - 1) // 10],
            self.step[(99 * count - 1) // 100], self.step[count - 1],
        )
        self.gathered.insert(self.gathered.end(), self.step.begin(), self.step.end())
        self.step.clear()
        if self.gathered.size() > GATHER_COUNT:
            self.count()
        return found

    @property
    def histogram(self):
        cdef size_t bucket
        self.count()
        if self.found is None:
            used = [bucket for bucket in range(self.counts.size()) if self.counts[bucket]]
            self.found = new_histogram()
            self.found.add_counted(
                used, [self.counts[bucket] for bucket in used], [self.longest[bucket] for bucket in used], self.total_seconds
            )
        return self.found

    cdef int count(self) except -1:
        """Count the gathered values: ``DurationHistogram.add_sorted``."""
        cdef double value
        cdef size_t bucket
        if self.gathered.empty():
            return 0
        self.found = None
        self.total_seconds += fsum(self.gathered)
        for value in self.gathered:
            if not value < INF:
                raise OverflowError("cannot convert float infinity to integer")
            bucket = 0 if value <= SMALLEST_SECONDS else <size_t>(self.offset + log(value) * self.per_log)
            if bucket >= self.counts.size():
                self.counts.resize(bucket + 1)
                self.longest.resize(bucket + 1)
            self.counts[bucket] += 1
            if value > self.longest[bucket]:
                self.longest[bucket] = value
        self.gathered.clear()
        return 0


cdef inline int measure(object meter, double value) except -1:
    if type(meter) is Meter and not (<Meter>meter).is_kept:
        (<Meter>meter).step.push_back(value)
    else:
        meter.add(value)
    return 0


# What is told at starts and ends.

cdef inline int call_started(object on_start, double due, double now) except -1:
    if is_of(on_start, STARTED):
        note_start(<ObserverFields>PyMethod_GET_SELF(on_start), due, now)
    else:
        on_start(due, now)
    return 0


cdef int note_start(ObserverFields self, double due, double at) except -1:
    cdef double now = self._clock._monotonic
    self._running_seconds += PyObject_Length(self._running) * (now - self._seen_at)
    self._seen_at = now
    self._current.wait = at - due
    return measure(self._start_delay, at - due)


def started(ObserverFields self, double due, double at):
    note_start(self, due, at)


def ended(ObserverFields self):
    note_end(self)


cdef int note_end(ObserverFields self) except -1:
    cdef double now = self._clock._monotonic
    self._running_seconds += (PyObject_Length(self._running) + 1) * (now - self._seen_at)
    self._seen_at = self.ended_at = now
    return 0


def _ended_coroutine(ListenersFields self):
    tell_freed(self)


cdef int tell_freed(ListenersFields self) except -1:
    for freed in <tuple?>self._on_freed:
        call_freed(freed)
    return call_freed(self._freed)


cdef int call_freed(object on_free) except -1:
    if is_of(on_free, ENDED_COROUTINE):
        tell_freed(<ListenersFields>PyMethod_GET_SELF(on_free))
    elif is_of(on_free, ENDED):
        note_end(<ObserverFields>PyMethod_GET_SELF(on_free))
    elif is_of(on_free, FREED):
        use_place(<EngineFields>PyMethod_GET_SELF(on_free))
    else:
        on_free()
    return 0


# Jobs that last.

@cython.freelist(64)
cdef class Lasting:
    """``simulation.lasting.Lasting``."""

    cdef public double seconds
    cdef public object error
    cdef object call_at_end, call_at_begin
    cdef CoroutineFields host  # None until an executor runs it
    cdef object number, owner, origin
    cdef BatchFields source  # if it is a job of a batch that has no owner yet
    cdef object index, items, steps
    cdef double began  # loop time, of such a job
    cdef JobFields kind  # if it is of a kind whose ends have consequences: these two calls, with the next three values
    cdef object key
    cdef MemberFields member
    cdef double luck

    def __init__(self, seconds, error=None, on_end=None, on_begin=None):
        cdef double length = seconds
        if not 0 <= length < INF:
            raise ValueError(f"seconds must be >= 0 and finite, got {seconds!r}")
        self.seconds, self.error, self.call_at_end, self.call_at_begin = length, error, on_end, on_begin

    @property
    def on_end(self):
        if self.kind is None:
            return self.call_at_end
        return partial(self.kind._end, self.key, self.member, self.luck)

    @property
    def on_begin(self):
        return self.call_at_begin if self.member is None else (<object>self.member).begin

    def __await__(self):
        return pure["last"](self).__await__()

    def send(self, value):
        return self._steps().send(value)

    def throw(self, *error):
        return self._steps().throw(*error)

    def close(self):
        if self.steps is not None:
            self.steps.close()

    def _steps(self):
        if self.steps is None:
            self.steps = pure["last"](self)
        return self.steps

    @property
    def is_running(self):
        return self.host is not None and self.number in self.host.running

    def cancel(self, message=None):
        try:
            is_cancelled = end_lasting(self, asyncio.CancelledError(*(() if message is None else (message,))))
        except Exception as error:
            is_cancelled = True
            report = {"message": f"on_end of {self!r} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
        if is_cancelled and self.host is not None:
            self.host.loop.note_stale()
        return is_cancelled

    cdef object who(self):
        """Return its owner."""
        if self.owner is None:
            self.owner = BATCH_ITEM(self.source, self.index, self.items, None, self.began)
        return self.owner


cdef bint end_lasting(Lasting self, object error) except -1:
    """Report the planned end of a job, or an error; return False if it had already ended: ``Lasting._end``."""
    cdef CoroutineFields host = self.host
    cdef AccountFields accounts
    if host is None or (<dict?>host.running).pop(self.number, None) is None:
        return False
    accounts = <AccountFields?>host.accounts
    if error is None:
        error = self.error
    if error is None:
        end_well(self, accounts)
    else:
        (<object>accounts).raised(self.who(), error, self.origin)
    try:
        if self.kind is not None:
            end_job(self.kind, self.key, self.member, self.luck, error)
        elif self.call_at_end is not None:
            self.call_at_end(error)
    finally:
        call_freed(host.on_free)
    return True


cdef int end_well(Lasting self, AccountFields accounts) except -1:
    """End a job that returned: ``Accounts.done``."""
    cdef HandleFields batch
    accounts.counts[IS_DONE] += 1
    if accounts.on_task_end is not None:
        accounts.on_task_end(self.who(), IS_DONE)
    if self.owner is not None:
        self.owner._end_done(None)
    else:
        batch = self.source.owner
        if batch._attempts or (batch._on_end is None and (batch._listeners or batch._outcomes is not None)):
            (<object>batch)._item_ended(self.index, IS_DONE, None)
        else:
            batch._counts[IS_DONE] += 1
            if batch._on_end is not None:
                batch._on_end(self.index, IS_DONE, None)
            wake_batch(batch)
    if accounts.on_end is not None:
        accounts.on_end()
    return 0


def start_lasting(CoroutineFields self, owner, coroutine, context, origin=None):
    if type(coroutine) is not Lasting:
        return start(self, owner, coroutine, context, origin)
    if (<Lasting>coroutine).host is not None:
        self.accounts.raised(owner, RuntimeError("cannot reuse already awaited coroutine"), origin)
        return
    (<Lasting>coroutine).owner = owner
    if isinstance(owner, RecordFields):
        owner._place = coroutine
    begin_lasting(self, <Lasting>coroutine, origin)


cdef int begin_lasting(CoroutineFields self, Lasting job, object origin) except -1:
    """Let a job begin, whose owner or whose place in a batch is known: ``LastingCoroutines.start``."""
    cdef Timers timers
    job.number = self._number = self._number + 1
    (<dict?>self.running)[job.number] = job
    job.host, job.origin = self, origin
    if self.timers is None:
        self.timers = self.loop._timers
    timers = <Timers?>self.timers
    timers.put(timers.clock._monotonic + job.seconds, job)
    if job.member is not None:
        begin_member(job.member)
    elif job.call_at_begin is not None:
        job.call_at_begin()
    return 0


cdef inline bint is_to_last(object coroutines, object awaitable) noexcept:
    """True if a job is only to be ended later."""
    return type(awaitable) is Lasting and type(coroutines) is LASTING_COROUTINES


# Kinds of jobs.

cdef double mix(double luck, int64_t number) noexcept:
    cdef uint64_t bits = <uint64_t>(luck * 9007199254740992.0) + <uint64_t>number * <uint64_t>0x9E3779B97F4A7C15ULL
    bits = (bits ^ (bits >> 30)) * <uint64_t>0xBF58476D1CE4E5B9ULL
    bits = (bits ^ (bits >> 27)) * <uint64_t>0x94D049BB133111EBULL
    return ((bits ^ (bits >> 31)) >> 11) / 9007199254740992.0


def mixed(double luck, int64_t number):
    return mix(luck, number)


def init_arrival(ArrivalFields self, key, double seconds, double luck, priority):
    self.key, self.seconds, self.luck, self.priority, self.attempts = key, seconds, luck, priority, 0


def begin_arrival(JobFields self, ArrivalFields arrival not None):
    return begin_attempt(self, arrival)


cdef Lasting begin_attempt(JobFields self, ArrivalFields arrival):
    cdef double seconds = arrival.seconds, luck = arrival.luck
    cdef int64_t attempt = arrival.attempts
    if attempt:
        luck = mix(arrival.luck, 2 * attempt)
        if not (<object>self).is_recorded:
            seconds = quantile_of(self, mix(arrival.luck, 2 * attempt + 1))
    arrival.attempts = attempt + 1
    return begin_job(self, arrival.key, seconds, luck, arrival.priority)


def call_job(JobFields self, key=None):
    return begin_call(self, key)


cdef Lasting begin_call(JobFields self, object key):
    cdef double seconds, luck
    cdef int64_t number
    if self.population is None:
        seconds = draw_of(self, self._chance)
        return begin_job(self, key, seconds, self._chance.random(), None)
    number = member_of(self, key).number
    luck = mix(self._luck, (number << 32) + <int64_t>self._turns[number])
    self._turns[number] += 1
    seconds = quantile_of(self, mix(luck, 0))
    return begin_job(self, key, seconds, luck, None)


cdef inline bint is_job(object call) noexcept:
    """True if what is called begins a job, and nothing else."""
    return type(call) is JOB or is_of(call, BEGIN)


cdef Lasting call_job_in(object context, object call, object item):
    """Begin a job in a context, by its key or its arrival."""
    PyContext_Enter(context)
    try:
        if type(call) is JOB:
            return begin_call(<JobFields>call, item)
        return begin_attempt(<JobFields>PyMethod_GET_SELF(call), <ArrivalFields?>item)
    finally:
        PyContext_Exit(context)


# Durations. Most are log-normal.

cdef bint is_log_normal(JobFields self) except -1:
    if self.duration is not self.known:
        self.known = self.duration
        self.is_log_normal = type(self.known) is LOG_NORMAL
        if self.is_log_normal:
            self.mu, self.sigma = self.known._mu, self.known._sigma
    return self.is_log_normal


cdef double draw_of(JobFields self, object chance) except? -1:
    """Draw a duration: ``LogNormal.draw``, or another distribution's."""
    cdef double part
    if not is_log_normal(self):
        return self.duration.draw(chance)
    part = chance.random()
    return exp(INV_CDF(part if part else 0.5, self.mu, self.sigma))


cdef double quantile_of(JobFields self, double part) except? -1:
    """Return a quantile of the durations: ``LogNormal.quantile``, or another distribution's."""
    if not is_log_normal(self):
        return self.duration.quantile(part)
    return exp(self.mu + self.sigma * <double>INV_CDF(part, 0.0, 1.0)) if part else 0.0


def draw_arrivals(JobFields self, keys, chance, *, durations=None, priority=0):
    cdef ArrivalFields arrival
    cdef list found = []
    if durations is not None:
        return pure["Job._drawn"](self, keys, chance, durations=durations, priority=priority)
    for key in keys:
        arrival = RLE_NEW(ARRIVAL, NO_ARGS)
        arrival.key, arrival.priority, arrival.attempts = key, priority, 0
        arrival.seconds = draw_of(self, chance)
        arrival.luck = chance.random()
        found.append(arrival)
    return found


def random_times(double begin, double end, double most, draw, rates, double start):
    cdef double time = begin - log(1.0 - <double>draw()) / most
    cdef list times = []
    while time < end:
        if rates is None or <double>draw() * most < <double>rates[<Py_ssize_t>floor((start + time) / HOUR_SECONDS) % 24]:
            times.append(time)
        time -= log(1.0 - <double>draw()) / most
    return times


# What follows from them.

cdef MemberFields member_of(JobFields self, object key):
    try:
        return <MemberFields?>(<PopulationFields>self.population).members[key]
    except (KeyError, TypeError):
        return (<object>self)._member(self.population, key)


cdef int begin_member(MemberFields self) except -1:
    """Record that a job begins to work on a key: ``Member.begin``."""
    if self.active:
        (<PopulationFields?>self.population).conflict_count += 1
    self.active += 1
    return 0


cdef Lasting begin_job(JobFields self, object key, double seconds, double luck, object priority):
    """Begin an attempt of a job: ``Job._begin``."""
    cdef CurrentFields current = self._current
    cdef WaitFields waits
    cdef PopulationFields population
    cdef MemberFields member = None
    cdef Lasting job
    cdef bint is_failed
    if type(self) is not JOB:
        return (<object>self)._begin(key, seconds, luck, priority)
    current.key = key
    if current.wait is not None:
        wait, current.wait, waits = current.wait, None, self._waits
        if waits._recent is None and not waits._by_priority:
            measure(waits._meter, wait)
        else:
            (<object>waits).add(wait, key, priority)
    is_failed = luck < (self._failures if self._fails is None else <double>self._fails(key))
    if self.population is not None:
        population, member = self.population, member_of(self, key)
        seconds *= member.weight
        if population.outages and self._needs_group and (<object>population).is_out(member, self._clock._monotonic):
            population.outage_count += 1
            is_failed = True
            seconds = self._outage_duration.quantile(mix(luck, -1))
    measure(self._execution_time, seconds)
    if not 0 <= seconds < INF:
        raise ValueError(f"seconds must be >= 0 and finite, got {seconds!r}")
    job = Lasting.__new__(Lasting)
    job.seconds = seconds
    if is_failed:
        job.error = JOB_FAILED(f"{self.name} failed")
    if self._has_end:
        job.kind, job.key, job.member, job.luck = self, key, member, luck
    return job


def _end_job(JobFields self, key, MemberFields member, double luck, error):
    end_job(self, key, member, luck, error)


cdef int end_job(JobFields self, object key, MemberFields member, double luck, object error) except -1:
    cdef double now, interval
    cdef bint is_failure = error is not None and isinstance(error, JOB_FAILED)
    if member is not None:
        member.active -= 1
        if is_failure:
            member.failures += 1
        elif error is None and self._is_sync:
            self._current.key = key
            now = self._clock._monotonic
            interval = now - member.synced_at
            if member.syncs:
                (<PopulationFields>self.population).add_interval(interval)
            member.longest = max(interval, member.longest)
            member.synced_at = now
            member.syncs += 1
    follow = self._then if error is None else self._on_failure if is_failure else None
    if follow is not None:
        self._current.cause = luck
        try:
            follow(key)
        finally:
            self._current.cause = None
    return 0


# The loop.

cdef Py_ssize_t SPARE_TIMER_COUNT = 32  # stale timers that are tolerated


@cython.final
cdef class Timers:
    """``simulation.timers.Timers``, with what is called beside the heap: a handle, a job that lasts, or a call as a tuple."""

    cdef ClockFields clock
    cdef priority_queue[pair[pair[double, int64_t], Py_ssize_t]] heap  # the least first: of negated times and numbers
    cdef list held
    cdef vector[Py_ssize_t] spare  # places in it
    cdef int64_t number
    cdef readonly Py_ssize_t stale_count

    def __init__(self, ClockFields clock not None):
        self.clock, self.held = clock, []

    def __len__(self):
        return self.heap.size()

    def push(self, double when, call, argument):
        self.put(when, (call, argument))

    def push_handle(self, double when, handle):
        self.put(when, handle)

    def next_at(self):
        return self.first_at()

    def run_next(self, ready):
        run_first(self, ready)

    def note_stale(self):
        self.stale_count += 1
        if 5 * (self.stale_count - SPARE_TIMER_COUNT) > 2 * <Py_ssize_t>self.heap.size():
            self.compact()

    def clear(self):
        held, self.held, self.stale_count = self.held, [], 0
        self.spare.clear()
        while not self.heap.empty():
            self.heap.pop()

    cdef int put(self, double when, object held) except -1:
        cdef Py_ssize_t place
        if self.spare.empty():
            place = len(self.held)
            self.held.append(held)
        else:
            place = self.spare.back()
            self.spare.pop_back()
            self.held[place] = held
        self.number += 1
        self.heap.push(pair[pair[double, int64_t], Py_ssize_t](pair[double, int64_t](-when, -self.number), place))
        return 0

    cdef inline object pop(self):
        cdef Py_ssize_t place = self.heap.top().second
        held = self.held[place]
        self.heap.pop()
        self.held[place] = None
        self.spare.push_back(place)
        return held

    cdef double first_at(self) except? -1:
        while self.stale_count and not self.heap.empty() and is_stale(self.held[self.heap.top().second]):
            self.pop()
            self.stale_count -= 1
        if self.heap.empty():
            self.stale_count = 0
            return INF
        return -self.heap.top().first.first

    cdef int compact(self) except -1:
        """Drop every stale timer now."""
        cdef priority_queue[pair[pair[double, int64_t], Py_ssize_t]] kept
        cdef Py_ssize_t before = self.heap.size(), place
        cdef list dropped = []  # freed last: a finalizer may add timers
        while not self.heap.empty():
            place = self.heap.top().second
            if is_stale(self.held[place]):
                dropped.append(self.held[place])
                self.held[place] = None
                self.spare.push_back(place)
            else:
                kept.push(self.heap.top())
            self.heap.pop()
        self.heap.swap(kept)
        self.stale_count = max(0, self.stale_count - (before - <Py_ssize_t>self.heap.size()))
        return 0


cdef inline bint is_stale(object held) except -1:
    if type(held) is Lasting:
        return not held.is_running
    return type(held) is not tuple and held._cancelled


cdef inline bint is_handle(object held) noexcept:
    return type(held) is not Lasting and type(held) is not tuple


cdef int run_first(Timers timers, object ready) except -1:
    """Run the first timer: ``Timers.run_next``."""
    held = timers.pop()
    if type(held) is Lasting:
        end_lasting(<Lasting>held, None)
        return 0
    if type(held) is tuple:
        (<tuple>held)[0]((<tuple>held)[1])
        return 0
    while True:
        held._scheduled = False
        if held._cancelled:
            timers.stale_count -= 1
        else:
            ready.append(held)
        if timers.heap.empty() or -timers.heap.top().first.first > timers.clock._monotonic:
            return 0
        if not is_handle(timers.held[timers.heap.top().second]):
            return 0
        held = timers.pop()


def run_virtual(self, double when, future, int64_t still_count_max):
    cdef Timers timers = self._timers
    cdef ClockFields clock = timers.clock
    cdef list wakers = self._wakers
    cdef WakerFields waker, other
    cdef object ready = self._ready
    cdef double last = min(when, DBL_MAX), at  # nothing ever happens at infinity
    cdef int64_t still_count = 0
    cdef bint is_waker
    while still_count <= still_count_max:
        if ready:
            still_count = self._run_ready(still_count)
        if future is not None and future.done():
            return
        waker = None
        for each in wakers:
            other = <WakerFields?>each
            if waker is None or other.at < waker.at:
                waker = other
        at = timers.first_at()
        is_waker = waker is not None and waker.at < at
        if is_waker:
            at = waker.at
        if at > clock._monotonic:
            if ready:
                continue
            if at > last:
                return
            clock._monotonic = at
            still_count = 0
        else:
            at = clock._monotonic
            still_count += 1
        if is_waker:
            waker.at = at  # if it raises, it runs again
            if is_of(waker.run_due, RUN_DUE):
                waker.at = run_due_in(<RunnerFields>PyMethod_GET_SELF(waker.run_due), at)
            else:
                waker.at = waker.run_due(at)
        else:
            run_first(timers, ready)
    raise self._still_error()
