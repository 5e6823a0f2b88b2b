"""The rendezvous of participants of one load, in Redis.

They agree on a beginning, and exchange their figures. Redis does not hand out requests. Each participant computes the
whole load, and sends every n-th request of it from a common beginning. So Redis is idle meanwhile and may even be down:
only the exchange at the end needs it again.

A waiting participant writes itself into a hash twice a second. One that finds the expected number there tries to
propose a beginning, two seconds ahead by the server's clock. One of them succeeds (``SET NX``), and writes the plan for
each member. Each member finds the plan on its next poll, even if that is after the beginning, and converts the server's
time to its own clock by the shortest round trip seen.

Meanwhile each participant leaves checkpoints, the figures of the time since the one before, in case it dies. At the end
it writes its figures under its rank, again if a restart of Redis has lost them, and waits until those of all others
have arrived, or until these have been silent for too long.

The trials of a search are several such loads after one meeting: one of the participants waits for the figures of a
trial, and publishes an outcome, with which the next beginning comes; the others wait for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._redis.client import client_of, refusal_of
from ratelimited_executor._redis.refusals import remedy_of
from ratelimited_executor.cli.escapes import visible
from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine

__all__ = ["ExchangeError", "Exchanged", "Meeting", "Rendezvous", "Times"]

_KEY_SECONDS: Final = 3600  # the lifetime of figures in Redis, longer than any exchange
_TIMEOUT_SECONDS: Final = 2.0  # for a connection, and for a reply
_CANCEL_SECONDS: Final = 0.1  # between two attempts to cancel a task
_PREFIX: Final = "rle"
_SAMPLES: Final = 5  # of the server's time before each trial: the clocks of machines drift apart
_CHECKPOINTS_MAX: Final = 100  # in a load: each has 5 to 100 kB, and at most a hundredth of a long load is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Timeouts and intervals, in seconds.

    Attributes:
        join_timeout: the time within which all participants must join.
        poll_interval: the time between two polls of Redis.
        lead_time: the time from the agreement to the beginning; a participant that does not poll meanwhile begins late.
        waiting_timeout: the silence after which a waiting participant counts as gone.
        result_timeout: the silence after which the figures of a participant that has begun are given up.
        heartbeat_interval: the time between two signs of life while the load is sent.
        checkpoint_interval: the shortest time between two checkpoints.
    """

    join_timeout: float = 300.0
    poll_interval: float = 0.5
    lead_time: float = 2.0
    waiting_timeout: float = 5.0
    result_timeout: float = 10.0
    heartbeat_interval: float = 1.0
    checkpoint_interval: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The agreement of the participants.

    Attributes:
        run: the unique name of the run.
        rank: the rank of this participant.
        names: the names of all participants, by rank.
        begin: the beginning of the load, on this participant's clock.
    """

    run: str
    rank: int
    names: list[str]
    begin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The results that have arrived from the participants.

    Attributes:
        results: the result of each participant, by rank.
        checkpoints: the checkpoints of each participant without a result, by rank; absent if none.
        heard: seconds after the beginning at which each participant gave its last sign of life, by rank; absent if
            none.
        left: the ranks of those that have said that they were interrupted.
    """

    results: dict[int, Any]
    checkpoints: dict[int, list[Any]]
    heard: dict[int, float]
    left: frozenset[int]


class ExchangeError(Exception):
    """The figures of the others are unavailable; the message says why."""


