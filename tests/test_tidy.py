"""Rules of the project that no linter checks: sizes, reasons for exceptions to rules, words that must not appear."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import ratelimited_executor
from ratelimited_executor import abc

ROOT = Path(__file__).parent.parent
PACKAGE = Path(ratelimited_executor.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "ratelimited_executor").rglob("*.py"))
TESTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py"))

MODULE_LINES_MAX = 600  # docstrings left out
FUNCTION_LINES_MAX = 70  # docstrings left out

# An exception to a tool's rule; a reason of several words must follow, after a second comment sign or a dash.
EXCEPTION = re.compile(
    r"#\s*(noqa\b(?!:)|noqa:\s*[A-Z0-9, ]+|type:\s*ignore(\[[\w, -]+\])?|pragma:\s*no cover)(?P<rest>.*)"
)
REASON = re.compile(r"\s*(#|-+|,|;|:)?\s*\w+(\W+\w+)+")

# Paths and addresses of the machine on which the project is made; assembled, so that this file contains none.
FORBIDDEN = re.compile(
    "|".join(
        [
            "/" + "work/",
            "/" + "root/",
            "/" + "home/\\w",
            "C:" + "\\\\Users",
            "local" + "host:\\d+/simple",
            "index" + "-url",
        ]
    )
)


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _docstring_lines(tree: ast.AST) -> int:
    """Count the lines of all docstrings below a node."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            text = node.body[0]
            count += (text.end_lineno or text.lineno) - text.lineno + 1
    return count


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1 - _docstring_lines(function)


def _is_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) in ("overload", "typing.overload") for decorator in function.decorator_list)


@pytest.mark.parametrize("path", MODULES)
def test_module_is_not_too_long(path: str) -> None:
    """A module that has grown past 600 lines without its docstrings has more than one subject."""
    text = (ROOT / path).read_text(encoding="utf-8")

    assert len(text.splitlines()) - _docstring_lines(ast.parse(text)) <= MODULE_LINES_MAX


def test_name_of_a_class_is_given_once() -> None:
    """Two classes of one name are two ideas behind one word."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path)

    homes.pop("Slots")  # the limiter, and a scenario, whose class is named as on the command line
    assert {} == {name: paths for name, paths in homes.items() if len(paths) > 1}


@pytest.mark.parametrize("path", MODULES)
def test_functions_are_not_too_long(path: str) -> None:
    """A function of more than 70 lines does more than one thing."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))

    assert {} == {node.name: _length(node) for node in _functions(tree) if _length(node) > FUNCTION_LINES_MAX}


@pytest.mark.parametrize("path", MODULES)
def test_public_things_say_what_they_are(path: str) -> None:
    """Every module, public class and public function has a docstring.

    Special methods and setters need none, nor do methods of a private class or of one whose base is a contract.
    """
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    missing = [] if ast.get_docstring(tree) or not tree.body else [path]

    def visit(node: ast.AST, where: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If):
                visit(child, where)
            if not isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or child.name.startswith(
                "_"
            ):
                continue
            is_setter = not isinstance(child, ast.ClassDef) and any(
                ast.unparse(decorator).endswith((".setter", ".deleter")) for decorator in child.decorator_list
            )
            is_inherited = isinstance(node, ast.ClassDef) and (
                node.name.startswith("_") or any(ast.unparse(base) in abc.__all__ for base in node.bases)
            )
            if not (ast.get_docstring(child) or is_setter or is_inherited) and not (
                not isinstance(child, ast.ClassDef) and _is_overload(child)
            ):
                missing.append(f"{where}{child.name}")
            if isinstance(child, ast.ClassDef):
                visit(child, f"{where}{child.name}.")

    visit(tree, "")
    assert [] == missing


