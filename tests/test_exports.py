"""The public names: sorted, importable, documented, and the same for the type checker as at run time."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ratelimited_executor
from ratelimited_executor import (
    _names,
    abc,
    cycles,
    durable,
    exceptions,
    handles,
    insight,
    orders,
    peers,
    policies,
    retries,
)

MODULES = [abc, cycles, exceptions, handles, insight, orders, peers, policies, retries]
EVERY_NAME = sorted({name for home in [ratelimited_executor, *MODULES] for name in home.__all__})
PACKAGE = Path(ratelimited_executor.__file__).parent
SOURCE = (PACKAGE / "__init__.py").read_text(encoding="utf-8")


def _names_for_the_type_checker() -> dict[str, str]:
    """Return the names imported under TYPE_CHECKING, and from where."""
    found: dict[str, str] = {}
    for node in ast.parse(SOURCE).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom), ast.unparse(statement)
                for alias in statement.names:
                    if alias.asname is not None:
                        assert alias.asname == alias.name
                        found[alias.name] = str(statement.module)
    return found


@pytest.mark.parametrize("module", [ratelimited_executor, *MODULES], ids=lambda module: module.__name__)
def test_public_names_are_sorted(module: ModuleType) -> None:
    """``__all__`` is sorted, holds no name twice and nothing private, and ``dir`` of a module of one topic shows it."""
    names = module.__all__

    assert sorted(set(names)) == names
    assert [] == [name for name in names if name.startswith("_")]
    assert module is ratelimited_executor or set(names) <= set(dir(module))


def _public(name: str) -> Any:
    """Return the object with a public name, which is one object wherever it is imported from."""
    first, *others = [getattr(home, name) for home in [ratelimited_executor, *MODULES] if name in home.__all__]
    assert all(other is first for other in others), name
    return first


@pytest.mark.parametrize("name", sorted(ratelimited_executor._MOVED_TO))
def test_name_that_was_at_the_top_is_found_in_its_module(name: str) -> None:
    """A name that only its module has now is still imported from the top, with a warning that says where it is."""
    module = f"ratelimited_executor.{ratelimited_executor._MOVED_TO[name]}"

    with pytest.warns(DeprecationWarning, match=rf"^{name} has moved: write 'from {module} import {name}'; ") as warned:
        found = getattr(ratelimited_executor, name)
    assert found is _public(name)
    assert __file__ == warned[0].filename
    assert name not in {*ratelimited_executor.__all__, *dir(ratelimited_executor)}


def test_unknown_name_of_a_lazy_module_is_an_attribute_error() -> None:
    """A misspelt name of a module that loads lazily fails as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'RedisPear'"):
        _ = peers.RedisPear  # type: ignore[attr-defined]  # that is the point


@pytest.mark.parametrize("name", EVERY_NAME)
def test_public_name_can_be_imported(name: str) -> None:
    """Each name resolves, once and for all, to the thing of that name; a value is an instance of a public class."""
    value = _public(name)

    assert value is _public(name)
    assert name == getattr(value, "__name__", name)
    assert hasattr(value, "__name__") or type(value).__name__ in EVERY_NAME


@pytest.mark.parametrize("name", EVERY_NAME)
def test_public_name_is_documented(name: str) -> None:
    """Each public class and function says what it is, and so does each public method and property."""
    value = _public(name)
    missing = [] if _has_docstring(value) else [name]
    if inspect.isclass(value):
        for owner in value.__mro__:
            if owner.__module__.startswith("ratelimited_executor"):
                missing += [
                    f"{owner.__name__}.{key}"
                    for key, member in vars(owner).items()
                    if not key.startswith("_")
                    and (inspect.isfunction(member) or isinstance(member, (property, classmethod)))
                    and not _has_docstring(member)
                    and not any(_has_docstring(getattr(base, key, None)) for base in owner.__mro__[1:])
                ]

    assert [] == missing


def _has_docstring(value: Any) -> bool:
    return bool((getattr(value, "__doc__", None) or "").strip())


def test_lazy_names_agree_with_the_type_checker() -> None:
    """What a type checker sees is what is imported on first use, from the same modules."""
    lazy = {name: f"ratelimited_executor.{module}" for name, module in ratelimited_executor._MODULE_OF.items()}

    assert _names_for_the_type_checker() == lazy
    assert set(ratelimited_executor.__all__) == set(lazy)


@pytest.mark.parametrize("name", ratelimited_executor.__all__)
def test_public_name_is_in_the_list_of_its_module(name: str) -> None:
    """The module that a name comes from exports it, too."""
    module = importlib.import_module(f"ratelimited_executor.{ratelimited_executor._MODULE_OF[name]}")

    assert name in module.__all__


