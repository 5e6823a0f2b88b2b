"""The dashboard in a real Chromium: live, by keyboard, on a phone, in the dark, without scripts; without any error."""

import asyncio
import re
from random import Random
from types import SimpleNamespace

import pytest
from fastapi import FastAPI

from ratelimited_executor import ExecutorManager
from ratelimited_executor.dashboard import dashboard

from ..browser import pale_texts, until
from .served import Served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a browser may have to be installed first
    pytest.mark.real_time("a real server and a real browser"),
]

LONG = "a rather long name, such as hosts and tenants have, of an executor"


class Service(Served):
    """A server with a few executors."""

    async def _main(self):
        async with ExecutorManager() as manager:
            app = FastAPI()
            app.mount("/executors", dashboard(manager, authorize=lambda request: True))
            self.mail = manager.executor("mail", rate=20, max_concurrency=5, drain_timeout=0)
            manager.executor(LONG, rate="5/min", drain_timeout=0)
            self.mail.schedule_many(asyncio.sleep, [0.01] * 100_000, name="newsletter")
            self.codes = [self.mail.submit(asyncio.sleep, 0, name=f"code {n}", key=f"user {n}") for n in range(3)]
            await self._serve(app, "/executors/", lifespan="off")

    def call(self, method, *args):
        """Call a function on the loop of the executors, and return its result."""

        async def call():
            return method(*args)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(30)


@pytest.fixture(scope="module")
def service():
    """Run one server for all tests, each of which restores what it changes."""
    with Service() as running:
        yield running


