"""The search for the highest rate, against models of services, without time or I/O."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.load.search import Found, SearchRange, Trial, decide, ended_early

WIDE = SearchRange(first=100, low=0.1, high=1e6)


def search(service, where: SearchRange = WIDE) -> tuple[Found, list[float]]:
    """Play a search, and return its end and the rates of its trials; ``service`` makes the trial of a rate."""
    trials: list[Trial] = []
    while not isinstance(decision := decide(trials, where), Found):
        trials.append(service(decision))
    return decision, [trial.rate for trial in trials]


def up_to(limit: float):
    return lambda rate: Trial(rate=rate, has_held=rate <= limit)


def test_search_doubles_then_halves_the_gap_then_votes() -> None:
    """The search of a service that holds 730 a second makes exactly these trials."""
    found, rates = search(up_to(730))

    assert [100, 200, 400, 800, 566, 673, 734, 703, 703, 703] == rates
    assert Found(held=703, held_votes=(3, 3), failed=734, failed_votes=(1, 1), above=703, below=734) == found
    assert found.is_sure


@given(st.floats(0.2, 9e5))
def test_search_comes_within_five_percent_of_any_limit(limit: float) -> None:
    """From any limit the search comes within five percent, however far off it begins."""
    found, _ = search(up_to(limit))

    assert found.held <= limit < found.failed
    assert found.failed / found.held <= 1.06  # rates have three digits
    assert (found.held, found.failed) == (found.above, found.below)
    assert found.is_sure


def test_search_stops_at_the_ends_of_its_range() -> None:
    """If every rate held, no failed rate is reported; if none held, no held one."""
    where = SearchRange(first=10, low=10, high=100)
    all_held, _ = search(up_to(1e9), where)
    none_held, _ = search(up_to(1), where)

    assert (100, None, (3, 3)) == (all_held.held, all_held.failed, all_held.held_votes)
    assert (None, 10) == (none_held.held, none_held.failed)
    assert not none_held.is_sure


def test_rate_that_held_by_luck_loses_its_place() -> None:
    """A rate that held once but fails two later votes counts as failed, and the search continues below it."""
    luck = iter([True, False, False])

    def service(rate: float) -> Trial:
        return Trial(rate=rate, has_held=next(luck) if rate == 703 else rate <= 690)

    found, rates = search(service)

    assert 3 == rates.count(703)
    assert found.held < 703 == found.failed
    assert (2, 3) == found.failed_votes
    assert not found.is_sure


def test_range_of_the_limit_is_wider_if_trials_disagree() -> None:
    """A trial that failed at a lower rate, and one that held at a higher one, move its ends, although both were outvoted."""
    outcomes = [
        (100, True),
        (200, True),
        (400, False),
        (283, False),
        (283, True),
        (283, True),
        (336, False),
        (308, True),
    ]
    trials = [Trial(rate=rate, has_held=has_held) for rate, has_held in outcomes]
    found = ended_early(trials, "enough")
    noisy = ended_early([*trials, Trial(rate=400, has_held=True), Trial(rate=800, has_held=False)], "enough")

    assert (308, 336, 200, 336) == (found.held, found.failed, found.above, found.below)
    assert (200, 800) == (noisy.above, noisy.below)


def test_trial_that_the_tool_spoiled_says_nothing_of_the_range() -> None:
    """Only trials with a vote are counted, and without one there is no range."""
    spoiled = Trial(rate=50, has_held=False, tool_limit="it was late")
    found = ended_early([Trial(rate=100, has_held=True), spoiled], "enough")

    assert (100, None) == (found.above, found.below)
    assert (None, None) == ((nothing := ended_early([spoiled], "enough")).above, nothing.below)


def test_unclear_trial_is_made_again_and_a_tie_once_more() -> None:
    """An unclear trial is repeated before anything follows from it, and a tie is broken by one more."""
    outcomes = iter([(False, False), (True, False), (True, False)])

    def service(rate: float) -> Trial:
        has_held, is_clear = next(outcomes) if rate == 100 else (rate < 150, True)
        return Trial(rate=rate, has_held=has_held, is_clear=is_clear)

    _, rates = search(service)

    assert [100, 100, 100, 200] == rates[:4]


def test_search_ends_where_the_tool_is_the_limit() -> None:
    """When the tool is the limit twice, the search ends with the reason, unsure, as the service could do more."""

    def service(rate: float) -> Trial:
        return Trial(rate=rate, has_held=rate <= 500, tool_limit="it was late" if rate > 500 else None)

    found, rates = search(service)

    assert [100, 200, 400, 800, 800] == rates
    assert (400, False) == (found.held, found.is_sure)
    assert "at 800/s the load generator was the bottleneck: it was late" == found.reason


def test_trial_that_the_tool_spoiled_once_has_no_vote() -> None:
    """A trial that the tool spoiled is repeated, and the result is the same as without it."""
    spoiled = iter([True, False])

    def service(rate: float) -> Trial:
        is_spoiled = rate == 400 and next(spoiled)
        return Trial(
            rate=rate, has_held=rate <= 730 and not is_spoiled, tool_limit="it was late" if is_spoiled else None
        )

    found, rates = search(service)

    assert [100, 200, 400, 400, 800, 566] == rates[:6]
    assert (703, (3, 3)) == (found.held, found.held_votes)


@pytest.mark.parametrize("seed", range(50))
def test_search_of_a_noisy_service_ends(seed: int) -> None:
    """The search ends within 60 trials whatever they say, and any rate held is not far from the limit."""
    draw = random.Random(seed)

    def service(rate: float) -> Trial:
        return Trial(
            rate=rate,
            has_held=rate * draw.uniform(0.9, 1.1) <= 1000,
            is_clear=draw.random() < 0.7,
        )

    found, rates = search(service)

    assert len(rates) <= 60
    assert found.held is None or 400 < found.held < 1150
