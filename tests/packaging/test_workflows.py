"""The workflows run no code but what is named by its digest, with the least rights, and publish only when a person starts them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
if not WORKFLOWS:
    pytest.skip("a source distribution has no workflows", allow_module_level=True)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_and_tools_are_named_by_digest(path) -> None:
    """Each action is pinned to a commit, with its version beside it; tools are installed with their hashes."""
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: *(.*)", text)
    assert used
    assert [] == [each for each in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)]
    installs = re.findall(r"pip install (.*)", text)
    assert set(installs) <= {"--require-hashes -r .packaging/tools.txt", "dist/*-py3-none-any.whl"}


def test_one_action_has_one_digest() -> None:
    """All workflows use the same version of an action."""
    used = {each for path in WORKFLOWS for each in re.findall(r"uses: *(.*)", path.read_text(encoding="utf-8"))}
    names = [each.partition("@")[0] for each in used]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_are_those_that_a_job_needs(path) -> None:
    """A workflow has at most the right to read the repository; a job may sign, but writes no content."""
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^permissions:( \{\}|\n  contents: read)$", text, re.MULTILINE)
    assert {"attestations", "id-token"} >= set(re.findall(r"([\w-]+): write", text))
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert "secrets." not in text


def test_nothing_is_published_by_itself() -> None:
    """Only a person starts the workflow that publishes."""
    publishing = [path for path in WORKFLOWS if "pypi-publish" in path.read_text(encoding="utf-8")]
    assert ["publish.yml"] == [path.name for path in publishing]
    begin, _, _ = publishing[0].read_text(encoding="utf-8").partition("\npermissions:")
    assert ["workflow_dispatch"] == re.findall(r"^  (\w+):", begin.partition("\non:\n")[2], re.MULTILINE)


def test_releases_are_built_with_versions_that_fit() -> None:
    """The constraints pin each requirement of the build to a version that it allows, and tools have hashes."""
    lines = (ROOT / ".packaging" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    for each in map(Requirement, build):
        assert each.specifier.contains(pinned[each.name.lower()]), each
    tools = (ROOT / ".packaging" / "tools.txt").read_text(encoding="utf-8")
    assert len(re.findall(r"^[\w-]+==", tools, re.MULTILINE)) == len(
        re.findall(r"== *[^\\]*\\\n +--hash=sha256:", tools)
    )
    assert {"build", "cibuildwheel"} <= set(re.findall(r"^([\w-]+)==", tools, re.MULTILINE))


def test_the_same_versions_of_python_are_tested_built_for_and_named() -> None:
    """Each version that the classifiers name is tested in CI, and has wheels; the oldest is the one required."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = re.findall(r"Python :: (3\.\d+)\n", "\n".join(metadata["project"]["classifiers"]) + "\n")
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"python: \[(.*)\]", ci)

    assert f">={named[0]}" == metadata["project"]["requires-python"]
    assert named == re.findall(r'"(.*?)"', matrix)
    assert [f"cp{each.replace('.', '')}-*" for each in named] == metadata["tool"]["cibuildwheel"]["build"].split()
