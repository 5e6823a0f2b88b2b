"""Virtual time in pytest: fixtures, and the loops on which pytest-asyncio and anyio's plugin run a test.

A test runs in virtual time if it is marked ``virtual_time``, if it (or one of its fixtures) requests ``virtual_loop`` or
``virtual_clock``, or if the ini option ``virtual_time`` is on. A closer ``real_time`` mark overrides these. Then

- under pytest-asyncio, its loop comes from the hook ``pytest_asyncio_loop_factories``. The hook is implemented only
  while such a test is being collected: a permanent implementation would affect all other tests, too;
- under anyio's plugin, ``anyio_backend`` is asyncio with our loop factory;
- in a plain function, the fixtures return a new loop for the test.

This module is imported in every run of pytest, so it imports only pytest; everything else is imported on first use.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from ratelimited_executor.testing.auditing import AuditReport
    from ratelimited_executor.testing.clock import VirtualClock
    from ratelimited_executor.testing.running import VirtualLoopFactory
    from ratelimited_executor.testing.virtual import VirtualEventLoop

__all__: list[str] = []

_VIRTUAL = "virtual_time"
_REAL = "real_time"
_FIXTURES = frozenset({"virtual_loop", "virtual_clock"})
_LOOP_FACTORIES = "pytest_asyncio_loop_factories"  # pytest-asyncio >= 1.4

# One factory for all tests with the same settings and loop scope, because they may share a loop.
_backends_key = pytest.StashKey[dict[object, tuple[str, dict[str, "VirtualLoopFactory"]]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option."""
    parser.addini(_VIRTUAL, "run every async test in virtual time unless marked real_time", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.stash[_backends_key] = {}
    config.addinivalue_line(
        "markers",
        f"{_VIRTUAL}(*, seed, start_wall, real_io, limit, patience): run the test on a virtual event loop.",
    )
    config.addinivalue_line(
        "markers", f"{_REAL}(reason): run the test on a real event loop, even if the ini option {_VIRTUAL} is on."
    )


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    """Choose the event loop of an async test in virtual time, before the plugins that run it request one."""
    item, names = metafunc.definition, metafunc.fixturenames
    if not (_is_async(item) and _wants_virtual_time(item, names)):
        return (yield)
    backend = _backend_for(item)
    if "anyio_backend" in names and not _is_parametrized(item, "anyio_backend"):
        choice = pytest.param(backend, id="asyncio+virtual")
        item.add_marker(pytest.mark.parametrize("anyio_backend", [choice], scope="module"))
    if not _has_loop_hook(item):
        if item.config.pluginmanager.hasplugin("asyncio") and "anyio_backend" not in names:
            raise pytest.UsageError(
                "virtual_time needs pytest-asyncio >= 1.4, whose tests take their loops from a hook"
            )
        return (yield)
    chooser = _LoopChooser(backend[1]["loop_factory"])
    item.config.pluginmanager.register(chooser)
    try:
        return (yield)
    finally:
        item.config.pluginmanager.unregister(chooser)


class _LoopChooser:
    """Answers pytest-asyncio's hook for one test, ahead of any implementation in a conftest."""

    def __init__(self, factory: VirtualLoopFactory) -> None:
        self._factory = factory

    @pytest.hookimpl(tryfirst=True)
    def pytest_asyncio_loop_factories(self) -> Mapping[str, VirtualLoopFactory]:
        """Return the virtual loop as the only factory."""
        return {"virtual": self._factory}


@pytest.fixture
def virtual_loop(request: pytest.FixtureRequest) -> Iterator[VirtualEventLoop]:
    """Return the virtual event loop that the test runs on; in a plain function, a new one."""
    item = request.node
    marks = [mark.name for mark in item.iter_markers() if mark.name in (_VIRTUAL, _REAL)]
    if marks[:1] == [_REAL]:
        pytest.fail("the test is marked real_time, and asks for virtual_loop or virtual_clock", pytrace=False)
    if not _is_async(item):
        loop = _new_factory(item)()
        yield loop
        loop.close()
        return
    factory = _factory_in_use(request)
    yield factory.reserve()
    factory.discard()


@pytest.fixture
def virtual_clock(virtual_loop: VirtualEventLoop) -> VirtualClock:
    """Return the clock of the virtual event loop that the test runs on."""
    return virtual_loop.clock


@pytest.fixture
def audit() -> Callable[..., AuditReport]:
    """Return :func:`ratelimited_executor.testing.audit`: check the times of starts against a rate."""
    from ratelimited_executor.testing.auditing import audit as function  # noqa: PLC0415  # the plugin must load fast

    return function


def _is_async(item: pytest.Item) -> bool:
    """True if the test is a coroutine function, under Hypothesis or not."""
    function: Any = getattr(item, "obj", None)
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    return inspect.iscoroutinefunction(inspect.unwrap(function)) if callable(function) else False


def _has_loop_hook(item: pytest.Item) -> bool:
    """True if pytest-asyncio is installed in a version that has the hook for loop factories."""
    return hasattr(item.ihook, _LOOP_FACTORIES)


def _wants_virtual_time(item: pytest.Item, fixture_names: list[str]) -> bool:
    for mark in item.iter_markers():
        if mark.name in (_VIRTUAL, _REAL):
            return mark.name == _VIRTUAL
    return not _FIXTURES.isdisjoint(fixture_names) or bool(item.config.getini(_VIRTUAL))


def _is_parametrized(item: pytest.Item, argument: str) -> bool:
    names = [mark.args[0] for mark in item.iter_markers("parametrize") if mark.args]
    return any(argument in (name.replace(" ", "").split(",") if isinstance(name, str) else name) for name in names)


def _settings(item: pytest.Item) -> dict[str, Any]:
    """Return the arguments of the closest ``virtual_time`` mark."""
    mark = item.get_closest_marker(_VIRTUAL)
    if mark is not None and mark.args:
        raise pytest.UsageError(f"{item.nodeid}: virtual_time takes keyword arguments only, got {mark.args!r}")
    return dict(mark.kwargs) if mark is not None else {}


def _loop_scope(item: pytest.Item) -> str:
    """Return the scope in which pytest-asyncio shares a loop; other plugins use one loop per test."""
    mark = item.get_closest_marker("asyncio")
    asked = (mark.kwargs.get("loop_scope") or mark.kwargs.get("scope")) if mark is not None else None
    if asked is None and _has_loop_hook(item):
        asked = item.config.getini("asyncio_default_test_loop_scope")
    return str(asked or "function")


def _backend_for(item: pytest.Item) -> tuple[str, dict[str, VirtualLoopFactory]]:
    """Return the factory of all tests with the same settings and loop scope, in the form that anyio takes."""
    backends = item.config.stash[_backends_key]
    key = (_loop_scope(item), tuple(sorted(_settings(item).items())))
    if key not in backends:
        backends[key] = ("asyncio", {"loop_factory": _new_factory(item)})
    return backends[key]


def _new_factory(item: pytest.Item) -> VirtualLoopFactory:
    from ratelimited_executor.testing.running import VirtualLoopFactory  # noqa: PLC0415  # the plugin must load fast

    try:
        return VirtualLoopFactory(**_settings(item))
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{item.nodeid}: bad virtual_time mark: {error}") from error


def _factory_in_use(request: pytest.FixtureRequest) -> VirtualLoopFactory:
    """Return the factory of the loop that an async test runs on."""
    if request.node.get_closest_marker("asyncio") is not None:
        return _backend_for(request.node)[1]["loop_factory"]
    from ratelimited_executor.testing.running import VirtualLoopFactory  # noqa: PLC0415  # the plugin must load fast

    if "anyio_backend" in request.fixturenames:
        backend = request.getfixturevalue("anyio_backend")
        options = backend[1] if isinstance(backend, tuple) else {}
        factory = options.get("loop_factory")
        if isinstance(factory, VirtualLoopFactory):
            return factory
        pytest.fail(
            f"anyio_backend is {backend!r}: virtual time needs ('asyncio', {{'loop_factory': VirtualLoopFactory()}})",
            pytrace=False,
        )
    pytest.fail("no plugin runs this async test: mark it asyncio or anyio, or set asyncio_mode = auto", pytrace=False)
