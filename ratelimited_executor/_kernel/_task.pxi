# Runs coroutines as asyncio tasks for less than ``create_task`` costs: included by ``_compiled.pyx``.
#
# Theory. An asyncio task does three things that a start by the engine does not need: a call by the loop for its first
# step, a done callback that reports its end one loop iteration later, and, before 3.12, two Python calls for
# ``all_tasks()``. Without them it is still an ``asyncio.Task``, the very type: its steps, cancellation, waiting,
# contexts and reports are CPython's own, so its protocol cannot differ, and ``isinstance``, anyio's scopes, uvloop and
# debuggers work as usual. Rejected: a task type of our own. Its protocol would have to follow CPython's, it would not
# be an instance of asyncio's, and it is hardly faster (3.1 us beside 3.3, where ``create_task`` costs 4.8).
#
# The optimizations, with the gain of each from the 4.8 us of a coroutine that suspends once (CPython 3.11):
#
# - The first step is taken at once (1.0). From 3.12 on, asyncio offers this; before that, ``_task_3_11.pxi`` does it.
# - The task runs a Watch instead of the coroutine. The watch forwards everything and sees the end in the loop iteration
#   in which it comes, without a done callback (0.8). It is driven by ``am_send``: without a frame, a method or a
#   StopIteration. Exceptions that pass through it get no traceback entry.
# - An end is recorded in the fields of accounts and record, without a call (0.2).
#
# The caller records when the start takes effect, as for a plain function: nothing happens between that and the first
# step. The pure body handles task factories, another task type in place of asyncio's (``nest_asyncio`` installs one),
# and, before 3.12, a start within a step of another task.

import asyncio
import sys
from collections.abc import Coroutine

