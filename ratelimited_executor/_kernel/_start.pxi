# Tasks becoming ready, starting and ending: included by ``_compiled.pyx``.

cdef Py_ssize_t RANK_COUNT_MAX = 16  # ranks among which the task due first is found by looking at each


cdef inline object call_in(object context, object call, object args, bint is_one):
    """Call a function in a context: ``Context.run`` without a tuple of its arguments (saves 0.05)."""
    PyContext_Enter(context)
    try:
        if is_one:
            return PyObject_CallOneArg(call, args)
        return PyObject_Vectorcall(call, RLE_TUPLE_ITEMS(args), len(<tuple>args), NULL)
    finally:
        PyContext_Exit(context)


cdef int tell_failed(AccountFields accounts, object context, object owner, object error, object origin) except -1:
    """Record that a call has raised, in a copy of its context: ``Accounts.raised``."""
    PyContext_Copy(context).run((<object>accounts).raised, owner, error, origin)
    return 0


def _start_plain(StarterFields self, StretchFields stretch, double now, double stop):
    cdef AccountFields accounts = self._accounts
    cdef ContextFields contexts = self._contexts
    cdef QueueFields queue = self._queue
    cdef object starter = self
    cdef RunFields run = <RunFields?>stretch._run
    cdef object clock = self._monotonic, scratch = contexts.scratch, context = scratch, source = stretch.source
    cdef object call = None, args = None, origin = None, result = None, batch = None, items = None, indexes = None, kept = None
    cdef object owner = None
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
        if batch._context is not None:
            context = origin = batch._context
            is_copied = not batch._own_context
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
                    ahead = cursor.at + 15  # due order is not memory order: these four prefetches cut 0.30 to 0.16
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
                if is_bucket:
                    starter._raised(accounts.calls.of(call, args if type(args) is tuple else (args,)), error, context)
                else:
                    starter._raised(starter.item_of(source, index, kept, now), error, context)
            else:
                if result is not None or PyObject_Length(scratch):
                    owner = accounts.calls if is_bucket else starter.item_of(source, index, kept, now)
                    if type(result) is CoroutineType and not PyObject_Length(scratch):
                        run_coroutine(self, accounts, owner, result, context)
                    else:
                        starter._returned(owner, result, context)
                    owner = None
            if contexts.scratch is not scratch:  # it was written to, or given away
                if context is scratch:
                    context = contexts.scratch
                scratch = contexts.scratch
            after = rle_monotonic() if is_system else clock()
            if after - now > LONG_HOLD_SECONDS:
                starter._note_hold(call if is_bucket else batch._call, after - now)
            now = after
            if is_bucket:
                call = None
            args = None  # their finalizers may change anything: not while the next task is being taken
            if now >= stop or queue.is_changed:
                break
    finally:
        if cursor is None or self._stretch is not stretch or stretch._positions is not cursor:
            starter._end(stretch, index if is_begun else None, result)
        else:
            end_plain(self, accounts, stretch, run, cursor)
    return now


cdef int run_coroutine(StarterFields self, AccountFields accounts, object owner, object coroutine, object context) except -1:
    """Continue with a call of a stretch that returned a coroutine: ``Starter._returned`` (saves 0.2)."""
    if (<AdmissionFields>(<QueueFields>self._queue).admission).effects is not None:
        (<object>self)._returned(owner, coroutine, context)
        return 0
    if self._is_ahead:
        self._is_ahead = False
    else:
        self._coroutine_count += 1
    accounts.is_inside = False
    self._coroutines.start(owner, coroutine, context)
    accounts.is_inside = True
    return 0


cdef int end_plain(StarterFields self, AccountFields accounts, StretchFields stretch, RunFields run, Cursor cursor) except -1:
    """End a stretch that was not detached: ``Starter._end`` (saves 0.02 for each of 400 starts)."""
    cdef CalendarFields calendar = <CalendarFields>stretch._calendar
    cdef Py_ssize_t started = cursor.at - run._cursor - stretch.skipped_count, ended
    cdef double due
    cdef BatchFields source = None
    cdef HandleFields batch = None
    accounts.is_inside = False
    run._cursor = cursor.at
    if isinstance(run.source, BucketFields):
        (<BucketFields>run.source).gone += started
    else:
        source, batch = run.source, self._batch
        source.started_count += started
    calendar.opened_count -= started
    due = due_at(run.source, run._positions[run._cursor - 1]) if stretch._is_paid and started else INF
    stretch._positions = stretch._run = stretch._calendar = stretch.source = None
    stretch.skipped_count = 0
    self._stretch = self._batch = None
    accounts.started_count += started
    ended = started + self._is_ahead - self._coroutine_count
    self._coroutine_count = 0
    self._is_ahead = False
    accounts.counts[IS_DONE] += ended
    if source is not None:
        batch._counts[IS_DONE] += ended
        if source.started_count == source.count and not source.revoked:
            (<object>calendar).finish(source)
            batch._parts.pop(source, None)
        wake_batch(batch)
    if stretch._is_paid and started:  # last: the clock or a finalizer may read the counts, or raise
        spend(stretch._queue, calendar, due, self._monotonic(), started)
    return 0


