"""Where participants of one load meet: they agree on a beginning in Redis, and exchange what they have measured.

Redis hands out no request. Each participant computes the whole load, and sends every n-th request of it from a moment on
that all share, so that Redis is idle meanwhile and may even be away: only the exchange at the end needs it again.

Whoever waits writes itself into a hash twice a second. Who finds as many there as are expected tries to propose a beginning,
two seconds ahead by the server's clock; one of them succeeds (``SET NX``), and writes it down for each of those who take part.
Each finds it there when it looks next, though that be after the beginning, and turns the server's time into its own clock's by
the shortest round trip that it has seen.

At the end each writes its figures under its rank, again if a restart has lost them, and waits until those of all others are
there, or until these have been silent for too long.
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
    from collections.abc import AsyncIterator, Callable

__all__ = ["ExchangeError", "Exchanged", "Meeting", "Rendezvous", "Times"]

_KEY_SECONDS: Final = 3600  # how long figures stay in Redis, longer than anybody collects them
_TIMEOUT_SECONDS: Final = 2.0  # for a connection, and for an answer
_PREFIX: Final = "rle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long things take; seconds.

    Attributes:
        join_timeout: within which all participants must come.
        poll_interval: between two looks at Redis.
        lead_time: from the agreement to the beginning; a participant that does not look meanwhile begins late.
        waiting_timeout: without a sign of life, after which a participant that waits counts as gone.
        result_timeout: without a sign of life, after which the figures of a participant that has begun are given up.
        heartbeat_interval: between two signs of life while the load is sent.
    """

    join_timeout: float = 300.0
    poll_interval: float = 0.5
    lead_time: float = 2.0
    waiting_timeout: float = 5.0
    result_timeout: float = 10.0
    heartbeat_interval: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What participants have agreed on.

    Attributes:
        run: its own name, which no other has.
        rank: of this participant.
        names: of all, by rank.
        begin: of the load, on this participant's clock.
    """

    run: str
    rank: int
    names: list[str]
    begin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What has come from the participants.

    Attributes:
        results: what each has given, by rank.
        heard: seconds after the beginning at which each was last heard of, by rank; absent if it never was.
    """

    results: dict[int, Any]
    heard: dict[int, float]


class ExchangeError(Exception):
    """The figures of the others could not be had; the message says why."""


class Rendezvous:
    """Meets the others in Redis; a context manager that closes the connection.

    Args:
        url: of the server.
        group: the name under which the participants meet.
        expect: how many there are.
        settings: that have to be the same for all, as texts.
        clock: returns monotonic seconds.
        times: how long things take.

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
        self._offset = 0.0  # the server's time less that of the clock
        self._round_trip = float("inf")  # of the sample that the offset is from

    async def close(self) -> None:
        """Close the connection."""
        with suppress(*self._errors):
            await self._client.aclose()

    # Before the load.

    async def meet(self, tell: Callable[[int], None]) -> Meeting:
        """Wait until as many as expected are there.

        Args:
            tell: called with the number of those who are there, whenever it changes.

        Raises:
            CommandError: if Redis cannot be used, somebody waits with other settings, or too few come.
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
        """Return the server's time, and keep what the best sample says of the clock."""
        before = self._clock()
        seconds, microseconds = await self._client.time()
        round_trip = self._clock() - before
        now = int(seconds) + int(microseconds) / 1e6
        if round_trip < self._round_trip:
            self._round_trip, self._offset = round_trip, now - (before + round_trip / 2)
        return now

    async def _look(self, now: float, joined: float) -> dict[str, dict[str, Any]]:
        """Give a sign of life; return those who wait by id, in the order in which they came."""
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
        """Return the ids of those who take part; refuse settings that differ from those of the participant that came first."""
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
        """Write a beginning down for these, unless somebody has just done so for others; return whether it is written."""
        begin = now + self._times.lead_time
        plan = json.dumps({"run": secrets.token_hex(8), "begin": begin, "members": members})
        # Until each has looked, and is not taken for one that waits.
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
        """Return what was agreed on, if this participant takes part in it."""
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
        """Give signs of life meanwhile; what Redis makes of them does not matter to the load."""
        beating = asyncio.create_task(self._beat(meeting))
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait({beating})

    async def _beat(self, meeting: Meeting) -> None:
        key = self._key(meeting, "heard")
        while True:
            with suppress(*self._errors):
                await self._put(key, meeting.rank, repr(self._clock() - meeting.begin))
            await asyncio.sleep(self._times.heartbeat_interval)

    async def exchange(self, meeting: Meeting, result: Any, *, is_stopped: Callable[[], bool]) -> Exchanged:
        """Hand the own figures over, and wait for those of the others, as long as they are alive.

        Args:
            meeting: what was agreed on.
            result: the own figures, as JSON has them.
            is_stopped: True once there is no time to wait any longer.

        Raises:
            ExchangeError: if Redis could not be used for as long as one of the others may be silent.
        """
        last_answer = self._clock()
        signs: dict[int, tuple[float, float]] = {}  # (what a participant said last, when that was new to us), by rank
        while True:
            try:
                present = {int(rank) for rank in await self._client.hkeys(self._key(meeting, "results"))}
                if meeting.rank not in present:
                    await self._put(self._key(meeting, "results"), meeting.rank, json.dumps(result))
                    present.add(meeting.rank)
                heard = await self._heard(meeting)
                now = last_answer = self._clock()
                for rank in range(len(meeting.names)):
                    position = heard.get(rank, 0.0)
                    if rank not in signs or signs[rank][0] != position:
                        signs[rank] = (position, now)
                absent = [rank for rank in signs if rank not in present]
                if is_stopped() or all(now - signs[rank][1] > self._times.result_timeout for rank in absent):
                    texts = await self._client.hgetall(self._key(meeting, "results"))
                    results = {int(rank): json.loads(text) for rank, text in texts.items()}
                    if is_stopped() or results.keys() >= present:  # else Redis has lost some since it named them
                        return Exchanged(results={meeting.rank: result} | results, heard=heard)
            except self._errors as error:
                if is_stopped() or self._clock() - last_answer > self._times.result_timeout:
                    raise ExchangeError(_reason_of(error)) from error
            await asyncio.sleep(self._times.poll_interval)

    async def _put(self, key: str, rank: int, text: str) -> None:
        """Write what a participant has to say, for as long as anybody may read it."""
        async with self._client.pipeline() as pipeline:
            pipeline.hset(key, str(rank), text)
            pipeline.expire(key, _KEY_SECONDS)
            await pipeline.execute()

    async def _heard(self, meeting: Meeting) -> dict[int, float]:
        texts = await self._client.hgetall(self._key(meeting, "heard"))
        return {int(rank): float(text) for rank, text in texts.items()}

    def _key(self, meeting: Meeting, kind: str) -> str:
        return f"{self._base}:{meeting.run}:{kind}"


def _reason_of(error: BaseException) -> str:
    """Return the server's words with a remedy, or what became of the connection."""
    refusal = remedy_of(error)
    if refusal is None:
        return visible(str(error)) or type(error).__name__
    return "; ".join(visible(part) for part in refusal if part)
