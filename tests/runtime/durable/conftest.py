"""Durable tasks in virtual time: a store in memory, and processes that share it."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableTasks, MemoryStore
from ratelimited_executor.exceptions import StoreUnavailableError


class Process:
    """The durable tasks of one process; several of them may share a store.

    Attributes:
        ran: the arguments and times of the calls of ``note``, in the order of the starts.
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
        """The tasks that were started, without the times."""
        return [what for what, _ in self.ran]

    async def run(self, seconds=1.0, **options):
        """Run the tasks of the store for some seconds, and return the runner's statistics."""
        async with self.executor, self.tasks.running(self.executor, **options) as runner:
            await asyncio.sleep(seconds)
        return runner.statistics()


class Faults:
    """Faults of a store: its calls fail, or have their effect without an answer, at once or later.

    Attributes:
        is_away: True while calls fail and have no effect.
        is_mute: True while calls have their effect, but their answers are lost.
        late_by: returns the seconds after which a call, whose answer is lost, has its effect; None to have it at once.
    """

    is_away = False
    is_mute = False
    late_by: Callable[[], float] | None = None

    def befall(self, name, found):
        """Return a method of a store with these faults."""
        if name not in ("put", "join", "beat", "leave", "claim", "start", "save", "finish", "cancelled", "revive"):
            return found

        async def call(*args, **options):
            if self.is_away:
                raise StoreUnavailableError("the store", "it is away")
            if self.late_by is not None and name != "put":  # a put after its task has run repeats it
                asyncio.get_running_loop().call_later(self.late_by(), lambda: _do(found(*args, **options)))
                raise StoreUnavailableError("the store", "no answer within some time")
            answer = await found(*args, **options)
            if self.is_mute:
                raise StoreUnavailableError("the store", "the answer is lost")
            return answer

        return call


class FaultyStore(Faults, MemoryStore):
    """A store with faults that concern all of its users."""

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        return found if name == "befall" else self.befall(name, found)


def _do(call) -> None:
    """Run a coroutine that never waits."""
    with contextlib.suppress(StopIteration, StoreUnavailableError):
        call.send(None)


@pytest.fixture
def store(virtual_clock):
    """Return a store in memory that can have faults."""
    return FaultyStore()


@pytest.fixture
def process(store):
    """Return one process."""
    return Process(store)
