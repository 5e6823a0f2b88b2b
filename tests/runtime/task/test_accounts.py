"""Every accepted task is waiting, running or in one final state, at every instant, whatever happens.

A state machine uses every face at random on a virtual loop. After each step the waiting and running tasks are counted
by walking the structures, no task has started early, and the law of ``Paced`` holds for all starts so far.
"""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ratelimited_executor import (
    ExecutorManager,
    MissedTick,
    Pacing,
    Rate,
    RateLimitedExecutor,
    TaskState,
    default_order,
)
from ratelimited_executor.orders import earliest_due_first, latest_due_first
from ratelimited_executor._runtime.task.accounts import Accounts
from ratelimited_executor.testing import VirtualEventLoop, audit, run_virtual

from ...helpers import examples
from ...waiting import live_count, walk
from ...core.world import CoreRecord, World

TIMES = st.sampled_from([0.0, 0.001, 0.1, 0.25, 0.5, 0.999, 1.0, 1.5, 2.0, 3.7, 10.0])
RATES = st.sampled_from([0, 1, 3, "5/min", 10, 100, 1000, float("inf")])
KINDS = st.sampled_from(["plain", "coroutine", "fails", "fails later", "cancels", "own exit", "blocks"])
PRIORITIES = st.sampled_from([0, 0, 0, 1, -1, 5])
EXPIRES = st.sampled_from([None, None, 0.0, 0.3, 1.0, 2.5, 60.0])


class OwnError(BaseException):
    """An error that no library expects."""


def bad_order(task):
    """Return keys of several types, and raise at times."""
    if task.arrival % 5 == 0:
        raise ValueError(task)
    return str(task.due) if task.arrival % 3 else task.due


