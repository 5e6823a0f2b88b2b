"""Authorities that a group shares its limits by, each with the faults that it can have.

A backend tells the processes how to reach it (``peers``, see ``worker.py``), and faults use its methods. A fault names the
topology that it needs: ``any`` is what every authority has; a ``server`` can also be killed, started again, and stopped,
and the other ones are those of Redis and Valkey. A new authority, such as a file or another database, is a function here
for each topology that it has, in ``AUTHORITIES``, and one function in ``worker.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..binaries import choose
from ..processes import wait_until
from ..proxy import Proxy
from ..servers import RedisCluster, RedisServer, SentinelGroup, redis_cluster, sentinel_group
from .clock import Clock

FAILOVER_SECONDS = 30
SENTINEL_DOWN_MS = 1500  # with a third of it a busy machine gets a second failover, and has two masters meanwhile
# What the documentation says against two masters.
ONE_MASTER = ("min-replicas-to-write 1", "min-replicas-max-lag 1")
# What a process needs for every kind of limit, as the documentation says.
RIGHTS = (
    "~{rle:battery}:* resetchannels &{rle:battery}::slots:* -@all +evalsha +script|load +time +info +exists +hget +hmget "
    "+hset +hdel +hlen +hgetall +del +pexpire +zadd +zrem +zcard +zcount +zscore +zlexcount +zrange +zrangebylex +zrangebyscore +publish "
    "+subscribe +unsubscribe"
)


class Backend:
    """One authority, without faults of its own.

    Attributes:
        peers: by which each process makes its peers.
        environment: of the processes, beside that of the tests.
    """

    def __init__(self, peers: dict[str, Any], environment: dict[str, str] | None = None) -> None:
        self.peers = peers
        self.environment = environment or {}


class OneServer(Backend):
    """One server, which can be killed and stopped, and asked for what is wished.

    Args:
        server: the server.
        peers: options beside its URL.
    """

    def __init__(self, server: RedisServer, **peers: Any) -> None:
        super().__init__({"kind": "redis", "url": server.url, **peers})
        self.server = server


class BehindProxy(OneServer):
    """One server behind a proxy."""

    def __init__(self, server: RedisServer, proxy: Proxy) -> None:
        super().__init__(server, url=proxy.url)
        self.proxy = proxy


class PartlyBehindProxy(OneServer):
    """One server, and a proxy for the processes that are told to use it."""

    def __init__(self, server: RedisServer, proxy: Proxy) -> None:
        super().__init__(server)
        self.proxy = proxy


class WithPasswords(OneServer):
    """One server with a user of the least rights, whose password is in a file that the processes read."""

    user = "app"

    def __init__(self, server: RedisServer, file: Path) -> None:
        super().__init__(server, credentials=str(file))
        self.file = file
        self._number = 0
        self._old = ""
        self.add_password()

    def add_password(self) -> None:
        """Add a password to the user's, and write it to the file."""
        self._number += 1
        self.server.ask("ACL", "SETUSER", self.user, f">secret{self._number}")
        self.file.write_text(f"{self.user} secret{self._number}", encoding="ascii")
        self._old, self._now = getattr(self, "_now", ""), f"secret{self._number}"

    def remove_old_password(self) -> None:
        """Remove the password before, and end all connections of the user."""
        self.server.ask("ACL", "SETUSER", self.user, f"<{self._old}")
        self.server.ask("CLIENT", "KILL", "USER", self.user)


class WithClock(OneServer):
    """One server whose clock can be stepped."""

    def __init__(self, server: RedisServer, clock: Clock) -> None:
        super().__init__(server)
        self.clock = clock


class Sentinels(Backend):
    """A master, replicas and sentinels."""

    def __init__(self, group: SentinelGroup) -> None:
        super().__init__({"kind": "redis", "sentinels": group.addresses, "master": group.name})
        self.group = group


class Cluster(Backend):
    """Masters that share the slots, each with a replica."""

    def __init__(self, cluster: RedisCluster) -> None:
        super().__init__({"kind": "redis", "url": cluster.url, "cluster": True})
        self.cluster = cluster

    def owner(self) -> tuple[int, RedisServer, RedisServer]:
        """Return the slot of the group's keys, its master, and a replica of that."""
        nodes = [node for node in self.cluster.nodes if node.is_running and not node.is_stopped]
        slot = nodes[0].ask("CLUSTER KEYSLOT", "{rle:battery}:")
        by_port = {node.port: node for node in self.cluster.nodes}
        for begin, end, master, *replicas in nodes[0].ask("CLUSTER SLOTS"):
            if begin <= slot <= end:
                return slot, by_port[master[1]], by_port[replicas[0][1]]
        raise AssertionError(f"nobody has slot {slot}")


