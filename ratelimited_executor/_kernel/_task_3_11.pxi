# Creating a task on CPython 3.11, whose constructor cannot take the first step at once: included by ``_task.pxi``.
#
# A task is created as its constructor does it, with two differences. Nothing is scheduled on the loop. The task is
# added to the set behind ``asyncio.all_tasks()`` directly, and removed at the end of the coroutine, instead of by two
# Python calls. This saves 0.95 of the 4.8 us of ``create_task``, or 0.85 of 2.9 where the coroutine does not suspend.
# The first step is the function by which futures wake tasks, called with a done future: no object is created for it.
#
# This relies on the layout of a task in 3.11, which receives only security fixes. read_layout() checks it at import,
# field by field, and runs such a task to its end; if anything differs, the pure body starts coroutines.

cdef extern from *:
    """
    typedef struct {
        PyObject_HEAD
        PyObject *loop;
        PyObject *of_future[8];
        int states_of_future[3];
        PyObject *more_of_future[4];
        PyObject *coroutine, *name, *context;
        int must_cancel, log_destroy_pending, cancels;
    } RLE_Task;
    """
    ctypedef struct RLE_Task:
        PyObject* loop
        PyObject* coroutine
        PyObject* name
        PyObject* context
        int must_cancel
        int log_destroy_pending

cdef extern from "Python.h":
    ctypedef object (*WakeUp "PyCFunction")(object, object)
    WakeUp PyCFunction_GetFunction(object) except NULL
    object PyWeakref_NewRef(object, object)

cdef WakeUp WAKE_UP = NULL
cdef object FUTURE = asyncio.Future, AWAITED = None  # a future that is done
cdef object FORGET = None
cdef set ALL_TASKS = None
cdef dict CURRENT_TASKS = None


cdef object make_task(Watch watch, dict loop_option, object context, object name):
    """Create a task that runs a watch, without taking its first step: ``asyncio.Task(...)``."""
    cdef object task = RLE_NEW(TASK, NO_ARGS)
    cdef RLE_Task* fields = <RLE_Task*><PyObject*>task
    (<TypeSlots*><PyObject*>FUTURE).tp_init(task, NO_ARGS, loop_option)
    Py_INCREF(watch)
    fields.coroutine = <PyObject*>watch
    Py_INCREF(name)
    fields.name = <PyObject*>name
    Py_INCREF(context)
    fields.context = <PyObject*>context
    fields.log_destroy_pending = True
    watch.task = task
    watch.entry = PyWeakref_NewRef(task, FORGET)
    ALL_TASKS.add(watch.entry)
    return task


class _Probe:
    """A loop and a future, as far as a task uses them: keeps the callbacks that they are given."""

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


def read_layout():
    """Return True if tasks have the layout above; read the other values from one, and run another created here."""
    global WAKE_UP, AWAITED, FORGET, ALL_TASKS, CURRENT_TASKS
    if TASK.__basicsize__ != sizeof(RLE_Task):
        return False
    tasks = asyncio.tasks._all_tasks
    ALL_TASKS, FORGET, CURRENT_TASKS = tasks.data, tasks._remove, asyncio.tasks._current_tasks

    async def work():
        await probe
        return name

    probe, context, coroutine, name = _Probe(), PyContext_New(), work(), "".join(["pro", "be"])
    task = TASK(coroutine, loop=probe, context=context, name=name)
    cdef RLE_Task* fields = <RLE_Task*><PyObject*>task
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
    is_known = fields.must_cancel == 1 and PyWeakref_NewRef(task, None) in ALL_TASKS
    WAKE_UP = PyCFunction_GetFunction(probe.wake_up)
    AWAITED = FUTURE(loop=probe)
    AWAITED.set_result(None)
    probe.wake_up(AWAITED)

    cdef Watch watch = Watch.__new__(Watch)
    watch.coroutine, watch.is_begun, probe.is_awaited = work(), True, False
    ours = make_task(watch, {"loop": probe}, context, name)
    WAKE_UP(ours, AWAITED)
    is_known = is_known and task.cancelled() and probe.wake_up.__self__ is ours and ours in asyncio.all_tasks(probe)
    probe.wake_up(AWAITED)
    return is_known and ours.result() is ours.get_name() is name and ours.get_coro() is watch
