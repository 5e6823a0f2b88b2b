"""Runs coroutines as asyncio tasks for half of what ``create_task`` costs: included by ``_compiled.pyx``.

Theory. A task of asyncio costs three things that a start in the engine's turn can do without: a call of the loop for its first
step, a done callback that tells its end one turn later, and, before 3.12, two calls of Python for ``all_tasks``. What remains
is an ``asyncio.Task`` all the same, by identity of type: its steps, cancellation, waiting, contexts and reports are CPython's
own, so that nothing of its protocol can differ, and ``isinstance``, anyio's scopes, uvloop and debuggers find what they know.
Rejected: a task type of our own (not one by ``isinstance``, a whole protocol to keep in step with CPython's, and no faster:
3.1 beside 3.3 us, where ``create_task`` costs 4.8).

The tricks, with what each brings of the 4.8 us that a coroutine costs which suspends once (CPython 3.11; straight: of 2.9):

- The first step is taken at once (1.0). From 3.12 on asyncio does so when asked (``eager_start``).
- The task runs a :class:`Watch` in place of the coroutine, which passes everything on, and sees the end in the turn in which
  it happens, without a done callback (0.8). It is driven by ``am_send``: no frame, no method, no ``StopIteration``.
- On 3.11 the fields of the task are set in place of a call of its constructor, and it is entered in the set behind
  ``all_tasks`` directly, and taken out at its end (0.95; straight 0.85). That relies on the layout of a task in 3.11, which
  gets no more than security fixes: :func:`_read_layout` checks it at import, field by field, and runs one such task to its
  end. Where anything differs, starts go the way of pure Python.

What is unusual goes that way, too: a task factory, another task type in place of asyncio's (``nest_asyncio`` puts one there),
or, on 3.11, a start within a step of another task.
"""

import asyncio as _asyncio
import sys as _sys
from collections.abc import Coroutine as _Coroutine

from contextvars import Context as _Context

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PySendResult (*sendfunc)(PyObject*, PyObject*, PyObject**) noexcept
    ctypedef int (*initproc)(object, object, object) except -1
    ctypedef struct AsyncSlots "PyAsyncMethods":
        sendfunc am_send
    ctypedef struct TypeSlots "PyTypeObject":
        AsyncSlots* tp_as_async
        initproc tp_init
        object tp_new(TypeSlots*, object, PyObject*)
    PySendResult PyIter_Send(PyObject*, PyObject*, PyObject**) noexcept
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    ctypedef object (*WakeUp "PyCFunction")(object, object)
    WakeUp PyCFunction_GetFunction(object) except NULL
    object PyWeakref_NewRef(object, object)
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    PyObject* PyObject_CallObject(object, object) noexcept
    PyObject* PyObject_CallFunctionObjArgs(object, PyObject*, PyObject*, PyObject*, void*) noexcept
    bint PyObject_TypeCheck(object, TypeSlots*) noexcept
    PyObject* PyErr_GetHandledException() noexcept
    void PyErr_SetHandledException(PyObject*) noexcept
    void Py_XDECREF(PyObject*) noexcept

cdef extern from *:
    """
    /* The layout of a task in CPython 3.11, as far as it is used; later ones are made by their constructor. */
    typedef struct {
        PyObject_HEAD
        PyObject *loop;
        PyObject *future_a[8];
        int future_b[3];
        PyObject *future_c[4];
        PyObject *coroutine, *name, *context;
        int must_cancel, log_destroy_pending, cancels;
    } Task311;

    /* The error that is set, taken away; and such a one, set again. No traceback entry of ours is added to it. */
    static PyObject *watch_take_error(void) {
    #if PY_VERSION_HEX >= 0x030C0000
        return PyErr_GetRaisedException();
    #else
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        PyErr_NormalizeException(&type, &error, &traceback);
        if (traceback != NULL) PyException_SetTraceback(error, traceback);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
        return error;
    #endif
    }
    static void watch_set_error(PyObject *error) {
        Py_INCREF(error);
    #if PY_VERSION_HEX >= 0x030C0000
        PyErr_SetRaisedException(error);
    #else
        PyObject *type = (PyObject *)Py_TYPE(error);
        Py_INCREF(type);
        PyErr_Restore(type, error, PyException_GetTraceback(error));
    #endif
    }
    """
    ctypedef struct Task311:
        PyObject* loop
        PyObject* coroutine
        PyObject* name
        PyObject* context
        int must_cancel
        int log_destroy_pending
    PyObject* watch_take_error() noexcept
    void watch_set_error(PyObject*) noexcept

cdef object _Task = _asyncio.Task, _Future = _asyncio.Future
cdef dict _names = _asyncio.__dict__
cdef bint _IS_EAGER = _sys.version_info >= (3, 12)
cdef bint _is_usable = _IS_EAGER
# Of 3.11 alone: the step of a task that is woken by a future, and one that is done; what is behind asyncio.all_tasks().
cdef WakeUp _wake_up = NULL
cdef object _awaited = None, _forget = None
cdef dict _current_tasks = None
cdef set _all_tasks = None