cdef int wake_batch(HandleFields batch) except -1:
    """Notify the waiters of a batch of a change that concerns them: ``BatchHandle._wake``."""
    if batch._changed:
        if batch._listeners or batch._feeder is not None or (batch._is_complete and sum(batch._counts.values()) == batch._drawn_count):
            (<object>batch)._wake()
    return 0


cdef int spend(QueueFields queue, CalendarFields calendar, double due, double now, Py_ssize_t count) except -1:
    """Use the permits of starts, then notify a listener: ``PlainQueue.spend`` and ``_tell``."""
    pay(queue, calendar, due, now, count)
    tell(queue, due, now, count)
    return 0


cdef inline int tell(QueueFields queue, double due, double now, Py_ssize_t count) except -1:
    """Notify a listener of starts: ``PlainQueue._tell``."""
    if queue.on_start is not None:
        queue.untold_count -= count
        if queue.untold_count < 0:
            queue.untold_count = 0
            call_started(queue.on_start, due, now)
    return 0


cdef inline int pay(QueueFields queue, CalendarFields calendar, double due, double now, Py_ssize_t count) except -1:
    """Use the permits of starts, and plan the next: ``PlainQueue.spend`` and ``SpreadPlan.started`` (saves 1.0)."""
    cdef PlanFields plan
    cdef Py_ssize_t left, late
    if queue.tells_order:
        calendar.ready.served()
    if (<AdmissionFields>queue.admission).count:
        take_permits(queue.admission, count, now)
    if calendar is not queue.spread:
        return 0
    plan = queue.plan
    late = min(count, plan._late_count)
    plan._late_count -= late
    count -= late
    if count <= 0:
        return 0
    left = calendar.opened_count + queue.later_count
    if count > 1:
        plan.next_at += (count - 1) * (plan.end - plan.next_at) / (left + count)
    due += queue.phase_seconds
    due = plan.next_at if queue.early or due < plan.next_at else due
    if now - due > plan._slack:
        due = now
    plan.next_at = due + max(0.0, plan.end - due) / (left + 1)
    return 0


cdef inline bint has_key_at_most(RecordFields record) noexcept:
    """True if nothing in the options of a record concerns its start."""
    return record._options is None or type(record._options) is KEY_OPTIONS


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
    if not isinstance(stretch._run, RecordRunFields):
        return pure["Starter._start_records"](self, stretch, now, stop)
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
                spend(queue, stretch._calendar, record._due, now, 1)
        elif not queue.admit_record(stretch._calendar, record, now, is_paid=stretch._is_paid):
            continue
        call = record._call
        accounts.started_count += 1
        if has_key_at_most(record):
            start_record(self, accounts, contexts, record, call, now)
        else:
            self._start_special(record, call, now)
        record = None
        after = rle_monotonic() if is_system else clock()
        if queue.counts_effects:
            note_effect(queue, after)
        if after - now > LONG_HOLD_SECONDS:
            self._note_hold(call, after - now)
        now = after
        call = None
        if now >= stop or queue.is_changed:
            break
    return now


cdef int start_record(object starter, AccountFields accounts, ContextFields contexts, RecordFields record, object call, double now) except -1:
    """Start a record without options: ``Starter._call``."""
    cdef object args = record._outcome, origin = record._context, result
    if record.state != WAITING:
        record._move_to(IS_RUNNING)
    record.state = RUNNING
    record._context = now
    context = contexts.scratch if origin is None else PyContext_Copy(origin)
    accounts.is_inside = True
    try:
        result = call_in(context, call, args, False)
    except BaseException as error:
        accounts.is_inside = False
        if PyObject_Length(contexts.scratch):
            contexts.clean()
        tell_failed(accounts, context, record, error, origin)
        return 0
    accounts.is_inside = False
    if result is not None and RLE_IS_AWAITABLE(result):
        run_left(starter, record, result, context, origin)
    else:
        accounts.counts[IS_DONE] += 1
        if accounts.on_task_end is not None:
            accounts.on_task_end(record, IS_DONE)
        end_done(record, result)
    if PyObject_Length(contexts.scratch):
        contexts.clean()
    return 0


