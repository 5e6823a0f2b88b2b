"""The programs of the documentation run, its links lead somewhere, and its reference agrees with the code.

Every Python block of README and docs runs as it stands in virtual time: ``asyncio.run`` is replaced by ``run_virtual``
of the test kit. Programs that need no replacement run in ``docs/test_programs.py``. A ``text`` block right after a
program is its output. A ``pyi`` block of the reference is compared with the code: parameters, kinds, and defaults.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import enum
import inspect
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

import ratelimited_executor
from ratelimited_executor._kernel.choice import compiled
from ratelimited_executor._kernel.fields import FIELDS
from ratelimited_executor import (
    abc,
    blocking,
    cycles,
    durable,
    exceptions,
    front,
    handles,
    insight,
    metrics,
    orders,
    peers,
    policies,
    retries,
    simulation,
    slots,
    spread,
    testing,
    tracing,
)
from ratelimited_executor._runtime.limits.policy import RULES, Policy
from ratelimited_executor.testing import run_virtual

from .docs.test_programs import is_run_here
from .helpers import extras

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = [page for page in PAGES if page.parent.name == "reference"]
# tests/testing/test_howto.py, which runs its tests as tests; tests/peers/test_howto.py and tests/peers/test_stored_howto.py, which have servers;
# tests/runtime/durable/test_tutorial.py, which has a shell; tests/stores/tasks/test_howto.py, which has a PostgreSQL;
# tests/front/test_howto.py, which has sockets
TESTED_ELSEWHERE = {
    "test-your-code.md",
    "share-a-rate.md",
    "share-every-limit.md",
    "share-without-a-server.md",
    "limit-how-many-at-once.md",
    "tutorial-durable.md",
    "put-in-a-transaction.md",
    "durable-tasks-over-http.md",
}
BLOCK = re.compile(
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```$(?:\n+^```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL
)


def blocks(language: str, pages: list[Path]) -> Iterator[Any]:
    """Yield every block of a language with its page, its line, and its output: the text block right after it."""
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match["language"] == language:
                line = text.count("\n", 0, match.start("code"))
                yield pytest.param(
                    page, line, match["code"], match["output"], id=f"{page.relative_to(ROOT)}:{line + 1}"
                )


@pytest.mark.parametrize(
    ("page", "line", "code", "output"),
    [
        block
        for block in blocks("python", [page for page in PAGES if page.name not in TESTED_ELSEWHERE])
        if not is_run_here(block.values[0], block.values[2])
    ],
)
def test_python_block_runs_and_prints_what_it_says(
    page: Path,
    line: int,
    code: str,
    output: str | None,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Each block is a program that runs in its own directory; it passes its assertions, and prints what is shown."""
    monkeypatch.setattr(asyncio, "run", run_virtual)
    request.addfinalizer(partial(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM)))
    if "sqlite" in code.lower():
        monkeypatch.chdir(tmp_path)  # a program with SQLite creates files

    with extras():
        exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), {"__name__": "__main__"})

    printed = capsys.readouterr().out
    if output is not None:
        assert printed == output