class Accounting(RuleBasedStateMachine):
    """One executor, used by every face."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualEventLoop()
        self.loop.set_exception_handler(lambda loop, context: None)
        self.executor: RateLimitedExecutor | None = None
        self.starts: list[float] = []
        self.early: list[tuple[float, float]] = []
        self.rates: list[tuple[float, object]] = []
        self.handles: list = []
        self.calls: list = []
        self.batches: list = []
        self.repeating: list = []
        self.waiters: list[asyncio.Task] = []

    @initialize(
        rate=RATES,
        pacing=st.sampled_from(Pacing),
        concurrency=st.sampled_from([None, None, 1, 3]),
        interval=st.sampled_from([0.1, 1.0, 1.0, 7.0]),
    )
    def start(self, rate, pacing, concurrency, interval):
        """Create the executor."""

        def make():
            self.manager = ExecutorManager(interval=interval)
            self.executor = self.manager.executor("x", rate=rate, pacing=pacing, max_concurrency=concurrency)
            return self.manager.start()

        self.rates.append((self.loop.time(), Rate.of(rate)))
        self.run(make())
        self.run(asyncio.sleep(1e-6))

    def run(self, awaitable):
        """Run an awaitable to its end."""

        async def main():
            return await awaitable

        return self.loop.run_until_complete(main())

    def do(self, function):
        """Call a function on the loop, and give the loop two turns."""

        async def main():
            result = function()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(main())

    def change_rate(self, change):
        """Change the rate, and record when; an infinite rate lasts no time at all."""

        def noted():
            change()
            self.rates.append((self.loop.time(), 0 if self.executor.is_paused else self.executor.rate))

        self.do(noted)
        self.run(asyncio.sleep(1e-6))

    def call(self, kind, due, length=0.7):
        """Make a callable that records its start."""

        def function(*_):
            now = self.loop.time()
            self.starts.append(now)
            if now < due:
                self.early.append((now, due))
            if kind == "fails":
                raise ValueError
            if kind == "cancels":
                raise asyncio.CancelledError
            if kind == "own exit":
                raise OwnError
            if kind == "blocks":
                self.loop.block_for(0.3)
            if kind in ("coroutine", "fails later"):
                return body()
            return None

        async def body():
            await asyncio.sleep(length)
            if kind == "fails later":
                raise ValueError

        return function

    # Every face.

    @rule(delay=TIMES, priority=PRIORITIES, expires=EXPIRES, kind=KINDS, timeout=st.sampled_from([None, None, 0.2]))
    def schedule(self, delay, priority, expires, kind, timeout):
        """Schedule with a delay, 0 included."""
        due = self.loop.time() + delay
        self.handles.append(
            self.do(
                lambda: self.executor.schedule(
                    self.call(kind, due), delay=delay, priority=priority, expires=expires, run_timeout=timeout
                )
            )
        )

    @rule(after=st.sampled_from([-5.0, 0.0, 0.4, 1.5, 3.0, 20.0]), expires=EXPIRES, kind=KINDS)
    def schedule_at(self, after, expires, kind):
        """Schedule by the wall clock."""
        at = self.loop.clock.wall() + after
        self.handles.append(self.do(lambda: self.executor.schedule(self.call(kind, 0.0), at=at, expires=expires)))

    @rule(delay=st.one_of(TIMES, st.just(-1.0)), kind=KINDS, count=st.integers(1, 5))
    def call_later(self, delay, kind, count):
        """Use the asyncio face."""
        due = self.loop.time() + delay
        self.calls += self.do(lambda: [self.executor.call_later(delay, self.call(kind, due)) for _ in range(count)])

    @rule(kind=KINDS)
    def soon(self, kind):
        """Use the faces without a due time."""
        self.calls.append(self.do(lambda: self.executor.call_soon(self.call(kind, 0))))
        self.do(lambda: self.executor.execute(self.call(kind, 0)))
        self.handles.append(self.do(lambda: self.executor.submit(self.call(kind, 0), priority=1)))
        self.do(lambda: self.executor.call_soon_threadsafe(self.call(kind, 0)))
        self.do(lambda: self.executor.schedule_threadsafe(self.call(kind, 0), delay=0.5))

    @rule(
        count=st.integers(0, 6),
        form=st.sampled_from(["now", "delay", "delays", "at", "over"]),
        span=TIMES,
        kind=KINDS,
        expires=EXPIRES,
        results=st.booleans(),
        priority=PRIORITIES,
    )
    def many(self, count, form, span, kind, expires, results, priority):
        """Schedule a batch in every form."""
        now = self.loop.time()
        times = {
            "now": {},
            "delay": {"delay": span},
            "delays": {"delays": [span * i / 3 for i in range(count)]},
            "at": {"at": self.loop.clock.wall() + span},
            "over": {"over": span},
        }[form]
        due = now + span if form == "delay" else now
        self.batches.append(
            self.do(
                lambda: self.executor.schedule_many(
                    self.call(kind, due), range(count), expires=expires, results=results, priority=priority, **times
                )
            )
        )

    @rule(count=st.integers(0, 6), kind=KINDS, over=st.sampled_from([None, 0.0, 2.0]), is_async=st.booleans())
    def many_lazily(self, count, kind, over, is_async):
        """Schedule the items of an iterator."""

        async def draw():
            for item in range(count):
                await asyncio.sleep(0.1)
                yield item

        items = draw() if is_async else iter(range(count))
        self.batches.append(
            self.do(
                lambda: self.executor.schedule_many(
                    self.call(kind, 0.0), items, over=over, count=None if over is None else count
                )
            )
        )

    @rule(hold=TIMES, priority=PRIORITIES, expires=EXPIRES)
    def permit(self, hold, priority, expires):
        """Wait for a permit, and hold it."""

        async def wait():
            async with self.executor.permit(priority=priority, expires=expires) as handle:
                self.starts.append(handle._started)
                await asyncio.sleep(hold)

        self.waiters.append(self.do(lambda: asyncio.ensure_future(wait())))

    @rule(
        period=st.sampled_from([0.3, 1.0, 2.5]),
        runs=st.integers(1, 4),
        kind=KINDS,
        missed=st.sampled_from(MissedTick),
        overlap=st.booleans(),
        expires=EXPIRES,
    )
    def repeat(self, period, runs, kind, missed, overlap, expires):
        """Repeat a task."""
        self.repeating.append(
            self.do(
                lambda: self.executor.schedule_at_fixed_rate(
                    self.call(kind, self.loop.time()),
                    period=period,
                    max_runs=runs,
                    missed=missed,
                    allow_overlap=overlap,
                    expires=expires,
                )
            )
        )

    # What happens to tasks.

    @rule(at=st.integers(0, 1000), what=st.sampled_from(["handles", "calls", "batches", "repeating", "waiters"]))
    def cancel(self, at, what):
        """Cancel a handle, in any state."""
        things = getattr(self, what)
        if things:
            self.do(things[at % len(things)].cancel)

    @rule(rate=RATES)
    def set_rate(self, rate):
        """Change the rate."""
        self.change_rate(lambda: setattr(self.executor, "rate", rate))

    @rule()
    def pause(self):
        """Pause or resume."""
        self.change_rate(self.executor.resume if self.executor.is_paused else self.executor.pause)

    @rule(order=st.sampled_from([default_order, earliest_due_first, latest_due_first, bad_order]))
    def set_order(self, order):
        """Change the order."""
        self.do(lambda: setattr(self.executor, "order", order))

    @rule(count=st.sampled_from([None, 0, 1, 2, 10]))
    def set_concurrency(self, count):
        """Change the limit of running tasks."""
        self.do(lambda: setattr(self.executor, "max_concurrency", count))

    @rule(pacing=st.sampled_from(Pacing))
    def set_pacing(self, pacing):
        """Change the pacing."""
        self.do(lambda: setattr(self.executor, "pacing", pacing))

    @rule(seconds=TIMES)
    def advance(self, seconds):
        """Let time pass."""
        self.run(asyncio.sleep(seconds))

    @rule(seconds=st.sampled_from([0.05, 0.9, 2.0]))
    def block(self, seconds):
        """Block the loop."""
        self.do(lambda: self.loop.block_for(seconds))

    @rule(seconds=st.sampled_from([-3600, 3600, 1.5]))
    def step_wall(self, seconds):
        """Step the wall clock."""
        self.loop.clock.step_wall(seconds)

    @precondition(lambda self: self.handles)
    @rule(at=st.integers(0, 1000))
    def look(self, at):
        """Ask for explanation and backlog, which must change nothing."""
        handle = self.handles[at % len(self.handles)]

        def ask():
            before = self.executor.statistics()
            self.executor.explain(handle), self.executor.backlog_seconds(), repr(handle)
            assert (before.accepted, before.waiting) == (
                self.executor.statistics().accepted,
                self.executor.statistics().waiting,
            )

        self.do(ask)

    @invariant()
    def closes(self):
        """No task is lost, doubled or early, and the rate holds."""
        if self.executor is None:
            return
        engine, counts = self.executor._engine, self.executor.statistics()
        waiting = sum(1 for _ in walk(engine.queue))
        running = len(engine.accounts.running) + len(engine.accounts.holding)
        ended = counts.done + counts.failed + counts.cancelled + counts.expired + counts.dropped
        assert counts.accepted == waiting + running + ended, (waiting, running, counts)
        assert (waiting, running) == (counts.waiting, counts.running)
        assert waiting == live_count(engine.queue)
        assert not self.early
        states = [handle.state for handle in self.handles]
        assert states.count(TaskState.WAITING) <= waiting
        report = audit(self.starts, self.rates, slack=0.02)  # the exact law of a rate that changes has tests of its own
        assert report.ok, str(report)

    def teardown(self):
        """Leave the executor: every task reaches a final state."""
        try:
            if self.executor is not None:

                async def leave():
                    for waiter in self.waiters:
                        waiter.cancel()
                    await asyncio.gather(*self.waiters, return_exceptions=True)
                    self.executor.shutdown(cancel_pending=True)
                    await self.executor.aclose()

                self.run(leave())
                counts = self.executor.statistics()
                assert (0, 0) == (counts.waiting, counts.running)
                assert [] == list(walk(self.executor._engine.queue))
                assert all(handle.done() for handle in self.handles)
                assert all(batch.done() for batch in self.batches)
                for handle in self.handles:
                    if handle.state is TaskState.FAILED:
                        handle.exception()
        finally:
            self.loop.close()


def test_accounting_closes_after_every_step():
    """A random walk over all faces leaves no task uncounted, early or beyond the rate."""
    run_state_machine_as_test(Accounting, settings=examples(120, stateful_step_count=40))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["schedule", "submit", "call_later", "execute", "many"]),
            st.sampled_from([0.1, 0.4, 0.4, 1.2, 2.3]),
            st.sampled_from([0, 1, -1]),
            st.booleans(),
        ),
        max_size=30,
    ),
    st.sampled_from([3, 50]),
)
@examples(150)
def test_overdue_tasks_start_in_the_order_of_a_sorted_list(tasks, rate):
    """Overdue tasks at a finite rate start by priority, class, due time and arrival."""

    async def main():
        loop = asyncio.get_running_loop()
        log, model, cancels = [], [], []
        # ON_TIME: what is spread, and fits its interval, goes by due time there, as tests/model knows.
        async with RateLimitedExecutor("x", rate=rate, pacing=Pacing.ON_TIME) as executor:
            executor.pause()
            for arrival, (face, delay, priority, is_cancelled) in enumerate(tasks):
                now = loop.time()
                handle = None
                if face == "schedule":
                    handle = executor.schedule(log.append, arrival, delay=delay, priority=priority)
                    key = (-priority, 2, now + delay)
                elif face == "submit":
                    handle = executor.submit(log.append, arrival, priority=priority)
                    key = (-priority, 1, now)
                elif face == "call_later":
                    handle = executor.call_later(delay, log.append, arrival)
                    key = (0, 2, now + delay)
                elif face == "execute":
                    executor.execute(log.append, arrival)
                    key = (0, 1, now)
                else:
                    # Not at the same instant as another: of a batch and a single task, either may go first there.
                    handle = executor.schedule_many(log.append, [arrival], delay=delay + 0.013, priority=priority)
                    key = (-priority, 2, now + delay + 0.013)
                if is_cancelled and handle is not None:
                    cancels.append(handle)
                else:
                    model.append((key, arrival))
                await asyncio.sleep(0.05)
            await asyncio.sleep(5)
            for handle in cancels:
                handle.cancel()
            executor.resume()
        return log, [arrival for _, arrival in sorted(model)]

    log, expected = run_virtual(main())
    assert expected == log


@pytest.mark.slow
def test_a_hundred_thousand_tasks_over_fifty_executors_are_all_accounted_for():
    """The counts of fifty executors close exactly while tasks start, fail, expire and are cancelled at random."""
    executor_count, task_count = 50, 2000
    generator = random.Random(20)
    tally = {"started": 0, "failed": 0}

    def work(fails):
        tally["started"] += 1
        if fails:
            tally["failed"] += 1
            raise ValueError

    def check(executors):
        accepted = 0
        for executor in executors:
            engine, counts = executor._engine, executor.statistics()
            waiting = sum(1 for _ in walk(engine.queue))
            ended = counts.done + counts.failed + counts.cancelled + counts.expired + counts.dropped
            assert waiting == counts.waiting == live_count(engine.queue)
            assert counts.accepted == waiting + len(engine.accounts.running) + len(engine.accounts.holding) + ended
            accepted += counts.accepted
        return accepted

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with ExecutorManager() as manager:
            executors = [manager.executor(f"{i}", rate=(float("inf"), 2000, 100)[i % 3]) for i in range(executor_count)]
            cancelled = 0
            for executor in executors:
                kept = []
                for _ in range(task_count * 4 // 10):
                    fails = generator.random() < 0.05
                    if generator.random() < 0.5:
                        kept.append(executor.call_later(generator.uniform(0.5, 10), work, fails))
                    else:
                        expires = 1.5 if generator.random() < 0.5 else None
                        kept.append(executor.schedule(work, fails, delay=generator.uniform(0.5, 10), expires=expires))
                kept += [executor.schedule_many(work, [0] * (task_count * 3 // 10), over=10, expires=1.0)]
                kept += [
                    executor.schedule_many(work, [0] * (task_count * 3 // 10), delays=[5.0] * (task_count * 3 // 10))
                ]
                for thing in generator.sample(kept, len(kept) // 3):
                    thing.cancel()
                    cancelled += 1
                kept.clear()
            assert executor_count * task_count == check(executors)
            for _ in range(3):
                await asyncio.sleep(4)
                assert executor_count * task_count == check(executors)
            for executor in executors:
                executor.rate = float("inf")
            await asyncio.sleep(3)
            assert executor_count * task_count == check(executors)
            totals = [executor.statistics() for executor in executors]
            assert 0 == sum(counts.waiting + counts.running for counts in totals)
            assert tally["started"] == sum(counts.started for counts in totals)
            assert tally["failed"] == sum(counts.failed for counts in totals)
            assert cancelled <= sum(counts.cancelled for counts in totals)
            assert sum(counts.expired for counts in totals) > 0

    run_virtual(main())


# The accounts alone, beside a queue without a shell.


class Owner:
    """Records the outcomes that it receives."""

    def __init__(self, log: list) -> None:
        self.log = log

    def _end_done(self, result) -> None:
        self.log.append(("done", result))

    def _end(self, state, outcome) -> None:
        self.log.append((state, outcome))


class Reports:
    """Stands in for the event loop: records the contexts that its exception handler receives."""

    def __init__(self) -> None:
        self.contexts: list[dict] = []

    def call_exception_handler(self, context: dict) -> None:
        self.contexts.append(context)


def accounts_of(*, accepted: int = 0) -> Accounts:
    accounts = Accounts("mail", Reports(), World(CoreRecord, rate=0).queue)
    accounts.accepted_count = accepted
    return accounts


def ends_of(accounts: Accounts) -> dict:
    """Return the count of each final state that is not 0."""
    return {state: accounts.count(state) for state in accounts.counts if accounts.count(state)}


def test_each_end_is_counted_once_and_told_to_whom_it_concerns():
    """An end is counted once; then key limits, owner, and waiters for the end or for room are notified."""
    accounts, log = accounts_of(accepted=4), []
    owner = Owner(log)
    accounts.tell_keys(lambda of, state: log.append(("key", of is owner, state, accounts.waiting_count())))
    accounts.on_end = lambda: log.append(("progress", accounts.waiting_count()))
    error = ValueError("x")
    accounts.done(owner, 5)
    assert [("key", True, TaskState.DONE, 3), ("done", 5), ("progress", 3)] == log
    log.clear()
    accounts.raised(owner, error, None)
    assert [("key", True, TaskState.FAILED, 2), (TaskState.FAILED, error), ("progress", 2)] == log
    log.clear()
    accounts.on_room = lambda: log.append("room")
    accounts.end(owner, TaskState.EXPIRED, None)
    assert [("key", True, TaskState.EXPIRED, 1), (TaskState.EXPIRED, None), ("progress", 1), "room"] == log
    accounts.note_cancelled(1)
    assert 0 == accounts.waiting_count()
    assert {
        state: 1 for state in (TaskState.DONE, TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED)
    } == ends_of(accounts)


def test_what_is_tried_again_has_not_ended():
    """A retried task has not ended: the retry gets its error and context; a cancellation is never retried."""
    accounts, log, asked = accounts_of(accepted=2), [], []
    owner, error, origin = Owner(log), ValueError("x"), object()
    accounts.try_again = lambda *of: asked.append(of) or True
    accounts.raised(owner, error, origin)
    assert ([(owner, error, origin)], [], {}) == (asked, log, ends_of(accounts))
    cancelled = asyncio.CancelledError()
    accounts.raised(owner, cancelled, origin)
    assert (1, [(TaskState.CANCELLED, cancelled)]) == (len(asked), log)
    assert {TaskState.CANCELLED: 1} == ends_of(accounts)


@pytest.mark.parametrize(
    ("error", "is_raised"), [(KeyboardInterrupt(), True), (SystemExit(3), True), (OwnError(), False)], ids=repr
)
def test_what_ends_the_program_is_counted_and_goes_on_its_way(error, is_raised):
    """An exit is counted as a failure and re-raised; other errors do not leave the accounts."""
    accounts, log = accounts_of(accepted=1), []
    if is_raised:
        with pytest.raises(type(error)) as caught:
            accounts.raised(Owner(log), error, None)
        assert error is caught.value
    else:
        accounts.raised(Owner(log), error, None)
    assert ([(TaskState.FAILED, error)], {TaskState.FAILED: 1}) == (log, ends_of(accounts))


def test_failures_of_calls_that_nobody_can_ask_are_reported():
    """Failures of calls without a handle are reported with the executor's name; other outcomes are not."""
    accounts = accounts_of(accepted=3)
    error = ValueError("x")
    accounts.done(accounts.calls, 5)
    accounts.end(accounts.calls, TaskState.CANCELLED, None)
    assert [] == accounts._loop.contexts
    accounts.raised(accounts.calls, error, None)
    assert [{"message": "exception in a call of the executor mail", "exception": error}] == accounts._loop.contexts


