"""The pytest plugin beside pytest-asyncio, beside anyio's plugin, and alone; each in a pytest run of its own."""

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def own_settings(pytester: pytest.Pytester) -> None:
    """Give each run a configuration of its own; otherwise pytest looks for one in every folder above."""
    pytester.makefile(".ini", pytest="[pytest]\n")


ASYNCIO = ("-p", "no:anyio", "-o", "asyncio_default_fixture_loop_scope=function")
# They are imported anew in each run, and what they import takes most of its time.
OTHERS = ("-p", "no:schemathesis", "-p", "no:langsmith_plugin")
AUTO = (*ASYNCIO, "-o", "asyncio_mode=auto")
STRICT = (*ASYNCIO, "-o", "asyncio_mode=strict")
ANYIO = ("-p", "no:asyncio")
ALONE = ("-p", "no:asyncio", "-p", "no:anyio")

COMMON = """
import asyncio
import pytest

def now():
    return asyncio.get_running_loop().time()

def is_virtual():
    return hasattr(asyncio.get_running_loop(), "clock")
"""


def _run(pytester: pytest.Pytester, options: tuple[str, ...], source: str, **files: str) -> pytest.RunResult:
    """Run one test module in a directory of its own, with warnings as errors."""
    pytester.makepyfile(test_it=COMMON + source, **files)
    return pytester.runpytest("-W", "error", "--strict-markers", "-p", "no:cacheprovider", "-v", *OTHERS, *options)


def test_asyncio_test_that_asks_for_the_clock_runs_in_virtual_time(pytester: pytest.Pytester) -> None:
    """Under pytest-asyncio a request for a fixture is enough: the test's own loop is the virtual one."""
    result = _run(
        pytester,
        AUTO,
        """
        async def test_clock(virtual_clock):
            await asyncio.sleep(86_400)
            assert 86_400 == virtual_clock.monotonic() == now()

        async def test_loop(virtual_loop, virtual_clock):
            assert virtual_loop is asyncio.get_running_loop()
            assert virtual_clock is virtual_loop.clock
            assert 0.0 == now()

        @pytest.fixture
        def indirectly(virtual_clock):
            return virtual_clock

        async def test_through_a_fixture(indirectly):
            assert is_virtual()
        """.replace("\n        ", "\n"),
    )

    result.assert_outcomes(passed=3)


def test_asyncio_test_with_the_mark_runs_in_virtual_time(pytester: pytest.Pytester) -> None:
    """The mark does the same, for a test or a module, and carries the settings of the loop."""
    result = _run(
        pytester,
        STRICT,
        """
pytestmark = [pytest.mark.asyncio, pytest.mark.virtual_time(start_wall=100)]

async def test_module_mark():
    await asyncio.sleep(5)
    assert 105.0 == asyncio.get_running_loop().clock.wall()

@pytest.mark.virtual_time(start_wall=7, real_io="ignore", seed=3, limit=60, patience=1)
async def test_closer_mark(virtual_loop):
    assert (7.0, "ignore", 60.0, 1.0) == (
        virtual_loop.clock.wall(), virtual_loop.real_io, virtual_loop.limit, virtual_loop.patience
    )
""",
    )

    result.assert_outcomes(passed=2)


def test_other_asyncio_tests_are_left_alone(pytester: pytest.Pytester) -> None:
    """A test that asks for nothing runs on the loop it always ran on, and no test changes its name."""
    result = _run(
        pytester,
        AUTO,
        """
async def test_real(request):
    assert not is_virtual()
    assert not hasattr(request.node, "callspec")

async def test_virtual(virtual_clock):
    assert is_virtual()

@pytest.mark.parametrize("number", [1, 2])
async def test_parametrized(number, virtual_clock):
    assert is_virtual()

def test_plain():
    pass
""",
    )

    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*::test_virtual PASSED*", "*::test_parametrized[[]1] PASSED*"])


def test_loop_factories_of_the_user_serve_the_other_tests(pytester: pytest.Pytester) -> None:
    """Loop factories of the user's conftest stay in use for every test that is not in virtual time."""
    result = _run(
        pytester,
        AUTO,
        """
async def test_mine():
    assert "MyLoop" == type(asyncio.get_running_loop()).__name__

async def test_virtual(virtual_loop):
    assert virtual_loop is asyncio.get_running_loop()
""",
        conftest="""
import asyncio

class MyLoop(asyncio.SelectorEventLoop):
    pass

def pytest_asyncio_loop_factories():
    return {"mine": MyLoop}
""",
    )

    result.assert_outcomes(passed=2)


