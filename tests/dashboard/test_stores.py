"""Stores on the pages: trouble is named first, and dead letters with one error are put back together; in virtual time."""

import asyncio
import re
from html import unescape
from urllib.parse import urlencode

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._core.durable.tasks import NewTask
from ratelimited_executor.dashboard import dashboard
from ratelimited_executor.dashboard.stores import Stores
from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore

from .test_app import SAME, client, text_of


@pytest.fixture(autouse=True)
def _virtual(handler):
    """Run in virtual time, and keep the reports of failures."""


class NoMoneyError(Exception):
    """An error of the service's own, whose name is within that of no other."""


@pytest.fixture
async def store(reports):
    """A store with dead letters: four without money, one of them ahead of two others of its lane, and one without an answer."""
    store = MemoryStore()
    tasks = DurableTasks(store)

    @tasks.task
    async def pay(amount: int) -> None:
        if amount == 0:
            raise ConnectionError("no answer after a NoMoneyError") from NoMoneyError("before")
        raise NoMoneyError(f"no money for {amount}")

    async with tasks:
        async with RateLimitedExecutor("first", drain_timeout=0) as executor, tasks.running(executor):
            for amount in range(4):
                await pay.put(amount, id=f"pay {amount}")
                await asyncio.sleep(10)
            await tasks.put_many(pay.new(amount, id=f"pay {amount}", lane="<ann>") for amount in (4, 5, 6))
            await asyncio.sleep(10)
        yield store


@pytest.fixture
async def web(store):
    """The page of the store, on which everything may be changed."""
    async with RateLimitedExecutor("mail") as executor:
        executor.statistics()
        async with client(dashboard(executor, authorize=lambda request: True, stores={"shop": store})) as web:
            yield web


async def test_list_names_trouble_first(web):
    """The first page begins with dead letters and blocked lanes by name, each with a link to them."""
    page = await web.get("/")
    head = page.text[: page.text.index('id="figures"')]
    links = re.findall(r'<a class="bad" href="([^"]+)">([^<]+)</a>', head)
    assert links == [
        ("store?name=shop#dead", "5 dead letters in shop"),
        ("store?name=shop#lanes", "1 blocked lane: &lt;ann&gt;"),
    ]


async def test_list_without_trouble_names_none(store):
    """A store in which nothing is wrong is not mentioned at the top."""
    await store.cancel([row.id for row in await store.rows(limit=100)])
    async with RateLimitedExecutor("mail") as executor, client(dashboard(executor, stores={"shop": store})) as web:
        assert 'id="trouble"' not in (await web.get("/")).text


async def test_last_death_comes_first_and_a_lane_leads_to_its_head(web):
    """Dead letters are in order of their last attempts, with times as elsewhere; a blocked lane has a link to its head."""
    page = await web.get("/store?name=shop")
    assert re.findall('<li id="dead-([^"]+)"', page.text) == ["pay 4", "pay 3", "pay 2", "pay 1", "pay 0"]
    assert re.search(r"pay , 1 attempt · due \d+ s ago", text_of(page)), text_of(page)
    assert re.search(r'<th scope="row">&lt;ann&gt;</th>.*<a href="#dead-pay%204">pay 4</a>', page.text)


async def test_all_of_one_error_are_requeued_at_once(web, store):
    """One form puts back the dead letters whose error is of a class, and no other whose traceback has its name."""
    page = await web.get("/store?name=shop")
    kind = f"{__name__}.NoMoneyError"
    assert "Requeue all with NoMoneyError… Requeue 4 tasks" in text_of(page)
    assert "Requeue all with ConnectionError" not in text_of(page)
    form = {"action": "requeue", "name": "shop", "error": kind}
    sent = {**SAME, "Content-Type": "application/x-www-form-urlencoded"}
    for status in (303, 409):
        assert (await web.post("/change", content=urlencode(form), headers=sent)).status_code == status
    assert [row.id for row in await store.rows(DurableState.DEAD, limit=100)] == ["pay 0"]
    assert f"4 tasks with {kind}: dead → ready" in text_of(await web.get("/"))


@pytest.fixture
def slow(store, monkeypatch):
    """The same store, whose repairs take two tasks at a time, and two seconds for each such step."""
    monkeypatch.setattr("ratelimited_executor._runtime.durable.repairs._STEP", 2)
    requeue = store.requeue

    async def take_time(ids):
        await asyncio.sleep(2)
        return await requeue(ids)

    monkeypatch.setattr(store, "requeue", take_time)
    return store


