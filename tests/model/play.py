"""Run a program on the library, in virtual time or in real time."""

from __future__ import annotations

import asyncio
import time

from ratelimited_executor import BatchHandle, ExecutorManager, Paced, Pacing, default_order
from ratelimited_executor.handles import CallHandle
from ratelimited_executor.orders import earliest_due_first, latest_due_first
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.policies import Strictness
from ratelimited_executor.testing import run_virtual

from .model import NAME, Outcome
from .programs import LENGTH_NS, SECOND, Op, Program

ORDERS = {
    "default": default_order,
    "earliest": earliest_due_first,
    "latest": latest_due_first,
    "unimportant": lambda task: (task.priority, task.due),
}


def seconds(ticks: int) -> float:
    """Return ticks as seconds; a float holds these exactly."""
    return ticks / SECOND


class Player:
    """Does what a program says, and writes down what happens."""

    def __init__(self, program: Program, check) -> None:
        self.program = program
        self.check = check  # called with the executor before each operation
        self.outcome = Outcome()
        self.handles: dict[str, object] = {}
        self.waiters: dict[str, asyncio.Task] = {}
        self.held: dict[str, str] = {}

    async def play(self) -> Outcome:
        """Run the program to its end."""
        program, self.loop = self.program, asyncio.get_running_loop()
        clock = getattr(self.loop, "clock", None)
        if clock is not None:  # virtual time begins at second 0 of a day, and moving it costs nothing
            await asyncio.sleep(seconds(program.begin))
        self.begin, self.wall = self.loop.time(), time.time() if clock is None else clock.wall()
        peers = None if program.peers == (1, 0) else StaticPeers(*program.peers)
        async with ExecutorManager(interval=seconds(program.interval), peers=peers) as manager:
            for number in range(program.siblings):
                manager.executor(f"sibling {number}")
            self.executor = manager.executor(
                NAME,
                rate=program.rate,
                pacing=Pacing[program.pacing],
                order=ORDERS[program.order],
                early=program.early,
                key_concurrency=program.key_concurrency,
                policy=Paced(strictness=Strictness[program.strictness]),
                drain_timeout=0,
            )
            self.rate = program.rate
            self.note_rate()
            groups: dict[int, list[Op]] = {}
            for op in program.ops:
                groups.setdefault(op[0], []).append(op)
            for at, group in groups.items():
                await self.sleep_until(at)
                self.count()
                for _, what, name, arguments in group:
                    getattr(self, "do_" + what)(name, **arguments)
            await self.sleep_until(program.until)
            self.count()
            self.read_states()
            await self.executor.shutdown(cancel_pending=True)
        await asyncio.gather(*self.waiters.values(), return_exceptions=True)
        return self.outcome

    async def sleep_until(self, at: int) -> None:
        """Wait until a time, counted from the beginning of the program."""
        future = self.loop.create_future()
        self.loop.call_at(self.begin + seconds(at), future.set_result, None)
        await future

    def count(self) -> None:
        """Write down the counts of the executor, and check its accounting."""
        counts = self.executor.statistics()
        names = ("accepted", "waiting", "running", "done", "failed", "cancelled", "expired", "dropped")
        self.outcome.counts.append((self.now(), {name: getattr(counts, name) for name in names}))
        self.check(self.executor)

    def read_states(self) -> None:
        """Write down the states of the tasks as far as their handles know them."""
        self.outcome.states |= self.held
        started = {name for _, name in self.outcome.starts}
        for name, handle in self.handles.items():
            states = self.outcome.states
            if isinstance(handle, BatchHandle):
                states |= {f"{name}.{index}": outcome.state.value for index, outcome in self.results(handle).items()}
            elif isinstance(handle, CallHandle):
                if handle.cancelled() and name not in started:  # as in asyncio, it may be cancelled after its end
                    states[name] = "cancelled"
            else:
                states[name] = handle.state.value
                if states[name] == "failed":
                    handle.exception()

    @staticmethod
    def results(batch: BatchHandle) -> dict:
        """Return the outcomes of a batch that keeps them."""
        try:
            return batch.results
        except ValueError:
            return {}

    def now(self) -> int:
        """Return the nanoseconds since the beginning of the program."""
        return round((self.loop.time() - self.begin) * 1e9)

    def call(self, length: int = 0, fails: bool = False):
        """Return a callable that writes down its start, and ends as it is told."""

        def plain(name, *_):
            self.outcome.starts.append((self.now(), name))
            if fails:
                raise Failure

        async def long(name, *_):
            self.outcome.starts.append((self.now(), name))
            await asyncio.sleep(seconds(length) + LENGTH_NS / 1e9 if length else 0)
            if fails:
                raise Failure

        return long if length else plain

    # What programs do. Times are in ticks: delays from now on, all others from the beginning of the program.

    def options(self, *, delay=None, at=None, expires=None, **rest) -> dict:
        """Convert the options of an operation to arguments of the library, in seconds."""
        given = {} if delay is None else {"delay": seconds(delay)}
        given |= {} if expires is None else {"expires": seconds(expires)}
        if at is not None:
            given["at"] = self.wall + seconds(at)
        return {**given, **rest}

    def do_schedule(self, name, *, length=0, fails=False, **rest):
        self.handles[name] = self.executor.schedule(self.call(length, fails), name, **self.options(**rest))

    def do_submit(self, name, *, length=0, fails=False, **rest):
        self.handles[name] = self.executor.submit(self.call(length, fails), name, **self.options(**rest))

    def do_execute(self, name):
        self.executor.execute(self.call(), name)

    def do_call_later(self, name, *, delay):
        self.handles[name] = self.executor.call_later(seconds(delay), self.call(), name)

    def do_call_at(self, name, *, when):
        self.handles[name] = self.executor.call_at(self.begin + seconds(when), self.call(), name)

    def do_call_soon(self, name):
        self.handles[name] = self.executor.call_soon(self.call(), name)

    def do_many(self, name, *, count, delays=None, over=None, length=0, fails=False, **rest):
        times = {} if delays is None else {"delays": [seconds(delay) for delay in delays]}
        times |= {} if over is None else {"over": seconds(over)}
        items = [f"{name}.{index}" for index in range(count)]
        options = self.options(**rest)
        self.handles[name] = self.executor.schedule_many(self.call(length, fails), items, **times, **options)

    def do_permit(self, name, *, length=0, **rest):
        async def wait():
            async with self.executor.permit(**self.options(**rest)):
                self.outcome.starts.append((self.now(), name))
                self.held[name] = "running"
                await asyncio.sleep(seconds(length) + LENGTH_NS / 1e9 if length else 0)
                self.held[name] = "done"

        self.waiters[name] = asyncio.ensure_future(wait())

    def do_cancel(self, _, *, of):
        handle = self.handles.get(of) or self.waiters.get(of)
        if handle is not None:
            handle.cancel()

    def do_rate(self, _, *, rate):
        self.rate = self.executor.rate = rate
        self.note_rate()

    def do_pause(self, _):
        self.executor.pause()
        self.note_rate()

    def do_resume(self, _):
        self.executor.resume()
        self.note_rate()

    def note_rate(self) -> None:
        """Write down the rate that is in force from now on."""
        self.outcome.rates.append((self.now() / 1e9, "0/s" if self.executor.is_paused else self.rate))

    def do_pacing(self, _, *, pacing):
        self.executor.pacing = Pacing[pacing]

    def do_order(self, _, *, order):
        self.executor.order = ORDERS[order]


class Failure(Exception):
    """The error of tasks that are meant to fail."""


def play(program: Program, check=lambda executor: None) -> Outcome:
    """Run a program in virtual time."""

    async def main() -> Outcome:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        return await Player(program, check).play()

    return run_virtual(main())


def play_in_real_time(programs: list[Program], check=lambda executor: None) -> list[Outcome]:
    """Run programs in real time, all of them at once."""

    async def main() -> list[Outcome]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        return await asyncio.gather(*(Player(program, check).play() for program in programs))

    return asyncio.run(main())