def test_example_in_the_readme_does_what_its_comments_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example sends each message once, in the order of importance, and its delayed call runs at its time."""
    monkeypatch.setattr(asyncio, "run", run_virtual)
    (example,) = blocks("python", [ROOT / "README.md"])

    exec(compile(example.values[2], "README.md", "exec"), {})

    assert capsys.readouterr().out.splitlines() == [
        "password reset",
        "hi",
        "ten seconds later",
        "bye",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file, and every fragment a heading of it."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, fragment = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (fragment and fragment not in anchors(file)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Return the fragments of a page's headings, as code forges derive them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_listed_in_the_index() -> None:
    """docs/README.md leads to every page."""
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index.read_text())}

    assert [page for page in PAGES if "docs" in page.parts and page != index and page not in listed] == []


# Lists that a new policy or order belongs in; "page#heading" is a section, "page|row" the lines that begin so.
LISTS_OF_POLICIES = [
    "README.md|- [Rates, policies",
    "changelog.md",
    "explanation/policies.md#The same twelve tasks",
    "explanation/policies.md#The laws",
    "explanation/policies.md#Slack and margin",
    "explanation/policies.md#Costs",
    "explanation/policies.md#With peers",
    "glossary.md|| policy; rule |",
    "howto/costs-and-resources.md",
    "howto/share-between-tenants.md",
    "reference/executor.md|| `policy` |",
    "reference/overload.md#Limits of keys",
    "reference/rates.md",
]
LISTS_OF_ORDERS = [
    "README.md|- [Rates, policies",
    "changelog.md",
    "howto/share-between-tenants.md",
    "reference/rates.md",
]


def lacks(place: str, name: str) -> bool:
    """True if a list does not have a name."""
    ((page, sign, mark),) = re.findall(r"^([^#|]*)([#|]?)(.*)$", place)
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if sign == "#":
        text = text.partition(f"\n## {mark}\n")[2].partition("\n## ")[0]
    elif sign == "|":
        text = "".join(line for line in text.splitlines() if line.startswith(mark))
    return re.search(rf"\b{name}\b", text) is None


@pytest.mark.parametrize("policy", get_args(Policy), ids=lambda policy: policy.__name__)
def test_policy_is_in_each_list_of_policies(policy: type) -> None:
    """Pages that list the policies name each of them, and the kinds of limits in statistics include its own."""
    assert [place for place in LISTS_OF_POLICIES if lacks(place, policy.__name__)] == []
    assert not lacks("reference/statistics.md|| `kind` |", RULES[policy].kind)


@pytest.mark.parametrize("name", sorted({*orders.__all__} - {"TaskView", "default_order"}))
def test_order_is_in_each_list_of_orders(name: str) -> None:
    """Pages that list the orders name each of them."""
    assert [place for place in LISTS_OF_ORDERS if lacks(place, name)] == []


# The reference.


def reference_text() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE)


TOPICS = [abc, cycles, exceptions, handles, insight, orders, peers, policies, retries]
HOMES = [
    ratelimited_executor,
    *TOPICS,
    blocking,
    durable,
    front,
    metrics,
    slots,
    spread,
    simulation,
    tracing,
]  # where public names live
NAMES = sorted({name for home in HOMES for name in home.__all__})


def public(name: str) -> Any:
    """Return the object with a public name; of a class with two bodies the pure one, which has signatures."""
    found = next(getattr(home, name) for home in HOMES if name in home.__all__)
    if compiled is not None and isinstance(found, type) and compiled.bodies.get(name) is found:
        return compiled.pure[name]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_in_the_reference(name: str) -> None:
    """The reference mentions each public name, in its text or in a stub."""
    is_named = re.search(rf"\b{name}\b", reference_text()) is not None  # an assert of it all would print the reference
    assert is_named, f"no page of docs/reference names {name}"


def test_table_of_modules_names_what_they_have() -> None:
    """Each module's row has all public names of that module and no other name."""
    page = (ROOT / "docs" / "reference" / "modules.md").read_text(encoding="utf-8")
    for home in HOMES:
        (row,) = re.findall(rf"^\| `{home.__name__}` \| (.*)$", page, re.MULTILINE)
        names = set(re.findall(r"`(\w+)`", row))  # none where the row has a link to all of them
        unlike = set() if home is exceptions or not names else names ^ set(home.__all__)
        assert not unlike, home.__name__


@pytest.mark.parametrize("name", testing.__all__)
def test_name_of_the_test_kit_is_in_the_docs(name: str) -> None:
    """The how-to on testing or the reference mentions each name of the test kit."""
    howto = (ROOT / "docs" / "howto" / "test-your-code.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{name}\b", reference_text() + howto)


