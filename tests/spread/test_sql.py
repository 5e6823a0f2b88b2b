"""Databases select exactly the keys of each slot, from 20,000 keys of each kind."""

import random
import sqlite3
from collections import Counter, defaultdict
from functools import cache
from uuid import UUID

import psycopg
import pytest

from ratelimited_executor.spread import CycleSlots, bucket_expression, install_sqlite, key_hash, slot_predicate

COUNT = 20_000
TYPES = {"int": "bigint", "uuid": "uuid", "text": "text", "bytes": "bytea"}
LETTERS = "aZ09 -_%'\"\\éß漢🙂\n\t"


@cache
def keys_of(kind) -> list:
    rng = random.Random(kind)
    if kind == "int":
        return [*range(COUNT - 5000), *(rng.randrange(-(2**63), 2**63) for _ in range(4998)), 2**63 - 1, -(2**63)]
    if kind == "uuid":
        return [UUID(int=rng.getrandbits(128)) for _ in range(COUNT)]
    texts = ["", *{"".join(rng.choices(LETTERS, k=rng.randrange(1, 20))) for _ in range(2 * COUNT)}][:COUNT]
    return texts if kind == "text" else [text.encode("utf-16") for text in texts]


@cache
def numbers_by_slot(kind, buckets=65_536) -> dict[int, set[int]]:
    """The numbers of the keys in each slot."""
    found, slots = defaultdict(set), CycleSlots("8h", buckets)
    for number, key in enumerate(keys_of(kind)):
        found[slots.slot_of(key)].add(number)
    return found


@pytest.fixture(scope="module")
def tables(postgresql):
    """A connection to PostgreSQL with one table for each kind of key; each table has a key that is NULL, too."""
    with psycopg.connect(postgresql) as connection:
        for kind, of_sql in TYPES.items():
            connection.execute(f"create temporary table {kind}s (id {of_sql}, number int)")
            with connection.cursor().copy(f"copy {kind}s from stdin (format binary)") as copy:
                copy.set_types([{"int": "int8"}.get(kind, of_sql), "int4"])
                for number, key in enumerate(keys_of(kind)):
                    copy.write_row((key, number))
                copy.write_row((None, -1))
        yield connection


@pytest.mark.parametrize("kind", TYPES)
def test_postgresql_agrees_on_every_key(tables, kind):
    """The predicate of a slot selects that slot's keys and no others, by an index if there is one for it."""
    expected, slots = numbers_by_slot(kind), range(128)
    if kind == "text":
        slots = [0, 1, 63, 64, 127]
    else:
        expression = bucket_expression("id", kind=kind, dialect="postgresql")
        tables.execute(f"create index on {kind}s (({expression}))")
        tables.execute(f"analyze {kind}s")
        where = slot_predicate("id", 7, "8h", kind=kind, dialect="postgresql")
        plan = "\n".join(line for (line,) in tables.execute(f"explain select number from {kind}s where {where}"))
        assert "Index" in plan, plan
    for slot in slots:
        where = slot_predicate("id", slot, "8h", kind=kind, dialect="postgresql")
        seen = {number for (number,) in tables.execute(f"select number from {kind}s where {where}")}
        assert expected[slot] == seen


@pytest.mark.parametrize("buckets", [256, 65_536])
@pytest.mark.parametrize("kind", TYPES)
def test_postgresql_agrees_on_every_bucket(tables, kind, buckets):
    """The bucket expression yields the leading bytes of a key's hash, and the predicate selects the slot's buckets."""
    expression = bucket_expression("id", kind=kind, dialect="postgresql", buckets=buckets)
    found = dict(tables.execute(f"select number, {expression} from {kind}s where id is not null"))
    keys = keys_of(kind)
    assert {number: key_hash(key) * buckets >> 64 for number, key in enumerate(keys)} == {
        number: int.from_bytes(bucket, "big") for number, bucket in found.items()
    }
    for slot in (0, 127):
        where = slot_predicate("id", slot, "8h", kind=kind, dialect="postgresql", buckets=buckets)
        seen = {number for (number,) in tables.execute(f"select number from {kind}s where {where}")}
        assert numbers_by_slot(kind, buckets)[slot] == seen


