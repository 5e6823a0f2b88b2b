"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import ratelimited_executor

from ..helpers import extras

PACKAGE = Path(ratelimited_executor.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_print_what_they_say(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The examples in the docstrings of the module, its classes and its functions print what the docstrings say."""
    with extras():
        module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert not failed, capsys.readouterr().out
