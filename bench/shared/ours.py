"""Ours: everything that this section knows of the library, by public names alone.

A backend is a URL of Redis. A further one, such as a file or PostgreSQL, is one more line of ``peers_of``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bench.shared.limit import Limit, Task

__all__ = ["Ours", "limiter", "peers_of"]


def peers_of(backend: str, group: str, *, lease: float) -> Any:
    """Return what a manager gets as ``peers=``."""
    from ratelimited_executor.peers import RedisPeers  # noqa: PLC0415  # needs an extra

    return RedisPeers(backend, group, lease=lease)


class Ours:
    """One executor as a limiter, or one pool of slots."""

    def __init__(self, executor: Any, slots: Any) -> None:
        self._executor = executor
        self._slots = slots

    async def start(self, body: Callable[[], None], key: int | None, tokens: int) -> None:
        """Call ``body`` when a start is allowed."""
        settings: dict[str, Any] = {} if key is None else {"key": key}
        if tokens:
            settings["cost"] = {"tokens": tokens}
        async with self._executor.permit(**settings):
            body()

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold a slot."""
        async with self._slots.hold():
            yield


@contextlib.asynccontextmanager
async def limiter(task: Task) -> AsyncIterator[Ours]:
    """Join the group."""
    from ratelimited_executor import ExecutorManager  # noqa: PLC0415  # not needed by the other sides

    limit = task.limit
    async with ExecutorManager(peers=peers_of(task.backend, task.group, lease=limit.lease)) as manager:
        if limit.slots is not None:
            yield Ours(None, manager.slots("pool", limit=limit.slots))
        else:
            yield Ours(manager.executor("limit", drain_timeout=0, **_settings(task.variant, limit)), None)


def _settings(variant: str, limit: Limit) -> dict[str, Any]:
    from ratelimited_executor import Burst, Paced, Window  # noqa: PLC0415  # as above

    policies = {"Paced": Paced(), "Window": Window(), "Burst": Burst(max(1, limit.count // 4))}
    settings: dict[str, Any] = {"rate": f"{limit.count}/{limit.seconds:g}s", "policy": policies[variant]}
    if limit.key_count is not None:
        settings["key_rate"] = f"{limit.key_count}/s"
    if limit.tokens is not None:
        settings["resources"] = {"tokens": f"{limit.tokens}/{limit.seconds:g}s"}
    return {**settings, **limit.more}
