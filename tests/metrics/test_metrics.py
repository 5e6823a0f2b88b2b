"""The metrics of executors, read through the SDK of OpenTelemetry: counts that add up, levels, histograms."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor, Retry
from ratelimited_executor.exceptions import StoreUnavailableError, WrongLoopError
from ratelimited_executor.durable import DurableTasks, MemoryStore
from ratelimited_executor.metrics import Instrumentation, instrument, instrument_tasks

from ..helpers import seen

pytestmark = pytest.mark.usefixtures("virtual_clock")

PREFIX = "ratelimited_executor."
NAMES = {
    **dict.fromkeys(("accepted_tasks", "started_tasks", "retried_tasks", "ended_tasks"), "{task}"),
    **dict.fromkeys(("active_tasks", "queued_tasks", "scheduled_tasks"), "{task}"),
    "rate": "{task}/s",
    "task.time_in_queue": "s",
    "task.duration": "s",
}


class Monitor:
    """A meter provider of the test's own, with a reader that collects when the test asks it to."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def collect(self) -> dict[str, list[Any]]:
        """Return the data points of each metric, by its name."""
        data = self.reader.get_metrics_data()
        self.units: dict[str, str] = {}
        found: dict[str, list[Any]] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    assert metric.name.startswith(PREFIX)
                    name = metric.name.removeprefix(PREFIX)
                    self.units[name] = metric.unit
                    found[name] = list(metric.data.data_points)
        return found

    def values(self) -> dict[str, float]:
        """Return the counts and levels of the only executor; ended tasks are counted by their result."""
        found = {}
        for name, points in self.collect().items():
            for point in points:
                result = point.attributes.get(PREFIX + "result")
                if not hasattr(point, "bucket_counts"):
                    found[result or name] = point.value
        return found


@pytest.fixture
def monitor():
    monitor = Monitor()
    yield monitor
    monitor.provider.shutdown()


def histogram(points, **attributes: str):
    """Return the one data point whose attributes, beside the name of the executor, are the given ones."""
    wanted = {PREFIX + name: value for name, value in attributes.items()}
    (point,) = [
        each
        for each in points
        if {name: value for name, value in each.attributes.items() if name != PREFIX + "name"} == wanted
    ]
    return point


async def test_counts_close_and_are_those_of_the_statistics(monitor):
    """At any instant accepted = scheduled + queued + active + ended, and starts and retries equal ``statistics()``."""

    async def fail() -> None:
        await asyncio.sleep(0.5)
        raise ValueError

    async with RateLimitedExecutor("x", rate=10, retry=Retry(2, on=ValueError), drain_timeout=0) as executor:
        instrument(executor, meter_provider=monitor.provider)
        for number in range(30):
            executor.submit(asyncio.sleep, 0.3)
            executor.schedule(str, delay=number)
            executor.schedule(fail, delay=number / 3).add_done_callback(seen)
        executor.schedule(str, delay=40.0).cancel()
        executor.schedule_many(str, range(40), over=20)
        executor.schedule(str, delay=0.01, expires=0.01).add_done_callback(seen)
        for _ in range(60):
            async with executor.permit(priority=5):
                values = monitor.values()
            told = executor.statistics()
            ends = sum(values[name] for name in ("done", "failed", "cancelled", "expired", "dropped"))
            levels = values["scheduled_tasks"] + values["queued_tasks"] + values["active_tasks"]
            assert values["accepted_tasks"] == levels + ends
            assert values["active_tasks"] >= 1
            assert values["rate"] == 10.0
            assert values["started_tasks"] == told.started
            await asyncio.sleep(0.2)
        values = monitor.values()
        assert (values["expired"], values["cancelled"]) == (1, 1)
        assert values["retried_tasks"] == executor.statistics().retried > 0
        assert set(NAMES.items()) == set(monitor.units.items())


