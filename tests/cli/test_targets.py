"""Loading targets by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.targets import load_target


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a directory of the test's own, and forget what was imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_target_is_found_in_the_current_directory(here: Path) -> None:
    """A module in the current directory is found, and an attribute of an attribute."""
    (here / "jobs_a.py").write_text("class Mail:\n    @staticmethod\n    def send(line): return line * 2\n")
    assert "xx" == load_target("jobs_a:Mail.send")("x")


def test_target_is_found_in_a_file(here: Path) -> None:
    """A target in a file is found wherever it is and whatever its name, and may import what is beside it."""
    (here / "tools").mkdir()
    (here / "tools" / "beside_jobs.py").write_text("def twice(line): return line * 2\n")
    (here / "tools" / "json.py").write_text(
        "from beside_jobs import twice\n\nclass Mail:\n    send = staticmethod(twice)\n"
    )
    assert "xx" == load_target("tools/json.py:Mail.send")("x")
    assert "xx" == load_target(f"{here}/tools/json.py:twice")("x")
    assert hasattr(sys.modules["json"], "dumps")


@pytest.mark.parametrize("text", ["", "jobs", ":f", "jobs:", "jobs:a..b", "jobs:.a"])
def test_target_refuses_another_form(here: Path, text: str) -> None:
    """A text that is not module:function is refused with the expected form."""
    with pytest.raises(CommandError) as caught:
        load_target(text)
    assert f"TARGET must look like module:function or file.py:function, got {text!r}" == str(caught.value)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (None, "jobs_no:f", "TARGET 'jobs_no:f' cannot be imported: ModuleNotFoundError: No module named 'jobs_no'"),
        ("x = 1\n", "jobs_b:f", "TARGET 'jobs_b:f': module 'jobs_b' has no attribute 'f'"),
        ("x = 1\n", "jobs_c:x", "TARGET 'jobs_c:x' is not callable: it is int"),
        ("import jobs_gone\n", "jobs_d:f",
         "TARGET 'jobs_d:f' cannot be imported: ModuleNotFoundError: No module named 'jobs_gone' ({here}/jobs_d.py, line 1)"),
        ("def f(:\n", "jobs_e:f", "TARGET 'jobs_e:f' cannot be imported: SyntaxError: invalid syntax"),
        ("raise SystemExit(3)\n", "jobs_g:f", "TARGET 'jobs_g:f' cannot be imported: SystemExit: 3 ({here}/jobs_g.py, line 1)"),
        ("1 / 0\n", "jobs_h.py:f",
         "TARGET 'jobs_h.py:f' cannot be imported: ZeroDivisionError: division by zero ({here}/jobs_h.py, line 1)"),
        ("x = 1\n", "jobs_i.py:f", "TARGET 'jobs_i.py:f': module 'jobs_i.py' has no attribute 'f'"),
        (None, "jobs_j.py:f", "TARGET 'jobs_j.py:f': there is no file jobs_j.py"),
    ],
)  # fmt: skip
def test_target_says_why_it_cannot_be_used(here: Path, source: str | None, target: str, message: str) -> None:
    """A target that cannot be loaded is refused with the reason, and with the place in the user's own file."""
    if source is not None:
        (here / f"{target.partition(':')[0].removesuffix('.py')}.py").write_text(source)
    with pytest.raises(CommandError) as caught:
        load_target(target)
    assert message.replace("{here}", str(here)) == str(caught.value)
