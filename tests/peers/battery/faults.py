"""Faults: each is a function that returns once it is over, with the topology that it needs."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis

from .backends import Backend, wait_master
from .group import Group


TWO_MASTERS = "the sentinels promoted a second replica while the first went on as a master"


@dataclass
class Scene:
    """What a fault happens to.

    Attributes:
        over: when it ended, if it returned later than that.
        notes: what else is worth a word.
    """

    backend: Any
    group: Group
    over: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def server(self) -> Any:
        """The server."""
        return self.backend.server

    def some(self, count: int = 2) -> list[int]:
        """Return some of the processes: the first, but never all."""
        return list(self.group.pids)[: min(count, len(self.group.pids) - 1)]

    def note_failover(self, since: float) -> None:
        """Note how long a failover took."""
        self.notes.append(f"failover in {time.monotonic() - since:.1f} s")

    def wait_failed_over(self, old: Any, since: float) -> None:
        """Wait until the sentinels have promoted another master, and note how long that took."""
        self.backend.group.wait_failed_over(old)
        self.note_failover(since)
        if self.backend.group.promotions() > 1:
            self.notes.append(TWO_MASTERS)


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: by which the command knows it.
        topology: what it needs, see ``backends.py``.
        happen: lets it happen to a scene.
    """

    name: str
    topology: str
    happen: Callable[[Scene], None]

    @property
    def text(self) -> str:
        """One line that says what happens."""
        return (self.happen.__doc__ or "").strip().splitlines()[0]


FAULTS: dict[str, Fault] = {}


def fault(topology: str) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Register a fault."""

    def register(happen: Callable[[Scene], None]) -> Callable[[Scene], None]:
        name = happen.__name__
        FAULTS[name] = Fault(name, topology, happen)
        return happen

    return register


def again(action: Callable[[], object], seconds: float, gap: float) -> None:
    """Repeat an action; what the server refuses meanwhile does not matter."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(redis.RedisError):
            action()
        time.sleep(gap)


# Processes: for every authority.


@fault("any")
def none(scene: Scene) -> None:
    """Nothing happens."""


@fault("any")
def processes_killed(scene: Scene) -> None:
    """Two processes are killed, and replaced."""
    for process in scene.some():
        scene.group.signal(process, signal.SIGKILL)
    scene.over = time.monotonic()
    scene.group.add(2)


@fault("any")
def processes_stopped(scene: Scene) -> None:
    """Two processes are stopped for 4 s, twice the lease."""
    stopped = scene.some()
    for process in stopped:
        scene.group.signal(process, signal.SIGSTOP)
    time.sleep(4)
    for process in stopped:
        scene.group.signal(process, signal.SIGCONT)


@fault("any")
def loops_blocked(scene: Scene) -> None:
    """Two event loops are blocked for 3 s."""
    for process in scene.some():
        scene.group.tell(process, block=3)
    time.sleep(3)


@fault("any")
def rolling(scene: Scene) -> None:
    """All processes leave in order, one after the other, and each is replaced."""
    for process in list(scene.group.pids):
        scene.group.signal(process, signal.SIGTERM)
        scene.group.add(1)
        time.sleep(0.5)


@fault("any")
def joining(scene: Scene) -> None:
    """Three more processes join."""
    scene.group.add(3)


@fault("any")
def lowered(scene: Scene) -> None:
    """Limits are lowered by one process for 4 s, and set back by another."""
    one, other = list(scene.group.pids)[:2]
    names = {family["name"] for family in scene.group._families}

    def tell(process: int, wishes: dict[str, dict[str, Any]]) -> None:
        scene.group.tell(process, set={name: values for name, values in wishes.items() if name in names})

    tell(one, {"pace": {"rate": "30/s"}, "window": {"rate": "25/s"}, "pool": {"limit": 2}, "slots": {"limit": 0}})
    time.sleep(4)
    tell(other, {"pace": {"rate": "60/s"}, "window": {"rate": "50/s"}, "pool": {"limit": 5}, "slots": {"limit": 4}})


# One server.