@pytest.mark.parametrize("durations", ["sampled", "all"])
async def test_histograms_tell_lateness_and_duration_by_result(monitor, durations):
    """Lateness and duration of functions, coroutines, items, permits and attempts are recorded, with their result."""

    async def fail() -> None:
        await asyncio.sleep(3)
        raise ValueError

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with RateLimitedExecutor("x", rate=1, retry=Retry(2, base=0.5, on=ValueError)) as executor:
        instrument(executor, meter_provider=monitor.provider, durations=durations)
        executor.submit(str)  # starts at 0; each of the next starts a second after the one before
        executor.submit(asyncio.sleep, 2)
        executor.call_soon(asyncio.sleep, 4)
        executor.call_soon(str)
        executor.execute(asyncio.sleep, 0.2)
        executor.schedule_many(asyncio.sleep, [0.03, 20])
        found = monitor.collect()
        assert "task.time_in_queue" not in found
        await asyncio.sleep(6.5)
        found = monitor.collect()
        late = histogram(found["task.time_in_queue"])
        assert (late.count, late.sum) == (7, pytest.approx(sum(range(7))))
        assert (late.min, late.max) == (0.0, pytest.approx(6.0))
        done = histogram(found["task.duration"], result="done")
        assert (done.count, done.sum) == (6, pytest.approx(6.23 - 0.0))
        assert done.explicit_bounds[0] == 0.00005
        assert done.bucket_counts[0] == 2  # these two took no time at all

        async with executor.permit():
            await asyncio.sleep(1)
        cancelled = executor.submit(asyncio.sleep, 60)
        failed = executor.submit(fail)
        asyncio.get_running_loop().call_later(5, cancelled.cancel)
        await asyncio.wait([failed, cancelled])
        await asyncio.sleep(20)
        seen(failed)
        found = monitor.collect()
        assert histogram(found["task.duration"], result="done").count == 8
        assert histogram(found["task.duration"], result="cancelled").count == 1
        assert 3.5 < histogram(found["task.duration"], result="cancelled").sum <= 5
        for result in ("retried", "failed"):
            assert histogram(found["task.duration"], result=result).sum == pytest.approx(3.0)
        assert histogram(found["task.time_in_queue"]).count == 11 == executor.statistics().started


async def test_what_never_starts_has_no_durations(monitor):
    """A task that is cancelled or expires before its start has neither a time in the queue nor a duration."""
    async with RateLimitedExecutor("x", rate=0) as executor:
        instrument(executor, meter_provider=monitor.provider, durations="all")
        executor.submit(str).cancel()
        executor.call_soon(str).cancel()
        await asyncio.wait([expired := executor.submit(str, expires=2)])
        seen(expired)
        found = monitor.collect()
        assert {"task.time_in_queue", "task.duration"}.isdisjoint(found)
        assert found["rate"][0].value == 0.0


@pytest.mark.parametrize(("durations", "least", "most"), [("sampled", 100, 250), ("all", 5000, 5000)])
@pytest.mark.parametrize("add", ["call_later", "schedule", "schedule_many"])
async def test_of_many_an_even_sample_is_drawn(monitor, durations, least, most, add):
    """An even sample of 5,000 starts in 2.5 s, or all of them on demand, has the mean of all; counts stay exact."""

    async with RateLimitedExecutor("x", rate=2000, pacing=Pacing.ON_TIME) as executor:
        instrument(executor, meter_provider=monitor.provider, durations=durations)
        if add == "schedule_many":
            executor.schedule_many(asyncio.sleep, [2.0] * 5000, delay=1)
        else:
            for _ in range(5000):
                (executor.schedule if add == "schedule" else lambda *args, delay: executor.call_later(delay, *args))(
                    asyncio.sleep, 2.0, delay=1.0
                )
        await asyncio.sleep(10)
        found = monitor.collect()
        late = histogram(found["task.time_in_queue"])
        assert least <= late.count <= most
        assert late.sum / late.count == pytest.approx(1.25, rel=0.03)
        assert late.max == pytest.approx(2.5, rel=0.02)
        duration = histogram(found["task.duration"], result="done")
        assert least * 0.9 <= duration.count <= most
        assert duration.sum / duration.count == pytest.approx(2.0)
        assert found["started_tasks"][0].value == 5000
        # A sample that was drawn earlier does not delay the first one after a collection.
        executor.submit(str)
        await asyncio.sleep(1)
        assert histogram(monitor.collect()["task.time_in_queue"]).count == late.count + 1


