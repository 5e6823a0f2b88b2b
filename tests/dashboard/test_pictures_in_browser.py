"""The pages on a bad day, in a real Chromium: two widths, two schemes; what matters is seen first, and each picture is kept."""

import os
from pathlib import Path

import pytest

from ..browser import pale_texts, until
from .scene import NAMES, Scene

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a browser may have to be installed first
    pytest.mark.real_time("a real server and a real browser"),
]

HEIGHT = {1280: 900, 360: 740}
PAGES = {
    "executors": ("/executors/", 3400),
    "executor": ("/executors/executor?name=webhooks", 4600),
    "paused": ("/executors/executor?name=mail", 2600),
    "store": ("/executors/store?name=webhooks", 2400),
    "groups": ("/groups/", 7500),
    "group": ("/groups/group?name=models", 2000),
}
"""Each page, and how long it may be on a phone, in pixels."""


@pytest.fixture(scope="module")
def scene():
    """Run one server for all pictures."""
    with Scene() as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    """The folder of the pictures: the one that PICTURES names, or else pytest's, which keeps the last three runs."""
    named = os.environ.get("PICTURES")
    if named is None:
        return tmp_path
    Path(named).mkdir(parents=True, exist_ok=True)
    return Path(named)


@pytest.fixture
def visit(browser, scene):
    """Return a function that opens a page, on which nothing may be logged."""
    opened = []

    def go(path, width, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": HEIGHT[width]}, color_scheme=scheme)
        problems = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(scene.url + path)
        opened.append((page, problems))
        return page

    yield go
    for page, problems in opened:
        assert problems == []
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("name", PAGES)
def test_page_fits_its_screen_and_can_be_read(visit, folder, name, width, scheme):
    """No page scrolls sideways, is endless on a phone, or has a text too pale to read; its picture is kept."""
    path, longest = PAGES[name]
    page = visit(path, width, scheme)
    if name == "groups":
        until(page, "document.body.innerText.includes('quarantine')")  # the first round of recording has passed
    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert pale_texts(page) == []
    assert page.locator("h1").count() == 1
    if width == 360:
        assert page.evaluate("document.documentElement.scrollHeight") < longest


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("path", ["/executors/", "/executors/executor?name=webhooks", "/executors/store?name=webhooks"])
def test_trouble_is_seen_without_scrolling(visit, path, width):
    """The first failures, or dead letters, are above the fold, with the message of each; no secret of a URL is."""
    page = visit(path, width)
    first = page.locator(".entries .what").first
    box = first.bounding_box()
    assert box["y"] + box["height"] < HEIGHT[width]
    assert len(first.inner_text()) > 15
    assert "secret" not in page.content()


def test_worst_executors_are_the_first_rows(visit):
    """Those that fail lead the list, and a filter shows them alone."""
    page = visit("/executors/", 1280)
    names = page.locator(".executors tbody a").all_inner_texts()
    assert set(names) >= set(NAMES)
    assert set(names[:2]) == {"payments", "webhooks"}
    assert page.locator(".executors svg.spark path").count() >= len(NAMES)
    page.get_by_role("link", name="2 failing").click()
    page.wait_for_url("**state=failing**")
    assert set(page.locator(".executors tbody a").all_inner_texts()) == {"payments", "webhooks"}
    page.get_by_role("link", name="Waiting").click()
    page.wait_for_url("**sort=waiting**")
    assert page.locator(".executors tbody a").first.inner_text() == "webhooks"


def _values_at(page, plot, part):
    """Point at a part of the width of a plot, wherever updates have moved it; return the lines that are shown.

    An update of the page takes them away until the pointer moves again.
    """
    for step in range(50):
        box = plot.bounding_box()
        plot.hover(position={"x": box["width"] * part, "y": box["height"] / 2 + step % 2})
        shown = page.locator("#value").all_inner_texts()
        if shown:
            return shown[0].splitlines()
    raise AssertionError("no value is shown at the pointer")


def test_values_of_a_plot_are_shown_where_it_is_pointed_at(visit):
    """A pointer over a plot shows the time and the value of each line there, and nothing once it has left."""
    page = visit("/executors/executor?name=webhooks", 1280)
    plot = page.locator("figure svg").first
    shown = _values_at(page, plot, 0.6)
    assert shown[0].endswith("ago")
    assert [line.split()[0] for line in shown[1:]] == ["started", "rate"]
    assert shown[2] == "rate 20/s"
    assert any(line.startswith("failed") for line in _values_at(page, plot, 0.92))
    assert _values_at(page, page.locator("figure svg").last, 0.6)[1].endswith(" ms")
    page.mouse.move(5, 5)
    assert page.locator("#value").count() == 0


def test_traceback_stays_open_while_failures_come(visit):
    """What a reader has unfolded stays unfolded, though other failures move above it."""
    page = visit("/executors/executor?name=webhooks", 1280)
    entry = page.locator(".entries li", has_text="PaymentError").first
    number = entry.get_attribute("id")
    entry.locator("summary").click()
    page.wait_for_timeout(5000)
    opened = page.locator(f"#{number} details[open]")
    assert opened.count() == 1
    assert "raised from ConnectionResetError: [Errno 104]" in opened.inner_text()


def test_whole_list_is_one_click_away(visit):
    """A list of which a page shows the first rows has a link to all of them, which works without a script."""
    page = visit("/executors/executor?name=webhooks", 360)
    whole = page.locator("#part-running").get_by_role("link", name="Show all 14")
    whole.wait_for()  # until all of them have started
    before = page.locator(".running tbody tr").count()
    whole.click()
    page.wait_for_url("**show=running**")
    assert (before, page.locator(".running tbody tr").count() >= 14) == (10, True)
