"""The pages that a browser gets: what they show, what they let users change, and what they refuse; in virtual time."""

import asyncio
import math
import os
import re
import socket

import httpx
import pytest
from fastapi import FastAPI

from ratelimited_executor import ExecutorManager, RateLimitedExecutor
from ratelimited_executor.dashboard import dashboard
from ratelimited_executor.dashboard.changes import OF_EXECUTORS
from ratelimited_executor.dashboard.views import SORTS
from ratelimited_executor.durable import DurableTasks, MemoryStore, current_task

SAME = {"Sec-Fetch-Site": "same-origin"}
EVIL = "<script>alert(1)</script>'\""


@pytest.fixture(autouse=True)
def _virtual(virtual_clock):
    """Run the executors and the requests for pages on one virtual loop."""


def client(app, **options):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, **options), base_url="http://service")


async def nothing(*_args):
    """Do nothing; tests schedule it."""


def text_of(page):
    """Return the text of a page, without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text))


# What is shown.


async def test_list_shows_how_each_executor_stands():
    """The list has each executor's state, rate and backlog, even if the dashboard is mounted in another app."""
    app = FastAPI()
    async with ExecutorManager() as manager:
        app.mount("/executors", dashboard(manager, title="Mine"))
        mail = manager.executor("mail", rate=10)
        manager.executor("paused", rate=1).pause()
        mail.schedule_many(nothing, range(1000))
        await asyncio.sleep(12.05)
        async with client(app) as web:
            page = await web.get("/executors/")
            assert (await web.get("/executors")).headers["location"] == "http://service/executors/"
        assert page.status_code == 200
        assert "<title>Mine</title>" in page.text
        assert re.search(r"mail open 10/s 10/s 10/s 8[78]\d 1m2[78]s 8[78]\d 0 (9.\d+|10) s 0", text_of(page)), text_of(
            page
        )
        assert "paused paused 1/s" in text_of(page)
        assert "2 of 2 executors" in text_of(page)
        mail.rate = math.inf


async def test_state_tells_of_recent_failures(handler, reports):
    """While tasks fail, the state says how many a second, in the colour of trouble; then how many did, for 15 minutes."""
    handler()

    async def fail(_):
        raise BufferError

    async with ExecutorManager() as manager:
        app = dashboard(manager)
        mail = manager.executor("mail", rate=10)
        mail.schedule_many(fail, range(200))
        await asyncio.sleep(15.05)
        async with client(app) as web:
            for path in ("/", "/executor?name=mail"):
                assert '<span class="badge bad">open; 10/s fail</span>' in (await web.get(path)).text
            await asyncio.sleep(20)
            for path in ("/", "/executor?name=mail"):
                assert '<span class="badge wait">open; 200 failed in 15 min</span>' in (await web.get(path)).text
            await asyncio.sleep(900)
            for path in ("/", "/executor?name=mail"):
                assert '<span class="badge good">open</span>' in (await web.get(path)).text


async def test_page_begins_with_failures_and_what_runs(handler, reports):
    """Both pages have the latest failures, escaped, before anything else, and the tasks that have run for longest."""
    handler()

    async def fail(item):
        raise ValueError(f"{EVIL} http://ann:secret@host/ {item}")

    async with ExecutorManager() as manager:
        app = dashboard(manager)
        mail = manager.executor("mail", rate=10, drain_timeout=0)
        mail.submit(asyncio.sleep, 100, name=EVIL, key="ann")
        mail.execute(asyncio.sleep, 100)
        mail.schedule_many(fail, [1] * 30, name="letter")
        await asyncio.sleep(12.05)
        async with client(app) as web:
            for path in ("/", "/executor?name=mail"):
                page = await web.get(path)
                text = text_of(page)
                assert EVIL not in page.text
                assert "secret" not in page.text
                assert re.search(r"ValueError &lt;script&gt;.* http://\*\*\*@host/ 1 30 times , last \d+ s ago", text)
                assert "fail (test_app.py:" in text
                assert page.text.index("Latest failures") < page.text.index("longest" if path == "/" else "Running now")
                assert re.search(r"12(\.\d)? s (mail , with 1 more )?ann sleep \(tasks.py:", text), text
            assert re.search(r"sleep 12(\.\d)? s - sleep \(tasks.py:", text), text
            assert "Show all" not in text


async def test_list_leads_with_trouble():
    """Executors that fail come first, then those that are held, and a state can be picked; sums stand above."""

    async def fail(_):
        raise BufferError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with ExecutorManager() as manager:
        app = dashboard(manager)
        for name in ("a-idle", "b-paused", "c-slow", "d-failing", "e-busy"):
            manager.executor(name, rate=10, drain_timeout=0)
        executors = manager.executors
        executors["b-paused"].pause()
        executors["c-slow"].penalize(100)
        executors["d-failing"].schedule_many(fail, range(1000))
        executors["e-busy"].schedule_many(nothing, range(1000))
        manager.executor("f-new")
        await asyncio.sleep(15.05)
        async with client(app) as web:
            page = await web.get("/")
            names = re.findall(r'<tr id="executor-([^"]+)"', page.text)
            assert names == ["d-failing", "c-slow", "b-paused", "e-busy", "a-idle", "f-new"]
            text = text_of(page)
            assert "Starts 20/s Failures 10/s" in text
            assert "All 6 1 failing 1 penalty 1 paused 3 open" in text
            assert page.text.count('<path class="line failed"') == 1
            picked = await web.get("/?state=failing")
            assert re.findall(r'<tr id="executor-([^"]+)"', picked.text) == ["d-failing"]
            assert "1 of 6 executors" in text_of(picked)
            assert "No executor is outage" in text_of(await web.get("/?state=outage"))
            assert (await web.get("/?state=odd")).status_code == 400
            executors["b-paused"].resume()
            assert "1 paused" not in text_of(await web.get("/"))


