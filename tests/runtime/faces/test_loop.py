"""The asyncio face: a drop-in replacement for the timers of an event loop."""

import asyncio
import contextvars
import functools
import inspect
import random
import threading
import time

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.testing import run_virtual

from ...helpers import now


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("value", [None, "r-17"])
async def test_context_of_a_handle_is_that_of_the_call(virtual_clock, value, is_given):
    """``get_context()`` returns the very context in which the call will run, and the call sees changes made to it."""
    variable = contextvars.ContextVar("variable", default=None)
    other = contextvars.ContextVar("other", default=0)
    variable.set(value)
    given = contextvars.copy_context() if is_given else None
    seen = []

    def call() -> None:
        seen.append((variable.get(), other.get()))

    async with RateLimitedExecutor("x") as executor:
        calls = [executor.call_later(delay, call, context=given) for delay in (0, 5, 5, 5)]
        assert given is None or all(given is each.get_context() for each in calls)
        for number, each in enumerate(calls[:2], 1):
            context = each.get_context()
            assert each.get_context() is context
            assert context.run(variable.get) == value
            context.run(other.set, number)
        calls[3].cancel()
        assert calls[3].get_context() is None
    assert [(value, number) for number in ((2, 2, 2) if is_given else (1, 2, 0))] == seen
    assert [None] * 4 == [each.get_context() for each in calls]


@pytest.mark.parametrize("name", ["call_later", "call_at", "call_soon", "call_soon_threadsafe"])
def test_signatures_are_those_of_the_loop(name):
    """Each method has the positional arguments and the ``context=`` of the loop's method."""
    ours = list(inspect.signature(getattr(RateLimitedExecutor, name)).parameters.values())
    theirs = list(inspect.signature(getattr(asyncio.AbstractEventLoop, name)).parameters.values())
    kept = [parameter for parameter in theirs if parameter.name != "context"]
    assert [(p.name, p.kind) for p in kept] == [(p.name, p.kind) for p in ours if p.name != "context"]
    assert inspect.Parameter.KEYWORD_ONLY is next(p.kind for p in ours if p.name == "context")


async def test_timers_fire_when_the_loops_own_do(virtual_clock):
    """Each of 300 random timers fires at the instant of asyncio's own, and equal ones in the order of the calls."""
    generator = random.Random(7)
    delays = [generator.choice([0, 0.5, 0.5, 1, generator.random() * 3, -1]) for _ in range(300)]
    ours, theirs = [], []
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x") as executor:
        for index, delay in enumerate(delays):
            executor.call_later(delay, lambda i=index: ours.append((now(), i)))
            loop.call_later(delay, lambda i=index: theirs.append((now(), i)))
        await asyncio.sleep(4)
    assert sorted(theirs) == sorted(ours)
    late = [index for index in range(300) if delays[index] > 0]
    assert sorted(late, key=delays.__getitem__) == [index for _, index in ours if delays[index] > 0]


async def test_equal_due_times_fire_in_the_order_of_the_calls(virtual_clock):
    """Equal due times fire in the order of the calls, even across intervals and with others in between."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        for index in range(2000):
            executor.call_at(2.5, log.append, index)
            executor.call_at(2.4 + index % 2 / 5, int)
    assert [*range(2000)] == log


async def test_face_is_never_spread(virtual_clock):
    """Ten callbacks due at the same instant all fire at that instant."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        for _ in range(10):
            executor.call_later(5.0, lambda: log.append(now()))
    assert [5.0] * 10 == log


async def test_rate_of_the_executor_holds_on_this_face(virtual_clock):
    """Under a rate, callbacks wait for permits."""
    log = []
    async with RateLimitedExecutor("x", rate=2) as executor:
        for _ in range(3):
            executor.call_later(5.0, lambda: log.append(now()))
    assert [5.0, 5.5, 6.0] == log


