"""The search: it finds planted flaws and shows their shortest histories, and correct programs pass."""

import asyncio
import contextlib
import gc
import pickle
import random
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Awaitable, Callable

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableTasks, MemoryStore
from ratelimited_executor.testing import (
    DeadlockError,
    Fault,
    RealIOError,
    ScenarioFailedError,
    TimeLimitError,
    TurnLimitError,
    World,
    search_faults,
)

from .planted import PLANTED


def _failure(scenario: Callable[[World], Awaitable[object]], **options) -> ScenarioFailedError:
    with pytest.raises(ScenarioFailedError) as caught:
        search_faults(scenario, **options)
    return caught.value


@pytest.mark.parametrize("name", PLANTED)
def test_planted_flaw_is_found_and_shortened(name: str) -> None:
    """Each flaw is found within 200 seeds, and only the deviations that a person would name are left of its run."""
    broken, shortest, _ = PLANTED[name]

    failure = _failure(broken, seeds=200)

    deviations = [part.rpartition(": ") for part in failure.replay.split("; ")[1:]]
    assert [point for point, _ in shortest] == [head.rpartition(" #")[0] for head, _, _ in deviations]
    for (_, expected), (_, _, value) in zip(shortest, deviations, strict=True):
        assert expected in (None, value)
    assert failure.is_repeatable


