"""``bench --find-max --peers``: several participants make each trial together, and coordinate through a real Redis."""

from __future__ import annotations

import re
import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from ratelimited_executor.cli.bench import search as search_of_several
from ratelimited_executor.cli.bench.contact import ExchangeError, Times
from ratelimited_executor.cli.bench.rendezvous import Rendezvous
from ratelimited_executor.cli.bench.search import Played, SearchEndedError, SharedTrials, judged
from ratelimited_executor.cli.stopping import Stop, StopReason
from ratelimited_executor.load.arrivals import Phase, Schedule
from ratelimited_executor.load.figures import Figures
from ratelimited_executor.load.merging import Whole, whole_of
from ratelimited_executor.load.recording import LoadOutcome, LoadRecorder
from ratelimited_executor.load.search import Found, SearchRange, Trial, decide
from ratelimited_executor.load.verdicts import Thresholds
from tests.cli.bench.service import served
from tests.cli.bench.test_peers import Participants, measurement, rendezvous, slack
from tests.helpers import until
from tests.load.models import measurement_of

pytestmark = pytest.mark.real_time("processes and Redis have no virtual time")

SWIFT = Times(
    join_timeout=60, poll_interval=0.02, lead_time=0.3, waiting_timeout=30, result_timeout=30, heartbeat_interval=0.1
)
IMPATIENT = replace(SWIFT, result_timeout=2)  # for tests of one that is missing
WHERE = SearchRange(first=100, low=10, high=10_000)


class Participant:
    """One participant in the search of a service that holds 250 a second; its loads take no time.

    Attributes:
        rank: its rank.
        name: its name.
        trials: the outcomes of its trials.
        begins: the times at which its trials begin, on a clock that all share.
        slacks: by how much each of them may differ from those of others.
        ahead: the seconds between each call to send its share and the beginning.
        counts: the number of requests of each trial, of all participants.
        before_share: by trial, a function to call before its share is sent.
        stop: interrupts it.
        ending: its finding, or the reason why the search ended early; None if it was interrupted.
    """

    def __init__(self, url: str, expect: int, *, times: Times = SWIFT) -> None:
        self._rendezvous = Rendezvous(url, group="g", expect=expect, settings={}, clock=time.perf_counter, times=times)
        self._lateness: dict[int, float] = {}  # by the number of the trial
        self._met = asyncio.Event()
        self.rank, self.name = 0, ""
        self.trials: list[Trial] = []
        self.begins: list[float] = []
        self.slacks: list[float] = []
        self.ahead: list[float] = []
        self.counts: list[int] = []
        self.stop = Stop()
        self.before_share: dict[int, Callable[[], object]] = {}
        self.ending: Found | str | None = None

    async def search(self) -> None:
        try:
            meeting = await self._rendezvous.meet(lambda count: None)
            self.rank, self.name = meeting.rank, meeting.names[meeting.rank]
            self._met.set()
            contact = self._rendezvous.contact(meeting, seconds=1)
            async with contact.in_touch():
                shared = SharedTrials(
                    contact,
                    meeting,
                    thresholds=Thresholds(errors=0.0),
                    measurement_of=measurement_of,
                    stop=self.stop,
                )
                self.ending = await self._search(shared, len(meeting.names))
        finally:
            await self._rendezvous.close()

    async def _search(self, shared: SharedTrials, participants: int) -> Found | str | None:
        while not isinstance(rate := decide(self.trials, WHERE), Found):
            number = len(self.trials)
            phase = Phase(first=rate, last=rate, seconds=1)
            schedule = Schedule(classes={"": [phase]}, rank=self.rank, participants=participants)

            async def send_share(begin: float, number=number, schedule=schedule) -> Figures:
                self.begins.append(begin)
                self.slacks.append(slack(self._rendezvous))
                self.ahead.append(begin - time.perf_counter())
                if number in self.before_share:
                    self.before_share[number]()
                return self._figures(schedule, self._lateness.get(number, 0.0))

            try:
                played = await shared.play(number, rate, schedule, send_share)
            except SearchEndedError as error:
                return str(error)
            if played is None:
                return None
            self.trials.append(played.trial)
            self.counts.append(played.measurement.figures.count)
        return rate

    @staticmethod
    def _figures(schedule: Schedule, lateness: float) -> Figures:
        recorder = LoadRecorder(schedule)
        has_failed = schedule.phases[0].first > 250
        for arrival in schedule.arrivals():
            error = "busy" if has_failed and arrival.number % 2 else None
            due = arrival.due
            recorder.add(arrival, due, due + 0.1 + lateness, LoadOutcome(error), lateness)
        return recorder.figures(seconds=1.0, cpu_share=0.1, full_seconds=0.0)


