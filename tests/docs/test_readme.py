"""The README reads as it should where people meet it: on the page of a code forge, and on PyPI."""

import re
import subprocess
import sys
from email import message_from_string
from pathlib import Path

import pytest

from ..helpers import extras

if sys.platform == "win32":
    pytest.skip("the browser is found by means that Windows does not have", allow_module_level=True)

ROOT = Path(__file__).parents[2]
WIDTH = 838  # pixels, of a README on GitHub
STYLE = """
body { margin: 0; font: 16px/1.5 sans-serif }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse }
td, th { padding: 6px 13px; border: 1px solid }
code { font: 85% monospace; padding: .2em .4em }
pre { padding: 16px; overflow: auto; font-size: 85% }
pre code { font-size: 100%; padding: 0 }
"""
CUT = "[...document.querySelectorAll('table, pre')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"


def test_nothing_is_cut_on_a_page_of_github(browser, tmp_path):
    """Tables and programs of the README fit the width that GitHub gives them."""
    from markdown_it import MarkdownIt

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
    page.set_content(f"<style>{STYLE}</style>{MarkdownIt('commonmark').enable('table').render(text)}")
    assert page.locator("table").count() >= 4
    assert [] == page.evaluate(CUT)


def test_description_on_pypi_has_no_link_that_leads_nowhere(tmp_path):
    """The description in the metadata is the README without relative links and pictures."""
    with extras():
        import hatchling  # the program below needs it
    command = "import sys; from hatchling import build; print(build.prepare_metadata_for_build_wheel(sys.argv[1]))"
    run = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    metadata = message_from_string((tmp_path / run.stdout.strip() / "METADATA").read_text(encoding="utf-8"))
    description = metadata.get_payload()
    assert "text/markdown" == metadata["Description-Content-Type"]
    assert set() == {link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("http")}
    assert "Next: the tutorial" in description.replace("*", "")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in description.splitlines() if line.startswith("#")
    ]