async def post(web, **form):
    """Send a form, and return the answer."""
    sent = {**SAME, "Content-Type": "application/x-www-form-urlencoded"}
    return await web.post("/change", content=urlencode({"action": "requeue", "name": "shop", **form}), headers=sent)


KIND = f"{__name__}.NoMoneyError"


async def test_requeueing_of_many_goes_on_while_nobody_looks(web, slow):
    """What takes long is answered at once, shows how far it is, refuses another, and ends though no page is open."""
    assert (await post(web, error=KIND)).status_code == 303
    page = await web.get("/store?name=shop")
    assert "Looking for tasks with NoMoneyError. This goes on without this page. Stop" in text_of(page)
    assert "Requeue all with" not in text_of(page)
    await asyncio.sleep(2)
    page = await web.get("/store?name=shop")
    assert "Requeued 2 of 4 tasks with NoMoneyError." in text_of(page)
    assert '<progress max="4" value="2"' in page.text
    refused = await post(web, error="ConnectionError")
    assert (409, True) == (refused.status_code, f"Tasks with {KIND} are being requeued" in text_of(refused))
    await asyncio.sleep(10)
    assert ["pay 0"] == [row.id for row in await slow.rows(DurableState.DEAD)]
    text = text_of(await web.get("/store?name=shop"))
    assert "This goes on" not in text
    assert re.search(f"4 tasks with {KIND}: dead → ready .* all tasks with {KIND}: dead → being requeued", text), text


async def test_requeueing_of_many_can_be_stopped(web, slow):
    """Once stopped it ends after its step: the other tasks are still dead letters, and the change tells how many are not."""
    await post(web, error=KIND)
    assert (await post(web, stop="1", process="another process")).status_code == 409
    assert (await post(web, stop="1")).status_code == 303
    assert (await post(web, stop="1")).status_code == 409
    page = await web.get("/store?name=shop")
    assert "NoMoneyError, stopping." in text_of(page)
    await asyncio.sleep(10)
    assert 3 == len(await slow.rows(DurableState.DEAD))
    assert f"2 of 4 tasks with {KIND}: dead → ready, then stopped" in text_of(await web.get("/store?name=shop"))
    assert (await post(web, stop="1")).status_code == 409


async def test_requeueing_that_was_stopped_in_its_last_step_is_done(web, slow):
    """If no task is left when it is stopped, the change tells that all are ready, and nothing of a stop."""
    await post(web, error=KIND)
    while len(await slow.rows(DurableState.DEAD)) > 2:
        await asyncio.sleep(0.1)
    await post(web, stop="1")
    await asyncio.sleep(10)
    text = text_of(await web.get("/store?name=shop"))
    assert f"4 tasks with {KIND}: dead → ready" in text
    assert "then stopped" not in text


async def test_requeueing_tells_why_it_has_ended_too_early(web, slow, monkeypatch):
    """If the store fails in the middle, the change tells how many were requeued until then, and why not all."""
    await post(web, error=KIND)

    async def fail(ids):
        raise OSError("it is away")

    monkeypatch.setattr(slow, "find", fail)
    await asyncio.sleep(10)
    text = text_of(await web.get("/store?name=shop"))
    assert f"2 of 4 tasks with {KIND}: dead → ready, then: The store cannot be used: it is away" in text
    assert (await post(web, error="ConnectionError")).status_code == 503


async def test_of_very_many_dead_letters_the_last_are_read(web, monkeypatch):
    """Of more dead letters than fit on a page it shows those that were put last, and leads to the others."""
    monkeypatch.setattr("ratelimited_executor.dashboard.stores._DEAD_MAX", 3)
    page = await web.get("/store?name=shop&show=dead")
    assert re.findall('<li id="dead-([^"]+)"', page.text) == ["pay 4", "pay 3", "pay 2"]
    assert "The 3 that were put last, of 5" in text_of(page)
    assert "Requeue all with NoMoneyError… Requeue all" in text_of(page)  # and promises no number
    [older] = re.findall('<a href="([^"]+)">Show older ones</a>', page.text)
    page = await web.get(f"/{unescape(older)}")
    assert re.findall('<li id="dead-([^"]+)"', page.text) == ["pay 1", "pay 0"]
    assert "The next 2 of 5, the one that was due last first" in text_of(page)
    assert "older ones" not in page.text
    page = await web.get("/store?name=shop&show=dead&after=1")
    assert "No older dead letters." in text_of(page)
    assert (await web.get("/store?name=shop&after=x")).status_code == 400