async def test_handle_has_the_methods_of_a_timer_handle(virtual_clock):
    """A handle has ``cancel``, ``cancelled`` and ``when``; cancelling it twice or too late does nothing."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        await asyncio.sleep(1)
        handle = executor.call_later(2.5, log.append, "no")
        other = executor.call_at(4.0, log.append, "yes")
        assert (3.5, 4.0) == (handle.when(), other.when())
        assert not handle.cancelled()
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()
        await asyncio.sleep(5)
        other.cancel()
        soon = executor.call_soon(log.append, "soon")
        assert 6 == soon.when()
    assert ["yes", "soon"] == log
    assert (1, 2) == (executor.statistics().cancelled, executor.statistics().done)


async def test_handles_may_be_dropped_or_kept(virtual_clock, account):
    """Cancelling any subset of the handles leaves exactly the others, whatever was compacted meanwhile."""
    generator = random.Random(3)
    fired = set()
    async with RateLimitedExecutor("x") as executor:
        handles = [
            executor.call_later(generator.choice([0.2, 3.3, 3.7, 60]), fired.add, index) for index in range(30_000)
        ]
        doomed = set(generator.sample(range(30_000), 27_000))
        for index in doomed:
            handles[index].cancel()
            if index % 5000 == 0:
                await asyncio.sleep(0)
        account(executor)
        await asyncio.sleep(1)
        for index in list(doomed)[:100]:
            handles[index].cancel()
        account(executor)
    assert set(range(30_000)) - doomed == fired


async def test_callbacks_of_call_soon_keep_their_order(virtual_clock):
    """Callbacks run in the order of the calls, as on a loop, and those that a callback adds run later."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        executor.call_soon(lambda: executor.call_soon(log.append, "inner"))
        for index in range(3):
            executor.call_soon(log.append, index)
        assert [] == log
        await asyncio.sleep(0.1)
    assert [0, 1, 2, "inner"] == log


async def test_call_soon_threadsafe_comes_from_any_thread(virtual_clock):
    """It may be called from any thread, and its handle cancels until the loop has taken the call up."""
    log = []
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x") as executor:
        hold = loop.hold("the thread that calls")

        def work():
            with hold:
                for index in range(5):
                    executor.call_soon_threadsafe(log.append, (index, threading.get_ident()))

        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.sleep(1)
        thread.join()
        executor.call_soon_threadsafe(log.append, "cancelled").cancel()
        await asyncio.sleep(1)
    assert [*range(5)] == [index for index, _ in log]


async def test_schedule_threadsafe_gives_a_future_of_the_thread(virtual_clock):
    """A thread gets a future with the result, exception or refusal, and cancelling the future cancels the task."""
    async with RateLimitedExecutor("x") as executor:
        loop = asyncio.get_running_loop()

        def work():
            future = executor.schedule_threadsafe(lambda: 42, delay=2)
            got = [loop.result_in_thread(future)]
            for bad in (executor.schedule_threadsafe(lambda: 1 / 0), executor.schedule_threadsafe(int, delay=-1)):
                try:
                    loop.result_in_thread(bad)
                except Exception as error:
                    got.append(type(error))
            return got

        assert [42, ZeroDivisionError, ValueError] == await asyncio.to_thread(work)
        assert 2.0 == now()
        log = []
        future = executor.schedule_threadsafe(log.append, "never", delay=10)
        await asyncio.sleep(1)
        assert future.cancel()
        await asyncio.sleep(0)
        assert (0, 1) == (executor.statistics().waiting, executor.statistics().cancelled)
    assert [] == log


