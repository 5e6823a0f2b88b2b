"""Simulated jobs: they take time and do nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.records import Record
from ratelimited_executor._runtime.task.coroutines import Coroutines

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextvars import Context

__all__ = ["Lasting", "LastingCoroutines"]


@used_there
async def last(job: Lasting) -> None:
    """Last as long as a job that is awaited, instead of being run by an executor."""
    if job.on_begin is not None:
        job.on_begin()
    try:
        await asyncio.sleep(job.seconds)
    except (asyncio.CancelledError, GeneratorExit) as error:
        if job.on_end is not None:
            job.on_end(error)
        raise
    if job.on_end is not None:
        job.on_end(job.error)
    if job.error is not None:
        raise job.error


@two_bodies
class Lasting(Coroutine[Any, Any, None]):
    """The return value of a job that takes time: an awaitable that sleeps for a number of seconds.

    In a simulation, an executor neither creates a task for it nor runs any step of it: it counts as running until its
    end.

    Args:
        seconds: its duration, >= 0.
        error: the exception that it raises at its end; None if it returns.
        on_end: called at its end with the exception: None if it returns, a CancelledError if it was cancelled.
        on_begin: called when it begins; a job that never begins never ends.
    """

    __slots__ = (
        "_coroutines",
        "_number",
        "_origin",
        "_owner",
        "_sleep",
        "error",
        "on_begin",
        "on_end",
        "seconds",
    )

    # Where it runs; set directly by LastingCoroutines once it runs, as this is on the path of every job.
    _coroutines: LastingCoroutines | None
    _number: int
    _owner: Any
    _origin: Context | None

    def __init__(
        self,
        seconds: float,
        error: Exception | None = None,
        on_end: Callable[[BaseException | None], object] | None = None,
        on_begin: Callable[[], object] | None = None,
    ) -> None:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be >= 0 and finite, got {seconds!r}")
        self.seconds = seconds
        self.error = error
        self.on_end = on_end
        self.on_begin = on_begin
        self._coroutines = None

    # When it is awaited.

    def __await__(self) -> Generator[Any, Any, None]:
        return last(self).__await__()

    def send(self, value: Any) -> Any:
        """Resume it, as a coroutine."""
        return self._steps().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error inside it, as in a coroutine."""
        return self._steps().throw(*error)

    def close(self) -> None:
        """Close it, as a coroutine."""
        if hasattr(self, "_sleep"):
            self._sleep.close()

    def _steps(self) -> Coroutine[Any, Any, None]:
        if not hasattr(self, "_sleep"):
            self._sleep: Coroutine[Any, Any, None] = last(self)
        return self._sleep

    # When an executor runs it without awaiting it.

    @property
    def is_running(self) -> bool:
        """True if an executor of a simulation runs it."""
        return self._coroutines is not None and self._number in self._coroutines.running

    def cancel(self, message: object = None) -> bool:
        """Cancel it now; return False if it has already ended."""
        try:
            is_cancelled = self._end(asyncio.CancelledError(*(() if message is None else (message,))))
        except Exception as error:  # noqa: BLE001  # an error of on_end; the caller cannot handle it
            is_cancelled = True
            report = {"message": f"on_end of {self!r} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
        if is_cancelled and self._coroutines is not None:
            self._coroutines.loop.note_stale()
        return is_cancelled

    def _end(self, error: BaseException | None = None) -> bool:
        """Report the planned end, or an error, to its executor; return False if it had already ended."""
        coroutines: Any = self._coroutines
        if coroutines is None or coroutines.running.pop(self._number, None) is None:
            return False
        accounts = coroutines.accounts
        if error is None:
            error = self.error
        if error is None:
            accounts.done(self._owner, None)
        else:
            accounts.raised(self._owner, error, self._origin)
        try:
            if self.on_end is not None:
                self.on_end(error)
        finally:
            coroutines.on_free()
        return True


@used_there
class LastingCoroutines(Coroutines):
    """The coroutines of one executor that run in a simulation."""

    kinds = Coroutines.kinds | {Lasting}

    __slots__ = ()

    loop: Any  # the event loop of a simulation
    running: dict[int, Any]

    @two_bodies
    def start(
        self, owner: Any, coroutine: Coroutine[Any, Any, Any], context: Context, origin: Context | None = None
    ) -> None:
        """Run a coroutine as a task; for a :class:`Lasting`, only schedule its end."""
        if type(coroutine) is not Lasting:
            super().start(owner, coroutine, context, origin)
            return
        if coroutine._coroutines is not None:  # started twice: the same error as for a coroutine
            self.accounts.raised(owner, RuntimeError("cannot reuse already awaited coroutine"), origin)
            return
        number = self._number = self._number + 1
        self.running[number] = coroutine
        coroutine._coroutines = self
        coroutine._number = number
        coroutine._owner = owner
        coroutine._origin = origin
        if isinstance(owner, Record):
            owner._place = coroutine
        loop = self.loop
        loop.push(loop.clock._monotonic + coroutine.seconds, _END, coroutine)
        if coroutine.on_begin is not None:
            coroutine.on_begin()


_END: Final[Any] = getattr(Lasting, "_end", None)  # the compiled body ends its jobs itself
