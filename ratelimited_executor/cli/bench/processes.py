"""Shares a load among processes of this machine, which this process starts, tells when to begin, and asks for their figures.

Each process computes the whole load and sends every n-th request, as the participants that meet in Redis do. They are told
the beginning as a time of ``time.perf_counter()``, which all processes of a machine share. This process itself sends
nothing: it shows the load, passes signals on, and merges.

Messages go through a pipe for each process, as pairs of a word and a value::

    to a process:   play (rate of a trial or None, beginning); stop; None ends it
    from a process: ready; refused (reason); live (snapshot); figures (values for JSON); exported (how often, how often not, why)
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.cli.bench.open_load import Live
from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.stopping import signals_held
from ratelimited_executor.load.figures import Figures
from ratelimited_executor.load.recording import Recent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from ratelimited_executor.cli.stopping import Stop

__all__ = ["Orders", "ShareProcesses", "together"]

_LEAD_SECONDS: Final = 0.5  # from the order to begin to the beginning: longer than an order is under way
_LIVE_SECONDS: Final = 1.0  # between two snapshots of a process
_END_SECONDS: Final = 5.0  # for a process to end, or to tell its figures after a second signal, before it is killed


class ShareProcesses:
    """The processes that share a load.

    Args:
        share: what each of them runs, with its rank, its pipe and ``arguments``; has to be importable.
        count: how many there are.
        arguments: more arguments for ``share``, by rank.
        stop: ends the load; passed on to them.
        clock: returns monotonic seconds that all of them share.
    """

    def __init__(
        self,
        share: Callable[..., None],
        count: int,
        *,
        arguments: Callable[[int], tuple[Any, ...]],
        stop: Stop,
        clock: Callable[[], float],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._clock = stop, clock
        self.names = [f"process {rank + 1}" for rank in range(count)]
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._told: list[dict[str, Any]] = [{} for _ in range(count)]  # the last value of each word, by rank
        self._gone: set[int] = set()  # ranks of those that have ended
        self._change = asyncio.Event()
        context = multiprocessing.get_context("spawn")
        if sys.platform != "win32":  # else it starts with the first process, and lets go of the signals that are held
            resource_tracker.ensure_running()
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=share, args=(rank, theirs, *arguments(rank)), daemon=True)
            with signals_held():
                process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
            threading.Thread(target=self._read, args=(rank, ours), daemon=True).start()
        self._passing = [self._loop.create_task(self._pass_on(event)) for event in (stop.ordered, stop.insisted)]

    def _read(self, rank: int, pipe: Connection) -> None:
        """Read what a process says, in a thread, until it has ended."""
        with suppress(RuntimeError):  # the loop is closed
            try:
                while True:
                    word, value = pipe.recv()
                    self._loop.call_soon_threadsafe(self._take, rank, word, value)
            except (EOFError, OSError):
                self._loop.call_soon_threadsafe(self._lose, rank)

    def _take(self, rank: int, word: str, value: Any) -> None:
        self._told[rank][word] = value
        self._change.set()

    def _lose(self, rank: int) -> None:
        self._gone.add(rank)
        self._change.set()

    async def _pass_on(self, event: asyncio.Event) -> None:
        await event.wait()
        self._send("stop", None)
        if event is self._stop.insisted:  # a process that hangs must not keep the others' figures
            await asyncio.sleep(_END_SECONDS)
            for process, told in zip(self._processes, self._told, strict=True):
                if "figures" not in told:
                    process.kill()

    def _send(self, word: str, value: Any) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # it has ended, which is noticed where its figures are missing
                pipe.send((word, value))

    async def _told_by_all(self, word: str) -> dict[int, Any]:
        """Wait until each process has said a word or ended; return the values by rank."""
        while True:
            told = {rank: each[word] for rank, each in enumerate(self._told) if word in each}
            if told.keys() | self._gone >= {*range(len(self.names))}:
                return told
            self._change.clear()
            await self._change.wait()

    async def ready(self) -> None:
        """Wait until all have set up their target.

        Raises:
            CommandError: if one cannot.
        """
        told = await self._told_by_all("ready")
        for each in self._told:
            if "refused" in each:
                raise CommandError(each["refused"])
        if len(told) < len(self.names):
            raise CommandError("a process ended before it was ready to send")

    async def play(self, rate: float | None) -> tuple[dict[int, Figures], dict[int, float]]:
        """Send a load, or a trial of a rate.

        Returns:
            The figures of each process, and seconds after the beginning of its last snapshot; by rank, absent if none.
        """
        for each in self._told:
            each.pop("figures", None)
            each.pop("live", None)
        self._send("play", (rate, self._clock() + _LEAD_SECONDS))
        figures = await self._told_by_all("figures")
        heard = {rank: each["live"].seconds for rank, each in enumerate(self._told) if "live" in each}
        return {rank: Figures.from_json(each) for rank, each in figures.items()}, heard

    def live(self) -> Live | None:
        """Return a snapshot of the whole load; None before the first one of a process."""
        lives = [each["live"] for each in self._told if "live" in each]
        return together(lives) if lives else None

    async def close(self) -> list[tuple[int, int, str]]:
        """End the processes.

        Returns:
            What those have said that were to export: how many exports succeeded and failed, and why the last of these did.
        """
        for task in self._passing:
            task.cancel()
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        await asyncio.to_thread(self._join)
        exports = await self._told_by_all("exported")
        for pipe in self._pipes:
            pipe.close()
        return [*exports.values()]

    def _join(self) -> None:
        for process in self._processes:
            process.join(_END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def together(lives: Sequence[Live]) -> Live:
    """Return a snapshot of a load from those of its shares: counts are added, of durations the longest counts."""
    return Live(
        is_warm_up=any(each.is_warm_up for each in lives),
        seconds=max(each.seconds for each in lives),
        total=max(each.total for each in lives),
        rate=sum(each.rate for each in lives),
        in_flight=sum(each.in_flight for each in lives),
        waiting=sum(each.waiting for each in lives),
        ended=sum(each.ended for each in lives),
        errors=sum(each.errors for each in lives),
        recent=Recent(
            p50=max(each.recent.p50 for each in lives),
            p99=max(each.recent.p99 for each in lives),
            counts=tuple(map(sum, zip(*(each.recent.counts for each in lives), strict=True))),
        ),
    )


class Orders:
    """What a process that sends a share is told to do.

    Args:
        pipe: the pipe to the process that has started it. If that has ended, so does the load.
        stop: ends the load.
    """

    def __init__(self, pipe: Connection, stop: Stop) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe, self._stop = pipe, stop
        self._plays: asyncio.Queue[tuple[float | None, float] | None] = asyncio.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            try:
                while (message := self._pipe.recv()) is not None:
                    self._loop.call_soon_threadsafe(self._take, *message)
            except (EOFError, OSError):
                for _ in range(2):
                    self._loop.call_soon_threadsafe(self._stop.on_signal)
            self._loop.call_soon_threadsafe(self._plays.put_nowait, None)

    def _take(self, word: str, value: Any) -> None:
        if word == "stop":
            self._stop.on_signal()
        else:
            self._plays.put_nowait(value)

    async def next(self) -> tuple[float | None, float] | None:
        """Wait for the next load to send; return its rate, None for the rates of the command line, and its beginning.

        Returns:
            None if there is no other.
        """
        return await self._plays.get()

    def tell(self, word: str, value: Any = None) -> None:
        """Say something, unless nobody is there any more."""
        with suppress(OSError):
            self._pipe.send((word, value))

    async def tell_live(self, live: Callable[[], Live]) -> None:
        """Send a snapshot each second, until cancelled."""
        while True:
            await asyncio.sleep(_LIVE_SECONDS)
            self.tell("live", live())
