"""Fixtures of the tests of peers: real servers and a quiet log, beside those in ``tests/conftest.py``."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .certificates import NoOpensslError, make_certificate
from .proxy import Proxy
from .servers import RedisServer, SentinelGroup, sentinel_group

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # no server to start, and no signal to stop it with


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the log: outages and rates set by others are reported, and are intended here."""
    caplog.set_level("CRITICAL", "ratelimited_executor")


@pytest.fixture
def own_redis_server() -> Iterator[RedisServer]:
    """A fresh server of the test's own."""
    with RedisServer() as server:
        yield server


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
