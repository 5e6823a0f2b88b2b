"""The page of a report in a real browser: plots are drawn and respond without errors or requests."""

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

from ratelimited_executor.simulation.report import write_report

from ..browser import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a browser may have to be installed first

EVIL = "<script>window.isBroken = true</script><img src=x onerror='window.isBroken = true'><b>bold</b>"


@pytest.fixture(scope="module")
def opened():
    """Pages that are open, by path and options: several tests look at the same one, as loading takes seconds."""
    return {}


@pytest.fixture
def visit(browser, opened):
    """Open a page, or return to it, with a record of its problems and requests, which must be empty after each test."""
    visited = []

    def go(path, **options):
        key = path, *options.items()
        if key not in opened:
            opened[key] = load(path, **options)
        visited.append(opened[key])
        return opened[key].page

    def load(path, **options):
        page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        seen = SimpleNamespace(page=page, problems=[], requests=[], address=path.resolve().as_uri())
        page.on("console", lambda message: seen.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(seen.address)
        until(page, "[...document.querySelectorAll('.js-plotly-plot')].every(plot => plot._fullLayout)")
        return seen

    yield go
    for seen in visited:
        seen.page.wait_for_timeout(100)
        assert [] == seen.problems
        assert [seen.address] == seen.requests


@pytest.fixture(scope="module")
def report(make_run, tmp_path_factory):
    """The report of a run of a day."""
    directory = tmp_path_factory.mktemp("report")
    run = make_run(directory / "run.sqlite", steps=1440, keys=1000, slots=24, spike=4000)
    write_report([run], directory / "report.html")
    return SimpleNamespace(run=run, page=directory / "report.html")


def sizes(page, selector):
    """Return the sizes of drawn elements."""
    return page.eval_on_selector_all(
        selector, "all => all.map(one => one.getBoundingClientRect()).map(box => [box.width, box.height])"
    )


def test_plots_are_drawn(visit, report):
    """Each plot has its lines over the whole width, its bars or its segments."""
    page = visit(report.page)
    assert page.locator(".js-plotly-plot").count() == 6
    assert all(width > 800 and height > 200 for width, height in sizes(page, ".js-plotly-plot .main-svg:first-of-type"))
    for key, lines in (("throughput", 3), ("queue_depth", 3), ("start_delay", 6), ("executing_jobs", 3)):
        drawn = sizes(page, f"#plot-{key} .scatterlayer .trace .lines")  # which may be broken
        assert len(drawn) == lines
        assert all(width > 700 and height > 20 for width, height in drawn), key
        assert page.locator(f"#plot-{key} .shapelayer path").count() == 2
        assert page.locator(f"#plot-{key} .infolayer .annotation").count() == 2
    bars = sizes(page, "#plot-sync_interval .barlayer .point path")
    assert len(bars) == 45
    assert all(width > 5 for width, _ in bars)
    assert max(height for _, height in bars) > 150
    segments = sizes(page, "#plot-slots .pielayer .slice path.surface")
    assert len(segments) == 24
    assert all(width > 5 and height > 5 for width, height in segments)
    assert len(set(page.eval_on_selector_all(
        "#plot-slots .pielayer .slice path.surface", "all => all.map(one => one.style.fill)"))) > 10  # fmt: skip


def test_texts_do_not_overlap(visit, report):
    """Texts of events do not overlap, nor do the legend and the label of the axis."""
    page = visit(report.page)
    for key in ("throughput", "queue_depth", "start_delay", "executing_jobs"):
        legend = page.locator(f"#plot-{key} .legend .bg").bounding_box()
        label = page.locator(f"#plot-{key} .xtitle").bounding_box()
        assert legend["y"] >= label["y"] + label["height"] - 1, key
        assert legend["y"] + legend["height"] <= page.locator(f"#{key}-title ~ figure figcaption").bounding_box()["y"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_table_has_the_numbers(visit, report):
    """The table has the numbers of the database."""
    page = visit(report.page)
    with closing(sqlite3.connect(report.run)) as connection:
        ((done,),) = connection.execute("SELECT sum(done_jobs) FROM step")
    assert f"{done:,}" == page.locator('tr[data-key="done_jobs"] td').inner_text()
    assert "20" == page.locator('tr[data-key="never_synced"] td').inner_text()
    assert page.title() == page.locator("h1").inner_text() == "Simulation of bank sync"


def test_legend_switches_a_line(visit, report):
    """A click on a name in the legend removes its line, and another one restores it."""
    page = visit(report.page)
    lines = page.locator("#plot-throughput .scatterlayer path.js-line")
    name = page.locator("#plot-throughput .legendtoggle").nth(1)
    name.click()
    until(page, "document.querySelectorAll('#plot-throughput .scatterlayer path.js-line').length === 2")
    page.wait_for_timeout(500)  # an earlier click would be a double click
    name.click()
    until(page, "document.querySelectorAll('#plot-throughput .scatterlayer path.js-line').length === 3")
    assert lines.count() == 3


def test_pointer_shows_values(visit, report):
    """The pointer shows the values of all lines at its time, or those of a segment."""
    page = visit(report.page)
    page.locator("#plot-throughput").scroll_into_view_if_needed()
    page.locator("#plot-throughput .nsewdrag").first.hover()
    page.wait_for_selector("#plot-throughput .hoverlayer .legend")
    text = page.locator("#plot-throughput .hoverlayer").text_content()
    assert all(name in text for name in ("all executors", "fetch", "push"))
    page.locator("#plot-slots").scroll_into_view_if_needed()
    page.locator("#plot-slots .slice path.surface").nth(3).hover()
    page.wait_for_selector("#plot-slots .hoverlayer .hovertext")
    assert "slot 3 from 45m" in page.locator("#plot-slots .hoverlayer").text_content()


def test_scale_becomes_logarithmic(visit, report):
    """The button switches the scale to logarithmic, and shows its state."""
    page = visit(report.page)
    button = page.locator('button[data-plot="plot-queue_depth"]')
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    until(page, "document.getElementById('plot-queue_depth')._fullLayout.yaxis.type === 'log'")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    until(page, "document.getElementById('plot-queue_depth')._fullLayout.yaxis.type === 'linear'")


def test_dark_page_has_light_texts(visit, report):
    """On a dark page texts are light, also in plots."""
    page = visit(report.page, color_scheme="dark")
    until(page, "document.getElementById('plot-slots')._fullLayout.font.color === '#e4e6ea'")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(228, 230, 234)"


def test_names_are_shown_and_not_run(visit, make_run, tmp_path):
    """Names are shown as text on the page and in plots, and never run."""
    run = make_run(tmp_path / "run.sqlite", scenario=EVIL, status=EVIL)
    with closing(sqlite3.connect(run)) as connection, connection:
        connection.execute("UPDATE source SET name = ? || id", (EVIL,))
        connection.execute("UPDATE event SET name = '<b>' || name || '</b>'")
        connection.execute("UPDATE slot SET name = ?", (EVIL,))
    write_report([run], tmp_path / "report.html")
    page = visit(tmp_path / "report.html")
    assert page.evaluate("window.isBroken") is None
    assert page.title() == f"Simulation of {EVIL}"
    assert f"{EVIL}1" in page.locator("#plot-throughput .legendtext").all_text_contents()
    assert "<b>outage begins</b>" in page.locator("#plot-throughput .annotation-text").all_text_contents()
    assert page.locator("#plot-slots .annotation-text").first.text_content() == EVIL


def test_runs_are_compared(visit, make_run, report, tmp_path):
    """A comparison has a line, a ring and a column for each run, and marks an interrupted one."""
    other = make_run(tmp_path / "other.sqlite", steps=500, seed=2, keys=300, status="interrupted", days=1)
    write_report([report.run, other], tmp_path / "report.html")
    page = visit(tmp_path / "report.html")
    assert len(sizes(page, "#plot-queue_depth .scatterlayer path.js-line")) == 2
    assert len(sizes(page, "#plot-slots .pielayer .trace")) == 2
    assert page.locator('tr[data-key="done_jobs"] td').count() == 2
    assert (
        "bank sync, seed 2 was interrupted. It came to 8h20m of 1d (34.7 %)" in page.get_by_role("alert").inner_text()
    )
