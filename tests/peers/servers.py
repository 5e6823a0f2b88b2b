"""Real Redis servers for tests: one, a cluster, or a group under sentinels, each on free ports of the loopback.

Each is a synchronous context manager. Nothing is persisted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from urllib.parse import quote

import redis

from .processes import HOST, Process, ServerError, wait_until

# The user with which tests control a server, and servers each other, so that ``users`` may switch off the default user.
CONTROL = "control"

SLOT_COUNT = 16_384
SENTINEL_DOWN_MS = 500
SENTINEL_FAILOVER_MS = 3_000


class RedisServer(Process):
    """A Redis server; a context manager that starts and closes it.

    Args:
        password: password of the default user.
        users: rules of the access control list by user name, such as ``{"ann": "on >secret ~* &* +@all"}``.
        replica_of: the server to copy.
        config: further lines of the configuration.

    The servers in wheels have no TLS: put a ``Proxy`` with a certificate before them.
    """

    def __init__(
        self,
        *,
        password: str | None = None,
        users: Mapping[str, str] | None = None,
        replica_of: "RedisServer | None" = None,
        config: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self._password = password
        lines = [
            f"port {self.port}",
            'save ""',
            "appendonly no",
            "repl-diskless-sync-delay 0",
            f"replica-announce-ip {HOST}",
        ]
        lines += [f"masteruser {CONTROL}", f"masterauth {CONTROL}", f"user {CONTROL} on >{CONTROL} ~* &* +@all"]
        lines += [f"user {name} {rules}" for name, rules in (users or {}).items()]
        if password is not None:
            escaped = password.replace("\\", r"\\").replace('"', r"\"")
            lines.append(f'requirepass "{escaped}"')
        if replica_of is not None:
            lines.append(f"replicaof {HOST} {replica_of.port}")
        self._configure([*lines, *config])

    @property
    def url(self) -> str:
        """The URL for users of the library, as the default user."""
        return self.url_of("", self._password)

    @property
    def control_url(self) -> str:
        """The URL with which the tests reach the server with all rights."""
        return self.url_of(CONTROL, CONTROL)

    def url_of(self, user: str, password: str | None) -> str:
        """Return the URL for one user."""
        who = "" if password is None else f"{quote(user, safe='')}:{quote(password, safe='')}@"
        return f"redis://{who}{HOST}:{self.port}/0"

    def flush(self) -> None:
        """Delete all keys and scripts."""
        with self.client() as client:
            client.flushall()
            client.script_flush()

    @property
    def is_master(self) -> bool:
        """True if the server says that it is a master."""
        return bool(self.ask("INFO", "replication")["role"] == "master")


def as_new(server: RedisServer) -> RedisServer:
    """Let a server run again, whatever the test before has done with it, without keys and scripts; return it."""
    server.go_on()
    if not server.is_running:
        server.start()
    server.flush()
    return server


class RedisCluster:
    """Masters that share the slots: ``slots[i]`` belong to ``masters[i]``, as far as no test moves them.

    Args:
        masters: servers.
        replicas: further servers; ``replicas[i]`` copies ``masters[i % len(masters)]``.
    """

    def __init__(self, masters: list[RedisServer], replicas: Sequence[RedisServer] = ()) -> None:
        count = len(masters)
        bounds = [SLOT_COUNT * index // count for index in range(count + 1)]
        self.masters = masters
        self.replicas = list(replicas)
        self.slots = [range(*pair) for pair in pairwise(bounds)]

    @property
    def nodes(self) -> list[RedisServer]:
        """All servers."""
        return [*self.masters, *self.replicas]

    def wait_whole(self, *, seconds: float = 20) -> None:
        """Wait until all nodes see each other, and an owner for each slot."""
        for node in self.nodes:
            wait_until(partial(self._is_whole, node), f"{node!r} sees its cluster whole", seconds=seconds)

    @property
    def url(self) -> str:
        """The URL from which a client of the cluster starts."""
        return self.masters[0].url

    def master_of(self, key: str) -> RedisServer:
        """Return the master that has the slot of a key."""
        slot = self.masters[0].ask("CLUSTER KEYSLOT", key)
        return next(master for master, slots in zip(self.masters, self.slots, strict=True) if slot in slots)

    def flush(self) -> None:
        """Delete all keys and scripts."""
        for master in self.masters:
            master.flush()

    def _join(self) -> None:
        first, *others = self.nodes
        for epoch, (master, slots) in enumerate(zip(self.masters, self.slots, strict=True), start=1):
            master.ask("CLUSTER SET-CONFIG-EPOCH", epoch)  # otherwise they would take a while to agree
            master.ask("CLUSTER ADDSLOTS", *slots)
        for other in others:
            first.ask("CLUSTER MEET", HOST, other.port)
        self.wait_whole()
        for index, replica in enumerate(self.replicas):
            replica.ask("CLUSTER REPLICATE", self.masters[index % len(self.masters)].ask("CLUSTER MYID"))
        for replica in self.replicas:
            wait_until(partial(_copies, replica), f"{replica!r} copies its master")
        for node in self.nodes:
            wait_until(partial(self._knows_replicas, node), f"{node!r} knows the replicas", seconds=20)

    def _knows_replicas(self, node: RedisServer) -> bool:
        known = sum(len(replicas) for _, _, _, *replicas in node.ask("CLUSTER", "SLOTS"))
        return known == len(self.replicas)

    def _is_whole(self, node: RedisServer) -> bool:
        info = node.ask("CLUSTER INFO")
        return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(self.nodes)


def _copies(replica: RedisServer) -> bool:
    """Return True if a replica has the data of its master, and follows it."""
    return bool(replica.ask("INFO", "replication").get("master_link_status") == "up")


@contextmanager
def redis_cluster(master_count: int = 3, *, replica_count: int = 0) -> Iterator[RedisCluster]:
    """Start masters with so many replicas each, divide the slots, and wait until each node sees all others: some 3 s."""
    config = ["cluster-enabled yes", "cluster-node-timeout 2000", f"cluster-announce-ip {HOST}"]
    with ExitStack() as stack:
        count = master_count * (1 + replica_count)
        nodes = [stack.enter_context(RedisServer(config=config)) for _ in range(count)]
        cluster = RedisCluster(nodes[:master_count], nodes[master_count:])
        cluster._join()
        yield cluster


class Sentinel(Process):
    """A sentinel of one master, which needs the votes of ``quorum`` sentinels for a failover."""

    _options = ("--sentinel",)

    def __init__(self, name: str, master: RedisServer, *, quorum: int, down_ms: int = SENTINEL_DOWN_MS) -> None:
        super().__init__()
        lines = [f"port {self.port}", f"sentinel monitor {name} {HOST} {master.port} {quorum}"]
        lines += [f"sentinel auth-user {name} {CONTROL}", f"sentinel auth-pass {name} {CONTROL}"]
        lines += [f"sentinel down-after-milliseconds {name} {down_ms}"]
        self._configure([*lines, f"sentinel failover-timeout {name} {SENTINEL_FAILOVER_MS}"])

    @property
    def control_url(self) -> str:
        """The URL with which the tests reach the sentinel, which has no databases."""
        return f"redis://{HOST}:{self.port}"


class SentinelGroup:
    """Servers, at first a master and its replicas, and their sentinels."""

    name = "main"

    def __init__(self, servers: list[RedisServer], sentinels: list[Sentinel]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports of the sentinels, as clients take them."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    def master(self) -> RedisServer:
        """Return the server that the sentinels call master at present.

        Raises:
            ServerError: if none of them answers.
        """
        for sentinel in self._awake():
            try:
                port = int(self._state(sentinel)["port"])
            except redis.RedisError:
                continue
            return next(server for server in self.servers if server.port == port)
        raise ServerError("no sentinel answers")

    def wait_failed_over(self, old: RedisServer, *, seconds: float = 20) -> RedisServer:
        """Wait until all running sentinels agree on a master other than ``old``, which knows it; return it."""
        wait_until(lambda: self._has_left(old), f"a failover from {old!r} ends", seconds=seconds)
        return self.master()

    def promotions(self) -> int:
        """Return how many failovers the sentinels have told of; with more than one, two masters ran at the same time."""
        logs = [(sentinel.folder / "server.log").read_text(encoding="utf-8") for sentinel in self.sentinels]
        return max(log.count("+switch-master") for log in logs)

    def _has_left(self, old: RedisServer) -> bool:
        states = [self._state(sentinel) for sentinel in self._awake()]
        ports = {int(state["port"]) for state in states}
        is_agreed = len(ports) == 1 and old.port not in ports and {state["flags"] for state in states} == {"master"}
        return is_agreed and self.master().is_master

    def _awake(self) -> list[Sentinel]:
        return [sentinel for sentinel in self.sentinels if sentinel.is_running and not sentinel.is_stopped]

    def _is_ready(self, sentinel: Sentinel) -> bool:
        """Return True if a sentinel knows the others: before that no failover could succeed."""
        state = self._state(sentinel)
        expected = "master", len(self.servers) - 1, len(self.sentinels) - 1
        return (state["flags"], int(state["num-slaves"]), int(state["num-other-sentinels"])) == expected

    def _state(self, sentinel: Sentinel) -> dict[str, str]:
        with sentinel.client(decode_responses=True, protocol=2) as client:
            flat = client.execute_command("SENTINEL", "MASTER", self.name)
        return dict(zip(flat[::2], flat[1::2], strict=True))


@contextmanager
def sentinel_group(
    sentinel_count: int = 1, *, replica_count: int = 1, down_ms: int = SENTINEL_DOWN_MS, config: Iterable[str] = ()
) -> Iterator[SentinelGroup]:
    """Start a master, its replicas and sentinels, and wait until a failover could succeed.

    One sentinel is enough for a failover, which takes 2 to 5 s; three find each other in some 3 s, and then need two.
    A server that is silent for ``down_ms`` counts as down: on a busy machine a short time promotes one replica after the
    other.
    """
    with ExitStack() as stack:
        master = stack.enter_context(RedisServer(config=config))
        replicas = [stack.enter_context(RedisServer(replica_of=master, config=config)) for _ in range(replica_count)]
        for replica in replicas:
            wait_until(partial(_copies, replica), f"{replica!r} copies {master!r}")
        quorum = sentinel_count // 2 + 1
        sentinels = [
            stack.enter_context(Sentinel(SentinelGroup.name, master, quorum=quorum, down_ms=down_ms))
            for _ in range(sentinel_count)
        ]
        group = SentinelGroup([master, *replicas], sentinels)
        for sentinel in sentinels:
            wait_until(partial(group._is_ready, sentinel), f"{sentinel!r} knows the others", seconds=20)
        yield group
