"""What durable functions and their calls accept, and what they refuse."""

import asyncio

import pytest

from ratelimited_executor.abc import TaskStore
from ratelimited_executor.durable import DurableTasks, LaneFail, MemoryStore


@pytest.fixture
def tasks(virtual_clock):
    """Return durable tasks over a store in memory."""
    return DurableTasks(MemoryStore())


@pytest.fixture
def note(tasks):
    """Return a durable function."""

    @tasks.task
    async def note(what, *, loud=False):
        """Note something."""

    return note


async def test_called_as_it_is_it_runs_here(tasks):
    """A call runs the function at once, as if undecorated, and the function keeps its name and docstring."""

    @tasks.task
    def double(number):
        """Double it."""
        return 2 * number

    assert 4 == double(2)
    assert ("double", "Double it.") == (double.__name__, double.__doc__)
    assert "DurableFunction('double', version=1)" == repr(double)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": ""}, ValueError, "name must have 1 to 255 characters"),
        ({"name": 5}, TypeError, "name must be a str"),
        ({"version": -1}, ValueError, "version must be >= 0"),
        ({"retry": 3}, TypeError, "retry must be a Retry"),
        ({"run_timeout": 0}, ValueError, "run_timeout must be > 0"),
        ({"in_thread": 1}, TypeError, "in_thread must be True or False"),
        ({"priority": "high"}, TypeError, "priority must be a number"),
        ({"expires": -1}, ValueError, "expires must be > 0"),
        ({"lane_fail": "block"}, TypeError, "lane_fail must be a LaneFail"),
        ({"check": 1}, TypeError, "check must be a callable"),
        (
            {"lanes": 1},
            TypeError,
            r"task\(\) has no option lanes=; it has check, expires, in_thread, keep, keep_result, lane_fail, name",
        ),
    ],
)
def test_wrong_options_are_refused(tasks, options, error, words):
    """A wrong option of a durable function is refused with its name and the remedy."""
    with pytest.raises(error, match=words):
        tasks.task(**{"name": "work", **options})(lambda: None)


def test_functions_that_cannot_be_registered(tasks, note):
    """A function without a name, a second one of its name, and one with a parameter of ``put()`` are refused."""
    with pytest.raises(TypeError, match="name must be given"):
        tasks.task(lambda: None)
    with pytest.raises(ValueError, match="name 'note', version 1, is registered already"):
        tasks.task(name="note")(lambda: None)
    tasks.task(name="note", version=2)(lambda: None)
    with pytest.raises(TypeError, match="no parameter 'delay', an option of put"):
        tasks.task(name="late")(lambda delay: None)
    with pytest.raises(TypeError, match="fn must be a callable"):
        tasks.task(note("x"))


@pytest.mark.parametrize(
    ("args", "options", "error", "words"),
    [
        ((), {}, TypeError, "note: missing a required argument: 'what'"),
        (("x",), {"loudly": True}, TypeError, "note: got an unexpected keyword argument 'loudly'"),
        (("x",), {"delay": -1}, ValueError, "delay must be >= 0"),
        (("x",), {"delay": 1, "at": 5}, TypeError, "delay= or at=, not both"),
        (("x",), {"at": "noon"}, TypeError, "at must be an aware datetime"),
        (("x",), {"priority": float("nan")}, ValueError, "priority"),
        (("x",), {"expires": 0}, ValueError, "expires must be > 0"),
        (("x",), {"lane": ""}, ValueError, "lane must have 1 to 255 characters"),
        (("x",), {"lane": "a\0b"}, ValueError, "no NUL"),
        (("x",), {"id": "y" * 256}, ValueError, "id must have 1 to 255 characters"),
        (("x",), {"id": "\ud800"}, ValueError, "id must be a str that UTF-8 can write"),
        (("x",), {"key": -(10**255)}, ValueError, "key must have at most 255 digits, got an int of 848 bits"),
        (("x",), {"key": 1.5}, TypeError, "key of a durable task must be a str or an int"),
        (("x",), {"key": True}, TypeError, "key of a durable task must be a str or an int"),
        (("x",), {"cost": 0}, ValueError, "cost must be >= 1"),
        (("x",), {"cost": {"tokens": -1}}, ValueError, "cost must be >= 0"),
    ],
)
async def test_wrong_puts_are_refused_and_leave_nothing(tasks, note, args, options, error, words):
    """A wrong argument or option of a put is refused by its name, and nothing is written."""
    async with tasks:
        with pytest.raises(error, match=words):
            await note.put(*args, **options)
        assert {0} == set((await tasks.counts()).values())


