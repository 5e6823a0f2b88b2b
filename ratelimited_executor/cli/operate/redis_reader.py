"""A connection to a group's Redis keys, for commands that show or change them."""

from __future__ import annotations

from copy import copy
from typing import Any, Final, Protocol, Self

from ratelimited_executor._core.escapes import visible
from ratelimited_executor._redis.client import option_refusal_of, refusal_of
from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.peers.redis.slot_inspection import SlotsView, slots_of
from ratelimited_executor.peers.redis.slot_script import slot_keys_of
from ratelimited_executor.peers.redis.ticket_inspection import limit_names_of, pattern_of
from ratelimited_executor.peers.redis.ticket_script import ticket_keys_of

__all__ = ["GARBLED", "SCAN_COUNT", "GroupOptions", "RedisReadError", "RedisReader"]

_TIMEOUT_SECONDS: Final = 2.0  # for a connection, and for a reply
SCAN_COUNT: Final = 1000  # keys scanned in one call
_GROUPS_NAMED_MAX: Final = 10
GARBLED: Final = (ArithmeticError, LookupError, TypeError, ValueError)  # not as the script writes it


class GroupOptions(Protocol):
    """The group to read, and its server."""

    @property
    def url(self) -> str:
        """The URL of the server."""
        ...

    @property
    def group(self) -> str:
        """The name of the group."""
        ...

    @property
    def prefix(self) -> str:
        """The prefix of all Redis keys."""
        ...


class RedisReadError(Exception):
    """Redis could not be read; the message says why."""


class RedisReader:
    """Reads the keys of one group; a context manager that closes the connection.

    Args:
        options: the group and its server.
        command: the command that reads it, for messages.
        argument: the argument with the URL, for messages.

    Raises:
        CommandError: if the extra is missing, the URL cannot be used, or no server responds there.
    """

    def __init__(self, options: GroupOptions, *, command: str, argument: str = "--redis") -> None:
        try:
            import redis  # noqa: PLC0415  # the extra `redis`
            from redis.backoff import NoBackoff  # noqa: PLC0415  # the extra `redis`
            from redis.exceptions import RedisClusterException, RedisError  # noqa: PLC0415  # the extra `redis`
            from redis.retry import Retry  # noqa: PLC0415  # the extra `redis`
        except ModuleNotFoundError as error:
            raise CommandError(
                f"{command} needs the package redis: pip install 'ratelimited-executor[redis]'"
            ) from error
        self._errors = (RedisError, RedisClusterException, OSError)
        self._prefix, self._group = options.prefix, options.group
        self._client: Any = None
        reason = refusal_of(options.url)
        if reason is not None:
            raise CommandError(f"{argument} cannot be used: {reason}")
        try:
            self._client = _client_of(redis.Redis, options.url, retry=Retry(NoBackoff(), 0))
            self._is_cluster = _is_cluster(self._client, redis.ResponseError)
            if self._is_cluster:
                self._client.close()
                self._client = _client_of(redis.RedisCluster, options.url)
        except (ValueError, TypeError) as error:  # TypeError: an option in the URL that redis-py does not know
            self.close()
            raise CommandError(f"{argument} cannot be used: {option_refusal_of(error)}") from None
        except self._errors as error:
            self.close()
            raise CommandError(self._why(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            if hasattr(self._client, "disconnect_connection_pools"):  # of a cluster: close() leaves them open
                self._client.disconnect_connection_pools()

    def read_slots(self) -> SlotsView | None:
        """Read the slots of the group; None if it has none.

        Raises:
            RedisReadError: if Redis cannot be read.
        """
        try:
            seconds, microseconds = self._client.time(**self._node())
            slots, held, line, ends = slot_keys_of(self._prefix, self._group)
            state = self._client.hgetall(slots)
            if not state:
                return None
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.zrange(held, 0, -1)
                pipeline.zrange(line, 0, -1)
                pipeline.zrange(ends, 0, -1, withscores=True)
                holding, waiting, scored = pipeline.execute()
            return slots_of(seconds * 1_000_000 + microseconds, state, holding, waiting, dict(scored))
        except (*self._errors, *GARBLED) as error:
            raise RedisReadError(self._why(error)) from error

    def for_group(self, group: str) -> Self:
        """Return a reader of another group on the connections of this one, which alone closes them."""
        other = copy(self)
        other._group = group  # noqa: SLF001  # a copy of itself
        return other

    def limit_names(self) -> dict[str, list[str]]:
        """Find the names of the limits of all groups of the prefix, in one scan of all keys.

        Raises:
            RedisReadError: if Redis cannot be read.
        """
        try:
            keys = list(self._client.scan_iter(match=f"{pattern_of(self._prefix, key='')}[st]*", count=SCAN_COUNT))
        except self._errors as error:
            raise RedisReadError(self._why(error)) from error
        return limit_names_of(keys, self._prefix)

    def why_nothing(self, what: str) -> str:
        """Return a message that the group has none of a kind, with the existing groups in case of a misspelling.

        Raises:
            RedisReadError: if Redis cannot be read.
        """
        groups = list(self.limit_names())
        named = ", ".join(map(visible, groups[:_GROUPS_NAMED_MAX])) + (
            ", ..." if len(groups) > _GROUPS_NAMED_MAX else ""
        )
        hint = f"the groups of this prefix are: {named}" if groups else "there is no group of this prefix"
        return f"No {what} in group {self._group!r} of prefix {self._prefix!r}: {hint}"

    def _node(self) -> dict[str, Any]:
        """Return the node with the group's hash slot, as an option of a cluster's commands."""
        if not self._is_cluster:
            return {}
        return {"target_nodes": self._client.get_node_from_key(ticket_keys_of(self._prefix, self._group, "")[0])}

    def _why(self, error: Exception, what: str = "read") -> str:
        reason = f"{type(error).__name__}: {error}" if isinstance(error, GARBLED) else str(error)
        return f"Redis cannot be {what}: {visible(reason) or type(error).__name__}"


def _client_of(kind: Any, url: str, **options: Any) -> Any:
    return kind.from_url(
        url,
        **options,
        decode_responses=True,
        encoding_errors="replace",
        socket_connect_timeout=_TIMEOUT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
    )


def _is_cluster(client: Any, refused: type[Exception]) -> bool:
    """True if a server is a cluster node; a server that refuses the question is treated as a single one."""
    try:
        return bool(int(client.info("cluster").get("cluster_enabled", 0)))
    except refused:
        return False