async def test_failures_are_trouble_for_a_while(handler, reports):
    """Failures of the first seconds, dead letters among them, order the list for 15 minutes; milliseconds of lateness never do."""
    handler()
    tasks = DurableTasks(MemoryStore())

    async def fail(_):
        raise BufferError

    @tasks.task
    async def pay(number: int):
        raise ValueError(number)

    def names_of(page):
        return re.findall(r'<tr id="executor-([^"]+)"', page.text)

    async with tasks, ExecutorManager() as manager:
        app = dashboard(manager)
        calm = [manager.executor(f"calm{number}", rate=20) for number in range(3)]
        for number, each in enumerate(calm):
            await asyncio.sleep(0.012)
            each.schedule_at_fixed_rate(asyncio.sleep, 0.01, period=1, initial_delay=0.013 * number)
        manager.executor("zfails", rate=20).schedule_many(fail, range(30))
        manager.executor("slow", rate=1, drain_timeout=0).schedule_many(nothing, range(10_000))
        late = ["slow", "calm0", "calm1", "calm2"]
        async with client(app) as web, tasks.running(manager.executor("durable", rate=20)):
            await tasks.put_many(pay.new(number) for number in range(2))
            await asyncio.sleep(20)
            page = await web.get("/")
            assert names_of(page) == ["zfails", "durable", *late]
            assert "zfails open; 30 failed in 15 min" in text_of(page)
            assert "durable open; 2 failed in 15 min" in text_of(page)
            assert "All 6 2 failed 4 open" in text_of(page)
            await asyncio.sleep(900)
            assert names_of(await web.get("/")) == [*late, "durable", "zfails"]


async def test_executor_whose_places_are_all_taken_is_trouble():
    """Where all places are taken, tasks are due and none starts, the state says so, and for how long; not while they start."""
    async with ExecutorManager() as manager:
        app = dashboard(manager)
        stuck = manager.executor("stuck", max_concurrency=2, drain_timeout=0)
        stuck.schedule_many(asyncio.sleep, [1000] * 7)
        manager.executor("healthy", max_concurrency=2, drain_timeout=0).schedule_many(asyncio.sleep, [4] * 100)
        manager.executor("idle", max_concurrency=2).schedule(nothing)
        async with client(app) as web:
            await asyncio.sleep(6)
            assert "full" not in text_of(await web.get("/"))
            await asyncio.sleep(60)
            text = text_of(await web.get("/"))
            assert re.search(r"stuck full: 2 of 2 running, the longest for 1m\d+s no limit 0/s 5 ∞ 5 2 ", text), text
            assert "∞" not in re.search(r"healthy open .* idle open", text)[0]
            assert "Backlog ∞ until the last due task starts" in text_of(await web.get("/executor?name=stuck"))
            assert text.index("stuck full") < text.index("healthy open") < text.index("idle open")
            assert "All 3 1 full 2 open" in text
            assert re.search(r"sleep\[0\] 1m\d+s stuck , with 1 more", text), text
            assert "full: 2 of 2 running" in text_of(await web.get("/executor?name=stuck"))


async def test_list_is_searched_sorted_and_paged():
    """The list has fifty executors on each page, and can be filtered by name and sorted; bad parameters are refused."""
    async with ExecutorManager() as manager:
        app = dashboard(manager)
        for number in range(250):
            executor = manager.executor(f"e{number:03}", rate=1)
            executor.schedule_many(nothing, range(number), delay=50)
        await asyncio.sleep(15)
        async with client(app) as web:
            first, last = await web.get("/"), await web.get("/?page=99")
            found = await web.get("/", params={"find": "E24"})
            most = await web.get("/?sort=waiting")
            by_column = {name: await web.get("/", params={"sort": name}) for name in SORTS}
            assert (await web.get("/?sort=length")).status_code == 400
            assert (await web.get("/?page=x")).status_code == 400
            assert (await web.get("/?page=-1")).status_code == 400
        names = re.findall(r">(e\d{3})<", by_column["name"].text)
        assert names == [f"e{number:03}" for number in range(50)]
        assert "Page 1 of 5" in first.text
        assert "Page 5 of 5" in last.text
        assert len(re.findall(r">(e\d{3})<", found.text)) == 10
        assert re.findall(r">(e\d{3})<", most.text)[:3] == ["e249", "e248", "e247"]
        linked = re.findall(r'<th scope="col"[^>]*><a href="./\?[^"]*sort=(\w+)', first.text)
        assert set(by_column) == set(linked)
        assert {200} == {page.status_code for page in by_column.values()}
        for executor in manager.executors.values():
            executor.rate = math.inf


async def test_page_of_an_executor_shows_what_waits():
    """The page shows batches with their progress, keys, limits, and tasks with due times; tasks can be filtered."""
    async with RateLimitedExecutor("mail", rate=(10, "1000/min"), max_concurrency=7) as executor:
        app = dashboard(executor)
        executor.schedule_many(nothing, range(500), name="letter")
        executor.schedule(nothing, delay=60, name="later", key="ann", priority=3)
        await asyncio.sleep(20.05)
        async with client(app) as web:
            page = await web.get("/executor?name=mail")
            found = await web.get("/executor?name=mail&find=ANN")
        text = text_of(page)
        assert "Running 0 of 7" in text
        assert re.search(r"letter 20\d 500 29\d 0", text)
        assert "permits 1000/min window" in text
        assert "ann 1" in text
        assert "Task Key Priority Due later ann 3 in 40 s" in text_of(found)  # a column of equal costs is left out
        assert "letter[" not in found.text
        assert page.text.count("<svg") == 4
        executor.rate = 10_000


