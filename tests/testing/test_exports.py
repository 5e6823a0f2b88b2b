"""The public names of ``ratelimited_executor.testing`` are documented, and cheap to import."""

import subprocess
import sys
import textwrap

import pytest

import ratelimited_executor.testing as kit

# Every pytest run of every user pays for it; it took 2 to 7 ms when measured, and the target is 30.
PLUGIN_IMPORT_MS = 30


def _python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    return run.stdout


def test_every_public_name_can_be_had() -> None:
    """Each name in ``__all__`` is the function or class of that name, or an alias."""
    for name in kit.__all__:
        value = getattr(kit, name)
        assert value is getattr(kit, name)
        assert name in ("RateHistory", "RealIOPolicy") or name == value.__name__


def test_public_names_are_sorted_and_listed() -> None:
    """``__all__`` is sorted, and ``dir`` shows all of it."""
    assert sorted(kit.__all__) == kit.__all__
    assert set(kit.__all__) <= set(dir(kit))


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'virtual_lop'"):
        kit.virtual_lop  # noqa: B018


def test_plugin_imports_nothing_heavy() -> None:
    """The plugin imports neither asyncio nor anyio, nor the executor."""
    loaded = _python("""
        import sys, pytest
        before = set(sys.modules)
        import ratelimited_executor.testing.pytest_plugin
        print(*sorted(set(sys.modules) - before))
    """).split()

    assert [
        "ratelimited_executor",
        "ratelimited_executor.testing",
        "ratelimited_executor.testing.pytest_plugin",
    ] == [name for name in loaded if name.startswith("ratelimited_executor")]
    assert [] == [name for name in loaded if name.split(".")[0] in ("asyncio", "anyio", "selectors")]


@pytest.mark.real_time("it measures an import")
def test_plugin_imports_in_less_than_30_ms() -> None:
    """The best of five imports in new processes, which have loaded pytest, is faster than the target."""
    code = """
        import time, pytest
        began = time.perf_counter()
        import ratelimited_executor.testing.pytest_plugin
        print((time.perf_counter() - began) * 1000)
    """

    assert min(float(_python(code)) for _ in range(5)) < PLUGIN_IMPORT_MS
