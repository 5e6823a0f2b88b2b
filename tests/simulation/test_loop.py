"""The loop of a simulation behaves as asyncio's in order, times, cancellation and errors, and refuses the rest."""

import asyncio
import contextlib
import contextvars
import inspect
import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor import Pacing, RateLimitedExecutor
from ratelimited_executor.simulation import Lasting
from ratelimited_executor.simulation.loop import SimulationLoop
from ratelimited_executor.testing import run_virtual

from ..helpers import now


@pytest.fixture
def loop():
    made = SimulationLoop()
    yield made
    made.close()


def run(coroutine):
    """Run a coroutine on a new loop; return its result and the time at its end."""
    loop = SimulationLoop()
    try:
        return loop.run_until_complete(coroutine), loop.time()
    finally:
        loop.close()


# Programs of asyncio, each of which returns what it has seen.


async def gathers():
    async def last(seconds):
        await asyncio.sleep(seconds)
        return seconds, now()

    return await asyncio.gather(last(3), last(1), last(2), last(0))


async def groups():
    seen = []

    async def fail():
        await asyncio.sleep(2)
        raise ValueError("two")

    async def wait():
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append(("cancelled", now()))
            raise

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
            group.create_task(fail())
            group.create_task(wait())
    except* ValueError as errors:
        seen.append((len(errors.exceptions), now()))
    return seen


async def times_out():
    seen = []
    try:
        async with asyncio.timeout(5):
            await asyncio.sleep(6)
    except TimeoutError:
        seen.append(now())
    async with asyncio.timeout(5) as scope:
        await asyncio.sleep(1)
        scope.reschedule(now() + 10)
        await asyncio.sleep(9)
    seen.append(now())
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 2.5)
    except TimeoutError:
        seen.append(now())
    done, pending = await asyncio.wait([asyncio.create_task(asyncio.sleep(n)) for n in (1, 9)], timeout=3)
    for task in pending:
        task.cancel()
    return [*seen, len(done), len(pending), now()]


async def cancels():
    seen = []

    async def stubborn():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as error:
            seen.append((error.args, now()))
            await asyncio.sleep(1)  # it cleans up
            raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(2)
    task.cancel("enough")
    try:
        await task
    except asyncio.CancelledError:
        seen.append(("ended", now(), task.cancelled()))
    early = asyncio.create_task(stubborn())
    early.cancel()  # before its first step
    await asyncio.wait([early])
    return [*seen, early.cancelled(), asyncio.current_task().cancelling()]


async def queues():
    queue, seen = asyncio.Queue(maxsize=2), []

    async def produce():
        for number in range(5):
            await queue.put(number)
            seen.append(("put", number, now()))

    async def consume():
        while True:
            number = await queue.get()
            await asyncio.sleep(1)
            seen.append(("got", number, now()))
            queue.task_done()

    consumer = asyncio.create_task(consume())
    await produce()
    await queue.join()
    consumer.cancel()
    return seen


async def locks():
    lock, event, semaphore, seen = asyncio.Lock(), asyncio.Event(), asyncio.Semaphore(2), []

    async def work(name):
        async with lock:
            seen.append((name, now()))
            await asyncio.sleep(1)
        await event.wait()
        async with semaphore:
            seen.append((name, now()))
            await asyncio.sleep(2)

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    await asyncio.sleep(7)
    event.set()
    await asyncio.gather(*tasks)
    condition = asyncio.Condition()

    async def wake():
        await asyncio.sleep(1)
        async with condition:
            condition.notify_all()

    waker = asyncio.create_task(wake())
    async with condition:
        await condition.wait()
    await waker
    return [*seen, now()]


async def completes():
    return [await each for each in asyncio.as_completed([asyncio.sleep(n, n) for n in (3, 1, 2)])]


async def soon():
    """Callbacks and tasks of one turn."""
    loop, seen = asyncio.get_running_loop(), []
    loop.call_soon(seen.append, 1)
    task = asyncio.create_task(asyncio.sleep(0))
    task.add_done_callback(lambda _: seen.append("task"))
    loop.call_soon(lambda: loop.call_soon(seen.append, 3))
    handle = loop.call_soon(seen.append, "never")
    handle.cancel()
    loop.call_soon(seen.append, 2)
    loop.call_soon_threadsafe(seen.append, "threadsafe")
    for _ in range(4):
        await asyncio.sleep(0)
        seen.append("turn")
    return seen