@pytest.mark.parametrize(
    ("seconds", "least", "most"), [(0.5, 50, 100), (5, 250, 500), (15, 500, 1000), (30, 500, 1000)]
)
async def test_sample_is_as_large_as_the_time_since_the_last_collection_is_long(monitor, seconds, least, most):
    """The sample has up to 100 for each second since the last collection, at most 1,000; a collection empties it."""
    async with RateLimitedExecutor("x", rate=1000) as executor:
        instrument(executor, meter_provider=monitor.provider)
        count = 0
        for _ in range(2):
            executor.schedule_many(str, range(int(1000 * seconds)))
            await asyncio.sleep(seconds)
            late = histogram(monitor.collect()["task.time_in_queue"])
            assert least <= late.count - count <= most
            count = late.count


async def test_memory_is_bounded_where_nobody_collects(monitor):
    """While nobody collects, samples and open tasks stay bounded: 100,000 starts take no more memory than 1,000."""
    async with RateLimitedExecutor("x") as executor:
        instrumentation = instrument(executor, meter_provider=monitor.provider)
        (source,) = instrumentation._followed.sources()
        (samples,) = source._samples
        for _ in range(5):
            executor.schedule_many(str, range(20_000))
            await asyncio.sleep(1)
        assert len(samples._started) <= 500
        assert len(samples._ended) <= 500
        assert not samples._open
        executor.schedule_many(asyncio.sleep, [1] * 5_000)
        await asyncio.sleep(0.5)
        assert samples._open_count < 600
        await asyncio.sleep(1)
        assert samples._open_count == 0


async def test_off_is_nothing(monitor):
    """Without durations no hook is set; ``close()`` removes all hooks, and nothing is recorded after it."""
    async with RateLimitedExecutor("x") as executor:
        parts = executor._parts
        hooks = [(parts.queue, "on_start"), (parts.accounts, "on_task_end"), (parts.accounts, "on_retried")]
        with instrument(executor, meter_provider=monitor.provider, durations=None):
            assert [None] * 3 == [getattr(owner, name) for owner, name in hooks]
            executor.submit(str)
            await asyncio.sleep(1)
            assert monitor.values()["done"] == 1
            assert "task.duration" not in monitor.collect()
        assert monitor.values() == {}
        instrumentation = instrument(executor, meter_provider=monitor.provider)
        assert parts.queue.on_start is not None
        assert parts.accounts.on_task_end is None  # set only once a start has been drawn
        assert executor._home is parts.engine.loop  # calls that schedule still take the fast path
        executor.submit(asyncio.sleep, 5)
        await asyncio.sleep(1)
        instrumentation.close()
        instrumentation.close()
        assert [None] * 3 == [getattr(owner, name) for owner, name in hooks]
        assert executor._listeners._listeners == ()
        await asyncio.sleep(5)
        found = monitor.collect()
        assert set(found) == {"task.time_in_queue"}  # recorded before the end, and cumulative
        assert instrument(executor, meter_provider=monitor.provider) is not instrumentation


