"""Imports point down only: apps, adapters, shell, contracts, core, kernel.

``testing`` may import the core's values and the contracts only; an executor is passed in by the user.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import ratelimited_executor

PACKAGE = Path(ratelimited_executor.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
ROOT = "ratelimited_executor"

# Arithmetic, containers and texts: nothing that reads a clock, draws a random number, logs, waits or does I/O.
CORE_MAY_USE = {
    "__future__", "abc", "array", "bisect", "collections", "collections.abc", "copy", "dataclasses", "decimal", "enum",
    "fractions", "functools", "hashlib", "heapq", "itertools", "math", "operator", "re", "struct", "typing", "weakref",
    "zlib",
}  # fmt: skip
# Which kernel runs depends on the Python, on a variable and on a file. One module looks at these once, when it is
# imported, so that nothing that the kernel decides afterwards depends on them.
# The keys of durable tasks are text in JSON, which is read for people who look at them. The memory of an authority is
# text in JSON, too.
ALSO = {
    "_kernel/choice.py": {"binascii", "os", "pathlib", "sys"},
    "_core/durable/pauses.py": {"json"},
    "_core/durable/tasks.py": {"json"},
    "_core/fleet/memory.py": {"json"},
    "_core/fleet/slots.py": {"json"},
}
# Bodies of the shell that have a compiled twin read the clock, set timers and make tasks; so do the twins.
COMPILED: dict[str, set[str]] = {path.name: set() for path in sorted((PACKAGE / "_kernel").glob("*.p[yx][ix]"))}
COMPILED |= {"_compiled.pyx": {"time", "types"}, "_task.pxi": {"asyncio", "sys"}}
FOR_TYPES_ONLY = {"contextvars", "datetime"}  # values that the core only passes on, or asks for their seconds

# What a layer may import of the package, as prefixes of module names.
MAY_IMPORT = {
    "_kernel": ["_kernel"],
    "_core": ["_core", "_kernel", "exceptions"],
    "exceptions.py": ["_core.durations"],  # how a duration is read
    "abc.py": ["_core", "_kernel", "exceptions"],
    "typing.py": [
        "_core",
        "_kernel",
        "_runtime.limits.quota",
        "_runtime.limits.slots",
    ],  # a value that needs a calendar and therefore is not in the core
    # public modules of one topic each
    **{
        f"{module}.py": ["_runtime", "_core", "_kernel"]
        for module in ("blocking", "handles", "insight", "orders", "policies", "slots")
    },
    "cycles.py": ["_runtime", "stores"],
    "durable.py": ["_runtime", "_core", "stores"],
    "metrics.py": ["_runtime", "_core", "_kernel", "exceptions"],
    "retries.py": ["_runtime", "_core", "_kernel", "exceptions"],
    "tracing.py": [],
    "_forks.py": [],
    "_names.py": [],
    "_redis": ["_redis", "_core.urls"],
    "stores": ["stores", "_redis", "_forks", "_core", "_kernel", "abc", "exceptions"],
    "peers": [
        "peers",
        "_redis",
        "_forks",
        "_core",
        "_kernel",
        "abc",
        "exceptions",
        "stores.sqlite_file",
        "stores.postgres_driver",
        "stores.tasks.statements",
    ],
    "_runtime": [
        "_runtime",
        "_core",
        "_kernel",
        "_forks",
        "spread",
        "abc",
        "exceptions",
        "typing",
        "peers.static",
        "stores.progress.memory",
        "stores.progress.sqlite",
    ],  # fmt: skip
    "spread": ["spread", "_core", "_kernel"],
    "simulation": [
        "simulation",
        "_runtime",
        "_core",
        "_kernel",
        "spread",
        "abc",
        "exceptions",
        "peers.static",
        "stores.progress.memory",
        "testing.clock",
    ],  # fmt: skip
    "load": ["load", "_core"],
    "dashboard": ["dashboard", "_runtime", "_core", "_kernel", "abc", "exceptions"],
    "front": ["front", "dashboard.guards", "_runtime", "_core", "exceptions"],
    "testing": ["testing", "_core", "_kernel", "_runtime.durable.draining", "abc", "exceptions"],
    "cli": [""],
    "__init__.py": [""],
    "__main__.py": ["cli"],
}


class Import(NamedTuple):
    """An import: of which module, in which line, whether under TYPE_CHECKING, and whether within a function."""

    name: str
    line: int
    is_for_types: bool
    is_within: bool


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"))


@cache
def _all_imports(module: str) -> list[Import]:
    package = [ROOT, *module.split("/")[:-1]]
    found = []
    pending: list[tuple[ast.AST, bool, bool]] = [(_tree(module), False, False)]
    while pending:
        node, *where = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += [(each, True, where[1]) for each in node.body] + [(each, *where) for each in node.orelse]
        elif isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, *where) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            found.append(Import(".".join([*base, *([node.module] if node.module else [])]), node.lineno, *where))
        elif not isinstance(node, ast.expr):
            is_within = where[1] or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            pending += [(each, where[0], is_within) for each in ast.iter_child_nodes(node)]
    return found


def _imports(module: str, *, at_run_time: bool) -> Iterator[tuple[str, int]]:
    """Yield the modules that a module imports, with the lines; imports under TYPE_CHECKING only if not at run time."""
    return ((each.name, each.line) for each in _all_imports(module) if not (at_run_time and each.is_for_types))


def _own(name: str) -> str | None:
    """Return a module's name within the package; None if it belongs to another package."""
    return None if name.split(".")[0] != ROOT else name.removeprefix(ROOT).removeprefix(".")