@pytest.fixture
def visit(browser, service):
    """Return a function that opens a page; at the end no page may have logged an error or asked another host."""
    opened = []

    def go(path="", *, width=1280, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        seen = SimpleNamespace(page=page, problems=[], requests=[])
        page.on("console", lambda message: seen.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(service.url + path)
        opened.append(seen)
        return page

    yield go
    for seen in opened:
        assert [
            each for each in seen.problems if not re.search("status of (404|409)", each)
        ] == []  # two tests cause these
        assert all(url.startswith(service.url) for url in seen.requests)
        seen.page.close()


def waiting_of(page):
    """Return the number of waiting tasks from the figures on an executor's page."""
    text = page.locator(".figures div", has_text="tasks that have not started").locator("dd").first.inner_text()
    return int(text.replace(",", ""))


def test_figures_change_while_the_page_stays(visit):
    """Figures are updated without a reload: a mark on an element of the page is still there."""
    page = visit("executor?name=mail")
    page.evaluate("document.querySelector('main').isMarked = true")
    before = waiting_of(page)
    for _ in range(200):
        if waiting_of(page) < before:
            break
        page.wait_for_timeout(50)
    assert waiting_of(page) < before
    assert page.evaluate("document.querySelector('main').isMarked")
    assert page.locator("svg").count() == 4
    assert page.get_by_role("status").inner_text() == ""


def test_what_a_reader_does_is_left_alone(visit):
    """Typed text, the focus and opened parts stay as they are over several updates."""
    page = visit("executor?name=mail")
    page.get_by_role("textbox", name="Rate").fill("77/s")
    page.get_by_text("Cancel…").first.click()
    page.get_by_label("Name or key").focus()
    page.keyboard.type("news")
    page.wait_for_timeout(5000)
    page.keyboard.type("letter")
    assert page.get_by_label("Name or key").input_value() == "newsletter"
    assert page.get_by_role("textbox", name="Rate").input_value() == "77/s"
    assert page.get_by_role("button", name=re.compile(r"Cancel [\d,]+ tasks")).is_visible()


def tree(random, ids, depth=3):
    """Return random HTML in which each id occurs at most once, except one that may occur twice."""
    html = ""
    for _ in range(random.randrange(6)):
        if random.random() < 0.3:
            html += f"text {random.randrange(3)} "
            continue
        tag = random.choice(("div", "section", "span"))
        name = f' id="{ids.pop()}"' if ids and random.random() < 0.5 else ""
        kind = random.choice(("", ' class="a"', ' class="b" title="c"'))
        html += f"<{tag}{name}{kind}>{tree(random, ids, depth - 1) if depth else ''}</{tag}>"
    return html


def test_update_makes_a_page_the_other_and_keeps_what_has_an_id(visit):
    """An update turns each of 2,000 random pages into another one, and keeps children that have the same id."""
    pairs = []
    for seed in range(2000):
        random = Random(seed)
        pairs.append([tree(random, random.sample("abcdefghh", 9)) for _ in range(2)])
    differing = visit().evaluate(
        """(pairs) => pairs.filter((pair) => {
          const [old, fresh, expected] = [...pair, pair[1]].map(
            (html) => new DOMParser().parseFromString(html, "text/html").body);
          const before = new Map([...old.children].filter((each) => each.id).map((each) => [each.id + each.nodeName, each]));
          update(old, fresh);
          const isKept = (each) => !each.id || each.id === "h" || (before.get(each.id + each.nodeName) ?? each) === each;
          return !old.isEqualNode(expected) || ![...old.children].every(isKept);
        })""",
        pairs,
    )
    assert differing == []


def test_focus_follows_its_row(visit, service):
    """When the rows change their order, the focus stays on its link."""
    page = visit("?sort=waiting")
    page.get_by_role("link", name="mail").focus()
    hosts = service.call(lambda: service.mail.manager.executors[LONG])
    batch = service.call(lambda: hosts.schedule_many(asyncio.sleep, [0] * 1_000_000))
    until(page, "document.querySelector('tbody a').innerText.startsWith('a rather')")
    assert page.evaluate("document.activeElement.innerText") == "mail"
    service.call(batch.cancel)


def test_page_of_somebody_else_is_not_taken_over(browser, service):
    """A login in place of the page is not shown as an update; a redirect to another page takes the reader there."""
    page = browser.new_page()
    page.goto(service.url)
    login = "<main>Who are you?</main>"
    page.route(service.url, lambda route: route.fulfill(status=401, content_type="text/html", body=login))
    page.get_by_text("No reply from the server").wait_for(timeout=20_000)
    assert page.get_by_role("heading", name="Executors", exact=True).is_visible()
    page.unroute(service.url)
    page.route(
        service.url, lambda route: route.fulfill(status=302, headers={"location": f"{service.url}static/icon.svg"})
    )
    page.wait_for_url("**/static/icon.svg", timeout=20_000)
    page.close()


def test_controls_work_by_keyboard(visit, service):
    """Tab and Enter suffice to pause and to resume, and Enter to set a rate."""
    page = visit("executor?name=mail")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Pause"
    page.keyboard.press("Enter")
    page.wait_for_load_state()
    page.get_by_role("button", name="Resume").wait_for()
    assert service.mail.is_paused
    page.get_by_role("button", name="Resume").press("Enter")
    page.get_by_role("button", name="Pause").wait_for()
    assert not service.mail.is_paused
    page.get_by_role("textbox", name="Rate").fill("30/s")
    page.get_by_role("textbox", name="Rate").press("Enter")
    page.wait_for_load_state()
    assert str(service.mail.rate) == "30/s"


def test_refused_change_stays_as_it_is(visit):
    """The page that says why a change was refused still says so when other pages would have been updated."""
    page = visit("executor?name=mail")
    page.get_by_role("textbox", name="Rate").fill("fast")
    page.get_by_role("button", name="Set rate").click()
    page.get_by_role("alert").wait_for()
    page.wait_for_timeout(3000)
    assert "rate" in page.get_by_role("alert").inner_text()
    assert page.get_by_role("status").inner_text() == ""
    page.get_by_role("link", name="Back").click()
    page.get_by_role("textbox", name="Rate").wait_for()


def test_task_is_explained_and_cancelled(visit, service):
    """A task is found in the list, explained on its page, and cancelled there, which leads back to the list."""
    page = visit("executor?name=mail&find=code 1")
    page.get_by_role("link", name="code 1").click()
    assert page.get_by_role("heading", level=1).inner_text().startswith("code 1")
    assert "at most" in page.locator(".figures").inner_text()
    page.get_by_text("Cancel…").click()
    page.get_by_role("button", name="Cancel task").click()
    page.wait_for_url("**/executor?name=mail")
    assert service.call(service.codes[1].cancelled)


def test_executor_that_has_gone_is_told_in_place(visit, service):
    """An update of the page of an executor that has closed shows the error in its place."""
    executor = service.call(lambda: service.mail.manager.executor("short-lived"))
    page = visit("executor?name=short-lived")
    asyncio.run_coroutine_threadsafe(executor.aclose(), service.loop).result(30)
    page.get_by_role("alert").wait_for(timeout=20_000)
    assert "has closed" in page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "executor?name=mail"])
