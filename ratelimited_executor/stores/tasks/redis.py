"""Durable tasks in Redis or Valkey, for processes on many machines.

Every call is one script, which the server runs atomically: ``redis_rules.lua`` has the rules and the layout,
``redis_<call>.lua`` the work of each call. A put notifies waiting processes by PUBLISH, in the same script.

A server's answer may be lost. A repeated put, or a repeated end of a claim, has no further effect. Claims in a lost
answer are given back when their process continues as another owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import os
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durable.pauses import ENDED
from ratelimited_executor._core.durable.tasks import (
    LEVELS_MAX,
    NOT_OPEN,
    SIZE_MAX,
    Beat,
    Claims,
    Durability,
    DurableState,
    LaneRow,
    backlog_rows,
    read_size,
)
from ratelimited_executor._forks import check_process
from ratelimited_executor._redis.client import check_part_of_keys, client_of
from ratelimited_executor._redis.refusals import is_permanent, remedy_of
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores.tasks.redis_layout import (
    KEYS,
    SCRIPTS,
    VERSION,
    answers_of,
    arguments_of,
    changed_of,
    ended_of,
    function_of,
    held_of,
    kept_of,
    key_of,
    outcomes_of,
    pauses_of,
    place_of,
    placed_of,
    rank_of,
    records_of,
    refs_of,
    repetitions_of,
    rows_of,
    states_of,
    tasks_of,
    turns_of,
    unique_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ratelimited_executor._core.durable.pauses import Pause, PauseRow
    from ratelimited_executor._core.durable.tasks import (
        BacklogRow,
        ChangedRepetition,
        Claim,
        Claimed,
        Duplicate,
        EndedRow,
        NewTask,
        Occurrence,
        Placed,
        Ref,
        RepetitionRow,
        TaskOutcome,
        TaskRow,
    )
    from ratelimited_executor.abc import Clock

__all__ = ["RedisStore"]

LOGGER: Final = logging.getLogger("ratelimited_executor")

_TIMEOUT_SECONDS: Final = 10.0  # for an answer
_WAKE_SECONDS: Final = 0.005  # between two wake-ups by other processes
_PING_SECONDS: Final = 5.0  # of silence, after which the listener pings its server
_CHECK_SECONDS: Final = 60.0  # between two checks of the server's settings
_PAGE: Final = 1000  # ended tasks that are read at once
_USER_CALLS_MAX: Final = 16  # calls of users at a time: each takes a connection, and runners need some of the client's
_OF_RUNNERS: Final = frozenset(
    {
        "join",
        "beat",
        "leave",
        "claim",
        "start",
        "save",
        "finish",
        "cancelled",
        "revive",
        "pauses",
        "changed_repetitions",
    }
)
_RECONNECT_SECONDS: Final = 1.0  # between two attempts to listen
_CANCELLED: Final = (b"cancelled", "cancelled")  # messages that a claimed task was cancelled; a client may decode them


class RedisStore(TaskStore):
    """A store in Redis or Valkey (6.2 or later), for any number of processes.

    The server's settings decide which failures a put survives: with ``appendfsync everysec``, a crash of the server
    loses the last second, and a failover loses unreplicated changes. Times are those of the server.

    Args:
        redis: a URL (``redis://``, ``rediss://`` for TLS, ``unix://``), or an asyncio client of redis-py: ``Redis``,
            ``RedisCluster``, or what ``Sentinel.master_for()`` returns. A client that you pass is not closed.
        prefix: the prefix of all Redis keys, which are in one slot of a cluster.

    Raises:
        ModuleNotFoundError: without the extra ``redis``.
        TypeError: if an argument has another type.
        ValueError: if the URL or the prefix is not valid.
    """

    durability = Durability.LAG

    def __init__(self, redis: Any, *, prefix: str = "durable") -> None:
        check_part_of_keys("prefix", prefix)
        # The client must not retry, as it does not know which calls may be repeated. Every call has a timeout of ours.
        self._client, self._owns_client = client_of(redis, user="RedisStore", retry=None, socket_timeout=None)
        self._url = redis if isinstance(redis, str) else None
        self._is_cluster = hasattr(redis, "get_nodes")
        self._keys = [f"{{{prefix}}}:{key}" for key in KEYS]
        self._prefix = prefix
        self._user_count = 0
        self._lost_count = 0  # tasks of the store that its server has lost, as reported
        self._turns = asyncio.Semaphore(_USER_CALLS_MAX)
        self._process = 0  # that has opened it
        self._changed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None  # between two wake-ups by other processes
        self._is_told = False
        self._cancel_count = 0  # of notices that a claimed task was cancelled

    def __repr__(self) -> str:
        return f"RedisStore(..., prefix={self._prefix!r})"  # the URL may hold a password

    def twin(self) -> RedisStore | None:
        """Return another store over the same keys, for another event loop; None if it has a client of the user."""
        return None if self._url is None else RedisStore(self._url, prefix=self._prefix)

    async def open(self, clock: Clock) -> None:  # noqa: ARG002  # the server's clock counts
        check_process(repr(self), self._process)
        if not self._user_count:
            try:
                await self._check()
            except BaseException:
                await self._disconnect()
                raise
        if self._listener is None:  # otherwise another user has opened it meanwhile
            self._changed = asyncio.Event()  # of this event loop, which may be a new one
            self._turns = asyncio.Semaphore(_USER_CALLS_MAX)
            self._listener = asyncio.get_running_loop().create_task(self._listen(), name="durable tasks: listen")
            self._process = os.getpid()
        self._user_count += 1

    async def put(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[bool | Duplicate]:
        if connection is not None:
            raise TypeError(
                "connection: RedisStore cannot take part in a transaction: put without it, after the commit"
            )
        return answers_of(*await self._change("put", tasks_of(tasks), unique_of(tasks)))

    async def join(self, owner: str, lease_us: int, *, former: str = "", held: Collection[Ref] = ()) -> bool:
        return bool(await self._change("join", owner, lease_us, former, held_of(held)))

    async def beat(self, owner: str) -> Beat | None:
        answer = await self._change("beat", owner)
        if answer is None:
            return None
        cancelled, claimed_count, lost_count = answer
        if lost_count > self._lost_count:
            LOGGER.error(
                "durable tasks: %r: the server has lost %d tasks that had been put: it may evict keys (set maxmemory-policy "
                "noeviction), or others have deleted keys",
                self,
                lost_count - self._lost_count,
            )
        self._lost_count = lost_count
        return Beat(refs_of(cancelled), claimed_count)

    async def leave(self, owner: str) -> None:
        await self._change("leave", owner)

    async def claim(self, claim: Claim) -> Claims | None:
        unknown = tuple(function_of(*each) for each in sorted(claim.unknown))
        full_keys = tuple(key_of(each) for each in sorted(claim.full_keys))
        turns = turns_of(claim.turns)
        tasks: list[Claimed] = []
        expired_count, size, after = 0, claim.size, b""
        while True:
            answer = await self._run(
                "claim", claim.owner, claim.queue, claim.count - len(tasks), claim.ahead_us, rank_of(claim.above),
                int(claim.before_us is not None), claim.before_us or 0, unknown, full_keys, after, size, *turns,
            )  # fmt: skip
            if answer is None:
                return None
            now_us, next_in_us, count, after, data = answer
            tasks += (record.claimed(now_us) for record in records_of(data))
            size = claim.size - sum(task.size for task in tasks)
            expired_count += count
            if not after or len(tasks) >= claim.count or size <= 0:
                break
        return Claims(
            tasks=tuple(tasks), next_in_us=None if next_in_us < 0 else next_in_us, expired_count=expired_count
        )

    async def start(self, refs: Sequence[Ref]) -> list[bool]:
        return _flags_of(await self._run("start", held_of(refs)))

    async def save(self, states: Sequence[tuple[Ref, bytes]]) -> None:
        await self._run("save", states_of(states))

    async def finish(self, outcomes: Sequence[TaskOutcome]) -> list[bool]:
        return _flags_of(await self._change("finish", outcomes_of(outcomes), kept_of(outcomes)))

    async def cancel(self, ids: Sequence[str]) -> list[DurableState | None]:
        if not ids:
            return []
        states = _states_of(await self._run("cancel", tuple(ids)))
        self._cancel_count += DurableState.CLAIMED in states
        self._changed.set()
        return states

    async def cancelled(self, owner: str) -> tuple[Ref, ...]:
        return refs_of(await self._run("cancelled", owner))

    async def requeue(self, ids: Sequence[str]) -> list[DurableState | None]:
        return _states_of(await self._change("requeue", tuple(ids))) if ids else []

    async def revive(self, queue: str, functions: Sequence[tuple[str, int]]) -> int:
        revived, after = 0, 0
        while after >= 0:
            count, after = await self._run("revive", queue, tuple(function_of(*each) for each in functions), after)
            revived += count
        if revived:  # processes call this all the time
            self._changed.set()
        return revived

    async def pause(self, pause: Pause, until_us: int | None) -> None:
        await self._change_told("pause", pause.text, -1 if until_us is None else until_us)

    async def resume(self, pause: Pause) -> bool:
        return bool(await self._change("pause", pause.text, ENDED))

    async def pauses(self) -> list[PauseRow]:
        return pauses_of(*await self._run("pauses"))

    async def place(self, owner: str, occurrences: Sequence[Occurrence]) -> list[Placed]:
        """Place each occurrence by a call of its own, which depends on no other."""
        return [placed_of(await self._change("place", *place_of(owner, each))) for each in occurrences]

    async def repetitions(self) -> list[RepetitionRow]:
        return repetitions_of(*await self._run("repetitions"))

    async def changed_repetitions(self, queue: str) -> list[ChangedRepetition]:
        return changed_of(await self._run("changed_repetitions", queue))

    async def save_repetition(
        self, name: str, *, definition: str, queue: str, function: str, schedule: str
    ) -> bool | None:
        called = function_of(function, 1)  # the first occurrence has its version
        answer = await self._change_told("save_repetition", name, definition, queue, called, schedule)
        return None if answer < 0 else bool(answer)

    async def pause_repetition(self, name: str, until_us: int | None) -> bool | None:
        answer = await self._change_told("pause_repetition", name, -1 if until_us is None else until_us)
        return None if answer < 0 else bool(answer)

    async def skip_repetition(self, name: str) -> int | None:
        due_us: int | None = await self._change_told("skip_repetition", name)
        return due_us

    async def forget(self, names: Sequence[str]) -> int:
        return int(await self._change("forget", tuple(names))) if names else 0

    async def find(self, ids: Sequence[str]) -> list[TaskRow | None]:
        known = {row.id: row for row in rows_of(*await self._run("find", tuple(ids)))}
        return [known.get(task_id) for task_id in ids]

    async def rows(
        self,
        state: DurableState | None = None,
        *,
        after: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        body_max: int | None = None,
    ) -> list[TaskRow]:
        """Return tasks in a state; read a thousand at a time, so they may change in between."""
        rows: list[TaskRow] = []
        asked = -1 if state is None else int(state)
        size = read_size(body_max)
        while len(rows) < limit and after >= 0:
            after, *found = await self._run("rows", asked, after, limit - len(rows), SIZE_MAX, newest_first, size)
            rows += rows_of(*found)
        return rows

    async def ended(self, ids: Sequence[str]) -> list[EndedRow | DurableState | None]:
        answer = await self._run("ended", tuple(ids))
        return [
            ended_of(each) if isinstance(each, bytes) else None if each < 0 else DurableState(each) for each in answer
        ]

    async def history(self, *, before: int | None = None, limit: int = 100) -> list[EndedRow]:
        """Return ended tasks; read a thousand at a time."""
        rows: list[EndedRow] = []
        while len(rows) < limit:
            records = await self._run("history", -1 if before is None else before, min(limit - len(rows), _PAGE))
            rows += [ended_of(record) for record in records if record is not None]
            if len(records) < _PAGE or not rows:
                break
            before = rows[-1].number
        return rows

    async def counts(self) -> dict[DurableState, int]:
        return dict(zip(DurableState, await self._run("counts"), strict=True))

    async def backlog(self) -> list[BacklogRow]:
        """Count tasks, a thousand at a time, so they may change in between."""
        parts = []
        for state in (DurableState.READY, DurableState.BEHIND, DurableState.DEAD, DurableState.PAUSED):
            after, is_more = b"", True
            while is_more:
                after, *found = await self._run("backlog", int(state), after)
                is_more = bool(after)
                for queue, function, count, due_us in zip(*[iter(found)] * 4, strict=True):
                    parts.append((queue.decode(), function.decode().partition(" ")[2], int(state), count, due_us))
        return backlog_rows(parts)

    async def latencies(self) -> dict[str, int]:
        """Return for how long the oldest due task of each queue has waited, in microseconds."""
        answer = await self._run("latencies", LEVELS_MAX)
        return dict(sorted((queue.decode(), age_us) for queue, age_us in zip(*[iter(answer)] * 2, strict=True)))

    async def lanes(self, *, limit: int = 100) -> list[LaneRow]:
        answer = await self._run("lanes", limit)
        return [
            LaneRow(lane=name.decode()[1:], behind_count=count, head_id=head.decode(), head_state=DurableState(state))
            for name, count, head, state in zip(*[iter(answer)] * 4, strict=True)
        ]

    async def wait(self, timeout: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        self._changed.clear()
        return self._cancel_count

    async def aclose(self) -> None:
        check_process(repr(self), self._process)
        self._user_count = max(0, self._user_count - 1)
        if self._user_count or self._listener is None:
            return
        listener, self._listener = self._listener, None
        self._process = 0
        try:
            while not listener.done():  # a client may swallow a cancellation that arrives together with a message
                listener.cancel()
                await asyncio.wait([listener], timeout=_RECONNECT_SECONDS)
        finally:  # also on cancellation
            if self._pause is not None:
                self._pause.cancel()
                self._pause = None
            await self._disconnect()

    # Running scripts

    async def _change(self, name: str, *values: Any) -> Any:
        """Run a script after which tasks may be claimable."""
        answer = await self._run(name, *values)
        self._changed.set()
        return answer

    async def _change_told(self, name: str, *values: Any) -> Any:
        """Run a script of which runners learn at once, as of a cancellation."""
        answer = await self._change(name, *values)
        self._cancel_count += 1
        return answer

    async def _run(self, name: str, *values: Any) -> Any:
        """Run a script; repeat it if the server did not know it, as it then had no effect."""
        if not self._user_count:
            raise StoreUnavailableError(repr(self), NOT_OPEN)
        check_process(repr(self), self._process)
        text = SCRIPTS[name].text
        call = [_sha_of(text), len(self._keys), *self._keys, *arguments_of(name, *values)]
        async with contextlib.nullcontext() if name in _OF_RUNNERS else self._turns:
            return await self._call(text, call)

    async def _call(self, text: str, call: Sequence[Any]) -> Any:
        with self._translated():
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                try:
                    return await self._ask("EVALSHA", *call)
                except Exception as error:
                    if type(error).__name__ != "NoScriptError":  # by name: other clients have their own class
                        raise
                await self._client.script_load(text)
                return await self._ask("EVALSHA", *call)

    async def _ask(self, *command: Any) -> Any:
        """Send a command; the answer is bytes even if the client decodes responses."""
        return await self._client.execute_command(*command, NEVER_DECODE=True)

    async def _disconnect(self) -> None:
        """Close the client, unless it was passed."""
        if self._owns_client:
            await self._client.aclose()

    async def _check(self) -> None:
        """Check that the server is available, usable by this release, and keeps its data.

        Raises:
            StoreUnavailableError: otherwise.
        """
        with self._translated():
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                known = await self._ask("HMGET", self._keys[0], "version", "lost")
                policy = await self._evicting_policy()
                persistence = await self._client.info("persistence", **self._node())
        version, self._lost_count = int(known[0] or VERSION), int(known[1] or 0)
        if version > VERSION:
            reason = (
                f"a newer release has made its keys (layout {version}; this one knows {VERSION}): update this process"
            )
            raise StoreUnavailableError(repr(self), reason, is_permanent=True)
        if policy is not None:
            reason = f"the server may evict tasks (maxmemory-policy {policy}): set maxmemory-policy noeviction"
            raise StoreUnavailableError(repr(self), reason, is_permanent=True)
        if not int(persistence.get("aof_enabled", 1)):
            LOGGER.warning(
                "durable tasks: %r: the server has no append-only file, and loses its data when it stops: set appendonly yes",
                self,
            )

    async def _evicting_policy(self) -> str | None:
        """Return the policy by which the server may evict tasks; None if it may not."""
        memory = await self._client.info("memory", **self._node())
        policy = str(memory.get("maxmemory_policy", "noeviction"))
        return policy if int(memory.get("maxmemory", 0)) and policy.startswith("allkeys") else None

    def _node(self) -> dict[str, Any]:
        """Return the options of a command that a cluster has to be told the node of."""
        return {"target_nodes": self._client.get_node_from_key(self._keys[0])} if self._is_cluster else {}

    async def _listen(self) -> None:
        """Wake waiters when another process has made a change."""
        while True:
            with contextlib.suppress(Exception):  # any error of a client: it is retried
                async with self._client.pubsub() as channel:
                    await channel.subscribe(self._keys[0])
                    await self._hear(channel)
            if self._owns_client:  # its idle connections are dead as well, and each would raise an error
                with contextlib.suppress(Exception):
                    await self._client.connection_pool.disconnect(inuse_connections=False)
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _hear(self, channel: Any) -> None:
        """Receive messages until the server is silent; the first one confirms the subscription."""
        is_silent = False
        now = asyncio.get_running_loop().time
        checked = -math.inf
        while True:
            if now() - checked >= _CHECK_SECONDS:  # also of a server that has taken another one's place
                checked = now()
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    policy = await self._evicting_policy()
                if policy is not None:
                    LOGGER.error(
                        "durable tasks: %r: the server may evict tasks that were put (maxmemory-policy %s): set maxmemory-policy "
                        "noeviction",
                        self,
                        policy,
                    )
            message = await channel.get_message(timeout=_PING_SECONDS)
            if message is not None:
                is_silent = False
                self._cancel_count += message["type"] == "subscribe" or message["data"] in _CANCELLED
                self._told()
            elif is_silent:
                return
            else:
                is_silent = True
                await channel.ping()

    def _told(self) -> None:
        """Wake waiters, at once or soon: others may put more often than it is worth looking."""
        self._is_told = True
        if self._pause is None:
            self._wake()

    def _wake(self) -> None:
        self._pause = None
        if self._is_told:
            self._is_told = False
            self._changed.set()
            self._pause = asyncio.get_running_loop().call_later(_WAKE_SECONDS, self._wake)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the client's errors as one of ours, with a remedy."""
        try:
            yield
        except TimeoutError as error:
            reason = f"no answer within {_TIMEOUT_SECONDS:g} s; whether it was done is not known"
            raise StoreUnavailableError(repr(self), reason) from error
        except Exception as error:
            reason, remedy = remedy_of(error, (each.text for each in SCRIPTS.values())) or (
                f"{type(error).__name__}: {error}".strip(),
                "",
            )
            reason = f"{reason}; {remedy}" if remedy else reason
            raise StoreUnavailableError(repr(self), reason, is_permanent=is_permanent(error)) from error


@lru_cache(64)
def _sha_of(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()  # identifies scripts to servers


def _flags_of(answer: bytes) -> list[bool]:
    return [each == b"1"[0] for each in answer]


def _states_of(numbers: Sequence[int]) -> list[DurableState | None]:
    return [None if number < 0 else DurableState(number) for number in numbers]
