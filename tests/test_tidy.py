"""Rules of the project that no linter checks: sizes, reasons for exceptions to rules, words that must not appear."""

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import ratelimited_executor
from ratelimited_executor import abc

from .sampled import EVERY

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


@cache
def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(_text(path))


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


def test_module_is_not_too_long() -> None:
    """A module that has grown past 600 lines without its docstrings has more than one subject."""
    lengths = {path: len(_text(path).splitlines()) - _docstring_lines(_tree(path)) for path in MODULES}

    assert {} == {path: length for path, length in lengths.items() if length > MODULE_LINES_MAX}


def test_name_of_a_class_is_given_once() -> None:
    """Two classes of one name are two ideas behind one word."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path)

    homes.pop("Slots")  # the limiter, and a scenario, whose class is named as on the command line
    assert {} == {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_functions_are_not_too_long() -> None:
    """A function of more than 70 lines does more than one thing."""
    lengths = {(path, node.name): _length(node) for path in MODULES for node in _functions(_tree(path))}

    assert {} == {name: length for name, length in lengths.items() if length > FUNCTION_LINES_MAX}


def test_public_things_say_what_they_are() -> None:
    """Every module, public class and public function has a docstring.

    Special methods and setters need none, nor do methods of a private class or of one whose base is a contract.
    """
    missing = [path for path in MODULES if _tree(path).body and not ast.get_docstring(_tree(path))]

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

    for path in MODULES:
        visit(_tree(path), f"{path}: ")
    assert [] == missing


def test_no_error_is_swallowed() -> None:
    """No handler of all exceptions ignores or only logs them: a failure must be handled or passed on."""
    wrong = []
    for path, node in ((path, node) for path in MODULES for node in ast.walk(_tree(path))):
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


def test_exception_to_a_rule_gives_its_reason() -> None:
    """Each ``noqa`` and each ``type: ignore`` names the rule that it ignores and gives a reason on the same line."""
    wrong = []
    lines = ((path, *each) for path in MODULES for each in enumerate(_text(path).splitlines(), start=1))
    for path, number, line in lines:
        match = EXCEPTION.search(line)
        if match is None:
            continue
        has_code = "[" in match[1] if match[1].startswith("type") else ":" in match[1]
        if not has_code or not REASON.match(match["rest"]):
            wrong.append(f"{path}:{number}: {line.strip()}")

    assert [] == wrong


def test_each_test_says_which_law_it_checks() -> None:
    """Each test has a docstring, whose first line is a sentence."""
    trees = {path: _tree(path) for path in TESTS if Path(path).name.startswith("test_")}
    owners: list[tuple[str, ast.Module | ast.ClassDef]] = [*trees.items()]
    for path, tree in trees.items():
        owners += [
            (path, each) for each in tree.body if isinstance(each, ast.ClassDef) and each.name.startswith("Test")
        ]
    wrong = []
    for path, owner in owners:
        for node in owner.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                if not re.search(r"[.:?]$", text.strip()):
                    wrong.append(f"{path}: {node.name}")

    assert [] == wrong


def test_no_test_hides_another() -> None:
    """Of two tests of one name in a module or class only the second one runs."""
    wrong = []
    for path in TESTS:
        owners = [_tree(path), *(node for node in _tree(path).body if isinstance(node, ast.ClassDef))]
        for owner in owners:
            functions = [node for node in owner.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
            counts = Counter(node.name for node in functions if node.name.startswith("test_"))
            wrong += [f"{path}: {name}" for name, count in counts.items() if count > 1]

    assert [] == wrong


def test_tests_of_a_module_are_found_by_its_name() -> None:
    """``_core/queue/queue.py`` has ``tests/core/queue/test_queue.py``, or the table in ``tests/README.md`` names it."""
    table = re.findall(r"`([\w/]+\.py)`", _text("tests/README.md"))
    wrong = []
    for path in MODULES:
        if re.search(r"/_(kernel|core|runtime)/(?!.*__init__)", path):
            part, *folders, name = path.split("/")[1:]
            namesake = "/".join(["tests", part.removeprefix("_"), *folders, f"test_{name}"])
            if namesake not in TESTS and "/".join([*folders, name]) not in table:
                wrong.append(path)

    assert [] == wrong


def test_files_that_the_readme_of_the_tests_names_are_there() -> None:
    """Each file that is named there with its folder is a test file or a module of the package."""
    text = _text("tests/README.md")
    named = [name.removeprefix("tests/") for name in re.findall(r"`([\w/]+/\w+\.py)`", text)]
    modules = {
        path.split("/", 1)[1].removeprefix("_kernel/").removeprefix("_core/").removeprefix("_runtime/")
        for path in MODULES
    }
    known = {path.removeprefix("tests/") for path in TESTS} | modules | {path.split("/", 1)[1] for path in MODULES}

    assert [] == [name for name in named if name not in known]


def test_tests_of_time_never_sleep() -> None:
    """Tests of the core pass the time in, and those of the flaws run in virtual time: none waits in real time."""
    paths = [path for path in TESTS if path.startswith(("tests/kernel/", "tests/core/", "tests/flaws/"))]

    assert [] == [path for path in paths if "time.sleep(" in _text(path)]


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
        for number, line in enumerate(_text(path).splitlines(), start=1)
        if marks.search(line)
    ]

    assert [] == wrong


def test_each_test_of_which_some_cases_run_is_there() -> None:
    """A test of which only some cases run by default is one that exists."""
    for test, every in EVERY.items():
        path, _, name = test.partition("::")
        assert re.search(
            rf"^(async )?def {name}\(", (ROOT / "tests" / path).read_text(encoding="utf-8"), re.MULTILINE
        ), test
        assert every > 1
