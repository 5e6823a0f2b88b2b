"""One claim of a durable task on an executor, until its end."""

from __future__ import annotations

import asyncio
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.queue.records import TriedOnce
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.durable.around import call_within, result_of
from ratelimited_executor._runtime.durable.codec import encoded
from ratelimited_executor._runtime.durable.current import CURRENT
from ratelimited_executor._runtime.durable.outcomes import LeaseOverError

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import Claimed
    from ratelimited_executor._runtime.durable.around import Around
    from ratelimited_executor._runtime.durable.functions import DurableFunction
    from ratelimited_executor._runtime.durable.saving import Saving
    from ratelimited_executor._runtime.durable.starting import Starting
    from ratelimited_executor._runtime.task.handles import TaskHandle

__all__ = ["DurableRun"]

_SAVED_MAX: Final = 64 * 1024  # bytes of a saved state
_DONE: Final = TaskState.DONE  # enum members are slow to look up


class RunHolder(Protocol):
    """The parts of a ``DurableRunner`` that its runs use.

    Attributes:
        around: returns the context manager of each attempt; None for none.
    """

    around: Around | None
    _saving: Saving
    _starting: Starting

    def _started(self, run: DurableRun) -> None: ...
    def _check_lease(self) -> None: ...
    def _done(self, run: DurableRun) -> None: ...
    def _ended(self, run: DurableRun) -> None: ...


class DurableRun(TriedOnce):
    """One claim, until its end; calling it starts the task.

    Attributes:
        func: the function; the executor's logs take its name, as of a partial.
    """

    __slots__ = (
        "args",
        "claimed",
        "due",
        "func",
        "handle",
        "is_given_up",
        "is_started",
        "is_unwanted",
        "is_void",
        "kwargs",
        "runner",
        "saved",
        "span",
        "turn",
    )

    def __init__(
        self, runner: RunHolder, claimed: Claimed, func: DurableFunction[Any, Any], args: Any, kwargs: Any, span: str
    ) -> None:
        self.runner = runner
        self.claimed = claimed
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.span = span  # in which the task was put, if it carries one
        self.due = 0.0  # loop time, by the store's clock
        self.handle: TaskHandle[Any] | None = None
        self.is_started = False
        self.is_unwanted = False  # True if the task was cancelled in the store
        self.is_given_up = False  # True if the attempt was cancelled here, to release the task
        self.is_void = False  # True if the claim is no longer in force
        self.saved = claimed.saved
        # Acquired once: by the thread that begins, or by who keeps it from that.
        self.turn = Lock() if func.in_thread else None

    def __call__(self) -> Any:
        runner = self.runner
        if self.turn is not None:
            if not self.turn.acquire(blocking=False):
                raise LeaseOverError
            assert self.handle is not None
            self.handle.get_loop().call_soon_threadsafe(runner._started, self)
        else:
            runner._started(self)
        runner._check_lease()  # noqa: SLF001  # its runner
        CURRENT.set(self)  # the context belongs to this attempt alone
        if self.span and (spans := self.func.spans) is not None:
            spans.carry(self.span)
        if self.claimed.lost_count:
            return self._recorded()
        return self._call()

    def _call(self) -> Any:
        around = self.runner.around
        if around is None:
            return self.func(*self.args, **self.kwargs)
        return call_within(around, partial(self.func, *self.args, **self.kwargs), in_thread=self.func.in_thread)

    def stop(self) -> bool:
        """Keep it from starting; return False if it has started, even if the loop has not heard of that yet."""
        return not self.is_started and (self.turn is None or self.turn.acquire(blocking=False))

    def save(self, state: Any) -> None:
        """Save a state for the next attempt; in any thread."""
        self.saved = encoded("the state", state, self.func.codec, _SAVED_MAX)
        self.runner._saving.add(self)  # noqa: SLF001  # its runner

    def load(self) -> Any:
        """Return the state that was saved last; None if there is none."""
        return None if self.saved is None else self.func.codec.loads(self.saved)[0]

    def _recorded(self) -> Any:
        """Call the function once the store has recorded the start: if the process is lost now, the task may be the cause."""
        if not self.func.in_thread:
            return self._after_recording()
        assert self.handle is not None
        asyncio.run_coroutine_threadsafe(self._record(), self.handle.get_loop()).result()
        return self._call()

    async def _record(self) -> None:
        await self.runner._starting.add(self.claimed.ref)  # noqa: SLF001  # its runner

    async def _after_recording(self) -> Any:
        await self._record()
        return await result_of(self._call)

    def ended(self, handle: TaskHandle[Any]) -> None:
        """Record the attempt's end, within it; handle failures later, as they may run user code, and what is kept."""
        if handle.state is _DONE and self.func.keep_us is None:
            self.runner._done(self)  # noqa: SLF001  # its runner
        else:
            handle.get_loop().call_soon(self.runner._ended, self)  # noqa: SLF001  # its runner
