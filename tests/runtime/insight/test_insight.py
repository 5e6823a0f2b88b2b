"""``explain``, ``backlog_seconds``, ``statistics`` and ``repr`` agree with what happens afterwards."""

import asyncio
import math
import random

import pytest

from ratelimited_executor import ExecutorManager, Pacing, Rate, RateLimitedExecutor, TaskState
from ratelimited_executor.insight import Hold
from ratelimited_executor.orders import earliest_due_first, latest_due_first
from ratelimited_executor.policies import Adaptive

from ratelimited_executor._runtime.insight.insight import explain_briefly

from ...helpers import now


def _parts(explanation) -> tuple:
    return explanation.hold, explanation.position, explanation.expected_start


async def keeps_its_word(executor, handle, *, hold: Hold, within: float = 1e-6) -> None:
    """Explain a waiting task, wait for its start, and compare the two."""
    explanation = executor.explain(handle)
    assert hold is explanation.hold, explanation
    assert TaskState.WAITING is explanation.state
    assert explanation.expected_start is not None
    while handle.started_at is None:
        await asyncio.sleep(0.001)
    assert explanation.expected_start == pytest.approx(handle.started_at, abs=within)


async def test_task_whose_time_has_not_come_is_held_by_it(virtual_clock):
    """A task that is not due is held by its due time, and on an idle executor it is expected to start then."""
    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        handle = executor.schedule(int, delay=7.25)
        assert executor.explain(handle).position is None
        assert "waiting: not due yet, expected in 7.25 s" == str(executor.explain(handle))
        await keeps_its_word(executor, handle, hold=Hold.DUE)


async def test_first_in_order_is_held_by_the_permit(virtual_clock):
    """The first of the due tasks is held by the permit, and expected to start when the next one comes up."""
    async with RateLimitedExecutor("x", rate="1/4s") as executor:
        executor.submit(int)
        handle = executor.submit(int)
        await asyncio.sleep(1)
        assert 0 == executor.explain(handle).position
        await keeps_its_word(executor, handle, hold=Hold.RATE)


@pytest.mark.parametrize("rate", [3, "1/4s", 50, "7/3s"])
async def test_task_behind_others_is_held_by_the_order(virtual_clock, rate):
    """A task behind others is held by the order, and expected to start with the permit of its position."""
    async with RateLimitedExecutor("x", rate=rate) as executor:
        handles = [executor.submit(int, priority=priority) for priority in (0, 5, 1, 5, 0, 1)]
        await asyncio.sleep(0.01)
        waiting = sorted((one for one in handles if not one.done()), key=lambda one: -one.priority)
        words = [executor.explain(one) for one in waiting]
        assert list(range(len(waiting))) == [one.position for one in words]
        assert [Hold.RATE] + [Hold.ORDER] * (len(waiting) - 1) == [one.hold for one in words]
        await asyncio.gather(*handles)
        assert [one.started_at for one in waiting] == pytest.approx([one.expected_start for one in words], abs=1e-6)


@pytest.mark.parametrize("order", [earliest_due_first, latest_due_first, lambda task: task.name])
async def test_position_follows_an_order_of_ones_own(virtual_clock, order):
    """The position of a task is its place in the executor's order, even in a user's own."""
    started = []
    async with RateLimitedExecutor("x", rate=5, order=order) as executor:
        handles = [executor.schedule(started.append, n, delay=n * 0.01, name="dacbfe"[n]) for n in range(6)]
        await asyncio.sleep(0.1)
        waiting = {executor.explain(one).position: n for n, one in enumerate(handles) if not one.done()}
        already = len(started)
        assert 6 - already == len(waiting)
    assert started[already:] == [waiting[position] for position in sorted(waiting)]


@pytest.mark.parametrize("count", [2, 5])
async def test_spread_task_is_held_by_its_instant(virtual_clock, count):
    """A spread task is held by its planned instant: it is due, has a permit, and starts later."""
    async with RateLimitedExecutor("x", rate=100) as executor:
        handles = [executor.schedule(int, delay=1.0) for _ in range(count)]
        await asyncio.sleep(1.0001)
        words = [executor.explain(one) for one in handles]
        assert [Hold.SPREAD] * (count - 1) == [one.hold for one in words[1:]]
        await asyncio.gather(*handles)
        for handle, word in zip(handles[1:], words[1:], strict=True):
            assert word.expected_start == pytest.approx(handle.started_at, abs=0.011)


