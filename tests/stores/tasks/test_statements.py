"""Schema steps: a newer release changes the tables while processes of an older one run."""

import sys
from functools import partial

import pytest

from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor._core.durable.tasks import (
    Claim,
    Duplicate,
    DurableState,
    End,
    KeptTask,
    NewTask,
    Occurrence,
    TaskOutcome,
    Placement,
    UniqueKey,
)
from ratelimited_executor.durable import PostgresStore, SQLiteStore
from ratelimited_executor.stores.tasks import postgres, sqlite
from ratelimited_executor.stores.tasks.statements import SchemaStep, lacking, read_schema

from .conftest import opening

MODULES = {"sqlite": sqlite, **({} if sys.platform == "win32" else {"postgres": postgres})}
NEXT = sqlite._SCHEMA[-1].version + 1
COLOUR = "alter table durable_tasks add column colour text not null default 'red'"


@pytest.fixture(params=MODULES)
def module(request):
    """The module of a store that has a schema."""
    return MODULES[request.param]


@pytest.fixture
def place(request, module, tmp_path):
    """Where its tables are: a path or a URL."""
    return tmp_path / "tasks.db" if module is sqlite else request.getfixturevalue("database").url


@pytest.fixture
async def opened(module, place, clock):
    """Open stores, and close them all at the end."""
    async with opening(partial(SQLiteStore if module is sqlite else PostgresStore, place), clock) as call:
        yield call


def add_step(monkeypatch, module, *statements, least=1):
    """Let the current release know one more version of the schema."""
    step = SchemaStep(module._SCHEMA[-1].version + 1, least, statements)
    monkeypatch.setattr(module, "_SCHEMA", (*module._SCHEMA, step))


async def work(store, id):
    """Put, claim and end a task."""
    assert [True] == await store.put([NewTask(id=id, name="f")])
    await store.join("a", 60_000_000)
    [claimed] = (await store.claim(Claim(owner="a", count=1))).tasks
    assert id == claimed.id
    assert [True] == await store.finish([TaskOutcome(claimed.ref, End.DONE)])


async def test_older_processes_go_on_while_a_newer_one_adds_a_column(opened, module, monkeypatch):
    """Older processes continue, and may still start, after a newer one has added a column; waiting tasks are kept."""
    old = await opened()
    await old.put([NewTask(id="waits", name="f", delay_us=10**12)])
    with monkeypatch.context() as newer:
        add_step(newer, module, COLOUR, "create index durable_colour on durable_tasks (colour)")
        new = await opened()
        await work(new, "by the new one")
    await work(old, "by the old one")
    await work(await opened(), "by one that was started late")
    add_step(monkeypatch, module, COLOUR)
    await work(await opened(), "the step was not done again")
    assert 1 == (await old.counts())[DurableState.SCHEDULED]


async def test_tables_of_the_first_schema_are_updated(opened, module, monkeypatch):
    """A store made by the first release is updated when it is opened: its tasks are kept, and everything works."""
    with monkeypatch.context() as older:
        older.setattr(module, "_SCHEMA", module._SCHEMA[:1])
        old = await opened()
        await old.put([NewTask(id="waits", name="f", delay_us=10**12)])
    new = await opened()
    await work(new, "x")
    await work(old, "y")
    assert [True] == await new.put([NewTask(id="z", name="f")])
    [claimed] = (await new.claim(Claim(owner="a", count=1))).tasks
    assert [True] == await new.start([claimed.ref])
    task = NewTask(id="r@1", name="f", due_us=10**17)
    [placed] = await new.place("a", [Occurrence("r", task, "sometimes", "spec", 0)])
    assert Placement.PLACED is placed.placement
    assert ["r"] == [row.name for row in await new.repetitions()]
    assert await new.save_repetition("s", definition="d", queue="default", function="f", schedule="every 1m")
    assert [False, False] == [await new.pause_repetition(name, None) for name in "rs"]
    assert [True, True] == [row.is_paused for row in await new.repetitions()]
    unique = [NewTask(id=id, name="f", delay_us=10**12, unique=UniqueKey("u")) for id in ("u1", "u2")]
    assert [True, Duplicate("u1", False)] == await new.put(unique)
    await new.save([(claimed.ref, b"state")])
    kept = KeptTask("z", "default", "f", 1, 0, 0, 10**12)
    assert [True] == await old.finish([TaskOutcome(claimed.ref, End.RETRY)])
    [claimed] = (await new.claim(Claim(owner="a", count=1))).tasks
    assert b"state" == claimed.saved
    assert [True] == await new.finish([TaskOutcome(claimed.ref, End.DONE, kept=kept)])
    assert ["z"] == [row.id for row in await new.history()]
    assert await old.beat("a") is not None
    assert 2 == (await old.counts())[DurableState.SCHEDULED]


async def test_an_older_release_refuses_what_it_does_not_fit(opened, module, monkeypatch):
    """A release older than the tables allow is refused with a remedy, while the newer one continues."""
    await opened()
    with monkeypatch.context() as newer:
        add_step(newer, module, COLOUR, least=NEXT)
        new = await opened()
    text = rf"newer release has changed its tables \(schema {NEXT}, for processes that know {NEXT} or later; this one knows {NEXT - 1}\): update"
    with pytest.raises(StoreUnavailableError, match=text) as caught:
        await opened()
    assert caught.value.is_permanent
    await work(new, "x")


async def test_what_only_looks_changes_no_schema(opened, module, monkeypatch):
    """With ``create=False`` older tables are refused with a remedy, until a process has changed them."""
    old = await opened()
    await opened(create=False)
    add_step(monkeypatch, module, COLOUR, least=NEXT)
    with pytest.raises(
        StoreUnavailableError,
        match=rf"older release has made its tables \(schema {NEXT - 1}; this one needs {NEXT}\): start a process",
    ):
        await opened(create=False)
    with monkeypatch.context() as older:
        older.setattr(module, "_SCHEMA", module._SCHEMA[:-1])
        await opened()  # it fits the tables, which are still unchanged
    await opened()
    assert await old.counts() == await (await opened(create=False)).counts()


async def test_step_that_fails_changes_nothing(opened, module, monkeypatch):
    """A step that fails changes neither the tables nor the version, so the next attempt does it whole."""
    await opened()
    with monkeypatch.context() as newer:
        add_step(newer, module, COLOUR, "create index durable_colour on durable_tasks (no_such_column)")
        with pytest.raises(StoreUnavailableError, match="no_such_column"):
            await opened()
    add_step(monkeypatch, module, COLOUR)
    await work(await opened(), "x")


@pytest.mark.parametrize("name", ["sqlite_schema.sql", "postgres_schema.sql"])
def test_steps_of_a_schema_follow_each_other(name):
    """Versions of a schema's steps rise from 1, and no step requires a newer version than its own."""
    steps = read_schema(name)
    versions = [step.version for step in steps]
    assert 1 == versions[0]
    assert sorted(set(versions)) == versions
    assert all(1 <= step.least <= step.version and step.statements for step in steps)
    assert steps == lacking("store", steps, 0, 0)
    assert () == lacking("store", steps, steps[-1].version, 1)
