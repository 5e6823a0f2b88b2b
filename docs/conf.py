"""Build the site: ``sphinx-build -W --keep-going docs build/site`` (extra ``docs``).

The pages are plain Markdown, readable on a code forge as well, so nothing in them is Sphinx's own. What a site needs beside
them is made here: the navigation, from the lists of docs/README.md; an API reference of docstrings, a page for each public
module; and links that leave docs/, which on the site lead to a copy of the file.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.python import PythonLexer
from sphinx.pycode import ModuleAnalyzer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
API = DOCS / "api"

project = "ratelimited_executor"
author = "the authors of ratelimited_executor"
project_copyright = author
try:
    release = version_of("ratelimited-executor")
except PackageNotFoundError:  # a checkout that is not installed
    release = ""

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
exclude_patterns: list[str] = []
language = "en"
default_role = "literal"  # of a name between single backticks in a docstring
nitpicky = False  # types of the standard library have no page here

myst_heading_anchors = 6
myst_enable_extensions: list[str] = []
suppress_warnings: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes of a record are described in its class, and are no entries of their own
python_use_unqualified_type_names = True
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"{project} {release}".rstrip()  # which of several versions of the site it is
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(API / "scorer.js")  # written by write_scorer
html_copy_source = False
html_show_sourcelink = False

# The API reference.

MODULES = {
    "ratelimited_executor": "What most programs need",
    "ratelimited_executor.policies": "How fast tasks start",
    "ratelimited_executor.orders": "Which task starts first",
    "ratelimited_executor.handles": "What methods return",
    "ratelimited_executor.retries": "Retries",
    "ratelimited_executor.cycles": "Cycles and their progress",
    "ratelimited_executor.spread": "Offsets and slots of keys",
    "ratelimited_executor.slots": "Limits on how many run at once",
    "ratelimited_executor.blocking": "Permits and slots for threads",
    "ratelimited_executor.peers": "One rate for many processes",
    "ratelimited_executor.durable": "Tasks that survive a restart",
    "ratelimited_executor.insight": "Statistics and explanations",
    "ratelimited_executor.front": "Durable tasks over HTTP",
    "ratelimited_executor.dashboard": "The live page",
    "ratelimited_executor.metrics": "Metrics for monitoring",
    "ratelimited_executor.tracing": "Spans of tasks",
    "ratelimited_executor.exceptions": "Errors",
    "ratelimited_executor.abc": "Protocols to implement",
    "ratelimited_executor.simulation": "The simulator",
    "ratelimited_executor.testing": "The test kit",
}


def _names_of(module_name: str) -> list[str]:
    """Return the public names that have their entry on the page of a module; each has one."""
    module = importlib.import_module(module_name)
    essentials = importlib.import_module("ratelimited_executor").__all__  # what is described there alone
    if module_name == "ratelimited_executor":
        return list(essentials)
    return [name for name in module.__all__ if name not in essentials]


def _entry(module_name: str, name: str) -> str:
    """Return the directive that describes a name."""
    found = getattr(importlib.import_module(module_name), name)
    if inspect.isclass(found):
        if issubclass(found, BaseException):
            return f".. autoexception:: {module_name}.{name}\n   :members:\n   :show-inheritance:\n"
        is_put_together = any(base.__module__.startswith("ratelimited_executor.") for base in found.__mro__[1:])
        more = "   :inherited-members:\n" if is_put_together else ""  # of bases that a user does not see
        return f".. autoclass:: {module_name}.{name}\n   :members:\n{more}"
    if inspect.isroutine(found):
        return f".. autofunction:: {module_name}.{name}\n"
    return f".. py:data:: {module_name}.{name}\n"


def write_api_pages(app: Sphinx) -> None:  # noqa: ARG001  # Sphinx hands it to each listener
    """Write a page of directives for each module, unless it is there as it should be."""
    API.mkdir(exist_ok=True)
    wanted = {}
    for module_name, title in MODULES.items():
        entries = "\n".join(_entry(module_name, name) for name in _names_of(module_name))
        heading = f"{title}: {module_name.removeprefix('ratelimited_executor.')}"
        wanted[f"{module_name}.rst"] = f"{heading}\n{'=' * len(heading)}\n\n``{module_name}``\n\n{entries}"
    for page in API.glob("*.rst"):
        if page.name not in wanted:
            page.unlink()
    for name, text in wanted.items():
        page = API / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


_SCORER = """
// Written by docs/conf.py: a page whose table describes what is searched for comes first, the changelog comes last.
const DESCRIBED = %s;