@fault("server")
def kill(scene: Scene) -> None:
    """The server is killed, and comes back empty after a second."""
    scene.server.kill()
    time.sleep(1)
    scene.server.start()


@fault("server")
def restart(scene: Scene) -> None:
    """The server is killed, and comes back empty at once."""
    scene.server.restart()


@fault("server")
def stop(scene: Scene) -> None:
    """The server is stopped for 3 s, with all connections open."""
    scene.server.stop()
    time.sleep(3)
    scene.server.go_on()


# Commands of Redis.


@fault("redis")
def pause(scene: Scene) -> None:
    """The server lets all clients wait for 2 s."""
    scene.server.ask("CLIENT", "PAUSE", 2000, "ALL")
    time.sleep(2)


@fault("redis")
def slow_command(scene: Scene) -> None:
    """The server is busy with one command for 1.5 s."""
    scene.server.ask("DEBUG", "SLEEP", "1.5")


@fault("redis")
def flush_all(scene: Scene) -> None:
    """All keys are deleted."""
    scene.server.ask("FLUSHALL")


@fault("redis")
def flush_often(scene: Scene) -> None:
    """All keys are deleted three times, 1.5 s apart."""
    for _ in range(3):
        scene.server.ask("FLUSHALL")
        scene.over = time.monotonic()
        time.sleep(1.5)


@fault("redis")
def delete_keys(scene: Scene) -> None:
    """Ten keys of the group are deleted, one after the other, as a server that evicts would."""
    draw = random.Random(1)
    with scene.server.client() as client:
        for _ in range(10):
            keys = sorted(client.scan_iter("{rle:battery}:*"))
            if keys:
                client.delete(draw.choice(keys))
            scene.over = time.monotonic()
            time.sleep(0.3)


@fault("redis")
def old_memory(scene: Scene) -> None:
    """The server is killed, and comes back with its state of 3 s ago."""
    scene.server.ask("SAVE")
    time.sleep(3)
    scene.server.restart()


@fault("redis")
def reload(scene: Scene) -> None:
    """The server saves all keys, and reads them anew."""
    scene.server.ask("DEBUG", "RELOAD")


@fault("log")
def log(scene: Scene) -> None:
    """The server is killed, and comes back with what its log has, written each second."""
    scene.server.restart()


@fault("safe log")
def safe_log(scene: Scene) -> None:
    """The server is killed, and comes back with all that it has answered."""
    scene.server.restart()


@fault("redis")
def client_kill(scene: Scene) -> None:
    """All connections are ended every half a second, for 5 s."""
    for_all = [("CLIENT", "KILL", "TYPE", kind) for kind in ("normal", "pubsub")]
    again(lambda: [scene.server.ask(*each) for each in for_all], 5, 0.5)


@fault("redis")
def script_flush(scene: Scene) -> None:
    """All scripts are forgotten every 0.3 s, for 4 s."""
    again(lambda: scene.server.ask("SCRIPT", "FLUSH"), 4, 0.3)


@fault("redis")
def evict(scene: Scene) -> None:
    """The server has too little memory, and evicts any keys."""
    with scene.server.client(decode_responses=True) as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 300_000)
        for index in range(4000):
            with contextlib.suppress(redis.RedisError):
                client.set(f"other:{index}", "x" * 500)
            if index % 400 == 0:
                time.sleep(0.2)
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        kept = client.keys("{rle:battery}:*")
        scene.notes.append(f"{len(kept)} keys of the group kept")


@fault("redis")
def out_of_memory(scene: Scene) -> None:
    """The server has no memory for what it should write, for 3 s."""
    scene.server.ask("CONFIG", "SET", "maxmemory", 100_000)
    time.sleep(3)
    scene.server.ask("CONFIG", "SET", "maxmemory", 0)


@fault("redis")
def rights_withdrawn(scene: Scene) -> None:
    """The user may not run scripts for 3 s."""
    scene.server.ask("ACL", "SETUSER", "default", "-evalsha", "-eval", "-publish")
    time.sleep(3)
    scene.server.ask("ACL", "SETUSER", "default", "+@all")


