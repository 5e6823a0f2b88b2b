# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, nonecheck=False
"""The compiled body of the kernel: the same fields and decisions as the pure one beside it, for the calls that are made most.

Theory. A trivial call costs 0.05 microseconds, and scheduling it in pure Python 2: boxed numbers, look-ups of attributes, and
frames. So the fields that every call touches lie in C structs (``fields.py`` has them as slots), the clock is read without a
call, and each function here does what its pure namesake does for a call with nothing out of the ordinary. It hands all others
to that namesake before it has changed anything, so that each rule has one home. ``bodies`` pairs the two; ``choice.py`` says
which runs.

Each trick says what it gains, measured by itself on CPython 3.11 (microseconds a call).
"""

cimport cython
from cpython cimport array as carray
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport PyObject, PyTypeObject
from libc.math cimport ceil
from libc.stdint cimport UINT32_MAX, uint32_t
from libcpp.algorithm cimport is_sorted, sort, upper_bound
from libcpp.pair cimport pair
from libcpp.queue cimport priority_queue
from libcpp.vector cimport vector

import math
import time
from array import array
from heapq import heappop
from types import CoroutineType, FunctionType

from ratelimited_executor._kernel import sizes
from ratelimited_executor._kernel.states import RECORD, Pacing, TaskClass, TaskState
from ratelimited_executor._kernel.timeline import FAR_SECONDS as _FAR

cdef extern from *:
    """
    #include <time.h>
    #if defined(__GNUC__)
    #define RLE_PREFETCH(p) __builtin_prefetch((p), 1)
    #else
    #define RLE_PREFETCH(p) ((void)0)
    #endif
    #define RLE_PREFETCH_SLOT(list, i) RLE_PREFETCH(&((PyListObject *)(list))->ob_item[i])
    #define RLE_PREFETCH_ITEM(list, i) if ((i) < PyList_GET_SIZE(list)) RLE_PREFETCH(((PyListObject *)(list))->ob_item[i])
    #define RLE_TUPLE_ITEMS(t) (((PyTupleObject *)(t))->ob_item)
    #define RLE_QUALNAME(f) (((PyFunctionObject *)(f))->func_qualname)
    #define RLE_IS_AWAITABLE(o) (Py_TYPE(o)->tp_as_async != NULL && Py_TYPE(o)->tp_as_async->am_await != NULL)

    /* Visit what waiting records refer to, on behalf of these: see traverse_bucket(). */
    static int RLE_VISIT_RECORDS(PyObject *calls, PyObject *kind, traverseproc traverse, visitproc visit, void *arg) {
        Py_ssize_t count = calls == Py_None ? 0 : PyList_GET_SIZE(calls);
        for (Py_ssize_t at = 0; at < count; at++) {
            PyObject *record = PyList_GET_ITEM(calls, at);
            if (at + 16 < count) {  /* they lie anywhere: a third of the time */
                char *ahead = (char *)PyList_GET_ITEM(calls, at + 16);
                RLE_PREFETCH(ahead - 16);
                RLE_PREFETCH(ahead + 48);
            }
            if ((PyObject *)Py_TYPE(record) == kind && Py_REFCNT(record) == 1 && !PyObject_GC_IsTracked(record)) {
                int found = traverse(record, visit, arg);
                if (found) return found;
            }
        }
        return 0;
    }
    #define RLE_NEW(type, no_args) (((PyTypeObject *)(type))->tp_new((PyTypeObject *)(type), (no_args), NULL))

    /* What a context begins with, the same since CPython 3.7: is_map_known() looks whether it still is. */
    typedef struct { PyObject_HEAD void *prev; PyObject *variables; } RLE_Context;
    #define RLE_CURRENT() (PyThreadState_Get()->context)
    #define RLE_VARIABLES(c) (((RLE_Context *)(c))->variables)
    #if PY_VERSION_HEX >= 0x030d0000
    static PyObject *RLE_REFERENT(PyObject *reference) {
        PyObject *found;
        return PyWeakref_GetRef(reference, &found) < 0 ? NULL : found != NULL ? found : Py_NewRef(Py_None);
    }
    #else
    #define RLE_REFERENT(reference) Py_NewRef(PyWeakref_GET_OBJECT(reference))
    #endif
    #define RLE_IS_CURRENT(kept) (RLE_CURRENT() != NULL && RLE_VARIABLES(RLE_CURRENT()) == RLE_VARIABLES(kept))

    /* time.monotonic() to the last bit, where the system's clock is all that it asks. */
    #if defined(__linux__)
    #include <sys/timerfd.h>
    #define RLE_HAS_CLOCK 1
    static int rle_set_timer(int fd, long long time_ns) {
        struct itimerspec spec = {{0, 0}, {(time_t)(time_ns / 1000000000), (long)(time_ns % 1000000000)}};
        return timerfd_settime(fd, TFD_TIMER_ABSTIME, &spec, NULL);
    }
    static double rle_monotonic(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_nsec ? (double)((long long)t.tv_sec * 1000000000 + t.tv_nsec) / 1e9 : (double)t.tv_sec;
    }
    #else
    #define RLE_HAS_CLOCK 0
    static double rle_monotonic(void) { return 0.0; }
    static int rle_set_timer(int fd, long long time_ns) { return -1; }
    #endif

    #ifndef KERNEL_SOURCE_CRC32
    #error "built by .packaging/build_kernel.py, which stamps the checksum of this file into the extension"
    #endif
    """
    const unsigned int KERNEL_SOURCE_CRC32
    bint RLE_HAS_CLOCK
    double rle_monotonic() noexcept
    int rle_set_timer(int, long long) noexcept
    void RLE_PREFETCH_SLOT(object, Py_ssize_t) noexcept
    void RLE_PREFETCH_ITEM(object, Py_ssize_t) noexcept
    PyObject** RLE_TUPLE_ITEMS(object) noexcept
    PyObject* RLE_QUALNAME(object) noexcept
    bint RLE_IS_AWAITABLE(object) noexcept
    object RLE_NEW(object, object)
    ctypedef int (*visitproc)(PyObject*, void*) noexcept
    ctypedef int (*traverseproc)(PyObject*, visitproc, void*) noexcept
    ctypedef struct Traversable "PyTypeObject":
        traverseproc tp_traverse
    int RLE_VISIT_RECORDS(PyObject*, PyObject*, traverseproc, visitproc, void*) noexcept
    void PyObject_GC_UnTrack(object)
    void PyObject_GC_Track(object)
    bint PyObject_GC_IsTracked(object)
    bint RLE_IS_CURRENT(object) noexcept
    object RLE_REFERENT(object)

cdef extern from "Python.h":
    object PyContext_New()
    object PyContext_Copy(object)
    object PyContext_CopyCurrent()
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    object PyObject_Vectorcall(object, PyObject**, size_t, PyObject*)
    object PyObject_CallOneArg(object, object)
    object PyLong_FromLongLong(long long)
    Py_ssize_t PyObject_Length(object) except -1
    bint PyCallable_Check(object)
    object PyErr_SetFromErrno(object)
    unsigned long PyThread_get_thread_ident()