async def test_page_of_a_task_explains_it():
    """The page says what holds the task, how many are ahead of it, and when its start is expected."""
    async with RateLimitedExecutor("mail", rate=1) as executor:
        app = dashboard(executor)
        handles = [executor.submit(nothing, name=f"task {number}", key="ann") for number in range(5)]
        later = executor.schedule(nothing, name="task 5", delay=60)
        await asyncio.sleep(1.5)
        async with client(app) as web:
            page = await web.get("/executor?name=mail")
            links = dict(re.findall(r'<a href="(task\?[^"]+)">(task \d)</a>', page.text))
            link = next(link for link, name in links.items() if name == "task 4").replace("&amp;", "&")
            shown = text_of(await web.get(f"/{link}"))
            assert "task 4 waiting" in shown
            assert "Held by order tasks ahead of it take the next permits" in shown
            assert re.search(r"Tasks ahead 2 .*Expected start in 2.5 s", shown)
            undue = next(link for link, name in links.items() if name == "task 5").replace("&amp;", "&")
            assert "Held by due time its due time has not come yet" in text_of(await web.get(f"/{undue}"))
            later.cancel()
            await handles[4]
            gone = await web.get(f"/{link}")
        assert gone.status_code == 404
        assert "is no longer waiting" in gone.text


async def test_names_are_escaped(handler, reports):
    """Names of executors, tasks, keys and pools are escaped, as they may have been typed by a user."""
    handler()
    async with ExecutorManager() as manager:
        app = dashboard(manager, title=EVIL)
        executor = manager.executor(EVIL, rate=1)
        manager.slots(EVIL, limit=1)
        executor.pause()
        executor.schedule_many(nothing, range(3), name=EVIL, key=EVIL)
        executor.submit(nothing, name=EVIL)
        async with client(app) as web:
            pages = [await web.get("/"), await web.get("/executor", params={"name": EVIL, "find": EVIL})]
            link = re.search(r'href="(task\?[^"]+)"', (await web.get("/executor", params={"name": EVIL})).text)[1]
            pages.append(await web.get("/" + link.replace("&amp;", "&")))
            pages.append(await web.get("/", params={"find": EVIL + "x"}))
            pages.append(await web.get("/", params={"sort": EVIL}))
        assert [page.status_code for page in pages] == [200, 200, 200, 200, 400]
        assert all("&lt;script&gt;" in page.text and "<script>" not in page.text for page in pages)
        executor.resume()
        executor.rate = math.inf


async def test_invisible_characters_are_shown_as_escapes():
    """Characters that a reader cannot see, or that reverse others, are escapes, while forms send back the name itself."""
    odd = "invoice\u202efdp\x1b[2J\u200b\ud800"
    async with ExecutorManager() as manager:
        app = dashboard(manager, title=odd, authorize=lambda request: True)
        executor = manager.executor(odd.removesuffix("\ud800"), rate=1)
        executor.pause()
        executor.schedule_many(nothing, range(3), name=odd, key=odd)
        executor.submit(nothing, name=odd)
        async with client(app) as web, manager.slots(odd.removesuffix("\ud800"), limit=1).hold(name=odd):
            pages = [await web.get("/"), await web.get("/executor", params={"name": executor.name, "find": "\u202e"})]
            link = re.search(r'href="(task\?[^"]+)"', pages[1].text)[1].replace("&amp;", "&")
            pages.append(await web.get(f"/{link}"))
            for page in pages:
                shown = re.sub(r'value="[^"]*"', "", page.text)
                assert (page.status_code, r"invoice\u202efdp\x1b[2J\u200b" in shown) == (200, True)
                assert re.findall("[^\n -~–…“”·∞]", shown) == []
            name = re.search(r'name="name" value="([^"]+)"', pages[1].text)[1]
            await change(web, action="resume", name=name)
        assert not executor.is_paused
        executor.rate = math.inf


class Nameless:
    """A key whose text cannot be had."""

    def __str__(self):
        raise BufferError


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"key": Nameless()}, "&lt;Nameless&gt;"),
        ({"key": "x" * 1_000_000}, "x…"),
        ({"name": "y" * 1_000_000}, "y…"),
        ({"key": "a\ud800"}, r"a\ud800"),
        ({"name": "a\ud800\x00\x1b[2J"}, r"a\ud800\x00\x1b[2J"),
        ({"cost": 10**400}, "∞"),
        ({"at": 1e18}, "1e+18 s after 1970"),
        ({"delay": 1e300}, "1e+300 s after 1970"),
    ],
)
async def test_odd_tasks_are_shown(options, shown):
    """A task with an odd name, key, cost or time is shown in few bytes, on its executor's page and on its own."""
    async with RateLimitedExecutor("mail", drain_timeout=0) as executor, client(dashboard(executor)) as web:
        handle = executor.schedule(nothing, **(options if "at" in options else {"delay": 60, **options}))
        listed = await web.get("/executor?name=mail")
        link = re.search(r'href="(task\?[^"]+)"', listed.text)[1].replace("&amp;", "&")
        explained = await web.get(f"/{link}")
        assert [page.status_code for page in (listed, explained)] == [200, 200]
        assert shown in listed.text + explained.text
        assert len(listed.content) < 20_000
        handle.cancel()


async def test_name_does_not_get_into_a_header():
    """A name in a redirect is encoded as part of the address, so that line breaks add no header."""
    async with ExecutorManager() as manager:
        app = dashboard(manager, authorize=lambda request: True)
        odd = manager.executor("b\r\nSet-Cookie: x=1")
        async with client(app) as web:
            answer = await web.post("/change", data={"name": odd.name, "action": "pause"}, headers=SAME)
            assert answer.headers["location"] == "executor?name=b%0D%0ASet-Cookie%3A+x%3D1"
            assert (odd.is_paused, "set-cookie" in answer.headers) == (True, False)


