"""An account adds up the counts of an executor, and the time of its workers."""

import pytest

from ratelimited_executor.simulation.accounts import Account, Tally, window_of_evenness
from ratelimited_executor.simulation.meters import new_histogram


def test_workers_have_time_until_their_number_changes():
    """Four for ten seconds, then two for five."""
    account = Account()
    account.set_workers(4, 0.0)
    account.set_workers(4, 3.0)
    account.set_workers(2, 10.0)
    assert 50.0 == account.worker_seconds(15.0)
    assert 10.0 == account.after(15.0).worker_seconds(20.0)


def test_counts_of_a_warm_up_are_left_out():
    """What an account begins with is subtracted."""
    account = Account()
    account.add(Tally(enqueued=5, started=4, done=3), executing=1, depth=1, pending=1)
    later = account.after(60.0)
    later.add(Tally(enqueued=9, started=8, done=6, failed=1), executing=1, depth=3, pending=1)
    summary = later.sum_up(60.0, new_histogram(), 30.0)
    assert (4, 4, 3, 1) == (summary.enqueued, summary.started, summary.done, summary.failed)
    assert (3, 0.5) == (summary.queue_depth_most, summary.executing_mean)


@pytest.mark.parametrize(("step", "expected"), [(60.0, 600.0), (7.0, 602.0), (3600.0, 3600.0)])
def test_windows_are_whole_steps(step, expected):
    """At least ten minutes."""
    assert expected == window_of_evenness(step)