async def test_executors_of_a_manager_are_followed(monitor):
    """Present and future executors of a manager are followed; a name's counts continue with its next executor."""
    manager = ExecutorManager()
    before = manager.executor("before", rate=5)
    instrumentation = instrument(manager, meter_provider=monitor.provider, attributes={"part": "mail"})
    assert monitor.values()["accepted_tasks"] == 0
    async with manager:
        await before.submit(str)
        for count in (1, 2, 3):
            async with manager.executor("later") as later:
                await later.submit(str)
                if count == 2:
                    monitor.collect()
            assert later.is_terminated
            found = monitor.collect()
            attributes = {PREFIX + "name": "later", "part": "mail"}
            (point,) = [point for point in found["started_tasks"] if dict(point.attributes) == attributes]
            assert point.value == count
            (point,) = [point for point in found["active_tasks"] if dict(point.attributes) == attributes]
            assert point.value == 0
        (point,) = [point for point in found["task.time_in_queue"] if dict(point.attributes) == attributes]
        assert point.count == 3
        assert [point.attributes[PREFIX + "name"] for point in found["rate"]] == ["before"]
        assert instrumentation._followed._sources["later"].executor is None  # a closed executor is not kept alive
        instrumentation.close()
        later = manager.executor("later")
        assert later._listeners._listeners == ()


async def test_keys_are_attributes_where_that_was_asked_for(monitor):
    """With ``keys=True`` the key is an attribute of durations only; a task without a key has no such attribute."""
    async with RateLimitedExecutor("x", key_concurrency=1) as executor:
        instrument(executor, meter_provider=monitor.provider, keys=True)
        executor.submit(asyncio.sleep, 1, key="a")
        executor.submit(asyncio.sleep, 2, key=7)
        executor.submit(asyncio.sleep, 4)
        executor.schedule_many(asyncio.sleep, [8], key="b")
        await asyncio.sleep(10)
        found = monitor.collect()
        for key, seconds in (("a", 1), ("7", 2), ("b", 8)):
            assert histogram(found["task.duration"], result="done", key=key).sum == seconds
            assert histogram(found["task.time_in_queue"], key=key).count == 1
        assert histogram(found["task.duration"], result="done").sum == 4
        assert {PREFIX + "name"} == {name for point in found["started_tasks"] for name in point.attributes}


async def test_keys_are_no_attributes_else(monitor):
    """Keys are no attributes unless asked for, as there could be as many as there are customers."""
    async with RateLimitedExecutor("x", key_rate=5) as executor:
        instrument(executor, meter_provider=monitor.provider)
        await executor.submit(str, key="a")
        points = [point for points in monitor.collect().values() for point in points]
        assert {PREFIX + "name", PREFIX + "result"} == {name for point in points for name in point.attributes}


async def test_two_readers_and_two_providers_see_the_same(monitor):
    """Each provider sees every task, and reads of one take nothing from the other."""
    second = InMemoryMetricReader()
    monitor.provider.add_metric_reader(second) if hasattr(monitor.provider, "add_metric_reader") else None
    other = Monitor()
    async with RateLimitedExecutor("x") as executor:
        instrument(executor, meter_provider=monitor.provider)
        instrument(executor, meter_provider=other.provider)
        for _ in range(3):
            await executor.submit(str)
        assert monitor.values()["done"] == other.values()["done"] == 3
        assert histogram(other.collect()["task.time_in_queue"]).count == 3
        assert histogram(monitor.collect()["task.time_in_queue"]).count == 3
    other.provider.shutdown()


async def test_it_may_be_collected_in_another_thread(monitor):
    """Metrics may be collected in another thread, as a reader that exports at intervals does it."""
    async with RateLimitedExecutor("x") as executor:
        instrument(executor, meter_provider=monitor.provider)
        executor.submit(asyncio.sleep, 5)
        await asyncio.sleep(1)
        values = await asyncio.to_thread(monitor.values)
        assert (values["accepted_tasks"], values["active_tasks"]) == (1, 1)


async def test_keys_of_any_kind_reach_every_exporter(monitor):
    """A key that has no text, or a text that cannot be encoded, gets a substitute and does not disturb other keys."""

    class Nameless:
        def __str__(self) -> str:
            raise RuntimeError

    async with RateLimitedExecutor("x", key_rate=5) as executor:
        with instrument(executor, meter_provider=monitor.provider, keys=True):
            for key in (Nameless(), "\udcff", "a"):
                await executor.submit(str, key=key)
            found = monitor.collect()
    assert {"<Nameless>", "?", "a"} == {point.attributes[PREFIX + "key"] for point in found["task.duration"]}


