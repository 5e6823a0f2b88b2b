"""The extras have everything that users may want of them, and the documentation tells their licences and versions."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"all", "bench", "bench-queues", "dev", "docs", "test"}
HERE = {"platform_python_implementation": "CPython", "platform_machine": "x86_64", "sys_platform": "linux"}


def in_all(of: str = "all", **environment: str) -> set[str]:
    """The extras that ``all``, or another extra, includes in an environment."""
    requirements = [Requirement(text) for text in EXTRAS[of]]
    return {
        extra
        for each in requirements
        if each.marker is None or each.marker.evaluate(HERE | environment)
        for extra in each.extras
    }


def test_all_has_each_extra_for_users() -> None:
    """``all`` includes each extra that is not for developers, a new one as well."""
    assert EXTRAS.keys() - FOR_DEVELOPERS == in_all()


@pytest.mark.parametrize(
    ("environment", "without"),
    [
        ({"platform_machine": "AMD64", "sys_platform": "win32"}, set()),
        ({"platform_machine": "arm64", "sys_platform": "darwin"}, set()),
        ({"platform_machine": "aarch64"}, {"load"}),
        ({"platform_python_implementation": "PyPy"}, {"load", "parquet"}),
    ],
)
def test_all_goes_without_what_would_have_to_be_compiled(environment, without) -> None:
    """Where ``load`` or ``parquet`` would have to be compiled, ``all`` leaves out that extra and no other."""
    assert without == in_all() - in_all(**environment)


def test_bench_has_what_the_command_of_that_name_needs() -> None:
    """``bench`` includes the command of that name, with ``load`` wherever ``all`` has it."""
    assert {"cli", "load"} <= in_all("bench")
    assert {"load"} == in_all("bench") - in_all("bench", platform_machine="aarch64")


PAGE = (ROOT / "docs" / "reference" / "extras.md").read_text(encoding="utf-8")
ROWS = {row[0]: row[1] for row in re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)}
LISTED = {  # package: licence; several packages may share the one that follows
    name: licence.strip("*")
    for row in ROWS.values()
    for names, licence in re.findall(r"([\w, -]+?) \(([^)]+)\)", row)
    for name in names.strip(", ").split(", ")
}
FAMILY = re.compile(r"LGPL|GPL|MPL|MIT|BSD|Apache|PSF|Python Software Foundation|any-OSI")


def packages_of(requirements: list[str]) -> set[str]:
    """The packages that requirements install directly, with those of extras such as ``psycopg[binary]``."""
    found = [Requirement(text) for text in requirements]
    return {canonicalize_name(each.name) for each in found} | {
        f"{each.name}-{extra}" for each in found for extra in each.extras
    }


def families(text: str) -> set[str]:
    """The families of licences that a text names."""
    return {{"Python Software Foundation": "PSF"}.get(name, name) for name in FAMILY.findall(text)}


def licence_of(package: str) -> str:
    """The licence that an installed package declares: an expression, or else the field or classifiers."""
    found = metadata.metadata(package)
    classifiers = [each for each in found.get_all("Classifier", []) if each.startswith("License ::")]
    # By get(), as from Python 3.15 on a field that is not there is a KeyError.
    return found.get("License-Expression") or " ".join(classifiers) or found["License"]


def test_each_extra_for_users_is_listed_with_what_it_installs() -> None:
    """The page of extras lists each extra that is not for developers, with the packages that it installs."""
    assert EXTRAS.keys() - FOR_DEVELOPERS == ROWS.keys()
    (others,) = re.findall("^(`bench`.*) are for .*development", PAGE, re.MULTILINE)
    assert {*FOR_DEVELOPERS} == {"all", *re.findall("`([^`]+)`", others)}
    for extra, row in ROWS.items():
        assert packages_of(EXTRAS[extra]) == set(re.sub(r"\([^)]*\)", "", row).replace(" ", "").split(",")), extra


@pytest.mark.parametrize("package", sorted(LISTED))
def test_licence_is_the_one_that_the_package_declares(package) -> None:
    """The page of extras states the licence that the installed package declares in its metadata."""
    try:
        declared = licence_of(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed here")
    assert families(LISTED[package]) == families(declared) != set()


def test_licence_of_what_is_always_installed() -> None:
    """anyio is the only requirement, and has the licence that the page states."""
    assert ["anyio"] == [Requirement(text).name for text in PROJECT["dependencies"]]
    assert "(MIT)" in PAGE.partition("|")[0]
    assert {"MIT"} == families(licence_of("anyio"))


def test_compared_versions_are_not_older_than_the_required_ones() -> None:
    """The comparison with task queues is about versions that the benchmarks and tests of this project may run."""
    page = (ROOT / "docs" / "explanation" / "comparison.md").read_text(encoding="utf-8")
    names = {"docket": "pydocket"}
    compared = {
        names.get(name.lower(), name.lower()): version
        for name, version in re.findall(r"^\| (\w+) (\d[\w.]*) \S \|", page, re.MULTILINE)
    }
    required = [Requirement(text) for extra in ("bench-queues", "bench", "test") for text in EXTRAS[extra]]
    both = [each for each in required if each.name in compared and each.name != "APScheduler"]
    assert {"celery", "huey", "pgqueuer", "procrastinate", "pydocket", "taskiq"} == {each.name for each in both}
    assert [] == [str(each) for each in both if not each.specifier.contains(compared[each.name])]
