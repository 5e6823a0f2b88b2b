"""Error messages name remedies that exist: each ``name(...)`` in them is public and accepts the arguments shown."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ratelimited_executor
from ratelimited_executor import (
    abc,
    blocking,
    cycles,
    durable,
    handles,
    insight,
    orders,
    peers,
    policies,
    retries,
    simulation,
    spread,
    testing,
)

TOPICS = [abc, blocking, cycles, handles, insight, orders, peers, policies, retries]
PACKAGE = Path(ratelimited_executor.__file__).parent
NAMED = re.compile(r"\b([A-Za-z_][\w.]*)\(([^()]*)")
ARGUMENT = re.compile(r"\b([a-z_]+)=")
OF_THE_USER = {"MyScenario", "keys", "setup", "sim.executor", "sim.population"}  # the user's code, and what it gets


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts below a node; a value that is filled in is written as ``{}``."""
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in each.values)  # type: ignore[misc]
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _messages() -> Iterator[tuple[str, str]]:
    """Yield the texts of all errors that are raised and of all remedies: (file, text)."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_remedies = isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_REMEDIES"
            if is_remedies or isinstance(node, ast.Raise):
                for text in _texts(node):
                    yield path.relative_to(PACKAGE).as_posix(), text


@pytest.fixture(scope="module")
def named() -> list[tuple[str, str, str]]:
    """The calls that error messages name: (file, name, arguments)."""
    found = {(file, *match) for file, text in _messages() for match in NAMED.findall(text)}
    return sorted(each for each in found if each[1] not in OF_THE_USER)


def _public(name: str) -> list[Any]:
    """Return everything with this name that a user may call."""
    module, _, last = name.rpartition(".")
    if module and module[0].islower():
        return [getattr(importlib.import_module(module), last)]
    homes = [ratelimited_executor, *TOPICS, durable, simulation, spread, testing]
    kinds = [getattr(home, each) for home in homes for each in home.__all__]
    if module:
        homes, kinds = [], [kind for kind in kinds if getattr(kind, "__name__", "") == module]
    holders = [*homes, *(kind for kind in kinds if isinstance(kind, type))]
    own = [kind for kind in kinds if not isinstance(kind, type)]
    return [getattr(each, last) for each in [*holders, *own] if last in dir(each)]


def test_messages_are_found(named: list[tuple[str, str, str]]) -> None:
    """The search finds the errors and the remedies."""
    names = {name for _, name, _ in named}
    assert {"schedule", "schedule_many", "StaticPeers", "Retry", "Fair", "call_later"} <= names


def test_what_an_error_names_exists(named: list[tuple[str, str, str]]) -> None:
    """A name in an error message is public, and accepts the keyword arguments that follow it."""
    wrong = []
    for file, name, arguments in named:
        found = _public(name)
        wanted = set(ARGUMENT.findall(arguments))
        taken = [set(inspect.signature(each).parameters) for each in found if wanted and callable(each)]
        if not found or (wanted and not any(wanted <= each or "options" in each for each in taken)):
            wrong.append((file, name, wanted, taken))
    assert wrong == []
