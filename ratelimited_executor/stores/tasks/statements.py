"""SQL statements by name, and the steps of a schema, read from files."""

from __future__ import annotations

import re
from collections.abc import Generator
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from ratelimited_executor.exceptions import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Moves", "SchemaStep", "Together", "lacking", "numbered", "read_schema", "read_statements", "script", "upgrade"]  # fmt: skip

T = TypeVar("T")
Moves: TypeAlias = Generator[tuple[str, "Sequence[tuple[Any, ...]] | Together"], list[tuple[Any, ...]], T]
"""A program that requests statements, as ``moves.py`` says."""

_ARGUMENT: Final = re.compile(r"\$(\d+)")
_COMMENT: Final = re.compile(r"--.*$", re.MULTILINE)
_VERSION: Final = re.compile(r"^-- version: (\d+), for processes that know (\d+) or later$", re.MULTILINE)
_HEADING: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_TASK: Final = """number, id, queue, name, version, substr(body, 1, $2), state, put_us, due_us, priority, lane, "key", attempt_count,
    lost_count, owner, is_cancelled, error, substr(saved, 1, $2)"""
"""In place of ``$task``: what a ``TaskRow`` is made of, with the first $2 bytes of arguments and state."""


class SchemaStep(NamedTuple):
    """The step from one version of a schema to the next.

    Processes of the previous release continue during the step and after it. So a step only adds: columns with a
    default, tables, indexes. If that is not possible, ``least`` is raised, and a process that knows less refuses to
    open the store.

    Attributes:
        version: the version of the result.
        least: the version that a process has to know to use the result.
        statements: the statements of the step.
    """

    version: int
    least: int
    statements: tuple[str, ...]


class Together(NamedTuple):
    """Rows for one run of a statement; the store decides how to pass them.

    Attributes:
        rows: rows of values, which may include bytes.
        rest: the statement's other arguments.
    """

    rows: list[tuple[Any, ...]]
    rest: tuple[Any, ...]


def read_schema(name: str, package: str = __package__) -> tuple[SchemaStep, ...]:
    """Read the steps of a schema from a file of a package, each under a line ``-- version: ...``."""
    _, *parts = _VERSION.split(read_text(name, package))
    return tuple(
        SchemaStep(int(version), int(least), tuple(text for text, _ in numbered(statements)))
        for version, least, statements in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    )


def lacking(
    store: str, steps: tuple[SchemaStep, ...], version: int, least: int, *, create: bool = True
) -> tuple[SchemaStep, ...]:
    """Return the steps that the database of a store lacks.

    Raises:
        StoreUnavailableError: if it is of an incompatible newer release; or lacks any steps with ``create=False``.
    """
    known = steps[-1].version
    if least > known:
        raise StoreUnavailableError(
            store,
            f"a newer release has changed its tables (schema {version}, for processes that know {least} or later; "
            f"this one knows {known}): update this process",
            is_permanent=True,
        )
    missing = tuple(step for step in steps if step.version > version)
    if missing and not create:
        raise StoreUnavailableError(
            store,
            f"an older release has made its tables (schema {version}; this one needs {known}): start a process of this release "
            "that puts or runs tasks, which updates them",
        )
    return missing


def upgrade(
    store: str,
    steps: tuple[SchemaStep, ...],
    versions: tuple[int, int] | None,
    *,
    create: bool = True,
    table: str = "durable_schema",
) -> list[str]:
    """Return the statements that bring the database of a store to this release; none if nothing is missing.

    Args:
        store: the store, for errors.
        steps: those of this release.
        versions: the row of the table of versions, which exists; None if it is empty.
        create: as for :func:`lacking`.
        table: the table of versions.
    """
    missing = lacking(store, steps, *(versions or (0, 0)), create=create)
    if not missing:
        return []
    version = f"insert into {table} values ({missing[-1].version}, {missing[-1].least})"  # noqa: S608  # of ours
    return [*(each for step in missing for each in step.statements), f"delete from {table}", version]  # noqa: S608  # of ours


def script(*statements: str) -> str:
    """Return statements as a text for a client of the database."""
    return "".join(f"{statement};\n" for statement in statements)


def read_text(file: str, package: str = __package__) -> str:
    """Read a file of a package: of this one, by default."""
    return files(package).joinpath(file).read_text(encoding="utf-8")


def numbered(text: str) -> list[tuple[str, list[int]]]:
    """Split a text into statements, each with ``?`` for its arguments, and their numbers."""
    parts = [part.strip() for part in _COMMENT.sub("", text).split(";")]
    return [(_ARGUMENT.sub("?", part), [int(number) for number in _ARGUMENT.findall(part)]) for part in parts if part]


def read_statements(*names: str) -> dict[str, str]:
    """Read files of statements, each under a line ``-- name: ...``; later files override earlier ones.

    Each list of tasks, ``rows...``, gets a twin ``newest_rows...`` in the reverse order, before a number.
    """
    statements: dict[str, str] = {}
    for name in names:
        _, *parts = _HEADING.split(read_text(name))
        texts = (text.strip().replace("$task", _TASK) for text in parts[1::2])
        statements.update(zip(parts[::2], texts, strict=True))
    lists = {name: text for name, text in statements.items() if name.startswith("rows")}
    for name, text in lists.items():
        reverse = text.replace("number > $1", "number < $1").replace("order by number", "order by number desc")
        statements[f"newest_{name}"] = reverse
    return statements