async def test_pages_of_very_many_tasks_stay_small():
    """The page lists only the oldest batches, a link finds its task, and figures that take long are left out."""
    async with RateLimitedExecutor("mail", rate=1, drain_timeout=0) as executor:
        app = dashboard(executor)
        handles = [executor.submit(nothing, name=f"task {n}", cost=2) for n in range(5000)]
        batches = [executor.schedule_many(nothing, range(3), name=f"batch {n}") for n in range(200)]
        late = executor.schedule(nothing, name="late", delay=50, cost=2)
        await asyncio.sleep(1.5)
        async with client(app) as web:
            page = await web.get("/executor?name=mail")
            assert "the oldest 10 of 200" in page.text
            assert len(re.findall("batch \\d+<", page.text)) == 10
            assert 'href="executor?name=mail&amp;show=batches#batches">Show 50 of 200<' in page.text
            every = await web.get("/executor?name=mail&show=batches")
            assert len(re.findall("batch \\d+<", every.text)) == 50
            assert (await web.get("/executor?name=mail&show=all")).status_code == 400
            assert re.search("Backlog - ", text_of(page))
            link = re.search(r'<a href="(task\?[^"]+)">task 9</a>', page.text)[1].replace("&amp;", "&")
            shown = text_of(await web.get(f"/{link}"))
            assert "Held by order" in shown
            assert re.search(
                r"Tasks ahead at most 5,59\d .*Expected start unknown depends on the limits, and on the costs and keys of the tasks ahead",
                shown,
            )
            for handle in handles[10:]:
                handle.cancel()
            shown = text_of(await web.get(f"/{link}"))
            assert "Held by order" in shown
            assert re.search(r"Tasks ahead at most 60\d .*Expected start unknown", shown)
            for batch in batches:
                batch.cancel()
            assert re.search(r"Tasks ahead 8 .*Expected start in 1\d.*s", text_of(await web.get(f"/{link}")))
        for each in (*batches, late):
            each.cancel()


async def test_task_behind_very_many_is_explained_by_bounds():
    """What holds the task is exact; its position and its start are upper bounds, and the page says so."""
    async with RateLimitedExecutor("mail", rate=10, drain_timeout=0) as executor:
        app = dashboard(executor)
        urgent = executor.submit(nothing, name="urgent", priority=1)
        batch = executor.schedule_many(nothing, range(6000))
        handles = [executor.submit(nothing, name=f"task {n}", priority=n + 2) for n in range(20)]
        await asyncio.sleep(1.55)
        async with client(app) as web:
            page = await web.get("/executor?name=mail")
            link = re.search(r'<a href="(task\?[^"]+)">urgent</a>', page.text)[1].replace("&amp;", "&")
            shown = text_of(await web.get(f"/{link}"))
            assert re.search(r"Held by order .*Tasks ahead at most 6,00\d", shown), shown
            assert re.search(r"Expected start within 10m.* by 20\d\d-.* at the latest, unless more important", shown)
            executor.pause()
            assert "Held by pause" in (shown := text_of(await web.get(f"/{link}")))
            assert "Expected start unknown cannot be predicted" in shown
            executor.resume()
            batch.cancel()
            shown = text_of(await web.get(f"/{link}"))
            assert re.search(r"Tasks ahead \d start before this one Expected start in", shown), shown
        for handle in (urgent, *handles):
            handle.cancel()


async def test_what_is_not_there_is_said_to_be_so():
    """An unknown name, and an executor that has not started, gets a page with an alert and status 404."""
    manager = ExecutorManager()
    manager.executor("new", rate="5/min")
    async with client(dashboard(manager)) as web:
        page = await web.get("/")
        assert "new not started 5/min" in text_of(page)
        for path in ("/executor?name=mail", "/executor?name=new", "/executor", "/task?name=mail&id=1", "/store?name=x"):
            page = await web.get(path)
            assert page.status_code == 404
            assert 'role="alert"' in page.text
        assert (await web.get("/nowhere")).status_code == 404
        assert (await web.get("/static/page.js")).headers["content-type"].startswith("text/javascript")
    async with manager:
        pass


async def test_pools_of_slots_show_their_holders():
    """A pool is listed with its holders and the seconds for which they have held their slots."""
    async with ExecutorManager() as manager:
        app = dashboard(manager)
        pool = manager.slots("gpu", limit=1)
        async with pool.hold(name="training"):
            await asyncio.sleep(5)
            async with client(app) as web:
                assert "gpu 1 1 0 training (5 s)" in text_of(await web.get("/"))


async def test_headers_are_strict_on_every_answer():
    """Files, redirects, refusals and failures have the same strict headers as the pages."""

    def fail(request):
        raise BufferError

    async with RateLimitedExecutor("mail") as executor:
        app, failing = dashboard(executor, authorize=lambda request: True), dashboard(executor, authorize_view=fail)
        async with client(app) as web, client(failing, raise_app_exceptions=False) as broken:
            answers = [
                *[await web.get(path) for path in ("/", "/executor?name=mail", "/executor?name=x", "/no", "/change")],
                *[await web.get(path) for path in ("/static/page.js", "/static/no", "/static", "/executor/")],
                await web.options("/"),
                await web.post("/change", data={"name": "mail", "action": "pause"}, headers=SAME),
                await broken.get("/"),
            ]
            assert [answer.status_code for answer in answers] == [
                200, 200, 404, 404, 405, 200, 404, 307, 307, 405, 303, 500,
            ]  # fmt: skip
            for answer in answers:
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                assert answer.headers["cache-control"] == "no-store"
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert "The page could not be rendered" in answers[-1].text


async def test_nothing_beside_the_files_of_the_page_is_served():
    """No path leads to a file outside the folder of static files."""
    async with RateLimitedExecutor("mail") as executor, client(dashboard(executor)) as web:
        for path in ("..%2fapp.py", "%2e%2e/app.py", "..%5capp.py", "%2fetc%2fpasswd", "page.js%00"):
            assert (await web.get(f"/static/{path}")).status_code == 404


