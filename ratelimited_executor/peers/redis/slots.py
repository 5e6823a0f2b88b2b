"""The transport of slots through Redis: sends calls, and receives notifications of hand-overs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._redis.client import client_of
from ratelimited_executor.peers.redis.refusals import refusing
from ratelimited_executor.peers.redis.slot_script import (
    SLOT_SCRIPT,
    slot_arguments_of,
    slot_keys_of,
    slot_reply_of,
    wake_channel_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.fleet.slots import SlotCall, SlotReply

__all__ = ["RedisSlotTransport", "is_copyable"]

_LISTEN_SECONDS: Final = 10.0  # for one message; then listening continues


def is_copyable(redis: Any) -> bool:
    """True for a URL, or for a client of a single server: another client can be made from it."""
    pool = getattr(redis, "connection_pool", None)
    return isinstance(redis, str) or (pool is not None and not hasattr(pool, "sentinel_manager"))


class RedisSlotTransport:
    """Carries calls to Redis, each as one script call; listens on a channel of its own.

    A passed client is copied, because this one runs in another thread, on another event loop; a client of a cluster or
    of a Sentinel is used itself.

    Args:
        redis: a URL or a client.
        group: the group of the peers.
        prefix: the prefix of all keys.
    """

    def __init__(self, redis: Any, group: str, prefix: str) -> None:
        self._group, self._prefix = group, prefix
        self._client, self._owns_client = client_of(redis, user="RedisPeers", retry=None, socket_timeout=None)
        if not self._owns_client and is_copyable(redis):
            pool = redis.connection_pool
            copied = type(pool)(connection_class=pool.connection_class, **pool.connection_kwargs)
            self._client, self._owns_client = type(redis).from_pool(copied), True
        self._keys = slot_keys_of(prefix, group)
        self._sha: str | None = None

    async def call_slots(self, call: SlotCall) -> SlotReply:
        """Run the script once.

        Raises:
            RefusedError: if the server refuses it.
        """
        arguments = slot_arguments_of(call)
        with refusing(SLOT_SCRIPT):
            for _ in range(2):
                if self._sha is None:
                    sha = await self._client.script_load(SLOT_SCRIPT)
                    self._sha = sha.decode() if isinstance(sha, bytes) else str(sha)
                try:
                    return slot_reply_of(
                        await self._client.evalsha(self._sha, len(self._keys), *self._keys, *arguments)
                    )
                except Exception as error:
                    if type(error).__name__ != "NoScriptError":  # by name: other clients have their own class
                        raise
                    self._sha = None
        raise ConnectionError("the server forgets its scripts at once")

    async def listen(self, peer: str, listening: Callable[[], None], woken: Callable[[str], None]) -> None:
        """Listen for this peer's notifications until that fails."""
        messages = self._client.pubsub(ignore_subscribe_messages=True)
        try:
            await messages.subscribe(wake_channel_of(self._prefix, self._group, peer))
            listening()
            while True:
                message = await messages.get_message(
                    timeout=_LISTEN_SECONDS
                )  # listen() ends after a client's socket_timeout
                if message is None:
                    continue
                data = message["data"]
                woken(data.decode() if isinstance(data, bytes) else str(data))
        finally:
            await messages.aclose()

    async def aclose(self) -> None:
        """Close the client, unless it is the one that was passed."""
        if self._owns_client:
            await self._client.aclose()