cdef class CoroutineStarter:
    """The fields of ``_runtime.coroutines.Coroutines``, which describes them, and the short way of :meth:`start`.

    Args:
        loop: what coroutines run on.
        record_type: the type of owners that are told which task runs them.
    """

    cdef public object loop, accounts, on_free, _contexts, _moments, _queue, _number
    cdef public dict running
    cdef public bint is_starting
    cdef object get_factory, record_type
    cdef dict future_options

    def __init__(self, loop, record_type):
        self.loop = loop
        self.get_factory = loop.get_task_factory
        self.record_type = record_type
        self.future_options = {"loop": loop}

    def start(self, owner, coroutine, context, origin=None):
        """Run a coroutine as a task, to its first suspension at once; arguments as of ``Coroutines.start_watched``."""
        if (
            not _is_usable
            or self.get_factory() is not None
            or _names["Task"] is not _Task
            or not _IS_EAGER and PyDict_GetItemWithError(_current_tasks, self.loop) is not NULL
        ):
            return self.start_watched(owner, coroutine, context, origin)
        if self._contexts.scratch is context:
            self._contexts.scratch = _Context()  # SharedContexts.give_away() without a call
        cdef Watch watch = Watch.__new__(Watch)
        watch.host = self
        watch.coroutine = coroutine
        watch.owner = owner
        watch.origin = origin
        self._number = watch.number = self._number + 1
        self.running[watch.number] = watch  # until its task takes the place: garbage may be collected meanwhile
        name = getattr(coroutine, "__qualname__", "coroutine")
        self.is_starting = True
        try:
            if _IS_EAGER:
                watch.task = task = (<TypeSlots*><PyObject*>_Task).tp_new(<TypeSlots*><PyObject*>_Task, (), NULL)
                options = {"loop": self.loop, "context": context, "name": name, "eager_start": True}
                (<TypeSlots*><PyObject*>_Task).tp_init(task, (watch,), options)
                if not watch.is_begun:
                    watch.begin()
            else:
                PyContext_Enter(context)
                try:
                    _wake_up(_make_task(watch, self.future_options, context, name), _awaited)
                finally:
                    PyContext_Exit(context)
        except BaseException as error:
            if watch.is_begun:
                raise  # it exits the program, in its first step
            watch.host = None  # a context that is entered already, or no memory
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
    cdef CoroutineStarter host  # None once the coroutine has ended
    cdef object coroutine, owner, origin, number
    cdef object task  # until its first step, from when on it is among those that run; no cycle of references is left
    cdef object entry  # among all tasks, on 3.11
    cdef bint is_begun

    # What a task calls.

    def throw(self, *error):
        """Raise an error inside, as in a coroutine."""
        if not self.is_begun:
            self.begin()
        cdef PyObject* got = PyObject_CallObject(self.coroutine.throw, error)
        if got is not NULL:
            result = <object>got
            Py_XDECREF(got)
            return result
        raised, result = _taken_error(), None
        if isinstance(raised, StopIteration):
            raised, result = None, raised.value
        if self.host is not None:
            raised = self.end(raised, result)
        if raised is None:
            raise StopIteration(result)
        raise raised

    def cancel(self, message=None):
        """Return False: where a task is being made, nothing of it has run, and nothing can cancel it."""
        return False

    # What others look at.

    def __getattr__(self, name):
        return getattr(self.coroutine, name)

    def __await__(self):
        return self.coroutine.__await__()

    def __repr__(self):
        return repr(self.coroutine)

    # Begin and end.

    cdef void begin(self) noexcept:
        """Note the task as running, and let its owner know it."""
        self.is_begun = True
        task, self.task = self.task, None
        self.host.running[self.number] = task
        if PyObject_TypeCheck(self.owner, <TypeSlots*><PyObject*>self.host.record_type):
            self.owner._place = task

    cdef object end(self, object error, object result):
        """Tell how the coroutine ended; return what its task is to raise, None if it is to return."""
        cdef CoroutineStarter host = self.host
        owner, origin = self.owner, self.origin
        self.host = self.owner = self.origin = None
        task = host.running.pop(self.number)
        host.is_starting = False
        if error is None and _is_to_be_cancelled(task):  # asked for in its last step: asyncio ends it as cancelled
            last = _tell_raised(host, owner, task._make_cancelled_error(), origin)
        elif error is None:
            last = None
            try:
                host.accounts.done(owner, result)
            except BaseException as other:
                last = other
        else:
            last = _tell_raised(host, owner, error, origin)
            if last is None and isinstance(error, _asyncio.CancelledError):
                last = error
        try:
            host.on_free()
        except BaseException as other:
            last = other
        if self.entry is not None:
            _all_tasks.discard(self.entry)
            self.entry = None
        return last


cdef PySendResult _send(PyObject* self, PyObject* value, PyObject** result) noexcept:
    """Take a step, for the task: ``am_send`` of :class:`Watch`."""
    cdef Watch watch = <Watch>self
    if not watch.is_begun:
        watch.begin()
    cdef PySendResult kind = PyIter_Send(<PyObject*>watch.coroutine, value, result)
    if kind == PYGEN_NEXT or watch.host is None:
        return kind
    error = got = None
    if kind == PYGEN_ERROR:
        error = _taken_error()
    else:
        got = <object>result[0]
        Py_XDECREF(result[0])
    error = watch.end(error, got)
    if error is not None:
        result[0] = NULL
        watch_set_error(<PyObject*>error)
        return PYGEN_ERROR
    Py_INCREF(got)
    result[0] = <PyObject*>got
    return PYGEN_RETURN


