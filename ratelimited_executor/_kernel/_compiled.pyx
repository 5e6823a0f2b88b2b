# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, nonecheck=False, auto_pickle=False
"""The compiled body of the kernel: the fields and decisions of the pure body beside it, for the most frequent calls.

Theory. A trivial call costs 0.05 microseconds; scheduling it in pure Python costs 2: boxed numbers, attribute look-ups
and frames. So the fields that every call touches lie in C structs (made of ``fields.py``, where they are slots), the clock is read
without a call, and each function here does what its pure namesake does in the ordinary case. All other cases go to that
namesake before anything is changed, so that each rule has one home. ``choice.two_bodies`` pairs the bodies, and
``choice.py`` decides which one runs.

Safety. A finalizer or a clock of the user may run Python code at any allocation or reading, and change what was looked
up before. So everything that may run Python code comes first, and the look-up and the change that follow are not
interrupted. A signal handler may end any line of the pure body, so columns are read only up to the length of the
shortest.

The parts: ``_add.pxi``, ``_cancel.pxi``, ``_crowd.pxi``, ``_hash.pxi``, ``_order.pxi``, ``_permits.pxi``, ``_shortcut.pxi``,
``_simulate.pxi``, ``_start.pxi``, ``_task.pxi``, ``_wake.pxi``.

Each optimization states its gain, measured alone on CPython 3.11 (microseconds a call).
"""

cimport cython
from cpython cimport array as carray
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport PyObject, PyTypeObject
from libc.math cimport ceil, floor, nextafter
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.algorithm cimport is_sorted, sort, upper_bound
from libcpp.pair cimport pair
from libcpp.queue cimport priority_queue
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

import math
import time
from array import array
from collections import deque
from heapq import heappop, heappush
from types import CoroutineType, FunctionType