async def test_wrong_task_does_not_fail_the_puts_beside_it(tasks, note):
    """A wrong task is refused before it joins a transaction, so that puts made at the same time succeed."""
    async with tasks:
        ref, error = await asyncio.gather(note.put("x"), tasks.put("y"), return_exceptions=True)
        assert ref.created
        assert "task must be what new() of a durable function returns, got 'y'" == str(error)


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda tasks: tasks.requeue(["x"]), TypeError, "ids must be a str, got"),
        (lambda tasks: tasks.cancel(5), TypeError, "ids must be a str, got 5"),
        (lambda tasks: tasks.rows("dead"), TypeError, "state must be a DurableState"),
        (lambda tasks: tasks.rows(limit=0), ValueError, "limit must be >= 1"),
        (lambda tasks: tasks.rows(after=-1), ValueError, "after must be >= 0"),
        (lambda tasks: tasks.lanes(limit=0), ValueError, "limit must be >= 1"),
    ],
)
async def test_wrong_questions_are_refused(tasks, ask, error, words):
    """A wrong argument of a query is refused by its name, before the store is called."""
    async with tasks:
        with pytest.raises(error, match=words):
            await ask(tasks)


async def test_put_many_splits_transactions_by_their_bytes(tasks, note, monkeypatch):
    """A transaction of ``put_many`` has at most a thousand tasks, and at most eight mebibytes of arguments."""
    batches, put = [], tasks.store.put
    monkeypatch.setattr(tasks.store, "put", lambda some, **_: (batches.append(len(some)), put(some))[1])
    async with tasks:
        await tasks.put_many([note.new("x" * 250_000) for _ in range(70)])
        await tasks.put_many(note.new(n) for n in range(1001))
    assert [33, 33, 4, 1000, 1] == batches


async def test_put_many_takes_what_new_has_made(tasks, note):
    """``put_many`` takes any iterable of tasks from ``new()``, and counts duplicates of ids."""

    async def stream():
        for number in range(2500):
            yield note.new(number, id=f"n{number % 2000}")

    async with tasks:
        summary = await tasks.put_many(stream())
        assert (2000, 500) == (summary.created, summary.duplicates)
        with pytest.raises(TypeError, match="tasks must be what new"):
            await tasks.put_many(["x"])


async def test_reference_by_id(tasks, note):
    """A reference made from an id is equivalent to that of the put."""
    async with tasks:
        put = await note.put("x", id="mine", delay=60)
        assert "DurableRef('mine', created)" == repr(put)
        ref = tasks.ref("mine")
        assert "DurableRef('mine')" == repr(ref)
        assert await put.row() == await ref.row()
        assert 1 == await tasks.cancel("mine", "other")
        assert await ref.state() is None


async def test_ids_rise(tasks, note):
    """Ids rise with time, so that indexes stay compact."""
    ids = [note.new("x").id for _ in range(100)]
    assert 100 == len(set(ids))
    assert sorted(ids) == ids


def test_stores_and_queues_that_are_none_are_refused():
    """An object that is not a store, an empty queue and a lease of 0 are refused by name."""
    with pytest.raises(TypeError, match="store must be a store of tasks"):
        DurableTasks("tasks.db")
    methods = {name: getattr(MemoryStore, name) for name in TaskStore.__abstractmethods__ - {"history", "backlog"}}
    with pytest.raises(TypeError, match=r"store must be a store of tasks.*, which lacks backlog, history$"):
        DurableTasks(type("Store", (), methods)())
    with pytest.raises(ValueError, match="queue must have 1 to 255 characters"):
        DurableTasks(MemoryStore(), queue="")
    with pytest.raises(ValueError, match="lease must be > 0"):
        DurableTasks(MemoryStore(), lease=0)


def test_lane_fail_is_kept_with_the_task(tasks):
    """Whether a dead letter blocks its lane is an option of the function, and stored with each task."""
    skip = tasks.task(name="skip", lane_fail=LaneFail.SKIP)(lambda: None)
    assert not skip.new(lane="l").is_blocking


def test_connection_is_for_put_alone(note):
    """``connection=`` is an option of ``put()``, and ``new()`` refuses it."""
    with pytest.raises(TypeError, match=r"new\(\) has no connection=: pass it to put\(\)"):
        note.new("x", connection=None)


async def test_check_refuses_arguments_of_puts(tasks):
    """The check of a function gets the arguments of each put, once they fit the signature; what it raises, the put raises."""
    checked = []

    def check(*args, **kwargs):
        checked.append((args, kwargs))
        if args == (0,):
            raise ValueError("number must not be 0")

    @tasks.task(check=check)
    def divide(number): ...

    async with tasks:
        await divide.put(1)
        await divide.put(number=2)
        with pytest.raises(ValueError, match="number must not be 0"):
            await divide.put(0)
        with pytest.raises(TypeError, match="missing a required argument"):
            await divide.put()
        assert [((1,), {}), ((), {"number": 2}), ((0,), {})] == checked
        assert 2 == len(await tasks.rows())
