"""What the tests of the core share: small real implementations of what the shell provides."""

from __future__ import annotations

import pytest

from .world import CoreRecord


class CountingCalendar:
    """Stands for the owner of buckets and ready queues: carries out compactions, and counts what has gone."""

    def __init__(self) -> None:
        from collections import deque

        self.chores: deque = deque()
        self.gone = 0

    def note_sparse(self, bucket) -> None:
        bucket.compact_with(self.chores)

    def note_gone(self, place) -> None:
        self.gone += 1

    def step(self) -> None:
        """Do one step of the first chore."""
        if self.chores and next(self.chores[0], self) is self:
            self.chores.popleft()


@pytest.fixture(scope="session")
def record_class():
    """The class of a record without a shell."""
    return CoreRecord


@pytest.fixture(scope="session")
def calendar_class():
    """The class of a stand-in for a bucket's owner."""
    return CountingCalendar
