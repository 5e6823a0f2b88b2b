"""Spans of tasks, by the SDK of OpenTelemetry: each is a root, linked to the span in which the task was accepted."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from collections import Counter

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from ratelimited_executor import RateLimitedExecutor, Retry, RetryLater
from ratelimited_executor.durable import DurableTasks, MemoryStore, OnDuplicate, Snooze, Unique, current_task
from ratelimited_executor.tracing import traced

from ..helpers import now, seen

pytestmark = pytest.mark.usefixtures("virtual_clock")

RESULT = "ratelimited_executor.result"


class Traces:
    """A tracer provider of the test's own, with the spans that it has exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traced = functools.partial(traced, tracer_provider=self.provider)

    def request(self):
        """Return a span to enter, such as a web framework makes for a request."""
        return self.provider.get_tracer("web").start_as_current_span("request")

    def tasks(self):
        """Return the spans that have ended, except those of requests."""
        return [span for span in self._exporter.get_finished_spans() if span.name != "request"]


@pytest.fixture
def traces():
    traces = Traces()
    yield traces
    traces.provider.shutdown()


def is_linked_root(span, request) -> bool:
    """Return True if a span is the root of another trace, and its only link is to the request."""
    links = [link.context.span_id for link in span.links]
    return span.parent is None and span.context.trace_id != request.trace_id and links == [request.span_id]


def plain(value):
    return value


async def coroutine(value):
    await asyncio.sleep(1)
    return value


class Callable:
    async def __call__(self, value):
        await asyncio.sleep(1)
        return value


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (plain, "plain"),
        (coroutine, "coroutine"),
        (functools.partial(coroutine), "coroutine"),
        (Callable(), "Callable"),
        (lambda value: coroutine(value), "<lambda>"),
    ],
    ids=["plain", "coroutine", "partial", "callable", "lambda"],
)
@pytest.mark.parametrize("how", ["submit", "execute", "schedule", "schedule_many"])
async def test_span_of_a_task_is_a_root_with_a_link_to_where_it_was_accepted(traces, fn, name, how):
    """A traced callable of any kind, scheduled by any call, has a linked root span, even hours after the request."""
    work = traces.traced()(fn)
    async with RateLimitedExecutor("x") as executor:
        with traces.request() as span:
            request = span.get_span_context()
            match how:
                case "submit" | "execute":
                    getattr(executor, how)(work, 7)
                case "schedule":
                    executor.schedule(work, 7, delay=3600)
                case "schedule_many":
                    executor.schedule_many(work, [7], delay=3600)

    (task,) = traces.tasks()
    assert task.name.rpartition(".")[2] == name
    assert is_linked_root(task, request)
    assert dict(task.attributes) == {RESULT: "done"}


async def test_callback_is_traced(traces):
    """The span of a ``call_later`` callback is a root, linked to the span in which it was scheduled."""
    async with RateLimitedExecutor("x") as executor:
        with traces.request() as span:
            request = span.get_span_context()
            executor.call_later(3600, traces.traced()(plain), 7)

    (task,) = traces.tasks()
    assert is_linked_root(task, request)


async def test_span_that_is_started_in_a_task_is_a_child_of_the_task(traces):
    """It is a child of a task that is traced, and otherwise of the request, whose context variables the task has."""

    def inner():
        with traces.provider.get_tracer("mine").start_as_current_span("inner"):
            pass

    async with RateLimitedExecutor("x") as executor:
        with traces.request() as span:
            request = span.get_span_context()
            executor.schedule(traces.traced()(inner), delay=10)
            executor.schedule(inner, delay=20)

    first, task, second = traces.tasks()
    assert first.parent.span_id == task.context.span_id
    assert second.parent.span_id == request.span_id


async def test_task_in_a_thread_is_traced(traces):
    """A traced function that runs in a thread has a linked root span, too."""
    async with RateLimitedExecutor("x") as executor:
        with traces.request() as span:
            request = span.get_span_context()
            assert 7 == await executor.submit(traces.traced()(plain), 7, in_thread=True)

    (task,) = traces.tasks()
    assert is_linked_root(task, request)