def wait_master(server: RedisServer, *, seconds: float = FAILOVER_SECONDS) -> None:
    """Wait until a server says that it is a master."""
    wait_until(lambda: server.is_master, f"{server!r} is a master", seconds=seconds)


# Topologies, by the names that faults use.

Topology = Callable[[ExitStack], Backend]


def _server(stack: ExitStack, **options: Any) -> RedisServer:
    return stack.enter_context(RedisServer(config=["enable-debug-command yes"], **options))


def _one(stack: ExitStack) -> Backend:
    return OneServer(_server(stack))


def _with_log(stack: ExitStack) -> Backend:
    config = ["appendonly yes", "appendfsync everysec", "enable-debug-command yes"]
    return OneServer(stack.enter_context(RedisServer(config=config)))


def _with_safe_log(stack: ExitStack) -> Backend:
    config = ["appendonly yes", "appendfsync always", "enable-debug-command yes"]
    return OneServer(stack.enter_context(RedisServer(config=config)))


def _proxied(stack: ExitStack) -> Backend:
    server = _server(stack)
    return BehindProxy(server, stack.enter_context(Proxy(server.port)))


def _with_tls(stack: ExitStack) -> Backend:
    from ..certificates import make_certificate

    server = _server(stack)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return BehindProxy(server, stack.enter_context(Proxy(server.port, certificate=make_certificate(folder))))


def _partly(stack: ExitStack) -> Backend:
    server = _server(stack)
    return PartlyBehindProxy(server, stack.enter_context(Proxy(server.port)))


def _with_passwords(stack: ExitStack) -> Backend:
    server = _server(stack, users={"default": "off", WithPasswords.user: f"on {RIGHTS}"})
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return WithPasswords(server, folder / "password")


def _with_clock(stack: ExitStack) -> Backend:
    clock = Clock(Path(stack.enter_context(tempfile.TemporaryDirectory())))
    stack.callback(clock.close)
    server = RedisServer(config=["enable-debug-command yes"])
    server.environment = clock.environment
    return WithClock(stack.enter_context(server), clock)


def _with_clock_of_processes(stack: ExitStack) -> Backend:
    clock = Clock(Path(stack.enter_context(tempfile.TemporaryDirectory())))
    stack.callback(clock.close)
    backend = WithClock(_server(stack), clock)
    backend.environment = clock.environment
    return backend


def _sentinels(stack: ExitStack) -> Backend:
    return Sentinels(
        stack.enter_context(sentinel_group(3, replica_count=2, down_ms=SENTINEL_DOWN_MS, config=ONE_MASTER))
    )


def _unprotected(stack: ExitStack) -> Backend:
    return Sentinels(stack.enter_context(sentinel_group(3, replica_count=2, down_ms=SENTINEL_DOWN_MS)))


def _cluster(stack: ExitStack) -> Backend:
    return Cluster(stack.enter_context(redis_cluster(3, replica_count=1)))


REDIS_TOPOLOGIES: dict[str, Topology] = {
    "any": _one, "server": _one, "redis": _one, "log": _with_log, "safe log": _with_safe_log, "proxy": _proxied,
    "tls": _with_tls, "partition": _partly, "passwords": _with_passwords, "clock": _with_clock,
    "clock of processes": _with_clock_of_processes, "sentinels": _sentinels, "unprotected": _unprotected,
    "cluster": _cluster,
}  # fmt: skip
# Authorities other than a Redis or Valkey, by the name that the command takes as a server.
AUTHORITIES: dict[str, Mapping[str, Topology]] = {}


def topologies_of(server: str) -> Mapping[str, Topology]:
    """Return what a server can be part of."""
    return AUTHORITIES.get(server, REDIS_TOPOLOGIES)


@contextmanager
def backend(topology: str, server: str) -> Iterator[Backend]:
    """Start an authority.

    Args:
        topology: one of ``topologies_of(server)``.
        server: a name of ``AUTHORITIES``, or ``redis``, ``valkey``, ``debian``, or the path of a server's program.
    """
    with ExitStack() as stack:
        if server not in AUTHORITIES:
            stack.enter_context(choose(server))
        yield topologies_of(server)[topology](stack)