async def test_who_may_not_look_sees_nothing():
    """A refused visitor gets status 403 and no data, whether the check is a function or a coroutine function."""

    async def is_admin(request):
        await asyncio.sleep(0)
        return request.headers.get("x-user") == "admin"

    async with RateLimitedExecutor("mail") as executor, client(dashboard(executor, authorize_view=is_admin)) as web:
        for path in ("/", "/executor?name=mail"):
            refused = await web.get(path)
            assert refused.status_code == 403
            assert "mail" not in refused.text
            assert f"process {os.getpid()}" not in refused.text
            assert (await web.get(path, headers={"X-User": "admin"})).status_code == 200
        assert (await web.post("/change", data={}, headers=SAME)).status_code == 403


@pytest.mark.parametrize("answer", [None, 1, "yes", object()])
async def test_answer_that_is_no_bool_grants_nothing(answer):
    """An answer that is not a bool is an error and grants nothing, as a redirect to a login would count as True."""
    async with RateLimitedExecutor("mail", rate=1) as executor:
        for options in ({"authorize_view": lambda request: answer}, {"authorize": lambda request: answer}):
            async with client(dashboard(executor, **options), raise_app_exceptions=False) as web:
                failed = await web.get("/executor?name=mail")
                assert (500, False) == (failed.status_code, "mail" in failed.text)
                await change(web, 500, action="pause")
    assert not executor.is_paused


# What is changed.


async def change(web, status=303, headers=SAME, **form):
    answer = await web.post("/change", data={"name": "mail", **form}, headers=headers)
    assert answer.status_code == status, answer.text
    return answer


async def test_nothing_can_be_changed_unless_allowed():
    """Unless ``authorize`` grants it, the page has no controls, and requests for changes are refused."""
    async with RateLimitedExecutor("mail", rate=1) as executor:
        for authorize in (None, lambda request: False):
            async with client(dashboard(executor, authorize=authorize)) as web:
                page = await web.get("/executor?name=mail")
                assert "change" not in page.text
                await change(web, 403, action="pause")
        assert not executor.is_paused


async def test_function_of_three_is_asked_about_what_the_name_has():
    """With the name of an executor it is asked about changes of executors alone, also if a store has that name."""
    asked = []

    def authorize(request, action, name):
        asked.append((action, name))
        return True

    async with RateLimitedExecutor("mail", rate=1) as executor:
        async with client(dashboard(executor, authorize=authorize)) as web:
            assert 200 == (await web.get("/executor", params={"name": "mail"})).status_code
    assert [(action, "mail") for action in OF_EXECUTORS] == asked


async def test_request_of_another_site_changes_nothing():
    """A request from another site is refused, even if the user may make changes."""
    async with RateLimitedExecutor("mail", rate=1) as executor:
        async with client(dashboard(executor, authorize=lambda request: True)) as web:
            for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil"}):
                answer = await change(web, 403, headers=headers, action="pause")
                assert "did not come from this page" in answer.text
            assert not executor.is_paused
            await change(web, headers={"Origin": "http://service"}, action="pause")
            assert executor.is_paused
            assert (await web.get("/change")).status_code == 405


async def test_executor_is_paused_resumed_and_set():
    """After each change the browser is sent back to the executor's page; a bad rate is refused beside its field, as it was typed."""
    async with RateLimitedExecutor("mail", rate=1) as executor:
        async with client(dashboard(executor, authorize=lambda request: True)) as web:
            answer = await change(web, action="pause")
            assert answer.headers["location"] == "executor?name=mail"
            assert executor.is_paused
            assert "Resume" in (await web.get("/executor?name=mail")).text
            await change(web, action="resume")
            assert not executor.is_paused
            for text, expected in (("20", "20/s"), ("5/min", "5/min"), (" 7.5 ", "7.5/s"), ("inf", "inf/s")):
                await change(web, action="set-rate", rate=text)
                assert str(executor.rate) == expected
            for text in ("", "fast", "-1", "nan", "1e400", "9" * 400):
                answer = await change(web, 409, action="set-rate", rate=text)
                problem = re.search(r'role="alert" id="problem">([^<]+)<a href="executor\?name=mail">Back', answer.text)
                assert "rate" in problem[1]
                assert f'name="rate" value="{text}"' in answer.text
                assert 'aria-describedby="problem"' in answer.text
            assert str(executor.rate) == "inf/s"


async def test_rate_of_0_is_asked_about_and_shown_as_a_stop():
    """A rate of 0 is set only once it is confirmed; then the state says that the executor is stopped, ahead of those at rest."""
    async with ExecutorManager() as manager:
        manager.executor("a-calm", rate=1).schedule(nothing)
        mail = manager.executor("mail", rate=1, drain_timeout=0)
        mail.schedule_many(nothing, range(100))
        async with client(dashboard(manager, authorize=lambda request: True)) as web:
            for text in ("0", "0/s", "5/s, 0/min"):
                answer = await change(web, 409, action="set-rate", rate=text)
                assert "With a rate of 0, mail starts nothing until another rate is set." in text_of(answer)
                assert f'name="rate" value="{text}"' in answer.text
                assert (
                    '<button class="danger" name="confirmed" value="yes">Stop it all the same</button>' in answer.text
                )
                assert str(mail.rate) == "1/s"
            assert "Stop it" not in (await web.get("/executor?name=mail")).text
            await asyncio.sleep(10)
            assert "All 2 2 open" in text_of(await web.get("/"))
            await change(web, action="set-rate", rate="0", confirmed="yes")
            assert mail.rate.is_zero
            await change(web, action="set-rate", rate="0")  # nothing that would have to be confirmed
            page = await web.get("/")
            assert "All 2 1 stopped 1 open" in text_of(page)
            assert re.search(r'<span class="badge bad">stopped: its rate is 0, \d+ due</span>', page.text)
            assert page.text.index('id="executor-mail"') < page.text.index('id="executor-a-calm"')
            await change(web, action="set-rate", rate="5/s")
            assert "All 2 2 open" in text_of(await web.get("/"))