@pytest.mark.parametrize("path", MODULES)
def test_no_error_is_swallowed(path: str) -> None:
    """No handler of all exceptions ignores or only logs them: a failure must be handled or passed on."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    wrong = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = "BaseException" if node.type is None else ast.unparse(node.type)
        if caught not in ("Exception", "BaseException"):
            continue
        statements = [ast.unparse(statement) for statement in node.body]
        if all(
            text in ("pass", "...", "continue") or re.match(r"(logging|log|logger|LOGGER)\.", text)
            for text in statements
        ):
            wrong.append(f"{path}:{node.lineno} except {caught}: {'; '.join(statements)}")

    assert [] == wrong


@pytest.mark.parametrize("path", MODULES)
def test_exception_to_a_rule_gives_its_reason(path: str) -> None:
    """Each ``noqa`` and each ``type: ignore`` names the rule that it ignores and gives a reason on the same line."""
    wrong = []
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1):
        match = EXCEPTION.search(line)
        if match is None:
            continue
        has_code = "[" in match[1] if match[1].startswith("type") else ":" in match[1]
        if not has_code or not REASON.match(match["rest"]):
            wrong.append(f"{path}:{number}: {line.strip()}")

    assert [] == wrong


@pytest.mark.parametrize("path", [path for path in TESTS if Path(path).name.startswith("test_")])
def test_each_test_says_which_law_it_checks(path: str) -> None:
    """Each test has a docstring, whose first line is a sentence."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    wrong = []
    classes = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test"))]
    for owner in classes:
        for node in owner.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                if not re.search(r"[.:?]$", text.strip()):
                    wrong.append(node.name)

    assert [] == wrong


@pytest.mark.parametrize(
    "path", [path for path in MODULES if re.search(r"/_(kernel|core|runtime)/(?!.*__init__)", path)]
)
def test_tests_of_a_module_are_found_by_its_name(path: str) -> None:
    """``_core/queue/queue.py`` has ``tests/core/queue/test_queue.py``, or the table in ``tests/README.md`` names it."""
    part, *folders, name = path.split("/")[1:]
    namesake = "/".join(["tests", part.removeprefix("_"), *folders, f"test_{name}"])
    table = re.findall(r"`([\w/]+\.py)`", (ROOT / "tests" / "README.md").read_text(encoding="utf-8"))

    assert namesake in TESTS or "/".join([*folders, name]) in table


def test_files_that_the_readme_of_the_tests_names_are_there() -> None:
    """Each file that is named there with its folder is a test file or a module of the package."""
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    named = [name.removeprefix("tests/") for name in re.findall(r"`([\w/]+/\w+\.py)`", text)]
    modules = {
        path.split("/", 1)[1].removeprefix("_kernel/").removeprefix("_core/").removeprefix("_runtime/")
        for path in MODULES
    }
    known = {path.removeprefix("tests/") for path in TESTS} | modules | {path.split("/", 1)[1] for path in MODULES}

    assert [] == [name for name in named if name not in known]


@pytest.mark.parametrize(
    "path", [path for path in TESTS if path.startswith(("tests/kernel/", "tests/core/", "tests/flaws/"))]
)
def test_tests_of_time_never_sleep(path: str) -> None:
    """Tests of the core pass the time in, and those of the flaws run in virtual time: none waits in real time."""
    assert "time.sleep(" not in (ROOT / path).read_text(encoding="utf-8")


def _files_of_the_project() -> list[Path]:
    """Return the text files under version control; all files but caches if there is no version control."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        paths = [ROOT / name for name in listing.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [
            path for path in ROOT.rglob("*") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        ]
    return [
        path
        for path in paths
        if path.is_file()
        and path.suffix in (".py", ".md", ".toml", ".yml", ".yaml", ".json", ".jsonl", ".txt", ".cfg", "")
    ]


def test_no_path_of_a_machine_is_written_down() -> None:
    """Nothing in the project names the machine, the user or the package index with which it was made."""
    wrong = []
    for path in _files_of_the_project():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if FORBIDDEN.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")

    assert [] == wrong


def test_no_mark_of_unfinished_work_is_left() -> None:
    """What is not done is in the issue tracker, and not in a comment."""
    marks = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path in [*MODULES, *TESTS]
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1)
        if marks.search(line)
    ]

    assert [] == wrong
