"""Fixtures of the tests of peers: real servers and a quiet log, beside those in ``tests/conftest.py``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .binaries import KINDS, choose
from .certificates import NoOpensslError, make_certificate
from .proxy import Proxy
from .servers import RedisCluster, RedisServer, SentinelGroup, as_new, redis_cluster, sentinel_group

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # no server to start, and no signal to stop it with


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the log: outages and rates set by others are reported, and are intended here."""
    caplog.set_level("CRITICAL", "ratelimited_executor")


@pytest.fixture(scope="module", params=KINDS)
def server_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Redis and Valkey in turn: the servers that the test starts, or that its fixtures start, are of this kind."""
    with ExitStack() as stack:
        try:
            stack.enter_context(choose(request.param))
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield request.param


@pytest.fixture(scope="session")
def shared_redis_servers() -> Iterator[Callable[[], RedisServer]]:
    """Return the server of the present kind behind ``redis_server``; tests do not use it directly."""
    servers: dict[Path, RedisServer] = {}
    with ExitStack() as stack:

        def shared() -> RedisServer:
            new = RedisServer()
            if new.program in servers:
                new.close()
            else:
                servers[new.program] = stack.enter_context(new)
            return servers[new.program]

        yield shared


@pytest.fixture
def redis_server(server_kind: str, shared_redis_servers: Callable[[], RedisServer]) -> RedisServer:
    """A server without keys and scripts, of both kinds in turn; otherwise as ``redis_server`` of ``tests/conftest.py``."""
    return as_new(shared_redis_servers())


@pytest.fixture(scope="module")
def redis_cluster_server(server_kind: str) -> Iterator[RedisCluster]:
    """Three masters that share the slots, of both kinds in turn; ``flush`` first. To kill one, use ``redis_cluster()``."""
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture
def own_redis_server(server_kind: str) -> Iterator[RedisServer]:
    """A fresh server of the test's own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_sentinel(server_kind: str) -> Iterator[SentinelGroup]:
    """A master, its replica and a sentinel of the test's own."""
    with sentinel_group() as group:
        yield group


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """A proxy before ``redis_server``."""
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate of the loopback."""
    try:
        return make_certificate(tmp_path_factory.mktemp("certificate"))
    except NoOpensslError as error:
        pytest.skip(str(error))


@pytest.fixture
def tls_proxy(redis_server: RedisServer, certificate: Path) -> Iterator[Proxy]:
    """A proxy before ``redis_server`` that speaks TLS."""
    with Proxy(redis_server.port, certificate=certificate) as proxy:
        yield proxy