@pytest.mark.real_time("uvloop's own timers and clock, for a second; what is asked is exact, however slow the machine")
@pytest.mark.parametrize("options", [{}, {"rate": 2000}], ids=["unlimited", "limited"])
def test_nothing_is_early_by_the_clock_of_uvloop(options):
    """No callback is early, although uvloop's clock stands still during a turn and counts whole milliseconds."""
    uvloop = pytest.importorskip("uvloop")
    generator, ahead = random.Random(1), []

    async def main():
        loop = asyncio.get_running_loop()
        async with RateLimitedExecutor("x", **options) as executor:
            for _ in range(1000):
                delay = generator.random()
                when = loop.time() + delay
                kept = executor.call_later(delay, lambda when=when: ahead.append(loop.time() - when))
                assert kept.when() >= when
                assert when == executor.call_at(when, lambda when=when: ahead.append(loop.time() - when)).when()
                if generator.random() < 0.01:
                    time.sleep(0.003)
                    await asyncio.sleep(0)
            await asyncio.sleep(1.1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert 2000 == len(ahead)
    assert min(ahead) >= 0


# The same program on the event loop and on the executor.


variable = contextvars.ContextVar("variable", default=None)


class Program:
    """A random program, determined by a seed, for an object with ``call_soon``, ``call_later`` and ``call_at``."""

    def __init__(self, face, loop, seed: int) -> None:
        self.face = face
        self.loop = loop
        self.rng = random.Random(seed)
        self.trace: list = []
        self.handles: list = []
        self.count = 0

    def step(self, depth: int) -> None:
        """Schedule a random callback."""
        name = self.count = self.count + 1
        call = functools.partial(self.run, name, depth)
        context = contextvars.copy_context() if self.rng.random() < 0.2 else None
        if context is not None:
            context.run(variable.set, name)
        options = {"context": context} if context is not None else {}
        kind = self.rng.random()
        # Binary fractions, so that sums of them are exact and equal due times are really equal.
        delay = self.rng.choice([-1, 0, 0.25, 0.25, 0.5, 1, 1, 1.75, 3])
        if kind < 0.2:
            self.handles.append(self.face.call_soon(call, **options))
        elif kind < 0.75:
            self.handles.append(self.face.call_later(delay, call, **options))
        else:
            self.handles.append(self.face.call_at(self.loop.time() + delay, call, **options))

    def run(self, name: int, depth: int) -> None:
        """Note the run, schedule more, and sometimes cancel a handle or raise an error."""
        self.trace.append((self.loop.time(), name, variable.get()))
        variable.set(("set by", name))
        for _ in range(self.rng.choice([0, 0, 1, 2]) if depth else 0):
            self.step(depth - 1)
        if self.rng.random() < 0.2 and self.handles:
            self.rng.choice(self.handles).cancel()
        if self.rng.random() < 0.1:
            raise ValueError(name)


def by_time(trace: list) -> dict:
    """Group a trace by its instants, and keep the order within each."""
    groups: dict = {}
    for when, *rest in trace:
        groups.setdefault(when, []).append(tuple(rest))
    return groups


def play(seed: int, *, on_executor: bool):
    """Run a program; return its trace, the reports to the loop's handler, and which handles are cancelled."""

    async def main():
        loop = asyncio.get_running_loop()
        reports: list = []
        loop.set_exception_handler(lambda _, context: reports.append(repr(context["exception"])))
        async with RateLimitedExecutor("x") as executor:
            program = Program(executor if on_executor else loop, loop, seed)
            for _ in range(12):
                program.step(depth=0)
            await asyncio.sleep(5)
            return program.trace, reports, [handle.cancelled() for handle in program.handles]

    return run_virtual(main())


@pytest.mark.parametrize("seed", range(40))
def test_flat_program_leaves_the_same_trace_as_on_the_loop(seed):
    """Instants, calls, contexts, reports and cancelled handles are the same as on the loop.

    asyncio leaves the order of equal due times open, as its heap is not stable. That order decides what is
    cancelled and what raises, so traces with a tie are compared only up to it.
    """
    ours, our_reports, our_cancelled = play(seed, on_executor=True)
    theirs, their_reports, their_cancelled = play(seed, on_executor=False)
    if any(len(group) > 1 for group in by_time(theirs).values()):
        # What a program cancels and raises depends on the order, so compare only up to the first tie.
        first = next(i for i, entry in enumerate(theirs) if sum(entry[0] == other[0] for other in theirs) > 1)
        assert theirs[:first] == ours[:first]
        return
    assert theirs == ours
    assert their_reports == our_reports
    assert their_cancelled == our_cancelled


class Distinct(Program):
    """A program whose due times are all different, and whose callbacks may nest deeply."""

    def step(self, depth: int) -> None:
        """Schedule a random callback at an instant that no other one has."""
        name = self.count = self.count + 1
        context = contextvars.copy_context() if self.rng.random() < 0.2 else None
        if context is not None:
            context.run(variable.set, name)
        options = {"context": context} if context is not None else {}
        call = functools.partial(self.run, name, depth)
        when = self.loop.time() + self.rng.choice([0.0, 0.3, 2]) + self.rng.random() + name * 2**-20
        way = (
            self.face.call_at
            if self.rng.random() < 0.5
            else lambda at, *a, **k: self.face.call_later(at - self.loop.time(), *a, **k)
        )
        self.handles.append(way(when, call, **options))


@pytest.mark.parametrize("seed", range(40))
def test_deep_program_leaves_the_same_trace_as_on_the_loop(seed):
    """Callbacks that schedule and cancel others, set context variables and raise leave the same trace, too."""

    def play_distinct(*, on_executor):
        async def main():
            loop = asyncio.get_running_loop()
            reports: list = []
            loop.set_exception_handler(lambda _, context: reports.append(repr(context["exception"])))
            variable.set("main")
            async with RateLimitedExecutor("x") as executor:
                program = Distinct(executor if on_executor else loop, loop, seed)
                for _ in range(6):
                    program.step(depth=4)
                await asyncio.sleep(30)
            return program.trace, reports, [handle.cancelled() for handle in program.handles]

        return run_virtual(main())

    ours, theirs = play_distinct(on_executor=True), play_distinct(on_executor=False)
    assert theirs == ours
    assert len(ours[0]) > 3


@pytest.mark.parametrize("delay", [0.25, 1.5, 7])
async def test_equal_due_times_keep_the_order_of_the_calls_whatever_the_way(virtual_clock, delay):
    """Equal due times keep the order of ``call_later`` and ``call_at`` calls, with some of them cancelled."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        when = executor._engine.monotonic() + delay
        handles = [
            executor.call_at(when, log.append, n) if n % 2 else executor.call_later(delay, log.append, n)
            for n in range(500)
        ]
        for handle in handles[::7]:
            handle.cancel()
    assert [n for n in range(500) if n % 7] == log


def test_call_soon_is_first_in_first_out():
    """Callbacks run first in, first out as on the loop, and those that a callback adds run in a later turn."""

    async def main(face):
        log = []

        def outer(n):
            log.append(n)
            if n < 5:
                face.call_soon(outer, n + 10)

        for n in range(4):
            face.call_soon(outer, n)
        await asyncio.sleep(0.01)
        return log

    async def ours():
        async with RateLimitedExecutor("x") as executor:
            return await main(executor)

    async def theirs():
        return await main(asyncio.get_running_loop())

    assert run_virtual(theirs()) == run_virtual(ours())


@pytest.mark.parametrize("seed", range(40))
def test_order_within_an_instant_is_that_of_a_loop_with_a_stable_heap(seed, monkeypatch):
    """Of many callbacks at the same instant, those that are due run before any that are added meanwhile."""
    make, numbers = asyncio.TimerHandle.__init__, {}

    def numbered(self, *args):
        make(self, *args)
        numbers[id(self)] = len(numbers), self

    monkeypatch.setattr(asyncio.TimerHandle, "__init__", numbered)
    monkeypatch.setattr(
        asyncio.TimerHandle,
        "__lt__",
        lambda one, other: (one.when(), numbers[id(one)][0]) < (other.when(), numbers[id(other)][0]),
    )

    async def play_on(make_face):
        loop = asyncio.get_running_loop()
        async with RateLimitedExecutor("x") as executor:
            face = make_face(loop, executor)
            log = []

            def act(name, depth):
                rng = random.Random(f"{seed} {name}")
                for number in range(12 if depth == 0 else rng.choice([0, 1, 1, 2, 3]) if depth < 4 else 0):
                    child = f"{name}.{number}"
                    call = functools.partial(run, child, depth + 1)
                    kind, delay = rng.random(), rng.choice([0.125, 0.25, 0.25, 0.5, 1, 1.5])
                    if kind < 0.3:
                        face.call_soon(call)
                    elif kind < 0.7:
                        face.call_later(delay, call)
                    else:
                        face.call_at(loop.time() + delay, call)

            def run(name, depth):
                log.append((loop.time(), name))
                act(name, depth)

            act("", 0)
            await asyncio.sleep(10)
            return log

    assert run_virtual(play_on(lambda loop, _: loop)) == run_virtual(play_on(lambda _, executor: executor))


async def test_what_is_asked_for_without_delay_goes_first_where_places_are_few(virtual_clock):
    """With fewer places than due tasks, priority order decides, and a submitted task precedes a delayed one."""
    ran = []
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        executor.submit(asyncio.sleep, 1)
        executor.schedule(ran.append, "delayed", delay=0.1)
        await asyncio.sleep(0.5)
        executor.submit(ran.append, "submitted")
        await asyncio.sleep(1)
        assert ["submitted", "delayed"] == ran


@pytest.mark.parametrize("face", ["call_soon", "submit", "execute", "schedule_many"])
async def test_chain_of_calls_without_delay_starves_no_timer(virtual_clock, face):
    """While all due tasks may start, a timer is not starved by tasks that keep submitting others without delay."""
    ran = []
    async with RateLimitedExecutor("x") as executor:

        def again(_=None):
            asyncio.get_running_loop().block_for(0.01)
            if not ran:
                getattr(executor, face)(again, *([[1]] if face == "schedule_many" else []))

        again()
        executor.call_later(0.1, ran.append, "call_later")
        executor.schedule(ran.append, "schedule", delay=0.1)
        await asyncio.sleep(1)
        assert ["call_later", "schedule"] == sorted(ran)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("way", ["call_later", "call_soon", "schedule", "coroutine", "schedule_many"])
def test_exit_leaves_the_loop_and_the_rest_runs_afterwards(virtual_loop, error, way, account):
    """As in asyncio, ``run_until_complete`` raises; the failure is recorded, and no other task is lost."""
    log = []

    def leave(_=None):
        raise error(3)

    async def leave_later():
        await asyncio.sleep(0)
        raise error(3)

    async def start():
        executor = RateLimitedExecutor("x")
        await executor.start()
        for n in range(3):
            executor.call_later(1, log.append, n)
        if way == "call_later":
            executor.call_later(1, leave)
        elif way == "call_soon":
            executor.call_later(1, executor.call_soon, leave)
        elif way == "schedule":
            kept.append(executor.schedule(leave, delay=1))
        elif way == "coroutine":
            kept.append(executor.schedule(leave_later, delay=1))
        else:
            kept.append(executor.schedule_many(leave, [1], delay=1))
        for n in range(3, 6):
            executor.call_later(1, log.append, n)
        return executor

    async def go_on():
        await asyncio.sleep(3)

    kept: list = []
    virtual_loop.set_exception_handler(lambda loop, context: None)
    executor = virtual_loop.run_until_complete(start())
    waiter = virtual_loop.create_task(go_on())
    with pytest.raises(error):
        virtual_loop.run_until_complete(waiter)
    account(executor)
    virtual_loop.run_until_complete(waiter)
    assert list(range(6)) == sorted(log)
    counts = executor.statistics()
    assert (1, 0, 0) == (counts.failed, counts.waiting, counts.running)
    account(executor)
    virtual_loop.run_until_complete(executor.aclose())
    if kept and way in ("schedule", "coroutine"):
        assert isinstance(kept[0].exception(), error)


async def test_callback_that_raises_stops_nothing_and_is_reported_once(handler):
    """The loop's exception handler gets one report for each callback that raises, and other callbacks run."""
    reports = handler()
    log = []
    async with RateLimitedExecutor("x") as executor:
        executor.call_later(1, int, "no number")
        executor.call_later(1, log.append, 1)
        executor.call_soon(lambda: 1 / 0)
        executor.call_soon(log.append, 0)
    assert [0, 1] == log
    assert [ZeroDivisionError, ValueError] == [type(report["exception"]) for report in reports]
    assert all(report["message"] for report in reports)


async def test_given_context_is_used_itself(virtual_clock):
    """A callback runs in the given context itself, not a copy of it, with each call of the face, as in asyncio."""
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x") as executor:
        for face in (executor, loop):
            for call in (
                lambda context: face.call_soon(variable.set, "set", context=context),
                lambda context: face.call_later(0.2, variable.set, "set", context=context),
                lambda context: face.call_at(loop.time() + 1.2, variable.set, "set", context=context),
                lambda context: face.call_soon_threadsafe(variable.set, "set", context=context),
            ):
                context = contextvars.Context()
                call(context)
                await asyncio.sleep(3)
                assert "set" == context.get(variable)
                assert variable.get() is None


async def test_one_context_serves_many_callbacks_in_order(virtual_clock):
    """Callbacks with one context run in order, and each sees the variables that earlier ones have set."""
    log = []
    context = contextvars.Context()

    def add(n):
        variable.set((*(variable.get() or ()), n))
        log.append(variable.get())

    async with RateLimitedExecutor("x") as executor:
        for n in range(3):
            executor.call_later(1, add, n, context=context)
    assert [(0,), (0, 1), (0, 1, 2)] == log


async def test_rate_holds_on_the_face(virtual_clock, audit):
    """Of 300 calls, of which 200 are due at once, one starts with each permit, in the order of the calls."""
    log = []
    async with RateLimitedExecutor("x", rate=100) as executor:
        for n in range(300):
            executor.call_later(0.5 if n % 3 else 2, lambda n=n: log.append((asyncio.get_running_loop().time(), n)))
    assert 300 == len(log)
    assert audit([when for when, _ in log], 100).ok
    first = [n for _, n in log[:150]]
    assert sorted(first) == first


async def test_threadsafe_handle_cancels_until_the_loop_has_taken_it_up(virtual_clock):
    """The handle is the loop's own, and cancels the call until the loop has taken it up."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        executor.call_soon_threadsafe(log.append, 1)
        executor.call_soon_threadsafe(log.append, 2).cancel()
        await asyncio.sleep(0.1)
    assert [1] == log
    assert 1 == executor.statistics().accepted
