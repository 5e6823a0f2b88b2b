"""The extras ``all`` and ``bench`` have everything that users may want of them, wherever it can be installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
FOR_DEVELOPERS = {"all", "bench", "bench-queues", "docs", "test"}
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
    ("environment", "has_load"),
    [
        ({"platform_machine": "AMD64", "sys_platform": "win32"}, True),
        ({"platform_machine": "arm64", "sys_platform": "darwin"}, True),
        ({"platform_machine": "aarch64"}, False),
        ({"platform_python_implementation": "PyPy"}, False),
    ],
)
def test_all_goes_without_load_where_it_has_to_be_compiled(environment, has_load) -> None:
    """Where ``load`` would have to be compiled, ``all`` leaves out that extra and no other."""
    assert has_load == ("load" in in_all(**environment))
    assert in_all() - {"load"} == in_all(**environment) - {"load"}


def test_bench_has_what_the_command_of_that_name_needs() -> None:
    """``bench`` includes the command of that name, with ``load`` wherever ``all`` has it."""
    assert {"cli", "load"} <= in_all("bench")
    assert {"load"} == in_all("bench") - in_all("bench", platform_machine="aarch64")
