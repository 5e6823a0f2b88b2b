"""The page of a measurement in a real browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratelimited_executor.cli.bench.page import render
from tests.load.models import figures_of, measurement_of

CUT_OFF = """
all => all.filter(each => each.scrollWidth > each.clientWidth).map(each => each.innerText)
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_no_figure_is_cut_off(browser, tmp_path, width) -> None:
    """All tables fit their boxes, with the longest values that are to be expected."""
    more = {"cpu_share": 0.05, "cpu_wait_share": 0.93, "full_seconds": 12.345}
    figures = replace(figures_of([0.1234] * 3_000, errors=700, kind="UnexpectedRemoteProtocolError"), **more)
    figures = replace(figures, statuses={200: 12_345_678, 404: 1_234, 429: 12_345, 502: 1_234, 503: 12_345_678})
    limit = "it started requests late itself, by 202 ms at p99, when they took 302 ms"
    trial = {
        "rate": 123.45,
        "held": False,
        "clear": True,
        "broken": ["p99 2.22 s is above 200 ms"],
        "tool_limit": limit,
    }
    page = tmp_path / "page.html"
    page.write_text(render(measurement_of(figures, search={"trials": [trial]})), encoding="utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(page.as_uri())

    assert "waited for one 93% of the time" in tab.inner_text("section >> nth=1")
    assert [] == tab.eval_on_selector_all("section:has(table) .wide", CUT_OFF)
    assert width == tab.evaluate("document.documentElement.scrollWidth")
    for cell in ("responses by status", "requests"):
        box = tab.get_by_role("rowheader", name=cell, exact=True).bounding_box()
        assert box["width"] > 60, "names are not broken into letters"
