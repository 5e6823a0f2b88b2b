"""The site is built strictly from the Markdown of docs/: every warning, a broken link among them, is an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers import extras

with extras():
    import sphinx  # the programs below need it

ROOT = Path(__file__).parents[2]


def build(docs: Path, site: Path, builder: str) -> subprocess.CompletedProcess[str]:
    """Build the site in the way that docs/conf.py describes."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, docs, site],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of docs/ next to the folders that it links to; a build writes into it."""
    root = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("*.rst"))
    for name in (".github", "bench", "examples"):
        (root / name).symlink_to(ROOT / name, target_is_directory=True)
    return root / "docs"


LINKS = {
    "(howto/not-there.md)": "not-there",
    "(howto/repeat.md#no-such-heading)": "no-such-heading",
    "(../examples/not_there.py)": "not_there",
}


@pytest.fixture(scope="module")
def built(docs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The site with one page more, whose links lead nowhere, and how its build ended; one build takes a minute."""
    (docs / "broken.md").write_text("# Broken\n\n" + "\n".join(f"[broken]{link}\n" for link in LINKS))
    index = docs / "README.md"
    index.write_text(index.read_text(encoding="utf-8") + "- [Broken](broken.md)\n", encoding="utf-8")
    site = tmp_path_factory.mktemp("built")
    return site, build(docs, site, "html")


def warnings_of(ended: subprocess.CompletedProcess[str]) -> tuple[list[str], list[str]]:
    """Return what the build told of the page whose links lead nowhere, and all else."""
    lines = ended.stderr.splitlines()
    return [line for line in lines if "broken.md" in line], [line for line in lines if "broken.md" not in line]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_site_is_built_without_a_warning(docs: Path, built: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The build gives no warning, and makes a page for each Markdown file, the front page, the search and the API."""
    site, ended = built
    assert [] == warnings_of(ended)[1]
    pages = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    assert {page.relative_to(docs).with_suffix("").as_posix() for page in docs.rglob("*.md")} <= pages
    assert {"index", "search", "api/ratelimited_executor", "api/ratelimited_executor.policies"} <= pages
    front = (site / "index.html").read_text(encoding="utf-8")
    for caption in ("Tutorials", "How to", "Reference", "Explanation", "API from docstrings"):
        assert re.search(rf'<span class="caption-text">{caption}</span>', front), caption
    api = (site / "api" / "ratelimited_executor.html").read_text(encoding="utf-8")
    assert 'id="ratelimited_executor.RateLimitedExecutor.schedule_many"' in api


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_broken_link_fails_the_build(built: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """A link to a page, a heading or a file of the repository that is not there fails the build."""
    _, ended = built
    assert ended.returncode != 0
    found, _ = warnings_of(ended)
    assert len(found) == len(LINKS)
    for number, words in zip((3, 5, 7), LINKS.values(), strict=True):
        assert any(f"broken.md:{number}" in line and words in line for line in found), (words, found)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform == "win32", reason="the browser is found by means that Windows does not have")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("max_concurrency", "reference/executor.html"),
        ("drain_timeout", "reference/executor.html"),
        ("cycle", "reference/cycles.html"),
        ("max_pending", "reference/executor.html"),
    ],
)
def test_search_for_a_name_finds_its_reference_first(
    browser, built: tuple[Path, subprocess.CompletedProcess[str]], query: str, first: str
) -> None:
    """The first result of a search for a parameter or a method is a page of the reference, and no changelog."""
    site, _ = built
    page = browser.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q={query}")
    page.locator("#search-results .search a, #search-results ul.search a").first.wait_for(timeout=60_000)
    links = [link.get_attribute("href") for link in page.locator("#search-results li > a").all()[:3]]
    assert first in links[0] or "/api/" in links[0] or links[0].startswith("api/"), links
    assert not any("changelog" in link or "flaws" in link for link in links), links
    page.close()