@fault("passwords")
def least_rights(scene: Scene) -> None:
    """The processes' user has the least rights that the documentation names."""
    refused = {entry["object"] for entry in _acl_log(scene)} - {"client|setinfo", "client"}
    if refused:
        scene.notes.append(f"refused: {', '.join(sorted(refused))}")


def _acl_log(scene: Scene) -> list[dict[str, Any]]:
    with scene.server.client(decode_responses=True) as client:
        return list(client.acl_log(count=1000))


@fault("passwords")
def password_rotation(scene: Scene) -> None:
    """The password changes: first both are valid, and then the old one is removed and its connections ended."""
    scene.backend.add_password()
    time.sleep(1)
    scene.backend.remove_old_password()


@fault("passwords")
def password_forgotten(scene: Scene) -> None:
    """The user is switched off for 2 s, and its connections are ended."""
    scene.server.ask("ACL", "SETUSER", scene.backend.user, "off")
    scene.server.ask("CLIENT", "KILL", "USER", scene.backend.user)
    time.sleep(2)
    scene.server.ask("ACL", "SETUSER", scene.backend.user, "on")


# The network.


@fault("tls")
def tls_cut(scene: Scene) -> None:
    """Connections are encrypted; all are reset, and refused for a second."""
    scene.backend.proxy.cut()
    time.sleep(1)
    scene.backend.proxy.mend()


def _delayed(scene: Scene, seconds: float) -> None:
    scene.backend.proxy.delay, scene.backend.proxy.jitter = seconds / 2, seconds / 10
    time.sleep(5)
    scene.backend.proxy.delay = scene.backend.proxy.jitter = 0.0


@fault("proxy")
def net_5ms(scene: Scene) -> None:
    """A round trip takes 5 ms, for 5 s."""
    _delayed(scene, 0.005)


@fault("proxy")
def net_50ms(scene: Scene) -> None:
    """A round trip takes 50 ms, for 5 s."""
    _delayed(scene, 0.05)


@fault("proxy")
def net_loss(scene: Scene) -> None:
    """One in twenty packets is sent again after 200 ms, for 5 s."""
    scene.backend.proxy.resent = 0.05
    time.sleep(5)
    scene.backend.proxy.resent = 0.0


@fault("proxy")
def net_lost_replies(scene: Scene) -> None:
    """One in twenty replies is lost with its connection, for 5 s."""
    scene.backend.proxy.drop_replies = 0.05
    time.sleep(5)
    scene.backend.proxy.drop_replies = 0.0


@fault("proxy")
def net_stall(scene: Scene) -> None:
    """Nothing passes for 3 s, and then all that was sent."""
    scene.backend.proxy.stall()
    time.sleep(3)
    scene.backend.proxy.go_on()


@fault("proxy")
def net_cut(scene: Scene) -> None:
    """All connections are reset, and refused for 3 s."""
    scene.backend.proxy.cut()
    time.sleep(3)
    scene.backend.proxy.mend()


@fault("proxy")
def net_silent(scene: Scene) -> None:
    """All that is sent for 3 s is lost, and connections stay open."""
    scene.backend.proxy.blackhole()
    time.sleep(3)
    scene.backend.proxy.mend()


@fault("partition")
def net_partition(scene: Scene) -> None:
    """Three more processes are cut off from the server for 4 s, while the others reach it."""
    scene.group.add(3, url=scene.backend.proxy.url)
    time.sleep(3)
    scene.backend.proxy.blackhole()
    time.sleep(4)
    scene.backend.proxy.mend()


# Clocks.


def _steps(scene: Scene, *steps: float, gap: float = 0.7) -> None:
    for step in steps:
        scene.backend.clock.set(step)
        scene.over = time.monotonic()
        time.sleep(gap)


@fault("clock")
def clock_forward(scene: Scene) -> None:
    """The server's clock goes forward by 30 s."""
    _steps(scene, 30)


@fault("clock")
def clock_back(scene: Scene) -> None:
    """The server's clock goes back by 30 s."""
    _steps(scene, -30)


