"""Statements of SQL by name, from files."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

__all__ = ["numbered", "read_statements", "read_text"]

_ARGUMENT: Final = re.compile(r"\$(\d+)")
_COMMENT: Final = re.compile(r"--.*$", re.MULTILINE)
_HEADING: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def read_text(file: str) -> str:
    """Read a file that lies beside this one."""
    return files(__package__).joinpath(file).read_text(encoding="utf-8")


def numbered(text: str) -> list[tuple[str, list[int]]]:
    """Split a text into its statements, each with ``?`` for its arguments and with their numbers."""
    parts = [part.strip() for part in _COMMENT.sub("", text).split(";")]
    return [(_ARGUMENT.sub("?", part), [int(number) for number in _ARGUMENT.findall(part)]) for part in parts if part]


def read_statements(*names: str) -> dict[str, str]:
    """Read files of statements, each under a line ``-- name: ...``; those of a later file replace those before."""
    statements: dict[str, str] = {}
    for name in names:
        _, *parts = _HEADING.split(read_text(name))
        statements.update(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))
    return statements