def test_async_fixtures_run_on_the_virtual_loop(pytester: pytest.Pytester) -> None:
    """Set-up and clean-up of an async fixture take virtual time on the loop of their test."""
    result = _run(
        pytester,
        AUTO,
        """
log = []

@pytest.fixture
async def slow(virtual_loop):
    await asyncio.sleep(10)
    yield virtual_loop
    await asyncio.sleep(10)
    log.append(now())

async def test_it(slow):
    assert (slow, 10.0) == (asyncio.get_running_loop(), now())

def test_clean_up():
    assert [20.0] == log
""",
    )

    result.assert_outcomes(passed=2)


def test_loop_scope_is_kept(pytester: pytest.Pytester) -> None:
    """Tests that share a loop under pytest-asyncio share the virtual one, whose time goes on; others start anew."""
    result = _run(
        pytester,
        AUTO,
        """
@pytest.mark.asyncio(loop_scope="class")
class TestShared:
    async def test_first(self, virtual_clock):
        await asyncio.sleep(3)

    async def test_second(self, virtual_clock):
        assert 3.0 == virtual_clock.monotonic() == now()

async def test_alone(virtual_clock):
    assert 0.0 == virtual_clock.monotonic() == now()
""",
    )

    result.assert_outcomes(passed=3)


def test_hypothesis_tests_run_in_virtual_time(pytester: pytest.Pytester) -> None:
    """A coroutine function under ``given`` is recognised."""
    result = _run(
        pytester,
        AUTO,
        """
from hypothesis import given, strategies as st

@pytest.mark.virtual_time
@given(st.integers(1, 100))
async def test_it(delay):
    before = now()
    await asyncio.sleep(delay)
    assert before + delay == now()
""",
    )

    result.assert_outcomes(passed=1)


def test_ini_option_puts_all_async_tests_in_virtual_time(pytester: pytest.Pytester) -> None:
    """With the option on, only tests marked ``real_time`` run on a real loop."""
    result = _run(
        pytester,
        (*AUTO, "-o", "virtual_time=true"),
        """
async def test_virtual():
    assert is_virtual()

@pytest.mark.real_time("it measures")
async def test_real():
    assert not is_virtual()
""",
    )

    result.assert_outcomes(passed=2)


def test_a_deadlock_fails_its_test_and_no_other(pytester: pytest.Pytester) -> None:
    """A test that would hang for ever fails at once, says where it waits, and the next test runs."""
    result = _run(
        pytester,
        AUTO,
        """
async def test_hangs(virtual_clock):
    await asyncio.Event().wait()

async def test_next(virtual_clock):
    await asyncio.sleep(1)
""",
    )

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*DeadlockError: deadlock at 0 s of virtual time*", "*Task-1: test_hangs at test_it*"])


def test_anyio_test_runs_in_virtual_time(pytester: pytest.Pytester) -> None:
    """Under anyio's plugin the same fixtures and mark choose asyncio on a virtual loop; fixtures run on it, too."""
    result = _run(
        pytester,
        ANYIO,
        """
import anyio
pytestmark = pytest.mark.anyio

@pytest.fixture(scope="module")
async def shared(anyio_backend):
    await anyio.sleep(0)
    return "shared"

async def test_clock(virtual_clock, shared):
    before = virtual_clock.monotonic()
    await anyio.sleep(86_400)
    assert before + 86_400 == virtual_clock.monotonic() == anyio.current_time()

@pytest.mark.virtual_time(start_wall=7)
async def test_mark(virtual_loop, anyio_backend_name):
    assert (virtual_loop, 7.0) == (asyncio.get_running_loop(), virtual_loop.clock.wall())
    assert "asyncio" == anyio_backend_name

async def test_real(anyio_backend):
    assert not is_virtual()
""",
        conftest="""
import pytest

@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"
""",
    )

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*::test_clock[[]asyncio+virtual] PASSED*"])


