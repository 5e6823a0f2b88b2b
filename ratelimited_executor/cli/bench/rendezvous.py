"""The rendezvous of participants of one load, in Redis.

They agree on a beginning, and stay in contact to exchange their figures (``contact``). Redis does not hand out
requests. Each participant computes the whole load, and sends every n-th request of it from a common beginning. So Redis
has little to do meanwhile and may even be down: only the exchange at the end needs it again.

A waiting participant writes itself into a hash twice a second. One that finds the expected number there tries to
propose a beginning, two seconds ahead by the server's clock. One of them succeeds (``SET NX``), and writes the plan for
each member. Each member finds the plan on its next poll, even if that is after the beginning, and converts the server's
time to its own clock by the shortest round trip seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.escapes import visible
from ratelimited_executor.cli.bench.contact import Contact, Meeting, Times
from ratelimited_executor.cli.bench.redis import KEY_SECONDS, SharedRedis, reason_of
from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Rendezvous"]

_PREFIX: Final = "rle"


class Rendezvous:
    """Meets the others in Redis.

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
        self._redis = SharedRedis(url, clock=clock)
        self._base = f"{{{_PREFIX}:{group}}}:bench"
        self._expect, self._settings = expect, settings
        self._times = times or Times()
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._id = f"{self._name}-{secrets.token_hex(4)}"

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.close()

    async def meet(self, tell: Callable[[int], None]) -> Meeting:
        """Wait until the expected number of participants have joined.

        Args:
            tell: called with the number of participants that have joined, whenever it changes.

        Raises:
            CommandError: if Redis cannot be used, another participant has different settings, or too few join.
        """
        try:
            return await self._meet(tell)
        except self._redis.errors as error:
            raise CommandError(f"--peers: Redis cannot be used: {reason_of(error)}") from error
        finally:
            with suppress(*self._redis.errors):
                await self._redis.client.hdel(f"{self._base}:waiting", self._id)
                await self._redis.client.hdel(f"{self._base}:plans", self._id)

    async def _meet(self, tell: Callable[[int], None]) -> Meeting:
        joined = await self._redis.time()
        until = joined + self._times.join_timeout
        told = 0
        while (meeting := await self._planned()) is None:
            now = await self._redis.time()
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

    async def _look(self, now: float, joined: float) -> dict[str, dict[str, Any]]:
        """Give a sign of life; return the waiting participants by id, in the order in which they joined."""
        key = f"{self._base}:waiting"
        own = {"joined": joined, "seen": now, "settings": self._settings, "name": self._name}
        async with self._redis.client.pipeline() as pipeline:
            pipeline.hset(key, self._id, json.dumps(own))
            pipeline.expire(key, KEY_SECONDS)
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
        if not await self._redis.client.set(f"{self._base}:agreed", self._id, nx=True, px=lifetime_ms):
            return False
        if self._redis.clock() >= self._redis.on_own_clock(
            begin
        ):  # this machine or Redis stood still: others may have begun meanwhile
            return False
        async with self._redis.client.pipeline() as pipeline:
            for member in members:
                pipeline.hsetnx(f"{self._base}:plans", member, plan)
            pipeline.expire(f"{self._base}:plans", KEY_SECONDS)
            pipeline.hdel(f"{self._base}:waiting", *members)
            await pipeline.execute()
        return True

    async def _planned(self) -> Meeting | None:
        """Return the agreement, if this participant is a member of it."""
        text = await self._redis.client.hget(f"{self._base}:plans", self._id)
        if text is None:
            return None
        plan: dict[str, Any] = json.loads(text)
        return Meeting(
            run=plan["run"],
            rank=plan["members"].index(self._id),
            names=[each.rpartition("-")[0] for each in plan["members"]],
            begin=self._redis.on_own_clock(plan["begin"]),
        )

    def contact(self, meeting: Meeting, *, seconds: float) -> Contact:
        """Return the contact with those who have met, for a load or for trials of so many seconds."""
        return Contact(self._redis, self._base, meeting, self._times, seconds=seconds)
