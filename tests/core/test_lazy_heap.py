"""A heap with stale entries, compared with a sorted list, and the cost of its sweeps."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core import lazy_heap
from ratelimited_executor._core.lazy_heap import GuardedHeap, LazyHeap, WholeHeap

from ..helpers import examples


class Entry:
    """A number that may be stale, and counts comparisons."""

    compared = 0

    def __init__(self, value: float, number: int) -> None:
        self.key = value, number
        self.is_stale = False

    def __lt__(self, other: "Entry") -> bool:
        Entry.compared += 1
        return self.key < other.key

    def __repr__(self) -> str:
        return f"Entry{self.key}{' stale' * self.is_stale}"


def make(entries=(), *, sweep_count_max=4096, form=LazyHeap) -> LazyHeap:
    class Heap(form):
        """A heap with its own bound for a sweep."""

    Heap.sweep_count_max = form.sweep_count_max if form is WholeHeap else sweep_count_max
    return Heap(lambda entry: entry.is_stale, entries)


def by_key(entries) -> list:
    return sorted(entries, key=lambda entry: entry.key)


@given(
    st.lists(st.integers(0, 9), max_size=20),
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 9)),
            st.tuples(st.just("push"), st.integers(0, 9)),
            st.tuples(st.sampled_from(["note before", "note after", "note nothing"]), st.integers(0, 1000)),
            st.tuples(st.sampled_from(["first", "pop", "entries", "compact"]), st.just(0)),
            st.tuples(st.sampled_from(["least", "below"]), st.integers(0, 9)),
        ),
        max_size=80,
    ),
    st.sampled_from([0, 1, 8, 1000]),
    st.sampled_from([LazyHeap, WholeHeap, GuardedHeap]),
)
@examples(160)
def test_what_is_left_is_what_a_sorted_list_holds(values, steps, sweep_count_max, form):
    """The first entry is the least that is not stale, however entries become stale and are noted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_heap, "_SPARE_COUNT", 1)
        patch.setattr(lazy_heap, "_STEP_COUNT", 2)
        left = [Entry(value, number) for number, value in enumerate(values)]
        heap = make(left, sweep_count_max=sweep_count_max, form=form)
        is_exact = True
        for step, (action, value) in enumerate(steps):
            if action == "push":
                entry = Entry(value, len(values) + step)
                heap.push(entry)
                left.append(entry)
            elif action.startswith("note"):
                if left:
                    entry = left.pop(value % len(left))
                    if action == "note before":
                        heap.note_stale()
                    entry.is_stale = True
                    if action == "note after":
                        heap.note_stale()
                    is_exact &= action != "note nothing"
            elif action == "pop":
                if heap.first() is not None:
                    entry = min(left, key=lambda entry: entry.key)
                    left.remove(entry)
                    assert entry is heap.pop(), step
            elif action == "entries":
                if form is WholeHeap:
                    assert len(heap) == len(heap.entries)
                    assert by_key(heap.entries)[:1] == heap.entries[:1], step
            elif action == "compact":
                heap.compact()
                assert len(left) == len(heap)
            elif action == "least":
                assert by_key(left)[:value] == heap.least(value), step
            elif action == "below":
                bound = Entry(value, -1)
                assert [entry for entry in by_key(left) if entry < bound] == by_key(heap.below(bound)), step
            else:
                assert next(iter(by_key(left)), None) is heap.first(), step
            assert by_key(left) == by_key(heap.walk()), step
            assert len(heap) >= len(left), step
            if is_exact:
                assert len(left) == heap.live_count, step
        drained = []
        while len(heap):
            length = len(heap)
            drained += heap.drain(3)
            assert length - min(3, length) == len(heap)
        assert by_key(left) == by_key(drained)
        assert [] == heap.drain(3)


@pytest.mark.parametrize("sweep_count_max", [0, 4096])
@pytest.mark.parametrize("who", ["the least", "the greatest", "the oldest", "the newest", "anybody"])
@pytest.mark.parametrize("pop_part", [0.0, 0.3, 0.8])
def test_at_most_half_are_stale(who, sweep_count_max, pop_part):
    """At most half of the entries are stale, also while others are taken."""
    rng = random.Random(0)
    entries = [Entry(rng.random(), number) for number in range(3000)]
    heap = make(entries, sweep_count_max=sweep_count_max)
    going = {"the least": by_key(entries), "the greatest": by_key(entries)[::-1], "the newest": entries[::-1]}.get(
        who, entries[:]
    )
    if who == "anybody":
        rng.shuffle(going)
    popped = set()
    for entry in going:
        if entry in popped:
            continue
        while rng.random() < pop_part and (first := heap.first()) is not None:
            popped.add(heap.pop())
            assert first in popped
        if entry not in popped:
            entry.is_stale = True
            heap.note_stale()
        assert heap.stale_count <= len(heap) / 2 + 64
    assert (None, 0) == (heap.first(), len(heap))


@pytest.mark.parametrize("sweep_count_max", [0, 64])
def test_a_call_compares_few_entries_of_many(sweep_count_max):
    """A large heap is swept in steps, so that no call compares many entries."""
    rng = random.Random(1)
    entries = [Entry(rng.random(), number) for number in range(20_000)]
    heap = make(entries, sweep_count_max=sweep_count_max)
    most = total = 0
    for number, entry in enumerate(rng.sample(entries, 20_000)):
        Entry.compared = 0
        entry.is_stale = True
        heap.note_stale()
        if number % 4 == 0:
            fresh = Entry(rng.random(), -number)
            heap.push(fresh)
            fresh.is_stale = True
            heap.note_stale()
        most, total = max(most, Entry.compared), total + Entry.compared
    assert most <= 2 * (sweep_count_max + lazy_heap._STEP_COUNT * 15)
    assert total < 20_000 * 30