from ratelimited_executor._kernel import sizes
from ratelimited_executor._kernel.states import RECORD, Pacing, TaskClass, TaskState

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

    /* Visit the referents of waiting records on their behalf: see traverse_bucket(). */
    static int RLE_VISIT_RECORDS(PyObject *calls, PyObject *kind, traverseproc traverse, visitproc visit, void *arg) {
        Py_ssize_t count = calls == Py_None ? 0 : PyList_GET_SIZE(calls);
        for (Py_ssize_t at = 0; at < count; at++) {
            PyObject *record = PyList_GET_ITEM(calls, at);
            if (at + 16 < count) {  /* they are scattered in memory: this takes a third of the time */
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

    /* The first fields of a context, unchanged since CPython 3.7: is_map_known() checks that they still are. */
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

    /* time.monotonic() to the last bit, where that only reads the system's clock. */
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

    /* Products of permits and nanoseconds. */
    #if defined(__SIZEOF_INT128__)
    #define RLE_HAS_WIDE 1
    typedef __int128 rle_wide;
    #else
    #define RLE_HAS_WIDE 0
    typedef long long rle_wide;
    #endif

    #ifndef KERNEL_SOURCE_CRC32
    #error "built by .packaging/build_kernel.py, which stamps the checksum of this file into the extension"
    #endif
    """
    const unsigned int KERNEL_SOURCE_CRC32
    bint RLE_HAS_CLOCK
    bint RLE_HAS_WIDE
    ctypedef long long rle_wide
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
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    object PyObject_Vectorcall(object, PyObject**, size_t, PyObject*)
    object PyObject_CallOneArg(object, object)
    object PyLong_FromLongLong(long long)
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1
    Py_ssize_t PyObject_Length(object) except -1
    Py_ssize_t Py_SIZE(object) noexcept
    bint PyCallable_Check(object)
    object PyErr_SetFromErrno(object)
    unsigned long PyThread_get_thread_ident()

cdef double INF = math.inf, FAR_SECONDS = sizes.FAR_SECONDS, ROUNDING_SECONDS = sizes.ROUNDING_SECONDS
cdef double LONG_HOLD_SECONDS = sizes.LONG_HOLD_SECONDS, TICKS = sizes.TICKS, TICKS_MAX = sizes.TICKS_MAX
cdef Py_ssize_t LARGE_COUNT = sizes.LARGE_COUNT, OPEN_COUNT_MAX = sizes.OPEN_COUNT_MAX, RUN_COUNT = sizes.RUN_COUNT
cdef Py_ssize_t SLOT_COUNT = sizes.SLOT_COUNT, SPARE_COUNT = sizes.SPARE_COUNT, RECORD_COUNT_MAX = sizes.RECORD_COUNT_MAX
cdef Py_ssize_t CALL_COUNT_MAX = sizes.CALL_COUNT_MAX, PART_COUNT = sizes.PART_COUNT, PLACE_COUNT = sizes.PLACE_COUNT
cdef object SYSTEM_CLOCK = time.monotonic, ON_TIME = Pacing.ON_TIME, OTHER = TaskClass.OTHER, NO_ARGS = ()
cdef tuple PLAIN_RANK = (0, OTHER), SOON_RANK = (0, TaskClass.IMMEDIATE)
cdef list STATES = list(TaskState), CLASSES = list(TaskClass)
cdef int WAITING = STATES.index(TaskState.WAITING), RUNNING = STATES.index(TaskState.RUNNING)
cdef int DONE = STATES.index(TaskState.DONE), CANCELLED = STATES.index(TaskState.CANCELLED)
cdef int IS_OTHER = OTHER, IS_IMMEDIATE = TaskClass.IMMEDIATE
cdef object IS_RUNNING = TaskState.RUNNING, IS_DONE = TaskState.DONE, IS_CANCELLED = TaskState.CANCELLED


SOURCE_CRC32 = KERNEL_SOURCE_CRC32  # choice.py compares it with the source beside the extension


# Pairing with the pure bodies.

pure = {}  # by qualified name: the pure body of each entry of bodies, and the classes created here; filled by choice.py
cdef object CALL_OWNER = (), KEY_OPTIONS = (), TASK_HANDLE = None, PERMIT_GRID = None, EXACT_GRID = None, READY_QUEUES = None, RISING_ORDER = None, RUN = None, STREAM = None, TIMER_DESCRIPTOR = None, name_of = None


def connect(name, body):
    """Register the pure body of a function, or a class that is instantiated here, by its qualified name."""
    global CALL_OWNER, KEY_OPTIONS, TASK_HANDLE, PERMIT_GRID, EXACT_GRID, READY_QUEUES, RISING_ORDER, RUN, STREAM
    global TIMER_DESCRIPTOR, name_of
    global ARRIVAL, BATCH_ITEM, INV_CDF, JOB, JOB_FAILED, LASTING_COROUTINES, LOG_NORMAL, STEP_QUANTILES, new_histogram
    if name in pure:
        raise LookupError(f"there are two pure bodies of the name {name}")
    pure[name] = body
    if name == "TaskHandle":
        TASK_HANDLE = body
    elif name == "CallOwner":
        CALL_OWNER = body
    elif name == "KeyOptions":
        KEY_OPTIONS = body
    elif name == "PermitGrid":
        PERMIT_GRID = body
    elif name == "ExactGrid":
        EXACT_GRID = body
    elif name == "RisingOrder":
        RISING_ORDER = body
    elif name == "ReadyQueues":
        READY_QUEUES = body
    elif name == "Run":
        RUN = body
    elif name == "_Stream":
        STREAM = body
    elif name == "TimerDescriptor":
        TIMER_DESCRIPTOR = body
    elif name == "name_of":
        name_of = body
    elif name == "BatchItem":
        BATCH_ITEM = body
    elif name == "Arriving":
        ARRIVAL = body
    elif name == "Job":
        JOB = body
    elif name == "LogNormal":
        LOG_NORMAL = body
    elif name == "_normal_dist_inv_cdf":
        INV_CDF = body
    elif name == "JobFailedError":
        JOB_FAILED = body
    elif name == "LastingCoroutines":
        LASTING_COROUTINES = body
    elif name == "StepQuantiles":
        STEP_QUANTILES = body
    elif name == "new_histogram":
        new_histogram = body


def set_counts(*, spare=sizes.SPARE_COUNT, open_max=sizes.OPEN_COUNT_MAX, run=sizes.RUN_COUNT, slot=sizes.SLOT_COUNT, part=sizes.PART_COUNT, place=sizes.PLACE_COUNT):
    """Replace the thresholds, for tests at small sizes; without arguments, restore the defaults."""
    global SPARE_COUNT, OPEN_COUNT_MAX, RUN_COUNT, SLOT_COUNT, PART_COUNT, PLACE_COUNT
    SPARE_COUNT, OPEN_COUNT_MAX, RUN_COUNT, SLOT_COUNT, PART_COUNT, PLACE_COUNT = spare, open_max, run, slot, part, place


# Fields. The class that inherits them documents each.

include "_fields.pxi"  # made by the build, of fields.py and _structs.pxi


cdef inline double time_of(EngineFields engine) except? -1:
    """Read the clock: 0.02 instead of 0.06."""
    return read_clock(engine.monotonic)


cdef inline double read_clock(object clock) except? -1:
    return rle_monotonic() if RLE_HAS_CLOCK and clock is SYSTEM_CLOCK else read_other(clock)


def set_timer(int fd, long long time_ns):
    """Set a timer descriptor, for ``_runtime/time/wakers.py``: the C library's call without ctypes (saves 4 a wake-up)."""
    if rle_set_timer(fd, time_ns) < 0:
        PyErr_SetFromErrno(OSError)


# The parts, each after the parts that it depends on.

include "_simulate.pxi"
include "_shortcut.pxi"
include "_hash.pxi"
include "_order.pxi"
include "_add.pxi"
include "_cancel.pxi"
include "_permits.pxi"
include "_start.pxi"
include "_task.pxi"
include "_wake.pxi"
include "_crowd.pxi"


# Which bodies are here, by the qualified names of the pure ones, in whose place they run.

bodies = {
    "Admission.look": look_at,
    "Admission.take": take_counted,
    "Arriving.__init__": init_arrival,
    "BatchSource.count_until": count_until,
    "Bucket.move_survivors": move_survivors,
    "Calendar._open": _open,
    "Calendar._open_batch": _open_batch,
    "Calendar._split": _split,
    "Calendar.open_until": open_until,
    "Calendar.opening_time": opening_time,
    "CallHandle": CallHandle,
    "Coroutines.start": start,
    "DoneCallbacks._run": _run,
    "DueOrder": DueOrder,
    "Engine._freed": _freed,
    "Engine.run": run,
    "ExecutorObserver.ended": ended,
    "ExecutorObserver.started": started,
    "Intervals._note_opening": _note_opening,
    "Intervals.begin_interval": begin_interval,
    "Intervals.enter": enter,
    "Job.__call__": call_job,
    "Job._begin_arrival": begin_arrival,
    "Job._drawn": draw_arrivals,
    "Job._end": _end_job,
    "Lasting": Lasting,
    "LastingCoroutines.start": start_lasting,
    "Listeners._ended_coroutine": _ended_coroutine,
    "LoopFace.call_later": call_later,
    "LoopFace.call_soon": call_soon,
    "Meter": Meter,
    "PermitGrid._usable_on_grid": _usable_on_grid,
    "PlainQueue._next_wake": _next_wake,
    "PlainQueue.admit_record": admit_record,
    "PlainQueue.poll": poll,
    "PlainQueue.take_effect": take_effect,
    "ReadyQueues.earliest": earliest,
    "ReadyQueues.head": head,
    "ReadyQueues.push_run": push_run,
    "Runner._on_timer": _on_timer,
    "Runner.run_due": run_due,
    "SimulationLoop._run": run_virtual,
    "Starter._start_plain": _start_plain,
    "Starter._start_records": _start_records,
    "Starter.start_many": start_many,
    "Starter.start_one": start_one,
    "TaskFace.execute": execute,
    "TaskFace.schedule": schedule,
    "TaskFace.submit": submit,
    "TaskHandle._end_done": _end_done,
    "TaskHandle.add_done_callback": add_done_callback,
    "TaskHandle.cancel": cancel,
    "TaskHandle.exception": exception,
    "TaskHandle.result": result,
    "Timeline.number_at": number_at,
    "Timeline.start_of": start_of,
    "TimerDescriptor._on_readable": _on_readable,
    "Timers": Timers,
    "VirtualClock.monotonic": monotonic,
    "draw_columns": draw_columns,
    "due_times": due_times,
    "hash_of": hash_of,
    "in_due_order": in_due_order,
    "key_hash": key_hash,
    "late_waits": late_waits,
    "mixed": mixed,
    "pass_by_queue": pass_by_queue,
    "pass_jobs": pass_jobs,
    "random_times": random_times,
}

# Bodies that are called as bound methods: see ``is_of()``.
BEGIN, MONOTONIC, STARTED, ENDED = begin_arrival, monotonic, started, ended
ENDED_COROUTINE, FREED, RUN_DUE = _ended_coroutine, _freed, run_due
