"""The page of a sweep in a real browser: the answer, sliders, the map and the plot, without errors or requests."""

import pytest

from ratelimited_executor.simulation.report.sweep_page import answer_of, interval_text, write_sweep_page
from ratelimited_executor.simulation.sweeps import Estimate, Sweep, SweepRun

WORST = "worst wait of <call>, 99 % in each 1d"


def made(*, is_priced=True, has_objectives=True, grid=None):
    """Return a sweep over workers and rate, whose waits fall with both."""
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
            each.runs[seed] = SweepRun(
                settings=each.settings, seed=seed, figures=figures, is_kept=not has_objectives or wait < 25, digest=""
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
    assert 6 == page.locator("#map td").count() == page.locator("#frontier circle").count()
    assert 2 == page.locator("#map td[data-kept=no]").count()
    page.locator("#set-0").fill("0")
    assert ("2", "5/s") == tuple(page.locator("output").all_inner_texts())
    assert "kept in 0 of 3 runs" == page.inner_text("dd.missed")
    page.locator("#map td").last.click()
    assert ("6", "10/s") == tuple(page.locator("output").all_inner_texts())
    page.locator("#frontier circle").nth(3).click()
    assert ("4", "10/s") == tuple(page.locator("output").all_inner_texts())
    page.select_option("#across", "rate")
    page.select_option("#down", "workers")
    assert 3 == page.locator("#map tr:has(td)").count()
    assert not page.evaluate("window.isBroken")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone(visit, scheme):
    """Nothing is wider than the screen, in both themes."""
    page = visit(made(), viewport={"width": 390, "height": 800}, color_scheme=scheme)
    assert 390 == page.evaluate("document.documentElement.scrollWidth")


@pytest.mark.slow
def test_one_parameter_without_prices_or_objectives(visit):
    """The map has a single row, and there is no plot of costs."""
    page = visit(made(is_priced=False, has_objectives=False, grid={"workers": ["2", "4"]}))
    assert "The least wait of <call>, p99" in page.inner_text(".answer")
    assert (2, 0) == (page.locator("#map td").count(), page.locator("#frontier").count())


def test_page_is_small_and_holds_no_markup_of_others(tmp_path):
    """Names of scenarios, parameters and figures are texts."""
    text = write_sweep_page(made(), tmp_path / "sweep.html").read_text()
    assert len(text) < 60_000
    assert "hub &amp; &lt;b&gt;" in text
    assert "<call>" not in text
    assert "<script>window" not in text


@pytest.mark.parametrize(
    ("figure", "estimate", "text"),
    [
        ("cost", Estimate(1234.5678, 0.0342, 5), "1,234.568 ± 0.034"),
        ("cost", Estimate(12.0, float("inf"), 1), "12"),
        ("cost", Estimate(12.0, 0.0, 3), "12 ± 0"),
        ("jobs done", Estimate(123456.7, 321.0, 3), "123,457 ± 321"),
        ("wait of x, p99", Estimate(4.5, 0.25, 3), "4.5 s ± 250 ms"),
        ("wait of x, p99", Estimate(0.0, 0.0, 3), "0 s ± 0 s"),
        ("wait of x, p99", Estimate(float("nan"), float("inf"), 0), "none"),
    ],
)
def test_intervals_have_two_digits(figure, estimate, text):
    """A mean has no more digits than its interval."""
    assert text == interval_text(figure, estimate)


def test_differences_have_a_sign():
    """More and less are told apart."""
    texts = [interval_text("cost", Estimate(mean, 0.5, 3), is_signed=True) for mean in (2.0, -2.0)]
    assert ["+2.00 ± 0.50", "-2.00 ± 0.50"] == texts


def test_an_answer_says_what_is_chosen_and_why():
    """Without prices the first that keeps its objectives is named."""
    assert answer_of(made()).startswith(
        "The cheapest configuration that keeps every objective in all of its 3 runs: workers=4"
    )
    assert answer_of(made(is_priced=False)).startswith("The first configuration that keeps every objective")


def test_an_answer_at_the_edge_of_what_was_tried_is_said():
    """More, or less, may do better: but only of numbers with one unit is it known which is more."""
    inner = answer_of(made(grid={"workers": ["2", "4", "6"], "rate": ["1/s", "5/s"]}))
    assert inner.endswith(" Beyond what was tried there may be a better one: rate=1/s is the least.")
    others = {"workers": ["4", "6"], "rate": ["1/s", "60/min"], "mode": ["a", "b"]}
    assert answer_of(made(grid=others)).endswith(" may be a better one: workers=4 is the least.")
