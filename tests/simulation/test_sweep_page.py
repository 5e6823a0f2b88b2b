"""The page of a sweep in a real browser: the answer, sliders, the map and the plot, without errors or requests."""

import pytest

from ratelimited_executor.simulation.report.sweep_page import answer_of, write_sweep_page
from ratelimited_executor.simulation.sweeps import Sweep, SweepRun

WORST = "worst wait of <call>, 99 % in each 1d"
MAILS = "worst wait of mail, 90 % in each 1d"


def made(*, is_priced=True, has_objectives=True, has_mails=False, grid=None):
    """Return a sweep over workers and rate, whose waits fall with both; those of mails rise, and miss in the last one."""
    found = Sweep("hub & <b>", grid or {"workers": ["2", "4", "6"], "rate": ["5/s", "10/s"]}, None)
    found.is_complete = True
    found.parameters = {"name": "</script><script>window.isBroken = true</script>"}
    for number, each in enumerate(found.configurations):
        for seed in range(3):
            wait = 60.0 / (number + 1) + seed
            figures = {
                WORST if has_objectives else "wait of <call>, p99": wait,
                "cost": float(is_priced) * (number + 1),
                "jobs": 1.0,
            }
            missed = [WORST] if has_objectives and wait >= 25 else []
            if has_mails:
                figures[MAILS] = 100.0 * number + seed
                missed += [MAILS] if number == len(found.configurations) - 1 else []
            each.runs[seed] = SweepRun(
                settings=each.settings, seed=seed, figures=figures, is_kept=not missed, digest="", missed=missed
            )
    return found


@pytest.fixture
def visit(browser, tmp_path):
    """Open the page of a sweep; nothing may go wrong on it, and nothing be loaded."""
    problems = []

    def go(found, **options):
        path = write_sweep_page(found, tmp_path / "sweep.html")
        page = browser.new_page(**options)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url == path.as_uri() else problems.append(request.url))
        page.goto(path.as_uri())
        return page

    yield go
    assert [] == problems


@pytest.mark.slow
def test_sliders_show_what_would_be(visit):
    """The page begins with the answer; a slider, the map and the plot show any other configuration."""
    page = visit(made())
    assert "workers=4, rate=5/s" in page.inner_text(".answer")
    assert ("4", "5/s") == tuple(page.locator("output").all_inner_texts())
    assert "kept in 3 of 3 runs" == page.inner_text("dd.kept")
    assert 6 == page.locator("#map td").count() == page.locator("#price circle").count()
    assert 2 == page.locator("#map td[data-kept=no]").count()
    page.locator("#set-0").fill("0")
    assert ("2", "5/s") == tuple(page.locator("output").all_inner_texts())
    assert "kept in 0 of 3 runs" == page.inner_text("dd.missed")
    page.locator("#map td").last.click()
    assert ("6", "10/s") == tuple(page.locator("output").all_inner_texts())
    page.locator("#price circle").nth(3).click()
    assert ("4", "10/s") == tuple(page.locator("output").all_inner_texts())
    page.select_option("#across", "rate")
    page.select_option("#down", "workers")
    assert 3 == page.locator("#map tr:has(td)").count()
    assert not page.evaluate("window.isBroken")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone(visit, scheme):
    """Nothing is wider than the screen, in both themes."""
    page = visit(made(has_mails=True), viewport={"width": 390, "height": 800}, color_scheme=scheme)
    assert 390 == page.evaluate("document.documentElement.scrollWidth")
    cells = page.eval_on_selector_all(
        "td[data-label]", "all => all.map(one => [one.dataset.label, one.getBoundingClientRect().right])"
    )
    assert {"objectives kept", WORST, MAILS} <= {label for label, _ in cells}
    assert all(right <= 390 for _, right in cells), "no figure is beyond the edge"