class Rendezvous:
    """Meets the others in Redis; a context manager that closes the connection.

    Args:
        url: the URL of the server.
        group: the name under which the participants meet.
        expect: the number of participants.
        settings: the settings that must be the same for all, as texts.
        clock: returns monotonic seconds.
        times: timeouts and intervals.

    Raises:
        CommandError: if the extra is missing or the URL cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        group: str,
        expect: int,
        settings: dict[str, str],
        clock: Callable[[], float],
        times: Times | None = None,
    ) -> None:
        reason = refusal_of(url)
        if reason is not None:
            raise CommandError(f"--peers cannot be used: {reason}")
        try:
            from redis.asyncio.retry import Retry  # noqa: PLC0415  # the extra `redis`
            from redis.backoff import NoBackoff  # noqa: PLC0415  # the same
            from redis.exceptions import RedisError  # noqa: PLC0415  # the same
        except ModuleNotFoundError as error:
            raise CommandError("--peers needs the package redis: pip install 'ratelimited-executor[redis]'") from error
        try:
            self._client, _ = client_of(
                url,
                user="--peers",
                decode_responses=True,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise CommandError(f"--peers cannot be used: {error}") from error
        self._errors = (RedisError, OSError)
        self._base = f"{{{_PREFIX}:{group}}}:bench"
        self._expect, self._settings, self._clock = expect, settings, clock
        self._times = times or Times()
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._id = f"{self._name}-{secrets.token_hex(4)}"
        self._offset = 0.0  # the server's time minus that of the clock
        self._round_trip = float("inf")  # of the sample that gave the offset
        self._published: tuple[str, int, str] | None = None  # key, number and text of the last outcome

    async def close(self) -> None:
        """Close the connection."""
        with suppress(*self._errors):
            await self._client.aclose()

    # Before the load.

    async def meet(self, tell: Callable[[int], None]) -> Meeting:
        """Wait until the expected number of participants have joined.

        Args:
            tell: called with the number of participants that have joined, whenever it changes.

        Raises:
            CommandError: if Redis cannot be used, another participant has different settings, or too few join.
        """
        try:
            return await self._meet(tell)
        except self._errors as error:
            raise CommandError(f"--peers: Redis cannot be used: {_reason_of(error)}") from error
        finally:
            with suppress(*self._errors):
                await self._client.hdel(f"{self._base}:waiting", self._id)
                await self._client.hdel(f"{self._base}:plans", self._id)

    async def _meet(self, tell: Callable[[int], None]) -> Meeting:
        joined = await self._server_time()
        until = joined + self._times.join_timeout
        told = 0
        while (meeting := await self._planned()) is None:
            now = await self._server_time()
            waiting = self._with_same_settings(await self._look(now, joined))
            if len(waiting) >= self._expect and await self._propose(now, waiting[: self._expect]):
                continue
            if len(waiting) != told:
                told = len(waiting)
                tell(told)
            if now > until:
                raise CommandError(
                    f"--peers: {told} of {self._expect} participants came within {self._times.join_timeout:g} s: start all "
                    "of them with the same --group and --expect"
                )
            await asyncio.sleep(self._times.poll_interval)
        return meeting

    async def _server_time(self) -> float:
        """Return the server's time, and update the clock offset if this is the best sample."""
        before = self._clock()
        seconds, microseconds = await self._client.time()
        round_trip = self._clock() - before
        now = int(seconds) + int(microseconds) / 1e6
        if round_trip < self._round_trip:
            self._round_trip, self._offset = round_trip, now - (before + round_trip / 2)
        return now

    async def _look(self, now: float, joined: float) -> dict[str, dict[str, Any]]:
        """Give a sign of life; return the waiting participants by id, in the order in which they joined."""
        key = f"{self._base}:waiting"
        own = {"joined": joined, "seen": now, "settings": self._settings, "name": self._name}
        async with self._client.pipeline() as pipeline:
            pipeline.hset(key, self._id, json.dumps(own))
            pipeline.expire(key, _KEY_SECONDS)
            pipeline.hgetall(key)
            *_, texts = await pipeline.execute()
        waiting = {name: json.loads(text) for name, text in texts.items()}
        alive = [name for name, each in waiting.items() if each["seen"] > now - self._times.waiting_timeout]
        return {name: waiting[name] for name in sorted(alive, key=lambda name: (waiting[name]["joined"], name))}

    def _with_same_settings(self, waiting: dict[str, dict[str, Any]]) -> list[str]:
        """Return the ids of the participants that agree; refuse settings that differ from those of the first participant."""
        first = next(iter(waiting.values()))
        theirs = first["settings"]
        differing = [
            f"{name} is {self._settings.get(name, 'not given')} here, and {theirs.get(name, 'not given')} there"
            for name in sorted(self._settings.keys() | theirs.keys())
            if self._settings.get(name) != theirs.get(name)
        ]
        if differing:
            raise CommandError(
                f"--peers: {visible(first['name'])} waits with other settings: {visible('; '.join(differing))}. "
                "Give all participants the same, or another --group"
            )
        return [
            name for name, each in waiting.items() if each["settings"] == theirs
        ]  # the others are about to be refused

    async def _propose(self, now: float, members: list[str]) -> bool:
        """Write a plan for these members, unless another participant has just written one; return True if written."""
        begin = now + self._times.lead_time
        plan = json.dumps({"run": secrets.token_hex(8), "begin": begin, "members": members})
        # Until each has polled, and no longer counts as waiting.
        lifetime_ms = round(1000 * (self._times.lead_time + 2 * self._times.poll_interval))
        if not await self._client.set(f"{self._base}:agreed", self._id, nx=True, px=lifetime_ms):
            return False
        if self._clock() + self._offset >= begin:  # this machine or Redis stood still: others may have begun meanwhile
            return False
        async with self._client.pipeline() as pipeline:
            for member in members:
                pipeline.hsetnx(f"{self._base}:plans", member, plan)
            pipeline.expire(f"{self._base}:plans", _KEY_SECONDS)
            pipeline.hdel(f"{self._base}:waiting", *members)
            await pipeline.execute()
        return True

    async def _planned(self) -> Meeting | None:
        """Return the agreement, if this participant is a member of it."""
        text = await self._client.hget(f"{self._base}:plans", self._id)
        if text is None:
            return None
        plan: dict[str, Any] = json.loads(text)
        return Meeting(
            run=plan["run"],
            rank=plan["members"].index(self._id),
            names=[each.rpartition("-")[0] for each in plan["members"]],
            begin=plan["begin"] - self._offset,
        )

    # During the load, and after it.

    @asynccontextmanager
    async def in_touch(self, meeting: Meeting) -> AsyncIterator[None]:
        """Give signs of life while the block runs; failures of Redis do not affect the load."""
        async with _meanwhile(self._beat(meeting)):
            yield

    async def _beat(self, meeting: Meeting) -> None:
        key = self._key(meeting, "heard")
        while True:
            with suppress(*self._errors):
                await self._put(key, meeting.rank, repr(self._clock() - meeting.begin))
                if self._published is not None:  # again, in case a restart of Redis has lost it
                    await self._put_once(*self._published)
            await asyncio.sleep(self._times.heartbeat_interval)

    @asynccontextmanager
    async def with_checkpoints(
        self, meeting: Meeting, checkpoint: Callable[[], Awaitable[Any]], *, seconds: float
    ) -> AsyncIterator[None]:
        """Leave checkpoints while the block runs; failures of Redis do not affect the load.

        Args:
            meeting: the agreement.
            checkpoint: returns the figures since its last call, as values for JSON; None if there are none.
            seconds: the length of the load, which is divided into at most a hundred checkpoints.
        """
        interval = max(self._times.checkpoint_interval, seconds / _CHECKPOINTS_MAX)
        async with _meanwhile(self._leave_checkpoints(meeting, checkpoint, interval)):
            yield

    async def _leave_checkpoints(
        self, meeting: Meeting, checkpoint: Callable[[], Awaitable[Any]], interval: float
    ) -> None:
        key = self._checkpoints_key(meeting, meeting.rank)
        texts: dict[str, str] = {}  # by number
        while True:
            await asyncio.sleep(interval)
            value = await checkpoint()
            if value is not None:
                texts[str(len(texts))] = json.dumps(value)
            with suppress(*self._errors):
                present = set(await self._client.hkeys(key))
                absent = {number: text for number, text in texts.items() if number not in present}
                if absent:  # the last one, and all that a restart of Redis has lost
                    async with self._client.pipeline() as pipeline:
                        pipeline.hset(key, mapping=absent)
                        pipeline.expire(key, _KEY_SECONDS)
                        await pipeline.execute()

    async def exchange(
        self, meeting: Meeting, result: Any, *, is_stopped: Callable[[], bool], trial: int | None = None
    ) -> Exchanged:
        """Write our figures, and wait for those of the others, as long as they are alive.

        Args:
            meeting: the agreement.
            result: our figures, as values for JSON.
            is_stopped: returns True once waiting must end.
            trial: the number of the trial, in a search.

        Raises:
            ExchangeError: if Redis could not be used for as long as a participant may be silent.
        """
        key = self._results_key(meeting, trial)
        last_answer = self._clock()
        silence = _Silence(self._times.result_timeout)
        while True:
            try:
                present = {int(rank) for rank in await self._client.hkeys(key)}
                if meeting.rank not in present:
                    await self._put(key, meeting.rank, json.dumps(result))
                    present.add(meeting.rank)
                heard = await self._heard(meeting)
                left = await self._left(meeting)
                now = last_answer = self._clock()
                silent = {rank for rank in range(len(meeting.names)) if silence.is_too_long(rank, heard, now)}
                if is_stopped() or present | silent | left >= {*range(len(meeting.names))}:
                    texts = await self._client.hgetall(key)
                    results = {int(rank): json.loads(text) for rank, text in texts.items()}
                    if is_stopped() or results.keys() >= present:  # else Redis has lost some since it named them
                        results = {meeting.rank: result} | results
                        checkpoints = await self._checkpoints(meeting, without=results.keys())
                        return Exchanged(results=results, checkpoints=checkpoints, heard=heard, left=left)
            except self._errors as error:
                if is_stopped() or self._clock() - last_answer > self._times.result_timeout:
                    raise ExchangeError(_reason_of(error)) from error
            await asyncio.sleep(self._times.poll_interval)

    # The outcomes of trials: from the participant of rank 0 to the others.

    async def publish(
        self, meeting: Meeting, trial: int, outcome: dict[str, Any], *, is_stopped: Callable[[], bool]
    ) -> dict[str, Any]:
        """Publish the outcome of a trial with a beginning of the next one, and return it with that beginning.

        An outcome is published once: if an earlier attempt has succeeded unnoticed, its outcome is returned.

        Args:
            meeting: the agreement.
            trial: the number of the trial.
            outcome: the values for JSON.
            is_stopped: returns True if there is no time for another attempt.

        Raises:
            ExchangeError: if Redis could not be used for as long as a participant may be silent.
        """
        last_answer = self._clock()
        while True:
            try:
                begin = await self._fresh_server_time() + self._times.lead_time
                key, text = self._key(meeting, "outcomes"), json.dumps(outcome | {"begin": begin})
                found = await self._put_once(key, trial, text)
                self._published = (key, trial, found)
                return self._on_own_clock(found)
            except self._errors as error:
                if is_stopped() or self._clock() - last_answer > self._times.result_timeout:
                    raise ExchangeError(_reason_of(error)) from error
            await asyncio.sleep(self._times.poll_interval)

    async def follow(
        self, meeting: Meeting, trial: int, result: Any, *, is_stopped: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Write our figures of a trial, and wait for the outcome; None if waiting must end before.

        Args:
            meeting: the agreement.
            trial: the number of the trial.
            result: our figures, as values for JSON.
            is_stopped: returns True once waiting must end.

        Raises:
            ExchangeError: if the participant of rank 0 is silent for too long, or Redis could not be used for as long.
        """
        last_answer = self._clock()
        silence = _Silence(self._times.result_timeout)
        while not is_stopped():
            try:
                if str(meeting.rank) not in await self._client.hkeys(self._results_key(meeting, trial)):
                    await self._put(self._results_key(meeting, trial), meeting.rank, json.dumps(result))
                await self._fresh_server_time()
                text = await self._client.hget(self._key(meeting, "outcomes"), str(trial))
                if text is not None:
                    return self._on_own_clock(text)
                last_answer = self._clock()
                if silence.is_too_long(0, await self._heard(meeting), last_answer):
                    raise ExchangeError(f"{meeting.names[0]} is missing")
            except self._errors as error:
                if self._clock() - last_answer > self._times.result_timeout:
                    raise ExchangeError(_reason_of(error)) from error
            await asyncio.sleep(self._times.poll_interval)
        return None

    async def leave(self, meeting: Meeting) -> None:
        """Say that this participant was interrupted, so that nobody waits for it."""
        with suppress(*self._errors):
            await self._put(self._key(meeting, "left"), meeting.rank, "")

    async def _fresh_server_time(self) -> float:
        """Return the server's time, with a new clock offset."""
        self._round_trip = float("inf")
        for _ in range(_SAMPLES):
            now = await self._server_time()
        return now

    def _on_own_clock(self, text: str) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads(text)
        return outcome | {"begin": outcome["begin"] - self._offset}

    async def _put_once(self, key: str, number: int, text: str) -> str:
        """Write a text unless there is one; return the one that is there."""
        async with self._client.pipeline() as pipeline:
            pipeline.hsetnx(key, str(number), text)
            pipeline.expire(key, _KEY_SECONDS)
            pipeline.hget(key, str(number))
            *_, found = await pipeline.execute()
        return str(found)

    async def _left(self, meeting: Meeting) -> frozenset[int]:
        return frozenset(map(int, await self._client.hkeys(self._key(meeting, "left"))))

    async def _put(self, key: str, rank: int, text: str) -> None:
        """Write the text of a participant, for as long as others may read it."""
        async with self._client.pipeline() as pipeline:
            pipeline.hset(key, str(rank), text)
            pipeline.expire(key, _KEY_SECONDS)
            await pipeline.execute()

    async def _heard(self, meeting: Meeting) -> dict[int, float]:
        texts = await self._client.hgetall(self._key(meeting, "heard"))
        return {int(rank): float(text) for rank, text in texts.items()}

    async def _checkpoints(self, meeting: Meeting, *, without: Collection[int]) -> dict[int, list[Any]]:
        """Return the checkpoints by rank, without those of some ranks."""
        checkpoints = {}
        for rank in range(len(meeting.names)):
            if rank not in without:
                texts = await self._client.hgetall(self._checkpoints_key(meeting, rank))
                checkpoints[rank] = [json.loads(text) for text in texts.values()]
        return {rank: each for rank, each in checkpoints.items() if each}

    def _results_key(self, meeting: Meeting, trial: int | None) -> str:
        return self._key(meeting, "results" if trial is None else f"results:{trial}")

    def _checkpoints_key(self, meeting: Meeting, rank: int) -> str:
        return self._key(meeting, f"checkpoints:{rank}")

    def _key(self, meeting: Meeting, kind: str) -> str:
        return f"{self._base}:{meeting.run}:{kind}"


class _Silence:
    """Watches the signs of life of participants, on the clock of one who waits for them.

    Args:
        seconds: how long a participant may be silent.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._signs: dict[int, tuple[float, float]] = {}  # (last sign of life, time at which we saw it), by rank

    def is_too_long(self, rank: int, heard: dict[int, float], now: float) -> bool:
        """Note the last sign of a participant; return True if it came too long ago."""
        position = heard.get(rank, 0.0)
        if rank not in self._signs or self._signs[rank][0] != position:
            self._signs[rank] = (position, now)
        return now - self._signs[rank][1] > self._seconds


@asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let a coroutine work while the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        # Again and again: wait_for of Python 3.11, with which redis sends, may lose a cancellation.
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)


def _reason_of(error: BaseException) -> str:
    """Return the server's message with a remedy, or the error of the connection."""
    refusal = remedy_of(error)
    if refusal is None:
        return visible(str(error)) or type(error).__name__
    return "; ".join(visible(part) for part in refusal if part)
