"""The glossary is kept: its words are in use, our own words have an entry, and a rejected word is written nowhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page != GLOSSARY)]
CODE = sorted(
    path for path in (ROOT / "ratelimited_executor").rglob("*") if path.suffix in (".py", ".pyx", ".pxi", ".lua")
)
# Pages about other libraries, in the words of those; and the history, which has the words of its time.
ABOUT_OTHERS = {
    "changelog.md", "coming-from-java.md", "coming-from-python.md", "comparison.md", "flaws.md", "guests.md", "when-to-leave.md",
}  # fmt: skip

# Words that a reader of the code meets in several modules, and that mean something else there than in a dictionary.
# Whoever gives another word a sense of its own adds it here, and to the glossary.
OWN = (
    "admission", "authority", "batch", "bound", "bucket", "burst", "calendar", "charge", "claim", "column", "correction",
    "cycle", "demand", "engine", "era", "event loop", "executor", "face", "fleet", "fence", "front", "gate", "grid", "group", "handle", "head", "hold", "interval",
    "kernel", "key", "lane", "law", "lease", "limit", "line", "listener", "manager", "move", "mutant", "observer", "offset", "overflow", "owner",
    "pace", "pacing", "parked", "peer", "penalty", "permit", "phase", "plan", "policy", "pool", "rank", "rate", "ready", "receipt",
    "record", "resource", "retry", "rule", "run", "runner", "shortcut", "slack", "slot", "source", "special", "spread", "stand-in", "store",
    "stretch", "ticket", "token bucket", "turn", "twin", "view", "virtual time", "void", "waker", "window",
)  # fmt: skip


def rows() -> list[list[str]]:
    """Return the cells of each entry: its words, their meaning, and the words that are not used for it."""
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def words_of(cell: str) -> list[str]:
    """Return the words of a cell, which commas and semicolons separate; what stands in parentheses explains them."""
    return [word for part in re.split("[;,]", re.sub(r"\(.*?\)", "", cell)) if (word := part.strip())]


TERMS = [term for row in rows() for term in words_of(row[0])]
REJECTED = sorted({word for row in rows() for word in words_of(row[2])} - set(TERMS))


def pattern(term: str) -> re.Pattern[str]:
    """Return what finds a word, also in the plural, as a participle, or as a part of a name in the code."""
    words = [re.escape(word) + r"(e?s|e?d|ing)?" for word in re.split("[ -]", term)]
    return re.compile(r"\b" + "[ -]".join(words) + r"\b", re.IGNORECASE)


def prose(page: Path) -> str:
    """Return a page without its code and without the targets of its links."""
    text = re.sub(r"```.*?```|`[^`]*`", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)|https?://\S+", "]", text)


@cache
def everything() -> str:
    """Return all pages and all code, with spaces between the words of a name."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*PAGES, *CODE])
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace("_", " "))


@cache
def own_prose() -> str:
    return "\n".join(prose(page) for page in PAGES if page.name not in ABOUT_OTHERS)


@pytest.mark.parametrize("term", TERMS)
def test_word_of_the_glossary_is_in_use(term: str) -> None:
    """Each word that the glossary explains occurs in the documentation or in the code."""
    assert pattern(term).search(everything())


def test_word_of_our_own_has_an_entry() -> None:
    """No word that has a sense of its own in this project is left unexplained, and none is explained twice."""
    assert [] == sorted(set(OWN) - set(TERMS))
    assert [] == sorted({term for term in TERMS if TERMS.count(term) > 1})


def test_entries_are_in_alphabetical_order() -> None:
    """A reader finds an entry by its first word."""
    firsts = [words_of(row[0])[0].casefold() for row in rows()]
    assert sorted(firsts) == firsts


@pytest.mark.parametrize("word", REJECTED)
def test_rejected_word_is_not_written(word: str) -> None:
    """A word in the last column is on no page; one in italics is, as it also has another sense."""
    has_other_sense = word.startswith("*")
    assert has_other_sense == bool(re.search(rf"\b{re.escape(word.strip('*'))}(e?s)?\b", own_prose(), re.IGNORECASE))
