# Garbage collection, cancellation and compaction of waiting tasks: included by ``_compiled.pyx``.

# Garbage collection.

cdef traverseproc traverse_columns = (<Traversable*>BucketFields).tp_traverse
cdef traverseproc traverse_record = (<Traversable*>RecordFields).tp_traverse


cdef int traverse_bucket(PyObject* self, visitproc visit, void* arg) noexcept:
    """Visit the referents of a bucket, and those of the records that wait in it, for the garbage collector.

    Waiting records are not tracked, because most die when they start: the collector would traverse a million of them
    again and again, and find nothing. Their referents count as the bucket's, so that an executor that was never closed
    can still be collected. A record that user code holds is not visited: it keeps its executor alive until the task
    starts or ends.
    """
    cdef int found = traverse_columns(self, visit, arg)
    if not found and (<BucketFields>self).has_records:
        found = RLE_VISIT_RECORDS(<PyObject*>(<BucketFields>self).calls, <PyObject*>TASK_HANDLE, traverse_record, visit, arg)
    return found


(<Traversable*>BucketFields).tp_traverse = traverse_bucket


# Cancellation.

cdef inline int check_sparse(BucketFields bucket) except -1:
    """Request compaction if few tasks are left: ``Bucket._check``."""
    if not bucket.opened and not bucket.frozen and bucket._late is None and 2 * bucket.gone > len(bucket.calls) + SPARE_COUNT:
        bucket.calendar.note_sparse(bucket)
    return 0


@cython.final
@cython.no_gc  # the collector need not traverse it (saves 0.2); like a held record, it keeps its executor alive
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
        """Cancel the callback; does nothing if it was already cancelled, or has run."""
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
        """Make the callback due ``delay`` seconds from now instead of its previous time; a negative delay means now.

        The call keeps its arguments and context variables. This costs a fraction of a cancellation and another
        ``call_later``. Among calls of equal due times it may keep its place.

        Returns:
            False if it was cancelled, has run, or is running; nothing is changed then.

        Raises:
            TypeError: if ``delay`` is not a number.
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

    def get_context(self):
        """Return the context in which the callback will run; None if it was cancelled, has run, or is running."""
        return pure["CallHandle"].get_context(self)

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
            return False  # reached by a weak reference while the executor is being collected: nothing to cancel
        if bucket.opened or self._due >= (<QueueFields>engine.queue).interval_end:
            accounts = <AccountFields>engine.accounts
            self._place = None  # by the property, which makes the collector track the record from now on
            bucket.gone += 1
            check_sparse(bucket)
            if bucket.opened:
                (<CalendarFields>bucket.calendar).opened_count -= 1
            accounts.counts[IS_CANCELLED] += 1
            call, context = self._call, self._context  # freed last: their finalizers may run Python code
            args, self._outcome = self._outcome, msg
            self._call = <object>RLE_QUALNAME(call) if type(call) is FunctionType else name_of(call)
            self._context = None
            self.state = CANCELLED
            if accounts.on_task_end is not None:
                accounts.on_task_end(self, IS_CANCELLED)
            if self._callbacks is not None:
                call_back(self)
            if accounts.on_end is not None or accounts.on_room is not None:
                accounts.notify_waiters()
            return True
    return pure["TaskHandle.cancel"](self, msg)


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
