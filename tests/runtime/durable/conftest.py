"""Durable tasks in virtual time: a store in memory, and processes that share it."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableTasks, MemoryStore
from ratelimited_executor.exceptions import StoreUnavailableError


class Process:
    """Durable tasks as one process has them; several share a store.

    Attributes:
        ran: what ``note`` was called with, and when, in the order of the starts.
    """

    def __init__(self, store, *, rate="1000/s", queue="default", lease=15.0, retry=None, **options) -> None:
        self.tasks = DurableTasks(store, queue=queue, lease=lease)
        self.executor = RateLimitedExecutor("mail", rate=rate, **options)
        self.ran: list[tuple[object, float]] = []
        self.note = self.tasks.task(name="note", retry=retry)(self._note)

    async def _note(self, what, seconds=0.0):
        self.ran.append((what, round(asyncio.get_running_loop().time(), 3)))
        if isinstance(what, str) and what.startswith("bad"):
            raise ValueError(what)
        if seconds:
            await asyncio.sleep(seconds)

    @property
    def names(self) -> list:
        """What was started, without the times."""
        return [what for what, _ in self.ran]

    async def run(self, seconds=1.0, **options):
        """Run what is in the store for some time."""
        async with self.executor, self.tasks.running(self.executor, **options) as runner:
            await asyncio.sleep(seconds)
        return runner.statistics()


class Faults:
    """What befalls the calls of a store: it is away, or does what it is asked for without saying so, at once or only later.

    Attributes:
        is_away: whether it is away.
        is_mute: whether no answer comes.
        late_by: returns after how many seconds it does what it is asked for, of which no answer comes; None if it does it now.
    """

    is_away = False
    is_mute = False
    late_by: Callable[[], float] | None = None

    def befall(self, name, found):
        """Return a method of a store as it is with these faults."""
        if name not in ("put", "join", "beat", "leave", "claim", "finish", "revive"):
            return found

        async def call(*args, **options):
            if self.is_away:
                raise StoreUnavailableError("the store", "it is away")
            if self.late_by is not None and name != "put":  # one that comes after its task has run makes it run again
                asyncio.get_running_loop().call_later(self.late_by(), lambda: _do(found(*args, **options)))
                raise StoreUnavailableError("the store", "no answer within some time")
            answer = await found(*args, **options)
            if self.is_mute:
                raise StoreUnavailableError("the store", "the answer is lost")
            return answer

        return call


class FaultyStore(Faults, MemoryStore):
    """A store that has faults for all who know it."""

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        return found if name == "befall" else self.befall(name, found)


def _do(call) -> None:
    """Run a call that does not wait."""
    with contextlib.suppress(StopIteration, StoreUnavailableError):
        call.send(None)


@pytest.fixture
def store(virtual_clock):
    """A store in memory that can be away."""
    return FaultyStore()


@pytest.fixture
def process(store):
    """One process."""
    return Process(store)
