"""How far cycles have come, kept in Redis: for nodes on several machines.

A cycle has a hash of its shape and first turn, a sorted set of the turns that are complete, a hash of who has which turn until
when, by Redis's own clock, and a set of keys that are through for each turn under way. All of them lie in one slot of a
Redis Cluster. What is lost with a server that was not persistent is run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.cycles import check_shape
from ratelimited_executor._redis.client import client_of
from ratelimited_executor.abc import Progress

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["RedisProgress"]

_CLAIM: Final = """
-- KEYS: complete, claims. ARGV: turn, owner, milliseconds.
if redis.call('zscore', KEYS[1], ARGV[1]) then return 0 end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('hget', KEYS[2], ARGV[1])
if held then
  local gap = string.find(held, ' ', 1, true)
  if tonumber(string.sub(held, 1, gap - 1)) > now and string.sub(held, gap + 1) ~= ARGV[2] then return 0 end
end
redis.call('hset', KEYS[2], ARGV[1], string.format('%.0f', now + ARGV[3]) .. ' ' .. ARGV[2])
return 1
"""
_COMPLETE: Final = """
-- KEYS: complete, claims, keys through. ARGV: turn, the first turn to keep.
redis.call('zadd', KEYS[1], ARGV[1], ARGV[1])
redis.call('zremrangebyscore', KEYS[1], '-inf', '(' .. ARGV[2])
for _, turn in ipairs(redis.call('hkeys', KEYS[2])) do
  if tonumber(turn) < tonumber(ARGV[2]) then redis.call('hdel', KEYS[2], turn) end
end
redis.call('hdel', KEYS[2], ARGV[1])
redis.call('del', KEYS[3])
"""
_DONE_SECONDS: Final = 30 * 86_400  # after which the keys of a turn that nobody has completed are forgotten


class RedisProgress(Progress):
    """Progress in Redis or Valkey (6.2 or later), for nodes on several machines.

    Claims go by the clock of the server.

    Args:
        redis: a URL, or an asyncio client of redis-py, which is not closed then.
        prefix: of all keys.

    Raises:
        ModuleNotFoundError: without the extra ``redis``.
        TypeError: if an argument has another type.
        ValueError: if the URL is none.
    """

    def __init__(self, redis: Any, *, prefix: str = "rle") -> None:
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be a text, got {prefix!r}")
        if not prefix or set(prefix) & set("{}"):
            raise ValueError(f"prefix must not be empty, and be without braces, got {prefix!r}")
        self._client, self._owns_client = client_of(redis, user="RedisProgress")
        self._prefix = prefix
        self._claim = self._client.register_script(_CLAIM)
        self._complete = self._client.register_script(_COMPLETE)

    async def begin(self, name: str, shape: str, turn: int) -> int:
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
        keys = [self._key(name, "complete"), self._key(name, "claims")]
        return bool(await self._claim(keys=keys, args=[turn, owner, round((until - now) * 1000)]))

    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        found = await self._of(self._client.smembers(self._key(name, f"done:{turn}")))
        return {bytes.fromhex(_text(key)) for key in found}

    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        key = self._key(name, f"done:{turn}")
        await self._of(self._client.sadd(key, *[each.hex() for each in keys]))  # a client may decode what it reads
        await self._of(self._client.expire(key, _DONE_SECONDS))

    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        keys = [self._key(name, kind) for kind in ("complete", "claims", f"done:{turn}")]
        await self._complete(keys=keys, args=[turn, keep_from])

    async def aclose(self) -> None:
        """Close the client, unless it was handed in."""
        if self._owns_client:
            await self._client.aclose()

    def _key(self, name: str, kind: str) -> str:
        safe = name.translate(_WITHOUT_BRACES)
        return f"{self._prefix}:{{cycle:{safe}}}:{kind}"

    @staticmethod
    async def _of(answer: Awaitable[Any] | Any) -> Any:
        """Await an answer: redis-py types it as one that may not have to be."""
        return await answer


_WITHOUT_BRACES: Final = str.maketrans("{}", "()")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