async def lasts():
    """A lasting job is a coroutine wherever one is accepted."""
    seen = []
    await Lasting(2)
    seen.append(now())
    await asyncio.create_task(Lasting(3, None, lambda _: seen.append("then")))
    seen.append(now())
    try:
        await asyncio.wait_for(Lasting(10), 1)
    except TimeoutError:
        seen.append(now())
    try:
        await Lasting(1, KeyError("x"), lambda _: seen.append("then"))
    except KeyError:
        seen.append(now())
    assert asyncio.iscoroutine(Lasting(1))
    Lasting(1).close()
    return seen


PROGRAMS = [gathers, groups, times_out, cancels, queues, locks, completes, soon, lasts]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_asyncio_offers_does_the_same_as_on_the_virtual_loop(program):
    """Programs of asyncio give the same values in the same order as on the virtual loop."""
    assert run_virtual(program()) == run(program())[0]


def test_times_are_those_of_the_timers_exactly():
    """Times are exactly those of the timers, and nothing waits in real time."""
    assert [(3, 3.0), (1, 1.0), (2, 2.0), (0, 0.0)] == run(gathers())[0]
    assert [("cancelled", 2.0), ("cancelled", 2.0), (1, 2.0)] == run(groups())[0]
    assert ("a year later", 365 * 86400.0) == run(asyncio.sleep(365 * 86400, "a year later"))


TIMED = st.integers(1, 8)
OPERATIONS = st.one_of(
    st.tuples(st.just("sleep"), TIMED),
    st.tuples(st.just("turn"), st.none()),
    st.tuples(st.just("put"), st.integers(0, 1)),
    st.tuples(st.just("get"), st.integers(0, 1)),
    st.tuples(st.just("get within"), st.tuples(st.integers(0, 1), TIMED)),
    st.tuples(st.just("lock"), TIMED),
    st.tuples(st.just("set"), st.none()),
    st.tuples(st.just("wait"), st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 4)),
    st.tuples(st.just("later"), TIMED),
)
RANDOM_PROGRAMS = st.lists(st.lists(OPERATIONS, min_size=1, max_size=6), min_size=1, max_size=5)


async def interpret(program):
    """Run tasks of random operations; return their log. No two timers fall due together."""
    loop, log = asyncio.get_running_loop(), []
    bounded, unbounded = asyncio.Queue(1), asyncio.Queue()
    channels, lock, event = (bounded, unbounded), asyncio.Lock(), asyncio.Event()
    tasks = []

    async def step(name, argument, part):
        if name == "sleep":
            await asyncio.sleep(argument + part)
        elif name == "turn":
            await asyncio.sleep(0)
        elif name == "put":
            await channels[argument].put(part)
        elif name == "get":
            return await channels[argument].get()
        elif name == "get within":
            try:
                async with asyncio.timeout(argument[1] + part):
                    return await channels[argument[0]].get()
            except TimeoutError:
                return "timeout"
        elif name == "lock":
            async with lock:
                await asyncio.sleep(argument + part)
        elif name == "set":
            event.set()
        elif name == "wait":
            await event.wait()
        elif name == "cancel":
            return argument < len(tasks) and tasks[argument].cancel()
        elif name == "later":
            loop.call_later(argument + part, lambda: log.append((loop.time(), "called", part)))
        return None

    async def work(number, operations):
        for index, (name, argument) in enumerate(operations):
            part = 2.0 ** -(6 * number + index + 1)  # different from all others, and from any sum of them
            try:
                found = await step(name, argument, part)
            except asyncio.CancelledError:
                log.append((loop.time(), number, index, "cancelled"))
                raise
            log.append((loop.time(), number, index, found))

    tasks += [asyncio.create_task(work(number, operations)) for number, operations in enumerate(program)]
    await asyncio.wait(tasks, timeout=1000)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return log