cdef double INF = math.inf, FAR_SECONDS = _FAR, ROUNDING_SECONDS = sizes.ROUNDING_SECONDS
cdef double LONG_HOLD_SECONDS = sizes.LONG_HOLD_SECONDS, TICKS = sizes.TICKS, TICKS_MAX = sizes.TICKS_MAX
cdef Py_ssize_t LARGE_COUNT = sizes.LARGE_COUNT, OPEN_COUNT_MAX = sizes.OPEN_COUNT_MAX, RUN_COUNT = sizes.RUN_COUNT
cdef Py_ssize_t SLOT_COUNT = sizes.SLOT_COUNT, SPARE_COUNT = sizes.SPARE_COUNT, RECORD_COUNT_MAX = sizes.RECORD_COUNT_MAX
cdef Py_ssize_t CALL_COUNT_MAX = sizes.CALL_COUNT_MAX
cdef Py_ssize_t PART_COUNT = 16384  # entries sorted, or dealt out to slots, at a stretch: about a millisecond
cdef object SYSTEM_CLOCK = time.monotonic, ON_TIME = Pacing.ON_TIME, OTHER = TaskClass.OTHER, NO_ARGS = ()
cdef tuple PLAIN_RANK = (0, OTHER), SOON_RANK = (0, TaskClass.IMMEDIATE)
cdef list STATES = list(TaskState), CLASSES = list(TaskClass)
cdef int WAITING = STATES.index(TaskState.WAITING), RUNNING = STATES.index(TaskState.RUNNING)
cdef int DONE = STATES.index(TaskState.DONE), CANCELLED = STATES.index(TaskState.CANCELLED)
cdef int IS_OTHER = OTHER, IS_IMMEDIATE = TaskClass.IMMEDIATE
cdef object IS_RUNNING = TaskState.RUNNING, IS_DONE = TaskState.DONE, IS_CANCELLED = TaskState.CANCELLED


SOURCE_CRC32 = KERNEL_SOURCE_CRC32  # choice.py compares it with the source beside the extension


# Pairing with the pure bodies.

pure = {}  # the pure body of each function here, by name, and the classes that it makes; filled by choice.two_bodies()
cdef object TASK_HANDLE = None, name_of = None


def connect(name, body):
    """Take in the pure body of a function, or a class that is made here."""
    global TASK_HANDLE, name_of
    pure[name] = body
    if name == "TaskHandle":
        TASK_HANDLE = body
    elif name == "name_of":
        name_of = body


def set_counts(*, spare=sizes.SPARE_COUNT, open_max=sizes.OPEN_COUNT_MAX, run=sizes.RUN_COUNT, slot=sizes.SLOT_COUNT, part=16384):
    """Go another way from other counts on, for tests at small sizes; without arguments, from those that are in force."""
    global SPARE_COUNT, OPEN_COUNT_MAX, RUN_COUNT, SLOT_COUNT, PART_COUNT
    SPARE_COUNT, OPEN_COUNT_MAX, RUN_COUNT, SLOT_COUNT, PART_COUNT = spare, open_max, run, slot, part


# Fields. What each is says the class that stands on it.

cdef class BucketFields:
    cdef public carray.array dues
    cdef public list calls, args
    cdef public object calendar, contexts, _late, _origin
    cdef public Py_ssize_t gone
    cdef public long long shift, _boundary
    cdef public bint frozen, has_records, opened


cdef class CalendarFields:
    cdef public dict future
    cdef public double end, epoch_offset, per_second
    cdef public Py_ssize_t opened_count, cancelled_count
    cdef public object on_cancelled, ready, soon_class, _current


cdef class RecordFields:
    cdef public object _call, _callbacks, _context, _engine, _options, _outcome
    cdef public double _due
    cdef object place, __weakref__
    cdef unsigned char state, rank

    @property
    def _place(self):
        return self.place

    @_place.setter
    def _place(self, value):
        self.place = value
        if not PyObject_GC_IsTracked(self):
            PyObject_GC_Track(self)

    @property
    def _state(self):
        return STATES[self.state]

    @_state.setter
    def _state(self, value):
        self.state = STATES.index(value)

    @property
    def _class(self):
        return CLASSES[self.rank]

    @_class.setter
    def _class(self, value):
        self.rank = value


cdef class ReadyFields:
    cdef public dict _queues
    cdef public list active
    cdef public Py_ssize_t _count


cdef class RunFields:
    cdef public object source, _positions
    cdef public Py_ssize_t _cursor, _number


cdef class StreamFields:
    cdef public object order, source


cdef class RecordRunFields:
    cdef public object calendar, _numbers
    cdef public list records
    cdef public Py_ssize_t cursor, _stale_count


cdef class StretchFields:
    cdef public object source, _calendar, _positions, _queue, _run
    cdef public Py_ssize_t skipped_count, _count
    cdef public bint _is_paid


cdef class QueueFields:
    cdef public double end, interval_end
    cdef public Py_ssize_t _later_on_time_count, later_count
    cdef public bint early, is_special
    cdef public object admission, on_start, on_time, pacing, plan, spread


cdef class AdmissionFields:
    cdef public long long count


cdef class PlanFields:
    cdef public long long _late_count
    cdef public double _slack, end, next_at


cdef class AccountFields:
    cdef public long long accepted_count, started_count
    cdef public bint is_changed, is_inside
    cdef public object on_end, on_key_end, on_room
    cdef public dict counts


cdef class ContextFields:
    cdef public object scratch, _last


cdef class EngineFields:
    cdef public double armed
    cdef public object accounts, callbacks, contexts, loop, queue
    cdef public bint is_coarse
    cdef object clock
    cdef bint is_system

    @property
    def monotonic(self):
        return self.clock

    @monotonic.setter
    def monotonic(self, value):
        self.clock = value
        self.is_system = RLE_HAS_CLOCK and value is SYSTEM_CLOCK


cdef class CallbackFields:
    cdef public object _pending
    cdef public bint _is_armed, _is_debug


cdef class ExecutorFields:
    cdef public object _engine, _expires, _home


cdef inline double time_of(EngineFields engine) except? -1:
    """Read the clock: 0.02 in place of 0.06."""
    return rle_monotonic() if engine.is_system else engine.clock()


def set_timer(int fd, long long time_ns):
    """Set a timer descriptor: what ``wakers.py`` asks of the system's library, without ctypes (4 a wake-up)."""
    if rle_set_timer(fd, time_ns) < 0:
        PyErr_SetFromErrno(OSError)


# Adding.

cdef inline Py_ssize_t append(BucketFields bucket, double due, object call, object args) except -1:
    """Append a task to the columns, and return how many there are: without boxing its due time.

    The arguments come last, here and in the pure body: whatever an interrupt or a lack of memory leaves behind, no column is
    shorter than theirs.
    """
    cdef Py_ssize_t count = len(bucket.args)
    if count != len(bucket.calls):
        bucket.trim(count)
    carray.resize_smart(bucket.dues, count + 1)
    bucket.dues.data.as_doubles[count] = due
    bucket.calls.append(call)
    bucket.args.append(args)
    return count + 1