(<TypeSlots*><PyObject*>Watch).tp_as_async.am_send = _send
_Coroutine.register(Watch)


cdef object _taken_error():
    """Return the error that is set, and clear it; without an entry in its traceback, which ``except`` would make."""
    cdef PyObject* error = watch_take_error()
    taken = <object>error
    Py_XDECREF(error)
    return taken


cdef object _tell_raised(CoroutineStarter host, object owner, object error, object origin):
    """Have an error accounted for while it is the one being handled; return what that raises, None if nothing."""
    raised = host.accounts.raised
    cdef PyObject* before = PyErr_GetHandledException()
    PyErr_SetHandledException(<PyObject*>error)
    cdef PyObject* answer = PyObject_CallFunctionObjArgs(
        raised, <PyObject*>owner, <PyObject*>error, <PyObject*>origin, NULL
    )
    PyErr_SetHandledException(before)
    Py_XDECREF(before)
    if answer is NULL:
        return _taken_error()
    Py_XDECREF(answer)
    return None


cdef inline bint _is_to_be_cancelled(object task):
    """Return True if a task is to raise a cancellation in its next step."""
    if not _IS_EAGER and type(task) is _Task:
        return (<Task311*><PyObject*>task).must_cancel
    return task._must_cancel


# CPython 3.11.


cdef object _make_task(Watch watch, dict future_options, object context, object name):
    """Make a task, as its constructor does, but for the call that would take its first step a turn later."""
    task = (<TypeSlots*><PyObject*>_Task).tp_new(<TypeSlots*><PyObject*>_Task, (), NULL)
    (<TypeSlots*><PyObject*>_Future).tp_init(task, (), future_options)
    cdef Task311* fields = <Task311*><PyObject*>task
    Py_INCREF(watch)
    fields.coroutine = <PyObject*>watch
    Py_INCREF(name)
    fields.name = <PyObject*>name
    Py_INCREF(context)
    fields.context = <PyObject*>context
    fields.log_destroy_pending = True
    watch.task = task
    watch.entry = PyWeakref_NewRef(task, _forget)
    _all_tasks.add(watch.entry)
    return task


class _Probe:
    """A loop, and a future, as far as a task looks at these: keeps what they are to call."""

    get_loop = __await__ = lambda self: self
    get_debug = cancel = lambda self, msg=None: False
    _asyncio_future_blocking = is_awaited = False

    def call_soon(self, step, *, context):
        self.step = step

    def add_done_callback(self, wake_up, *, context):
        self.wake_up = wake_up

    def __next__(self):
        self._asyncio_future_blocking = self.is_awaited = not self.is_awaited
        if self.is_awaited:
            return self
        raise StopIteration


def _read_layout():
    """Return True if tasks are laid out as expected; take from one what else is needed, and run another that is made here."""
    global _wake_up, _awaited, _forget, _current_tasks, _all_tasks
    if _Task.__basicsize__ != sizeof(Task311):
        return False
    _all_tasks, _forget = _asyncio.tasks._all_tasks.data, _asyncio.tasks._all_tasks._remove
    _current_tasks = _asyncio.tasks._current_tasks

    async def work():
        await probe
        return name

    probe, context, coroutine, name = _Probe(), _Context(), work(), "".join(["pro", "be"])
    task = _Task(coroutine, loop=probe, context=context, name=name)
    cdef Task311* fields = <Task311*><PyObject*>task
    if (
        fields.loop is not <PyObject*>probe
        or fields.coroutine is not <PyObject*>coroutine
        or fields.name is not <PyObject*>name
        or fields.context is not <PyObject*>context
        or fields.log_destroy_pending != 1
        or fields.must_cancel != 0
    ):
        return False
    probe.step()
    task.cancel()
    _wake_up = PyCFunction_GetFunction(probe.wake_up)
    _awaited = _Future(loop=probe)
    _awaited.set_result(None)
    is_known = fields.must_cancel == 1 and PyWeakref_NewRef(task, None) in _all_tasks
    probe.wake_up(_awaited)
    is_known = is_known and task.cancelled()

    cdef Watch watch = Watch.__new__(Watch)
    watch.coroutine, watch.is_begun = work(), True
    task = _make_task(watch, {"loop": probe}, context, name)
    probe.is_awaited = False
    _wake_up(task, _awaited)
    is_known = is_known and probe.wake_up.__self__ is task and task in _asyncio.all_tasks(probe)
    probe.wake_up(_awaited)
    return is_known and task.result() is task.get_name() is name and task.get_coro() is watch


if not _IS_EAGER and type(_Task) is type:
    try:
        _is_usable = _read_layout()
    except Exception:  # some other _asyncio than CPython's
        _is_usable = False
