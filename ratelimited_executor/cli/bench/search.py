"""The trials of a search for the highest rate: of one process, or of several that share each trial.

Participants that share a trial come to the same next rate, as ``decide`` is a pure function of the trials. So they need
the same trials and the same beginnings, and nothing else. Both come from one of them, the leader, who has rank 0: after
each trial it waits for the figures of all, merges and judges them, and publishes the outcome with the beginning of the
next trial. The others follow. The first beginning is that of the meeting.

A participant that dies or is interrupted ends the search for all: without its share a trial would be of another rate.
The leader publishes the reason as the outcome. If the leader itself is silent, or Redis is away for longer than a
participant may be silent, each ends the search by itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ratelimited_executor.cli.bench.contact import ExchangeError
from ratelimited_executor.load.figures import Measurement
from ratelimited_executor.load.merging import whole_of
from ratelimited_executor.load.search import Trial
from ratelimited_executor.load.verdicts import judge_trial, why_tool_was_limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ratelimited_executor.cli.bench.contact import Contact, Exchanged, Meeting
    from ratelimited_executor.cli.stopping import Stop
    from ratelimited_executor.load.arrivals import Schedule
    from ratelimited_executor.load.figures import Figures
    from ratelimited_executor.load.search import Found
    from ratelimited_executor.load.verdicts import Thresholds

__all__ = ["Played", "SearchEndedError", "SharedTrials", "judged", "search_json"]


class SearchEndedError(Exception):
    """The search cannot go on; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The outcome of a trial.

    Attributes:
        trial: the trial as ``decide`` needs it.
        broken: a sentence for each broken threshold.
        measurement: the figures, of all participants.
    """

    trial: Trial
    broken: tuple[str, ...]
    measurement: Measurement

    def to_json(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {
            "trial": asdict(self.trial),
            "broken": list(self.broken),
            "measurement": self.measurement.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Played:
        """Return the outcome that :meth:`to_json` was called on.

        Raises:
            ValueError: if the value is malformed.
        """
        try:
            return cls(
                trial=Trial(**value["trial"]),
                broken=tuple(map(str, value["broken"])),
                measurement=Measurement.from_json(value["measurement"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or of another type: {error}") from error


def judged(
    rate: float, measurement: Measurement, thresholds: Thresholds, *, shares: Sequence[tuple[str, Figures]] = ()
) -> Played:
    """Return the outcome of a trial.

    Args:
        rate: the tried rate.
        measurement: the figures, of all participants.
        thresholds: the thresholds, at least one.
        shares: the name and the figures of each participant, whose names may be equal. If the load generator was the
            bottleneck at one of them, it was the bottleneck.
    """
    verdict = judge_trial(measurement.figures, thresholds)
    limits = [(f"{name}: ", why_tool_was_limit(figures)) for name, figures in shares]
    limits.append(("", why_tool_was_limit(measurement.figures)))
    limit = next((name + reason for name, reason in limits if reason is not None), None)
    trial = Trial(
        rate=rate,
        has_held=verdict.is_kept,
        is_clear=verdict.is_clear,
        # The tool only makes a rate look worse, so a rate that holds is not limited by it.
        tool_limit=None if verdict.is_kept else limit,
    )
    return Played(trial=trial, broken=verdict.broken, measurement=measurement)


def search_json(found: Found, played: Sequence[Played]) -> dict[str, Any]:
    """Return the result and the trials of a search as values for JSON."""
    return {
        "held": found.held,
        "failed": found.failed,
        "is_sure": found.is_sure,
        "above": found.above,
        "below": found.below,
        "trials": [
            {
                "rate": each.trial.rate,
                "held": each.trial.has_held,
                "clear": each.trial.is_clear,
                "broken": list(each.broken),
                "tool_limit": each.trial.tool_limit,
            }
            for each in played
        ],
    }


class SharedTrials:
    """Plays the share of one participant in each trial.

    Args:
        contact: the contact with the others, which is in touch.
        meeting: the agreement.
        thresholds: the thresholds of a trial, at least one.
        measurement_of: returns the measurement with figures.
        stop: ends the search.
    """

    def __init__(
        self,
        contact: Contact,
        meeting: Meeting,
        *,
        thresholds: Thresholds,
        measurement_of: Callable[[Figures], Measurement],
        stop: Stop,
    ) -> None:
        self._contact, self._meeting, self._stop = contact, meeting, stop
        self._thresholds, self._measurement_of = thresholds, measurement_of
        self._begin = meeting.begin

    async def play(
        self, number: int, rate: float, schedule: Schedule, send_share: Callable[[float], Awaitable[Figures]]
    ) -> Played | None:
        """Play a trial, and return its outcome, which is the same for all participants.

        Args:
            number: 0, 1, 2, ...
            rate: the rate of all together.
            schedule: the share of this participant.
            send_share: sends the share from a beginning, on the clock of the meeting; returns its figures.

        Returns:
            None if this participant was interrupted; the others are then notified.

        Raises:
            SearchEndedError: if another was interrupted, is missing, or cannot be reached.
        """
        figures = await send_share(self._begin)
        own = self._measurement_of(figures).to_json()
        try:
            if self._meeting.rank == 0:
                outcome = await self._lead(number, rate, schedule, own)
            else:
                outcome = await self._follow(number, own)
            if outcome is None:
                return None
            if outcome["reason"] is not None:
                raise SearchEndedError(outcome["reason"])
            self._begin = outcome["begin"]
            return Played.from_json(outcome["played"])
        except ExchangeError as error:
            raise SearchEndedError(f"the participants could not exchange their figures: {error}") from error
        except ValueError as error:
            raise SearchEndedError(f"the figures of a participant cannot be read: {error}") from error

    async def _follow(self, number: int, own: dict[str, Any]) -> dict[str, Any] | None:
        outcome = await self._contact.follow(number, own, is_stopped=self._is_stopped)
        if outcome is None:
            await self._contact.leave()
        return outcome

    async def _lead(self, number: int, rate: float, schedule: Schedule, own: dict[str, Any]) -> dict[str, Any] | None:
        try:
            outcome = await self._outcome(number, rate, schedule, own)
        except (ExchangeError, ValueError) as error:
            await self._publish_end(number, str(error))
            raise
        if self._is_stopped():
            await self._publish_end(number, f"{self._meeting.names[0]} was interrupted")
            return None
        return await self._contact.publish(number, outcome, is_stopped=self._is_stopped)

    async def _publish_end(self, number: int, reason: str) -> None:
        with suppress(ExchangeError):
            await self._contact.publish(number, _ended(reason), is_stopped=lambda: True)

    async def _outcome(self, number: int, rate: float, schedule: Schedule, own: dict[str, Any]) -> dict[str, Any]:
        """Wait for the figures of all; return the outcome of the trial."""
        exchanged = await self._contact.exchange(own, trial=number, is_stopped=self._is_stopped)
        reason = self._why_over(exchanged)
        if reason is not None:
            return _ended(reason)
        # In a thread: it takes a millisecond or two for each participant and each second of the trial, and the leader
        # would count as missing if it gave no sign of life meanwhile.
        return await asyncio.to_thread(self._merged, rate, schedule, exchanged)

    def _merged(self, rate: float, schedule: Schedule, exchanged: Exchanged) -> dict[str, Any]:
        """Return the outcome of a trial from the figures of all."""
        names = self._meeting.names
        shares = {rank: Measurement.from_json(each).figures for rank, each in exchanged.results.items()}
        named = [(names[rank], figures) for rank, figures in shares.items()]
        whole = whole_of(names, shares, {}, schedule)
        measurement = replace(self._measurement_of(whole.figures), participants=whole.participants)
        played = judged(rate, measurement, self._thresholds, shares=named)
        return {"reason": None, "played": played.to_json()}

    def _why_over(self, exchanged: Exchanged) -> str | None:
        """Return why the search cannot go on; None if it can."""
        for rank, name in enumerate(self._meeting.names):
            if rank in exchanged.left:
                return f"{name} was interrupted"
            if rank not in exchanged.results:
                return f"{name} is missing"
        return None

    def _is_stopped(self) -> bool:
        return self._stop.is_ordered


def _ended(reason: str) -> dict[str, Any]:
    return {"reason": reason, "played": None}