cdef inline int append_number(carray.array numbers, unsigned long long number) except -1:
    cdef Py_ssize_t count = len(numbers)
    carray.resize_smart(numbers, count + 1)
    numbers.data.as_ulonglongs[count] = number
    return 0


cdef inline object fold(tuple args):
    """Return what lies in the column of arguments: ``buckets.folded``."""
    return args[0] if len(args) == 1 and type(args[0]) is not tuple else args


cdef object look(ContextFields contexts):
    """Return what is kept of the caller's variables: ``SharedContexts.capture``.

    The variables of a context are an immutable map: while that is the same object, so are all values in it. One comparison of
    pointers takes the place of a copy and of a comparison value by value: 0.01 in place of 0.3 with three variables.
    """
    if IS_MAP_KNOWN:
        if RLE_IS_CURRENT(NO_VARIABLES):
            return None
        if contexts._last is not None:
            last = RLE_REFERENT(contexts._last)
            if last is not None and RLE_IS_CURRENT(last):
                return last
    return contexts.capture()


cdef bint is_map_known() except *:
    """Find out whether contexts begin as they are thought to: a copy shares the map, and a context with another value has another."""
    variable = __import__("contextvars").ContextVar("variable")
    first, second = PyContext_New(), PyContext_New()
    first.run(variable.set, first)
    copied = first.copy()
    second.run(variable.set, second)
    return (
        first.run(is_current, copied) and not first.run(is_current, second) and not second.run(is_current, copied)
        and PyContext_New().run(is_current, PyContext_New()) and not PyContext_New().run(is_current, copied)
    )


def is_current(context):
    """Return True if a context has the map of variables of the one that is entered."""
    return RLE_IS_CURRENT(context)


cdef object NO_VARIABLES = PyContext_New()
cdef bint IS_MAP_KNOWN = is_map_known()


cdef BucketFields bucket_for(CalendarFields calendar, double due):
    """Return the bucket that a due time belongs to; None if it is not there, or out of the ordinary."""
    cdef StreamFields current
    cdef double number
    if due < calendar.end:  # ``Calendar.joined``
        current = calendar._current
        return None if current is None or (<DueOrder>current.order).is_busy_() else current.source
    number = (due + calendar.epoch_offset) * calendar.per_second
    return calendar.future.get(PyLong_FromLongLong(<long long>number)) if number < 9e18 else None


cdef inline int join(CalendarFields calendar, Py_ssize_t count) except -1:
    """Put the last of the tasks of the bucket that joins the running interval in due order: ``Calendar.join``."""
    (<DueOrder>(<StreamFields>calendar._current).order).add(count - 1)
    calendar.opened_count += 1
    return 0


cdef inline object last_ready(CalendarFields calendar):
    """Return the run that what is asked for without delay may join; None if there is none, or another order."""
    if isinstance(calendar.ready, ReadyFields):
        queue = (<ReadyFields>calendar.ready)._queues.get(PLAIN_RANK if calendar.soon_class is OTHER else SOON_RANK)
        if queue:
            return queue[len(queue) - 1]
    return None


cdef object MISSING = object()


cdef tuple given(object first, tuple rest):
    """Return the arguments that a caller gave: the pure body says which is missing."""
    return () if first is MISSING else (first, *rest)


cdef inline EngineFields home_engine(ExecutorFields executor):
    """Return the engine of an executor from whose home thread this is; else None: what then is looked at by the pure body."""
    if isinstance(executor._engine, EngineFields):
        thread = executor._home._thread_id
        if thread is not None and <unsigned long>thread == PyThread_get_thread_ident():
            return <EngineFields>executor._engine
    return None


cdef inline CallHandle handle_of(BucketFields bucket, Py_ssize_t position, double when):
    cdef CallHandle handle = CallHandle.__new__(CallHandle)
    handle._bucket = bucket
    handle._place = bucket.shift + position
    handle._when = when
    return handle


def call_later(ExecutorFields self, delay=MISSING, callback=MISSING, *args, context=None):
    cdef EngineFields engine
    cdef CalendarFields calendar
    cdef BucketFields bucket
    cdef Py_ssize_t count
    cdef double when
    if context is None and (PyFloat_CheckExact(delay) or PyLong_CheckExact(delay)) and PyCallable_Check(callback):
        engine = home_engine(self)
        if engine is not None:
            calendar = <CalendarFields>(<QueueFields>engine.queue).on_time
            try:
                when = time_of(engine) + <double>delay
            except OverflowError:
                when = INF
            if engine.is_coarse:
                when = ceil(when * TICKS) / TICKS if when < TICKS_MAX else INF
            if -INF < when < FAR_SECONDS:
                kept = look(<ContextFields>engine.contexts)
                bucket = bucket_for(calendar, when)
                if bucket is not None and (bucket.contexts is None) == (kept is None):
                    if kept is not None:
                        (<list>bucket.contexts).append(kept)
                    count = append(bucket, when, callback, fold(args))
                    (<AccountFields>engine.accounts).accepted_count += 1
                    if bucket.opened:
                        join(calendar, count)
                    if when < engine.armed:
                        engine.wake_for(when)
                    elif count == LARGE_COUNT and not bucket.opened:
                        engine.wake()
                    return handle_of(bucket, count - 1, when)
    return pure["call_later"](self, *given(delay, given(callback, args)), context=context)


cdef object add_ready(ExecutorFields self, call, tuple args, bint has_handle):
    """Make a task without a record ready at once, and return its handle, or True; None if it is out of the ordinary."""
    cdef EngineFields engine = home_engine(self)
    cdef BucketFields bucket
    cdef CalendarFields calendar
    cdef AccountFields accounts
    cdef RunFields run
    cdef Py_ssize_t count
    cdef double now
    if engine is None or not PyCallable_Check(call):
        return None
    now = time_of(engine)  # this and the next may run Python code, which may change what is looked at below
    kept = look(<ContextFields>engine.contexts)
    calendar = <CalendarFields>(<QueueFields>engine.queue).on_time
    last = last_ready(calendar)
    if not isinstance(last, RunFields) or calendar._current is None:
        return None
    run = <RunFields>last
    bucket = <BucketFields>(<StreamFields>calendar._current).source
    if run.source is not bucket or type(run._positions) is not list or now >= (<QueueFields>engine.queue).end:
        return None
    if (bucket.contexts is None) != (kept is None):
        return None
    if kept is not None:
        (<list>bucket.contexts).append(kept)
    count = append(bucket, now, call, fold(args))
    (<list>run._positions).append(count - 1)
    (<ReadyFields>calendar.ready)._count += 1
    calendar.opened_count += 1
    accounts = <AccountFields>engine.accounts
    accounts.accepted_count += 1
    accounts.is_changed = True
    if now < engine.armed:
        engine.wake_for(now)
    return handle_of(bucket, count - 1, now) if has_handle else True


def call_soon(ExecutorFields self, callback=MISSING, *args, context=None):
    handle = add_ready(self, callback, args, True) if context is None else None
    return pure["call_soon"](self, *given(callback, args), context=context) if handle is None else handle


