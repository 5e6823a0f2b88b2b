"""The reference's table of handles lists the members of each, and a name has one shape on all of them."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.cycles import CycleHandle, MemoryProgress
from ratelimited_executor.handles import BatchHandle, CallHandle, Permit, RepeatingHandle, TaskHandle

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "handles.md"
HANDLES = [TaskHandle, BatchHandle, RepeatingHandle, CycleHandle, CallHandle, Permit]


def table() -> tuple[list[str], dict[str, list[str]]]:
    """Return the classes in the head of the table, and its cells by member."""
    head, _, *rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = {row[0].strip("`"): row[1:] for row in (split(line) for line in rows)}
    return re.findall(r"\[`(\w+)`\]", head), cells


def split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def shape_of(owner: type, name: str) -> str:
    """Return the spelling of a member: ``name`` for a property, ``name()`` for a method."""
    member = inspect.getattr_static(owner, name)
    assert isinstance(member, property) or inspect.isroutine(member), f"{owner.__name__}.{name}"
    is_called = inspect.isroutine(member) or (owner, name) == (CycleHandle, "statistics")  # which works both ways
    return f"{name}()" if is_called else name


def test_table_has_a_column_for_every_handle() -> None:
    """The table has a column for each handle, in order, and each row has a cell for each."""
    classes, cells = table()
    assert [handle.__name__ for handle in HANDLES] == classes
    assert {len(HANDLES)} == {len(row) for row in cells.values()}


@pytest.mark.parametrize("handle", HANDLES)
def test_table_tells_the_members_of_a_handle(handle: type) -> None:
    """The table lists exactly the public members of a handle, each as a property or a method."""
    _, cells = table()
    column = HANDLES.index(handle)
    told = {member for member, row in cells.items() if row[column]}
    members = {shape_of(handle, name) for name in dir(handle) if not name.startswith("_")}

    assert members | ({"await"} if hasattr(handle, "__await__") else set()) == told


def test_no_member_has_two_shapes() -> None:
    """Each name has one row."""
    _, cells = table()
    names = [member.removesuffix("()") for member in cells]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("names", [{"done", "cancelled", "result", "exception", "get_loop"}])
def test_task_handle_has_the_shapes_of_a_future(names: set[str]) -> None:
    """``TaskHandle`` has the methods of ``asyncio.Future``, and ``CallHandle`` those of ``TimerHandle``."""
    assert all(callable(getattr(asyncio.Future, name)) for name in names)
    assert {f"{name}()" for name in names} == {shape_of(TaskHandle, name) for name in names}
    assert {"cancel()", "cancelled()", "when()"} == {
        shape_of(CallHandle, name) for name in ("cancel", "cancelled", "when")
    }


async def test_batch_tells_that_it_was_cancelled(virtual_clock: Any) -> None:
    """A batch is ``cancelled()`` from its cancellation on, or when its executor is cut, unless it had ended."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        ended = executor.schedule_many(int, [1, 2])
        await ended
        assert 0 == ended.cancel()
        cancelled = executor.schedule_many(int, [1, 2], delay=5)
        assert not cancelled.cancelled()
        assert 2 == cancelled.cancel()
        cut = executor.schedule_many(int, [1, 2], delay="1h")
        assert not cut.cancelled()
    assert (False, True, True) == (ended.cancelled(), cancelled.cancelled(), cut.cancelled())
    assert cancelled.done()


async def test_names_of_handles_are_read_alike(virtual_clock: Any) -> None:
    """``name`` is the name given when scheduling, and is read-only."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        handles: list[Any] = [
            executor.schedule(int, delay=1, name="mine"),
            executor.schedule_many(int, [1], delay=1, name="mine"),
            executor.schedule_at_fixed_rate(int, period=1, initial_delay=1, name="mine"),
            executor.every(cycle="1h", keys=lambda _: [], fn=int, progress=MemoryProgress(), name="mine"),
        ]
        for handle in handles:
            assert "mine" == handle.name
            with pytest.raises(AttributeError):
                handle.name = "yours"
