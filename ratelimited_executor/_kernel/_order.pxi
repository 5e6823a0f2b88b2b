# Due order: included by ``_compiled.pyx``.

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
    """An iterator over positions in due order, a range or a list; it knows its progress, like a list's iterator."""

    cdef Positions positions
    cdef list listed
    cdef Py_ssize_t at, first, count

    cdef inline Py_ssize_t length(self) noexcept:
        return self.count if self.listed is None else len(self.listed)

    cdef inline Py_ssize_t position(self) except -1:
        """Return the next position, and advance."""
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
    """Return an iterator that does not box positions (saves 0.03 each); None for another kind of sequence."""
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


ctypedef pair[double, uint32_t] Entry  # due time and position: sorts by both, without a look-up of the due time (0.1)
ctypedef pair[Py_ssize_t, Py_ssize_t] Place  # a part, and a position in it
ctypedef pair[Entry, Place] Head


@cython.final
cdef class DueOrder:
    """``due_order.DueOrder``, which documents the algorithm, with due times stored beside the positions.

    Putting positions into slots, and sorting a slot with more entries than one step can sort, go in steps here, too.
    Such a slot consists of parts from the beginning, because a single column of a million entries would be copied
    whenever it grows (10 ms). Each part is sorted separately, and the parts are merged as they are read, or
    concatenated if they do not overlap.
    """

    cdef object dues
    cdef bint is_array
    cdef list todo  # sequences of positions that must still be put into slots
    cdef Py_ssize_t todo_at  # how many positions of the first sequence have been put
    cdef vector[Entry] open  # sorted; entries before the cursor have been read
    cdef vector[vector[Entry]] slots
    cdef unordered_map[Py_ssize_t, vector[vector[Entry]]] full  # by slot, if it has any: parts of PART_COUNT entries
    cdef vector[vector[Entry]] parts  # the parts of the open slot; the first sorted_count are sorted
    cdef priority_queue[Head] heads  # the first entry left in each part, the earliest on top
    cdef Py_ssize_t cursor, sorted_count, slot
    cdef double open_until, start, scale
    cdef readonly Py_ssize_t left_count

    def __init__(self, dues, double start, double end):
        assert start < end, (start, end)
        self.dues = dues
        self.is_array = type(dues) is array
        self.todo = []
        self.open_until = INF
        self.slot = -1
        self.start = start
        self.scale = SLOT_COUNT / (end - start)
        self.extend(range(len(dues)))

    @property
    def is_busy(self):
        """True if an addition may cost much work at once, so that another order should take it."""
        return self.is_busy_()

    cdef inline bint is_busy_(self) noexcept:
        return self.slot >= 0 and self.is_unordered()

    cdef inline bint is_unordered(self) noexcept:
        return self.has_work() or not self.heads.empty()

    cdef inline bint has_work(self) noexcept:
        return len(self.todo) > 0 or self.sorted_count < <Py_ssize_t>self.parts.size()

    cdef inline double due_at(self, Py_ssize_t position) except? -1:
        return (<carray.array>self.dues).data.as_doubles[position] if self.is_array else self.dues[position]

    def prepare(self):
        """Do one step of the preparation for the next reading; return True if none was left to do."""
        if self.todo:
            self.deal_out()
            return False
        if self.sorted_count < <Py_ssize_t>self.parts.size():
            self.sort_if_needed(self.parts[self.sorted_count])
            self.push_head(self.sorted_count, 0)
            self.sorted_count += 1
            return False
        return True

    cdef inline void sort_if_needed(self, vector[Entry] &entries) noexcept:
        """Sort entries unless they are in order already, as a million equal due times are."""
        if not is_sorted(entries.begin(), entries.end()):
            sort(entries.begin(), entries.end())

    cpdef int add(self, Py_ssize_t position) except -1:
        """Add a position that was appended to the column."""
        cdef Entry entry = Entry(self.due_at(position), <uint32_t>position)
        self.left_count += 1
        if entry.first >= self.open_until:
            self.put(entry)
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
        """Add many positions that were appended to the column, in steps."""
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
        """Return the earliest due time left, or a lower bound while preparation is left; infinity if none is."""
        return self.head_()

    cdef double head_(self) except? -1:
        while self.cursor == <Py_ssize_t>self.open.size():
            if self.has_work():
                return self.start + self.slot / self.scale
            if not self.advance():
                return INF
        return self.open[self.cursor].first

    def take(self, double now, Py_ssize_t limit=sizes.RUN_COUNT):
        """Remove and return at most ``limit`` positions due at or before ``now``, in due order.

        There may be more: call again until :meth:`head` is later than ``now``. Empty while preparation is left.
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
        """Remove and return the first position if it is due at ``now`` and the next is not; None if not, or unknown."""
        cdef Py_ssize_t cursor = self.cursor, count = self.open.size()
        if cursor >= count or self.open[cursor].first > now:
            return None
        if cursor + 1 < count:
            if self.open[cursor + 1].first <= now:
                return None
        elif not self.slots.empty() and (self.is_unordered() or now >= self.open_until - ROUNDING_SECONDS):
            return None  # later slots may hold another
        self.cursor += 1
        self.left_count -= 1
        return self.open[cursor].second

    def take_first(self, double now):
        """Remove and return the first position, if it is due at ``now``; None if not, or while preparation is left."""
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
            if self.is_unordered():
                return int(self.left_count * max(0.0, when - self.start) / (end - self.start))
        count = upper_bound(self.open.begin() + self.cursor, self.open.end(), Entry(when, UINT32_MAX)) - self.open.begin()
        count -= self.cursor
        if when >= self.start:
            for slot in range(self.slot + 1, min(<Py_ssize_t>((when - self.start) * self.scale) + 1, <Py_ssize_t>self.slots.size())):
                count += self.slots[slot].size()
                if not self.full.empty() and self.full.count(slot):
                    count += PART_COUNT * self.full[slot].size()
        return count

    cdef inline Py_ssize_t slot_of(self, double due) noexcept:
        """Return the slot of a due time; never one that has been opened, whatever the rounding."""
        cdef double at = (due - self.start) * self.scale
        cdef Py_ssize_t slot = SLOT_COUNT - 1 if at >= SLOT_COUNT - 1 else 0 if at < 0 else <Py_ssize_t>at
        return slot if slot > self.slot else self.slot + 1

    cdef inline void put(self, Entry entry) noexcept:
        """Put an entry into its slot."""
        cdef Py_ssize_t slot = self.slot_of(entry.first)
        if <Py_ssize_t>self.slots[slot].size() >= PART_COUNT:
            self.add_part(self.full[slot], self.slots[slot])
        self.slots[slot].push_back(entry)

    cdef inline void add_part(self, vector[vector[Entry]] &parts, vector[Entry] &entries) noexcept:
        """Move entries into a new part of a slot."""
        parts.emplace_back()
        parts.back().swap(entries)

    cdef int cut(self) except -1:
        """Begin to use slots, and move the open entries into them."""
        cdef vector[Entry] moved
        cdef Py_ssize_t at
        moved.swap(self.open)
        self.slots.resize(SLOT_COUNT)
        for at in range(self.cursor, <Py_ssize_t>moved.size()):
            self.put(moved[at])
        self.cursor = 0
        self.open_until = -INF
        return 0

    cdef int deal_out(self) except -1:
        """Put the next positions of ``todo`` into their slots, in one step."""
        cdef Py_ssize_t first = self.todo_at, at, position
        positions = self.todo[0]
        cdef bint is_straight = type(positions) is range and positions.step == 1
        self.todo_at = min(first + PLACE_COUNT, len(positions))
        position = positions[first] - 1
        for at in range(first, self.todo_at):
            position = position + 1 if is_straight else positions[at]
            self.put(Entry(self.due_at(position), <uint32_t>position))
        if self.todo_at == len(positions):
            del self.todo[0]
            self.todo_at = 0
        return 0

    cdef bint advance(self) except -1:
        """Open more of a slot in parts, or the next non-empty slot; False if there is none."""
        self.open.clear()
        self.cursor = 0
        if not self.heads.empty():
            self.read_parts()
            return True
        while self.slot + 1 < <Py_ssize_t>self.slots.size():
            self.slot += 1
            self.open_until = INF if self.slot + 1 == SLOT_COUNT else self.start + (self.slot + 1) / self.scale
            if not self.slots[self.slot].empty():
                if not self.full.empty() and self.full.count(self.slot):
                    self.parts.swap(self.full[self.slot])
                    self.full.erase(self.slot)
                    self.add_part(self.parts, self.slots[self.slot])
                else:
                    self.open.swap(self.slots[self.slot])
                    vector[Entry]().swap(self.slots[self.slot])
                    self.sort_if_needed(self.open)
                return True
        return False

    cdef inline void push_head(self, Py_ssize_t part, Py_ssize_t at) noexcept:
        """Push the next entry of a part to the heap; negated, because the greatest is on top."""
        cdef Entry entry = self.parts[part][at]
        self.heads.push(Head(Entry(-entry.first, UINT32_MAX - entry.second), Place(part, at)))

    cdef int read_parts(self) except -1:
        """Open more of a slot in parts: a whole part if no other overlaps it; each is freed once it has been read."""
        cdef Py_ssize_t part, at, count = 0
        cdef Entry last
        while not self.heads.empty() and count < RUN_COUNT:
            part, at = self.heads.top().second.first, self.heads.top().second.second
            self.heads.pop()
            if at == 0 and self.open.empty():
                last = self.parts[part].back()
                if self.heads.empty() or Entry(-last.first, UINT32_MAX - last.second) > self.heads.top().first:
                    self.open.swap(self.parts[part])
                    break
            self.open.push_back(self.parts[part][at])
            count += 1
            if at + 1 < <Py_ssize_t>self.parts[part].size():
                self.push_head(part, at + 1)
            else:
                vector[Entry]().swap(self.parts[part])
        if self.heads.empty():
            self.parts.clear()
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