@settings(deadline=None, max_examples=150)
@given(RANDOM_PROGRAMS)
def test_random_programs_do_the_same_at_the_same_times_as_on_the_virtual_loop(program):
    """Random programs run at the same times as on the virtual loop, if no two timers fall due together."""
    assert run_virtual(interpret(program)) == run(interpret(program))[0]


# Order at one instant.


def test_timers_due_together_go_first_come_first_served(loop):
    """Timers due together are called in order of arrival, which asyncio does not guarantee."""
    seen = []
    for number in range(100):
        loop.call_at(5, seen.append, number)
        loop.call_later(5, seen.append, number + 0.5)
    loop.push(5, seen.append, 100)
    loop.call_at(1, seen.append, -1)
    loop.run_until(5)
    assert [-1, *(number / 2 for number in range(201))] == seen


def test_what_is_ready_goes_before_what_falls_due_now(loop):
    """Callbacks of this turn precede timers, and a timer in the past is due now."""
    seen = []

    def first():
        loop.call_at(loop.time(), seen.append, "timer")
        loop.call_later(-5, seen.append, "past")
        loop.call_soon(seen.append, "soon")

    loop.call_at(3, first)
    loop.run_until(3)
    assert ["soon", "past", "timer"] == seen
    assert 3 == loop.time()


def test_tasks_that_wake_together_take_their_steps_in_turn():
    """Tasks that wake together take their steps in turn, as in asyncio."""

    async def main():
        log = []

        async def work(name):
            await asyncio.sleep(1)
            log.append(name)
            await asyncio.sleep(0)
            log.append(name)

        await asyncio.gather(work("a"), work("b"))
        return log

    assert ["a", "b", "a", "b"] == run_virtual(main())
    assert ["a", "b", "a", "b"] == run(main())[0]


def test_callbacks_run_in_their_context(loop):
    """Callbacks run in the given context, or in that of their caller."""
    variable, seen = contextvars.ContextVar("variable", default=0), []
    context = contextvars.copy_context()
    context.run(variable.set, 1)
    variable.set(2)
    for call in (loop.call_soon, lambda *args, **options: loop.call_later(1, *args, **options)):
        call(lambda: seen.append(variable.get()), context=context)
        call(lambda: seen.append(variable.get()))
    loop.run_until(1)
    assert [1, 2, 1, 2] == seen


# Time.


def test_run_until_stops_where_it_was_told(loop):
    """``run_until`` runs what is due by then and nothing later, and the clock never goes back."""
    seen = []
    for when in (1.0, 2.0, 2.5):
        loop.call_at(when, seen.append, when)
    loop.run_until(2)
    assert ([1.0, 2.0], 2.0, 2.0) == (seen, loop.time(), loop.last_time)
    loop.run_until(2.25)
    assert ([1.0, 2.0], 2.25) == (seen, loop.time())
    loop.run_until(1)
    assert 2.25 == loop.time()
    loop.run_until(100)
    assert ([1.0, 2.0, 2.5], 100.0, 2.5) == (seen, loop.time(), loop.last_time)


def test_next_time_is_that_of_the_next_event(loop):
    """The next time is now if a callback is ready, and infinity if nothing will happen."""
    assert math.inf == loop.next_time()
    loop.call_at(7, print)
    assert 7 == loop.next_time()
    loop.call_soon(lambda: None)
    assert 0 == loop.next_time()
    loop.call_at(math.inf, print)
    loop.run_until(6)
    assert 7 == loop.next_time()


def test_what_is_never_due_never_comes(loop):
    """A timer at infinity is never called, and delays nothing."""
    loop.call_at(math.inf, print)

    async def main():
        await asyncio.sleep(5)
        return now()

    assert 5 == loop.run_until_complete(main())
    assert math.inf == loop.next_time()


def test_cancelled_timers_are_nothing_that_happens(loop):
    """Cancelled timers count neither for the next time nor for the last one."""
    loop.call_at(3, lambda: None)
    loop.call_at(50, print).cancel()
    loop.run_until(10)
    assert math.inf == loop.next_time()
    loop.run_until(100)
    assert loop.last_time < 50


