"""Texts of the objects that are observed, without addresses, so that they are the same in each process."""

from __future__ import annotations

import re
from typing import Any

_ADDRESS = re.compile(r"0x[0-9a-f]{4,}|\.\.\.[0-9a-fx]*(?=>)")  # the second is the rest of one in a text that was cut
_TASK = re.compile(r"name='Task-\d+'")
_UNEXPECTED = re.compile(
    r"^\w+\.(?=\w+\(\) got an unexpected keyword argument)"
)  # compiled functions do not name the class here
_DEPTH_MAX = 6  # of a chain of exceptions


def text_of(value: Any) -> str:
    """Return the representation of a value without addresses."""
    return masked(repr(value))


def chain_of(error: BaseException | None, depth: int = 0) -> Any:
    """Return the type and the text of an exception and of its causes and contexts."""
    if error is None:
        return None
    if depth == _DEPTH_MAX:
        return "..."
    found = {"type": type(error).__qualname__, "text": masked(str(error))}
    if error.__cause__ is not None:
        found["cause"] = chain_of(error.__cause__, depth + 1)
    if error.__context__ is not None:
        found["context"] = chain_of(error.__context__, depth + 1)
    if error.__suppress_context__:
        found["suppressed"] = True
    return found


def masked(text: str) -> str:
    """Return a text without addresses and numbers of tasks; the kernels need not create equally many tasks."""
    text = _UNEXPECTED.sub("", text)
    return _TASK.sub("name='Task'", _ADDRESS.sub("0x", text))
