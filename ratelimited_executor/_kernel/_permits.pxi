# The permits of a rate: included by ``_compiled.pyx``.
#
# One path serves each grid of numbered permits, with or without the log of an exact window.

cdef double NS = 1e9
cdef long long UNLIMITED = 1LL << 62, EXACT_NS = 1LL << 53  # beyond it, a float does not hold every nanosecond
cdef long long CALL_NS = sizes.CALL_NS


# Permits.

cdef inline bint fits(object value, long long* number) except -1:
    """Read an int into ``number``; False if it is too large."""
    cdef int overflow = 0
    number[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return not overflow and -UNLIMITED < number[0] < UNLIMITED


cdef bint has_numbers(GridFields grid) except -1:
    """True if a single piece of constant rate is in force and its numbers fit; reads them if it is new."""
    cdef long long high, low
    if not RLE_HAS_WIDE or len(<list>grid._pieces) != 1:
        return False
    piece = (<list>grid._pieces)[0]
    if piece is grid.piece:
        return True
    grid.piece = None
    start, base, step, unit = piece
    if not fits(base >> 62, &high) or not fits(base & (UNLIMITED - 1), &low) or not fits(start, &grid.start):
        return False
    if not fits(step, &grid.step) or not fits(unit, &grid.unit) or not 0 < grid.step < 1LL << 40:
        return False
    grid.base = <rle_wide>high * UNLIMITED + low
    grid.piece = piece
    return True


cdef inline long long time_of_number(GridFields grid, long long number) noexcept:
    """Return when a permit comes up, long ago if before the last change: ``PermitGrid._time_of``."""
    cdef rle_wide ahead = <rle_wide>number * grid.unit - grid.base
    if ahead < 0:
        return -UNLIMITED
    ahead = (ahead + grid.step - 1) / grid.step
    return grid.start + <long long>ahead if ahead < UNLIMITED - grid.start else UNLIMITED


cdef inline long long own(long long number, long long rank, long long peers) noexcept:
    cdef long long step = (rank - number) % peers
    return number + step + (peers if step < 0 else 0)


cdef long long usable(GridFields grid, long long now_ns) except -2:
    """Count the usable permits: ``PermitGrid._usable_on_grid``; -1 if the pure body must do it."""
    cdef long long number, peers, rank, slack_ns, since, first, last, fresh
    cdef rle_wide ahead, seen
    if not has_numbers(grid) or not fits(grid._next, &number) or not fits(grid.peers, &peers):
        return -1
    if not fits(grid.rank, &rank) or not fits(grid.slack_ns, &slack_ns) or now_ns < grid.start:
        return -1
    since = now_ns - grid.start
    if peers > 1:
        number = own(number, rank, peers)
    ahead = grid.base + <rle_wide>since * grid.step - <rle_wide>number * grid.unit
    if ahead < 0:
        grid._void_to = None
        grid._first = grid._last = 0
        return 0
    if ahead / grid.unit >= UNLIMITED - number:
        return -1
    first, last = number, number + <long long>(ahead / grid.unit)
    seen = <rle_wide>min(since, slack_ns) * grid.step - ahead  # rounded down, like Python's division
    fresh = number - <long long>(seen / grid.unit if seen >= 0 else -((grid.unit - 1 - seen) / grid.unit))
    grid._void_to = None
    if fresh > first:
        first = fresh if peers == 1 else own(fresh, rank, peers)
    if first <= last:
        grid._first, grid._last = first, last + 1
        grid.usable_until_ns = max(now_ns, time_of_number(grid, first) + slack_ns)
        return (last - first) // peers + 1
    if peers > 1:
        grid._first = grid._last = 0
        return 0
    grid._first, grid._last = last, last + 1  # the newest permit, older than the slack
    grid._void_to = fresh + 1
    grid.usable_until_ns = now_ns
    return 1


def _usable_on_grid(GridFields self, now_ns):
    cdef long long number, count = -1
    if fits(now_ns, &number):
        count = usable(self, number)
    return pure["PermitGrid._usable_on_grid"](self, now_ns) if count < 0 else count


cdef inline bint to_ns(object timeline, double now, long long* now_ns) except -1:
    """Convert loop time to timeline nanoseconds: ``Timeline.to_ns``; False if they do not fit."""
    cdef double whole = floor(now * NS)
    if not -9e18 < whole < 9e18 or not fits((<TimelineFields>timeline).offset_ns, now_ns):
        return False
    now_ns[0] += <long long>whole
    return True


cdef inline double to_loop(object timeline, long long time_ns) except? -1:
    """Convert timeline nanoseconds to the first loop time not before them: ``Timeline.to_loop``."""
    cdef long long offset_ns
    cdef double when
    if not fits((<TimelineFields>timeline).offset_ns, &offset_ns) or not -EXACT_NS < time_ns - offset_ns < EXACT_NS:
        return timeline.to_loop(time_ns)
    when = <double>(time_ns - offset_ns) / NS
    while <long long>floor(when * NS) + offset_ns < time_ns:
        when = nextafter(when, INF)
    return when


cdef inline GridFields grid_of(object permits):
    """Return the permits if they are a grid whose methods have bodies here, else None."""
    return <GridFields>permits if type(permits) is EXACT_GRID or type(permits) is PERMIT_GRID else None


cdef long long count_permits(AdmissionFields admission, double now) except -1:
    """Count the permits that may be taken at loop time ``now``: ``Admission.look``."""
    cdef long long now_ns, count = -1, until_ns
    cdef GridFields grid = grid_of(admission.permits)
    if grid is not None and not admission.is_unlimited and to_ns(admission._timeline, now, &now_ns):
        count = usable(grid, now_ns)
        if count >= 0 and grid._log is not None:
            count = admitted(grid, <WindowFields>grid._log, count, now_ns)
    if count < 0:
        return pure["Admission.look"](admission, now)
    admission._counted_at = now
    admission.count = count
    if count:
        fits(grid.usable_until_ns, &until_ns)
        admission.usable_until = now + <double>(until_ns - now_ns) / NS
    return count


def look_at(AdmissionFields self, double now):
    return count_permits(self, now)


def take_counted(AdmissionFields self, long long count, double now):
    if self.count:
        take_permits(self, count, now)


cdef long long find_permits(QueueFields self, double now) except -1:
    """Return the number of usable permits; if 0, note the next permit's time: ``Admission.find``."""
    cdef AdmissionFields admission = self.admission
    if (admission.count and now <= admission.usable_until) or count_permits(admission, now):
        return admission.count
    if note_next(admission, now):
        return 0
    return admission.find(now, self.interval_end)


cdef bint note_next(AdmissionFields admission, double now) except -1:
    """Note the next permit's time where none is usable: ``PermitGrid.next_fresh_time``; False if the pure body must do it."""
    cdef GridFields grid = grid_of(admission.permits)
    cdef long long now_ns, number, slack_ns, when
    if grid is None or not to_ns(admission._timeline, now, &now_ns) or not is_alone(grid, now_ns, &number, &slack_ns):
        return False
    if usable(grid, now_ns):  # of its grid: the window holds it back
        return False
    number = max(number, first_since(grid, now_ns - slack_ns), last_until(grid, now_ns) + 1)
    when = time_of_number(grid, number)
    if not -UNLIMITED < when < UNLIMITED:
        return False
    admission.next_at = to_loop(admission._timeline, max(when, now_ns))
    return True


cdef bint is_alone(GridFields grid, long long now_ns, long long* number, long long* slack_ns) except -1:
    """True if a grid has no peers, and its numbers fit; reads the first permit that is not taken, and the slack."""
    cdef long long peers
    return (
        has_numbers(grid) and fits(grid.peers, &peers) and peers == 1 and now_ns >= grid.start
        and fits(grid._next, number) and fits(grid.slack_ns, slack_ns)
    )


cdef inline long long last_until(GridFields grid, long long time_ns) noexcept:
    """Return the number of the last permit that has come up by a time: ``Piece.floor``."""
    return floor_of(grid.base + <rle_wide>(time_ns - grid.start) * grid.step, grid.unit)


cdef inline long long first_since(GridFields grid, long long time_ns) noexcept:
    """Return the number of the first permit of the piece in force from a time on: ``PermitGrid._ceil_phase``."""
    return floor_of(grid.base + <rle_wide>(max(time_ns, grid.start) - grid.start) * grid.step + grid.unit - 1, grid.unit)


cdef inline long long floor_of(rle_wide value, long long unit) noexcept:
    """Divide, rounded down; what does not fit becomes the nearest number that does."""
    cdef rle_wide found = value / unit
    if value < 0 and found * unit != value:
        found -= 1
    return <long long>max(<rle_wide>-UNLIMITED, min(<rle_wide>UNLIMITED, found))


cdef long long permits_until(QueueFields self, double now) except -2:
    """Count the permits that can be taken in the rest of the interval: ``ExactGrid.count_until``; -1 if the pure body must do it."""
    cdef AdmissionFields admission = self.admission
    cdef GridFields grid = grid_of(admission.permits)
    cdef long long now_ns = 0, end_ns = 0, number, slack_ns, newest, count, end
    if grid is None or not to_ns(self.timeline, now, &now_ns) or not to_ns(self.timeline, self.interval_end, &end_ns):
        return -1
    if not is_alone(grid, now_ns, &number, &slack_ns):
        return -1
    newest, end = last_until(grid, now_ns), first_since(grid, end_ns)
    if end >= UNLIMITED or newest <= -UNLIMITED:
        return -1
    if type(grid) is EXACT_GRID and number <= newest < first_since(grid, now_ns - slack_ns):
        count = floor_of(<rle_wide>max(0LL, end_ns - 1 - now_ns) * grid.step, grid.unit)  # after the newest, which is late
        return 1 + count if count < UNLIMITED else -1
    first, last, void_to, until_ns = grid._first, grid._last, grid._void_to, grid.usable_until_ns
    count = usable(grid, now_ns)
    if count >= 0 and grid._void_to is not None and not fits(grid._void_to, &number):
        count = -1
    grid._first, grid._last, grid._void_to, grid.usable_until_ns = first, last, void_to, until_ns
    return count if count < 0 else count + max(0LL, end - max(number, newest + 1))


cdef long long admitted(GridFields grid, WindowFields log, long long count, long long now_ns) except -2:
    """Return how many of the permits the window admits: ``ExactGrid.usable``; -1 if the pure body must do it."""
    cdef long long permits, used, first
    grid._looked_ns = now_ns
    if not count:
        return 0
    if not fits(log.permits, &permits) or not fits(log.used, &used):
        return -1
    if permits - used >= count:
        return count
    if not forget(log, now_ns, &used) or not fits(grid._first, &first):
        return -1
    if permits - used < count:
        count = max(permits - used, 0)
        grid._last = first + count
    return count


cdef bint forget(WindowFields log, long long now_ns, long long* used) except -1:
    """Remove the starts that have left the window: ``WindowLimit.count``; False if its numbers do not fit."""
    cdef long long width_ns, time_ns, amount
    cdef object entries = log._log
    cdef list entry
    cdef bint is_known = not log._pending and fits(log._width_ns, &width_ns)
    while is_known and PyObject_Length(entries):
        entry = <list?>entries[0]
        is_known = fits(entry[0], &time_ns) and fits(entry[1], &amount)
        if not is_known:  # a start without a time, for one
            break
        if time_ns > now_ns - width_ns:
            break
        entries.popleft()
        entry[0] = -1
        used[0] -= amount
        log.used = used[0]
    if not is_known:
        (<object>log).count(now_ns)
    return is_known or fits(log.used, used)


cdef int take_permits(AdmissionFields admission, long long count, double now) except -1:
    """Use some of the counted permits: ``Admission.take``."""
    cdef GridFields grid = grid_of(admission.permits)
    cdef long long first, number, peers, rank
    cdef bint is_known
    cdef list receipt = None
    if grid is not None and grid._log is not None:
        receipt = [[None, count], count]  # before all else: an allocation may run Python code
        if grid._void_to is not None and <list>grid._pieces:
            slip(grid)
    is_known = grid is not None and has_numbers(grid) and fits(grid._first, &first)
    if is_known and fits(grid.peers, &peers) and fits(grid.rank, &rank):
        number = first + (count - 1) * peers + 1
        if receipt is not None:
            is_known = log_starts(admission, grid, <WindowFields>grid._log, receipt, count, now)
        elif grid._void_to is not None:
            is_known = fits(grid._void_to, &number)
        if is_known:
            grid._first = first + count * peers
            grid._next = number
            grid._void_to = None
            admission.count -= count
            if not admission.count:
                number = time_of_number(grid, number if peers == 1 else own(number, rank, peers))
                admission.next_at = to_loop(admission._timeline, number if number > -UNLIMITED else 0)
            return 0
    pure["Admission.take"](admission, count, now)
    return 0


cdef int slip(GridFields grid) except -1:
    """Move the grid so that the permit that was counted first came up when it was: ``ExactGrid._slip``."""
    cdef long long number, first, looked_ns
    if not has_numbers(grid) or not fits(grid._first, &first) or not fits(grid._looked_ns, &looked_ns) or not fits(grid._next, &number):
        (<object>grid)._slip(grid._first, grid._looked_ns)
        return 0
    _, _, step, unit = grid.piece
    piece = type(grid.piece)(grid._looked_ns, grid._first * unit, step, unit)
    grid._void_to, grid._next, grid._pieces = None, max(number, first), [piece]
    grid.piece, grid.start, grid.base = piece, looked_ns, <rle_wide>first * grid.unit
    return 0


cdef bint log_starts(
    AdmissionFields admission, GridFields grid, WindowFields log, list receipt, long long count, double now
) except -1:
    """Record starts in the log: ``WindowLimit.take``; False if the pure body must do it."""
    cdef long long now_ns, last_ns, used, permits, grain_ns
    cdef list entry = <list>receipt[0], last
    cdef object entries = log._log
    cdef Py_ssize_t length = PyObject_Length(entries)
    if now == admission._counted_at:
        if not fits(grid._looked_ns, &now_ns):
            return False
    elif not to_ns(admission._timeline, now, &now_ns):
        return False
    if not fits(log.permits, &permits) or not fits(log.used, &used) or not fits(log._grain_ns, &grain_ns):
        return False
    last_ns = -UNLIMITED
    if length:
        last = <list?>entries[length - 1]
        if not fits(last[0], &last_ns) or last_ns < 0:
            return False
    if last_ns >= now_ns or (length and grain_ns and last_ns // grain_ns == now_ns // grain_ns):
        entry = receipt[0] = last
        entry[1] += count
    else:
        entries.append(entry)
    entry[0] = max(last_ns, now_ns)
    log.used = used + count
    grid.open_receipt = receipt
    return True


def take_effect(QueueFields self, double now):
    note_effect(self, now)


cdef int note_effect(QueueFields queue, double now) except -1:
    """Record that the last start has taken effect: ``PlainQueue.take_effect``."""
    cdef GridFields grid = grid_of((<AdmissionFields>queue.admission).effects)
    cdef long long now_ns, time_ns, amount, charged
    cdef list entry, receipt
    if grid is None or not to_ns(queue.timeline, now, &now_ns):
        pure["PlainQueue.take_effect"](queue, now)
        return 0
    if queue.gate is not None:
        queue.gate.take_effect(now_ns)
    if grid.open_receipt is None:
        return 0
    receipt = <list?>grid.open_receipt
    entry = <list?>receipt[0]
    if fits(entry[0], &time_ns) and time_ns >= 0 and fits(entry[1], &amount) and fits(receipt[1], &charged) and amount == charged:
        grid.open_receipt = None
        entry[0] = min(now_ns, time_ns + CALL_NS)
    else:
        (<object>grid).take_effect(now_ns)
    return 0


def take_usable(AdmissionFields admission, long long most, double now, double later=0.0):
    """Take up to ``most`` permits, perhaps later, as far as they are usable; return how many were usable. For tests."""
    cdef long long count
    admission.count = 0
    count = count_permits(admission, now)
    if count:
        take_permits(admission, min(most, count), now + later)
    return count
