"""The code blocks of the how-to on testing run, and do what the text around them says."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "test-your-code.md"
BLOCKS = re.findall(r"```python\n(.*?)```", HOWTO.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("block", [block for block in BLOCKS if "def test_" not in block])
def test_program_in_the_howto_runs(block: str) -> None:
    """A block without tests runs as it stands, and passes its own assertions."""
    exec(compile(block, str(HOWTO), "exec"), {})  # noqa: S102 - our own text, which is what the test is about


@pytest.mark.parametrize("block", [block for block in BLOCKS if "def test_" in block])
def test_tests_in_the_howto_pass(block: str, pytester: pytest.Pytester) -> None:
    """A block with tests passes under pytest-asyncio."""
    pytester.makepyfile(test_howto=block)
    pytester.makefile(".ini", pytest="[pytest]\n")  # otherwise pytest looks for one in every folder above

    result = pytester.runpytest("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")

    result.assert_outcomes(passed=block.count("def test_"))