@pytest.mark.parametrize("first", [0, 10_000, 20_000])
@pytest.mark.parametrize("name", PLANTED)
def test_planted_flaw_is_found_from_any_seed(name: str, first: int) -> None:
    """That a flaw is found does not depend on lucky seeds."""
    _failure(PLANTED[name].broken, seeds=range(first, first + 200), shrink_runs=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_mended_program_passes(name: str) -> None:
    """A correct program passes a thousand seeds, and the same faults were injected into it."""
    _, shortest, mended = PLANTED[name]

    report = search_faults(mended)

    assert 1001 == report.run_count
    for point, value in shortest:
        if point in report.injected:
            counts = report.injected[point]
            assert 20 < (counts[value] if value else sum(counts.values()))


@pytest.mark.parametrize("name", PLANTED)
def test_history_is_repeated_by_its_text(name: str) -> None:
    """The text that a failure prints gives the same history again, and the same error."""
    broken, _, mended = PLANTED[name]
    failure = _failure(broken)

    again = _failure(broken, replay=failure.replay)

    assert failure.history == again.history
    assert failure.replay == again.replay
    assert str(failure.error) == str(again.error)
    if name not in ("race by order", "check and act"):  # the mended program comes to other choices
        search_faults(mended, replay=failure.replay)


def test_search_is_the_same_each_time() -> None:
    """A search finds the same run, and shortens it to the same history, whatever ran before."""
    texts = {str(_failure(PLANTED["reply lost"].broken)) for _ in range(3)}

    assert 1 == len(texts)


def test_failure_shows_the_history() -> None:
    """The message has the error with its line, the seed, what happened when, what was injected, and how to repeat it."""

    async def scenario(world: World) -> None:
        mailed: list[str] = []
        try:
            await world.call("mail", mailed.append, "Ann", faults=[Fault.REPLY_LOST])
        except ConnectionError:
            await world.call("mail", mailed.append, "Ann", faults=[])
        if len(mailed) > 1:
            raise AssertionError(f"{len(mailed)} mails")  # to an assert, pytest would add its own text

    failure = _failure(scenario, seeds=range(100))

    lines = str(failure).splitlines()
    assert "AssertionError: 2 mails" == lines[0]
    assert re.fullmatch(r"  test_searching.py:\d+: raise AssertionError\(f.*", lines[1])
    assert "" == lines[2]
    assert lines[3].startswith(f"the shortest history found, from seed {failure.seed} (run ")
    assert [
        "       0.000  scenario  calls mail('Ann')",
        "       0.005  [mail]    mail('Ann') takes effect",
        "!      0.010  scenario  mail: reply lost, raises ConnectionError",
        "       0.010  scenario  calls mail('Ann')",
        "       0.015  [mail]    mail('Ann') takes effect",
        "       0.020  scenario  mail('Ann') returns None",
        "",
        f"to run it again: search_faults(scenario, replay='seed {failure.seed}; mail #1: reply lost')",
    ] == lines[4:]


# What a failure is.


def test_ordinary_run_comes_first() -> None:
    """A scenario that fails without any fault does so in the first run, and its history says that."""

    async def scenario(world: World) -> None:
        await world.call("bank", lambda: None)
        raise ValueError("always")

    failure = _failure(scenario)

    assert isinstance(failure.__cause__, ValueError)
    assert "seed 0" == failure.replay
    assert "the history of the ordinary run, without any deviation (run 1 of the search):" in str(failure)


def test_assertion_in_a_background_task_is_a_failure() -> None:
    """An assertion that fails in a started task ends the run, though nobody awaits the task."""

    async def scenario(world: World) -> None:
        async def work() -> None:
            assert not world.fault("disk full"), "the disk is full"

        world.start("worker", work())
        await asyncio.sleep(1)

    failure = _failure(scenario)

    assert "the disk is full" in str(failure)
    assert ["disk full happens", "ends with AssertionError: the disk is full"] == [
        event.text for event in failure.history
    ]


def test_assertion_in_a_callback_is_a_failure() -> None:
    """An assertion that fails in a callback of the loop ends the run; another error there is only noted."""

    async def scenario(world: World, error: type[Exception]) -> None:
        def callback() -> None:
            if world.fault("bad"):
                raise error("bad")

        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(1)

    failure = _failure(lambda world: scenario(world, AssertionError))
    search_faults(lambda world: scenario(world, ValueError), seeds=50)

    assert "seed" in failure.replay
    assert "bad #1: happens" in failure.replay


def test_invariant_is_checked_after_each_step() -> None:
    """An invariant that is broken between two awaits of different tasks is seen, with the time, and ends the run."""

    async def scenario(world: World) -> None:
        held = 0

        async def hold() -> None:
            nonlocal held
            held += 1
            await world.pause("work", (0, 1))
            held -= 1

        async def later() -> None:
            await asyncio.sleep(0.5)
            await hold()

        world.always(lambda: held <= 1, "one holds it at a time")
        await asyncio.gather(hold(), later())

    failure = _failure(scenario)

    assert "does not hold: one holds it at a time" in str(failure)
    assert "work #1: 0.625 s" in failure.replay
    assert 0.5 == failure.history[-1].time


def test_history_is_shortened_to_the_same_failure() -> None:
    """Shortening does not slip from one broken invariant to another, though that one needs less."""

    async def scenario(world: World) -> None:
        one, two = world.fault("one"), world.fault("two")
        world.at_end(lambda: not (one and two), "not both")
        world.at_end(lambda: not one, "not one")

    for seed in range(0, 2000, 10):
        try:
            search_faults(scenario, seeds=range(seed, seed + 10))
        except ScenarioFailedError as failure:
            expected = ["one", "two"] if "not both" in str(failure.error) else ["one"]
            assert expected == [part.partition(" #")[0] for part in failure.replay.split("; ")[1:]]
            if len(expected) == 2:
                break
    else:
        pytest.fail("no seed has both faults")


def test_invariant_that_raises_is_shown_with_its_line() -> None:
    """A check may assert by itself, and may return nothing."""

    async def scenario(world: World) -> None:
        def check() -> None:
            assert world.random is not None
            assert asyncio.get_running_loop().time() < 5, "too late"

        world.always(check, "it is early")
        await asyncio.sleep(1 + 9 * world.choose("far", [0, 1]))

    assert "too late" in str(_failure(scenario))


def test_checks_at_the_end_see_what_the_other_sides_have_done() -> None:
    """A call that is given up still has its effect before the checks at the end, and left tasks have ended."""

    async def scenario(world: World) -> None:
        charged: list[int] = []
        ended: list[str] = []

        async def left() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("left")

        task = asyncio.create_task(world.call("bank", charged.append, 1, delay=(10, 10), faults=[]))
        rest = asyncio.create_task(left())
        await asyncio.sleep(1)
        task.cancel()
        world.at_end(lambda: charged == [1] and ended == ["left"] and rest.cancelled(), "all is done")
        world.at_end(lambda: not world_fails, "the world is whole")

    world_fails = False
    search_faults(scenario, seeds=20)
    world_fails = True
    assert "does not hold: the world is whole" in str(_failure(scenario))


def test_run_without_end_is_a_failure() -> None:
    """A deadlock, a run beyond its time, one that turns for ever, and a task that ignores its end are failures."""

    async def waits(_: World) -> None:
        await asyncio.Event().wait()

    async def sleeps(_: World) -> None:
        while True:
            await asyncio.sleep(60)

    async def turns(_: World) -> None:
        while True:
            await asyncio.sleep(0)

    async def stays(_: World) -> None:
        async def stay() -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

        world_tasks.append(asyncio.create_task(stay()))
        await asyncio.sleep(0)

    world_tasks: list[object] = []
    for scenario, error in (
        (waits, DeadlockError),
        (sleeps, TimeLimitError),
        (turns, TurnLimitError),
        (stays, DeadlockError),
    ):
        assert type(_failure(scenario, limit="1h", turns=1000).error) is error


def test_cancelled_scenario_is_a_failure() -> None:
    """A scenario that ends by a cancellation has not succeeded."""

    async def scenario(world: World) -> None:
        async def work() -> None:
            await asyncio.sleep(1)

        await world.start("worker", work())

    assert isinstance(_failure(scenario).error, asyncio.CancelledError)


def test_failure_that_does_not_repeat_is_said_to_be_one() -> None:
    """A run that depends on something outside of the search is shown as it was, with that reason."""
    runs = 0

    async def scenario(world: World) -> None:
        nonlocal runs
        runs += 1
        world.choose("size", range(10))
        await asyncio.sleep(0)
        assert runs != 5

    failure = _failure(scenario)

    assert not failure.is_repeatable
    assert "the run did not fail again" in str(failure)


@pytest.mark.parametrize("failing", [1, 2])
def test_failure_that_stops_repeating_is_kept(failing: int) -> None:
    """A fault that breaks only the first runs it hits is shown as it was found, as one that does not repeat."""
    hits = 0

    async def scenario(world: World) -> None:
        nonlocal hits
        if world.fault("disk full"):
            hits += 1
            assert hits > failing, "broken"

    failure = _failure(scenario, postpone=False)

    assert "broken" in str(failure.error)
    assert ["disk full happens"] == [event.text for event in failure.history]
    assert not failure.is_repeatable


class _StopProgram(BaseException):
    """An error that no ``except Exception`` catches."""


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), KeyboardInterrupt(), _StopProgram("now"), BaseExceptionGroup("many", [_StopProgram("now")])],
)
@pytest.mark.parametrize("place", ["scenario", "task", "check", "check at the end", "finally"])
def test_error_that_would_end_the_program_is_a_failure(error: BaseException, place: str) -> None:
    """What is no Exception fails its run, with a history, wherever the scenario raises it."""

    def break_off() -> None:
        raise error

    async def wait() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            break_off()

    async def scenario(world: World) -> None:
        if world.fault("disk full"):
            if place == "scenario":
                break_off()
            if place == "task":
                await asyncio.create_task(asyncio.wait_for(wait(), 10))
            if place == "check":
                world.always(break_off, "all is well")
            if place == "check at the end":
                world.at_end(break_off, "all was well")
            if place == "finally":
                task = world.start("waits", wait())
                await asyncio.wait([task], timeout=1)
                world.at_end(lambda: task.result(), "it has ended")
        await asyncio.sleep(1)

    failure = _failure(scenario, seeds=50)

    assert failure.error is error
    assert ["disk full #1: happens"] == failure.replay.split("; ")[1:]
    assert failure.is_repeatable