def test_a_small_heap_is_swept_at_once():
    """A small heap is swept at once, when the stale entries are too many."""
    entries = [Entry(number, 0) for number in range(1000)]
    heap = make(entries)
    sizes = set()
    for entry in entries:
        entry.is_stale = True
        heap.note_stale()
        sizes.add(len(heap))
    assert max(sizes) == 1000
    assert len(heap) <= 64
    assert len(sizes) < 20


def test_nothing_is_swept_while_somebody_walks():
    """No sweep runs during an iteration, which returns each entry once; afterwards the sweep is made up for."""
    entries = [Entry(number, 0) for number in range(100)]
    heap = make(entries, sweep_count_max=0)
    met = []
    walks = [heap.walk(), heap.walk()]
    next(walks[1])
    for entry in walks[0]:
        met.append(entry)
        for each in entries[20:]:
            if not each.is_stale:
                each.is_stale = True
                heap.note_stale()
    assert entries[:20] == by_key(met)
    assert 100 == len(heap)
    walks[1].close()
    for each in entries[10:20]:
        each.is_stale = True
        heap.note_stale()
    assert len(heap) < 30
    assert entries[:10] == heap.least(100)


def test_clearing_forgets_a_sweep():
    """Clearing the heap forgets a sweep in progress."""
    entries = [Entry(number, 0) for number in range(100)]
    heap = make(entries, sweep_count_max=0)
    for entry in entries[:80]:
        entry.is_stale = True
        heap.note_stale()
    heap.clear()
    assert (0, 0, None, []) == (len(heap), heap.stale_count, heap.first(), list(heap.walk()))
    heap.push(entries[-1])
    assert entries[-1] is heap.first()


@pytest.mark.parametrize("seed", range(5))
def test_comparing_may_come_back_to_a_guarded_heap(seed):
    """A comparison may change a guarded heap at any moment: nothing is lost, and the least entry comes first."""
    rng = random.Random(seed)
    left: set = set()
    added_count = 0

    class Reentrant(Entry):
        is_coming_back = False

        def __lt__(self, other):
            nonlocal added_count
            if not Reentrant.is_coming_back and rng.random() < 0.1 and added_count < 3000:
                Reentrant.is_coming_back = True
                added_count += 1
                push(Reentrant(rng.random(), added_count))
                if rng.random() < 0.6:
                    forget(rng.choice(list(left)))
                found = heap.first()
                assert found is None or found in left
                assert left == set(heap.walk())
                Reentrant.is_coming_back = False
            return super().__lt__(other)

    def push(entry):
        left.add(entry)
        heap.push(entry)

    def forget(entry):
        left.discard(entry)
        entry.is_stale = True
        heap.note_stale()

    heap = make(sweep_count_max=8, form=GuardedHeap)
    for number in range(200):
        push(Reentrant(rng.random(), -number))
        if number % 3 == 0:
            forget(rng.choice(list(left)))
    while (first := heap.first()) is not None:
        assert first.key == min(entry.key for entry in left)
        left.discard(first)
        assert first is heap.pop()
    assert set() == left
    assert added_count > 100


def test_what_a_comparison_adds_is_put_in_once():
    """An entry added by a comparison is put in once, also while the heap is swept whole."""
    heap: GuardedHeap = GuardedHeap(lambda entry: entry.value in gone)
    gone: set[int] = set()

    class Adding:
        is_armed = False

        def __init__(self, value: int) -> None:
            self.value = value

        def __lt__(self, other) -> bool:
            if Adding.is_armed:
                Adding.is_armed = False
                heap.push(Adding(100))
            return self.value < other.value

    for value in range(64):
        heap.push(Adding(value))
    gone.update(range(6, 64))
    heap.stale_count = len(gone)  # as if noted during a comparison
    Adding.is_armed = True
    assert 0 == heap.first().value
    taken = []
    while heap.first() is not None:
        taken.append(heap.pop().value)
    assert [*range(6), 100] == taken


@given(st.lists(st.integers(0, 50), max_size=60), st.sets(st.integers(0, 59)), st.integers(0, 20))
def test_leading_entries_are_the_least_in_order(values, stale, count):
    """Leading entries are the least that are not stale, in order, and stay in the heap."""
    entries = [Entry(value, number) for number, value in enumerate(values)]
    heap = make(entries)
    for number, entry in enumerate(entries):
        entry.is_stale = number in stale
    expected = by_key([entry for entry in entries if not entry.is_stale])[:count]
    assert expected == heap.leading(count)
    assert len(entries) == len(heap)


def test_leading_entries_come_from_both_heaps_of_a_sweep():
    """During a sweep leading entries come from both of its heaps."""
    entries = [Entry(value, value) for value in range(1000)]
    heap = make(entries, sweep_count_max=10)
    for entry in entries[1::2]:
        entry.is_stale = True
        heap.note_stale()
    assert list(range(0, 40, 2)) == [entry.key[0] for entry in heap.leading(20)]