async def test_each_attempt_run_and_item_is_a_span(traces):
    """Each attempt of a retry, each item of a batch and each run of a repetition is a span linked to the request."""
    attempts = []

    def fail_at_first():
        attempts.append(now())
        if len(attempts) < 3:
            raise RetryLater(5)

    async with RateLimitedExecutor("x", retry=Retry(5)) as executor:
        with traces.request() as span:
            request = span.get_span_context()
            handle = executor.submit(traces.traced(name="attempt")(fail_at_first))
            batch = executor.schedule_many(traces.traced(name="item")(plain), range(4))
            every = executor.schedule_at_fixed_rate(traces.traced(name="run")(now), period=1, max_runs=2)
        for each in (handle, batch, every):
            await each

    found = traces.tasks()
    assert all(is_linked_root(task, request) for task in found)
    assert Counter(
        {("attempt", "failed"): 2, ("attempt", "done"): 1, ("item", "done"): 4, ("run", "done"): 2}
    ) == Counter((task.name, task.attributes[RESULT]) for task in found)


@pytest.mark.parametrize("is_async", [False, True])
async def test_exception_is_recorded_and_is_the_status(traces, is_async):
    """The span of a failed task records its exception and has the status of an error; the task fails all the same."""

    def fail():
        raise ValueError("no")

    async def fail_later():
        await asyncio.sleep(1)
        raise ValueError("no")

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(traces.traced()(fail_later if is_async else fail))
        with pytest.raises(ValueError, match="no"):
            await handle

    (task,) = traces.tasks()
    assert (StatusCode.ERROR, "failed") == (task.status.status_code, task.attributes[RESULT])
    assert ["exception"] == [event.name for event in task.events]
    assert "ValueError" == task.events[0].attributes["exception.type"]


class Mute(Exception):
    """An exception whose message cannot be written."""

    def __str__(self):
        raise RuntimeError("no words")


class BrokenProcessor(SimpleSpanProcessor):
    """A span processor that raises at both ends of a span."""

    def on_start(self, span, parent_context=None):
        raise RuntimeError("no start")

    def on_end(self, span):
        raise RuntimeError("no end")


@pytest.mark.parametrize("is_async", [False, True])
async def test_no_task_fails_for_its_span(traces, is_async, caplog):
    """A task survives a span processor that raises, and an exception that cannot be written; the log has both."""

    def fail():
        raise Mute

    async def fail_later():
        await asyncio.sleep(1)
        raise Mute

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BrokenProcessor(InMemorySpanExporter()))
    async with RateLimitedExecutor("x") as executor:
        assert 7 == await executor.submit(traced(coroutine if is_async else plain, tracer_provider=provider), 7)
        handle = executor.submit(traces.traced()(fail_later if is_async else fail))
        with pytest.raises(Mute):
            await handle

    (task,) = traces.tasks()
    assert "failed" == task.attributes[RESULT]
    assert {"no start", "no words"} <= {str(record.exc_info[1]) for record in caplog.records}


async def test_cancelled_task_ends_its_span(traces):
    """The span of a running task that is cancelled says so, and is no error; a task that never started has no span."""
    async with RateLimitedExecutor("x") as executor:
        running = executor.submit(traces.traced()(coroutine), 7)
        waiting = executor.schedule(traces.traced()(coroutine), 7, delay=10)
        await asyncio.sleep(0.5)
        running.cancel()
        waiting.cancel()
        await asyncio.wait([running, waiting])
        seen(running)

    (task,) = traces.tasks()
    assert ("cancelled", StatusCode.UNSET) == (task.attributes[RESULT], task.status.status_code)


async def test_without_a_span_there_is_no_link_and_baggage_stays(traces):
    """A task accepted outside any span has a root span without links, and the rest of its context, such as baggage."""
    found = []
    token = context.attach(baggage.set_baggage("tenant", "a"))
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(traces.traced()(lambda: found.append(baggage.get_baggage("tenant"))), delay=1)
    context.detach(token)

    (task,) = traces.tasks()
    assert ((), None, ["a"]) == (tuple(task.links), task.parent, found)


async def test_name_and_attributes_are_those_that_are_given(traces):
    """``traced`` takes a name, attributes and a provider; the function keeps its own name and docstring."""

    @traced
    async def global_one(value):
        """Words of its own."""
        return value

    @traces.traced(name="mail", attributes={"ratelimited_executor.name": "mail"})
    def send(value):
        return value

    async with RateLimitedExecutor("x") as executor:
        assert 7 == await executor.submit(global_one, 7)  # no provider is set: nothing is recorded
        assert 7 == await executor.submit(send, 7)

    (task,) = traces.tasks()
    assert ("mail", {"ratelimited_executor.name": "mail", RESULT: "done"}) == (task.name, dict(task.attributes))
    assert ("global_one", "Words of its own.") == (global_one.__name__, global_one.__doc__)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fn": 3}, "fn must be callable, got 3"),
        ({"name": 3}, "name must be a text, or None, got 3"),
        ({"tracer_provider": 3}, "tracer_provider must be a TracerProvider of OpenTelemetry, or None, got 3"),
    ],
)
def test_bad_arguments_are_refused(options, words):
    """A bad argument raises a TypeError that names the argument and its value."""
    fn = options.pop("fn", plain)
    with pytest.raises(TypeError, match=words):
        traced(**options)(fn)


