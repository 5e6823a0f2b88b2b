"""Stores in Redis, for nodes on several machines.

A cycle has four kinds of keys, all in one slot of a Redis Cluster:

===================  ===========================================================================================
``cycle``            a hash: its shape and its first turn
``complete``         a sorted set: the completed turns, with themselves as scores
``claims``           a hash: for each turn, its owner and the end of its lease, by the server's clock
``done:<turn>``      a set for each running turn: the completed keys
===================  ===========================================================================================

Work whose progress is lost with a server without persistence is run again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.repeat.cycles import check_shape
from ratelimited_executor._forks import check_process
from ratelimited_executor._redis.client import client_of
from ratelimited_executor._redis.lua import LuaScript
from ratelimited_executor.abc import Progress

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["RedisProgress"]


@dataclass(frozen=True, slots=True)
class _Claim:
    turn: int
    owner: str
    lease_ms: int


@dataclass(frozen=True, slots=True)
class _Complete:
    turn: int
    keep_from: int


_CLAIM: Final = LuaScript(__package__, "claim_turn.lua", keys=("complete", "claims"), arguments=_Claim)
_COMPLETE: Final = LuaScript(__package__, "complete_turn.lua", keys=("complete", "claims", "done"), arguments=_Complete)
_DONE_SECONDS: Final = 30 * 86_400  # after which the keys of a turn that was never completed are forgotten


class RedisProgress(Progress):
    """Progress in Redis or Valkey (6.2 or later), for nodes on several machines.

    Claims use the server's clock.

    Args:
        redis: a URL, or an asyncio client of redis-py. A client that you pass is not closed.
        prefix: the prefix of all Redis keys.

    Raises:
        ModuleNotFoundError: without the extra ``redis``.
        TypeError: if an argument has another type.
        ValueError: if the URL or the prefix is not valid.
    """

    def __init__(self, redis: Any, *, prefix: str = "rle") -> None:
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be a str, got {prefix!r}")
        if not prefix or set(prefix) & set("{}"):
            raise ValueError(f"prefix must not be empty or contain braces, got {prefix!r}")
        self._client, self._owns_client = client_of(redis, user="RedisProgress")
        self._prefix = prefix
        self._process = 0  # that uses it
        self._claim = self._client.register_script(_CLAIM.text)
        self._complete = self._client.register_script(_COMPLETE.text)

    async def begin(self, name: str, shape: str, turn: int) -> int:
        check_process("RedisProgress", self._process)
        self._process = os.getpid()
        key = self._key(name, "cycle")
        await self._of(self._client.hsetnx(key, "since", turn))
        await self._of(self._client.hsetnx(key, "shape", shape))
        since, known = await self._of(self._client.hmget(key, ["since", "shape"]))
        check_shape(name, _text(known), shape)
        return int(since)

    async def open_turns(self, name: str, first: int, last: int) -> list[int]:
        found = await self._of(self._client.zrangebyscore(self._key(name, "complete"), first, last))
        complete = {int(turn) for turn in found}
        return [turn for turn in range(first, last + 1) if turn not in complete]

    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        arguments = _Claim(turn, owner, round((until - now) * 1000))
        return bool(await self._claim(keys=self._keys(_CLAIM, name, turn), args=_CLAIM.write(arguments)))

    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        found = await self._of(self._client.smembers(self._key(name, "done", turn)))
        return {bytes.fromhex(_text(key)) for key in found}

    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        key = self._key(name, "done", turn)
        await self._of(self._client.sadd(key, *[each.hex() for each in keys]))  # a client may decode what it reads
        await self._of(self._client.expire(key, _DONE_SECONDS))

    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        arguments = _Complete(turn, keep_from)
        await self._complete(keys=self._keys(_COMPLETE, name, turn), args=_COMPLETE.write(arguments))

    async def aclose(self) -> None:
        """Close the client, unless it was passed."""
        if self._owns_client:
            await self._client.aclose()

    def _key(self, name: str, kind: str, turn: int | None = None) -> str:
        safe = name.translate(_WITHOUT_BRACES)
        return f"{self._prefix}:{{cycle:{safe}}}:{kind}" + ("" if turn is None else f":{turn}")

    def _keys(self, script: LuaScript[Any], name: str, turn: int) -> list[str]:
        """Return the keys of a script; each turn has a ``done`` key of its own."""
        return [self._key(name, kind, turn if kind == "done" else None) for kind in script.keys]

    @staticmethod
    async def _of(answer: Awaitable[Any] | Any) -> Any:
        """Await an answer, which redis-py types as not always awaitable."""
        return await answer


_WITHOUT_BRACES: Final = str.maketrans("{}", "()")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