def test_a_callback_that_blocks_makes_the_others_late(loop):
    """A callback that blocks makes later ones late, as on a real loop."""
    seen = []
    loop.call_at(1, loop.clock.block, 5)
    loop.call_at(2, lambda: seen.append(loop.time()))
    loop.call_at(7, lambda: seen.append(loop.time()))
    loop.run_until(10)
    assert [6.0, 7.0] == seen


def test_wall_clock_goes_along():
    """The wall clock runs with the simulation, from its given start."""
    loop = SimulationLoop(start_wall=1000)
    loop.call_at(5, loop.clock.step_wall, 100)
    loop.run_until(10)
    assert (10.0, 1110.0) == (loop.clock.monotonic(), loop.clock.wall())
    loop.close()


def test_the_same_seed_draws_the_same():
    """The same seed draws the same numbers, and another one others."""
    first, second, third = (SimulationLoop(seed=seed).random.random() for seed in (1, 1, 2))
    assert first == second != third


# Timers that are cancelled.


def test_cancelled_timers_are_never_called(loop):
    """A cancelled timer is never called, whenever and however often it is cancelled."""
    seen = []
    handle = loop.call_at(1, seen.append, "never")
    kept = loop.call_at(2, seen.append, "called")
    handle.cancel()
    handle.cancel()
    loop.run_until(3)
    kept.cancel()
    assert ["called"] == seen
    assert (1.0, True) == (handle.when(), handle.cancelled())


def test_cancelled_timers_are_freed(loop):
    """Cancelled timers are freed long before their time, and the others keep their order."""
    seen = []
    for number in range(30_000):
        handle = loop.call_at(1e6 + number, print)
        if number % 1000 == 0:
            loop.call_at(100 - number / 1000, seen.append, number)
        handle.cancel()
    assert len(loop._timers) < 3000

    async def wait():
        for _ in range(5000):
            async with asyncio.timeout(1e6):
                await asyncio.sleep(0.001)

    loop.run_until_complete(wait())
    assert len(loop._timers) < 3000
    loop.run_until(100)
    assert sorted(seen, reverse=True) == seen
    assert 30 == len(seen)


def test_timers_are_freed_while_one_of_them_is_called(loop):
    """A callback may cancel and free many timers, and the others are still called."""
    seen = []
    handles = [loop.call_at(10 + number, seen.append, number) for number in range(5000)]
    loop.call_at(5, lambda: [handle.cancel() for handle in handles[1:]])
    loop.call_at(20, seen.append, "last")
    loop.run_until(1e6)
    assert [0, "last"] == seen


def test_timers_that_have_fired_are_not_counted_as_cancelled(loop):
    """Timers that have fired do not count as cancelled: else the heap would be cleaned repeatedly for nothing."""

    async def main():
        for _ in range(100):
            await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert 0 == loop._timers.stale_count


# Errors.


def test_errors_of_callbacks_are_told_and_stop_nothing(loop):
    """Errors of callbacks go to the exception handler, and stop nothing."""
    told, seen = [], []
    loop.set_exception_handler(lambda _, context: told.append(context))
    loop.call_soon(lambda: 1 / 0)
    loop.call_at(1, lambda: [][0])
    loop.call_at(2, seen.append, "on")
    loop.run_until(3)
    assert [ZeroDivisionError, IndexError] == [type(context["exception"]) for context in told]
    assert all("handle" in context and context["message"] for context in told)
    assert ["on"] == seen


def test_errors_of_tasks_that_nobody_awaits_are_told(loop):
    """The error of a task that nobody awaits is reported once the task is freed."""
    told = []
    loop.set_exception_handler(lambda _, context: told.append(context))

    async def fail():
        raise KeyError("x")

    async def main():
        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert [KeyError] == [type(context["exception"]) for context in told]