@pytest.mark.parametrize("is_caught", [False, True])
def test_interrupt_from_outside_ends_the_search(is_caught: bool) -> None:
    """Ctrl-C is no failure of the run in which it arrives, also if the code there catches it."""
    runs = 0

    async def scenario(world: World) -> None:
        nonlocal runs
        runs += 1
        world.fault("disk full")
        if runs == 3:
            with contextlib.suppress(BaseException) if is_caught else contextlib.nullcontext():
                signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        search_faults(scenario)

    assert 3 == runs
    assert handler is signal.getsignal(signal.SIGINT)


def test_class_of_errors_may_be_made_in_the_run() -> None:
    """A failure is shortened also if each run makes the class of its error anew."""

    async def scenario(world: World) -> None:
        class BrokenError(Exception): ...

        for index in range(5):
            world.choose(f"c{index}", [0, 1, 2])
        if world.fault("disk full"):
            raise BrokenError

    failure = _failure(scenario)

    assert failure.is_repeatable
    assert ["disk full #1: happens"] == failure.replay.split("; ")[1:]


def test_real_io_is_an_error_of_the_scenario() -> None:
    """A scenario that uses a socket gets the error of virtual time, and not a history."""

    async def scenario(_: World) -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with server:
            await asyncio.sleep(1)

    with pytest.raises(RealIOError):
        search_faults(scenario)