def execute(ExecutorFields self, fn=MISSING, *args):
    if self._expires is not None or add_ready(self, fn, args, False) is None:
        pure["execute"](self, *given(fn, args))


cdef inline RecordFields record_of(EngineFields engine, object call, tuple args, double due, int rank):
    cdef RecordFields record = <RecordFields>RLE_NEW(TASK_HANDLE, NO_ARGS)
    record._engine = engine
    record._call = call
    record._outcome = args
    record._due = due
    record.rank = rank
    record._context = look(<ContextFields>engine.contexts)
    return record


def submit(ExecutorFields self, fn=MISSING, *args, **options):
    cdef EngineFields engine
    cdef CalendarFields calendar
    cdef AccountFields accounts
    cdef RecordRunFields run
    cdef double now
    if not options and self._expires is None and PyCallable_Check(fn):
        engine = home_engine(self)
        if engine is not None:
            calendar = <CalendarFields>(<QueueFields>engine.queue).on_time
            now = time_of(engine)
            if isinstance(calendar.ready, ReadyFields) and now < (<QueueFields>engine.queue).end:
                record = record_of(engine, fn, args, now, IS_IMMEDIATE)  # first: the garbage collector may run in it
                last = last_ready(calendar)
                run = <RecordRunFields>last if isinstance(last, RecordRunFields) else None
                if run is not None and len(run.records) < RECORD_COUNT_MAX and type(run._numbers) is array:
                    record.place = run
                    run.records.append(record)
                    append_number(<carray.array>run._numbers, (<ReadyFields>calendar.ready)._count)
                    (<ReadyFields>calendar.ready)._count += 1
                    calendar.opened_count += 1
                    accounts = <AccountFields>engine.accounts
                    accounts.accepted_count += 1
                    accounts.is_changed = True
                    if now < engine.armed:
                        engine.wake_for(now)
                    return record
    return pure["submit"](self, *given(fn, args), **options)


def schedule(ExecutorFields self, fn=MISSING, *args, **options):
    cdef EngineFields engine
    cdef QueueFields queue
    cdef CalendarFields calendar
    cdef BucketFields bucket
    cdef RecordFields record
    cdef Py_ssize_t count
    cdef double now, due
    delay = options.get("delay") if len(options) == 1 else None
    if PyFloat_CheckExact(delay) and 0 < <double>delay < INF and PyCallable_Check(fn) and self._expires is None:
        engine = home_engine(self)
        if engine is not None:
            queue = <QueueFields>engine.queue
            record = record_of(engine, fn, args, 0.0, IS_OTHER)  # first: the garbage collector may run in it
            now = time_of(engine)
            due = now + <double>delay
            if now < queue.end and due < FAR_SECONDS:
                calendar = <CalendarFields>(queue.on_time if due < queue.interval_end or queue.pacing is ON_TIME else queue.spread)
                bucket = bucket_for(calendar, due)
                if bucket is not None:
                    record._due = due
                    record.place = bucket
                    PyObject_GC_UnTrack(record)  # 0.6 with a million pending: see traverse_bucket()
                    bucket.has_records = True
                    if bucket.contexts is not None:
                        (<list>bucket.contexts).append(None)
                    count = append(bucket, due, record, RECORD)
                    if bucket.opened:
                        join(calendar, count)
                    elif count == LARGE_COUNT:
                        calendar._note_large()
                    if queue.end <= due < queue.interval_end:
                        queue._later_on_time_count += 1
                    (<AccountFields>engine.accounts).accepted_count += 1
                    if due < engine.armed:
                        engine.wake_for(due)
                    return record
    return pure["schedule"](self, *given(fn, args), **options)


# Collecting.

cdef traverseproc traverse_columns = (<Traversable*>BucketFields).tp_traverse
cdef traverseproc traverse_record = (<Traversable*>RecordFields).tp_traverse


cdef int traverse_bucket(PyObject* self, visitproc visit, void* arg) noexcept:
    """Show the garbage collector what a bucket refers to, and what the records do that wait in it.

    These are not tracked, as most die with their start: the collector would go through a million of them, again and again, and
    find nothing. What they refer to is the bucket's, so that an executor that nobody closes is still found. A record that
    somebody holds is not shown: it keeps its executor, until the task has started or ended.
    """
    cdef int found = traverse_columns(self, visit, arg)
    if not found and (<BucketFields>self).has_records:
        found = RLE_VISIT_RECORDS(<PyObject*>(<BucketFields>self).calls, <PyObject*>TASK_HANDLE, traverse_record, visit, arg)
    return found


(<Traversable*>BucketFields).tp_traverse = traverse_bucket


# Cancelling.

cdef inline int check_sparse(BucketFields bucket) except -1:
    """Have the survivors moved together if they are few: ``Bucket._check``."""
    if not bucket.opened and not bucket.frozen and bucket._late is None and 2 * bucket.gone > len(bucket.calls) + SPARE_COUNT:
        bucket.calendar.note_sparse(bucket)
    return 0


@cython.final
@cython.no_gc  # it refers to a bucket, which refers to no handle: what the collector does not track it need not walk (0.2)
@cython.freelist(256)
cdef class CallHandle:
    """A scheduled callback of the asyncio face: the methods of ``asyncio.TimerHandle``, and :meth:`reschedule`."""

    cdef public BucketFields _bucket
    cdef public long long _place
    cdef public double _when

    def __init__(self, BucketFields bucket, long long place, double when):
        self._bucket = bucket
        self._place = place
        self._when = when

    def cancel(self):
        """Cancel the callback; does nothing if it was cancelled before, or has run."""
        cdef BucketFields bucket = self._bucket
        cdef CalendarFields calendar
        cdef long long position
        if bucket is None:
            return
        self._bucket = None
        calendar = <CalendarFields>bucket.calendar
        if bucket._origin is not None or bucket._late is not None:
            calendar.cancel_call(bucket, self._place)
            return
        position = self._place - bucket.shift
        if not 0 <= position < len(bucket.args) or bucket.calls[position] is None:
            return
        bucket.gone += 1
        if bucket.opened:
            calendar.opened_count -= 1
        calendar.cancelled_count += 1
        if bucket.contexts is not None:
            (<list>bucket.contexts)[position] = None
        call, args = bucket.calls[position], bucket.args[position]
        bucket.calls[position] = bucket.args[position] = None
        check_sparse(bucket)
        if calendar.on_cancelled is not None:
            calendar.on_cancelled()

    def reschedule(self, delay):
        """Let the callback be due ``delay`` seconds from now, in place of its time so far; a negative delay is due now.

        It is the same call, with its arguments and context variables, and it costs a fraction of a cancellation and another
        ``call_later``. Among calls of equal due times it may keep its place.

        Returns:
            False if it was cancelled, or has run, or runs at this moment; nothing is changed then.

        Raises:
            TypeError: if ``delay`` is no number.
            ValueError: if ``delay`` is NaN or infinite.
            WrongLoopError: from another thread or event loop.
        """
        return pure["CallHandle"].reschedule(self, delay)

    def cancelled(self):
        """Return True if :meth:`cancel` was called."""
        return self._bucket is None

    def when(self):
        """Return the loop time at which the callback is due."""
        return self._when

    def __repr__(self):
        return pure["CallHandle"].__repr__(self)


