"""Every item of a batch is given to the function once, whatever its due times and wherever the batch is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ratelimited_executor import RateLimitedExecutor

ITEMS = [f"item {number}" for number in range(50)]


@pytest.mark.parametrize("begin", [0.0, 0.37])
@pytest.mark.parametrize(
    "times",
    [
        {},
        {"over": 0.5},
        {"over": 7},
        {"over": 3600},
        {"delay": 2.5},
        {"delays": [number * 0.1 for number in range(50)]},
    ],
    ids=str,
)
async def test_every_item_of_a_list_runs_once_in_due_order(
    virtual_clock: object, times: dict[str, object], begin: float
) -> None:
    """Those due in the running interval, and those due in later ones."""
    calls: list[str] = []
    await asyncio.sleep(begin)

    async with RateLimitedExecutor("work") as executor:
        batch = executor.schedule_many(calls.append, ITEMS, results=True, **times)
        await batch

    assert calls == ITEMS
    assert list(range(50)) == list(batch.results)


async def test_results_belong_to_their_items(virtual_clock: object) -> None:
    """The outcome at an index is that of the item at that index."""
    async with RateLimitedExecutor("work", rate=7) as executor:
        batch = executor.schedule_many(str.upper, ITEMS, over=5, results=True)
        await batch

    assert {index: item.upper() for index, item in enumerate(ITEMS)} == {
        index: outcome.result() for index, outcome in batch.results.items()
    }


@pytest.mark.parametrize("is_async", [False, True])
async def test_every_item_of_an_iterator_runs_once(virtual_clock: object, *, is_async: bool) -> None:
    """Evenly over a time, drawn as they are needed."""
    calls: list[str] = []

    async def items() -> AsyncIterator[str]:
        for item in ITEMS:
            yield item

    async with RateLimitedExecutor("work") as executor:
        await executor.schedule_many(calls.append, items() if is_async else iter(ITEMS), over=9, count=50)

    assert calls == ITEMS
