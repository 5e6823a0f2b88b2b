# Runs coroutines as asyncio tasks for less than ``create_task`` costs: included by ``_compiled.pyx``.
#
# Theory. A task of asyncio costs three things that a start in the engine's turn can do without: a call of the loop for its
# first step, a done callback that tells its end one turn later, and, before 3.12, two calls of Python for ``all_tasks()``.
# What remains is an ``asyncio.Task`` all the same, by identity of type: its steps, cancellation, waiting, contexts and reports
# are CPython's own, so that nothing of its protocol can differ, and ``isinstance``, anyio's scopes, uvloop and debuggers find
# what they know. Rejected: a task type of our own, which has a protocol to keep in step with CPython's, is no instance of
# asyncio's, and is hardly faster (3.1 us beside 3.3, where ``create_task`` costs 4.8).
#
# The tricks, with what each brings of the 4.8 us that a coroutine costs which suspends once (CPython 3.11):
#
# - The first step is taken at once (1.0). From 3.12 on asyncio does so when asked, before that ``_task_3_11.pxi``.
# - The task runs a Watch in place of the coroutine, which passes everything on, and sees the end in the turn in which it comes,
#   without a done callback (0.8). It is driven by ``am_send``: without a frame, a method or a StopIteration. What passes
#   through it gets no entry in its traceback.
# - An end is accounted for in the fields of accounts and record, without a call (0.2).
#
# A start is noted as taking effect by whoever asked for it, as that of a plain function is: nothing lies between it and the
# first step. Handed to the pure body: task factories, another task type in place of asyncio's (``nest_asyncio`` puts one
# there), and, before 3.12, a start within a step of another task.

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


cdef class CoroutineFields:
    cdef public object accounts, loop, on_free, _contexts, _moments, _number, _queue
    cdef public dict running
    cdef public bint is_starting
    cdef object get_factory  # of the loop
    cdef dict loop_fields  # in which it is found without a call of Python (0.05), if the loop is asyncio's own
    cdef dict task_options


cdef bint has_factory(CoroutineFields self) except *:
    """Return True if tasks are made by a factory of the user."""
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
        return pure["start"](self, owner, coroutine, context, origin)
    cdef ContextFields contexts = self._contexts
    if contexts.scratch is context:
        contexts.scratch = PyContext_New()
    cdef Watch watch = Watch.__new__(Watch)
    watch.host, watch.owner, watch.coroutine, watch.origin = self, owner, coroutine, origin
    self._number = watch.number = self._number + 1
    self.running[watch.number] = watch  # until its task takes the place: garbage may be collected meanwhile
    name = getattr(coroutine, "__qualname__", "coroutine")
    self.is_starting = True
    try:
        if IS_EAGER:
            watch.task = task = RLE_NEW(TASK, NO_ARGS)
            options = self.task_options  # read before the first step, which may start another (0.1)
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
            raise  # it exits the program, in its first step
        watch.host = None  # a context that is entered already, no memory, or what it waits for refuses
        coroutine.close()
        del self.running[watch.number]
        self.accounts.raised(owner, error, origin)
    finally:
        self.is_starting = False


cdef class Watch:
    """Runs in a task in place of a coroutine: passes everything on, and tells how it ends, in the turn in which it does.

    To whoever looks at it, it is the coroutine: by name, frame, code, and what that waits for.
    """

    cdef object __weakref__
    cdef CoroutineFields host  # None once the coroutine has ended
    cdef object coroutine, owner, origin, number
    cdef object task  # until the first step; later it is among those that run, and no cycle of references is left
    cdef object entry  # among all tasks, before 3.12
    cdef bint is_begun

    def throw(self, *error):
        """Raise an error inside, as in a coroutine."""
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
        """Return False: where a task is being made, nothing of it has run, and nothing can cancel it."""
        return False

    def __getattr__(self, name):
        return getattr(self.coroutine, name)

    def __await__(self):
        return self.coroutine.__await__()

    def __repr__(self):
        return repr(self.coroutine)

    cdef void begin(self) noexcept:
        """Note the task as running, and let its owner know it."""
        self.is_begun = True
        self.host.running[self.number] = self.task
        if isinstance(self.owner, RecordFields):
            (<RecordFields>self.owner).place = self.task
        self.task = None

    cdef object end(self, object error, object result):
        """Tell how the coroutine ended; return what its task is to raise, None if it is to return."""
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
            elif task._must_cancel:  # asked for in its last step: asyncio ends it as cancelled
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
    """Take a step, for the task: ``am_send`` of a watch."""
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
    """Account for a coroutine that has returned: ``Accounts.done``."""
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
    """Have an error accounted for while it is the one being handled; return what that raises, None if nothing."""
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
    except Exception:  # another _asyncio than CPython's
        IS_USABLE = False