var Scorer = {
  score: ([page, title, , , score]) => {
    const wanted = (new URLSearchParams(location.search).get("q") ?? "").trim().replace(/[=()`]/g, "");
    const place = (DESCRIBED[wanted] ?? []).indexOf(page);
    if (place >= 0 && place < 3) return score + 100 - place;
    if (page === "changelog" || page === "reference/flaws") return score - 50;
    return page.startsWith("reference/") ? score + 20 : score;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
"""


def write_scorer(app: Sphinx) -> None:
    """Write what orders the results of a search: the parameters that each page of the reference has in its tables."""
    described: dict[str, list[str]] = {}
    pages = sorted((Path(app.srcdir) / "reference").glob("*.md"))
    for page in sorted(pages, key=lambda page: page.stem != "executor"):  # which most of them belong to
        for name in re.findall(r"^\| `(\w+)=?`", page.read_text(encoding="utf-8"), re.MULTILINE):
            described.setdefault(name, []).append(f"reference/{page.stem}")
    (API / "scorer.js").write_text(_SCORER % json.dumps(described), encoding="utf-8")


def forget_overloads(app: Sphinx) -> None:  # noqa: ARG001  # as above
    """Describe a method by its own signature: overloads hide its options in a type of keyword arguments."""
    for name in [name for name in sys.modules if name.startswith("ratelimited_executor")]:
        source = getattr(sys.modules[name], "__file__", None)
        if source is not None and source.endswith(".py"):
            analyzer = ModuleAnalyzer.for_module(name)  # is kept, and asked by autodoc
            analyzer.analyze()
            analyzer.overloads.clear()


# The navigation, and links that leave docs/.


def mark_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let a link to a Markdown file outside docs/ be one to a copy of that file: it is no page of the site."""
    page = Path(app.srcdir) / f"{docname}.md"

    def marked(link: re.Match[str]) -> str:
        target = (page.parent / link[1]).resolve()
        is_outside = not target.is_relative_to(Path(app.srcdir).resolve())
        return f"](path:{link[1]})" if is_outside and target.is_file() else link[0]

    source[0] = re.sub(r"\]\(((?:\.\./)+[^)#\s]+\.md)\)", marked, source[0])


def _toctree(caption: str, documents: list[str]) -> str:
    lines = "\n".join(documents)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:  # noqa: ARG001  # as above
    """Make a tree of what each section of the index lists, in its order."""
    if docname != root_doc:
        return
    text = source[0]
    trees = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        documents = [
            target.removesuffix(".md")
            for target in re.findall(r"^- \[[^\]]+\]\(([^)#]+\.md)\)", body, re.MULTILINE)
            if not target.startswith("..")
        ]
        if documents:
            trees.append(_toctree(title, documents))
    trees.append(_toctree("API from docstrings", [f"api/{name}" for name in MODULES]))
    source[0] = text + "".join(trees)


# What a site has and a directory of Markdown has not.


def write_front_page(app: Sphinx, error: Exception | None) -> None:
    """Let the address of the site itself show the index."""
    if error is None and app.builder.format == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what is above; called by Sphinx."""
    app.add_lexer("pyi", PythonLexer)
    app.connect("builder-inited", write_api_pages)
    app.connect("builder-inited", write_scorer)
    app.connect("builder-inited", forget_overloads)
    app.connect("source-read", add_navigation)
    app.connect("source-read", mark_files)
    app.connect("build-finished", write_front_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