async def test_errors_of_all_dead_letters_are_counted_on_demand(web, store, monkeypatch):
    """A link counts all classes once, however often the page polls, and each can be requeued; another link counts again."""
    monkeypatch.setattr("ratelimited_executor.dashboard.stores._DEAD_MAX", 3)
    read, rows = [], store.rows

    async def note(*args, **options):
        read.append(options)
        return await rows(*args, **options)

    monkeypatch.setattr(store, "rows", note)
    page = await web.get("/store?name=shop")
    assert "Requeue all with ConnectionError" not in text_of(page)
    [link] = re.findall('<a href="([^"]+)">Count all errors</a>', page.text)
    address = f"/{unescape(link)}"
    assert "Counting errors: 0 read." in text_of(await web.get(address))
    await asyncio.sleep(5)
    for _ in range(3):
        page = await web.get(address)
        assert "Errors of 5 dead letters, counted 5 s ago: NoMoneyError 4, ConnectionError 1." in text_of(page)
    assert [0, 0] == [options["body_max"] for options in read if options["limit"] > 100]
    assert "Requeue all with NoMoneyError (4)… Requeue all Requeue all with ConnectionError (1)…" in text_of(page)
    assert (await post(web, error="ConnectionError")).status_code == 303
    [link] = re.findall('<a href="([^"]+)">Count again</a>', page.text)
    await web.get(f"/{unescape(link)}")
    await asyncio.sleep(1)
    assert "Errors of 4 dead letters, counted 1 s ago: NoMoneyError 4." in text_of(await web.get(f"/{unescape(link)}"))


async def test_count_that_fails_tells_why(web, store, monkeypatch):
    """If the store fails while errors are counted, the page tells so, and can count again."""
    monkeypatch.setattr("ratelimited_executor.dashboard.stores._DEAD_MAX", 3)
    rows = store.rows

    async def fail(*args, **options):
        if options["limit"] > 100:
            raise OSError("no redis://:secret@host")
        return await rows(*args, **options)

    monkeypatch.setattr(store, "rows", fail)
    await web.get("/store?name=shop&errors=1")
    await asyncio.sleep(1)
    page = await web.get("/store?name=shop&errors=1")
    assert "The store cannot be used: no redis://***@host Count again" in text_of(page)
    assert "secret" not in page.text


async def test_requeueing_that_the_end_of_the_process_ends_is_told_as_such(web, slow):
    """If the store is closed in the middle, the change tells so, and how many tasks are left dead letters."""
    await post(web, error=KIND)
    await asyncio.sleep(2)
    await slow.aclose()
    await asyncio.sleep(10)
    text = text_of(await web.get("/"))
    assert f"2 of 4 tasks with {KIND}: dead → ready, then the process closed the store: 2 are left dead letters" in text


async def test_store_and_executor_of_one_name_have_changes_of_their_own(store):
    """A change of a store is not told on the page of an executor with its name, nor the other way round."""
    async with RateLimitedExecutor("shop") as executor:
        executor.statistics()
        async with client(dashboard(executor, authorize=lambda request: True, stores={"shop": store})) as web:
            await post(web, error="ConnectionError")
            await post(web, action="pause")
            pages = [text_of(await web.get(f"/{kind}?name=shop")) for kind in ("store", "executor")]
    told = [("dead → ready" in page, "open → paused" in page) for page in pages]
    assert told == [(True, False), (False, True)]


async def test_latency_is_shown_where_a_task_waits(web, store):
    """A due task that no process claims is told on both pages, and each queue if there are several."""
    assert "Latency 0 s" in text_of(await web.get("/store?name=shop"))
    assert "latency" not in text_of(await web.get("/"))
    await store.put([NewTask(id=queue, name="f", queue=queue) for queue in ("mail", "<sms>")])
    await asyncio.sleep(90)
    await store.put([NewTask(id="soon", name="f", delay_us=1_000_000)])
    await asyncio.sleep(3)
    assert "Latency 1m33s &lt;sms&gt; 1m33s, default 2 s, mail 1m33s" in text_of(await web.get("/store?name=shop"))
    assert "2 behind , 5 dead , latency 1m33s" in text_of(await web.get("/"))


async def test_many_blocked_lanes_are_counted():
    """A few lanes are named, and the others counted."""
    store = MemoryStore()
    tasks = DurableTasks(store)

    @tasks.task
    async def fail() -> None:
        raise NoMoneyError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with tasks, RateLimitedExecutor("first", drain_timeout=0) as executor, tasks.running(executor):
        await tasks.put_many(fail.new(lane=f"{lane}") for lane in range(5) for _ in range(2))
        await asyncio.sleep(10)
        [row] = await Stores({"shop": store}, lambda: 0.0).rows()
    assert row.blocked == "5 blocked lanes: 0, 1, 2, 2 more"