cdef int run_left(object starter, object owner, object awaitable, object context, object origin) except -1:
    """Run the awaitable that a call returned."""
    if is_to_last((<StarterFields?>starter)._coroutines, awaitable):
        start_lasting((<StarterFields>starter)._coroutines, owner, awaitable, context, origin)
    elif type(awaitable) in (<StarterFields?>starter)._kinds:
        (<StarterFields>starter)._coroutines.start(owner, awaitable, context, origin)
    else:
        starter._run(owner, awaitable, context, origin, None)
    return 0


cdef int end_done(RecordFields record, object result) except -1:
    """End a task that returned: ``TaskHandle._end_done``."""
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
    """Call the callbacks of a record that has ended: ``TaskHandle._ended``."""
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
        pure["TaskHandle.add_done_callback"](self, callback, context=context)


def _end_done(RecordFields self, result):
    end_done(self, result)


def _run(CallbackFields self):
    cdef object scratch = PyContext_New(), pending = self._pending, callback = None, handle = None, context = None
    cdef Py_ssize_t left = min(len(pending), CALL_COUNT_MAX)
    try:
        self._is_armed = False  # from now on, a new callback requests the next loop iteration
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
    return self._outcome if self.state == DONE else pure["TaskHandle.result"](self)


def exception(RecordFields self):
    return None if self.state == DONE else pure["TaskHandle.exception"](self)


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


def earliest(ReadyFields self):
    cdef double due, least = INF
    cdef int64_t number, first = 0
    cdef object queue, rank, run, chosen = None
    if len(self.active) > RANK_COUNT_MAX:
        return pure["ReadyQueues.earliest"](self)
    if len(self.active) <= 1:
        found = head(self)
        if found is None:
            return None
        self._earliest = (<tuple>found)[0]
        return (<tuple>found)[1]
    for rank in self.active:
        queue = self._queues.get(rank)
        while queue:
            run = queue[0]
            found = head_due(run)
            if found is None:
                queue.popleft()
                continue
            due = found
            number = (<RunFields>run)._number + (<RunFields>run)._cursor if isinstance(run, RunFields) else run.head_number
            if chosen is None or due < least or (due == least and number < first):
                chosen, least, first = rank, due, number
            break
    if chosen is None:
        return None
    self._earliest = chosen
    return least


cdef inline object earliest_of(object ready):
    """Return the due time of the task due first in a calendar; None if none is ready."""
    return earliest(<ReadyFields>ready) if type(ready) is READY_QUEUES else ready.earliest()


cdef inline object earliest_run(object ready):
    """Return the run that ``earliest()`` found: ``ReadyQueues.pop_earliest``."""
    if type(ready) is READY_QUEUES:
        return (<ReadyFields>ready)._queues[(<ReadyFields>ready)._earliest][0]
    return ready.pop_earliest()


cdef object head_due(object run):
    """Return the due time of the first task of a run that still waits; None if none does."""
    cdef RecordRunFields records
    cdef BatchFields batch
    cdef BucketFields bucket
    cdef RunFields plain
    cdef Py_ssize_t position
    if isinstance(run, RecordRunFields):
        records = <RecordRunFields>run
        while records.cursor < len(records.records):
            record = records.records[records.cursor]
            if record is not None and (<RecordFields>record).place is records:
                return (<RecordFields>record)._due
            records.cursor += 1
        return None
    plain = <RunFields>run
    if isinstance(plain.source, BatchFields):
        batch = <BatchFields>plain.source
        while not batch.revoked and batch.started_count < batch.count and plain._cursor < len(plain._positions):
            position = plain._positions[plain._cursor]
            if not batch._started[position] if batch._started is not None else position >= batch.started_count:
                return due_of(batch, position)
            plain._cursor += 1
        return None
    if not isinstance(plain.source, BucketFields) or type(plain._positions) is not Positions:
        return run.head_due()
    bucket = <BucketFields>plain.source
    if bucket.gone == len(bucket.calls):  # all its tasks have gone: there may be a million of them
        return None
    while plain._cursor < <Py_ssize_t>(<Positions>plain._positions).data.size():
        position = (<Positions>plain._positions).data[plain._cursor]
        call = bucket.calls[position] if position < len(bucket.args) else None  # freed: all had gone; see append()
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
        if record.place is not bucket:  # it was cancelled; perhaps just now, by the order function
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