@pytest.mark.parametrize("form", ["text", "blob"])
@pytest.mark.parametrize("buckets", [256, 65_536])
@pytest.mark.parametrize("kind", TYPES)
def test_sqlite_agrees_on_every_key(kind, buckets, form):
    """The predicate of a slot selects that slot's keys and no others, with UUIDs as text or as blobs."""
    if kind != "uuid" and form == "blob":
        return
    keys = keys_of(kind)
    connection = sqlite3.connect(":memory:")
    install_sqlite(connection)
    connection.execute("create table keys (id, number)")
    stored = keys if kind != "uuid" else [key.bytes if form == "blob" else str(key) for key in keys]
    connection.executemany("insert into keys values (?, ?)", [*zip(stored, range(COUNT), strict=True), (None, -1)])
    connection.execute(
        f"create index by_bucket on keys ({bucket_expression('keys.id'.split('.')[1], kind=kind, dialect='sqlite', buckets=buckets)})"
    )
    seen = [None] * COUNT
    for slot in range(128):
        where = slot_predicate("id", slot, "8h", kind=kind, dialect="sqlite", buckets=buckets)
        for (number,) in connection.execute(f"select number from keys where {where}"):
            assert seen[number] is None
            seen[number] = slot
    slots = CycleSlots("8h", buckets)
    assert [slots.slot_of(key) for key in keys] == seen
    ((*_, plan),) = connection.execute(f"explain query plan select number from keys where {where}")
    assert "by_bucket" in plan
    connection.close()


def test_names_are_quoted(tables):
    """Capitals, schemas and SQL keywords work as names."""
    tables.execute('create temporary table "Order" ("select" bigint)')
    tables.execute('insert into "Order" values (1), (2)')
    counts = Counter()
    for slot in range(128):
        where = slot_predicate("Order.select", slot, "8h", kind="int", dialect="postgresql")
        counts.update(key for (key,) in tables.execute(f'select "select" from "Order" where {where}'))
    assert {1: 1, 2: 1} == counts


def test_what_is_no_key_is_refused_by_sqlite():
    """SQLite reports an error for values of another type, but NULL stays NULL."""
    connection = sqlite3.connect(":memory:")
    install_sqlite(connection)
    assert connection.execute("select spread_bucket(1, 256), spread_bucket(null, 256)").fetchone() == (
        key_hash(1) >> 56,
        None,
    )
    for call in ("spread_bucket(1.5, 256)", "spread_bucket_uuid('no uuid', 256)", "spread_bucket_uuid(x'00', 256)"):
        with pytest.raises(sqlite3.OperationalError):
            connection.execute(f"select {call}").fetchone()
    connection.close()


GOOD = {"column": "id", "slot": 0, "cycle": "8h", "kind": "int", "dialect": "postgresql"}


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"column": "id; drop table accounts"}, "column"),
        ({"column": 'id"'}, "column"),
        ({"column": ""}, "column"),
        ({"column": "1id"}, "column"),
        ({"slot": 128}, "slot"),
        ({"slot": -1}, "slot"),
        ({"cycle": 7}, "cycle"),
        ({"kind": "float"}, "kind"),
        ({"dialect": "mysql"}, "dialect"),
        ({"buckets": 100}, "buckets"),
    ],
)
def test_bad_arguments_are_refused_by_name(wrong, name):
    """Bad arguments are refused before they get into a statement, and the message names the argument."""
    arguments = {**GOOD, **wrong}
    with pytest.raises(ValueError, match=f"^{name} must"):
        slot_predicate(arguments.pop("column"), arguments.pop("slot"), arguments.pop("cycle"), **arguments)
    with pytest.raises(TypeError, match="column must be a str"):
        bucket_expression(None, kind="int", dialect="sqlite")
