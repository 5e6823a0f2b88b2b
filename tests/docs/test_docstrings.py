"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ratelimited_executor

from ..helpers import extras

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(ratelimited_executor.__path__, "ratelimited_executor.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_print_what_they_say(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The examples in the docstrings of the module, its classes and its functions print what the docstrings say."""
    with extras():
        module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert not failed, capsys.readouterr().out
