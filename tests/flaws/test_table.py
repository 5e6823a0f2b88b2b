"""The table in ``docs/reference/flaws.md`` and the tests of this folder agree."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = (HERE.parent.parent / "docs" / "reference" / "flaws.md").read_text(encoding="utf-8")


def _tests() -> dict[tuple[str, str], str]:
    """Return the docstring of each test, by file and name."""
    found: dict[tuple[str, str], str] = {}
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                found[path.name, node.name] = ast.get_docstring(node) or ""
    return found


def test_each_flaw_has_one_row() -> None:
    """The table has the flaws 1 to 40, each once and in order."""
    assert list(range(1, 41)) == [int(number) for number in re.findall(r"^\| F(\d+) \|", TABLE, re.MULTILINE)]


def test_each_row_names_a_test_that_is_there() -> None:
    """A row names a test whose docstring begins with the number of the flaw."""
    tests = _tests()
    for row in re.findall(r"^\| F\d+ \|.*$", TABLE, re.MULTILINE):
        number = int(re.match(r"\| F(\d+)", row)[1])
        named = re.findall(r"`(test_\w+\.py)` `(test_\w+)`", row)
        assert 1 == len(named), row
        assert re.search(rf"\bF{number}\b", tests[named[0]].split(":")[0]), (number, named)


def test_each_flaw_that_applies_is_tested() -> None:
    """The docstring of at least one test names each flaw."""
    named = {int(number) for text in _tests().values() for number in re.findall(r"\bF(\d+)\b", text.split(":")[0])}

    assert set(range(1, 41)) == named
