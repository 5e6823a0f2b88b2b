"""Runs tasks in processes: workers, which are forked, where the platform forks, from a template that has prepared what they share.

The caller starts the template, hands it all tasks at once, and takes results as they come. The template starts the workers.
Tasks belong to groups, and what is prepared for a group is there in each worker that is forked afterwards: its memory is that
of the template until it is written to (copy-on-write). A group with no more tasks than workers is not prepared, as its
workers do that side by side. Where processes are spawned, nothing is prepared, and workers serve all groups.

A process that ends closes its pipes, so all others notice: the template kills its workers when the caller has ended, and a
task whose worker was killed is an error for the caller.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

__all__ = ["FORKS", "LostWorkerError", "Work", "Workers"]

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

FORKS: Final = sys.platform == "linux"  # elsewhere libraries of the system may not survive it
_GONE: Final = (EOFError, ConnectionError)  # the other end of a pipe has ended


class Work(Protocol[T_contra, R_co]):
    """What the processes do; it is pickled where they are spawned."""

    def group_of(self, task: T_contra) -> Any:
        """Return the group of a task."""
        ...

    def prepare(self, tasks: Sequence[T_contra]) -> None:
        """Prepare what the tasks of a group share, in the template."""
        ...

    def run(self, task: T_contra) -> R_co:
        """Run a task, in a worker."""
        ...


class LostWorkerError(RuntimeError):
    """A process has ended, or was killed, before its task was done."""


class _RemoteTraceback(Exception):  # noqa: N818  # shown as the cause of an error, as a place
    """Where an error was raised, in another process."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Workers(Generic[T, R]):
    """Processes that run tasks; a context manager, which kills what has not ended at its end.

    Args:
        work: what they do.
        tasks: all tasks; those of a group are best neighbours.
        count: how many run at a time; None for one on each core.
        forks: True to fork processes, False to spawn them.
    """

    def __init__(self, work: Work[T, R], tasks: Sequence[T], count: int | None, *, forks: bool = FORKS) -> None:
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._tasks = tasks
        self._link, other = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve,
            args=(other, (self._link,) if forks else (), work, count or _core_count(), forks),
            name="template",
        )
        self._process.start()
        other.close()
        with suppress(*_GONE):  # it is noticed when results are taken
            self._link.send(list(tasks))

    def take(self, seconds: float) -> Iterator[tuple[T, R]]:
        """Yield tasks that are done, with their results: those that have come after at most some seconds.

        Raises:
            LostWorkerError: if a process was killed.
            Exception: an error of a task.
        """
        while self._link.poll(seconds):
            seconds = 0.0
            try:
                number, result, error, where = self._link.recv()
            except _GONE:
                raise LostWorkerError("the process that starts the others has ended") from None
            if error is not None:
                raise error from (_RemoteTraceback(where) if where else None)
            yield self._tasks[number], result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(*_GONE):
            self._link.send(None)
        self._link.close()
        self._process.join()


def _core_count() -> int:
    with suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# In the processes.


def _serve(link: Connection[Any, Any], inherited: Sequence[Any], work: Work[Any, Any], count: int, forks: bool) -> None:
    """Be the template: start workers, and pass on tasks and results until the caller wants no more."""
    _leave_signals()
    for each in inherited:  # else the end of the caller would go unnoticed
        each.close()
    template = _Template(link, work, count, forks=forks)
    with suppress(*_GONE):  # the caller has ended
        template.serve()
    template.kill()


def _leave_signals() -> None:
    """Leave Ctrl-C to the caller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker: its process, its pipe, the group that it was forked for, and the number of its task."""

    process: BaseProcess
    link: Any
    group: Any
    task: int | None = None