def test_pages_fit_a_phone_and_can_be_read(visit, path, scheme):
    """No page is wider than the screen, and every text has a contrast of 4.5 to 1 or more (WCAG 2.2, 1.4.3)."""
    page = visit(path, width=360, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert pale_texts(page) == []


def test_everything_has_a_name_for_a_screen_reader(visit):
    """Controls, plots, tables and bars have a label, each table has a caption, and each page one main heading."""
    for path in ("", "executor?name=mail"):
        page = visit(path)
        for role in ("button", "textbox", "searchbox", "combobox", "img", "table", "progressbar", "navigation", "link"):
            for found in page.get_by_role(role).all():
                label = found.evaluate(
                    "node => node.getAttribute('aria-label') || node.labels?.[0]?.innerText || node.caption?.innerText"
                    " || node.innerText"
                )
                assert label and label.strip(), (role, found.evaluate("node => node.outerHTML"))
        assert page.get_by_role("heading", level=1).count() == 1
        assert page.locator("table:not(:has(caption))").count() == 0


def test_page_works_without_a_script(browser, service):
    """Without scripts links and figures work, and the page has a ``noscript`` element, which reloads it."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(service.url)
    page.get_by_role("link", name="mail").click()
    assert waiting_of(page) > 1000
    assert page.locator("noscript").count() == 1
    context.close()


def test_lost_server_is_told(browser, service):
    """When the server does not reply, the page says so wherever it is scrolled to, and turns grey, until an update succeeds."""
    page = browser.new_page(viewport={"width": 800, "height": 300})
    page.goto(f"{service.url}executor?name=mail")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    filter_of = "getComputedStyle(document.querySelector('main')).filter"
    assert page.evaluate(filter_of) == "none"
    page.route("**/*", lambda route: route.abort())
    told = page.get_by_text("No reply from the server: this page is out of date.")
    told.wait_for(timeout=20_000)
    assert 0 <= told.bounding_box()["y"] < 300
    assert 0 <= page.get_by_text("as of 20").bounding_box()["y"] < 300
    assert page.evaluate(filter_of) == "grayscale(1)"
    page.unroute("**/*")
    until(page, "document.getElementById('connection').textContent === ''")
    assert page.evaluate(filter_of) == "none"
    page.close()


def test_server_that_hangs_is_told_before_the_request_is_given_up(browser, service):
    """A poll without an answer is told while it is waited for, and not only after ten seconds; its answer still counts."""
    page = browser.new_page()
    page.goto(f"{service.url}executor?name=mail")
    waiting = []
    page.route("**/executor?*", lambda route: waiting.append(route))
    page.get_by_text("No reply from the server: this page is out of date.").wait_for(timeout=9_500)
    assert len(waiting) == 1
    waiting[0].continue_()
    until(page, "document.getElementById('connection').textContent === ''")
    page.close()


def test_page_stays_with_its_process(visit, service):
    """Of several processes behind one address, only the one that the page shows updates it, until that one is gone."""
    page = visit()
    answers = []

    def answer_as_another(route):
        fresh = route.fetch()
        text = re.sub('data-process="[^"]+">[^<]* ·', 'data-process="other">other ·', fresh.text())
        answers.append(page.locator("#source").inner_text())
        route.fulfill(response=fresh, body=text)

    page.route(service.url, answer_as_another)
    page.get_by_text("other · as of").wait_for(timeout=60_000)
    assert len(answers) == 5
    assert all("process" in answer for answer in answers)
    assert page.get_by_role("status").inner_text() == ""
    page.unroute(service.url)