async def by_form(request):
    return (await request.form())["action"] == "pause"


async def by_body(request):
    return b"action=pause" in await request.body()


async def by_stream(request):
    return b"action=pause" in b"".join([part async for part in request.stream()])


@pytest.mark.parametrize("first", [by_form, by_body, by_stream])
@pytest.mark.parametrize("second", [by_form, by_body, by_stream])
async def test_form_can_be_read_by_all_who_decide(first, second):
    """Both functions may read the form of a change, in each way that Starlette has, and the page reads it after them."""

    async def looks(request):
        return request.method == "GET" or await first(request)

    async with RateLimitedExecutor("mail", rate=1) as executor:
        async with client(dashboard(executor, authorize_view=looks, authorize=second)) as web:
            await change(web, 403, action="resume")
            await change(web, action="pause")
            assert executor.is_paused
            executor.resume()


async def test_answer_to_a_form_does_not_refresh_itself():
    """A page whose address accepts forms only has neither the script nor the refresh that would fetch that address."""
    async with RateLimitedExecutor("mail", rate=1) as executor:
        async with client(dashboard(executor, authorize=lambda request: True)) as web:
            refused = [await change(web, 409, action="set-rate", rate="fast"), await change(web, 403, headers={})]
            for page in refused:
                assert ("page.js" in page.text, "refresh" in page.text) == (False, False)
            gone = await web.get("/executor?name=x")
            assert ("page.js" in gone.text, "refresh" in gone.text) == (True, True)


async def test_refused_change_leaves_a_line_in_the_log(caplog):
    """It names the action, the executor, the user, the address and the reason; many of one action within seconds leave one."""

    def authorize(request):
        request.state.user = "bob\n" + EVIL
        return False

    async with RateLimitedExecutor("mail", rate=1) as executor:
        async with client(dashboard(executor, authorize=authorize)) as web:
            for number in range(5):
                await change(web, 403, action="pause", name=f"mail\u202e{number}")
            await change(web, 403, action="set-rate", rate="0")
            await change(web, 403, headers={"Origin": "http://evil"}, action="resume")
            await change(web, 403, headers={"Origin": "http://evil"}, action="shout %s")
    records = [record for record in caplog.records if record.name == "ratelimited_executor.dashboard"]
    assert {record.levelname for record in records} == {"WARNING"}
    texts = [record.getMessage() for record in records]
    by, why = f"by bob\\n{EVIL} at 127.0.0.1", "You are not allowed to make this change."
    assert texts[:2] == [
        f"live page: mail\\u202e0: pause refused, {by}: {why}",
        f"live page: mail: set-rate refused, {by}: {why}",
    ]
    assert [text[:55] for text in texts[2:]] == [
        "live page: mail: resume refused, by an unknown user at ",
        "live page: mail: unknown refused, by an unknown user at",
    ]
    assert all("did not come from this page" in text for text in texts[2:])


def records_of(caplog):
    """Return the changes in the log, as text and as fields."""
    records = [record for record in caplog.records if record.name == "ratelimited_executor.dashboard"]
    records = [record for record in records if record.levelname != "WARNING"]  # of what was refused
    assert all(record.levelname == "INFO" for record in records)
    return [(record.getMessage(), record.change) for record in records]


async def test_each_change_leaves_a_line_in_the_log(caplog):
    """The line has the executor, what has changed, from what to what, and by whom; a refused change leaves none."""
    caplog.set_level("INFO", "ratelimited_executor")

    def is_ann(request):
        request.state.user = "ann\n"
        return True

    async with RateLimitedExecutor("mail\x1b", rate=5) as executor:
        handle = executor.schedule(nothing, delay=60, name="one")
        batch = executor.schedule_many(nothing, range(1000), name="many", delay=60)
        async with client(dashboard(executor, authorize=is_ann)) as web:
            page = (await web.get("/executor", params={"name": executor.name})).text
            task_id = re.search(r'href="task\?[^"]*id=([^"]+)">one', page)[1].replace("%2B", "+")
            batch_id = re.search(r'name="id" value="([0-9a-f]+)"', page)[1]
            await change(web, 409, action="set-rate", rate="fast", name=executor.name)
            await change(web, 403, action="pause", name=executor.name, headers={})
            for form in (
                {"action": "set-rate", "rate": "7"},
                {"action": "pause"},
                {"action": "resume"},
                {"action": "cancel-task", "id": task_id},
                {"action": "cancel-batch", "id": batch_id},
            ):
                await change(web, name=executor.name, **form)
    lines = [
        "rate: 5/s -> 7/s",
        "state: open -> paused",
        "state: paused -> open",
        "task one: waiting -> cancelled",
        "batch many: 1,000 open -> cancelled",
    ]
    found = records_of(caplog)
    assert [text for text, _ in found] == [rf"live page: mail\x1b: {line}, by ann\n at 127.0.0.1" for line in lines]
    assert found[0][1] == {
        "action": "set-rate", "name": "mail\x1b", "what": "rate", "old": "5/s", "new": "7/s", "user": "ann\n",
        "client": "127.0.0.1",
    }  # fmt: skip
    assert (handle.cancelled(), batch.done()) == (True, True)


async def test_each_change_is_told_to_the_program(caplog, handler, reports):
    """``on_change`` gets each change after it was made, may be async, and cannot undo it by an error; pages show the last."""
    handler()
    told = []

    async def tell(change):
        told.append(change)
        raise BufferError

    async with ExecutorManager() as manager:
        manager.executor("payments")
        mail = manager.executor("mail", rate=5)
        async with client(dashboard(manager, authorize=lambda request: True, on_change=tell)) as web:
            assert "Changes on this page" not in (await web.get("/executor?name=mail")).text
            await change(web, action="set-rate", rate="7")
            await change(web, 409, action="set-rate", rate="fast")
            assert str(mail.rate) == "7/s"
            for path, is_shown in (("/", True), ("/executor?name=mail", True), ("/executor?name=payments", False)):
                assert ("5/s → 7/s by an unknown user" in text_of(await web.get(path))) is is_shown
    assert [(each.action, each.name, each.what, each.old, each.new) for each in told] == [
        ("set-rate", "mail", "rate", "5/s", "7/s")
    ]
    assert "exception in on_change of the live page" in reports[0]["message"]


