"""Peers that share limits through Redis: one script call for as many tickets as a process can start.

The authority of :mod:`ratelimited_executor.peers.fleet` is ``tickets.lua`` here; this module only adds the transport. A message is a pipeline of EVALSHA, one for each executor; to a cluster the calls go side
by side, because redis-py's pipelines for clusters refuse EVALSHA. The server may forget the script at any time (a restart,
a failover, SCRIPT FLUSH)::

    no sha ── SCRIPT LOAD ──▶ sha known ── EVALSHA ──▶ answers
                   ▲                          │
                   └───── NOSCRIPT: once ─────┘

If the server answers one call with an error, such as one for a key of another type, the error takes the place of that
reply, and the other calls continue. An error that concerns the connection, such as a wrong password, is raised. Both are a
:class:`~ratelimited_executor.peers.transport.RefusedError`, with a remedy. Any other error is a lost connection, and is raised:
it is then unknown which calls took effect, which does no harm, because a repeated call has a number, by which it counts once.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.fleet.policies import Outage, Strictness
from ratelimited_executor._redis.client import check_part_of_keys, client_of
from ratelimited_executor.peers.fleet import FleetPeers
from ratelimited_executor.peers.redis.refusals import refusal_of, refusing
from ratelimited_executor.peers.redis.slots import RedisSlotTransport, is_copyable
from ratelimited_executor.peers.redis.ticket_script import (
    TICKET_SCRIPT,
    ticket_arguments_of,
    ticket_keys_of,
    ticket_reply_of,
)
from ratelimited_executor.peers.transport import LOGGER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.fleet.ticket_calls import TicketCall, TicketReply

__all__ = ["RedisPeers", "RedisTransport"]

_PREFIX: Final = "rle"
_CHECK_SECONDS: Final = 0.25  # for the look at the server's settings


class RedisPeers(FleetPeers):
    """Share the limits of each executor with all processes of a group, through Redis or Valkey (6.2 or later).

    Redis admits permits by its own clock, each for one process, and a task starts only on a permit of its own process: so
    the group never exceeds its limits, even while processes join, hang, crash or are cut off. An executor shares its limits
    with the executors of the same name in the other processes; the limits in force are those that were set last, by a
    process that started or by ``executor.rate = ...``.

    Args:
        redis: a URL (``redis://``, ``rediss://`` for TLS, ``unix://``), or an asyncio client of redis-py: ``Redis``,
            ``RedisCluster``, or what ``Sentinel.master_for()`` returns. A client that you pass is not closed.
        group: the name of the group; groups are independent of each other.
        prefix: the prefix of all keys.
        weight: this process's share, relative to others, while demand exceeds the limits, > 0.
        strictness: the law for the starts of the group.
        outage: the behaviour while Redis is away.
        interval: seconds, 0.05 to 5, between calls while Redis does not answer; also the most by which permits are reserved
            ahead.
        late: how many seconds after its time a permit of a calendar quota may be used, 0.003 to 0.1.
        clock_difference: the largest difference, in seconds, 0 to 60, between the clocks of a server and of one that takes
            over from it.
        timeout: seconds, 0.001 to 60, after which a call counts as lost; longer while the connection is slower.
        lease: seconds, 0.5 to 600, for which a slot is held without renewal; the same in all processes. A process that dies
            frees its slots after that time, one that cannot reach Redis loses them, and a server that may have forgotten
            holders hands no slot over for as long.
        hang_timeout: seconds, at least ``lease``, for which an event loop may be blocked before its slots are no longer
            renewed.

    Raises:
        ModuleNotFoundError: without the extra ``redis``.
        TypeError: if an argument has another type.
        ValueError: if one is out of range.

    >>> peers = RedisPeers("redis://localhost:6379", "mail-service")  # doctest: +SKIP
    >>> manager = ExecutorManager(peers=peers)  # doctest: +SKIP
    """

    __slots__ = ("_group",)

    def __init__(
        self,
        redis: Any,
        group: str = "default",
        *,
        prefix: str = _PREFIX,
        weight: float = 1.0,
        strictness: Strictness = Strictness.EXACT,
        outage: Outage = Outage.STOP,
        interval: DurationLike = 0.25,
        late: DurationLike = 0.019,
        clock_difference: DurationLike = 1.0,
        timeout: DurationLike = 0.08,
        lease: DurationLike = 10.0,
        hang_timeout: DurationLike = 60.0,
    ) -> None:
        check_part_of_keys("group", group)
        check_part_of_keys("prefix", prefix)
        super().__init__(
            RedisTransport(redis, group, prefix),
            partial(RedisSlotTransport, redis, group, prefix),
            weight=weight,
            strictness=strictness,
            outage=outage,
            interval=interval,
            late=late,
            clock_difference=clock_difference,
            timeout=timeout,
            lease=lease,
            hang_timeout=hang_timeout,
            is_threaded=is_copyable(redis),
        )
        self._group = group

    def __repr__(self) -> str:
        return f"<RedisPeers {self._group!r} {self.id}>"


class RedisTransport:
    """Sends calls to Redis: one pipeline of script calls.

    Args:
        redis: a URL or a client.
        group: the group of the peers.
        prefix: the prefix of all keys.
    """

    def __init__(self, redis: Any, group: str, prefix: str = _PREFIX) -> None:
        self._group, self._prefix = group, prefix
        # The client must not retry: a call is repeated in time or not at all.
        # It needs no timeouts either: every call has ours, and a second one costs as much as the message.
        self._client, self._owns_client = client_of(redis, user="RedisPeers", retry=None, socket_timeout=None)
        self._is_cluster = hasattr(redis, "get_nodes")
        self._sha: str | None = None
        self._is_checked = False

    async def connect(self) -> None:
        """Open a connection, and load the script."""
        with refusing():
            sha = await self._client.script_load(TICKET_SCRIPT)
        self._sha = sha.decode() if isinstance(sha, bytes) else str(sha)
        if not self._is_checked:
            self._is_checked = True
            await self._check_memory()

    async def _check_memory(self) -> None:
        """Warn if the server may evict keys; uses INFO, which the script needs anyway, unlike CONFIG."""
        try:
            target = (
                {"target_nodes": self._client.get_node_from_key(ticket_keys_of(self._prefix, self._group, "")[0])}
                if self._is_cluster
                else {}
            )
            async with asyncio.timeout(_CHECK_SECONDS):
                memory = await self._client.info("memory", **target)
            limit, policy = int(memory["maxmemory"]), str(memory["maxmemory_policy"])
        except Exception:  # noqa: BLE001  # any error of a client: the check is optional
            return
        if limit and policy != "noeviction":
            LOGGER.warning(
                "fleet: Redis may evict the keys of group %r, and permits with them (maxmemory-policy %s): "
                "set maxmemory-policy noeviction",
                self._group,
                policy,
            )

    async def call(self, calls: Sequence[tuple[str, TicketCall]]) -> list[TicketReply | Exception]:
        """Send requests by executor name in one message; return the replies, or the errors, in order."""
        if self._sha is None:
            await self.connect()
        answers = await self._send(calls)
        missing = [index for index, answer in enumerate(answers) if type(answer).__name__ == "NoScriptError"]
        if missing:  # a restart, a failover, SCRIPT FLUSH; by name, as other clients have their own class
            await self.connect()
            for index, answer in zip(missing, await self._send([calls[index] for index in missing]), strict=True):
                answers[index] = answer
        return [_reply_or_refusal(answer) for answer in answers]

    async def aclose(self) -> None:
        """Close the client, unless it was passed."""
        if self._owns_client:
            await self._client.aclose()

    def _arguments_of(self, name: str, call: TicketCall) -> list[Any]:
        """Return the arguments of EVALSHA."""
        keys = ticket_keys_of(self._prefix, self._group, name)
        return [self._sha, len(keys), *keys, *ticket_arguments_of(call)]

    async def _send(self, calls: Sequence[tuple[str, TicketCall]]) -> list[Any]:
        # The answers have states of limits, which are no texts: they are bytes even if the client decodes responses.
        arguments = [self._arguments_of(name, call) for name, call in calls]
        if self._is_cluster or len(calls) == 1:
            sent = [self._client.execute_command("EVALSHA", *each, NEVER_DECODE=True) for each in arguments]
            return await asyncio.gather(*sent, return_exceptions=True)
        pipeline = self._client.pipeline(transaction=False)
        for each in arguments:
            pipeline.execute_command("EVALSHA", *each, NEVER_DECODE=True)
        with refusing():
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers


def _reply_or_refusal(answer: Any) -> TicketReply | Exception:
    """Read one answer; return an error for a refusal, and for an answer that the script never writes.

    Raises:
        BaseException: if it means a lost connection.
    """
    if isinstance(answer, BaseException):
        refusal = refusal_of(answer, TICKET_SCRIPT)
        if refusal is None:
            raise answer
        return refusal
    try:
        return ticket_reply_of(answer)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return error