def test_process_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that starts a process gets the error of virtual time, even if it catches it, and no process runs."""
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **_: started.append(args))

    async def scenario(_: World) -> None:
        with contextlib.suppress(RealIOError):
            await asyncio.create_subprocess_exec("true", "it")

    with pytest.raises(RealIOError, match="subprocess: true it"):
        search_faults(scenario)

    assert not started


def test_assertion_of_a_kept_task_is_a_failure() -> None:
    """A task that is kept in a cycle of references, and so not collected in the run, is asked at its end."""

    class App:
        def __init__(self, world: World) -> None:
            self.world, self.me = world, self
            self.task = asyncio.create_task(self.background())

        async def background(self) -> None:
            assert not self.world.fault("disk full"), "background broke"

    async def scenario(world: World) -> None:
        App(world)
        await asyncio.sleep(1)

    gc.disable()
    try:
        failure = _failure(scenario)
    finally:
        gc.enable()
    assert "background broke" in str(failure.error)


def test_assertion_that_is_handled_is_none() -> None:
    """An assertion of a task whose end the scenario has looked at is the scenario's affair."""

    async def breaks() -> None:
        raise AssertionError

    async def scenario(world: World) -> None:
        world.fault("disk full")
        task = asyncio.create_task(breaks())
        await asyncio.wait([task])
        assert isinstance(task.exception(), AssertionError)

    search_faults(scenario, seeds=10)


@pytest.mark.parametrize("is_started_by_world", [False, True])
def test_assertion_of_a_clean_up_is_a_failure(is_started_by_world: bool) -> None:
    """A task that breaks an assertion when it is cancelled at the end of the run fails the run."""

    async def sender() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise AssertionError("clean-up broke")

    async def scenario(world: World) -> None:
        task = world.start("sender", sender()) if is_started_by_world else asyncio.create_task(sender())
        await asyncio.sleep(1)
        assert not task.done()

    assert "clean-up broke" in str(_failure(scenario).error)


# What the search does to a run.


def test_cancellation_hits_each_await() -> None:
    """The task is cancelled at each of its awaits, with the result ready and before it is, and at most once in a run."""
    places: set[tuple[str, int]] = set()

    async def scenario(world: World) -> None:
        ready = asyncio.Event()

        async def work() -> None:
            at = 0
            try:
                await ready.wait()
                at = 1
                await asyncio.sleep(1)
                at = 2
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                places.add(("done" if ready.is_set() else "pending", at))
                await asyncio.sleep(5)  # cleans up undisturbed
                raise

        task = world.start("worker", work())
        await asyncio.sleep(1)
        ready.set()
        await asyncio.wait([task])

    search_faults(scenario, seeds=500)

    assert {("pending", 0), ("done", 0), ("done", 1), ("done", 2)} == places


def test_only_started_tasks_are_cancelled() -> None:
    """Tasks of the scenario itself are not cancelled by the search."""

    async def scenario(world: World) -> None:
        await world.start("worker", asyncio.sleep(0)) if world.choose("with", [False]) else None
        await asyncio.gather(*(asyncio.create_task(asyncio.sleep(number)) for number in range(5)))

    search_faults(scenario, seeds=200)