async def test_planned_task_is_explained_by_its_due_time(virtual_clock):
    """While all due tasks fit, position and expected start follow the due times; priority changes neither."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(int, delay=2 + index / 100, priority=index) for index in range(5)]
        await asyncio.sleep(2.1)
        explained = [executor.explain(handle) for handle in handles[1:]]
        assert [0, 1, 2, 3] == [each.position for each in explained]
        await asyncio.wait(handles)
        started = [handle.started_at for handle in handles[1:]]
        assert started == pytest.approx([each.expected_start for each in explained], abs=1e-5)


async def test_task_without_a_place_is_held_by_the_concurrency(virtual_clock):
    """A due task without a free place is held by the concurrency, and has no expected start."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        executor.submit(asyncio.sleep, 3)
        handle = executor.submit(int)
        await asyncio.sleep(0.5)
        explanation = executor.explain(handle)
        assert (Hold.CONCURRENCY, 0, None) == (explanation.hold, explanation.position, explanation.expected_start)
        await handle
        assert 3 == now()


@pytest.mark.parametrize("how", ["pause", "rate 0", "no place"])
async def test_halted_task_is_held_by_the_halt(virtual_clock, how):
    """While the executor is halted no task has an expected start, not even one that is not due yet."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        if how == "pause":
            executor.pause()
        elif how == "rate 0":
            executor.rate = 0
        else:
            executor.max_concurrency = 0
        due, later = executor.submit(int), executor.schedule(int, delay=50)
        await asyncio.sleep(0.1)
        expected = Hold.CONCURRENCY if how == "no place" else Hold.PAUSE
        assert (expected, 0, None) == _parts(executor.explain(due))
        assert (Hold.DUE, None, None) == _parts(executor.explain(later))


async def test_task_that_runs_or_has_ended_is_held_by_nothing(virtual_clock):
    """A task that runs or has ended is held by nothing, and its expected start is the actual one."""
    async with RateLimitedExecutor("x") as executor:
        running, done = executor.schedule(asyncio.sleep, 9, delay=2), executor.submit(int)
        cancelled = executor.schedule(int, delay=50)
        cancelled.cancel()
        await asyncio.sleep(3.5)
        for handle in (running, done):
            assert (Hold.NOTHING, None, handle.started_at) == _parts(executor.explain(handle))
        assert (Hold.NOTHING, None, None) == _parts(executor.explain(cancelled))
        assert TaskState.RUNNING is executor.explain(running).state
        texts = [str(executor.explain(each)) for each in (running, done, cancelled)]
        assert ["running: held by nothing", "done: held by nothing", "cancelled: held by nothing"] == texts


async def test_task_about_to_start_is_held_by_nothing(virtual_clock):
    """A task that starts in this turn is held by nothing, and expected to start at once."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(int)
        explanation = executor.explain(handle)
        assert (Hold.NOTHING, 0) == (explanation.hold, explanation.position)
        await handle
        assert explanation.expected_start == handle.started_at