class _Template:
    """Starts workers, and hands each of them one task at a time.

    Args:
        link: the pipe to the caller.
        work: what the workers do.
        count: the number of workers.
        forks: True if they are forked.
    """

    def __init__(self, link: Connection[Any, Any], work: Work[Any, Any], count: int, *, forks: bool) -> None:
        self._context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._forks = forks
        self._link = link
        self._work = work
        self._count = count
        self._tasks: list[Any] = link.recv()
        self._waiting = deque(range(len(self._tasks)))
        self._groups = [work.group_of(task) for task in self._tasks]
        self._large = {group for group, size in Counter(self._groups).items() if forks and size > count}
        self._prepared: Any = None  # the last group
        self._workers: dict[Any, _Worker] = {}  # by their pipes

    def serve(self) -> None:
        """Pass on tasks and results until the caller says that it wants no more."""
        self._hand_out()
        while True:
            for ready in wait([self._link, *self._workers]):
                if ready is self._link:
                    self._link.recv()
                    return
                self._pass_on(self._workers[ready])
            self._hand_out()

    def kill(self) -> None:
        """End all workers, whatever they do."""
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.join()

    def _pass_on(self, worker: _Worker) -> None:
        """Pass on the result of a worker, or that it has ended."""
        number, worker.task = worker.task, None
        try:
            outcome = worker.link.recv_bytes()
        except _GONE:
            self._end(worker)
            if number is None:
                return  # another takes its place
            task = self._tasks[number]
            error = LostWorkerError(
                f"a process has ended with the exit code {worker.process.exitcode} while it ran {task!r}"
            )
            outcome = pickle.dumps((number, None, error, ""))
        self._link.send_bytes(outcome)

    def _hand_out(self) -> None:
        """Give tasks to workers while there are any."""
        while self._waiting and (worker := self._worker_for(self._groups[self._waiting[0]])) is not None:
            worker.task = self._waiting.popleft()
            with suppress(*_GONE):  # it has ended, which is noticed next
                worker.link.send((worker.task, self._tasks[worker.task]))

    def _worker_for(self, group: Any) -> _Worker | None:
        """Return a worker without a task that has what was prepared for a group; None if all have tasks."""
        idle = [each for each in self._workers.values() if each.task is None]
        for worker in idle:
            if group not in self._large or worker.group == group:
                return worker
        if len(self._workers) == self._count:
            if not idle:
                return None
            self._end(idle[0])
        if group in self._large and group != self._prepared:
            self._work.prepare([self._tasks[number] for number in self._waiting if self._groups[number] == group])
            self._prepared = group
            gc.freeze()  # the collector of a worker leaves these pages as they are, and so shared
        return self._start(group)

    def _start(self, group: Any) -> _Worker:
        link, other = self._context.Pipe()
        inherited = [self._link, link, *self._workers] if self._forks else []
        process = self._context.Process(
            target=_be_worker, args=(other, inherited, self._work), daemon=True, name="worker"
        )
        process.start()
        other.close()
        worker = self._workers[link] = _Worker(process, link, group)
        return worker

    def _end(self, worker: _Worker) -> None:
        """End a worker that has no task: it notices that its pipe was closed."""
        del self._workers[worker.link]
        worker.link.close()
        worker.process.join()


def _be_worker(link: Connection[Any, Any], inherited: Sequence[Any], work: Work[Any, Any]) -> None:
    _leave_signals()
    for each in inherited:
        each.close()
    with suppress(*_GONE):  # the template wants no more, or has ended
        while True:
            number, task = link.recv()
            link.send_bytes(_outcome(work, number, task))


def _outcome(work: Work[Any, Any], number: int, task: Any) -> bytes:
    """Run a task; return its number, its result or its error, and where that was raised, as they are sent."""
    try:
        return pickle.dumps((number, work.run(task), None, ""))
    except Exception as error:  # noqa: BLE001  # it is raised again in the process of the caller
        where = traceback.format_exc()
        try:
            sent = pickle.dumps((number, None, error, where))
            pickle.loads(sent)  # noqa: S301  # our own
        except Exception:  # noqa: BLE001  # its class decides what it raises
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            plain = RuntimeError(f"{type(error).__name__}: {error}{notes}")
            return pickle.dumps((number, None, plain, where))
        return sent
