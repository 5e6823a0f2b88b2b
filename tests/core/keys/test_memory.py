"""The memory of keys without work: what is kept, and when it is forgotten."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.keys.memory import KeyMemory

from ...helpers import examples

NS = 1_000_000_000


@pytest.mark.parametrize("numbers", [(), (0,), (1, -2, 3), (1 << 63, 5)])
def test_numbers_of_any_size_return_as_they_were(numbers):
    """The numbers of a key return as they were, including those of more than 64 bits."""
    memory = KeyMemory()
    assert None is memory.pop("a")
    memory.put("a", 5 * NS, numbers)
    assert (1, True, ["a"]) == (len(memory), "a" in memory, [*memory])
    assert [*numbers] == [*memory.pop("a")]
    assert (0, False) == (len(memory), "a" in memory)


def test_a_key_is_forgotten_in_its_second_and_no_earlier():
    """A key is forgotten in the second in which its time comes, a few keys at a time; a key without a time never."""
    memory = KeyMemory()
    for number in range(10):
        memory.put(number, 3 * NS + 1, (number,))
    memory.put("ever", None, ())
    assert 4 * NS == memory.next_time()
    assert (0, 11) == (memory.forget(100, 4 * NS - 1), len(memory))
    assert (4, 7) == (memory.forget(4, 4 * NS), len(memory))
    assert (6, 1) == (memory.forget(100, 4 * NS), len(memory))
    assert (0, 1) == (memory.forget(100, 1 << 61), len(memory))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 6 * NS), st.integers(0, NS)), max_size=40)
)
@examples(120)
def test_memory_keeps_what_is_not_due_and_one_entry_a_key(steps):
    """Whatever comes and goes, a key stays until its time, leaves within a second of it, and has one entry or two."""
    memory, kept, now = KeyMemory(), {}, 0
    for key, is_leaving, until, step in steps:
        now += step
        assert 1000 > memory.forget(1000, now)
        assert {each for each, end in kept.items() if end > now} <= set(memory)
        assert {each for each, end in kept.items() if end > now - NS} >= set(memory)
        kept = {each: kept[each] for each in memory}
        if is_leaving:
            assert (memory.pop(key) is None) is (kept.pop(key, None) is None)
        elif key not in kept:
            kept[key] = now + until
            memory.put(key, now + until, ())
    for _ in range(100):
        for key in memory:
            memory.pop(key)
            memory.put(key, now + 5 * NS, ())
    assert 3 >= len(memory)
    assert len(steps) + 3 > memory.forget(1000, now + 20 * NS)
    assert (0, None) == (len(memory), memory.next_time())


def test_the_collector_visits_no_object_of_a_remembered_key():
    """A remembered key has no object that the garbage collector tracks."""
    memory = KeyMemory()
    for number in range(1000):
        memory.put(f"key {number}", 5 * NS, (number, 1 << 40))
    gc.collect()
    assert not any(map(gc.is_tracked, memory._packed.values()))
