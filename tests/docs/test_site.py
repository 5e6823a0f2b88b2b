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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_site_is_built_without_a_warning(docs: Path, tmp_path: Path) -> None:
    """The build gives no warning, and makes a page for each Markdown file, the front page, the search and the API."""
    ended = build(docs, tmp_path, "html")

    assert (ended.returncode, ended.stderr) == (0, "")
    pages = {page.relative_to(tmp_path).with_suffix("").as_posix() for page in tmp_path.rglob("*.html")}
    assert {page.relative_to(docs).with_suffix("").as_posix() for page in docs.rglob("*.md")} <= pages
    assert {"index", "search", "api/ratelimited_executor", "api/ratelimited_executor.policies"} <= pages
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    for caption in ("Tutorials", "How to", "Reference", "Explanation", "API from docstrings"):
        assert re.search(rf'<span class="caption-text">{caption}</span>', front), caption
    api = (tmp_path / "api" / "ratelimited_executor.html").read_text(encoding="utf-8")
    assert 'id="ratelimited_executor.RateLimitedExecutor.schedule_many"' in api


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_broken_link_fails_the_build(docs: Path, tmp_path: Path) -> None:
    """A broken link to a page, a heading or a file of the repository fails the build; one build checks all three."""
    links = {
        "(howto/not-there.md)": "not-there",
        "(howto/repeat.md#no-such-heading)": "no-such-heading",
        "(../examples/not_there.py)": "not_there",
    }
    copy = tmp_path / "docs"
    shutil.copytree(docs, copy)
    for page in copy.rglob("*.md"):  # the other pages are read by the build in the test above
        if page.name not in ("README.md", "repeat.md"):
            page.unlink()
    lines = [
        "# Index",
        "",
        *(f"[broken]{link}\n" for link in links),
        "## How to",
        "",
        "- [Repeat](howto/repeat.md)",
        "",
    ]
    (copy / "README.md").write_text("\n".join(lines))

    ended = build(copy, tmp_path / "site", "dummy")

    assert ended.returncode != 0
    for number, words in zip((3, 5, 7), links.values(), strict=True):
        found = [line for line in ended.stderr.splitlines() if f"README.md:{number}" in line and words in line]
        assert found, (words, ended.stderr)