@pytest.mark.slow
def test_one_parameter_without_prices_or_objectives(visit):
    """The map has a single row, and there is no plot of costs."""
    page = visit(made(is_priced=False, has_objectives=False, grid={"workers": ["2", "4"]}))
    assert "The least wait of <call>, p99" in page.inner_text(".answer")
    assert (2, 0) == (page.locator("#map td").count(), page.locator("#price").count())
    assert not page.locator("#figure").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_axes_of_the_plot_have_numbers_that_do_not_overlap(visit, width):
    """Costs are numbers, and waits have their unit, at the widths of a desk and of a phone."""
    page = visit(made(), viewport={"width": width, "height": 800})
    assert [WORST] == page.locator("#price text.of").all_text_contents()
    texts = page.locator("#price text.tick").all_text_contents()
    assert ["10 s", "20 s", "30 s", "40 s", "50 s", "60 s", "70 s"] == [text for text in texts if text.endswith("s")]
    assert {"1", "3", "5"} <= {text for text in texts if not text.endswith("s")}
    boxes = page.eval_on_selector_all(
        "#price text.tick",
        "all => all.map(one => one.getBoundingClientRect()).map(box => [box.x, box.y, box.right, box.bottom])",
    )
    apart = [one[2] < two[0] or two[2] < one[0] or one[3] < two[1] or two[3] < one[1] for one in boxes for two in boxes]
    assert len(boxes) == apart.count(False), "each overlaps with itself alone"
    assert all(box[0] >= 0 and box[2] <= width for box in boxes)


@pytest.mark.slow
def test_each_objective_can_be_shown(visit):
    """One choice sets the figure of the map and of the plot, and what misses it is marked there."""
    page = visit(made(has_mails=True))
    assert page.locator("#map td.missed").all_inner_texts() == ["1m1s", "31 s"]
    page.select_option("#figure", MAILS)
    assert MAILS == page.inner_text("#map-of-title")
    assert f"Cost and {MAILS}" == page.inner_text("#price-of-title")
    assert page.locator("#map td.missed").all_inner_texts() == ["8m21s"]
    assert 3 == page.locator("#map td[data-kept=no]").count()
    assert "8 min" in page.locator("#price text.tick").all_text_contents()


def test_page_is_small_and_holds_no_markup_of_others(tmp_path):
    """Names of scenarios, parameters and figures are texts."""
    text = write_sweep_page(made(), tmp_path / "sweep.html").read_text()
    assert len(text) < 60_000
    assert "hub &amp; &lt;b&gt;" in text
    assert "<call>" not in text
    assert "<script>window" not in text


def test_the_table_has_the_differences_of_each_figure(tmp_path):
    """They are from the best configuration, which is named, seed by seed."""
    text = write_sweep_page(made(has_mails=True), tmp_path / "sweep.html").read_text()
    assert 2 == text.count('<th scope="col">difference, seed by seed</th>')
    assert "Differences are from workers=4, rate=5/s" in text
    assert '<td data-label="difference, seed by seed">+40 s ± 0 s</td>' in text


def test_an_answer_says_what_is_chosen_and_why():
    """Without prices the first that keeps its objectives is named."""
    assert answer_of(made()).startswith(
        "The cheapest configuration that keeps every objective in all of its 3 runs: workers=4"
    )
    assert answer_of(made(is_priced=False)).startswith("The first configuration that keeps every objective")
    assert f"cost 3 ± 0; {WORST} 21 s ± 2.48 s; {MAILS} 3m21s ± 2.48 s." in answer_of(made(has_mails=True))


def test_an_answer_at_the_edge_of_what_was_tried_is_said():
    """More, or less, may do better: but only of numbers with one unit is it known which is more."""
    inner = answer_of(made(grid={"workers": ["2", "4", "6"], "rate": ["1/s", "5/s"]}))
    assert inner.endswith(" Beyond what was tried there may be a better one: rate=1/s is the least.")
    others = {"workers": ["4", "6"], "rate": ["1/s", "60/min"], "mode": ["a", "b"]}
    assert answer_of(made(grid=others)).endswith(" may be a better one: workers=4 is the least.")