@pytest.mark.parametrize("count", [1, 300], ids=["one", "a stretch"])
def test_the_report_of_a_call_that_failed_names_it(count):
    """A report names the callback and its arguments, as asyncio's does; of a coroutine, its name."""
    contexts = []

    def fail(number):
        raise ValueError(number)

    async def fail_later(number):
        await asyncio.sleep(0)
        raise ValueError(number)

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: contexts.append(context))
        async with RateLimitedExecutor("mail") as executor:
            when = loop.time() + 1
            for number in range(count):
                executor.call_at(when, fail, number)
                executor.execute(fail_later, number)
            handle = executor.call_at(when, fail, count)
            assert repr(handle).startswith(f"<CallHandle {fail.__qualname__} when=")
            await asyncio.sleep(2)
            assert repr(handle).startswith("<CallHandle when=")  # it has run, and is not held any more

    run_virtual(main())
    callbacks = [context for context in contexts if "handle" in context]
    assert {f"exception in the callback {fail.__qualname__} of the executor mail"} == {c["message"] for c in callbacks}
    assert [(fail, (n,), [n]) for n in range(count + 1)] == [
        (c["handle"]._callback, c["handle"]._args, [*c["exception"].args]) for c in callbacks
    ]
    coroutines = [context for context in contexts if "handle" not in context]
    assert len(coroutines) == count
    assert {f"exception in the coroutine {fail_later.__qualname__} of the executor mail"} == {
        c["message"] for c in coroutines
    }