def public_members(owner: type) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def stubs() -> dict[str, dict[str, ast.AST]]:
    """Return what the stubs define: class -> member -> definition; functions outside of classes are under ''."""
    found: dict[str, dict[str, ast.AST]] = {"": {}}
    for param in blocks("pyi", REFERENCE):
        page, line, code, _ = param.values
        for node in ast.parse(code, filename=f"{page}:{line}").body:
            if isinstance(node, ast.ClassDef):
                members = found.setdefault(node.name, {})
                for statement in node.body:
                    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                        members[statement.name] = statement
                    elif isinstance(statement, ast.AnnAssign | ast.Assign):
                        target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
                        assert isinstance(target, ast.Name)
                        members[target.id] = statement
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[""][node.name] = node
    return found


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.name)
def test_page_of_the_reference_begins_with_the_imports_of_its_names(page: Path) -> None:
    """Ahead of what it describes, a page imports each public name that it has a stub of; other tests run the imports."""
    stubbed = {getattr(node, "name", "") for stub in blocks("pyi", [page]) for node in ast.parse(stub.values[2]).body}
    described = {"errors.md": exceptions.__all__, "testing.md": testing.__all__}.get(page.name, stubbed & {*NAMES})
    if not described:
        return
    head = next(iter(blocks("python", [page])))
    assert {*described} == {
        alias.name
        for node in ast.parse(head.values[2]).body
        for alias in (node.names if isinstance(node, ast.ImportFrom) else [])
    }
    assert all(head.values[1] < stub.values[1] for stub in blocks("pyi", [page]))


STUBS = stubs()
CLASSES = [name for name in NAMES if isinstance(public(name), type) and not issubclass(public(name), BaseException)]


@pytest.mark.parametrize("name", CLASSES)
def test_stub_of_a_class_has_its_members_and_no_others(name: str) -> None:
    """A stub has the public methods, properties, fields and enum members of its class and no others."""
    owner = public(name)
    expected = public_members(owner)
    if dataclasses.is_dataclass(owner):
        expected |= {field.name for field in dataclasses.fields(owner) if not field.name.startswith("_")}
    if issubclass(owner, enum.Enum):
        expected = {member.name for member in owner}
    if issubclass(owner, tuple):
        expected -= {"count", "index"}
    assert name in STUBS, f"no ```pyi stub of the class {name} in docs/reference"
    is_of_the_library = name in ("FuturesFace", "ScheduledExecutor", "ScheduledFuture")  # concurrent.futures
    bases = [base for base in owner.__mro__[1:] if is_of_the_library or base.__name__ in abc.__all__]
    inherited = set().union(*map(public_members, bases))

    stub = {member for member in STUBS[name] if not member.startswith("_")}
    fields = {field for base in owner.__mro__ for field in FIELDS.get(base.__name__, ())}  # of objects: may be left out

    assert expected - inherited - fields <= stub
    assert stub <= expected | inherited


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (owner, name)
        for owner, members in STUBS.items()
        for name, node in members.items()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ],
)
def test_signature_in_a_stub_is_that_of_the_code(owner: str, name: str) -> None:
    """A stub has the code's parameters with kinds, defaults and annotations, its return type and its properties."""
    module = next(home for home in HOMES if name in home.__all__) if owner == "" else public(owner)
    node = STUBS[owner][name]
    actual = inspect.getattr_static(module, name)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    assert (isinstance(actual, property), isinstance(actual, classmethod)) == (
        "property" in decorators,
        "classmethod" in decorators,
    )
    if isinstance(actual, property):
        assert (actual.fset is not None) == (f"{name}.setter" in stub_setters(owner, name))
        assert written(node.returns) == annotation_of(inspect.signature(actual.fget).return_annotation)
        return
    if name.startswith("__") and name != "__init__":
        return

    stub = [argument for argument in parameters_of(node) if argument[0] not in ("self", "cls")]
    signature = inspect.signature(getattr(module, name))
    code = [
        (parameter.name, parameter.kind, shown(parameter.default), annotation_of(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "refused")  # the latter only words a TypeError
    ]

    assert [argument[:3] for argument in stub] == [argument[:3] for argument in code]
    told = [argument[3] for argument in stub] + [written(node.returns)]
    meant = [argument[3] for argument in code] + [annotation_of(signature.return_annotation)]
    for text, wanted in zip(told, meant, strict=True):
        if wanted is not None and text != wanted:  # None: of the standard library
            assert re.search(r"\bAny\b|\*Ts", wanted), f"{text} is {wanted}"
            assert outline(text) == outline(wanted)


def stub_setters(owner: str, name: str) -> set[str]:
    """Return the setter of a property if a comment at its stub says that it may be set."""
    pattern = rf"def {name}\(self\)[^\n]*\.\.\.  # may be set"
    return {f"{name}.setter"} if re.search(pattern, reference_text()) else set()


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, Any, str | None, str | None]]:
    arguments = node.args
    kinds = inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    for argument, default in zip(positional, defaults, strict=True):
        kind = kinds.POSITIONAL_ONLY if argument in arguments.posonlyargs else kinds.POSITIONAL_OR_KEYWORD
        yield argument.arg, kind, None if default is None else ast.unparse(default), written(argument.annotation)
    if arguments.vararg is not None:
        yield arguments.vararg.arg, kinds.VAR_POSITIONAL, None, written(arguments.vararg.annotation)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        value = None if default is None else ast.unparse(default)
        yield argument.arg, kinds.KEYWORD_ONLY, value, written(argument.annotation)
    if arguments.kwarg is not None:
        yield arguments.kwarg.arg, kinds.VAR_KEYWORD, None, written(arguments.kwarg.annotation)


