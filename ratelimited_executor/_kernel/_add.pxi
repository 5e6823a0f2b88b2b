# Accepting tasks: included by ``_compiled.pyx``.

cdef inline Py_ssize_t append(BucketFields bucket, double due, object call, object args) except -1:
    """Append a task to the columns without boxing its due time; return the number of tasks in them.

    The arguments come last, here and in the pure body: whatever an interrupt or a lack of memory leaves behind, no
    column is shorter than that of the arguments.
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
    """Return arguments as stored in the column: ``buckets.folded``."""
    return args[0] if len(args) == 1 and type(args[0]) is not tuple else args


cdef object look(ContextFields contexts):
    """Return the caller's context; None if no variable is set: ``SharedContexts.capture``.

    The variables of a context are an immutable map: while the map is the same object, so are all values in it. One
    comparison of pointers replaces a copy and a comparison of each value: 0.01 instead of 0.3 with three variables.
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
    """Return True if contexts have the expected layout: a copy shares the map, another value makes another map."""
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
    """Return True if a context shares its map of variables with the current one."""
    return RLE_IS_CURRENT(context)


cdef object NO_VARIABLES = PyContext_New()
cdef bint IS_MAP_KNOWN = is_map_known()


cdef BucketFields bucket_for(CalendarFields calendar, double due):
    """Return the bucket that a due time belongs to; None if there is none, or the pure body must decide."""
    cdef StreamFields current
    cdef double number
    if due < calendar.end:  # ``Calendar.joined``
        current = calendar._current
        return None if current is None or (<DueOrder>current.order).is_busy_() else current.source
    number = (due + calendar.epoch_offset) * calendar.per_second
    return calendar.future.get(PyLong_FromLongLong(<long long>number)) if number < 9e18 else None


cdef inline int join(CalendarFields calendar, Py_ssize_t count) except -1:
    """Put the last task of the bucket for the running interval in due order: ``Calendar.join``."""
    (<DueOrder>(<StreamFields>calendar._current).order).add(count - 1)
    calendar.opened_count += 1
    return 0


cdef inline object last_ready(CalendarFields calendar):
    """Return the ready run that a task without delay may join; None if there is none, or the order is a custom one."""
    if isinstance(calendar.ready, ReadyFields):
        queue = (<ReadyFields>calendar.ready)._queues.get(PLAIN_RANK if calendar.soon_class is OTHER else SOON_RANK)
        if queue:
            return queue[len(queue) - 1]
    return None


cdef object MISSING = object()


cdef tuple given(object first, tuple rest):
    """Return the arguments that the caller gave; the pure body reports a missing one."""
    return () if first is MISSING else (first, *rest)


cdef inline EngineFields home_engine(ExecutorFields executor):
    """Return the engine of an executor if this is its home thread; else None, and the pure body decides."""
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
    return pure["LoopFace.call_later"](self, *given(delay, given(callback, args)), context=context)


cdef inline int count_ready(EngineFields engine, CalendarFields calendar, double now) except -1:
    """Count a task that joined the run of :func:`last_ready`, and wake the engine: ``Engine.add_call_ready``."""
    cdef AccountFields accounts = <AccountFields>engine.accounts
    (<ReadyFields>calendar.ready)._count += 1
    calendar.opened_count += 1
    accounts.accepted_count += 1
    (<QueueFields>engine.queue).is_changed = True
    if now < engine.armed:
        engine.wake_for(now)
    return 0


cdef object add_ready(ExecutorFields self, call, tuple args, bint has_handle):
    """Make a task without a record ready at once; return its handle or True; None if the pure body must decide."""
    cdef EngineFields engine = home_engine(self)
    cdef BucketFields bucket
    cdef CalendarFields calendar
    cdef RunFields run
    cdef Py_ssize_t count
    cdef double now
    if engine is None or not PyCallable_Check(call):
        return None
    now = time_of(engine)  # this line and the next may run Python code, which may change everything read below
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
    count_ready(engine, calendar, now)
    return handle_of(bucket, count - 1, now) if has_handle else True


def call_soon(ExecutorFields self, callback=MISSING, *args, context=None):
    handle = add_ready(self, callback, args, True) if context is None else None
    return pure["LoopFace.call_soon"](self, *given(callback, args), context=context) if handle is None else handle


def execute(ExecutorFields self, fn=MISSING, *args):
    if self._expires is not None or add_ready(self, fn, args, False) is None:
        pure["TaskFace.execute"](self, *given(fn, args))


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
    cdef RecordRunFields run
    cdef double now
    if not options and self._expires is None and PyCallable_Check(fn):
        engine = home_engine(self)
        if engine is not None:
            calendar = <CalendarFields>(<QueueFields>engine.queue).on_time
            now = time_of(engine)
            if isinstance(calendar.ready, ReadyFields) and now < (<QueueFields>engine.queue).end:
                record = record_of(engine, fn, args, now, IS_IMMEDIATE)  # first: the garbage collector may run here
                last = last_ready(calendar)
                run = <RecordRunFields>last if isinstance(last, RecordRunFields) else None
                if run is not None and len(run.records) < RECORD_COUNT_MAX and type(run._numbers) is array:
                    record.place = run
                    run.records.append(record)
                    append_number(<carray.array>run._numbers, (<ReadyFields>calendar.ready)._count)
                    count_ready(engine, calendar, now)
                    return record
    return pure["TaskFace.submit"](self, *given(fn, args), **options)


cdef object options_of_key(object executor, object key):
    """Return the checked options of a task with a key and nothing else: ``TaskFace._read_rare``; None if not known."""
    if (type(key) is not str and type(key) is not int) or executor._parts is None:
        return None
    rare = executor._parts.keys.checked.get(key)
    return None if rare is None else rare.shared


def schedule(ExecutorFields self, fn=MISSING, *args, **options):
    cdef EngineFields engine
    cdef QueueFields queue
    cdef CalendarFields calendar
    cdef BucketFields bucket
    cdef RecordFields record
    cdef Py_ssize_t count
    cdef double now, due
    cdef object delay = None, shared = None
    count = len(options)
    if count == 1 or (count == 2 and (shared := options_of_key(self, options.get("key"))) is not None):
        delay = options.get("delay")
    if PyFloat_CheckExact(delay) and 0 < <double>delay < INF and PyCallable_Check(fn) and self._expires is None:
        engine = home_engine(self)
        if engine is not None:
            queue = <QueueFields>engine.queue
            record = record_of(engine, fn, args, 0.0, IS_OTHER)  # first: the garbage collector may run here
            now = time_of(engine)
            due = now + <double>delay
            if now < queue.end and due < FAR_SECONDS:
                calendar = <CalendarFields>(queue.on_time if due < queue.interval_end or queue.pacing is ON_TIME else queue.spread)
                bucket = bucket_for(calendar, due)
                if bucket is not None:
                    record._due = due
                    record._options = shared
                    record.place = bucket
                    PyObject_GC_UnTrack(record)  # saves 0.6 with a million pending: see traverse_bucket()
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
    return pure["TaskFace.schedule"](self, *given(fn, args), **options)