def test_package_imports_no_opentelemetry():
    """Importing the package and its tracing does not import OpenTelemetry; only the use of ``traced`` does."""
    code = "import sys, ratelimited_executor, ratelimited_executor.tracing; print('opentelemetry' in sys.modules)"
    assert "False\n" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_missing_api_names_the_extra(monkeypatch):
    """Without OpenTelemetry ``traced`` raises an ImportError with the command that installs the extra."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pip install 'ratelimited-executor\[tracing\]'"):
        traced(plain)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_spans_of_a_durable_task_are_linked_to_its_put(traces, in_thread):
    """Each attempt of a durable task has a span with a link to the span of the put, also in a thread, and after a snooze."""
    tasks = DurableTasks(MemoryStore())
    runs = []

    def attempt(x):
        runs.append(x)
        if len(runs) == 1:
            raise Snooze(1)
        if len(runs) == 2:
            raise ValueError(x)

    async def attempt_async(x):
        attempt(x)

    function = traces.traced(attempt if in_thread else attempt_async, name="attempt")
    send = tasks.task(in_thread=in_thread, retry=Retry(2, on=ValueError, base=1.0), name="attempt")(function)
    async with RateLimitedExecutor("x") as executor:
        async with tasks:
            with traces.request() as request:
                await send.put("a")
        with traces.request():  # in which the runner happens to be
            async with tasks.running(executor):
                async with asyncio.timeout(60):
                    while len(runs) < 3 or len(traces.tasks()) < 3:
                        await asyncio.sleep(0.5)
    assert [True] * 3 == [is_linked_root(span, request.get_span_context()) for span in traces.tasks()]


async def test_puts_of_any_kind_carry_their_span(traces):
    """put_many, a put without asyncio and a replacement carry the span; a repetition, and a put in no span, carry none."""
    tasks = DurableTasks(MemoryStore())
    replaced = Unique(on_duplicate=OnDuplicate.REPLACE)

    @tasks.task
    @traces.traced(name="send")
    async def send(x: str):
        pass

    async with tasks, RateLimitedExecutor("x") as executor:
        with traces.request() as request:
            await tasks.put_many([send.new("many")])
            await asyncio.to_thread(send.put_sync, "sync")
        await send.put("replaced", unique=replaced)
        with traces.request() as last:
            await send.put("replaced", unique=replaced)
        plain = await send.put("plain")
        assert b'[["plain"],{}]' == (await plain.row()).body
        with traces.request():
            tasks.repeat(send, "repeated", period=60)
            async with tasks.running(executor):
                await asyncio.sleep(100)
                assert [b'[["repeated"],{}]'] == [row.body for row in await tasks.rows()]  # the next occurrence
                linked = [link.context.span_id for span in traces.tasks() for link in span.links]
    wanted = [request.get_span_context().span_id] * 2 + [last.get_span_context().span_id]
    assert wanted == [each for each in linked if each in wanted]


async def test_tasks_run_whatever_span_they_carry(traces, caplog):
    """A task runs if the function is no longer traced, and if what it carries is no span; one of an earlier release runs, too."""
    store = MemoryStore()
    ran = []
    old, new = DurableTasks(store), DurableTasks(store)
    put = old.task(name="send")(traces.traced(ran.append))
    new.task(name="send")(ran.append)
    bodies = [b"[[1],{}]", b"[[2],{},[]]", b'[[3],{},[],"00-bad"]', b"[[4],{},[],5]"]
    async with RateLimitedExecutor("x") as executor:
        for tasks in (old, new):
            async with tasks.running(executor):
                await store.put(
                    [put.new(0)._replace(id=f"{tasks is old} {n}", body=body) for n, body in enumerate(bodies)]
                )
                with traces.request():
                    await put.put(5)
                await asyncio.sleep(1)
    assert [1, 2, 3, 4, 5] * 2 == ran