async def test_permission_may_depend_on_action_and_executor():
    """A function of three arguments decides about each change; the page has the controls that it allows, and no others."""

    def may(request, action, name):
        return action in ("pause", "resume") and name != "payments"

    async with ExecutorManager() as manager:
        mail, payments = manager.executor("mail", rate=5), manager.executor("payments", rate=5)
        async with client(dashboard(manager, authorize=may)) as web:
            page = await web.get("/executor?name=mail")
            assert ("Pause" in page.text, "Set rate" in page.text) == (True, False)
            assert "change" not in (await web.get("/executor?name=payments")).text
            await change(web, 403, action="pause", name="payments")
            await change(web, 403, action="set-rate", rate="9")
            await change(web, action="pause")
        assert (mail.is_paused, payments.is_paused, str(mail.rate)) == (True, False, "5/s")


async def test_page_names_its_process_and_changes_no_other():
    """Each page names the process; a change from the page of another process is refused, unless it is for all of them."""
    own = f"{socket.gethostname()}, process {os.getpid()}"
    async with RateLimitedExecutor("mail", rate=1) as executor:
        async with client(dashboard(executor, authorize=lambda request: True)) as web:
            for path in ("/", "/executor?name=mail", "/executor?name=x"):
                assert own in text_of(await web.get(path))
            page = await web.get("/executor?name=mail")
            process = re.search(r'name="process" value="([^"]+)"', page.text)[1]
            for action in ("pause", "resume", "set-rate", "cancel-task", "cancel-batch"):
                refused = await change(web, 409, action=action, rate="7", process="elsewhere, process 1")
                assert f"the page showed elsewhere, process 1, but {process} has answered" in text_of(refused)
            assert (executor.is_paused, str(executor.rate)) == (False, "1/s")
            await change(web, action="pause", process=process)
            assert executor.is_paused


async def test_bad_requests_change_nothing():
    """A bad request changes nothing, and its status or text says why."""
    async with RateLimitedExecutor("mail", rate=(1, "5/min")) as executor:
        async with client(dashboard(executor, authorize=lambda request: True)) as web:
            assert "several rates" in (await change(web, 409, action="set-rate", rate="1")).text
            await change(web, 400, action="explode")
            await change(web, 400)
            await change(web, 404, action="pause", name="x")
            await change(web, 409, action="cancel-task", id="1-2")
            await change(web, 409, action="cancel-batch", id="1")
            await change(web, 413, action="pause", more="x" * 20_000)
            answer = await web.post("/change", content=b"\xff\xfe=%", headers=SAME)
            assert answer.status_code == 400
        assert not executor.is_paused


async def test_task_and_batch_are_cancelled():
    """A task and a batch are cancelled by the ids on their pages, and only once."""
    async with RateLimitedExecutor("mail", rate=1) as executor:
        async with client(dashboard(executor, authorize=lambda request: True)) as web:
            handle = executor.schedule(nothing, delay=60, name="one")
            batch = executor.schedule_many(nothing, range(100), name="many")
            page = await web.get("/executor?name=mail&find=one")
            task_id = re.search(r'href="task\?name=mail&amp;id=([^"]+)">one', page.text)[1].replace("%2B", "+")
            batch_id = re.search(r'name="id" value="([0-9a-f]+)"', page.text)[1]
            await change(web, action="cancel-task", id=task_id)
            assert handle.cancelled()
            await change(web, action="cancel-batch", id=batch_id)
            assert batch.done()
            await change(web, 409, action="cancel-task", id=task_id)
            await change(web, 409, action="cancel-batch", id=batch_id)


# Stores.


async def test_dead_letters_are_shown_put_back_and_discarded(handler, reports, caplog):
    """A user who may make changes can put a dead letter back, once, or discard it; its error is escaped."""
    handler()
    store = MemoryStore()
    tasks = DurableTasks(store)

    @tasks.task
    async def pay(amount: int) -> None:
        raise BufferError(f"no money for {amount} {EVIL}")

    async with tasks, RateLimitedExecutor("mail") as executor:
        app = dashboard(executor, authorize=lambda request: True, stores={"payments": store})
        await pay.put(7)
        async with tasks.running(executor):
            await asyncio.sleep(1)
        async with client(app) as web:
            assert "payments 1 dead" in text_of(await web.get("/"))
            page = await web.get("/store?name=payments")
            assert "no money for 7 &lt;script&gt;" in page.text
            row_id = re.search(r'name="id" value="([^"]+)"', page.text)[1]
            caplog.set_level("INFO", "ratelimited_executor")
            await change(web, action="requeue", name="payments", id=row_id)
            assert [text for text, _ in records_of(caplog)] == [
                f"live page: payments: task {row_id}: dead -> ready, by an unknown user at 127.0.0.1"
            ]
            assert "payments 1 ready" in text_of(await web.get("/"))
            await change(web, 409, action="requeue", name="payments", id=row_id)
            await change(web, 409, action="discard", name="payments", id=row_id)
            assert "payments 1 ready" in text_of(await web.get("/"))
            async with tasks.running(executor):
                await asyncio.sleep(1)
            await change(web, action="discard", name="payments", id=row_id)
            assert "payments none" in text_of(await web.get("/"))
            await change(web, 409, action="discard", name="payments", id=row_id)