def test_each_fault_of_a_call_is_what_it_says() -> None:
    """Refused calls have no effect; lost replies, slow calls and silence have it; only the first two raise."""
    seen: set[tuple[str, bool]] = set()

    async def scenario(world: World) -> None:
        effects: list[int] = []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(1000):
                await world.call("api", effects.append, 1, faults=list(Fault), error=OSError, delay=(1, 1))
        except TimeoutError:
            seen.add(("timeout", bool(effects)))
        except OSError as error:
            seen.add((str(error), bool(effects)))
        else:
            seen.add((f"after {loop.time():g} s", bool(effects)))

    report = search_faults(scenario, seeds=500)

    assert {
        ("api: refused", False),
        ("api: reply lost", True),
        ("after 1 s", True),
        ("after 100 s", True),
        ("timeout", True),
    } == seen
    assert {"refused", "reply lost", "slow", "no reply"} == set(report.injected["api"])


def test_error_of_an_effect_is_a_reply() -> None:
    """What the effect raises reaches the caller after the way back, unless that reply is lost."""
    seen: set[tuple[str, float]] = set()

    async def refuse() -> None:
        raise ValueError("no such account")

    async def scenario(world: World) -> None:
        try:
            await world.call("bank", refuse, delay=(2, 2), faults=[Fault.REPLY_LOST])
        except (ValueError, ConnectionError) as error:
            seen.add((str(error), asyncio.get_running_loop().time()))

    search_faults(scenario, seeds=100)

    assert {("no such account", 2.0), ("bank: reply lost", 2.0)} == seen


def test_order_is_left_alone_on_request() -> None:
    """With postpone=False tasks go on in asyncio's order; the race is not found."""
    with pytest.warns(UserWarning, match="has varied nothing"):
        report = search_faults(PLANTED["race by order"].broken, postpone=False)

    assert 0 == report.postponed_count


def test_callbacks_keep_the_order_of_asyncio() -> None:
    """What call_soon was given runs in that order, whatever is postponed."""

    async def scenario(_: World) -> None:
        ran: list[int] = []

        async def work() -> None:
            for _ in range(10):
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        for number in range(100):
            asyncio.get_running_loop().call_soon(ran.append, number)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert ran == list(range(100))

    assert search_faults(scenario, seeds=200).postponed_count > 100


def test_random_numbers_come_from_the_seed() -> None:
    """The world's generator and the global one are seeded for each run, and the global one is as before afterwards."""
    drawn: list[tuple[float, float]] = []

    async def scenario(world: World) -> None:
        await world.pause("a", (0, 1))
        drawn.append((world.random.random(), random.random()))

    random.seed(99)
    expected = random.Random(99).random()
    search_faults(scenario, seeds=[5, 6, 5])

    assert drawn[1] == drawn[3] != drawn[2]
    assert expected == random.random()


# What the search reports.


def test_report_counts_what_was_injected() -> None:
    """The report names each point with its faults, also those that never happened, and counts runs and time."""

    async def scenario(world: World) -> None:
        world.fault("disk full")
        await world.call("bank", lambda: None, delay=(1, 1), faults=[])

    report = search_faults(scenario, seeds=100)

    assert 101 == report.run_count
    assert 101 == report.virtual_seconds
    assert {"disk full"} == set(report.injected)
    assert 0 < report.injected["disk full"]["happens"] < 60
    assert f"  disk full  happens {report.injected['disk full']['happens']}" in str(report).splitlines()


def test_search_without_anything_to_vary_warns() -> None:
    """A scenario with no choice is a mistake of who wrote it."""

    async def scenario(_: World) -> None:
        await asyncio.sleep(1)

    with pytest.warns(UserWarning, match="the search has varied nothing in 11 runs"):
        search_faults(scenario, seeds=10)


def test_replay_that_does_not_fit_is_refused() -> None:
    """A text whose deviations do not happen any more is an error that names them, and not a pass."""

    async def scenario(world: World) -> None:
        world.fault("disk full")

    search_faults(scenario, replay="seed 3; disk full #1: happens")
    with pytest.raises(ValueError, match="does not fit the scenario any more: disk full #2: happens did not happen"):
        search_faults(scenario, replay="seed 3; disk full #2: happens")