class KilledError(Exception):
    """Ends a participant without a message to the others."""


def die() -> None:
    raise KilledError


class Search:
    """Participants that search in one loop, by rank; entering lets them meet, and leaving cancels them."""

    def __init__(self, url: str, count: int = 3, **more) -> None:
        self.participants = [Participant(url, count, **more) for _ in range(count)]
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Search:
        tasks = [asyncio.ensure_future(each.search()) for each in self.participants]
        met = asyncio.gather(*(each._met.wait() for each in self.participants))
        await asyncio.wait({met, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        assert met.done(), [task for task in tasks if task.done()]
        self.tasks = {each.rank: task for each, task in zip(self.participants, tasks, strict=True)}
        self.participants.sort(key=lambda each: each.rank)
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def endings(self, *ranks: int) -> list[Found | str | None]:
        """Wait for some participants, and return their endings."""
        await asyncio.gather(*(self.tasks[rank] for rank in ranks))
        return [self.participants[rank].ending for rank in ranks]


async def test_participants_make_the_same_trials_and_find_the_same(redis_server) -> None:
    """Each trial has the requests of all participants, and begins for all at the same moment, in the future."""
    async with Search(redis_server.url) as search:
        endings = await search.endings(0, 1, 2)
    first, *others = search.participants

    assert [249, 260] == [endings[0].held, endings[0].failed]
    assert endings[0].is_sure
    assert [endings[0]] * 2 == endings[1:]
    assert [first.trials] * 2 == [each.trials for each in others]
    assert [round(trial.rate) for trial in first.trials] == first.counts == others[0].counts
    for each in others:
        allowed = map(max, first.slacks, each.slacks)
        assert all(abs(a - b) < most for a, b, most in zip(first.begins, each.begins, allowed, strict=True))
    # In the future, unless a busy machine holds this process up for longer.
    assert all(ahead > -30 for each in search.participants for ahead in each.ahead[1:])


@pytest.mark.parametrize("late", [0, 1])
async def test_tool_that_is_the_limit_in_one_place_spoils_the_trial_for_all(redis_server, late) -> None:
    """A trial in which one participant was late has no vote, and names that participant to all; all have the same name."""
    async with Search(redis_server.url) as search:
        search.participants[late]._lateness = {2: 0.05}
        await search.endings(0, 1, 2)
    first, second, third = search.participants

    assert first.trials == second.trials == third.trials
    assert [100, 200, 400, 400] == [trial.rate for trial in first.trials[:4]]
    spoiled = first.trials[2]
    assert not spoiled.has_held
    assert spoiled.tool_limit.startswith(f"{search.participants[late].name}: it started requests late itself")
    assert [2] == [number for number, trial in enumerate(first.trials) if trial.tool_limit is not None]


async def test_leader_gives_signs_of_life_while_it_merges(redis_server, monkeypatch) -> None:
    """As the figures of many participants in a long trial take it longer than one may be silent."""
    loop, signs = asyncio.get_running_loop(), []

    def whole_of_while_the_loop_runs(*arguments: Any) -> Whole:
        is_alive = threading.Event()
        loop.call_soon_threadsafe(is_alive.set)
        signs.append(is_alive.wait(5))
        return whole_of(*arguments)

    monkeypatch.setattr(search_of_several, "whole_of", whole_of_while_the_loop_runs)
    async with Search(redis_server.url, 2) as search:
        first, second = await search.endings(0, 1)

    assert first == second
    assert {True} == set(signs)


@pytest.mark.parametrize("rank", [0, 2])
async def test_participant_that_dies_ends_the_search_for_all(redis_server, rank) -> None:
    """Whether the dead one led or followed, the others end with its name and keep the trials made until then."""
    async with Search(redis_server.url, times=IMPATIENT) as search:
        search.participants[rank].before_share[2] = die
        others = [each for each in range(3) if each != rank]
        endings = await search.endings(*others)

    assert all(f"{search.participants[rank].name} is missing" in ending for ending in endings)
    assert [[100, 200]] * 2 == [[trial.rate for trial in search.participants[each].trials] for each in others]


@pytest.mark.parametrize("rank", [0, 2])
async def test_participant_that_is_interrupted_ends_the_search_for_all(redis_server, rank) -> None:
    """The others end at once, and not only after the time for which a participant may be silent."""
    async with Search(redis_server.url) as search:
        stopped = search.participants[rank]
        stopped.before_share[2] = lambda: stopped.stop.order(StopReason.SIGNAL)
        others = [each for each in range(3) if each != rank]
        endings = await search.endings(*others)
        await search.endings(rank)

    assert [f"{stopped.name} was interrupted"] * 2 == endings
    assert stopped.ending is None
    assert [2, 2, 2] == [len(each.trials) for each in search.participants]


async def test_search_survives_a_restart_of_redis(redis_server) -> None:
    """Figures and outcomes that a restart of Redis has lost are given again."""
    async with Search(redis_server.url) as search:
        for number in range(1, 6):
            search.participants[number % 3].before_share[number] = redis_server.flush
        endings = await search.endings(0, 1, 2)

    assert [249.0] * 3 == [each.held for each in endings]


async def test_redis_that_dies_ends_the_search_for_each(redis_server) -> None:
    """Each ends after the time for which a participant may be silent, with the reason."""
    async with Search(redis_server.url, 2, times=IMPATIENT) as search:
        search.participants[1].before_share[1] = redis_server.kill
        endings = await search.endings(0, 1)

    assert all(each.startswith("the participants could not exchange their figures: ") for each in endings)


async def test_outcome_is_published_once_and_lost_ones_again(redis_server) -> None:
    """The first outcome counts, even for the one that published another later; a heartbeat restores a lost one."""
    places = [rendezvous(redis_server.url, times=IMPATIENT) for _ in range(2)]
    meetings = await asyncio.gather(*(each.meet(lambda count: None) for each in places))
    pairs = sorted(zip(places, meetings, strict=True), key=lambda pair: pair[1].rank)
    leader, follower = (each.contact(meeting, seconds=1) for each, meeting in pairs)
    allowed = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(leader.in_touch())
        first = await leader.publish(0, {"is": "first"}, is_stopped=lambda: False)
        allowed.append(slack(*places))
        second = await leader.publish(0, {"is": "second"}, is_stopped=lambda: False)
        redis_server.flush()
        read = await follower.follow(0, 5, is_stopped=lambda: False)
        allowed.append(slack(*places))
        assert await follower.follow(1, 5, is_stopped=lambda: True) is None
    silent = follower.follow(1, 5, is_stopped=lambda: False)
    with pytest.raises(ExchangeError, match="is missing"):
        await silent
    for each in places:
        await each.close()

    assert ("first", "first", "first") == (first["is"], second["is"], read["is"])
    begins = [each["begin"] for each in (first, second, read)]
    assert max(begins) - min(begins) < max(allowed)


def test_outcome_survives_json() -> None:
    """An outcome read from its JSON is the same, and other JSON is refused."""
    schedule = Schedule(classes={"": [Phase(first=100, last=100, seconds=1)]})
    played = judged(100, measurement_of(Participant._figures(schedule, 0.0)), Thresholds(p99=0.05))
    text = json.dumps(played.to_json())

    assert json.loads(text) == Played.from_json(json.loads(text)).to_json()
    assert played.trial == Played.from_json(json.loads(text)).trial
    for wrong in ({}, [], {"trial": {"rate": 5}, "broken": [], "measurement": {}}):
        with pytest.raises(ValueError, match="another type"):
            Played.from_json(wrong)


# Processes.


SEARCH = ["--rate", "20..40", "--find-max", "--errors", "0", "--every", "1s"]


def test_processes_find_the_highest_rate_together(place, redis_server) -> None:
    """Both print the same trials and the same end, and write the same measurement, with a row for each."""
    with served() as service:
        arguments = [f"{service.url}/echo/{{n}}", *SEARCH, "--group", "search", "--quiet"]
        with Participants(place, redis_server.url, *arguments) as participants:
            endings = [participants.ended(index) for index in range(2)]
        count = len(service.seen)
    first, second = (measurement(place, index) for index in range(2))

    assert [0, 0] == [status for status, _, _ in endings], endings
    assert first["search"] == second["search"]
    assert first["figures"] == second["figures"]
    assert (40, None, 40) == (first["search"]["held"], first["search"]["failed"], first["figures"]["count"])
    assert [20, 20] == [row["count"] for row in first["participants"]]
    assert sum(trial["rate"] for trial in first["search"]["trials"]) == count
    for _, out, _ in endings:
        assert "The highest rate held is 40/s, in 3 of 3 trials; it was the highest that was tried." in out


def test_interrupt_of_one_process_ends_the_search_of_the_other(place, redis_server) -> None:
    """The interrupted one exits with 130, and the other one with 1 and the reason."""
    with served() as service:
        arguments = [f"{service.url}/echo/{{n}}", *SEARCH, "--group", "interrupted"]
        with Participants(place, redis_server.url, *arguments) as participants:
            until(lambda: len(service.seen) > 25)
            participants.processes[0].send_signal(signal.SIGINT)
            endings = [participants.ended(index) for index in range(2)]

    assert [130, 1] == [status for status, _, _ in endings], endings
    assert re.search("Interrupted before the end of the first trial|it was interrupted", endings[0][1])
    assert "The search ended early: " in endings[1][1] and "was interrupted." in endings[1][1]