async def test_what_a_wrong_thread_is_refused_leaves_nothing_behind(monitor):
    """A call refused in a wrong thread leaves no listener on any executor, and can be made again in the right one."""
    async with ExecutorManager() as manager:
        waiting, started = manager.executor("waiting"), manager.executor("started")
        await started.submit(str)
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(instrument, manager, meter_provider=monitor.provider)
        assert () == waiting._listeners._listeners == started._listeners._listeners
        instrumentation = instrument(manager, meter_provider=monitor.provider)
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(instrumentation.close)
        instrumentation.close()
        assert () == waiting._listeners._listeners == started._listeners._listeners


async def test_executor_that_begins_while_the_end_of_another_is_collected_is_followed(monitor, monkeypatch):
    """An executor that begins while a thread collects the end of the last one of its name is followed."""
    async with ExecutorManager() as manager:
        instrument(manager, meter_provider=monitor.provider)
        first = manager.executor("x")
        await first.submit(str)
        await first.aclose()
        looking, begun = threading.Event(), threading.Event()

        def is_terminated(executor: RateLimitedExecutor) -> bool:
            if threading.current_thread() is not threading.main_thread():
                looking.set()
                begun.wait(0.2)
            return executor is first

        monkeypatch.setattr(RateLimitedExecutor, "is_terminated", property(is_terminated))
        collecting = threading.Thread(target=monitor.collect)
        collecting.start()
        assert looking.wait(60)
        second = manager.executor("x")
        begun.set()
        collecting.join(60)
        await second.submit(str)
        assert 2 == monitor.values()["done"]


async def test_observers_and_metrics_do_not_disturb_each_other(monitor):
    """An observer hears of every start, and the histogram still gets its sample of them."""
    from ratelimited_executor.insight import observe

    from ..runtime.insight.test_observers import Log

    async with RateLimitedExecutor("x") as executor:
        log = Log(executor)
        instrument(executor, meter_provider=monitor.provider)
        with observe(executor, log):
            executor.schedule_many(str, range(3000))
            await asyncio.sleep(1)
            assert log.counts == {"accepted": 3000, "started": 3000, "done": 3000}
            assert 50 <= histogram(monitor.collect()["task.time_in_queue"]).count <= 100
        executor.schedule_many(str, range(3000))
        await asyncio.sleep(1)
        assert 100 <= histogram(monitor.collect()["task.time_in_queue"]).count <= 200


async def test_wrong_arguments_are_refused(monitor):
    """An error names the wrong argument and the remedy, and a refused call leaves no listener."""
    async with RateLimitedExecutor("x") as executor:
        for arguments, error, message in [
            ({"target": None}, TypeError, "target must be a RateLimitedExecutor or an ExecutorManager, got None"),
            (
                {"meter_provider": 1},
                TypeError,
                "meter_provider must be a MeterProvider of OpenTelemetry, or None, got 1",
            ),
            ({"durations": "some"}, ValueError, "durations must be 'sampled', 'all' or None, got 'some'"),
            ({"keys": 1}, TypeError, "keys must be a bool, got 1"),
        ]:
            with pytest.raises(error, match=message):
                instrument(**{"target": executor, "meter_provider": monitor.provider, **arguments})
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(instrument, executor, meter_provider=monitor.provider)
        first = instrument(executor, meter_provider=monitor.provider)
        assert isinstance(first, Instrumentation)
        for target in (executor, executor.manager):
            with pytest.raises(
                ValueError, match=r"target is instrumented already: close\(\) that instrumentation first"
            ):
                instrument(target, meter_provider=monitor.provider)
        assert len(executor._listeners._listeners) == 1
        assert "open" in repr(first)
        first.close()
        assert "closed" in repr(first)


async def test_without_the_api_the_error_names_the_extra(monkeypatch):
    """Importing the package imports no OpenTelemetry, and ``instrument()`` without it names the extra to install."""
    code = "import sys; from ratelimited_executor import *; import ratelimited_executor.metrics; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "opentelemetry" not in run.stdout
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(ImportError, match=r"pip install 'ratelimited-executor\[metrics\]'"):
            instrument(executor)