def test_any_options_and_names_are_repeated() -> None:
    """Functions, objects with addresses in their repr, and texts with the signs of a replay are found again."""

    class Part: ...

    async def scenario(world: World) -> None:
        def fast() -> int:
            return 1

        def slow() -> int:
            return 2

        chosen = world.choose("#1: strategy; a #2: b", [fast, slow])
        world.choose("part", [Part(), Part()])
        title = world.choose("input", ["", "issue #1: broken"])
        assert chosen() == 1 or not title

    failure = _failure(scenario, seeds=range(-100, 0))

    assert failure.is_repeatable
    assert failure.seed < 0
    assert failure.history == _failure(scenario, replay=failure.replay).history


def test_call_to_run_it_again_has_the_limits() -> None:
    """The printed call names the limits of the search where they are not the usual ones."""

    async def scenario(_: World) -> None:
        await asyncio.sleep(100)

    assert ", limit='1m', turns=50)" in str(_failure(scenario, limit="1m", turns=50)).splitlines()[-1]
    assert "search_faults(scenario, replay='seed 0', limit=60)" in str(_failure(scenario, limit=60))


def test_failure_can_be_pickled() -> None:
    """A failure may come from another process, as with pytest-xdist."""

    async def scenario(world: World) -> None:
        assert not world.fault("disk full"), "broken"

    failure = _failure(scenario)
    copy = pickle.loads(pickle.dumps(failure))

    assert (failure.replay, failure.history) == (copy.replay, copy.history)
    assert "broken" in str(copy)