def test_anyio_backend_with_our_factory(pytester: pytest.Pytester) -> None:
    """A test that chooses its backends itself may choose a virtual loop by the factory, and gets that loop."""
    result = _run(
        pytester,
        ANYIO,
        """
from ratelimited_executor.testing import VirtualLoopFactory

backends = [("asyncio", {"loop_factory": VirtualLoopFactory(start_wall=wall)}) for wall in (1, 2)]

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", backends)
async def test_it(anyio_backend, virtual_loop):
    assert virtual_loop is asyncio.get_running_loop()
    assert virtual_loop.clock.wall() in (1.0, 2.0)
""",
    )

    result.assert_outcomes(passed=2)


def test_anyio_backend_without_virtual_time_is_refused(pytester: pytest.Pytester) -> None:
    """If a test has a real backend and requests the virtual clock, the error says how to choose a virtual one."""
    result = _run(
        pytester,
        ANYIO,
        """
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_it(anyio_backend, virtual_clock):
    pass
""",
    )

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*anyio_backend is 'asyncio': virtual time needs*"])


def test_both_plugins_live_together(pytester: pytest.Pytester) -> None:
    """With both plugins loaded, each runs its own tests, in virtual time where asked for."""
    result = _run(
        pytester,
        ("-o", "asyncio_default_fixture_loop_scope=function"),
        """
@pytest.mark.asyncio
async def test_asyncio(virtual_loop):
    assert virtual_loop is asyncio.get_running_loop()

@pytest.mark.anyio
async def test_anyio(virtual_loop):
    assert virtual_loop is asyncio.get_running_loop()
""",
    )

    result.assert_outcomes(passed=2)


def test_plain_test_gets_a_loop_of_its_own(pytester: pytest.Pytester) -> None:
    """A plain function drives the loop itself, with or without plugins; the loop is closed for it."""
    source = """
loops = []

@pytest.mark.virtual_time(start_wall=1)
def test_it(virtual_loop, virtual_clock):
    loops.append(virtual_loop)
    virtual_loop.run_until_complete(asyncio.sleep(5))
    assert 6.0 == virtual_clock.wall()

def test_closed():
    assert [True] == [loop.is_closed() for loop in loops]
"""

    for options in (ALONE, AUTO):
        _run(pytester, options, source).assert_outcomes(passed=2)


def test_audit_fixture_is_the_function(pytester: pytest.Pytester) -> None:
    """The fixture returns the function ``audit``."""
    result = _run(
        pytester,
        ALONE,
        """
def test_it(audit):
    assert audit([0, 1, 2], "1/s").ok
    assert not audit([0, 0, 0], "1/s").ok
""",
    )

    result.assert_outcomes(passed=1)


def test_marks_are_documented(pytester: pytest.Pytester) -> None:
    """``pytest --markers`` explains both marks."""
    result = pytester.runpytest("--markers", *ALONE)

    result.stdout.fnmatch_lines(["@pytest.mark.virtual_time(*", "@pytest.mark.real_time(reason)*"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "@pytest.mark.real_time('why')\nasync def test_it(virtual_clock): pass",
            "*marked real_time, and asks for virtual_loop or virtual_clock*",
        ),
        ("@pytest.mark.virtual_time(start=5)\nasync def test_it(): pass", "*bad virtual_time mark:*'start'*"),
        ("@pytest.mark.virtual_time(limit=-1)\nasync def test_it(): pass", "*bad virtual_time mark: limit must be*"),
        ("@pytest.mark.virtual_time(60)\nasync def test_it(): pass", "*virtual_time takes keyword arguments only*"),
    ],
)
def test_bad_marks_are_explained(pytester: pytest.Pytester, body: str, message: str) -> None:
    """A mark that contradicts itself or has bad settings is an error that says so."""
    result = _run(pytester, AUTO, body)

    assert 0 != result.ret
    result.stdout.fnmatch_lines([message])


def test_async_test_that_nobody_runs_is_explained(pytester: pytest.Pytester) -> None:
    """Without a plugin that runs async tests, the fixture says what is missing."""
    result = _run(pytester, ALONE, "async def test_it(virtual_clock): pass")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no plugin runs this async test*"])


def test_an_older_pytest_asyncio_is_explained(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest-asyncio without the loop-factory hook is refused by version, where virtual time is asked for."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = _run(
        pytester,
        ("-p", "ratelimited_executor.testing.pytest_plugin"),
        "async def test_it(virtual_clock): pass",
        conftest="""
def pytest_configure(config):
    config.pluginmanager.register(object(), "asyncio")
""",
    )

    assert 0 != result.ret
    result.stdout.fnmatch_lines(["*virtual_time needs pytest-asyncio >= 1.4*"])
