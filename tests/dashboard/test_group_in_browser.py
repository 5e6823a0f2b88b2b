"""The page of a group in a real Chromium: its plots on a desktop and a phone, in a light and a dark scheme."""

import time

import pytest

from ..browser import pale_texts, until
from .pictures import Redis, limits, picture, pool
from .served import Served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a browser may have to be installed first
    pytest.mark.real_time("a real server and a real browser"),
]


class Service(Served):
    """A server of one group with a history of a quarter of an hour."""

    def __init__(self):
        self.redis = Redis(team=picture(shared=[limits()], pools=[pool("a rather long name of a pool")]))
        self.redis.clock = time.time
        super().__init__()

    async def _main(self):
        app = self.redis.app()
        recorder, now = app.state.recorder, time.time()
        for number in range(180):
            recorder._clock = lambda number=number: now - 900 + 5 * number
            self.redis.pictures["team"] = picture(
                shared=[limits(used=number % 100, active=1 + number % 4)],
                pools=[pool("a rather long name of a pool", held=number % 5, waiting=number % 3)],
            )
            await recorder.take()
        recorder._clock = time.time
        await self._serve(app, "/group?name=team")


@pytest.fixture(scope="module")
def service():
    """Run one server for all tests, each of which restores what it changes."""
    with Service() as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_plots_fit_the_screen_and_can_be_read(browser, service, width, scheme):
    """The page is as wide as the screen, each plot has a label for screen readers, and texts have enough contrast."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(service.url)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("svg").count() == 4
    for plot in page.locator("svg").all():
        assert " now, " in plot.get_attribute("aria-label")
        assert plot.bounding_box()["width"] > 0.25 * width
        assert len(plot.locator("path.line").first.get_attribute("d")) > 1000
    assert (
        page.locator("svg path.line.limit").first.evaluate("node => getComputedStyle(node).strokeDasharray") != "none"
    )
    assert pale_texts(page) == []
    assert problems == []
    page.close()


def test_plots_stay_while_redis_is_away(browser, service):
    """An update shows the error beside the plots, and the next successful one removes it."""
    page = browser.new_page()
    page.goto(service.url)
    service.redis.is_away = True
    page.get_by_role("alert").wait_for(timeout=20_000)
    assert page.locator("svg").count() == 4
    assert page.get_by_role("status").inner_text() == ""
    service.redis.is_away = False
    until(page, "!document.querySelector('[role=alert]')")
    assert page.locator("svg").count() == 4
    page.close()