def written(annotation: ast.expr | None) -> str | None:
    """Return an annotation of a stub in a uniform spelling."""
    return None if annotation is None else ast.unparse(annotation)


def annotation_of(annotation: Any) -> str | None:
    """Return an annotation of the code in the same spelling; the code has annotations as texts."""
    if annotation is inspect.Signature.empty:
        return None
    text = annotation if isinstance(annotation, str) else repr(annotation)
    for private, shown_as in PRIVATE.items():
        text = re.sub(rf"\b{private}\b", shown_as, text)
    return text if text.startswith("*") else written(ast.parse(text, mode="eval").body)


def outline(annotation: str | None) -> str:
    """Return an annotation without item types and signatures, as a stub combines the overloads of the code."""

    class Outline(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:  # noqa: N802  # as ast calls it
            is_callable = isinstance(node.value, ast.Name) and node.value.id == "Callable"
            return node.value if is_callable else self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> ast.AST:  # noqa: N802  # as above
            return ast.Name("Any") if len(node.id) == 1 else node

    text = "Any" if annotation is None or annotation.startswith("*") else annotation
    return ast.unparse(Outline().visit(ast.parse(text, mode="eval")))


PRIVATE = {
    "T_co": "T",
    "FleetMember": "Any",
    "Policy": " | ".join(policy.__name__ for policy in get_args(Policy)),
}  # names of the code that users do not see


def shown(default: object) -> str | None:
    """Return a default value as a stub writes it."""
    if default is inspect.Parameter.empty:
        return None
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if callable(default):
        return str(default.__name__)
    return "inf" if default == float("inf") else repr(default)


def test_every_error_stands_in_the_tree() -> None:
    """The tree of errors has each error, and names those of its parents that are exceptions of Python."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8").partition("```text")[2]
    for name in exceptions.__all__:
        error = getattr(exceptions, name)
        if isinstance(error, type) and issubclass(error, BaseException):
            line = next(line for line in text.splitlines() if re.search(rf"[─^ ]*\b{name}\b", line))
            for base in error.__bases__:
                if base.__module__ == "builtins" and base is not Exception:
                    assert base.__name__ in line, line


def test_attributes_of_an_error_are_those_of_the_code() -> None:
    """The table names the attributes of each error, which are the parameters of its constructor."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    told = {name: set(re.findall(r"`(\w+)`", row[1])) for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    for name in exceptions.__all__:
        error = getattr(exceptions, name)
        if isinstance(error, type) and issubclass(error, BaseException) and "__init__" in vars(error):
            assert told.get(name, set()) == set(inspect.signature(error).parameters), name


# Style.


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "docs" in page.parts], ids=lambda page: str(page.relative_to(ROOT))
)
def test_prose_has_one_sentence_per_line(page: Path) -> None:
    """Outside code, tables and lists no line holds the end of one sentence and the start of another."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||[-*] |\d+\. )", line)]
    assert [line for line in lines if re.search(r"[a-z`)][.!?] [A-Z]", line)] == []
