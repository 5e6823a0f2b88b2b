"""Shared by the tests of the predecessor's flaws: a record of starts in virtual time."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ratelimited_executor.testing import VirtualEventLoop


class Starts:
    """Callables that write down when they ran, and their names."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.entries: list[tuple[float, Any]] = []

    def __call__(self, name: Any = None) -> None:
        """Write down a start; a test schedules the object itself."""
        self.entries.append((self._loop.time(), name))

    @property
    def times(self) -> list[float]:
        """Loop times of all starts."""
        return [time for time, _ in self.entries]

    @property
    def names(self) -> list[Any]:
        """Names of all starts, in order."""
        return [name for _, name in self.entries]

    def times_of(self, name: Any) -> list[float]:
        """Loop times of the starts of one name."""
        return [time for time, other in self.entries if other == name]


@pytest.fixture
def starts(virtual_loop: VirtualEventLoop) -> Starts:
    """Return a record of starts on the test's virtual loop."""
    return Starts(virtual_loop)


@pytest.fixture
def reported(virtual_loop: VirtualEventLoop) -> Iterator[list[dict[str, Any]]]:
    """Return what reaches the loop's exception handler, which is otherwise silent in the test."""
    contexts: list[dict[str, Any]] = []
    virtual_loop.set_exception_handler(lambda _, context: contexts.append(context))
    yield contexts
    virtual_loop.set_exception_handler(None)