from cpython.ref cimport Py_INCREF, Py_XDECREF

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030C0000
    #define RLE_TAKE_ERROR PyErr_GetRaisedException
    #define RLE_SET_ERROR(error) PyErr_SetRaisedException(Py_NewRef(error))
    #else
    static PyObject *RLE_TAKE_ERROR(void) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        PyErr_NormalizeException(&type, &error, &traceback);
        if (traceback != NULL) PyException_SetTraceback(error, traceback);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
        return error;
    }
    #define RLE_SET_ERROR(error) PyErr_Restore(Py_NewRef(Py_TYPE(error)), Py_NewRef(error), PyException_GetTraceback(error))
    #endif
    """
    object RLE_TAKE_ERROR()
    void RLE_SET_ERROR(PyObject*) noexcept

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef struct AsyncSlots "PyAsyncMethods":
        PySendResult (*am_send)(PyObject*, PyObject*, PyObject**) noexcept
    ctypedef struct TypeSlots "PyTypeObject":
        AsyncSlots* tp_as_async
        int (*tp_init)(object, object, object) except -1
    PySendResult PyIter_Send(PyObject*, PyObject*, PyObject**) noexcept
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    PyObject* PyObject_CallObject(object, object) noexcept
    PyObject* PyObject_CallFunctionObjArgs(object, PyObject*, PyObject*, PyObject*, void*) noexcept
    PyObject* PyErr_GetHandledException() noexcept
    void PyErr_SetHandledException(PyObject*) noexcept

cdef object TASK = asyncio.Task
cdef dict ASYNCIO = asyncio.__dict__
cdef bint IS_EAGER = sys.version_info >= (3, 12), IS_USABLE = IS_EAGER


cdef bint has_factory(CoroutineFields self) except *:
    """Return True if a task factory of the user creates tasks."""
    if self.task_options is None:
        self.get_factory, self.task_options = self.loop.get_task_factory, {"loop": self.loop}
        if IS_EAGER:
            self.task_options["eager_start"] = True
        if type(self.loop).get_task_factory is asyncio.BaseEventLoop.get_task_factory:
            self.loop_fields = self.loop.__dict__
    if self.loop_fields is not None:
        return self.loop_fields["_task_factory"] is not None
    return self.get_factory() is not None


def start(CoroutineFields self, owner, coroutine, context, origin=None):
    if (
        not IS_USABLE
        or has_factory(self)
        or ASYNCIO["Task"] is not TASK
        or not IS_EAGER and PyDict_GetItemWithError(CURRENT_TASKS, self.loop) is not NULL
    ):
        return pure["Coroutines.start"](self, owner, coroutine, context, origin)
    cdef ContextFields contexts = self._contexts
    if contexts.scratch is context:
        contexts.scratch = PyContext_New()
    cdef Watch watch = Watch.__new__(Watch)
    watch.host, watch.owner, watch.coroutine, watch.origin = self, owner, coroutine, origin
    self._number = watch.number = self._number + 1
    self.running[watch.number] = watch  # until its task takes this place: the garbage collector may run meanwhile
    name = getattr(coroutine, "__qualname__", "coroutine")
    self.is_starting = True
    try:
        if IS_EAGER:
            watch.task = task = RLE_NEW(TASK, NO_ARGS)
            # One dict for all starts (saves 0.1): it is read before the first step, which may start another task.
            options = self.task_options
            options["context"], options["name"] = context, name
            try:
                (<TypeSlots*><PyObject*>TASK).tp_init(task, (watch,), options)
            finally:
                options["context"] = None
            if not watch.is_begun:
                watch.begin()
        else:
            PyContext_Enter(context)
            try:
                WAKE_UP(make_task(watch, self.task_options, context, name), AWAITED)
            finally:
                PyContext_Exit(context)
    except BaseException as error:
        if watch.host is None:
            raise  # its first step exits the program
        watch.host = None  # the context is entered already, memory is short, or the awaited object refuses
        coroutine.close()
        del self.running[watch.number]
        self.accounts.raised(owner, error, origin)
    finally:
        self.is_starting = False


cdef class Watch:
    """Runs in a task instead of a coroutine: forwards everything, and reports its end in the same loop iteration.

    Seen from outside it is the coroutine: by name, frame, code and awaited object.
    """

    cdef object __weakref__
    cdef CoroutineFields host  # None once the coroutine has ended
    cdef readonly object owner  # for who lists the running tasks
    cdef object coroutine, origin, number
    cdef object task  # until the first step; later it is in ``running``, and no reference cycle is left
    cdef object entry  # in the set of all tasks, before 3.12
    cdef bint is_begun

    def throw(self, *error):
        """Raise an error inside the coroutine."""
        if not self.is_begun:
            self.begin()
        cdef PyObject* got = PyObject_CallObject(self.coroutine.throw, error)
        if got is not NULL:
            result = <object>got
            Py_XDECREF(got)
            return result
        raised, result = RLE_TAKE_ERROR(), None
        if isinstance(raised, StopIteration):
            raised, result = None, raised.value
        if self.host is not None:
            raised = self.end(raised, result)
        raise StopIteration(result) if raised is None else raised

    def cancel(self, message=None):
        """Return False: while its task is being created nothing has run, so there is nothing to cancel."""
        return False

    def __getattr__(self, name):
        return getattr(self.coroutine, name)

    def __await__(self):
        return self.coroutine.__await__()

    def __repr__(self):
        return repr(self.coroutine)

    cdef void begin(self) noexcept:
        """Register the task as running, also with its owner."""
        self.is_begun = True
        self.host.running[self.number] = self.task
        if isinstance(self.owner, RecordFields):
            (<RecordFields>self.owner).place = self.task
        self.task = None

    cdef object end(self, object error, object result):
        """Report how the coroutine ended; return the error that its task must raise, None if it returns."""
        cdef CoroutineFields host = self.host
        cdef object owner = self.owner, origin = self.origin, last = None
        self.host = self.owner = self.origin = None
        try:
            task = host.running.pop(self.number)
            host.is_starting = False
            if error is not None:
                if isinstance(owner, CALL_OWNER):
                    owner = owner.of(self.coroutine)
                last = tell_raised(host.accounts, owner, error, origin)
                if last is None and isinstance(error, asyncio.CancelledError):
                    last = error
            elif task._must_cancel:  # cancelled during its last step: asyncio ends it as cancelled
                last = tell_raised(host.accounts, owner, task._make_cancelled_error(), origin)
            else:
                tell_done(host.accounts, owner, result)
        except BaseException as other:
            last = other
        try:
            host.on_free()
        except BaseException as other:
            last = other
        if self.entry is not None:
            ALL_TASKS.discard(self.entry)
            self.entry = None
        return last


cdef PySendResult send(PyObject* self, PyObject* value, PyObject** result) noexcept:
    """Take a step on behalf of the task: ``am_send`` of a watch."""
    cdef Watch watch = <Watch>self
    cdef object error = None, got = None
    if not watch.is_begun:
        watch.begin()
    cdef PySendResult kind = PyIter_Send(<PyObject*>watch.coroutine, value, result)
    if kind == PYGEN_NEXT or watch.host is None:
        return kind
    if kind == PYGEN_ERROR:
        error = RLE_TAKE_ERROR()
    else:
        got = <object>result[0]
        Py_XDECREF(result[0])
    error = watch.end(error, got)
    if error is not None:
        result[0] = NULL
        RLE_SET_ERROR(<PyObject*>error)
        return PYGEN_ERROR
    Py_INCREF(got)
    result[0] = <PyObject*>got
    return PYGEN_RETURN


cdef int tell_done(object accounts, object owner, object result) except -1:
    """Record the end of a coroutine that returned: ``Accounts.done``."""
    if not isinstance(accounts, AccountFields):
        accounts.done(owner, result)
        return 0
    cdef AccountFields fields = <AccountFields>accounts
    fields.counts[IS_DONE] += 1
    if fields.on_task_end is not None:
        fields.on_task_end(owner, IS_DONE)
    if type(owner) is TASK_HANDLE:
        end_done(<RecordFields>owner, result)
    elif owner is not accounts.calls:
        owner._end_done(result)
    if fields.on_end is not None:
        fields.on_end()
    return 0


cdef object tell_raised(object accounts, object owner, object error, object origin):
    """Record an error while it is the handled exception; return the error raised by that, None if none is."""
    cdef object raised = accounts.raised
    cdef PyObject* before = PyErr_GetHandledException()
    PyErr_SetHandledException(<PyObject*>error)
    cdef PyObject* answer = PyObject_CallFunctionObjArgs(
        raised, <PyObject*>owner, <PyObject*>error, <PyObject*>origin, NULL
    )
    PyErr_SetHandledException(before)
    Py_XDECREF(before)
    if answer is NULL:
        return RLE_TAKE_ERROR()
    Py_XDECREF(answer)
    return None


(<TypeSlots*><PyObject*>Watch).tp_as_async.am_send = send
Coroutine.register(Watch)

include "_task_3_11.pxi"

if not IS_EAGER and type(TASK) is type:
    try:
        IS_USABLE = read_layout()
    except Exception:  # an _asyncio other than CPython's
        IS_USABLE = False
