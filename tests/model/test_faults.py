"""The library keeps its promises under the search for faults: cancellations, crashes, lost replies, other orders."""

import os

import pytest

from ratelimited_executor.testing import search_faults

from .faults import SCENARIOS

SEEDS = int(os.environ.get("FAULT_SEEDS", "40"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_promise_holds_through_faults(scenario) -> None:
    """No seed breaks a promise of the library, and faults happened; ``FAULT_SEEDS=5000`` tries as many."""
    report = search_faults(scenario, seeds=SEEDS)

    assert not report.injected or sum(sum(counts.values()) for counts in report.injected.values()) > 0
    assert report.postponed_count > 0