def test_counts_that_lag_catch_up_before_they_are_read():
    """Counts catch up before they are read; running tasks, held permits and the current call do not wait."""
    accounts = accounts_of(accepted=9)

    def catch_up() -> None:
        accounts.counts[TaskState.DONE] += 2
        accounts.catch_up = lambda: None

    accounts.catch_up = catch_up
    accounts.running[1] = accounts.holding["permit"] = None
    accounts.is_inside = True
    assert (3, 4) == (accounts.running_count(), accounts.waiting_count())
    assert 2 == accounts.count(TaskState.DONE)


@pytest.mark.parametrize("raised", [ZeroDivisionError(), asyncio.CancelledError()])
async def test_a_task_ends_though_a_listener_of_failures_raises(virtual_loop, raised):
    """A listener may run code of the user, such as an exception's own ``__str__``: the task ends with its own error."""
    told = []
    virtual_loop.set_exception_handler(lambda _, context: told.append(context["exception"]))

    def listener(*_):
        raise raised

    async with RateLimitedExecutor("mail") as executor:
        executor._engine.accounts.on_failed = listener
        handle = executor.schedule(int, "one")
        with pytest.raises(ValueError, match="invalid literal"):
            await handle
        assert executor.statistics().failed == 1
    assert told == [raised]
