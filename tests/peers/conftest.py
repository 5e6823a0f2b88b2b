"""Real servers for the tests: started once where a test leaves them as they were, else for each."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .certificates import NoOpensslError, make_certificate
from .proxy import Proxy
from .servers import RedisCluster, RedisServer, SentinelGroup, redis_cluster, sentinel_group

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # there is no server to start, and no signal to stop it with


@pytest.fixture(scope="session")
def shared_redis_server() -> Iterator[RedisServer]:
    """The process behind ``redis_server``; not for tests."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(shared_redis_server: RedisServer) -> RedisServer:
    """A server without keys and scripts, shared by all tests one after the other.

    It may be killed and stopped. For other settings: ``with RedisServer(password=...) as server``.
    """
    shared_redis_server.go_on()
    if not shared_redis_server.is_running:
        shared_redis_server.start()
    shared_redis_server.flush()
    return shared_redis_server


@pytest.fixture
def own_redis_server() -> Iterator[RedisServer]:
    """A server of the test's own, which nobody has ever spoken to."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster_server() -> Iterator[RedisCluster]:
    """Three masters that share the slots, for all tests: ``flush`` first. Who kills one takes ``redis_cluster()``."""
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture
def redis_sentinel() -> Iterator[SentinelGroup]:
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
