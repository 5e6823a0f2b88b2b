"""Unique puts as users write them: what is compared, what becomes of a duplicate, and what is refused."""

import asyncio
import datetime
import pickle

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableTasks, MemoryStore, OnDuplicate, Unique
from ratelimited_executor.exceptions import DuplicateTaskError

BY_TENANT = Unique(by=("tenant",))


@pytest.fixture
async def tasks(virtual_clock):
    """Return open durable tasks over a store in memory."""
    async with DurableTasks(MemoryStore()) as made:
        yield made


@pytest.fixture
def report(tasks):
    """Return a durable function that notes its calls."""

    @tasks.task
    async def report(tenant, day=1, *extra, **named):
        report.calls.append((tenant, day))

    report.calls = []
    return report


async def test_call_is_the_same_however_its_arguments_are_passed(report):
    """A call is compared by its bound arguments, with defaults; others are different."""
    first = await report.put("a", unique=True)
    for args, kwargs in ((("a", 1), {}), (("a",), {"day": 1}), ((), {"day": 1, "tenant": "a"})):
        again = await report.put(*args, unique=Unique(), **kwargs)
        assert (first.id, False, False) == (again.id, again.created, again.changed)
    for args, kwargs in (
        (("b",), {}),
        (("a", 2), {}),
        (("a", 1, 2), {}),
        (("a",), {"x": [1, {"y": 2}]}),
        (("a", True), {}),
    ):
        assert (await report.put(*args, unique=True, **kwargs)).created
    assert (await report.put("a", unique=False)).created
    assert "duplicate" in repr(again)


async def test_part_of_the_arguments_is_compared(tasks, report):
    """``by`` compares some arguments, in any order of their names, and none if it is empty; a function is one of its version."""
    assert (await report.put("a", 1, unique=BY_TENANT)).created
    assert not (await report.put("a", 2, unique=BY_TENANT)).created
    assert (await report.put("a", 2, unique=Unique(by=["day", "tenant"]))).created
    assert not (await report.put("a", 2, unique=Unique(by=("tenant", "day")))).created
    assert (await report.put("x", unique=Unique(by=()))).created
    assert not (await report.put("y", unique=Unique(by=()))).created

    @tasks.task(name="report", version=2)
    async def newer(tenant):
        pass

    assert (await newer.put("a", unique=BY_TENANT)).created


async def test_queues_are_apart(virtual_clock, report):
    """The same function of another queue is another one."""
    await report.put("a", unique=True)
    async with DurableTasks(report._tasks.store, queue="other") as others:

        @others.task(name="report")
        async def other(tenant, day=1, *extra, **named):
            pass

        assert (await other.put("a", unique=True)).created


async def test_last_arguments_run_once_when_the_puts_have_ended(tasks, report):
    """A debounced task runs once, with the last arguments, and a put beside the run has a run of its own."""
    unique = Unique(by=("tenant",), on_duplicate=OnDuplicate.DEBOUNCE)
    async with RateLimitedExecutor("reports") as executor, tasks.running(executor):
        for day in range(4):
            ref = await report.put("a", day, unique=unique, delay=5)
            await asyncio.sleep(2)
        assert ("changed", False, True) == (repr(ref).split()[-1].strip(")"), ref.created, ref.changed)
        assert [] == report.calls
        await asyncio.sleep(2)  # the task is claimed
        assert (await report.put("a", 9, unique=unique, delay=5)).created
        await asyncio.sleep(9)
    assert [("a", 3), ("a", 9)] == report.calls


async def test_duplicate_is_refused_with_its_id(tasks, report):
    """REFUSE raises an error that names the existing task, and ``put_many`` refuses REFUSE itself."""
    unique = Unique(by=("tenant",), on_duplicate=OnDuplicate.REFUSE)
    first = await report.put("a", unique=unique)
    with pytest.raises(DuplicateTaskError, match=f"a task of report .* exists, {first.id}: catch this") as caught:
        await report.put("a", 2, unique=unique)
    assert ("report", first.id) == (pickle.loads(pickle.dumps(caught.value)).name, caught.value.id)
    with pytest.raises(TypeError, match=r"put_many\(\) puts the others .* use OnDuplicate.KEEP"):
        await tasks.put_many([report.new("b", unique=unique)])


async def test_many_puts_count_their_duplicates(tasks, report):
    """``put_many`` counts duplicates, in one transaction and over several."""
    summary = await tasks.put_many(report.new(n % 7, n, unique=BY_TENANT) for n in range(3000))
    assert (7, 2993) == (summary.created, summary.duplicates)