def test_time_of_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run begins after the real time that was given; the ordinary run always does."""
    monkeypatch.setattr(time, "monotonic", iter(range(0, 1000, 2)).__next__)

    async def scenario(world: World) -> None:
        world.fault("disk full")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert 5 == search_faults(scenario, seconds=10).run_count


def test_arguments_are_checked() -> None:
    """A delay that is no span, and a choice without options, are errors at the call."""

    async def scenario(world: World) -> None:
        with pytest.raises(ValueError, match="delay must be"):
            await world.pause("a", (2, 1))
        with pytest.raises(ValueError, match="options of 'a' must not be empty"):
            world.choose("a", [])
        world.fault("so that there is a choice")

    search_faults(scenario, seeds=50)


@pytest.mark.parametrize(
    ("seeds", "error", "text"),
    [
        (-1, ValueError, "number of seeds must be >= 0"),
        ("12", TypeError, "seeds must be a number"),
        (2.5, TypeError, "seeds must be a number"),
        (True, TypeError, "seeds must be a number"),
        ([1, "2"], TypeError, "a seed must be an integer, got '2'"),
    ],
)
def test_seeds_are_checked(seeds, error: type[Exception], text: str) -> None:
    """Seeds are integers, and their number is not negative."""

    async def scenario(world: World) -> None:
        world.fault("disk full")

    with pytest.raises(error, match=text):
        search_faults(scenario, seeds=seeds)


@pytest.mark.parametrize("scenario", [None, 5, lambda _: 3, id])
def test_scenario_is_an_async_function(scenario) -> None:
    """What cannot be called, or returns nothing to await, is an error of the caller and no failure."""
    with pytest.raises(TypeError):
        search_faults(scenario)


def test_interrupt_while_shortening_tells_the_failure() -> None:
    """Ctrl-C after a failure was found does not lose it: it is in the notes of the KeyboardInterrupt."""
    hits = 0

    async def scenario(world: World) -> None:
        nonlocal hits
        if world.fault("disk full"):
            hits += 1
            if hits == 2:
                signal.raise_signal(signal.SIGINT)
            raise AssertionError("broken")

    with pytest.raises(KeyboardInterrupt) as caught:
        search_faults(scenario)

    assert "disk full #1: happens" in caught.value.__notes__[0]


async def test_search_is_not_for_a_running_loop() -> None:
    """In an async test the error says so."""

    async def scenario(_: World) -> None: ...

    with pytest.raises(RuntimeError, match="outside of an event loop"):
        search_faults(scenario)


# Processes that crash.


def test_crash_stops_a_process_where_it_is() -> None:
    """No task, timer or callback of a crashed process goes on, no ``finally`` runs before the end, and it starts again."""
    was_crashed = False

    async def scenario(world: World) -> None:
        nonlocal was_crashed
        starts, alive, cleaned = 0, 0, 0

        async def main() -> None:
            nonlocal starts, alive, cleaned
            starts += 1
            own, alive = starts, 0

            async def tick() -> None:
                while True:
                    await asyncio.sleep(0.1)
                    assert own == starts, "a task of a crashed process goes on"

            def fire() -> None:
                assert own == starts, "a timer of a crashed process fires"
                asyncio.get_running_loop().call_later(0.1, fire)

            ticking = asyncio.create_task(tick())
            asyncio.get_running_loop().call_soon(fire)
            try:
                await asyncio.sleep(3)
            finally:
                cleaned += 1
                ticking.cancel()

        await world.process("service", main, restart=0.25)
        was_crashed |= starts > 1
        assert cleaned == 1, "a crashed process has cleaned up"

    report = search_faults(scenario, seeds=200)

    assert was_crashed
    assert report.injected["crash service"]["before this step"] > 50


def test_what_a_crashed_process_has_sent_arrives() -> None:
    """A call of a process that crashes meanwhile still has its effect; a note made after the call is lost."""
    seen: set[tuple[int, int]] = set()

    async def scenario(world: World) -> None:
        charged: list[int] = []
        noted: list[int] = []

        async def main() -> None:
            if not noted:
                await world.call("bank", charged.append, 1, faults=[])
                noted.append(1)

        await world.process("service", main)
        await asyncio.sleep(5)
        seen.add((len(charged), len(noted)))

    search_faults(scenario, seeds=300)

    assert {(1, 1), (2, 1), (3, 1)} == seen


def test_durable_tasks_survive_crashes() -> None:
    """A search finds that a durable task runs twice if its process crashes, in one crash, and that it is never lost."""

    async def scenario(world: World, times: int) -> None:
        store, charged = MemoryStore(), []

        async def main() -> None:
            tasks = DurableTasks(store)

            @tasks.task
            async def pay(order: int) -> None:
                await world.call("bank", charged.append, order, faults=[])

            async with RateLimitedExecutor("payments") as executor, tasks.running(executor):
                await pay.put(1, id="order 1")
                await asyncio.sleep(60)

        await world.process("service", main)
        assert 1 <= len(charged) <= times

    failure = _failure(lambda world: scenario(world, times=1))
    search_faults(lambda world: scenario(world, times=3), seeds=100)

    assert re.fullmatch(r"seed \d+; crash service #\d+: before this step", failure.replay)


def test_process_returns_and_raises_as_its_function_does() -> None:
    """The result and the error of the function are those of the process; a cancelled process cancels its function."""

    async def scenario(world: World) -> None:
        ended: list[str] = []

        async def returns() -> int:
            await asyncio.sleep(1)
            return 5

        async def raises() -> None:
            await asyncio.sleep(1)
            raise ValueError("no")

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("waits")

        assert 5 == await world.process("returns", returns, crashes_max=1)
        with pytest.raises(ValueError, match="no"):
            await world.process("raises", raises, crashes_max=1)
        waiting = asyncio.create_task(world.process("waits", waits, crashes_max=0))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert ["waits"] == ended
        assert waiting.cancelled()

    search_faults(scenario, seeds=100)


def test_surroundings_do_not_crash_with_a_process() -> None:
    """Tasks outside, and events that a process sets for them, go on after a crash; so does another process."""

    async def scenario(world: World) -> None:
        progress = asyncio.Event()

        async def main() -> None:
            for _ in range(5):
                progress.set()
                await asyncio.sleep(1)

        async def other() -> str:
            await asyncio.sleep(20)
            return "other"

        async def watch() -> int:
            count = 0
            while count < 3:
                await progress.wait()
                progress.clear()
                count += 1
            return count

        results = await asyncio.gather(
            world.process("service", main), world.process("other", other, crashes_max=0), watch()
        )
        assert results == [None, "other", 3]

    assert search_faults(scenario, seeds=200).injected["crash service"]["before this step"] > 20
