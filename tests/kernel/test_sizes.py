"""The thresholds of the kernel, in the body that is in use."""

from ratelimited_executor._kernel import sizes
from ratelimited_executor._kernel.due_order import DueOrder


def test_an_open_bucket_is_cut_only_when_it_is_too_long_for_a_list():
    """Up to OPEN_COUNT_MAX positions stay one sorted list; one more needs preparation before the next reading."""
    count = sizes.OPEN_COUNT_MAX
    assert DueOrder([5.5] * count, 5.0, 6.0).prepare()
    assert not DueOrder([5.5] * (count + 1), 5.0, 6.0).prepare()


def test_as_many_are_taken_at_a_stretch_as_it_says():
    """Without a limit, a reading takes at most RUN_COUNT positions."""
    order = DueOrder([5.5] * (sizes.RUN_COUNT + 1), 5.0, 6.0)
    while not order.prepare():
        pass
    while order.head() > 5.5 or not order.prepare():
        pass
    taken = order.take(5.5)
    assert list(range(len(taken))) == list(taken)
    assert 0 < len(taken) <= sizes.RUN_COUNT
    assert sizes.RUN_COUNT + 1 - len(taken) == order.left_count


def test_few_become_many_in_one_order():
    """The thresholds rise from a sorted list, to a run, to a bucket that is ordered ahead of its time."""
    assert sizes.SPARE_COUNT < sizes.OPEN_COUNT_MAX < sizes.SLOT_COUNT < sizes.RUN_COUNT < sizes.LARGE_COUNT
