"""The Redis through which participants of a load meet and exchange figures, and the offset of its clock from ours."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.escapes import visible
from ratelimited_executor._redis.client import client_of, refusal_of
from ratelimited_executor._redis.refusals import remedy_of
from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["KEY_SECONDS", "SharedRedis", "reason_of"]

KEY_SECONDS: Final = 3600  # the lifetime of keys after the end of a load, longer than any exchange
_TIMEOUT_SECONDS: Final = 2.0  # for a connection, and for a reply
_SAMPLES: Final = 5  # of the server's time for a new offset: one of them is rarely delayed


class SharedRedis:
    """A client of Redis without retries.

    Args:
        url: the URL of the server.
        clock: returns monotonic seconds.

    Attributes:
        client: the client.
        errors: the errors that it raises.
        clock: the clock of this machine.

    Raises:
        CommandError: if the extra is missing or the URL cannot be used.
    """

    def __init__(self, url: str, *, clock: Callable[[], float]) -> None:
        reason = refusal_of(url)
        if reason is not None:
            raise CommandError(f"--peers cannot be used: {reason}")
        try:
            from redis.asyncio.retry import Retry  # noqa: PLC0415  # the extra `redis`
            from redis.backoff import NoBackoff  # noqa: PLC0415  # the extra `redis`
            from redis.exceptions import RedisError  # noqa: PLC0415  # the extra `redis`
        except ModuleNotFoundError as error:
            raise CommandError("--peers needs the package redis: pip install 'ratelimited-executor[redis]'") from error
        self.client: Any
        try:
            self.client, _ = client_of(
                url,
                user="--peers",
                decode_responses=True,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise CommandError(f"--peers cannot be used: {error}") from error
        self.errors = (RedisError, OSError)
        self.clock = clock
        self._offset = 0.0  # the server's time minus that of the clock
        self._round_trip = float("inf")  # of the sample that gave the offset

    async def close(self) -> None:
        """Close the connection."""
        with suppress(*self.errors):
            await self.client.aclose()

    async def time(self) -> float:
        """Return the server's time, and update the clock offset if this is the best sample."""
        before = self.clock()
        seconds, microseconds = await self.client.time()
        round_trip = self.clock() - before
        now = int(seconds) + int(microseconds) / 1e6
        if round_trip < self._round_trip:
            self._round_trip, self._offset = round_trip, now - (before + round_trip / 2)
        return now

    async def fresh_time(self) -> float:
        """Return the server's time, with a new clock offset: the clocks of machines drift apart."""
        self._round_trip = float("inf")
        for _ in range(_SAMPLES):
            now = await self.time()
        return now

    def on_own_clock(self, server_time: float) -> float:
        """Convert the server's time to that of the clock."""
        return server_time - self._offset

    async def put(self, key: str, texts: Mapping[str, str], *, seconds: int) -> None:
        """Write texts into a hash by field, for so many seconds."""
        async with self.client.pipeline() as pipeline:
            pipeline.hset(key, mapping=texts)
            pipeline.expire(key, seconds)
            await pipeline.execute()

    async def put_once(self, key: str, field: str, text: str, *, seconds: int) -> str:
        """Write a text into a hash, for so many seconds, unless the field has one; return the text that it has."""
        async with self.client.pipeline() as pipeline:
            pipeline.hsetnx(key, field, text)
            pipeline.expire(key, seconds)
            pipeline.hget(key, field)
            *_, found = await pipeline.execute()
        return str(found)


def reason_of(error: BaseException) -> str:
    """Return the server's message with a remedy, or the error of the connection; without a full stop at its end."""
    refusal = remedy_of(error)
    if refusal is None:
        return visible(str(error)).rstrip(".") or type(error).__name__
    return "; ".join(visible(part) for part in refusal if part)