def test_errors_that_nobody_takes_are_logged(loop, caplog):
    """Without a handler errors are logged under the name of the simulation."""
    loop.call_soon(lambda: 1 / 0)
    loop.run_until(0)
    assert ["ratelimited_executor.simulation"] == [record.name for record in caplog.records]
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_goes_on_its_way(loop, error):
    """``KeyboardInterrupt`` and ``SystemExit`` leave ``run_until()``, after which the loop may continue."""

    def leave():
        raise error

    loop.call_at(1, leave)
    loop.call_at(2, lambda: None)
    with pytest.raises(error):
        loop.run_until(5)
    assert (1.0, False) == (loop.time(), loop.is_running())
    assert asyncio._get_running_loop() is None
    loop.run_until(5)
    assert 5 == loop.time()


def test_a_handler_may_hand_on_to_the_default_one(loop, caplog):
    """An exception handler may call the default one."""
    loop.set_exception_handler(None)
    loop.call_soon(lambda: 1 / 0)
    with contextlib.suppress(RecursionError):
        loop.run_until(0)
    assert 1 == len(caplog.records)


def test_result_and_error_of_a_coroutine_come_back(loop):
    """The result or error of a coroutine is returned, and other tasks continue in the next run."""
    seen = []

    async def fail():
        await asyncio.sleep(1)
        raise ValueError("x")

    async def beside():
        await asyncio.sleep(5)
        seen.append(now())

    task = loop.create_task(beside())
    with pytest.raises(ValueError, match="x"):
        loop.run_until_complete(fail())
    assert (1.0, []) == (loop.time(), seen)
    future = loop.create_future()
    loop.call_at(2, future.set_result, "result")
    assert "result" == loop.run_until_complete(future)
    loop.run_until_complete(task)
    assert [5.0] == seen


def test_what_waits_for_ever_is_said_so(loop):
    """A coroutine that waits for ever is cancelled, and reported to the caller."""
    seen = []

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(now())

    with pytest.raises(RuntimeError, match="nothing is left to happen, and .*wait.* waits forever"):
        loop.run_until_complete(wait())
    assert [0.0] == seen
    with pytest.raises(RuntimeError, match="waits forever"):
        loop.run_until_complete(loop.create_future())


@pytest.fixture
def still(monkeypatch):
    """Allow only 1,000 events at one instant."""
    monkeypatch.setattr("ratelimited_executor.simulation.loop._STILL_COUNT_MAX", 1000)


@pytest.mark.parametrize(
    "how",
    [
        "turns",
        "callbacks",
        "timers",
        "jobs",
    ],
)
def test_what_asks_for_itself_at_once_for_ever_is_said_so(loop, still, how):
    """An endless loop without passing time is detected, whatever causes it."""
    left = 20_000  # practically endless

    async def main():
        nonlocal left
        executor = RateLimitedExecutor("x")
        await executor.start()

        def again(*_):
            nonlocal left
            left -= 1
            if left > 0 and how == "callbacks":
                loop.call_soon(again)
            elif left > 0 and how == "timers":
                loop.call_later(0, again)
            elif left > 0:
                executor.schedule(lambda: Lasting(0, None, again))

        await asyncio.sleep(5)
        if how != "turns":
            again()
        while left > 0:
            left -= how == "turns"
            await asyncio.sleep(0 if how == "turns" else 1)

    task = loop.create_task(main())
    try:
        with pytest.raises(RuntimeError, match=r"at 5\.000000 s more than 1,000 things .* without any time passing"):
            loop.run_until_complete(task)
    finally:
        left = 0
        task.cancel()
        loop.run_until(10)


def test_much_may_happen_as_long_as_time_passes(loop, still):
    """Many events are allowed as long as time passes, however little."""

    async def main():
        for _ in range(5000):
            await asyncio.sleep(1e-9)

    loop.run_until_complete(main())


# Where it may run.


def test_a_simulation_does_not_run_twice_at_a_time(loop):
    """A simulation cannot be run from its own callback."""
    told = []
    loop.call_soon(lambda: told.append(pytest.raises(RuntimeError, loop.run_until, 5).match("is already running")))
    loop.run_until(1)
    assert [True] == told
    assert not loop.is_running()


def test_a_simulation_does_not_run_within_a_running_loop(loop):
    """A simulation cannot be run within a running loop."""

    async def main():
        with pytest.raises(RuntimeError, match="cannot run within a running event loop"):
            loop.run_until(5)

    asyncio.run(main())
    run(main())
    loop.run_until(1)
    assert 1 == loop.time()


