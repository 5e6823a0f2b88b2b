"""The moves of the SQL stores answer as the rules' own table does, whatever calls come in whatever order."""

from pathlib import Path

import apsw
import pytest

from ratelimited_executor._core.durable.pauses import KEPT_US, Pause
from ratelimited_executor._core.durable.tasks import Claim, NewTask
from ratelimited_executor.stores.tasks import history, moves, repetitions, sqlite, turns
from ratelimited_executor.stores.tasks.statements import numbered, read_schema, read_statements
from tests.stores.tasks.programs import TIMED, Program, run


class InMemory:
    """The moves on an SQLite database in memory."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        for step in read_schema("sqlite_schema.sql"):
            for statement in step.statements:
                self.connection.execute(statement)
        self.connection.execute("create temp table durable_claiming (number integer primary key, size integer)")

    def call(self, method, now_us, args, options):
        """Play the moves of one call in a transaction."""
        options = {"former": "", "held": (), **options} if method == "join" else options
        program = getattr(repetitions if hasattr(repetitions, method) else moves, method)(
            *([now_us] if method in TIMED else []), *args, **options
        )
        cursor = self.connection.cursor()
        cursor.execute("begin")
        result = sqlite._play(cursor, program)
        cursor.execute("commit")
        return result


@pytest.mark.parametrize("seed", range(80))
def test_moves_answer_as_the_table(seed):
    """Moves answer random programs as the table does, with clock steps, stale claims and duplicate ids."""
    run(Program(seed, is_hasty=seed % 2 == 0), 60, InMemory().call)


TEXTS = read_statements("statements.sql", "sqlite_statements.sql")
BROKEN = {
    "an end without its token": (
        "end",
        "(number, token) in (select value ->> 0, value ->> 1",
        "number in (select value ->> 0",
    ),
    "a retry without its token": ("retry", "token = $5", "$5 > 0"),
    "a release without its token": ("put_aside", "token = $3", "$3 > 0"),
    "an end of what is not claimed": ("end", "state = 3 and", ""),
    "claims that nobody gives back": ("give_back", "owner = $2", "owner = $2 and 1 = 0"),
    "claims that go to the next owner, held or not": (
        "hand_over",
        "(number, token) in",
        "'' < $3 or (number, token) in",
    ),
    "claims that go to the next owner without their tokens": (
        "hand_over",
        "(number, token) in (select value ->> 0, value ->> 1",
        "number in (select value ->> 0",
    ),
    "leases that are never renewed": ("renew", "owner = $2", "owner = $2 and 1 = 0"),
    "leases by which nobody goes": ("owner", "owner = $1", "'' < $1 limit 1"),
    "lanes that go on over a dead letter": ("head", "(state <> 5 or is_blocking = 1)", "state <> 5"),
    "ids that are forgotten": ("remember", "where true", "where false"),
    "tasks that are claimed after they expired": ("expired", "expires_us <= $1", "expires_us <= $1 - 1000000"),
    "a unique key that keeps its first task": (
        "set_unique",
        "id = excluded.id, until_us = excluded.until_us",
        "id = durable_unique.id",
    ),
    "a period that ends with its task": ("holder", "then 1 else 0", "then 0 else 0"),
    "a duplicate that lowers the priority": ("change", "priority < $3", "priority <> $3"),
    "a debounced task that expires as if it were not": (
        "postpone",
        "expires_us = $1 + span_us",
        "expires_us = expires_us",
    ),
    "a state of what is not claimed": ("save", "and state = 3", ""),
    "the least important first": ("claim", "priority desc", "priority"),
    "paused tasks that anyone revives": ("set_aside", "version = -1 - version, ", ""),
    "tasks that stay paused": ("put_back", "owner = $1 order", "owner = '' || $1 || '?' order"),
    "repetitions that stay paused": (
        "declare",
        "until_us = $13",
        "until_us = case when $13 = 0 then until_us else $13 end",
    ),
    "repetitions that cannot be paused": (
        "declare",
        "until_us = $13",
        "until_us = case when 1 = 1 then 0 else $13 end",
    ),
    "a definition that is not saved": (
        "declare",
        "definition = $11",
        "definition = case when $12 = 1 then '' else $11 end",
    ),
    "a paused repetition whose older occurrences stay": ("waiting", "id < $1 || 'A'", "id < $1 || '@'"),
    "a next occurrence that is retried": ("repetitions", "(token = 0 or", "(token >= 0 or"),
    "a skipped occurrence that is placed again": ("remember", "where true", "where $2 = 0"),
    "a pause that is forgotten at once": (
        "set_pause",
        "values ($1, $2, $3)",
        "select $1, $2, $3 where $3 is not null and 1 = 1",
    ),
}


# The program that finds it, if not one of the first.
FOUND_BY = {
    "an end without its token": 79,
    "a retry without its token": 79,
    "a release without its token": 23,
    "claims that nobody gives back": 9,
    "claims that go to the next owner without their tokens": 32,
    "lanes that go on over a dead letter": 9,
    "a unique key that keeps its first task": 42,
    "a period that ends with its task": 48,
    "a debounced task that expires as if it were not": 131,
    "a state of what is not claimed": 31,
    "the least important first": 19,
    "paused tasks that anyone revives": 43,
    "tasks that stay paused": 53,
    "repetitions that stay paused": 25,
    "repetitions that cannot be paused": 15,
    "a paused repetition whose older occurrences stay": 15,
    "a skipped occurrence that is placed again": 68,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_that_is_broken_is_found(name, monkeypatch):
    """Each rule that is broken on purpose is found by one of the programs above."""
    statement, old, new = BROKEN[name]
    text = TEXTS[statement]
    assert old in text
    monkeypatch.setitem(sqlite._STATEMENTS, statement, numbered(text.replace(old, new)))
    for seed in [FOUND_BY.get(name, 0), *range(150)]:
        try:
            run(Program(seed, is_hasty=seed % 2 == 0), 60, InMemory().call)
        except (AssertionError, apsw.ConstraintError, KeyError):
            return
    pytest.fail("not found")


def test_claims_cost_no_more_while_nothing_is_paused():
    """A claim runs seven statements, also if nothing was paused that is resumed, and in the end after a pause; during a pause three more, however much is paused."""
    store, runs = InMemory(), []

    def told(program):
        step = next(program)
        try:
            while True:
                runs.extend(step[0] for _ in step[1])
                step = program.send((yield step))
        except StopIteration as end:
            return end.value

    def claim(now_us):
        runs.clear()
        cursor = store.connection.cursor()
        claims = sqlite._play(cursor, told(moves.claim(now_us, Claim(owner="o", count=5))))
        return [task.id for task in claims.tasks], tuple(runs)

    usual = ("owner", "make_ready", "make_heads_ready", "expired", "claim", "next_due", "next_head_due")
    store.call("join", 0, ["o", 10**9], {})
    assert not store.call("resume", 0, [Pause(function="f")], {})
    assert ([], usual) == claim(0)
    store.call("pause", 0, [Pause(function="f"), None], {})
    store.call("put", 0, [[NewTask(id=f"f{n}", name="f") for n in range(2500)]], {})
    store.call("put", 0, [[NewTask(id="g", name="g", priority=-1.0)]], {})
    found = [claim(0) for _ in range(4)]
    assert [[], [], ["g"], []] == [ids for ids, _ in found]
    assert 3 == max(len(set(each).difference(usual)) + len(each) - len(set(each)) for _, each in found)
    assert ([], (*usual[:4], "ready_first", *usual[4:])) == found[-1]
    store.call("resume", 0, [Pause(function="f")], {})
    while claim(0)[0]:
        assert "put_back" in runs
    claim(KEPT_US)
    assert "forget_pause" in runs
    assert ([], usual) == claim(KEPT_US)


def test_every_statement_is_asked_for():
    """Every SQL statement is used by a move."""
    modules = (history, moves, repetitions, turns)
    source = "".join(Path(each.__file__).read_text(encoding="utf-8") for each in modules)
    listed = {name.removeprefix("newest_") for name in TEXTS}  # a list in the reverse order has the name of the other
    assert [] == [name for name in sorted(listed) if f'"{name}"' not in source]