def cancel(RecordFields self, msg=None):
    cdef BucketFields bucket
    cdef AccountFields accounts
    cdef EngineFields engine
    if self.state == WAITING and self._options is None and isinstance(self.place, BucketFields) and self._engine is not None:
        bucket = <BucketFields>self.place
        engine = <EngineFields>self._engine
        if engine.accounts is None or engine.queue is None or bucket.calls is None or bucket.calendar is None:
            return False  # a weak reference led here while all of it is being collected: there is nothing to cancel
        if bucket.opened or self._due >= (<QueueFields>engine.queue).interval_end:
            accounts = <AccountFields>engine.accounts
            self._place = None  # not the field: the record is tracked from now on
            bucket.gone += 1
            check_sparse(bucket)
            if bucket.opened:
                (<CalendarFields>bucket.calendar).opened_count -= 1
            if accounts.on_key_end is not None:
                accounts.on_key_end(self)
            accounts.counts[IS_CANCELLED] += 1
            call, context = self._call, self._context  # what dies with them comes last
            args, self._outcome = self._outcome, msg
            self._call = <object>RLE_QUALNAME(call) if type(call) is FunctionType else name_of(call)
            self._context = None
            self.state = CANCELLED
            if self._callbacks is not None:
                call_back(self)
            if accounts.on_end is not None or accounts.on_room is not None:
                accounts.progress()
            return True
    return pure["cancel"](self, msg)


def move_survivors(BucketFields self, BucketFields fresh, origin, Py_ssize_t start, Py_ssize_t stop):
    cdef Py_ssize_t position
    cdef list calls = self.calls, args = self.args, contexts = self.contexts
    cdef carray.array dues = self.dues, first_places = origin, moved = self._origin
    cdef Py_ssize_t moved_count = 0 if moved is None else len(moved)
    for position in range(start, min(stop, <Py_ssize_t>len(args))):  # see append()
        call = calls[position]
        if call is None or (args[position] is RECORD and (<RecordFields>call).place is not self):
            continue
        if contexts is not None:
            if fresh.contexts is None:
                fresh.contexts = [None] * len(fresh.calls)
            (<list>fresh.contexts).append(contexts[position])
        append(fresh, dues.data.as_doubles[position], call, args[position])
        append_number(first_places, moved.data.as_ulonglongs[position] if position < moved_count else position + self.shift)


# In due order.

@cython.final
cdef class Positions:
    """Positions in due order, as a sequence."""

    cdef vector[uint32_t] data

    def __len__(self):
        return self.data.size()

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self.data[at] for at in range(*index.indices(self.data.size()))]
        cdef Py_ssize_t at = index
        if at < 0:
            at += self.data.size()
        if not 0 <= at < <Py_ssize_t>self.data.size():
            raise IndexError(index)
        return self.data[at]

    def __eq__(self, other):
        return list(self) == list(other)

    def __iter__(self):
        return cursor_over(self)


@cython.final
cdef class Cursor:
    """An iterator over positions in due order, or a range or list of them; it knows how far it has come, as that over a list does."""

    cdef Positions positions
    cdef list listed
    cdef Py_ssize_t at, first, count

    cdef inline Py_ssize_t length(self) noexcept:
        return self.count if self.listed is None else len(self.listed)

    cdef inline Py_ssize_t position(self) except -1:
        """Return the next position, and go on."""
        self.at += 1
        if self.positions is not None:
            return self.positions.data[self.at - 1]
        return self.first + self.at - 1 if self.listed is None else self.listed[self.at - 1]

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.length():
            raise StopIteration
        return self.position()

    def __setstate__(self, Py_ssize_t at):
        self.at = at

    def __length_hint__(self):
        return self.length() - self.at


cdef Cursor cursor_over(positions):
    """Return an iterator over positions, without boxing them (0.03 each); None where they are something else."""
    cdef Cursor cursor = Cursor.__new__(Cursor)
    if type(positions) is Positions:
        cursor.positions = positions
        cursor.count = cursor.positions.data.size()
    elif type(positions) is list:
        cursor.listed = positions
    elif type(positions) is range and positions.step == 1:
        cursor.first, cursor.count = positions.start, len(positions)
    else:
        return None
    return cursor


ctypedef pair[double, uint32_t] Entry  # due time and position: sorts by both, and is read where it lies (0.1)
ctypedef pair[Entry, Py_ssize_t] Head