@fault("clock")
def clock_small(scene: Scene) -> None:
    """The server's clock goes forward by half a second, six times."""
    _steps(scene, *(0.5 * count for count in range(1, 7)))


@fault("clock")
def clock_back_small(scene: Scene) -> None:
    """The server's clock goes back by 0.3 s, six times."""
    _steps(scene, *(-0.3 * count for count in range(1, 7)))


@fault("clock")
def clock_tiny(scene: Scene) -> None:
    """The server's clock is slewed by steps of 10 ms, forward and back."""
    _steps(scene, *(0.01 * count for count in (1, 2, 3, 2, 1, 0)))


@fault("clock")
def clock_joining(scene: Scene) -> None:
    """The server's clock goes forward by 3 s twice, and each time processes join at once."""
    for step in (3, 6):
        scene.backend.clock.set(step)
        scene.group.add(2)


@fault("clock of processes")
def clock_of_processes(scene: Scene) -> None:
    """The wall clock of all processes goes forward by an hour, and back by two."""
    _steps(scene, 3600, -3600, gap=1.5)


# Failovers.


@fault("sentinels")
def sentinel_kill(scene: Scene) -> None:
    """The master is killed, and a replica promoted."""
    old, start = scene.backend.group.master(), time.monotonic()
    old.kill()
    scene.wait_failed_over(old, start)


@fault("sentinels")
def sentinel_lag(scene: Scene) -> None:
    """The master is killed, and its writes of the last 1.5 s have reached no replica."""
    old = scene.backend.group.master()
    replicas = [server for server in scene.backend.group.servers if server is not old]
    for replica in replicas:
        replica.stop()
    time.sleep(1.5)
    start = time.monotonic()
    old.kill()
    for replica in replicas:
        replica.go_on()
    scene.wait_failed_over(old, start)


@fault("sentinels")
def sentinel_stop(scene: Scene) -> None:
    """The master is stopped, a replica promoted, and a second later the old master goes on."""
    old, start = scene.backend.group.master(), time.monotonic()
    old.stop()
    scene.wait_failed_over(old, start)
    scene.over = time.monotonic()
    time.sleep(1)
    old.go_on()


@fault("sentinels")
def sentinel_command(scene: Scene) -> None:
    """A failover is ordered while all servers run."""
    old, start = scene.backend.group.master(), time.monotonic()
    scene.backend.group.sentinels[0].ask("SENTINEL", "FAILOVER", scene.backend.group.name)
    scene.wait_failed_over(old, start)


@fault("unprotected")
def sentinel_unprotected(scene: Scene) -> None:
    """The master is killed, and nothing prevents that two masters accept writes at the same time."""
    sentinel_kill(scene)


@fault("cluster")
def cluster_kill(scene: Scene) -> None:
    """The master of the group's slot is killed, and its replica promoted."""
    _, master, replica = scene.backend.owner()
    start = time.monotonic()
    master.kill()
    wait_master(replica)
    scene.note_failover(start)


@fault("cluster")
def cluster_failover(scene: Scene) -> None:
    """The replica of the group's slot takes over by command."""
    _, _, replica = scene.backend.owner()
    start = time.monotonic()
    replica.ask("CLUSTER", "FAILOVER")
    wait_master(replica)
    scene.note_failover(start)


@fault("cluster")
def cluster_migrate(scene: Scene) -> None:
    """The group's slot moves to another master: a second of waiting, then key by key."""
    slot, source, _ = scene.backend.owner()
    target = next(
        node for node in scene.backend.cluster.nodes if node.is_running and node.is_master and node is not source
    )
    names = {node: node.ask("CLUSTER", "MYID") for node in (source, target)}
    start = time.monotonic()
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    time.sleep(1)
    while (keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1)) and time.monotonic() < start + 10:
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 1000, "KEYS", *keys)
        time.sleep(0.05)
    for node in (target, source):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target])
    scene.notes.append(f"migrated in {time.monotonic() - start:.1f} s")


__all__ = ["FAULTS", "Backend", "Fault", "Scene"]