async def test_dead_letter_shows_its_message_first_and_its_arguments_to_who_may_requeue(handler, reports):
    """The class and the message come first, without secrets of URLs; arguments are for those who decide what to do."""
    handler()
    store = MemoryStore()
    tasks = DurableTasks(store)

    @tasks.task
    async def pay(card: str) -> None:
        raise ConnectionError("no answer from https://ann:secret@bank.example/ within 2 s")

    async with tasks, RateLimitedExecutor("mail") as executor:
        await tasks.put_many(pay.new("4111 http://h/?key=secret", lane=f"lane {n % 11}") for n in range(23))
        async with tasks.running(executor):
            await asyncio.sleep(5)
        seen_by = {}
        for name, authorize in {"operator": lambda request: True, "reader": lambda request: False}.items():
            async with client(dashboard(executor, authorize=authorize, stores={"payments": store})) as web:
                seen_by[name] = await web.get("/store?name=payments")
                every = await web.get("/store?name=payments&show=dead")
                assert len(re.findall('<li id="dead-', every.text)) == 11
    page = seen_by["operator"]
    assert "ConnectionError no answer from https://***@bank.example/ within 2 s pay, 1 attempt" in text_of(
        page
    ).replace(" ,", ",")
    assert "secret" not in page.text
    assert len(re.findall('<li id="dead-', page.text)) == 10
    assert "Show all 11" in page.text
    assert ("4111" in page.text, "4111" in seen_by["reader"].text) == (True, False)
    assert "Requeue" not in seen_by["reader"].text


async def test_ended_tasks_and_saved_states_are_shown(handler):
    """The page of a store lists what has ended, with its duration and its result, and the state of a dead letter, escaped."""
    handler()
    store = MemoryStore()
    tasks = DurableTasks(store)

    @tasks.task(keep="1h", keep_result=True)
    async def fetch(what):
        current_task().save(EVIL)
        await asyncio.sleep(2)
        if what == "bad":
            raise ValueError(what)
        return object() if what == "odd" else what

    async with tasks, RateLimitedExecutor("mail") as executor, client(dashboard(executor, stores={"x": store})) as web:
        assert "Ended tasks" not in text_of(await web.get("/store?name=x"))
        for what in ("odd", EVIL, "bad"):
            await fetch.put(what, id=f"id {what}")
        async with tasks.running(executor):
            await asyncio.sleep(3)
        page = await web.get("/store?name=x")
        text = text_of(page)
    assert EVIL not in page.text
    assert "fetch done 0 2 s" in text
    assert "not kept the result cannot be encoded" in text
    assert "Saved state" in text


async def test_repetitions_are_shown_and_changed(handler, caplog):
    """A user who may make changes can pause, resume, skip, run and remove a repetition, each where there is one."""
    handler()
    store = MemoryStore()
    tasks, ran = DurableTasks(store), []

    @tasks.task
    async def report() -> None:
        ran.append(1)

    async with tasks, RateLimitedExecutor("mail") as executor, tasks.running(executor):
        app = dashboard(executor, authorize=lambda request: True, stores={"reports": store})
        name = f"of {EVIL}"
        await tasks.save_repetition(report, cron="0 9 1 1 *", name=name)
        await asyncio.sleep(0.1)
        async with client(app) as web:
            page = await web.get("/store?name=reports")
            assert "<script>" not in page.text.replace("<script src", "")
            text = text_of(page)
            assert "report 0 9 1 1 * (UTC)" in text
            assert "09:00:00 UTC saved" in text
            assert "Skip the next" in text
            caplog.set_level("INFO", "ratelimited_executor")
            for action, after in (
                ("run", "09:00:00 UTC saved"), ("skip", ""), ("pause", "- saved; paused"), ("resume", "09:00:00 UTC saved"),
            ):  # fmt: skip
                await change(web, action=f"{action}-repetition", name="reports", id=name)
                await asyncio.sleep(0.1)
                assert after in text_of(await web.get("/store?name=reports"))
            assert [1] == ran
            await change(web, 409, action="resume-repetition", name="reports", id=name)
            await change(web, action="remove-repetition", name="reports", id=name)
            await change(web, 409, action="run-repetition", name="reports", id=name)
            assert "Repetitions" not in text_of(await web.get("/store?name=reports"))
            assert "as shown -> run now, by an unknown user" in records_of(caplog)[0][0]
        async with client(dashboard(executor, stores={"reports": store})) as web:
            await tasks.save_repetition(report, period=60)
            assert "Run now" not in text_of(await web.get("/store?name=reports"))


async def test_store_that_does_not_answer_does_not_hold_the_page():
    """Stores that hang or fail delay the page by 2 s in all, and their errors are shown."""

    class Hanging(MemoryStore):
        async def counts(self):
            await asyncio.sleep(3600)

    class Failing(MemoryStore):
        async def counts(self):
            raise OSError("no disk")

    stores = {**{f"hanging {number}": Hanging() for number in range(10)}, "failing": Failing()}
    async with RateLimitedExecutor("mail") as executor, client(dashboard(executor, stores=stores)) as web:
        before = asyncio.get_running_loop().time()
        page = await web.get("/")
        assert asyncio.get_running_loop().time() - before == 2
        assert page.text.count("did not answer within 2 s") == 20  # first of all, and in the list
        assert "no disk" in page.text
        page = await web.get("/store", params={"name": "hanging 0"})
        assert (page.status_code, "did not answer" in page.text) == (200, True)


# Arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 3}, "target must be"),
        ({"authorize": True}, "authorize must be a function"),
        ({"authorize_view": "me"}, "authorize_view must be a function"),
        ({"on_change": 3}, "on_change must be a function of a change"),
        ({"title": None}, "title must be a str"),
        ({"stores": {"x": 3}}, "stores must map names to stores"),
    ],
)
async def test_bad_arguments_are_refused(options, message):
    """A bad argument raises a TypeError in the call itself."""
    target = options.pop("target", ExecutorManager())
    with pytest.raises(TypeError, match=message):
        dashboard(target, **options)
