"""Fixtures of the tests of peers: real servers and a quiet log, beside those in ``tests/conftest.py``."""

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ..helpers import ALL_CASES
from .binaries import KINDS, choose
from .certificates import NoOpensslError, make_certificate
from .proxy import Proxy
from .servers import RedisCluster, RedisServer, SentinelGroup, as_new, redis_cluster, sentinel_group

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # no server to start, and no signal to stop it with


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let a test that is slow or takes real time run on one kind of server; which of them its name decides."""
    if ALL_CASES:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if _is_on_the_other(item) else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _is_on_the_other(item: pytest.Item) -> bool:
    if not (item.get_closest_marker("slow") or item.get_closest_marker("real_time")):
        return False
    kind = getattr(item, "callspec", None) and item.callspec.params.get("server_kind")
    return kind in KINDS and kind != KINDS[zlib.crc32(item.originalname.encode()) % len(KINDS)]


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the log: outages and rates set by others are reported, and are intended here."""
    caplog.set_level("CRITICAL", "ratelimited_executor")


@pytest.fixture(scope="module", params=KINDS)
def server_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Redis and Valkey in turn: the servers that the test starts, or that its fixtures start, are of this kind."""
    with chosen(request.param):
        yield request.param


@contextmanager
def chosen(kind: str) -> Iterator[None]:
    """Let servers be of a kind, or skip the test if there is none."""
    with ExitStack() as stack:
        try:
            stack.enter_context(choose(kind))
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield


@pytest.fixture(scope="session")
def server_of() -> Iterator[Callable[[str], RedisServer]]:
    """Return a function that returns the shared server of a kind, without keys and scripts."""
    servers: dict[str, RedisServer] = {}
    with ExitStack() as stack:

        def shared(kind: str) -> RedisServer:
            if kind not in servers:
                with chosen(kind):
                    servers[kind] = stack.enter_context(RedisServer())
            return as_new(servers[kind])

        yield shared


@pytest.fixture
def redis_server(server_kind: str, server_of: Callable[[str], RedisServer]) -> RedisServer:
    """A server without keys and scripts, of both kinds in turn; otherwise as ``redis_server`` of ``tests/conftest.py``."""
    return server_of(server_kind)


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