async def test_waiter_for_a_permit_is_explained_like_a_task(virtual_clock):
    """The handle of a permit can be explained while it waits, and its expected start is the actual one."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        await executor.acquire()
        permit = executor.permit()
        assert permit.handle is None

        async def enter():
            async with permit:
                return now()

        task = asyncio.create_task(enter())
        await asyncio.sleep(0.25)
        await keeps_its_word(executor, permit.handle, hold=Hold.RATE)
        assert 1.0 == pytest.approx(await task)


async def test_explaining_is_no_start_and_changes_nothing(virtual_clock, account):
    """``explain`` may be called at any time and any number of times, and changes no start."""
    starts = []
    for is_asked in (False, True):
        log = []
        origin = now()
        async with RateLimitedExecutor("x", rate=7) as executor:
            handles = [executor.schedule(lambda: log.append(now() - origin), delay=n * 0.11) for n in range(30)]
            for _ in range(40):
                await asyncio.sleep(0.1)
                if is_asked:
                    for handle in handles:
                        executor.explain(handle)
                    account(executor)
            await asyncio.gather(*handles)
        starts.append(log)
        await asyncio.sleep(math.ceil(now()) - now())
    assert starts[0] == pytest.approx(starts[1], abs=1e-3)


@pytest.mark.parametrize("seed", range(8))
async def test_expectations_of_a_backlog_come_true(virtual_clock, seed):
    """If no task is added, each task of a backlog starts when expected, whatever its delay and priority."""
    rng = random.Random(seed)
    async with RateLimitedExecutor("x", rate=rng.choice([3, "1/3s", 10, 49])) as executor:
        handles = [
            executor.schedule(int, delay=rng.choice([0, 0.2, 0.2, 0.9]), priority=rng.choice([0, 1, -2.5]))
            for _ in range(25)
        ]
        await asyncio.sleep(0.95)
        words = {one: executor.explain(one) for one in handles if not one.done()}
        await asyncio.gather(*handles)
        for handle, word in words.items():
            assert word.position is not None
            assert word.expected_start == pytest.approx(handle.started_at, abs=0.022), word


# The backlog.


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 3},
        {"rate": 3, "pacing": Pacing.SPREAD},
        {"rate": 300, "pacing": Pacing.SPREAD},
        {"pacing": Pacing.SPREAD},
        {"rate": 3, "order": latest_due_first},
        {"rate": (3, "20/min")},
        {"rate": 30, "max_concurrency": 0},
        {"rate": 0},
        {"rate": 3, "key_rate": "1/2s"},
        {"rate": 3, "key_concurrency": 1},
        {"rate": 3, "resources": {"tokens": "100/s"}},
    ],
)
async def test_brief_explanation_bounds_the_exact_one(virtual_clock, options):
    """A brief explanation has the hold or ORDER, and upper bounds of position and start; if it says exact, it is."""
    costs = {"cost": 2} if "resources" in options else {}
    async with RateLimitedExecutor("x", **options) as executor:
        held = [executor.submit(asyncio.sleep, 50, key="a", **costs)]
        handles = [executor.submit(int, key="ab"[number % 2], **costs) for number in range(40)]
        await asyncio.sleep(1.6)
        exact_count = 0
        for handle in [each for each in handles if each.state is TaskState.WAITING]:
            exact = executor.explain(handle)
            brief, is_exact = explain_briefly(executor._started(), handle)
            exact_count += is_exact
            if is_exact:
                assert brief == exact
                continue
            assert (brief.hold, brief.position >= exact.position) in [(exact.hold, True), (Hold.ORDER, True)]
            if "key_rate" in options or "key_concurrency" in options or costs or isinstance(options["rate"], tuple):
                assert brief.expected_start is None
            elif exact.expected_start is None:
                assert brief.expected_start is None
            else:
                assert exact.expected_start <= brief.expected_start <= exact.expected_start + 120
        assert exact_count <= 1
        for handle in (*held, *handles):
            handle.cancel()


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 7},
        {"rate": (3, "20/min")},
        {"rate": 7, "pacing": Pacing.SPREAD, "order": latest_due_first},
        {"rate": 10, "key_rate": "1/2s"},
    ],
)
async def test_brief_explanation_bounds_what_then_happens(virtual_clock, options):
    """No more tasks start before a task than it says, and the task starts no later."""
    started = []
    async with RateLimitedExecutor("x", **options) as executor:
        handles = [
            executor.submit(started.append, number, key="abc"[number % 3], priority=-(number % 3))
            for number in range(40)
        ]
        await asyncio.sleep(1.6)
        waiting = [number for number, handle in enumerate(handles) if handle.state is TaskState.WAITING]
        words = {number: explain_briefly(executor._started(), handles[number])[0] for number in waiting}
        started.clear()
        await asyncio.gather(*handles)
        for number, word in words.items():
            assert word.position >= started.index(number), word
            if word.expected_start is not None:
                assert word.expected_start >= handles[number].started_at - 0.022, word


async def test_brief_explanation_of_the_first_counts_those_that_pass_it(virtual_clock):
    """While its key has no permit, those behind it start, as many as the rate allows until then."""
    async with RateLimitedExecutor("x", rate=10, key_rate="1/2s") as executor:
        await executor.submit(int, key="a")
        others = [executor.submit(int) for _ in range(50)]
        await asyncio.sleep(1.02)
        first = executor.submit(int, key="a", priority=1)
        brief, is_exact = explain_briefly(executor._started(), first)
        exact = executor.explain(first)
        started_count = sum(each.done() for each in others)
        await first
        passing_count = sum(each.done() for each in others) - started_count
        for each in others:
            each.cancel()
    assert (brief.hold, is_exact) == (Hold.KEY_RATE, False)
    assert brief.expected_start == exact.expected_start
    assert 0 < passing_count <= exact.position <= brief.position < 20


async def test_brief_explanation_of_the_first_is_exact(virtual_clock):
    """It is exact for the first of the due tasks, and for one that is not due yet, however many wait behind it."""
    async with RateLimitedExecutor("x", rate="1/4s") as executor:
        handles = [executor.submit(int) for _ in range(50)]
        late = executor.schedule(int, delay=60)
        await asyncio.sleep(1)
        for handle in (handles[0], handles[1], late):
            assert explain_briefly(executor._started(), handle) == (executor.explain(handle), True)
        assert executor.explain(handles[1]).hold is Hold.RATE
        assert explain_briefly(executor._started(), handles[2])[0].hold is Hold.ORDER
        for handle in (*handles, late):
            handle.cancel()


async def test_brief_explanation_ends_with_its_task(virtual_clock):
    """If the order function, called for a task that has just become due, cancels the task, the explanation says so."""
    handles = []

    def order(task):
        if handles and task.name == "second":
            handles[0].cancel()
        return task.due

    async with RateLimitedExecutor("x", rate="1/4s", order=order) as executor:
        executor.submit(int)
        executor.pause()
        handles.append(executor.submit(int))
        await asyncio.sleep(1)
        handles.append(executor.submit(int, name="second"))
        explanation, is_exact = explain_briefly(executor._started(), handles[0])
        assert (explanation.state, is_exact) == (TaskState.CANCELLED, True)
        handles[1].cancel()


async def test_backlog_is_the_time_until_the_last_start(virtual_clock):
    """The backlog is 0 while all due tasks fit, and otherwise the time until the last of them starts."""
    async with RateLimitedExecutor("x", rate=5) as executor:
        assert 0 == executor.backlog_seconds()
        handles = [executor.submit(int) for _ in range(11)]
        await asyncio.sleep(0.01)
        backlog, began = executor.backlog_seconds(), now()
        await handles[-1]
        assert now() - began == pytest.approx(backlog, abs=0.001)
        assert 0 == executor.backlog_seconds()


async def test_backlog_is_infinite_at_rate_zero_and_nothing_without_limit(virtual_clock):
    """The backlog is infinite at rate 0 or during a pause, and 0 without a rate while there are places."""
    async with RateLimitedExecutor("x", drain_timeout=0, max_concurrency=2) as executor:
        executor.submit(asyncio.sleep, 5)
        executor.submit(int)
        assert 0 == executor.backlog_seconds()
        executor.submit(asyncio.sleep, 5)
        executor.submit(int)
        await asyncio.sleep(1)
        executor.pause()
        assert math.inf == executor.backlog_seconds()
        executor.resume()
        executor.rate = 0
        assert math.inf == executor.backlog_seconds()
        executor.rate = "1/min"
        assert executor.backlog_seconds() <= 60


@pytest.mark.parametrize("options", [{}, {"rate": "100/s"}], ids=repr)
@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.parametrize("is_batch", [False, True])
async def test_backlog_allows_for_the_places(virtual_clock, options, key, is_batch):
    """While all places are taken, the backlog goes by how long the tasks take, not by the rate alone, also those of a batch."""
    async with RateLimitedExecutor("x", max_concurrency=20, **options) as executor:
        durations = [1 + number % 7 / 10 for number in range(1000)]
        if is_batch:
            handles = [executor.schedule_many(asyncio.sleep, durations, key=key)]
        else:
            handles = [executor.submit(asyncio.sleep, seconds, key=key) for seconds in durations]
        await asyncio.sleep(10)
        for _ in range(5):
            backlog, began = executor.backlog_seconds(), now()
            assert backlog == pytest.approx(executor.backlog_seconds(key), abs=0.1)
            await asyncio.sleep(3.3)
            assert executor.statistics().overdue
            left = (began + backlog - now()) / 1.3 * 20  # tasks, of 1.3 s each
            assert left == pytest.approx(executor.statistics().overdue, rel=0.15)
        await handles[-1]


@pytest.mark.parametrize("options", [{}, {"key_rate": "100/s"}], ids=repr)
async def test_backlog_rises_while_nothing_ends(virtual_clock, options):
    """An executor whose places are all stuck promises less and less: its backlog is never below the time it has been stuck."""
    async with RateLimitedExecutor("x", rate="10/s", max_concurrency=5, drain_timeout=0, **options) as executor:
        for _ in range(12):
            executor.submit(asyncio.sleep, 3600, key="a")
        for minutes in (1, 14):
            await asyncio.sleep(60 * minutes - now() % 60)
            assert executor.backlog_seconds() > 60 * minutes
            assert executor.backlog_seconds("a") > 60 * minutes


async def test_backlog_is_that_of_the_rate_if_nothing_is_known_of_what_runs(virtual_clock):
    """The starts of calls without a handle are not recorded; without any place, nothing will ever start."""
    async with RateLimitedExecutor("x", rate="10/s", max_concurrency=2, drain_timeout=0) as executor:
        for _ in range(3):
            executor.execute(asyncio.sleep, 5)
        await asyncio.sleep(1)
        assert executor.backlog_seconds() <= 0.1
        executor.max_concurrency = 0
        assert math.inf == executor.backlog_seconds()
        executor.max_concurrency = 2
        await asyncio.sleep(5)
        assert 0 == executor.backlog_seconds()


async def test_future_tasks_are_no_backlog(virtual_clock):
    """Tasks that are not due are not in the backlog."""
    async with RateLimitedExecutor("x", rate=1, drain_timeout=0) as executor:
        executor.schedule_many(int, range(1000), delay=500)
        assert (0, 0, 1000) == (
            executor.backlog_seconds(),
            executor.statistics().overdue,
            executor.statistics().waiting,
        )


async def test_statistics_are_those_of_the_instant(virtual_clock):
    """Each field of the statistics is exact at any moment, and the object cannot be changed."""
    async with RateLimitedExecutor("mail", rate=2, drain_timeout=0) as executor:
        executor.submit(asyncio.sleep, 100)
        executor.submit(int)
        executor.submit(int, expires=0.1)
        executor.schedule(int, delay=500).cancel()
        executor.schedule(int, delay=500)
        executor.submit(lambda: 1 / 0).add_done_callback(lambda handle: handle.exception())
        await asyncio.sleep(1.7)
        counts = executor.statistics()
        assert ("mail", Rate(2), False, 1) == (counts.name, counts.rate, counts.is_paused, counts.peers)
        assert (6, 1, 1, 3) == (counts.accepted, counts.waiting, counts.running, counts.started)
        assert (1, 1, 1, 1, 0) == (counts.done, counts.failed, counts.cancelled, counts.expired, counts.dropped)
        assert counts == executor.statistics()
        with pytest.raises(AttributeError):
            counts.done = 3
        executor.pause()
        assert (True, Rate(2)) == (executor.statistics().is_paused, executor.statistics().rate)


async def test_representation_has_the_rate_in_force(virtual_clock):
    """The representation has the rate in force, which may have been adapted or set, and not the initial one."""
    async with RateLimitedExecutor("x", rate=64, adaptive=Adaptive(floor=1, ceiling=100)) as executor:
        assert "<RateLimitedExecutor 'x' open rate=64/s waiting=0 running=0>" == repr(executor)
        executor.penalize(None)
        assert "<RateLimitedExecutor 'x' open rate=32/s waiting=0 running=0>" == repr(executor)
        executor.rate = "5/min"
        assert "<RateLimitedExecutor 'x' open rate=5/min waiting=0 running=0>" == repr(executor)


async def test_representations_say_what_it_is(virtual_clock):
    """Executors, managers and handles show their state in their representation, before, during and after a run."""
    manager = ExecutorManager(interval=0.5)
    executor = manager.executor("mail", rate="5/min")
    assert "<RateLimitedExecutor 'mail' new rate=5/min>" == repr(executor)
    assert "<ExecutorManager new interval=0.5 executors=1>" == repr(manager)
    async with manager:
        executor.submit(asyncio.sleep, 1)
        handle = executor.schedule(int, delay=3, name="three")
        call = executor.call_later(1, int)
        batch = executor.schedule_many(int, [1, 2], delay=5)
        every = executor.schedule_at_fixed_rate(int, period=60, name="minutely", initial_delay=60)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "<RateLimitedExecutor 'mail' open rate=5/min waiting=5 running=1>" == repr(executor)
        assert repr(handle).startswith("<TaskHandle three waiting due=")
        assert repr(call).startswith("<CallHandle int when=1.0")
        call.cancel()
        assert repr(call).startswith("<CallHandle cancelled when=1.0")
        assert "<BatchHandle int 0 of 2 ended>" == repr(batch)
        assert "<RepeatingHandle minutely active runs=0>" == repr(every)
        executor.shutdown()
        assert "closing" in repr(executor)
        await executor.shutdown(cancel_pending=True)
    assert "<RateLimitedExecutor 'mail' closed rate=5/min waiting=0 running=0>" == repr(executor)
    assert "<ExecutorManager closed interval=0.5 executors=0>" == repr(manager)
    assert "<RepeatingHandle minutely cancelled runs=0>" == repr(every)
    assert "<BatchHandle int 2 of 2 ended>" == repr(batch)
    assert "cancelled" in repr(handle)


# Changes of settings.


@pytest.mark.parametrize("setting", ["rate", "max_concurrency", "pause", "pacing", "order"])
async def test_setting_wakes_a_sleeping_executor_at_once(virtual_clock, setting):
    """A change takes effect in the same turn of the loop, not at the next timer."""
    log = []
    options = {
        "rate": {"rate": 0},
        "max_concurrency": {"max_concurrency": 0},
        "pause": {},
        "pacing": {"rate": 100},
        "order": {"rate": "1/10s"},
    }[setting]
    async with RateLimitedExecutor("x", **options) as executor:
        if setting == "pause":
            executor.pause()
        handles = [executor.schedule(log.append, n, delay=1.0) for n in range(3)]
        await asyncio.sleep(1.1)
        began = now()
        if setting == "rate":
            executor.rate = math.inf
        elif setting == "max_concurrency":
            executor.max_concurrency = None
        elif setting == "pause":
            executor.resume()
        elif setting == "pacing":
            executor.pacing = Pacing.ON_TIME
        else:
            executor.order = latest_due_first
        if setting == "order":
            await asyncio.gather(*handles)
            assert 30 > now() - began
        else:
            await asyncio.sleep(0.001 if setting != "pacing" else 0.03)
            if setting in ("rate", "max_concurrency", "pause"):
                executor.pacing = Pacing.ON_TIME
                await asyncio.sleep(0.001)
            assert [0, 1, 2] == sorted(log)


@pytest.mark.parametrize("seed", range(6))
async def test_rate_changed_at_any_time_keeps_the_law(virtual_clock, audit, seed):
    """The law holds over all changes of the rate, even to 0."""
    rng = random.Random(seed)
    starts, history = [], [(0.0, Rate(10))]
    async with RateLimitedExecutor("x", rate=10) as executor:
        executor.schedule_many(lambda _: starts.append(now()), range(600))
        for _ in range(40):
            await asyncio.sleep(rng.choice([0.01, 0.13, 0.5, 1.1]))
            rate = Rate.of(rng.choice([0, 1, 5, 33, "1/3s", 100]))
            executor.rate = rate
            history.append((now(), rate))
        executor.rate = 200
        history.append((now(), Rate(200)))
    assert 600 == len(starts)
    assert audit(starts, history).ok


async def test_lower_limit_of_places_lets_the_running_finish(virtual_clock):
    """Lowering the limit stops no running task, and no other starts until fewer run."""
    async with RateLimitedExecutor("x", max_concurrency=4) as executor:
        for _ in range(8):
            executor.submit(asyncio.sleep, 10)
        await asyncio.sleep(1)
        executor.max_concurrency = 1
        assert 4 == executor.statistics().running
        await asyncio.sleep(10)
        assert 1 == executor.statistics().running
        executor.max_concurrency = None
        await asyncio.sleep(0.001)
        assert 4 == executor.statistics().running