def test_a_simulation_runs_in_any_thread():
    """A simulation may run in any thread, also beside others."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(run(gathers())[1])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [3.0] * 3 == found


def test_no_other_thread_calls_in(loop):
    """Another thread may not call into a simulation, which does not wait for threads."""
    found = []

    def call():
        with pytest.raises(RuntimeError, match="one thread: simulate calls in threads as a job with a duration"):
            loop.call_soon_threadsafe(print)
        found.append(True)

    def start():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    loop.call_soon(start)
    loop.run_until(1)
    assert [True] == found


def test_a_closed_loop_is_refused(loop):
    """A closed loop runs nothing, and refuses all calls."""
    seen = []
    loop.call_soon(seen.append, 1)
    loop.call_at(1, seen.append, 2)
    loop.close()
    loop.close()
    assert loop.is_closed()
    coroutine = asyncio.sleep(1)
    for call in (
        lambda: loop.run_until(5),
        lambda: loop.run_until_complete(coroutine),
        lambda: loop.create_task(coroutine),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    coroutine.close()
    assert [] == seen


def test_the_runner_of_asyncio_takes_it():
    """With ``asyncio.Runner`` leftover tasks are cancelled, and generators closed."""
    seen = []

    async def left():
        try:
            await asyncio.sleep(100)
        finally:
            seen.append(("cancelled", now()))

    async def main():
        seen.append(asyncio.create_task(left()))
        await asyncio.sleep(2)
        return now()

    with asyncio.Runner(loop_factory=SimulationLoop) as runner:
        assert 2.0 == runner.run(main())
        loop = runner.get_loop()
    assert loop.is_closed()
    assert ("cancelled", 2.0) == seen[1]


# Asynchronous generators.


async def numbers(seen):
    try:
        for number in range(10):
            yield number
            await asyncio.sleep(1)
    finally:
        seen.append(now())


def test_generators_are_closed_at_the_end(loop):
    """``shutdown_asyncgens()`` closes generators wherever they are."""
    seen = []
    generator = numbers(seen)

    async def read():
        return await anext(generator, "ended")

    assert [0, 1] == [loop.run_until_complete(read()) for _ in range(2)]
    assert [] == seen
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert [1.0] == seen
    assert "ended" == loop.run_until_complete(read())
    loop.run_until_complete(loop.shutdown_default_executor())


def test_generators_that_nobody_reads_any_more_are_closed(loop):
    """A generator that is not read any more is closed soon, and its cleanup runs in the loop."""
    seen = []

    async def main():
        async for number in numbers(seen):
            if number == 3:
                break
        await asyncio.sleep(5)

    loop.run_until_complete(main())
    assert [3.0] == seen


def test_generators_that_were_read_to_their_end_are_forgotten(loop):
    """Generators read to their end are freed."""

    async def main():
        for _ in range(100):
            async for _ in numbers([]):
                pass

    loop.run_until_complete(main())
    assert 0 == len(loop._generators)


# What is missing.


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda loop: asyncio.open_connection("localhost", 80), "create_connection"),
        (lambda loop: asyncio.start_server(print, "localhost", 0), "create_server"),
        (lambda loop: asyncio.to_thread(print), "run_in_executor"),
        (lambda loop: asyncio.create_subprocess_exec("true"), "subprocess_exec"),
        (lambda loop: asyncio.create_subprocess_shell("true"), "subprocess_shell"),
        (lambda loop: loop.add_reader(0, print), "add_reader"),
        (lambda loop: loop.add_signal_handler(2, print), "add_signal_handler"),
        (lambda loop: loop.getaddrinfo("localhost", 80), "getaddrinfo"),
        (lambda loop: loop.sock_recv(None, 1), "sock_recv"),
        (lambda loop: loop.run_forever(), "run_forever"),
        (lambda loop: loop.stop(), "stop"),
    ],
)
def test_the_world_outside_is_refused_by_name(loop, call, name):
    """Calls to the outside world are refused by name, with what to do instead."""

    async def main():
        found = call(loop)
        if inspect.isawaitable(found):
            await found

    with pytest.raises(RuntimeError, match=rf"{name}\(\) is not available in a simulation.*a job with a duration"):
        loop.run_until_complete(main())


METHODS = [
    name
    for name, member in vars(asyncio.AbstractEventLoop).items()
    if not name.startswith("_") and callable(member) and name not in {"get_exception_handler", "set_exception_handler"}
]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_a_loop_is_there_or_refused(name):
    """Every method of a loop is implemented or refused, and none raises a bare NotImplementedError."""
    assert getattr(SimulationLoop, name) is not getattr(asyncio.AbstractEventLoop, name)


def test_an_exception_handler_may_be_set(loop):
    """An exception handler may be set, as on every loop."""
    told = []
    loop.set_exception_handler(lambda loop, context: told.append((loop, type(context["exception"]))))
    loop.call_soon(lambda: 1 / 0)
    loop.run_until(0)
    assert [(loop, ZeroDivisionError)] == told


def test_an_exception_handler_that_was_set_is_there(loop):
    """The exception handler can be read, so that it can be restored."""

    def handler(loop, context):
        raise AssertionError

    assert loop.get_exception_handler() is None
    loop.set_exception_handler(handler)
    assert loop.get_exception_handler() is handler
    loop.set_exception_handler(None)
    assert loop.get_exception_handler() is None


def test_a_task_factory_makes_the_tasks(loop):
    """A task factory makes the tasks, as on every loop."""
    made = []

    def factory(loop, coroutine, **options):
        task = asyncio.Task(coroutine, loop=loop, **options)
        made.append(task)
        return task

    async def main():
        await asyncio.create_task(asyncio.sleep(1), name="one")

    assert loop.get_task_factory() is None
    loop.set_task_factory(factory)
    assert loop.get_task_factory() is factory
    loop.run_until_complete(main())
    assert "one" == made[1].get_name()


def test_there_is_no_debug_mode(loop):
    """Debug mode may be requested, and stays off."""
    loop.set_debug(True)
    assert not loop.get_debug()


def test_looking_again_and_again_stops_nobody(loop):
    """Polling in turns of the loop does not stop what is due now."""
    seen = []

    async def main():
        loop.call_later(0, seen.append, "timer")
        async with RateLimitedExecutor("x") as executor:
            handle = executor.schedule(seen.append, "job")
            while len(seen) < 2:
                await asyncio.sleep(0)
            assert handle.done()

    loop.run_until_complete(main())
    assert {"timer", "job"} == set(seen)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_executors_go_on_after_what_ends_a_program(loop, error):
    """After an error that ends the program, executors lose nothing if the loop continues."""
    seen = []

    def fail():
        raise error

    async def begin():
        executor = RateLimitedExecutor("x", pacing=Pacing.ON_TIME)
        await executor.start()
        executor.schedule_many(seen.append, range(4), delays=[0, 1, 2, 3])
        executor.schedule(fail, delay=1.5)
        return executor

    executor = loop.run_until_complete(begin())
    with pytest.raises(error):
        loop.run_until(10)
    loop.run_until_complete(executor.aclose())
    assert [0, 1, 2, 3] == seen


def test_jobs_that_were_cancelled_are_let_go_of(loop):
    """Cancelled jobs are freed long before their end, once they are most of the events."""

    async def main():
        async with RateLimitedExecutor("x") as executor:
            for _ in range(5000):
                handle = executor.schedule(lambda: Lasting(1e6))
                await asyncio.sleep(1)
                handle.cancel()
            assert len(loop._timers) < 2500

    loop.run_until_complete(main())


def test_time_does_not_move_for_timers_that_were_cancelled(loop):
    """Cancelled timers do not move the time, however many, and are counted right."""
    handles = [loop.call_at(50 + number / 1000, int) for number in range(1025)]
    loop.call_at(3, int)
    for handle in handles:
        handle.cancel()
    loop.run_until(100)
    assert (3.0, 0) == (loop.last_time, loop._timers.stale_count)
    late = loop.call_at(150, int)
    late.cancel()
    loop.run_until(200)
    assert (3.0, 0) == (loop.last_time, loop._timers.stale_count)
