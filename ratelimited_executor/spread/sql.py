"""Let a database select the keys of a cycle slot, exactly as this package does.

PostgreSQL (11 and later) has SHA-256 built in. SQLite does not, so :func:`install_sqlite` adds two functions to a
connection; they are marked deterministic, so that an index on the expression can be created and used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ratelimited_executor.spread.keys import key_hash
from ratelimited_executor.spread.slots import BUCKET_COUNTS, CycleSlots

if TYPE_CHECKING:
    import sqlite3

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["bucket_expression", "install_sqlite", "slot_predicate"]

_POSTGRESQL: Final = {
    "int": "int8send({}::bigint)",
    "uuid": "uuid_send({}::uuid)",
    "text": "convert_to({}::text, 'UTF8')",
    "bytes": "{}::bytea",
}
_SQLITE: Final = {
    "int": "spread_bucket",
    "uuid": "spread_bucket_uuid",
    "text": "spread_bucket",
    "bytes": "spread_bucket",
}
_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*){0,2}")


def slot_predicate(
    column: str,
    slot: int,
    cycle: DurationLike,
    *,
    kind: str,
    dialect: str,
    buckets: int = 65_536,
) -> str:
    r"""Return an SQL condition that selects exactly the keys of a slot; never NULL.

    It contains only numbers and the column, so it can be put into any statement unchanged.

    Args:
        column: the column of the keys: a name, qualified by its table and schema if needed.
        slot: the number of the slot, 0 <= slot < ``cycle_slots(cycle, buckets)``.
        cycle: as for :func:`cycle_slots`.
        kind: ``int``, ``uuid``, ``text`` or ``bytes``: the type of the keys as this package gets them.
        dialect: ``postgresql`` or ``sqlite``.
        buckets: as for :func:`cycle_slots`.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range, or ``column`` is not a name.

    >>> slot_predicate("accounts.id", 1, "8h", kind="int", dialect="postgresql", buckets=256)
    'substring(sha256(int8send("accounts"."id"::bigint)) from 1 for 1) between \'\\x02\'::bytea and \'\\x03\'::bytea'
    """
    inside = CycleSlots(cycle, buckets).buckets_of(slot)
    expression = bucket_expression(column, kind=kind, dialect=dialect, buckets=buckets)
    if dialect == "sqlite":
        return f"{expression} between {inside[0]} and {inside[-1]}"
    first, last = (bucket.to_bytes(BUCKET_COUNTS[buckets], "big").hex() for bucket in (inside[0], inside[-1]))
    return rf"{expression} between '\x{first}'::bytea and '\x{last}'::bytea"


def bucket_expression(column: str, *, kind: str, dialect: str, buckets: int = 65_536) -> str:
    """Return an SQL expression for a key's bucket, for an index that serves :func:`slot_predicate`.

    In SQLite it is an integer, in PostgreSQL one or two bytes. PostgreSQL accepts it in an index for ``int``, ``uuid`` and
    ``bytes``; for ``text`` it regards the conversion to UTF-8 as not immutable, so keep the bucket in a column.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range, or ``column`` is not a name.
    """
    if not isinstance(column, str):
        raise TypeError(f"column must be a str, got {column!r}")
    if not _NAME.fullmatch(column):
        raise ValueError(f"column must be a name such as id or accounts.id, got {column!r}")
    forms = {"postgresql": _POSTGRESQL, "sqlite": _SQLITE}.get(dialect)
    if forms is None:
        raise ValueError(f"dialect must be 'postgresql' or 'sqlite', got {dialect!r}")
    form = forms.get(kind)
    if form is None:
        raise ValueError(f"kind must be one of {', '.join(map(repr, forms))}, got {kind!r}")
    if buckets not in BUCKET_COUNTS:
        raise ValueError(f"buckets must be 256 or 65536, got {buckets!r}")
    quoted = ".".join(f'"{part}"' for part in column.split("."))
    if dialect == "sqlite":
        return f"{form}({quoted}, {buckets})"
    return f"substring(sha256({form.format(quoted)}) from 1 for {BUCKET_COUNTS[buckets]})"


def install_sqlite(connection: sqlite3.Connection) -> None:
    """Add the functions that :func:`slot_predicate` and :func:`bucket_expression` use to a SQLite connection.

    ``spread_bucket(key, buckets)`` takes an integer, a text or a blob; ``spread_bucket_uuid(key, buckets)`` takes a
    UUID as text or as a blob of 16 bytes. The bucket of NULL is NULL; a value that is not a key raises an error.
    """
    connection.create_function("spread_bucket", 2, _bucket, deterministic=True)
    connection.create_function("spread_bucket_uuid", 2, _bucket_of_uuid, deterministic=True)


def _bucket(key: Any, buckets: int) -> int | None:
    return None if key is None else key_hash(key) * buckets >> 64


def _bucket_of_uuid(key: Any, buckets: int) -> int | None:
    if key is None:
        return None
    return _bucket(UUID(bytes=key) if isinstance(key, bytes) else UUID(key), buckets)