def test_members_of_enumerations_are_upper_case() -> None:
    """Every public enumeration is written as a reader expects, and no member is false or prints as a bare number."""
    values = [_public(name) for name in EVERY_NAME]
    values += [getattr(durable, name) for name in durable.__all__]
    kinds = [value for value in values if inspect.isclass(value) and issubclass(value, Enum)]
    assert durable.DurableState in kinds
    for kind in kinds:
        assert all(member.name.isupper() for member in kind), kind
        assert all(member and not str(member).isdigit() and not f"{member}".isdigit() for member in kind), kind


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as in any module, and ``dir`` shows the public names."""
    with pytest.raises(AttributeError, match="no attribute 'RateLimitedExecuter': did you mean RateLimitedExecutor"):
        _ = ratelimited_executor.RateLimitedExecuter  # type: ignore[attr-defined]  # that is the point
    assert not hasattr(ratelimited_executor, "RateLimitedExecuter")
    assert set(ratelimited_executor.__all__) <= set(dir(ratelimited_executor))


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        ("", "Pased", ": did you mean Paced?"),
        ("", "Quoota", ": did you mean Quota, of ratelimited_executor.policies?"),
        ("", "polices", ": did you mean the module ratelimited_executor.policies?"),
        ("", "DurableTasks", ": write 'from ratelimited_executor.durable import DurableTasks'"),
        ("", "xyz", "; docs/reference/modules.md has all names"),
        ("", "_xyz", ""),
        (".peers", "RedisPear", ": did you mean RedisPeers?"),
        (".peers", "Fair", ": write 'from ratelimited_executor.orders import Fair'"),
        (".testing", "run_virtul", ": did you mean run_virtual?"),
    ],
)
def test_unknown_name_is_answered_with_a_near_one(module: str, name: str, hint: str) -> None:
    """An import of a wrong name says where the name is, or which one is near; so does a look-up of the attribute."""
    module = f"ratelimited_executor{module}"
    with pytest.raises(ImportError) as imported:
        exec(f"from {module} import {name}")
    assert (str(imported.value), imported.value.name) == (f"cannot import name {name!r} from {module!r}{hint}", module)

    with pytest.raises(AttributeError) as looked_up:
        getattr(importlib.import_module(module), name)
    assert str(looked_up.value) == f"module {module!r} has no attribute {name!r}{hint}"


def test_hint_knows_every_name_without_loading_its_module() -> None:
    """The names that the hint reads in the sources are those that the modules export."""
    assert _names._names() == {
        name: list(importlib.import_module(name).__all__)
        for name in (*(f"ratelimited_executor.{module}" for module in _names.PUBLIC), "ratelimited_executor")
    }


def test_public_modules_are_listed_at_the_top_and_in_the_reference() -> None:
    """The docstring of the package and the page on public modules name each of them."""
    page = (PACKAGE.parent / "docs" / "reference" / "modules.md").read_text(encoding="utf-8")

    assert sorted(_names.PUBLIC) == sorted(
        re.findall(r"^``(\w+)`` +\w", ratelimited_executor.__doc__ or "", re.MULTILINE)
    )
    assert sorted(_names.PUBLIC) == sorted(re.findall(r"^\| `ratelimited_executor\.(\w+)` \|", page, re.MULTILINE))


def test_version_is_that_of_the_distribution() -> None:
    """The version is read from the installed distribution on demand, and ``import *`` does not include it."""
    assert version("ratelimited-executor") == ratelimited_executor.__version__ == ratelimited_executor.__version__
    assert "__version__" in dir(ratelimited_executor)
    assert "__version__" not in ratelimited_executor.__all__


def test_version_of_what_is_not_installed_is_an_attribute_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an installed distribution the version does not exist, so that ``getattr`` with a default works."""

    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.delitem(vars(ratelimited_executor), "__version__", raising=False)
    monkeypatch.setattr("importlib.metadata.version", unknown)
    assert getattr(ratelimited_executor, "__version__", None) is None


def test_import_loads_nothing_else() -> None:
    """``import ratelimited_executor`` alone brings in neither asyncio nor anyio: pytest pays for it in every run."""
    code = "import sys; import ratelimited_executor; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[str(PACKAGE.parent)]}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert ["ratelimited_executor"] == [name for name in loaded if name.startswith("ratelimited_executor")]
    assert [] == [name for name in loaded if name in ("asyncio", "anyio", "logging", "importlib.metadata")]


def test_static_peers_load_nothing_of_redis() -> None:
    """An executor without networked peers imports nothing of Redis, although it imports the package of the peers."""
    code = "import sys; from ratelimited_executor import RateLimitedExecutor; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert [] == [name for name in loaded if name.startswith(("ratelimited_executor.peers.redis", "redis"))]


def test_package_is_marked_as_typed() -> None:
    """Type checkers use the annotations only if ``py.typed`` is there."""
    assert (PACKAGE / "py.typed").is_file()
