"""The how-tos on transactions and operation: their programs run on a real server, and their grants suffice."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

import psycopg

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor.durable import DurableState, DurableTasks, PostgresStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.testing import run_virtual

HOWTO = Path(__file__).parents[3] / "docs" / "howto"
TEXT = (HOWTO / "put-in-a-transaction.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", TEXT, re.DOTALL | re.MULTILINE)
[RIGHTS] = re.findall(
    r"^```sql\n(.*?)^```$", (HOWTO / "operate-durable-tasks.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(("code", "output"), BLOCKS, ids=["psycopg", "asyncpg", "sqlalchemy", "sqlite", "blocking"])
def test_program_of_the_page_prints_what_it_says(code, output, database, tmp_path, monkeypatch, capsys):
    """The programs of the page print what it shows, on a server of the test, or with SQLite in virtual time."""
    monkeypatch.chdir(tmp_path)
    if "SQLiteStore" in code:
        monkeypatch.setattr(asyncio, "run", run_virtual)

    exec(compile(code.replace("postgresql://localhost/shop", database.url), str(HOWTO), "exec"), {})

    assert output == capsys.readouterr().out


async def test_rights_of_the_page_are_enough(database):
    """The page's grants suffice to put, run, fail, bury, requeue, cancel and list tasks; without them opening fails."""
    url = database.url.replace("//postgres:", "//shop:")
    assert url != database.url
    async with DurableTasks(PostgresStore(database.url)):
        pass  # the owner creates the tables
    database.connection.execute("drop role if exists shop")
    database.connection.execute("create role shop login")
    tasks = DurableTasks(PostgresStore(url))
    ran = []
    note = tasks.task(name="note")(ran.append)
    fail = tasks.task(name="fail", retry=Retry(2, base=0.01, on=ZeroDivisionError))(lambda: 1 / 0)
    try:
        with pytest.raises(StoreUnavailableError, match="permission denied"):
            await tasks.__aenter__()
        database.connection.execute(RIGHTS)
        async with RateLimitedExecutor("shop") as executor, tasks.running(executor):
            await note.put("a", lane="l", id="named")
            await note.put("late", expires=0.01, delay=0.05)
            await fail.put(id="bad", lane="l")
            async with asyncio.timeout(60):
                while not await tasks.rows(DurableState.DEAD):
                    await asyncio.sleep(0.05)
            assert 1 == await tasks.requeue("bad")
            assert 1 == await tasks.cancel("bad")
            await tasks.lanes()
        assert "a" in ran
    finally:
        database.connection.execute("drop owned by shop")
        database.connection.execute("drop role shop")