@cython.final
cdef class DueOrder:
    """``due_order.DueOrder``, which says what it does and how, with due times beside the positions.

    What is dealt out to slots, and a slot with more entries than are sorted at a stretch, goes in steps here, too. Such a slot
    is sorted in parts, and the parts are merged as they are read, unless they follow one another as they are.
    """

    cdef object dues
    cdef bint is_array
    cdef list todo  # sequences of positions that are to be dealt out
    cdef Py_ssize_t todo_at  # how many of the first of them were
    cdef vector[Entry] open  # sorted; those before the cursor have been read
    cdef vector[vector[Entry]] slots
    cdef vector[Entry] whole  # a slot that is sorted in parts of PART_COUNT; those before sorted_count are
    cdef priority_queue[Head] heads  # the first entry that is left of each part, the earliest of them on top
    cdef Py_ssize_t cursor, sorted_count, slot
    cdef double open_until, start, scale
    cdef readonly Py_ssize_t left_count

    def __init__(self, dues, double start, double end, positions=None):
        assert start < end, (start, end)
        self.dues = dues
        self.is_array = type(dues) is array
        self.todo = []
        self.open_until = INF
        self.slot = -1
        self.start = start
        self.scale = SLOT_COUNT / (end - start)
        self.extend(range(len(dues)) if positions is None else positions)

    @property
    def is_busy(self):
        """True while an addition may cost a lot of work at once: better add to another one meanwhile."""
        return self.is_busy_()

    cdef inline bint is_busy_(self) noexcept:
        return self.has_work() or not self.heads.empty()

    cdef inline bint has_work(self) noexcept:
        return len(self.todo) > 0 or self.sorted_count < <Py_ssize_t>self.whole.size()

    cdef inline double due_at(self, Py_ssize_t position) except? -1:
        return (<carray.array>self.dues).data.as_doubles[position] if self.is_array else self.dues[position]

    def prepare(self):
        """Do one step of the work that is due before the next reading; False if it did one, True if none is left."""
        cdef Py_ssize_t stop
        if self.todo:
            self.deal_out()
            return False
        if self.sorted_count < <Py_ssize_t>self.whole.size():
            stop = min(self.sorted_count + PART_COUNT, <Py_ssize_t>self.whole.size())
            sort(self.whole.begin() + self.sorted_count, self.whole.begin() + stop)
            self.push_head(self.sorted_count)
            self.sorted_count = stop
            return False
        return True

    cpdef int add(self, Py_ssize_t position) except -1:
        """Take in a position that was appended to the column."""
        cdef Entry entry = Entry(self.due_at(position), <uint32_t>position)
        self.left_count += 1
        if entry.first >= self.open_until:
            self.slots[self.slot_of(entry.first)].push_back(entry)
            return 0
        while not self.prepare():
            pass
        while not self.heads.empty():
            self.read_parts()
        self.open.insert(upper_bound(self.open.begin() + self.cursor, self.open.end(), entry), entry)
        if self.slots.empty() and <Py_ssize_t>self.open.size() - self.cursor > OPEN_COUNT_MAX:
            self.cut()
        return 0

    def extend(self, positions):
        """Take in many positions that were appended to the column, in steps."""
        if self.slots.empty() and len(positions) <= OPEN_COUNT_MAX:
            for position in positions:
                self.add(position)
            return
        if self.slots.empty():
            self.cut()
        self.left_count += len(positions)
        if len(positions):
            self.todo.append(positions)

    def head(self):
        """Return the earliest due time that is left, or a bound below it while work is left; infinity if none is."""
        return self.head_()

    cdef double head_(self) except? -1:
        while self.cursor == <Py_ssize_t>self.open.size():
            if self.has_work():
                return self.start + self.slot / self.scale
            if not self.advance():
                return INF
        return self.open[self.cursor].first

    def take(self, double now, Py_ssize_t limit=sizes.RUN_COUNT):
        """Remove and return positions due at or before ``now``, in due order, ``limit`` of them at most.

        There may be more: call again until :meth:`head` is later than ``now``. Nothing is returned while work is left.
        """
        cdef Positions taken = Positions.__new__(Positions)
        while <Py_ssize_t>taken.data.size() < limit and self.head_() <= now and not self.has_work():
            while (
                self.cursor < <Py_ssize_t>self.open.size() and <Py_ssize_t>taken.data.size() < limit
                and self.open[self.cursor].first <= now
            ):
                taken.data.push_back(self.open[self.cursor].second)
                self.cursor += 1
            if self.cursor < <Py_ssize_t>self.open.size():
                break
        self.left_count -= taken.data.size()
        return taken

    def take_lone(self, double now):
        """Remove and return the first position, if it is due at ``now`` and the next one is not; None if not, or unknown."""
        cdef Py_ssize_t cursor = self.cursor, count = self.open.size()
        if cursor >= count or self.open[cursor].first > now:
            return None
        if cursor + 1 < count:
            if self.open[cursor + 1].first <= now:
                return None
        elif not self.slots.empty() and (self.is_busy or now >= self.open_until - ROUNDING_SECONDS):
            return None  # the slots to come may hold another
        self.cursor += 1
        self.left_count -= 1
        return self.open[cursor].second

    def take_first(self, double now):
        """Remove and return the first position, if it is due at ``now``; None if not, or while work is left."""
        if self.head_() > now or self.has_work():
            return None
        self.cursor += 1
        self.left_count -= 1
        return self.open[self.cursor - 1].second

    def count_until(self, double when):
        """Count the positions left that are due at or before a time; an estimate where they are not in order yet."""
        cdef Py_ssize_t count, slot
        cdef double end = self.start + SLOT_COUNT / self.scale
        if not self.slots.empty():
            if when >= end:
                return self.left_count
            if self.is_busy:
                return int(self.left_count * max(0.0, when - self.start) / (end - self.start))
        count = upper_bound(self.open.begin() + self.cursor, self.open.end(), Entry(when, UINT32_MAX)) - self.open.begin()
        count -= self.cursor
        if when >= self.start:
            for slot in range(self.slot + 1, min(<Py_ssize_t>((when - self.start) * self.scale) + 1, <Py_ssize_t>self.slots.size())):
                count += self.slots[slot].size()
        return count

    cdef inline Py_ssize_t slot_of(self, double due) noexcept:
        """Return the slot of a due time; never one that has been opened, whatever the rounding."""
        cdef double at = (due - self.start) * self.scale
        cdef Py_ssize_t slot = SLOT_COUNT - 1 if at >= SLOT_COUNT - 1 else 0 if at < 0 else <Py_ssize_t>at
        return slot if slot > self.slot else self.slot + 1

    cdef int cut(self) except -1:
        """Begin to use slots; what is open now is dealt out to them."""
        cdef vector[Entry] moved
        cdef Py_ssize_t at
        moved.swap(self.open)
        self.slots.resize(SLOT_COUNT)
        for at in range(self.cursor, <Py_ssize_t>moved.size()):
            self.slots[self.slot_of(moved[at].first)].push_back(moved[at])
        self.cursor = 0
        self.open_until = -INF
        return 0

    cdef int deal_out(self) except -1:
        """Deal out some of what is to be dealt out."""
        cdef Py_ssize_t first = self.todo_at, at, position
        cdef double due
        positions = self.todo[0]
        cdef bint is_straight = type(positions) is range and positions.step == 1
        self.todo_at = min(first + PART_COUNT, len(positions))
        position = positions[first] - 1
        for at in range(first, self.todo_at):
            position = position + 1 if is_straight else positions[at]
            due = self.due_at(position)
            self.slots[self.slot_of(due)].push_back(Entry(due, <uint32_t>position))
        if self.todo_at == len(positions):
            del self.todo[0]
            self.todo_at = 0
        return 0

    cdef bint advance(self) except -1:
        """Open what comes next: more of a slot in parts, or the next slot that holds anything; False if none does."""
        self.open.clear()
        self.cursor = 0
        if not self.heads.empty():
            self.read_parts()
            return True
        while self.slot + 1 < <Py_ssize_t>self.slots.size():
            self.slot += 1
            self.open_until = INF if self.slot + 1 == SLOT_COUNT else self.start + (self.slot + 1) / self.scale
            if not self.slots[self.slot].empty():
                self.open.swap(self.slots[self.slot])
                vector[Entry]().swap(self.slots[self.slot])
                if not is_sorted(self.open.begin(), self.open.end()):  # as equal due times are, a million of them perhaps
                    if <Py_ssize_t>self.open.size() <= PART_COUNT:
                        sort(self.open.begin(), self.open.end())
                    else:
                        self.open.swap(self.whole)
                return True
        return False

    cdef inline void push_head(self, Py_ssize_t at) noexcept:
        """Put up the entry with which a part goes on; what is on top of such a queue is the greatest, hence the signs."""
        self.heads.push(Head(Entry(-self.whole[at].first, UINT32_MAX - self.whole[at].second), at))

    cdef int read_parts(self) except -1:
        """Open some more of a slot in parts."""
        cdef Py_ssize_t at, count = 0
        while not self.heads.empty() and count < RUN_COUNT:
            at = self.heads.top().second
            self.heads.pop()
            self.open.push_back(self.whole[at])
            count += 1
            at += 1
            if at % PART_COUNT and at < <Py_ssize_t>self.whole.size():
                self.push_head(at)
        if self.heads.empty():
            vector[Entry]().swap(self.whole)
            self.sorted_count = 0
        return 0


