"""Search for the highest rate that a service holds: decide the next rate from the trials so far.

First the rate is doubled until it does not hold, or halved until it does. Then the gap between the highest rate that held
and the lowest that did not is halved, on a logarithmic scale, until it is small enough. A trial with an unclear result
is repeated, and the two rates at the end are tried until each has enough votes. So a rate that held once by luck is
outvoted, and the search continues below it. How sure the result is, the trials themselves say: the limit lies between the
rates up to which all of them held and from which on none did, which are further apart if trials disagree.

The decision is a pure function of the history; there is no other state.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Found", "SearchRange", "Trial", "decide", "ended_early"]

# The two rates at the end differ by at most this fraction: 500 held, 525 did not.
_RESOLUTION: Final = 0.05
# Votes required of the highest rate that held; the lowest that did not needs one clear vote, or two.
_VOTES: Final = 3
# Doubling from 1 a second to a million takes 20, halving a gap of 2 to 5 % takes 4; votes and repeats take the rest.
_TRIALS_MAX: Final = 60
# Trials of one rate that the tool may spoil before the search ends there: one may be a hiccup of the machine.
_LIMITED_TRIALS: Final = 2
_SIGNIFICANT_DIGITS: Final = 3  # of the rates that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRange:
    """The rates to search, a second, > 0.

    Attributes:
        first: the rate of the first trial.
        low: the lowest rate to try.
        high: the highest rate to try.
    """

    first: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial.

    Attributes:
        rate: the tried rate.
        has_held: True if every threshold was kept.
        is_clear: False if chance alone could have reversed the result.
        tool_limit: the reason why the tool, not the service, may have broken a threshold; None if it did not. A trial
            with such a reason has no vote.
    """

    rate: float
    has_held: bool
    is_clear: bool = True
    tool_limit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search.

    Attributes:
        held: the highest rate that held; None if none did.
        held_votes: (trials of ``held`` that held, all trials of it).
        failed: the lowest rate above ``held`` that did not hold; None if none was found.
        failed_votes: (trials of ``failed`` that did not hold, all trials of it).
        above: the highest rate up to which every trial held; None if the lowest did not. The limit is above it.
        below: the lowest rate from which on no trial held; None if the highest did. The limit is below it.
        reason: the reason for an early end; None if the search was completed.
    """

    held: float | None
    held_votes: tuple[int, int]
    failed: float | None
    failed_votes: tuple[int, int]
    above: float | None = None
    below: float | None = None
    reason: str | None = None

    @property
    def is_sure(self) -> bool:
        """True if the search was completed, and the trials of each of the two final rates agree."""
        votes = [votes for votes in (self.held_votes, self.failed_votes) if votes[1]]
        return self.reason is None and self.held is not None and all(won == total for won, total in votes)


def decide(trials: Sequence[Trial], where: SearchRange) -> float | Found:
    """Return the rate to try next, or the result of the search."""
    if not trials:
        return where.first
    held, failed = _bounds(trials)
    last = trials[-1]
    if last.tool_limit is not None:
        limited = sum(each.rate == last.rate and each.tool_limit is not None for each in trials)
        if limited < _LIMITED_TRIALS:
            return last.rate
        return _found(
            trials, held, failed, f"at {last.rate:g}/s the load generator was the bottleneck: {last.tool_limit}"
        )
    if len(trials) >= _TRIALS_MAX:
        return _found(trials, held, failed, f"{_TRIALS_MAX} trials gave no steady picture")
    if _is_open(trials, last.rate):
        return last.rate
    rate = _between(held, failed, where)
    if rate is None:
        rate = next((each for each in (held, failed) if each is not None and _lacks_votes(trials, each)), None)
    return _found(trials, held, failed, None) if rate is None else rate


def ended_early(trials: Sequence[Trial], reason: str) -> Found:
    """Return what a search has found that cannot go on, for a reason."""
    return _found(trials, *_bounds(trials), reason)


def _between(held: float | None, failed: float | None, where: SearchRange) -> float | None:
    """Return a rate that narrows the gap; None if it is small enough, or the range ends there."""
    if failed is None:
        assert held is not None  # every trial has held or failed
        return min(where.high, held * 2) if held < where.high else None
    if held is None:
        return max(where.low, failed / 2) if failed > where.low else None
    middle = _rounded(math.sqrt(held * failed))
    return middle if failed / held > 1 + _RESOLUTION and held < middle < failed else None


def _bounds(trials: Sequence[Trial]) -> tuple[float | None, float | None]:
    """Return the highest rate that held below the lowest that did not, and that one; None for a missing one."""
    has_held = {rate: 2 * sum(each.has_held for each in votes) > len(votes) for rate, votes in _votes(trials).items()}
    failed = min((rate for rate, is_held in has_held.items() if not is_held), default=None)
    below = [rate for rate, is_held in has_held.items() if is_held and (failed is None or rate < failed)]
    return max(below, default=None), failed


def _is_open(trials: Sequence[Trial], rate: float) -> bool:
    """Return True if a rate needs another trial before a decision: after one unclear trial, or a tie."""
    votes = _votes(trials)[rate]
    if len(votes) == 1:
        return not votes[0].is_clear
    return len(votes) == 2 and votes[0].has_held != votes[1].has_held


def _lacks_votes(trials: Sequence[Trial], rate: float) -> bool:
    votes = _votes(trials)[rate]
    if votes[0].has_held:
        return len(votes) < _VOTES
    return len(votes) < (1 if votes[0].is_clear else 2)


def _votes(trials: Sequence[Trial]) -> dict[float, list[Trial]]:
    votes: dict[float, list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.tool_limit is None:
            votes[trial.rate].append(trial)
    return votes


def _found(trials: Sequence[Trial], held: float | None, failed: float | None, reason: str | None) -> Found:
    votes = _votes(trials)
    of_held = votes[held] if held is not None else []
    of_failed = votes[failed] if failed is not None else []
    return Found(
        held=held,
        held_votes=(sum(each.has_held for each in of_held), len(of_held)),
        failed=failed,
        failed_votes=(sum(not each.has_held for each in of_failed), len(of_failed)),
        above=_end_of_run(sorted(votes), lambda rate: all(each.has_held for each in votes[rate])),
        below=_end_of_run(sorted(votes, reverse=True), lambda rate: not any(each.has_held for each in votes[rate])),
        reason=reason,
    )


def _end_of_run(rates: Sequence[float], is_so: Callable[[float], bool]) -> float | None:
    """Return the last of the rates before the first for which something is not so; None if there is none."""
    return next(reversed(list(takewhile(is_so, rates))), None)


def _rounded(rate: float) -> float:
    return float(f"{rate:.{_SIGNIFICANT_DIGITS}g}")