def test_modules_are_found() -> None:
    """The tests below see the modules of the package, and every part of it has a rule."""
    assert len(MODULES) > 40
    assert {module.split("/")[0] for module in MODULES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith(("_core/", "_kernel/"))])
def test_core_imports_only_value_tools(module: str) -> None:
    """The core imports nothing that reads a clock, draws random numbers, logs or waits."""
    also = ALSO.get(module, set())
    at_run_time = {name for name, _ in _imports(module, at_run_time=True) if _own(name) is None}
    for_types = {name for name, _ in _imports(module, at_run_time=False) if _own(name) is None}

    assert set() == at_run_time - CORE_MAY_USE - also
    assert set() == for_types - CORE_MAY_USE - FOR_TYPES_ONLY - also


@pytest.mark.parametrize("source", COMPILED)
def test_compiled_kernel_imports_what_its_twins_do(source: str) -> None:
    """The compiled kernel imports from the kernel only, and beside it what the bodies of the shell need that it replaces."""
    text = (PACKAGE / "_kernel" / source).read_text(encoding="utf-8")
    names = re.findall(r"^(?:import|from) ([\w.]+)(?! cimport)\b(?!.*\bcimport\b)", text, re.MULTILINE)
    inside = [name for name in names if _own(name) is not None]

    assert [] == [name for name in inside if not name.startswith(f"{ROOT}._kernel")]
    assert set() == {*names} - {*inside} - CORE_MAY_USE - COMPILED[source]


def test_imports_point_down_only() -> None:
    """A layer imports only from layers below it, even under TYPE_CHECKING."""
    wrong = [
        f"{module}:{line} imports {name}"
        for module in MODULES
        for allowed in [MAY_IMPORT[module.split("/")[0]]]
        for name, line in _imports(module, at_run_time=False)
        if (own := _own(name)) is not None
        and not any(prefix == "" or own == prefix or own.startswith(f"{prefix}.") for prefix in allowed)
    ]

    assert [] == wrong


# Modules that need an extra, and are imported only when they are used.
ON_USE = ("cli/", "testing/", "dashboard/app.py", "dashboard/group.py", "front/app.py")


def test_library_needs_only_anyio() -> None:
    """Except for modules that need an extra, a module imports only the standard library, anyio and this package."""
    wrong = {
        (module, each.name)
        for module in MODULES
        if not module.startswith(ON_USE)
        for each in _all_imports(module)
        if not each.is_for_types and not each.is_within
        if each.name.split(".")[0] not in {*sys.stdlib_module_names, "anyio", ROOT}
    }

    assert set() == wrong


def test_one_module_reads_the_time() -> None:
    """In the kernel, core, shell and peers only two modules import ``time``; others are given a clock.

    One has the clock of the executors, the other that of the machine, which stands in for a server's.
    """
    readers = {
        module
        for module in MODULES
        if module.startswith(("_kernel/", "_core/", "_runtime/", "peers/"))
        for name, _ in _imports(module, at_run_time=False)
        if name == "time"
    }

    assert {"_runtime/time/clock.py", "peers/machine.py"} == readers


def test_shell_draws_no_random_numbers() -> None:
    """The executor's behaviour does not depend on chance, so that a run in virtual time can be repeated.

    There are three exceptions. Peers draw their id and the phase of their calls, from a seed if there is one. Retries
    draw their jitter, from the event loop's own generator if it has one, as the test kit's loop has. Durable tasks draw
    their ids in the same way.
    """
    wrong = {
        module
        for module in MODULES
        if not module.startswith(
            ("cli/", "testing/", "spread/", "simulation/")
        )  # there a UUID is a key that others have drawn, or the seed is given
        and module not in ("peers/fleet.py", "_runtime/repeat/retrying.py", "_runtime/durable/tasks.py")
        and module != "_runtime/durable/typed.py"  # it reads UUIDs that users have made
        for name, _ in _imports(module, at_run_time=False)
        if name in ("random", "secrets", "uuid")
    }

    assert set() == wrong


@cache
def _imported(module: str) -> set[str]:
    """Return the paths of the package's modules that a module imports, also under TYPE_CHECKING."""
    found = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and _own(node.module) is not None:
            base = (_own(node.module) or "").replace(".", "/")
            names = [f"{base}/{alias.name}".lstrip("/") for alias in node.names]
            found |= {name if f"{name}.py" in MODULES else base for name in names}
    paths = {f"{name}.py" if f"{name}.py" in MODULES else f"{name}/__init__.py".lstrip("/") for name in found}
    return paths & set(MODULES) - {module}


def test_no_modules_import_each_other() -> None:
    """There is no cycle of imports, not even under TYPE_CHECKING, so that each module can be read by itself."""
    left = {module: _imported(module) for module in MODULES}
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]

    assert {} == {module: imported & left.keys() for module, imported in left.items()}


def test_the_engine_is_seen_by_what_it_offers() -> None:
    """Only the module that assembles an executor imports the engine; others use a protocol, for the type checker."""
    assert {"_runtime/life/assembly.py"} == {
        module for module in MODULES if "_runtime/life/engine.py" in _imported(module)
    }