def in_due_order(carray.array offsets, double begin):
    cdef vector[Entry] entries
    cdef Py_ssize_t at, count = len(offsets)
    cdef carray.array order = array("I"), dues = carray.clone(offsets, count, False)
    carray.resize(order, count)
    entries.reserve(count)
    for at in range(count):
        entries.push_back(Entry(offsets.data.as_doubles[at], <uint32_t>at))
    sort(entries.begin(), entries.end())
    for at in range(count):
        order.data.as_uints[at] = entries[at].second
        dues.data.as_doubles[at] = begin + entries[at].first
    return order, dues


# Starting.

cdef inline object call_in(object context, object call, object args, bint is_one):
    """Call a function in a context: ``Context.run``, without a tuple of it all (0.05)."""
    PyContext_Enter(context)
    try:
        if is_one:
            return PyObject_CallOneArg(call, args)
        return PyObject_Vectorcall(call, RLE_TUPLE_ITEMS(args), len(<tuple>args), NULL)
    finally:
        PyContext_Exit(context)


def _start_plain(self, StretchFields stretch, double now, double stop):
    cdef AccountFields accounts = self._accounts
    cdef ContextFields contexts = self._contexts
    cdef RunFields run = <RunFields?>stretch._run
    cdef object clock = self._monotonic, scratch = contexts.scratch, context = scratch, source = stretch.source
    cdef object call = None, args = None, origin = None, result = None, batch = None, items = None, indexes = None, kept = None
    cdef bint is_system = RLE_HAS_CLOCK and clock is SYSTEM_CLOCK, is_bucket = isinstance(source, BucketFields)
    cdef bint is_copied = False, is_list = False, is_straight = False, is_begun = False
    cdef list calls = None, columns = None, origins = None
    cdef bytearray started = None
    cdef Py_ssize_t position, ahead, index = 0, first_index = 0, left = stretch._count
    cdef double after
    cdef Cursor cursor
    if is_bucket:
        calls, columns, origins = (<BucketFields>source).calls, (<BucketFields>source).args, (<BucketFields>source).contexts
    else:
        batch = self._batch = source.owner
        call, items = batch._call_and_items(source)
        kept, indexes, started = batch._parts[source], source.indexes, source.started_flags(stretch.first)
        is_list = type(items) is list
        is_straight = type(indexes) is range and indexes.step == 1
        first_index = indexes.start if is_straight else 0
        if batch.context is not None:
            context = origin = batch.context
            is_copied = not batch.own_context
    cursor = cursor_over(run._positions)
    if cursor is None:
        positions = run.positions()
    else:
        cursor.at = run._cursor
        positions = cursor
    stretch._positions = positions
    self._stretch = stretch
    accounts.is_inside = True
    try:
        while left > 0:
            left -= 1
            if cursor is None:
                found = next(positions, None)
                if found is None:
                    break
                position = found
            elif cursor.at < cursor.length():
                position = cursor.position()
            else:
                break
            if is_bucket:
                if cursor is not None and cursor.positions is not None:
                    ahead = cursor.at + 15  # due order is not the order in memory: 0.30 -> 0.16 with these four
                    if ahead < cursor.count:
                        RLE_PREFETCH_SLOT(calls, cursor.positions.data[ahead])
                        RLE_PREFETCH_SLOT(columns, cursor.positions.data[ahead])
                        RLE_PREFETCH_ITEM(calls, cursor.positions.data[ahead - 8])
                        RLE_PREFETCH_ITEM(columns, cursor.positions.data[ahead - 8])
                call = calls[position] if position < len(columns) else None  # see append()
                if call is None:  # cancelled
                    stretch.skipped_count += 1
                    continue
                args = columns[position]
                calls[position] = columns[position] = None
                if origins is not None:
                    context = origins[position]
                    origins[position] = None
                    context = scratch if context is None else context[0] if type(context) is tuple else PyContext_Copy(context)
            else:
                if started is not None:
                    if started[position]:
                        stretch.skipped_count += 1
                        continue
                    started[position] = 1
                index = first_index + position if is_straight else indexes[position]
                is_begun = True
                if is_copied:
                    context = PyContext_Copy(origin)
            try:
                if not is_bucket:
                    args = (<list>items)[index] if is_list and index < len(<list>items) else items[index]
                result = call_in(context, call, args, not is_bucket or type(args) is not tuple)  # ``buckets.folded``
            except BaseException as error:
                self._raised(accounts.calls if is_bucket else self.item_of(source, index, kept), error)
            else:
                if result is not None or PyObject_Length(scratch):
                    self._returned(accounts.calls if is_bucket else self.item_of(source, index, kept), result, context)
            if contexts.scratch is not scratch:  # it had been written to, or was given away
                if context is scratch:
                    context = contexts.scratch
                scratch = contexts.scratch
            after = rle_monotonic() if is_system else clock()
            if after - now > LONG_HOLD_SECONDS:
                self._note_hold(call if is_bucket else batch.call, after - now)
            now = after
            if is_bucket:
                call = None
            args = None  # what dies with them may change anything: not while the next is being taken
            if now >= stop or accounts.is_changed:
                break
    finally:
        self._end(stretch, index if is_begun else None, result)
    return now


cdef int spend(QueueFields queue, CalendarFields calendar, double due, double now) except -1:
    """Take the permit of a start, and plan the next: ``PlainQueue.spend`` and ``SpreadPlan.started`` (1.0)."""
    cdef PlanFields plan = queue.plan
    if queue.on_start is not None or queue.is_special or (<AdmissionFields>queue.admission).count:
        queue.spend(calendar, due, now)
    elif calendar is queue.spread:
        if plan._late_count > 0:
            plan._late_count -= 1
            return 0
        due = plan.next_at if queue.early or due < plan.next_at else due
        if now - due > plan._slack:
            due = now
        plan.next_at = due + max(0.0, plan.end - due) / (calendar.opened_count + queue.later_count + 1)
    return 0


def _start_records(self, StretchFields stretch, double now, double stop):
    cdef AccountFields accounts = self._accounts
    cdef ContextFields contexts = self._contexts
    cdef object clock = self._monotonic
    cdef bint is_system = RLE_HAS_CLOCK and clock is SYSTEM_CLOCK
    cdef QueueFields queue = self._queue
    cdef RecordRunFields run
    cdef RecordFields record
    cdef list records
    cdef double after
    if queue.counts_effects or not isinstance(stretch._run, RecordRunFields):
        return pure["_start_records"](self, stretch, now, stop)
    run = <RecordRunFields>stretch._run
    while stretch._count > 0 and run.cursor < len(run.records):
        records = run.records
        record = <RecordFields>records[run.cursor]
        records[run.cursor] = None
        run.cursor += 1
        if record.place is not run:
            continue  # it was cancelled
        record.place = None
        stretch._count -= 1
        if record._options is None:
            (<CalendarFields>stretch._calendar).opened_count -= 1
            if stretch._is_paid:
                spend(queue, stretch._calendar, record._due, now)
        elif not queue.admit_record(stretch._calendar, record, now, is_paid=stretch._is_paid):
            continue
        call = record._call
        accounts.started_count += 1
        if record._options is None:
            start_record(self, accounts, contexts, record, call, now)
        else:
            self._start_special(record, call, now)
        record = None
        after = rle_monotonic() if is_system else clock()
        if after - now > LONG_HOLD_SECONDS:
            self._note_hold(call, after - now)
        now = after
        call = None
        if now >= stop or accounts.is_changed:
            break
    return now