def told(monitor, name):
    """Return the values of a gauge of a store, by the attributes of each."""
    points = monitor.collect().get(f"durable.{name}", [])
    return {tuple(value for key, value in each.attributes.items() if key != "at"): each.value for each in points}


async def test_paused_tasks_are_in_the_backlog(monitor):
    """During a pause, the tasks that it holds are counted as paused, and the age of the oldest goes on."""
    tasks = DurableTasks(MemoryStore())
    send = tasks.task(name="send")(seen)
    with instrument_tasks(tasks, meter_provider=monitor.provider, period=10):
        async with tasks, RateLimitedExecutor("x") as executor:
            await tasks.pause(function="send")
            await send.put(1)
            async with tasks.running(executor):
                await asyncio.sleep(25)
            await send.put(2)
            await asyncio.sleep(10)
            counts = told(monitor, "tasks")
            assert (1, 1) == (counts["default", "send", "ready"], counts["default", "send", "paused"])
            assert 29 < told(monitor, "ready_age")["default", "send"] <= 35


async def test_backlog_of_a_store_is_told_by_queue_function_and_state(monitor, monkeypatch):
    """Each function has its ready, behind and dead tasks, 0 if it had some, and the age of its oldest ready one."""
    store = MemoryStore()
    tasks, others = DurableTasks(store), DurableTasks(store, queue="other")
    send, fail = tasks.task(name="send")(seen), tasks.task(name="fail")(lambda: 1 / 0)
    note = others.task(name="note")(seen)

    with instrument_tasks(tasks, meter_provider=monitor.provider, period=10, attributes={"at": "home"}) as told_by:
        assert {} == told(monitor, "tasks")  # the store is not open
        async with tasks, RateLimitedExecutor("x") as executor:
            await tasks.put_many(
                [fail.new(lane="l"), send.new(1, lane="l"), send.new(2, delay=1), send.new(3, delay=60)]
            )
            await others.put_many([note.new(1), note.new(2, delay=15)])
            await asyncio.sleep(25)
            counts = {key: value for key, value in told(monitor, "tasks").items() if value}
            assert {
                ("default", "fail", "ready"): 1,
                ("default", "send", "behind"): 1,
                ("other", "note", "ready"): 1,
            } == counts  # what is due later is scheduled until a claim
            ages = told(monitor, "ready_age")
            assert (True, 0.0) == (19 < ages["default", "fail"] < 21, ages["default", "send"])
            latencies = {queue: round(age) for (queue,), age in told(monitor, "latency").items()}
            assert {"default": 20, "other": 20} == latencies
            async with tasks.running(executor):
                await asyncio.sleep(15)
            counts = told(monitor, "tasks")
            assert (0, 1, 1) == tuple(
                counts["default", *each] for each in (("fail", "ready"), ("fail", "dead"), ("send", "behind"))
            )
            assert 0 == told(monitor, "ready_age")["default", "fail"] == told(monitor, "latency")["default",]
            ended = {key: value for key, value in told(monitor, "ended_claims").items() if value}
            assert {
                ("default", "fail", "dead"): 1,
                ("default", "send", "dead"): 1,
            } == ended  # also of a runner that has closed

            async def away():
                raise StoreUnavailableError("the store", "it is away")

            monkeypatch.setattr(store, "backlog", away)
            await asyncio.sleep(15)
            assert {} == told(monitor, "tasks") == told(monitor, "ready_age") == told(monitor, "latency")
        assert "open" in repr(told_by)
    assert {} == told(monitor, "tasks")
    told_by.close()
    with pytest.raises(TypeError, match="tasks must be DurableTasks"):
        instrument_tasks(store)
    with pytest.raises(ValueError, match="period"):
        instrument_tasks(tasks, period=0)
    with pytest.raises(TypeError, match="meter_provider must be"):
        instrument_tasks(tasks, meter_provider=5)
