"""The contact between participants that have met: signs of life, checkpoints, figures, and outcomes of trials.

During the load each participant leaves checkpoints, the figures of the time since the one before, in case it dies. At
the end it writes its figures under its rank, again if a restart of Redis has lost them, and waits until those of all
others have arrived, or until these have been silent for too long.

The trials of a search are several such loads after one meeting: the participant of rank 0 waits for the figures of a
trial, and publishes an outcome, with which the next beginning comes; the others wait for it.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.cli.bench.redis import KEY_SECONDS, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping

    from ratelimited_executor.cli.bench.redis import SharedRedis

__all__ = ["Contact", "ExchangeError", "Exchanged", "Meeting", "Times"]

_CANCEL_SECONDS: Final = 0.1  # between two attempts to cancel a task
_CHECKPOINTS_MAX: Final = 100  # in a load: each has 5 to 100 kB, and at most a hundredth of a long load is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Timeouts and intervals, in seconds.

    Attributes:
        join_timeout: the time within which all participants must join.
        poll_interval: the time between two polls of Redis.
        lead_time: the time from an agreement to a beginning; a participant that does not poll meanwhile begins late.
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


class Contact:
    """The contact of one participant with the others.

    Args:
        redis: the Redis in which they have met.
        base: the beginning of all keys.
        meeting: the agreement.
        times: timeouts and intervals.
        seconds: the length of the load, or of a trial. What one participant leaves early is read after that.
    """

    def __init__(self, redis: SharedRedis, base: str, meeting: Meeting, times: Times, *, seconds: float) -> None:
        self._redis, self._meeting, self._times = redis, meeting, times
        self._base = f"{base}:{meeting.run}"
        self._rank = str(meeting.rank)
        self._seconds = seconds
        self._lifetime = KEY_SECONDS + math.ceil(seconds)  # of keys, in seconds
        self._published: tuple[str, str, str] | None = None  # key, field and text of the last outcome

    @asynccontextmanager
    async def in_touch(self) -> AsyncIterator[None]:
        """Give signs of life while the block runs; failures of Redis do not affect the load."""
        async with _meanwhile(self._beat()):
            yield

    async def _beat(self) -> None:
        key = self._key("heard")
        while True:
            with suppress(*self._redis.errors):
                await self._put(key, {self._rank: repr(self._redis.clock() - self._meeting.begin)})
                if self._published is not None:  # again, in case a restart of Redis has lost it
                    await self._put_once(*self._published)
            await asyncio.sleep(self._times.heartbeat_interval)

    @asynccontextmanager
    async def with_checkpoints(self, checkpoint: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
        """Leave checkpoints while the block runs; failures of Redis do not affect the load.

        Args:
            checkpoint: returns the figures since its last call, as values for JSON; None if there are none.
        """
        interval = max(self._times.checkpoint_interval, self._seconds / _CHECKPOINTS_MAX)
        async with _meanwhile(self._leave_checkpoints(checkpoint, interval)):
            yield

    async def _leave_checkpoints(self, checkpoint: Callable[[], Awaitable[Any]], interval: float) -> None:
        key = self._checkpoints_key(self._meeting.rank)
        texts: dict[str, str] = {}  # by number
        while True:
            await asyncio.sleep(interval)
            value = await checkpoint()
            if value is not None:
                texts[str(len(texts))] = json.dumps(value)
            with suppress(*self._redis.errors):
                present = set(await self._redis.client.hkeys(key))
                absent = {number: text for number, text in texts.items() if number not in present}
                if absent:  # the last one, and all that a restart of Redis has lost
                    await self._put(key, absent)

    async def exchange(self, result: Any, *, is_stopped: Callable[[], bool], trial: int | None = None) -> Exchanged:
        """Write our figures, and wait for those of the others, as long as they are alive.

        Args:
            result: our figures, as values for JSON.
            is_stopped: returns True once waiting must end.
            trial: the number of the trial, in a search.

        Raises:
            ExchangeError: if Redis could not be used for as long as a participant may be silent.
        """
        key = self._results_key(trial)
        last_answer = self._redis.clock()
        silence = _Silence(self._times.result_timeout)
        while True:
            try:
                present = {int(rank) for rank in await self._redis.client.hkeys(key)}
                if self._meeting.rank not in present:
                    await self._put(key, {self._rank: json.dumps(result)})
                    present.add(self._meeting.rank)
                heard = await self._heard()
                left = await self._left()
                now = last_answer = self._redis.clock()
                silent = {rank for rank in range(len(self._meeting.names)) if silence.is_too_long(rank, heard, now)}
                if is_stopped() or present | silent | left >= {*range(len(self._meeting.names))}:
                    texts = await self._redis.client.hgetall(key)
                    results = {int(rank): json.loads(text) for rank, text in texts.items()}
                    if is_stopped() or results.keys() >= present:  # else Redis has lost some since it named them
                        results = {self._meeting.rank: result} | results
                        checkpoints = await self._checkpoints(without=results.keys())
                        return Exchanged(results=results, checkpoints=checkpoints, heard=heard, left=left)
            except self._redis.errors as error:
                if is_stopped() or self._redis.clock() - last_answer > self._times.result_timeout:
                    raise ExchangeError(reason_of(error)) from error
                silence = _Silence(self._times.result_timeout)  # without Redis nobody could be heard
            await asyncio.sleep(self._times.poll_interval)

    # The outcomes of trials: from the participant of rank 0 to the others.

    async def publish(self, trial: int, outcome: dict[str, Any], *, is_stopped: Callable[[], bool]) -> dict[str, Any]:
        """Publish the outcome of a trial with a beginning of the next one, and return it with that beginning.

        An outcome is published once: if an earlier attempt has succeeded unnoticed, its outcome is returned.

        Args:
            trial: the number of the trial.
            outcome: the values for JSON.
            is_stopped: returns True if there is no time for another attempt.

        Raises:
            ExchangeError: if Redis could not be used for as long as a participant may be silent.
        """
        last_answer = self._redis.clock()
        while True:
            try:
                begin = await self._redis.fresh_time() + self._times.lead_time
                key, text = self._key("outcomes"), json.dumps(outcome | {"begin": begin})
                found = await self._put_once(key, str(trial), text)
                self._published = (key, str(trial), found)
                return self._on_own_clock(found)
            except self._redis.errors as error:
                if is_stopped() or self._redis.clock() - last_answer > self._times.result_timeout:
                    raise ExchangeError(reason_of(error)) from error
            await asyncio.sleep(self._times.poll_interval)

    async def follow(self, trial: int, result: Any, *, is_stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """Write our figures of a trial, and wait for the outcome; None if waiting must end before.

        Args:
            trial: the number of the trial.
            result: our figures, as values for JSON.
            is_stopped: returns True once waiting must end.

        Raises:
            ExchangeError: if the participant of rank 0 is silent for too long, or Redis could not be used for as long.
        """
        last_answer = self._redis.clock()
        silence = _Silence(self._times.result_timeout)
        while not is_stopped():
            try:
                if self._rank not in await self._redis.client.hkeys(self._results_key(trial)):
                    await self._put(self._results_key(trial), {self._rank: json.dumps(result)})
                await self._redis.fresh_time()
                text = await self._redis.client.hget(self._key("outcomes"), str(trial))
                if text is not None:
                    return self._on_own_clock(text)
                last_answer = self._redis.clock()
                if silence.is_too_long(0, await self._heard(), last_answer):
                    raise ExchangeError(f"{self._meeting.names[0]} is missing")
            except self._redis.errors as error:
                if self._redis.clock() - last_answer > self._times.result_timeout:
                    raise ExchangeError(reason_of(error)) from error
                silence = _Silence(self._times.result_timeout)  # without Redis nobody could be heard
            await asyncio.sleep(self._times.poll_interval)
        return None

    async def leave(self) -> None:
        """Say that this participant was interrupted, so that nobody waits for it."""
        with suppress(*self._redis.errors):
            await self._put(self._key("left"), {self._rank: ""})

    async def _put(self, key: str, texts: Mapping[str, str]) -> None:
        await self._redis.put(key, texts, seconds=self._lifetime)

    async def _put_once(self, key: str, field: str, text: str) -> str:
        return await self._redis.put_once(key, field, text, seconds=self._lifetime)

    def _on_own_clock(self, text: str) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads(text)
        return outcome | {"begin": self._redis.on_own_clock(outcome["begin"])}

    async def _left(self) -> frozenset[int]:
        return frozenset(map(int, await self._redis.client.hkeys(self._key("left"))))

    async def _heard(self) -> dict[int, float]:
        texts = await self._redis.client.hgetall(self._key("heard"))
        return {int(rank): float(text) for rank, text in texts.items()}

    async def _checkpoints(self, *, without: Collection[int]) -> dict[int, list[Any]]:
        """Return the checkpoints by rank, without those of some ranks."""
        checkpoints = {}
        for rank in range(len(self._meeting.names)):
            if rank not in without:
                texts = await self._redis.client.hgetall(self._checkpoints_key(rank))
                checkpoints[rank] = [json.loads(text) for text in texts.values()]
        return {rank: each for rank, each in checkpoints.items() if each}

    def _results_key(self, trial: int | None) -> str:
        return self._key("results" if trial is None else f"results:{trial}")

    def _checkpoints_key(self, rank: int) -> str:
        return self._key(f"checkpoints:{rank}")

    def _key(self, kind: str) -> str:
        return f"{self._base}:{kind}"


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
