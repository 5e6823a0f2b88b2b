"""An existing program behaves the same with the executor's timers as with the event loop's."""

from __future__ import annotations

import difflib
import inspect
import runpy
import textwrap
from collections.abc import Callable
from types import ModuleType

import pytest

from ratelimited_executor.testing import run_virtual


def test_both_note_the_same_events_at_the_same_times(example: Callable[[str], ModuleType]) -> None:
    """Both programs note the same events at the same times; the event loop leaves the order of equal due times open."""
    program = example("replace_call_later")

    original = run_virtual(program.original())
    replaced = run_virtual(program.replaced())

    assert sorted(replaced) == sorted(original)
    assert {"opened", "heartbeat", "timed out"} == {what for _, what, _ in replaced}


def test_the_executor_keeps_the_order_of_equal_due_times(example: Callable[[str], ModuleType]) -> None:
    """The first heartbeats of five sessions that open at the same time come in the order of their opening."""
    program = example("replace_call_later")

    replaced = run_virtual(program.replaced())

    assert [f"session {number}" for number in range(5)] == [
        name for when, what, name in replaced if (when, what) == (10.0, "heartbeat")
    ]


def test_the_change_is_one_line(example: Callable[[str], ModuleType]) -> None:
    """Beside name, docstring and indentation, the two programs differ by one line."""
    program = example("replace_call_later")

    def body(function: Callable[..., object]) -> list[str]:
        return [line.strip() for line in textwrap.dedent(inspect.getsource(function)).splitlines()[2:]]

    changes = [line for line in difflib.ndiff(body(program.original), body(program.replaced)) if line[0] in "+-"]

    assert changes == [
        "- timers = asyncio.get_running_loop()",
        '+ async with RateLimitedExecutor("timers") as timers:',
    ]


def test_script_prints_what_the_replaced_program_notes_and_waits_for_nothing(
    example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script runs in virtual time and prints its events at once; ``asyncio.run`` would take minutes."""
    monkeypatch.delattr("asyncio.run")

    runpy.run_path(example("replace_call_later").__file__, run_name="__main__")

    assert capsys.readouterr().out.splitlines()[0] == "     0.0  session 0 opened"