cdef int start_record(object starter, AccountFields accounts, ContextFields contexts, RecordFields record, object call, double now) except -1:
    """Start a record that has nothing out of the ordinary: ``Starter._call``."""
    cdef object args = record._outcome, origin = record._context, result
    if record.state != WAITING:
        record._move_to(IS_RUNNING)
    record.state = RUNNING
    record._context = now
    context = contexts.scratch if origin is None else PyContext_Copy(origin)
    accounts.is_inside = True
    try:
        PyContext_Enter(context)
        try:
            result = PyObject_Vectorcall(call, RLE_TUPLE_ITEMS(args), len(<tuple>args), NULL)
        finally:
            PyContext_Exit(context)
    except BaseException as error:
        accounts.is_inside = False
        if PyObject_Length(contexts.scratch):
            contexts.clean()
        accounts.raised(record, error, origin)
        return 0
    accounts.is_inside = False
    if result is not None and RLE_IS_AWAITABLE(result):
        if type(result) in starter._kinds:
            starter._coroutines.start(record, result, context, origin)
        else:
            starter._run(record, result, context, origin, None)
    else:
        if accounts.on_key_end is not None:
            accounts.on_key_end(record)
        accounts.counts[IS_DONE] += 1
        end_done(record, result)
    if PyObject_Length(contexts.scratch):
        contexts.clean()
    return 0


cdef int end_done(RecordFields record, object result) except -1:
    """Enter the state of a call that has returned: ``TaskHandle._end_done``."""
    cdef object call = record._call
    if record.state != RUNNING:
        record._move_to(IS_DONE)
    record.state = DONE
    record._call = <object>RLE_QUALNAME(call) if type(call) is FunctionType else name_of(call)
    record._outcome = result
    record.place = None
    if record._callbacks is not None:
        call_back(record)
    return 0


cdef int call_back(RecordFields record) except -1:
    """Have the callbacks of a record that has ended called: ``TaskHandle._ended``."""
    cdef object callback = record._callbacks
    callbacks = (<EngineFields>record._engine).callbacks if isinstance(record._engine, EngineFields) else None
    if type(callback) is not tuple and type(callback) is not list and isinstance(callbacks, CallbackFields):
        if (<CallbackFields>callbacks)._is_armed and not (<CallbackFields>callbacks)._is_debug:
            record._callbacks = None
            (<CallbackFields>callbacks)._pending.append((callback, record, None))
            return 0
    record._ended()
    return 0


def add_done_callback(RecordFields self, callback, *, context=None):
    if (
        context is None and self._callbacks is None and self.state <= RUNNING
        and not isinstance(callback, (tuple, list)) and IS_MAP_KNOWN and RLE_IS_CURRENT(NO_VARIABLES)
    ):
        self._callbacks = callback
    else:
        pure["add_done_callback"](self, callback, context=context)


def _end_done(RecordFields self, result):
    end_done(self, result)


def _run(CallbackFields self):
    cdef object scratch = PyContext_New(), pending = self._pending, callback = None, handle = None, context = None
    cdef Py_ssize_t left = min(len(pending), CALL_COUNT_MAX)
    try:
        self._is_armed = False  # from now on, what is added asks for the next turn
        while left > 0:
            left -= 1
            callback, handle, context = pending.popleft()
            if context is None:
                context = scratch
            try:
                call_in(context, callback, handle, True)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._report(callback, handle, context, error)
            if PyObject_Length(scratch):
                scratch = PyContext_New()
    finally:
        callback = handle = context = None
        if pending and not self._is_armed:
            self._arm()


def result(RecordFields self):
    return self._outcome if self.state == DONE else pure["result"](self)


def exception(RecordFields self):
    return None if self.state == DONE else pure["exception"](self)


def head(ReadyFields self):
    cdef object queue, due
    while self.active:
        rank = self.active[0]
        queue = self._queues[rank]
        while queue:
            due = head_due(queue[0])
            if due is not None:
                return rank, due
            queue.popleft()
        del self._queues[rank]
        heappop(self.active)
    return None


cdef object head_due(object run):
    """Return the due time of the first task of a run that still waits, None if none does."""
    cdef RecordRunFields records
    cdef BucketFields bucket
    cdef RunFields plain
    cdef Py_ssize_t position
    if isinstance(run, RecordRunFields):
        records = <RecordRunFields>run
        while records.cursor < len(records.records):
            record = records.records[records.cursor]
            if (<RecordFields>record).place is records:
                return (<RecordFields>record)._due
            records.cursor += 1
        return None
    plain = <RunFields>run
    if not isinstance(plain.source, BucketFields) or type(plain._positions) is not Positions:
        return run.head_due()
    bucket = <BucketFields>plain.source
    if bucket.gone == len(bucket.calls):  # all of it has gone: there may be a million of them
        return None
    while plain._cursor < <Py_ssize_t>(<Positions>plain._positions).data.size():
        position = (<Positions>plain._positions).data[plain._cursor]
        call = bucket.calls[position] if position < len(bucket.calls) else None  # freed, because all of it had gone
        if call is not None and (bucket.args[position] is not RECORD or (<RecordFields>call).place is bucket):
            return bucket.dues.data.as_doubles[position]
        plain._cursor += 1
    return None


def _split(CalendarFields self, BucketFields bucket, positions):
    cdef list calls = bucket.calls, columns = bucket.args, plain = [], records = []
    cdef RecordFields record
    cdef Py_ssize_t at, position, count = len(positions)
    cdef Positions ordered = <Positions>positions if type(positions) is Positions else None
    ready = self.ready
    for at in range(count):
        if ordered is None:
            position = positions[at]
        else:
            position = ordered.data[at]
            if at + 16 < count:
                RLE_PREFETCH_SLOT(calls, ordered.data[at + 16])
                RLE_PREFETCH_SLOT(columns, ordered.data[at + 16])
                RLE_PREFETCH_ITEM(calls, ordered.data[at + 8])
        if position >= len(columns):  # see append()
            continue
        if columns[position] is not RECORD:
            if records:
                ready.push_records(records, PLAIN_RANK)
                records = []
            plain.append(position)
            continue
        if plain:
            ready.push_run(bucket, plain, PLAIN_RANK)
            plain = []
        record = <RecordFields>calls[position]
        calls[position] = None
        if record.place is not bucket:  # it was cancelled; perhaps just now, by the order
            continue
        bucket.gone += 1
        if record._options is None and record.rank == IS_OTHER:
            records.append(record)
        else:
            if records:
                ready.push_records(records, PLAIN_RANK)
                records = []
            ready.push_record(record)
    if plain:
        ready.push_run(bucket, plain, PLAIN_RANK)
    if records:
        ready.push_records(records, PLAIN_RANK)


# Coroutines.

include "_task.pxi"