async def test_period_outlasts_the_task(tasks, report):
    """Within a period, a put is a duplicate of a task that has run."""
    unique = Unique(by=("tenant",), period="1h")
    async with RateLimitedExecutor("reports") as executor, tasks.running(executor):
        first = await report.put("a", unique=unique)
        await asyncio.sleep(3599)
        again = await report.put("a", unique=unique)
        assert (first.id, False, None) == (again.id, again.created, await again.state())
        await asyncio.sleep(1)
        assert (await report.put("a", unique=unique)).created


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"by": "tenant"}, TypeError, r"by must be a tuple of names of parameters, such as \('tenant',\), got 'tenant'"),
        ({"by": (1,)}, TypeError, "by must be a tuple of names"),
        ({"period": 0}, ValueError, "period must be > 0"),
        ({"period": "25h"}, ValueError, "period must be at most 1d, got '25h'"),
        ({"on_duplicate": "keep"}, TypeError, "on_duplicate must be an OnDuplicate, one of OnDuplicate.KEEP"),
        ({"while_running": 1}, TypeError, "while_running must be True or False"),
        ({"period": 5, "on_duplicate": OnDuplicate.DEBOUNCE}, TypeError, r"period= does not fit OnDuplicate.DEBOUNCE.*: use delay="),
        ({"delay_max": 5}, TypeError, "delay_max= fits OnDuplicate.DEBOUNCE only, got OnDuplicate.KEEP"),
        ({"delay_max": 1e13, "on_duplicate": OnDuplicate.DEBOUNCE}, ValueError, "delay_max must be at most"),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused(options, error, words):
    """A wrong field is refused with its name and the remedy."""
    with pytest.raises(error, match=words):
        Unique(**options)


@pytest.mark.parametrize(
    ("args", "unique", "options", "error", "words"),
    [
        (("a",), "tenant", {}, TypeError, r"unique must be True, or a Unique such as Unique\(by=\('tenant',\)\), got 'tenant'"),
        (("a",), Unique(by=("tenent",)), {}, ValueError, "by must name parameters of the function, which has tenant, day.*'tenent'"),
        (("a",), True, {"id": "x"}, TypeError, r"put\(\) takes id= or unique=, not both"),
        ((), True, {}, TypeError, "report: missing a required argument: 'tenant'"),
    ],
)  # fmt: skip
async def test_wrong_puts_are_refused(report, args, unique, options, error, words):
    """A wrong put is refused at the call, and by ``new`` as well."""
    with pytest.raises(error, match=words):
        await report.put(*args, unique=unique, **options)
    with pytest.raises(error, match=words):
        report.new(*args, unique=unique, **options)


async def test_arguments_that_cannot_be_compared_are_refused(virtual_clock):
    """With another codec, arguments must be representable in JSON if they are compared, and the error says what to do."""
    tasks = DurableTasks(MemoryStore(), codec=pickle)

    @tasks.task
    async def work(tenant, what):
        pass

    for what in ({1, 2}, {1: 2}, float("nan")):
        with pytest.raises(
            TypeError, match=r"unique: the arguments cannot be compared: .*; name those that can by Unique\(by="
        ):
            work.new("a", what, unique=True)
        assert work.new("a", what, unique=BY_TENANT).unique is not None


async def test_repetition_has_no_unique_key(tasks, report):
    """A repetition refuses ``unique=``: its occurrences are unique by their times."""
    with pytest.raises(TypeError, match=r"repeat\(\) has no unique="):
        tasks.repeat(report, "a", period=1, unique=True)


async def test_typed_arguments_are_compared_as_they_are_stored(tasks):
    """Equal dates are the same argument, and others are not."""

    @tasks.task
    async def close(day: datetime.date): ...

    first = await close.put(datetime.date(2026, 1, 2), unique=True)
    assert first.id == (await close.put(datetime.date(2026, 1, 2), unique=True)).id
    assert (await close.put(datetime.date(2026, 1, 3), unique=True)).created


async def test_typed_default_is_compared_as_an_argument(tasks):
    """A default is the same argument whether it is passed or not; one of another class than its annotation stays as it is."""
    day = datetime.date(2026, 1, 2)

    @tasks.task
    async def close(day: datetime.date = day, until: datetime.date = ""): ...

    first = await close.put(unique=True)
    assert first.created
    assert first.id == (await close.put(day, unique=True)).id == (await close.put(day=day, unique=True)).id
    assert (await close.put(day, day, unique=True)).created
