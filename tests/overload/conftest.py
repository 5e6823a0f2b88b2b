"""What the tests of overload share."""

from __future__ import annotations

import asyncio

import pytest


@pytest.fixture
def reports(virtual_clock):
    """What reaches the event loop's exception handler."""
    return []


@pytest.fixture
def handler(reports):
    """Collect what reaches the loop's exception handler; call it inside the test."""

    def install() -> list:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
        return reports

    return install


def check_accounting(executor) -> None:
    """Assert that accepted = waiting + running + the five ends, with waiting and running counted by walking."""
    engine = executor._engine
    statistics = executor.statistics()
    waiting = sum(1 for _ in engine.walk())
    running = len(engine.running) + len(engine.holding) + engine.burst.is_inside
    ends = statistics.done + statistics.failed + statistics.cancelled + statistics.expired + statistics.dropped
    assert waiting == statistics.waiting, (waiting, statistics)
    assert running == statistics.running, (running, statistics)
    assert statistics.accepted == waiting + running + ends, (waiting, running, statistics)
    assert engine.queue.live_count() == waiting, (engine.queue.live_count(), waiting)


@pytest.fixture(scope="session")
def account():
    """The check of the accounting."""
    return check_accounting
