"""The sides: ours and other limiters, each as its documentation advises, on one server.

An adapter is an asynchronous context manager. What it provides has ``start``, which calls a function at the moment at
which a start is allowed, or ``hold``, which holds a slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bench.harness import has_module
from bench.shared import node, ours

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bench.shared.limit import Task

__all__ = ["ADAPTERS", "SIDES", "Side"]

_RETRY_SECONDS_MIN = 0.001
_WAIT_SECONDS = 30.0  # how long a library that waits by itself does so before it is asked again


@dataclass(frozen=True, slots=True)
class Side:
    """One row.

    Attributes:
        name: the name of the row.
        kind: its adapter.
        variant: which of its algorithms.
        package: the Python package that it needs; "" for none beside ours.
        can: what it can share: "rate", "keys", "slots", "model".
    """

    name: str
    kind: str
    variant: str = ""
    package: str = ""
    can: frozenset[str] = frozenset({"rate", "keys", "model"})

    @property
    def is_ours(self) -> bool:
        """Return whether this is a row of ours."""
        return self.kind == "ours"

    def missing(self, *, may_install: bool) -> str:
        """Return why the side cannot be measured here; "" if it can."""
        if self.kind == "bottleneck":
            return node.missing(may_install=may_install)
        return "" if not self.package or has_module(self.package) else f"{self.package} is not installed"


_OURS = frozenset({"rate", "keys", "slots", "model"})
_RATE = frozenset({"rate"})
SIDES = [
    Side("ours, Paced", "ours", "Paced", can=_OURS - {"slots", "model"}),
    Side("ours, Window", "ours", "Window", can=_OURS),
    Side("ours, Burst", "ours", "Burst", can=_RATE),
    Side("PyrateLimiter", "pyrate", package="pyrate_limiter"),
    Side("throttled-py, GCRA", "throttled", "gcra", package="throttled"),
    Side("throttled-py, GCRA, own waiting", "throttled", "gcra waits", "throttled", _RATE),
    Side("throttled-py, sliding window", "throttled", "sliding_window", package="throttled"),
    Side("throttled-py, sliding window, own waiting", "throttled", "sliding_window waits", "throttled", _RATE),
    Side("limits, moving window", "limits", package="limits"),
    Side("Bottleneck", "bottleneck", can=frozenset({"rate", "keys", "slots"})),
    Side("redis-py, Lock", "lock", package="redis", can=frozenset({"slots"})),
]


class Acquired:
    """A limiter whose starts are allowed one by one.

    Args:
        acquire: waits until a start of a key with a cost in tokens is allowed.
    """

    def __init__(self, acquire: Callable[[int | None, int], Awaitable[None]]) -> None:
        self._acquire = acquire

    async def start(self, body: Callable[[], None], key: int | None, tokens: int) -> None:
        """Call ``body`` when a start is allowed."""
        await self._acquire(key, tokens)
        body()


@contextlib.asynccontextmanager
async def _pyrate(task: Task) -> AsyncIterator[Acquired]:
    """PyrateLimiter: a bucket and a limiter for each limit; the waiters of a limiter queue for its lock in the process."""
    import redis.asyncio  # noqa: PLC0415  # an extra, imported on use
    from pyrate_limiter import Limiter, Rate, RedisBucket  # noqa: PLC0415  # as above

    limit = task.limit
    limiters: dict[str, Any] = {}
    async with redis.asyncio.Redis.from_url(task.backend) as client:

        async def take(name: str, count: int, seconds: float, weight: int = 1) -> None:
            if name not in limiters:
                bucket = await RedisBucket.init([Rate(count, round(1000 * seconds))], client, f"{task.group}{name}")
                limiters.setdefault(name, Limiter(bucket))
            await limiters[name].try_acquire_async("start", weight)

        async def acquire(key: int | None, tokens: int) -> None:
            if tokens and limit.tokens is not None:
                await take("tokens", limit.tokens, limit.seconds, tokens)
            if key is not None and limit.key_count is not None:
                await take(f"key{key}", limit.key_count, 1.0)
            else:
                await take("starts", limit.count, limit.seconds)

        yield Acquired(acquire)


@contextlib.asynccontextmanager
async def _throttled(task: Task) -> AsyncIterator[Acquired]:
    """throttled-py: a key for each limit; a caller sleeps for as long as the answer says, and asks again.

    The variants with their own waiting leave that to the library, which sleeps for 0.2 s at least. The burst of GCRA is
    that of our slack; for keys and tokens it is the number of the period.
    """
    from throttled.asyncio import RedisStore, Throttled, per_duration  # noqa: PLC0415  # an extra, imported on use

    from bench.peers.peer import burst_of  # noqa: PLC0415  # no other side needs it

    limit = task.limit
    using, _, waits = task.variant.partition(" ")
    timeout = _WAIT_SECONDS if waits else -1
    store = RedisStore(server=task.backend)

    def throttled(count: int, seconds: float, burst: int) -> Any:
        quota = per_duration(timedelta(seconds=seconds), count, burst)
        return Throttled(using=using, quota=quota, store=store)

    even = burst_of(round(limit.count / limit.seconds))
    starts = throttled(limit.count, limit.seconds, limit.count if limit.tokens else even)
    keyed = throttled(limit.key_count, 1.0, limit.key_count) if limit.key_count else None
    costly = throttled(limit.tokens, limit.seconds, limit.tokens) if limit.tokens else None

    async def take(limiter: Any, name: str, cost: int = 1) -> None:
        while (answer := await limiter.limit(name, cost=cost, timeout=timeout)).limited:  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(max(_RETRY_SECONDS_MIN, answer.state.retry_after))

    async def acquire(key: int | None, tokens: int) -> None:
        if costly is not None and tokens:
            await take(costly, f"{task.group}-tokens", tokens)
        await (take(starts, task.group) if keyed is None else take(keyed, f"{task.group}-{key}"))

    yield Acquired(acquire)


@contextlib.asynccontextmanager
async def _limits(task: Task) -> AsyncIterator[Acquired]:
    """Limits: it says whether a start is allowed, and when to ask again; the waiting is the caller's."""
    from limits import RateLimitItemPerSecond  # noqa: PLC0415  # an extra, imported on use
    from limits.aio.storage import RedisStorage  # noqa: PLC0415  # as above
    from limits.aio.strategies import MovingWindowRateLimiter  # noqa: PLC0415  # as above

    limit = task.limit
    limiter = MovingWindowRateLimiter(RedisStorage(f"async+{task.backend}", implementation="redispy"))
    whole = max(1, round(limit.seconds))
    starts = RateLimitItemPerSecond(limit.count, whole)
    keyed = RateLimitItemPerSecond(limit.key_count or 1)
    costly = RateLimitItemPerSecond(limit.tokens or 1, whole)

    async def take(item: Any, name: str, cost: int = 1) -> None:
        while not await limiter.hit(item, name, cost=cost):
            stats = await limiter.get_window_stats(item, name)
            await asyncio.sleep(max(_RETRY_SECONDS_MIN, stats.reset_time - time.time()))

    async def acquire(key: int | None, tokens: int) -> None:
        if tokens:
            await take(costly, f"{task.group}-tokens", tokens)
        if key is not None:
            await take(keyed, f"{task.group}-{key}")
        else:
            await take(starts, task.group)

    yield Acquired(acquire)


class _Lock:
    def __init__(self, client: Any, name: str, lease: float) -> None:
        self._client, self._name, self._lease = client, name, lease

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold the lock."""
        async with self._client.lock(self._name, timeout=self._lease):
            yield


@contextlib.asynccontextmanager
async def _lock(task: Task) -> AsyncIterator[_Lock]:
    """Hold the lock of redis-py, one slot, with its defaults: whoever waits asks again after 0.1 s."""
    import redis.asyncio  # noqa: PLC0415  # an extra, imported on use

    async with redis.asyncio.Redis.from_url(task.backend) as client:
        yield _Lock(client, task.group, task.limit.lease)


ADAPTERS: dict[str, Callable[[Task], Any]] = {
    "ours": ours.limiter,
    "pyrate": _pyrate,
    "throttled": _throttled,
    "limits": _limits,
    "lock": _lock,
}
