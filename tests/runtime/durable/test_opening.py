"""Opening a store that is not there yet: it is tried again for a while, and the last error is raised."""

import asyncio
import threading

import pytest

from ratelimited_executor._runtime.durable import sync_puts
from ratelimited_executor.durable import DurableTasks, MemoryStore, SQLiteStore
from ratelimited_executor.exceptions import StoreUnavailableError

from ...helpers import now, skip_without_apsw, until_async


class LateStore(MemoryStore):
    """A store that is available from a time on."""

    def __init__(self, at, **options):
        super().__init__()
        self._at, self._options, self.attempts = at, options, []

    async def open(self, clock):
        self.attempts.append(round(now(), 3))
        if now() < self._at:
            raise StoreUnavailableError("the server", f"it is starting ({len(self.attempts)})", **self._options)
        await super().open(clock)


@pytest.mark.usefixtures("virtual_clock")
async def test_store_that_comes_up_in_time_is_waited_for(caplog):
    """Attempts follow each other at growing distances, up to two seconds, and one warning says that it is waited for."""
    store = LateStore(at=now() + 6)
    begin = now()
    async with DurableTasks(store, open_timeout="10s") as tasks:
        assert {} == {state: count for state, count in (await tasks.counts()).items() if count}
    assert [0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1] == [round(each - begin, 3) for each in store.attempts]
    assert ["durable tasks: the server: it is starting (1); trying again for 10 s"] == caplog.messages


@pytest.mark.usefixtures("virtual_clock")
async def test_store_that_stays_away_raises_the_last_error():
    """The last attempt is at the end of the time; without one, the first attempt is the last."""
    begin = now()
    store = LateStore(at=now() + 60)
    with pytest.raises(StoreUnavailableError, match=r"it is starting \(6\)"):
        await DurableTasks(store, open_timeout=2).__aenter__()
    assert 2 == pytest.approx(now() - begin)
    with pytest.raises(StoreUnavailableError, match=r"it is starting \(7\)"):
        await DurableTasks(store).__aenter__()
    with pytest.raises(ValueError, match="open_timeout"):
        DurableTasks(store, open_timeout=-1)


@pytest.mark.usefixtures("virtual_clock")
async def test_store_that_refuses_for_good_is_not_waited_for():
    """An error that another attempt cannot mend is raised by the first one."""
    store = LateStore(at=now() + 6, is_permanent=True)
    with pytest.raises(StoreUnavailableError, match=r"it is starting \(1\)"):
        await DurableTasks(store, open_timeout="10s").__aenter__()


@pytest.mark.real_time("a thread of its own")
def test_puts_without_a_loop_wait_for_the_store_as_well(tmp_path, monkeypatch):
    """The first put_sync waits for its store, too."""
    skip_without_apsw()
    folder, attempt = tmp_path / "mounted", SQLiteStore.open

    async def late(store, clock):
        try:
            await attempt(store, clock)
        finally:
            folder.mkdir(exist_ok=True)

    monkeypatch.setattr(SQLiteStore, "open", late)
    tasks = DurableTasks(SQLiteStore(folder / "tasks.db"), open_timeout="1m")
    assert tasks.task(name="send")(print).put_sync(1).created
    assert asyncio.run(_count(tasks)) == 1


async def _count(tasks):
    async with tasks:
        return sum((await tasks.counts()).values())


@pytest.mark.real_time("several threads wait for a store that is away")
def test_threads_wait_for_a_store_together(tmp_path, monkeypatch):
    """Those that wait while another thread tries to open the store get its error, and do not try one after the other."""
    skip_without_apsw()
    attempts, waiting, errors = [], [], []
    plain = sync_puts._PuttingThread.put

    def waits(thread, *arguments):
        waiting.append(1)
        return plain(thread, *arguments)

    async def away(store, clock):
        attempts.append(1)
        await until_async(lambda: len(waiting) == 5)
        raise StoreUnavailableError(repr(store), "away")

    monkeypatch.setattr(sync_puts._PuttingThread, "put", waits)
    monkeypatch.setattr(SQLiteStore, "open", away)
    send = DurableTasks(SQLiteStore(tmp_path / "tasks.db")).task(name="send")(print)

    def put():
        with pytest.raises(StoreUnavailableError, match="away") as caught:
            send.put_sync(1)
        errors.append(caught.value)

    threads = [threading.Thread(target=put) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 5
    assert len(attempts) == 1


def test_tasks_that_could_not_be_opened_are_opened_on_another_loop(tmp_path):
    """After several openings at a time have failed, the tasks can be opened on the next event loop, as in another try."""
    skip_without_apsw()
    folder = tmp_path / "mounted"
    tasks = DurableTasks(SQLiteStore(folder / "tasks.db"))

    async def enter_all():
        return await asyncio.gather(*[_count(tasks) for _ in range(3)], return_exceptions=True)

    assert [StoreUnavailableError] * 3 == [type(each) for each in asyncio.run(enter_all())]
    folder.mkdir()
    assert [0] * 3 == asyncio.run(enter_all())
