"""The look-ahead: how many lines may wait, and which lines came too late for their order."""

from __future__ import annotations

import asyncio
import random

from ratelimited_executor.cli.run.lookahead import Gate, OrderWatch


def test_gate_admits_up_to_its_lines_and_bytes() -> None:
    """The gate closes at its number of lines or bytes, and keeps the largest number that waited."""
    gate = Gate(3, bytes_max=100)
    for size, has_room in [(10, True), (10, True), (10, False)]:
        gate.enter(size)
        assert has_room == gate.has_room
    gate.leave(10)
    assert gate.has_room
    gate.enter(200)
    assert (False, 3) == (gate.has_room, gate.peak)


def test_gate_admits_one_line_of_any_size() -> None:
    """A line larger than the allowed bytes is admitted alone, so that the job does not stop."""
    gate = Gate(3, bytes_max=100)
    rooms = [gate.has_room]
    gate.enter(1_000)
    rooms.append(gate.has_room)
    gate.leave(1_000)
    rooms.append(gate.has_room)
    assert [True, False, True] == rooms


async def test_gate_wakes_its_waiter_when_there_is_room() -> None:
    """A waiter wakes with the first free place."""
    gate = Gate(1)
    gate.enter(5)
    waiting = asyncio.create_task(gate.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.leave(5)
    await waiting


async def test_gate_wakes_its_waiter_when_the_run_is_stopped() -> None:
    """A waiter wakes without a place when the run is stopped."""
    gate = Gate(1)
    gate.enter(5)
    waiting = asyncio.create_task(gate.wait())
    await asyncio.sleep(0)
    gate.wake()
    await waiting
    assert not gate.has_room


def test_order_watch_finds_lines_that_came_too_late() -> None:
    """A line is late if a less important one, or one due later, has started since it was due."""
    watch = OrderWatch()
    #    started: (priority, due, started)     read: (priority, due) -> late?
    steps = [
        ((1, 0.0, 10.0), [((1, 0.0), False), ((2, 0.0), True), ((0, 0.0), False), ((2, 11.0), False)]),
        ((5, 0.0, 11.0), [((2, 0.0), True), ((6, 10.5), True), ((6, 11.5), False), ((3, 10.5), False)]),
        ((0, 5.0, 12.0), [((0, 4.0), True), ((0, 5.0), False), ((5, 11.5), True), ((0, 6.0), False)]),
    ]
    for step, ((priority, due, started), reads) in enumerate(steps):
        watch.on_start(priority=priority, due=due, started=started)
        for (read_priority, read_due), is_late in reads:
            assert is_late == watch.is_late(priority=read_priority, due=read_due), (step, read_priority, read_due)


def test_order_watch_equals_looking_at_every_start() -> None:
    """The watch with its short memory decides as a list of all starts would."""
    source = random.Random(2)
    for _ in range(100):
        watch, starts = OrderWatch(), list[tuple[int, float, float]]()
        for now in range(30):
            priority, due = source.randrange(5), source.uniform(0, now)
            expected = any(
                (old < priority and started >= due) or (old == priority and old_due > due)
                for old, old_due, started in starts
            )
            assert expected == watch.is_late(priority=priority, due=due), (starts, priority, due)
            starts.append((source.randrange(5), source.uniform(0, now), float(now)))
            watch.on_start(priority=starts[-1][0], due=starts[-1][1], started=starts[-1][2])
