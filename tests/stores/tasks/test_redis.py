"""Durable tasks on real Redis servers: the rules as scripts, lost answers, and servers that are killed or full."""

import asyncio
import contextlib
import itertools
import re
import shutil
import sys
import traceback
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

import hypothesis
import redis.asyncio
from hypothesis import example, given
from redis.asyncio.cluster import RedisCluster

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor._core.durable.pauses import Pause
from ratelimited_executor._core.durable.tasks import (
    Beat,
    Claim,
    DurableState,
    End,
    NewTask,
    Occurrence,
    Placement,
    Ref,
    TaskOutcome,
    Turns,
)
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.durable import DurableTasks, RedisStore
from ratelimited_executor.stores.tasks import redis as module
from ratelimited_executor.stores.tasks.redis_layout import SCRIPTS
from tests.core.test_urls import PASSWORDS, holds
from tests.peers.proxy import Proxy
from tests.peers.servers import RedisServer

from .conftest import opening, task
from .programs import Program

HOWTO = Path(__file__).parents[3] / "docs" / "howto" / "operate-durable-tasks.md"
AOF = ["appendonly yes", "appendfsync always"]
HOUR_US = 3_600_000_000


def done(tasks) -> list[TaskOutcome]:
    return [TaskOutcome(each.ref, End.DONE) for each in tasks]


@pytest.fixture
async def opened(redis_server):
    """Open stores, by default on ``redis_server``, and close them all at the end."""
    async with opening(lambda target=redis_server.url, **options: RedisStore(target, **options), SystemClock()) as call:
        yield call


@contextlib.contextmanager
def impatient(monkeypatch):
    """Limit the wait for an answer to 0.3 s: only for calls that get none, as a busy machine may take as long."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "_TIMEOUT_SECONDS", 0.3)
        yield


class Log:
    """The append-only log of a server, which can be set back to a copy, as if what came since had been lost."""

    def __init__(self, server) -> None:
        self.server = server
        [self.path] = server.folder.glob("appendonly*")  # a folder, or a file before Redis 7
        self.kept = server.folder / "kept"

    def keep(self) -> None:
        """Copy the log."""
        (shutil.copytree if self.path.is_dir() else shutil.copy)(self.path, self.kept)

    def bring_back(self) -> None:
        """Kill the server, and start it from the copy."""
        self.server.kill()
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.kept.replace(self.path)
        self.server.start()


async def reconnect(store) -> None:
    """Let a store notice that its server was restarted."""
    for _ in range(4):  # each of its connections may fail once
        with contextlib.suppress(StoreUnavailableError):
            await store.counts()


async def play(store, clock, seed, count=60) -> None:
    """Run a program on an empty store; every other program has leases that end."""
    program = Program(seed, is_hasty=seed % 2 == 0)
    steps = program.steps(count)
    method, args, options = next(steps)
    try:
        while True:
            clock.set(program.now_us)
            method, args, options = steps.send(await getattr(store, method)(*args, **options))
    except StopIteration:
        return


@pytest.mark.parametrize("part", range(5))
async def test_scripts_answer_as_the_table(opened, redis_server, redis_clock, part):
    """Scripts answer random programs as the table does, with clock steps, stale claims and duplicate ids."""
    store = await opened()
    for seed in range(4 * part, 4 * part + 4):
        redis_server.flush()
        await play(store, redis_clock, seed)


BROKEN = {
    "an end without its token": ("finish", "current == token", "token"),
    "an end of what is not claimed": ("finish", "state == CLAIMED and current", "current"),
    "claims that nobody gives back": ("beat", "then give_back(name, now, true) end", "then redis.call('HDEL', keys.owners, name) end"),
    "claims that go to the next owner, held or not": ("join", "if held[", "if held or held["),
    "leases that end and are kept": ("join", "and not former then return 0 end", "and not former and false then return 0 end"),
    "claims that go to nobody": ("join", "task[OWNER] = owner", "task[OWNER] = 0"),
    "claims that nobody counts": ("beat", "redis.call('ZCOUNT', keys.claimed, score, score)", "0"),
    "claims that are given back for their age": ("beat", "seen[name] + lease <=", "seen[name] + lease / 3 <="),
    "time that was not vouched for": ("beat", "math.min(math.floor(shortest / 3), math.max(0, now - tonumber(last)))", "now - tonumber(last)"),
    "leases by which nobody goes": ("claim", "if not text then return false end", "text = text or string.rep('\\0', 48)"),
    "lanes without a head": ("put", "if head and not gives_way(head) then return end", "head = nil"),
    "lanes that go on over a dead letter": ("finish", "and task[BLOCKING] == 0 then leave_lane", "then leave_lane"),
    "heads that give way while they are tried again": ("put", "head[ATTEMPTS] > 0", "false"),
    "heads that are claimed before they are due": ("claim", "make_ready('heads', now)", "make_ready('heads', now + args.ahead_us)"),
    "ids that are forgotten": ("finish", "is_named == 1 then", "is_named == 2 then"),
    "tasks that are claimed after they expired": ("claim", "string.format('%.0f', now), 'LIMIT'", "string.format('%.0f', now - 20), 'LIMIT'"),
    "a priority that is let pass": ("claim", "'\\0' .. args.floor", "'\\1'"),
    "a key that has more than its turn": ("claim", "quotas[rank .. key] or args.each", "args.each"),
    "turns that begin with the first key": ("claim", "begins_after[rank]", "nil"),
    "paused tasks that stay ready": ("claim", "  set_aside()\n", ""),
    "paused tasks that are not put back": ("claim", "put_back(what, pause, since, last)\n    end", "end"),
    "a state of what is not claimed": ("save", "task[STATE] == CLAIMED and task", "task"),
    "repetitions that are placed during a pause": ("place", "if is_before(due, row.till) then return AS_PAUSED end", ""),
    "repetitions that are placed as they were": ("place", "row.definition ~= args.definition", "false"),
    "a skipped occurrence that is placed again": ("skip_repetition", "drop_waiting(row.last_id, now)) then", "drop_waiting(row.last_id, now) and (function() row.last_id = '' return true end)()) then"),
    "a skipped occurrence that is placed later": ("place", "place('ended', row.last_id, vouched() + math.max(0, row.last_due - now))", ""),
    "a removed repetition whose older occurrences stay": ("forget", "ZCARD', keys.ids) - 1", "ZCARD', keys.ids) * 0 - 1"),
    "turns of what is not due": ("claim", "{{false, now}, {now, false}}", "{{false, false}}"),
}  # fmt: skip

# The program that finds it, if not one of the first: tried first, as those take a minute on a busy machine.
FOUND_BY = {
    "an end without its token": 23,
    "an end of what is not claimed": 4,
    "claims that nobody gives back": 170,
    "claims that go to the next owner, held or not": 30,
    "claims that go to nobody": 7,
    "lanes that go on over a dead letter": 9,
    "ids that are forgotten": 48,
    "a priority that is let pass": 11,
    "a key that has more than its turn": 11,
    "turns that begin with the first key": 7,
    "paused tasks that stay ready": 43,
    "paused tasks that are not put back": 53,
    "a state of what is not claimed": 31,
    "repetitions that are placed as they were": 25,
    "a skipped occurrence that is placed again": 5,
    "a skipped occurrence that is placed later": 68,
    "a removed repetition whose older occurrences stay": 15,
    "turns of what is not due": 66,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BROKEN)
async def test_a_rule_that_is_broken_is_found(opened, redis_server, redis_clock, monkeypatch, name):
    """Each rule that is broken on purpose is found by one of the programs."""
    script, old, new = BROKEN[name]
    text = SCRIPTS[script].text
    assert text.count(old) == 1
    monkeypatch.setattr(SCRIPTS[script], "text", text.replace(old, new))
    store = await opened()
    for seed in [FOUND_BY.get(name, 0), *range(300)]:
        redis_server.flush()
        try:
            await play(store, redis_clock, seed)
        except (AssertionError, StoreUnavailableError, KeyError):
            return
    pytest.fail("not found")


async def test_resume_of_what_is_not_paused_leaves_nothing(opened, redis_server):
    """A resume without a pause keeps no record, however many there are."""
    store = await opened()
    assert not await store.resume(Pause(function="f"))
    assert 0 == redis_server.ask("EXISTS", "{durable}:pauses")


async def test_tasks_of_an_older_release_have_their_turns(opened, redis_server):
    """Tasks that processes of an older release have put, claimed and released are claimed in turn as well."""
    store = await opened()
    await store.join("o", HOUR_US)
    await store.put([task(n, key=f'"k{n % 3}"') for n in range(2500)])
    await store.put([task(f"late {key}", key=key) for key in ('"k1"', '"x"', None)])
    turns = await store._ask("ZRANGE", "{durable}:turns", 0, -1)
    taken = [each.id for each in (await store.claim(Claim(owner="o", count=40))).tasks]
    redis_server.ask(
        "ZADD", "{durable}:turns", *(part for each in turns for part in (0, each))
    )  # as if that one had claimed
    await store._ask("ZREM", "{durable}:turns", *turns[:1500])  # and put them
    keys = []
    while True:
        claims = await store.claim(Claim(owner="o", count=500, turns=Turns(each=100)))
        taken += [each.id for each in claims.tasks]
        keys.append({each.key for each in claims.tasks})
        if claims.next_in_us != 0:
            break
    assert sorted([*map(str, range(2500)), "late None", 'late "k1"', 'late "x"']) == sorted(taken)
    assert 0 == redis_server.ask("ZCARD", "{durable}:turns") == redis_server.ask("ZCARD", "{durable}:ready")
    assert {'"k0"', '"k1"', '"k2"', '"x"'} <= keys[0]


async def test_repetitions_of_an_older_release_go_on(opened, redis_server):
    """A repetition whose second record an older release has not written, or has left behind, is shown, paused and placed."""
    store = await opened()
    await store.join("a", HOUR_US)

    def occurrence(at, **options):
        return Occurrence("r", task(f"r@{at}", due_us=at * 10**15, is_named=True), "often", "spec", 5, **options)

    [placed] = await store.place("a", [occurrence(9, definition="d")])
    with redis_server.client() as client:
        client.delete("{durable}:operated")
        [row] = await store.repetitions()
        assert ("r@9", 9 * 10**15, "", False, True) == (
            row.id,
            row.next_us,
            row.definition,
            row.is_paused,
            row.is_declared,
        )
        assert await store.pause_repetition("r", None) is False
        assert [None] == await store.find(["r@9"])
        client.hdel("{durable}:repetitions", "r")
    assert [] == await store.repetitions()
    assert [] == await store.changed_repetitions("default")
    assert await store.pause_repetition("r", None) is None
    [placed] = await store.place("a", [occurrence(9)])
    assert Placement.PLACED is placed.placement


@hypothesis.settings(max_examples=60)
@given(PASSWORDS)
@example("hunter@zebra")
@example("1/hunter")
def test_nothing_of_a_password_is_in_an_error(password):
    """Nothing of a password of any characters is in an error or its causes, even if they should have been encoded."""

    async def opening():
        await RedisStore(f"redis://user:{password}@127.0.0.1:1/0").open(SystemClock())

    with pytest.raises((StoreUnavailableError, ValueError)) as caught:
        asyncio.run(opening())
    assert [] == holds("".join(traceback.format_exception(caught.value)))


EVICTED = ("tasks", "bodies", "ids", "ready", "turns", "lanes", "owners", "store", "claimed", "behind")


@pytest.mark.parametrize("gone", EVICTED)
async def test_key_that_was_evicted_stops_no_other_task(opened, redis_server, gone):
    """Whatever key an evicting server has deleted, all calls work, and tasks that are put afterwards run."""
    store = await opened()
    await store.join("o", HOUR_US)
    before = [
        *(task(f"ready{n}") for n in range(3)), *(task(f"lane{n}", lane="l") for n in range(3)),
        task("due", delay_us=1), task("later", delay_us=HOUR_US), task("expires", expires_us=1),
        task("dead"), task("unknown", version=2), task("claimed", priority=9.0), task("cancelled", priority=9.0),
    ]  # fmt: skip
    await store.put(before)
    claimed = {each.id: each for each in (await store.claim(Claim(owner="o", count=2))).tasks}
    await store.cancel(["cancelled"])
    rest = {each.id: each for each in (await store.claim(Claim(owner="o", count=99))).tasks}
    ends = {"dead": End.DEAD, "unknown": End.UNKNOWN}
    await store.finish([TaskOutcome(each.ref, ends.get(id, End.RELEASED)) for id, each in rest.items()])
    redis_server.ask("DEL", f"{{durable}}:{gone}")

    for state in (None, *DurableState):
        await store.rows(state)
    await store.lanes()
    await store.counts()
    await store.find([each.id for each in before])
    await store.beat("o")
    await store.join("p", HOUR_US, former="o", held=[claimed["claimed"].ref])
    await store.finish([TaskOutcome(claimed["claimed"].ref, End.DONE)])
    await store.revive("default", [("f", 2)])
    await store.requeue(["dead"])
    await store.cancel(["lane1", "ready1"])
    await store.leave("o")
    await store.join("q", HOUR_US)
    put = [task(f"new{n}", lane="m" if n % 2 else None) for n in range(4)]
    assert [True] * 4 == await store.put(put)
    ran = set()
    for n in range(20):
        claims = await store.claim(Claim(owner="q", count=3, turns=Turns() if n % 2 else None))
        ran.update(each.id for each in claims.tasks)
        await store.finish(done(claims.tasks))
    assert {each.id for each in put} <= ran


async def test_records_that_are_lost_are_counted_once_and_may_be_put_again(opened, redis_server, caplog):
    """Lost records are counted, named with a remedy by the next beat, and their ids may be put again."""
    store = await opened()
    await store.join("o", HOUR_US)
    await store.put([task(n, expires_us=HOUR_US, is_named=True) for n in range(5)])
    redis_server.ask("DEL", "{durable}:tasks")
    assert () == (await store.claim(Claim(owner="o", count=9))).tasks
    await store.beat("o")
    await store.beat("o")
    [error] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "the server has lost 5 tasks" in error
    assert "maxmemory-policy noeviction" in error
    assert [True] * 5 == await store.put([task(n, is_named=True) for n in range(5)])
    assert 5 == len((await store.claim(Claim(owner="o", count=9))).tasks)


async def test_policy_that_is_set_later_is_an_error_in_the_log(opened, redis_server, monkeypatch, caplog):
    """A server that begins to evict tasks after the store was opened is reported with the remedy."""
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.0)
    store = await opened()
    redis_server.ask("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    try:
        async with asyncio.timeout(20):
            while not (errors := [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]):
                await store.put([task("x")])
                await asyncio.sleep(0.01)
        assert "maxmemory-policy allkeys-lru" in errors[0]
        assert "set maxmemory-policy noeviction" in errors[0]
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")


async def test_calls_of_users_leave_connections_to_runners(opened):
    """Hundreds of calls at once, more than the client has connections, are all answered, and so is a runner's."""
    store = await opened()
    await store.put([task(n) for n in range(300)])
    await store.join("o", HOUR_US)
    waiting = [asyncio.ensure_future(store.cancel([str(n)])) for n in range(300)]
    await asyncio.sleep(0)
    assert Beat((), 0) == await store.beat("o")
    assert [[DurableState.READY]] * 300 == await asyncio.gather(*waiting)


async def test_rows_with_large_arguments_come_in_several_answers(opened, monkeypatch):
    """A list of tasks with large arguments is read in parts, and is complete."""
    monkeypatch.setattr(module, "SIZE_MAX", 1000)
    store = await opened()
    await store.put([task(n, body=bytes(400)) for n in range(10)])
    asked = []
    run = store._run
    monkeypatch.setattr(store, "_run", lambda *call: (asked.append(call), run(*call))[1])
    assert [str(n) for n in range(10)] == [row.id for row in await store.rows(limit=100)]
    assert ["7", "8"] == [row.id for row in await store.rows(after=(await store.find(["6"]))[0].number, limit=2)]
    assert len(asked) >= 4


# Several processes


async def test_processes_share_a_server_and_wake_each_other(opened):
    """Each put by one process wakes another that waits, long before its next look."""
    first, second = await opened(), await opened()
    await second.wait(5)  # from here on it listens
    await second.join("b", HOUR_US)
    for n in range(3):
        waiting = asyncio.ensure_future(second.wait(30))
        await asyncio.sleep(0.02)
        await first.put([task(n)])
        async with asyncio.timeout(20):
            await waiting
        [claimed] = (await second.claim(Claim(owner="b", count=1))).tasks
        assert [True] == await first.finish(done([claimed]))


async def test_listener_comes_back_with_the_server(opened):
    """A listener reconnects with the server, and wakes the waiters, since a put may have come meanwhile."""
    with RedisServer() as server, Proxy(server.port) as proxy:
        store, other = await opened(proxy.url), await opened(server.url)
        await store.wait(5)
        proxy.cut()
        await asyncio.sleep(0.05)
        await store.wait(0.01)
        proxy.mend()
        async with asyncio.timeout(20):
            await store.wait(30)
        await store.wait(0.05)
        waiting = asyncio.ensure_future(store.wait(30))
        await asyncio.sleep(0.02)
        await other.put([task("x")])
        async with asyncio.timeout(20):
            await waiting


async def test_prefixes_know_nothing_of_each_other(opened):
    """Stores with different prefixes on one server are independent."""
    first, second = await opened(), await opened(prefix="other")
    assert [True] == await first.put([task("x")])
    assert [True] == await second.put([task("x")])
    await second.cancel(["x"])
    assert [1, 0] == [(await store.counts())[DurableState.READY] for store in (first, second)]


async def test_every_key_lies_in_one_slot_of_a_cluster(opened, redis_cluster_server):
    """All keys of a store are in one slot of a cluster, where processes also wake each other."""
    redis_cluster_server.flush()
    client = RedisCluster.from_url(redis_cluster_server.url)
    store, other = await opened(client), await opened(client)
    await store.put([task(n, lane="l" if n % 2 else None, delay_us=n) for n in range(20)])
    await store.join("a", HOUR_US)
    claims = await store.claim(Claim(owner="a", count=20))
    assert 11 == len(claims.tasks)
    assert all(await other.finish(done(claims.tasks)))
    await store.wait(2)
    await store.wait(0.01)
    waiting = asyncio.ensure_future(store.wait(30))
    await asyncio.sleep(0.02)
    await other.put([task("x")])
    async with asyncio.timeout(20):
        await waiting
    await client.aclose()


async def test_client_that_is_handed_in_stays_open_and_may_decode(opened, redis_server):
    """A client passed in is not closed, and may decode responses: bodies are bytes all the same."""
    client = redis.asyncio.Redis.from_url(redis_server.url, decode_responses=True)
    store = RedisStore(client)
    await store.open(SystemClock())
    await store.put([task("x", body=b"\xff\0\xfe", lane="l"), task("y", lane="l")])
    [row] = await store.find(["x"])
    assert b"\xff\0\xfe" == row.body
    [lane] = await store.lanes()
    assert ("l", 1, "x") == (lane.lane, lane.behind_count, lane.head_id)
    await store.aclose()
    assert await client.ping()
    await client.aclose()


async def test_closing_that_is_cancelled_leaves_nothing_open(opened, redis_server):
    """Closing that is cancelled while its listener ends still closes all connections."""
    before = asyncio.all_tasks()
    connected = redis_server.ask("CLIENT", "LIST").count("\n")
    store = await opened()
    await store.put([task("x")])
    closing = asyncio.ensure_future(store.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    async with asyncio.timeout(30):
        while redis_server.ask("CLIENT", "LIST").count("\n") > connected or before != asyncio.all_tasks():
            await asyncio.sleep(0.01)


# Lost answers


async def test_claims_whose_answer_was_lost_are_given_back(opened, monkeypatch):
    """Claims whose answer was lost are given back when their process joins again, which keeps those it knows."""
    with RedisServer() as server, Proxy(server.port) as proxy:
        store, other = await opened(proxy.url), await opened(server.url)
        await other.put([task(n) for n in range(10)])
        await store.join("a", HOUR_US)
        first = (await store.claim(Claim(owner="a", count=2))).tasks
        proxy.drop_replies = 1.0
        for _ in range(2):
            with impatient(monkeypatch), pytest.raises(StoreUnavailableError):
                await store.claim(Claim(owner="a", count=3))
        proxy.drop_replies = 0.0
        assert 5 <= (await store.beat("a")).claimed_count
        for _ in range(2):  # the second join is as if the first answer had been lost
            assert await store.join("b", HOUR_US, former="a", held=[each.ref for each in first])
            assert 2 == (await store.beat("b")).claimed_count
        second = (await store.claim(Claim(owner="b", count=10))).tasks
        assert [str(n) for n in range(2, 10)] == sorted(each.id for each in second)
        assert all(await store.finish(done([*first, *second])))


async def test_claim_that_arrives_after_its_process_has_gone_on_claims_nothing(opened):
    """A claim that arrives late, after its process has joined under another name, claims nothing."""
    store = await opened()
    await store.put([task(n) for n in range(4)])
    await store.join("a", HOUR_US)
    [held] = (await store.claim(Claim(owner="a", count=1))).tasks
    await store.join("b", HOUR_US, former="a", held=[held.ref])
    assert await store.claim(Claim(owner="a", count=1)) is None
    assert 3 == (await store.counts())[DurableState.READY]


async def test_put_whose_answer_was_lost_is_there_once(opened, monkeypatch):
    """A put whose answer was lost is done once: its repetition is a duplicate; the same holds for ends."""
    with RedisServer() as server, Proxy(server.port) as proxy:
        store = await opened(proxy.url)
        await store.put([task("before")])
        await store.finish([])  # loads the script
        proxy.drop_replies = 1.0
        with impatient(monkeypatch), pytest.raises(StoreUnavailableError, match=r"no answer within|Connection"):
            await store.put([task("x")])
        proxy.drop_replies = 0.0
        assert [False] == await store.put([task("x")])
        await store.join("a", HOUR_US)
        claimed = (await store.claim(Claim(owner="a", count=5))).tasks
        assert 2 == len(claimed)
        proxy.drop_replies = 1.0
        with impatient(monkeypatch), pytest.raises(StoreUnavailableError):
            await store.finish(done(claimed))
        proxy.drop_replies = 0.0
        assert [False, False] == await store.finish(done(claimed))
        assert 0 == sum((await store.counts()).values())


async def test_server_that_stands_still_and_one_that_is_away(opened, monkeypatch):
    """Calls to a server that hangs or is down fail with what is known, and succeed once it is back."""
    with RedisServer() as server:
        store = await opened(server.url)
        await store.put([task("before")])  # loads the script
        server.stop()
        text = r"no answer within 0.3 s; whether it was done is not known"
        with impatient(monkeypatch), pytest.raises(StoreUnavailableError, match=text):
            await store.put([task("x")])
        server.go_on()
        assert [False] == await store.put([task("x")])
        server.kill()
        with pytest.raises(StoreUnavailableError, match="Connect"):
            await store.counts()
        server.start()
        assert [True] == await store.put([task("x")])


async def test_scripts_that_the_server_has_forgotten_are_loaded_again(opened, redis_server):
    """Scripts that the server has forgotten are loaded again."""
    store = await opened()
    await store.put([task("x")])
    redis_server.ask("SCRIPT", "FLUSH")
    assert [False] == await store.put([task("x")])


# Servers that lose data


async def test_killed_server_has_what_was_acknowledged(opened):
    """With ``appendfsync always``, a server killed amid puts has lost none that was acknowledged."""
    put, was_lost = 0, 0
    with RedisServer(config=AOF) as server:
        store = await opened(server.url)
        for round in range(4):
            try:
                for count in itertools.count():
                    if count == 4:
                        asyncio.get_running_loop().call_later(0.03 * round, server.kill)
                    assert await store.put(
                        [task(f"{round} {put + n}", lane=f"l{n % 2}" if n else None) for n in range(3)]
                    )
                    put += 3
            except StoreUnavailableError:
                was_lost += 1
            await asyncio.to_thread(server.start)
            there = sum((await store.counts()).values())
            assert put <= there <= put + 3 * was_lost
    assert put > 30
    assert 4 == was_lost


async def run_all(server, store, ran) -> None:
    """Run the tasks ``work`` as one process does, until none is left."""
    tasks = DurableTasks(RedisStore(server.url), lease=1)

    @tasks.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(0.002)

    async with RateLimitedExecutor("x", rate="500/s") as executor, tasks.running(executor):
        left = True
        while left:
            await asyncio.sleep(0.1)
            with contextlib.suppress(StoreUnavailableError):
                left = sum((await store.counts()).values()) > 0


def works(numbers) -> list[NewTask]:
    return [NewTask(id=str(n), name="work", body=b"[[%d],{}]" % n, lane=f"l{n % 10}") for n in numbers]


@pytest.mark.slow
@pytest.mark.real_time("runners go by it")
async def test_runners_outlast_a_server_that_is_killed(opened):
    """With two runners and three kills of the server every task runs, lanes stay in order, and few tasks run twice."""
    ran: list[int] = []
    with RedisServer(config=AOF) as server:
        store = await opened(server.url)
        await store.put(works(range(1500)))
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(run_all(server, store, ran))
            for _ in range(3):
                await asyncio.sleep(0.5)
                server.kill()
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.start)
    assert set(range(1500)) == set(ran)
    assert len(ran) < 1500 + 3 * 20
    for lane in range(10):
        mine = [n for n in ran if n % 10 == lane]
        assert sorted(mine) == mine


@pytest.mark.slow
@pytest.mark.real_time("runners go by it")
async def test_runners_outlast_a_server_that_loses_its_last_moments(opened):
    """Runners survive a server that loses its last writes three times: earlier tasks run, and none is left."""
    ran: list[int] = []
    with RedisServer(config=AOF) as server:
        store = await opened(server.url)
        await store.put(works(range(1000)))
        log = Log(server)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(run_all(server, store, ran))
            for round in range(3):
                await asyncio.sleep(0.3)
                log.keep()
                with contextlib.suppress(StoreUnavailableError):  # a connection may be to the server before its restart
                    await store.put(works(range(1000 + 50 * round, 1050 + 50 * round)))
                await asyncio.sleep(0.3)
                await asyncio.to_thread(log.bring_back)
        await reconnect(store)
        assert 0 == sum((await store.counts()).values())
        assert [True] == await store.put([task("after")])
    assert set(range(1000)) <= set(ran)
    assert len(ran) < 3000


async def test_server_that_comes_back_with_an_older_copy(opened):
    """After a server is set back, lost claims end no task that was claimed since, and no number is used again."""
    with RedisServer(config=AOF) as server:
        store = await opened(server.url)
        await store.put([task("x"), task("y")])
        await store.join("a", HOUR_US)
        log = Log(server)
        log.keep()
        await store.join("late", HOUR_US)
        lost = (await store.claim(Claim(owner="a", count=1))).tasks
        await store.put([task("new")])
        [new] = await store.find(["new"])
        await asyncio.to_thread(log.bring_back)
        await reconnect(store)
        assert await store.beat("late") is None
        assert await store.claim(Claim(owner="late", count=1)) is None
        await store.join("b", HOUR_US)
        again = (await store.claim(Claim(owner="b", count=1))).tasks
        assert [lost[0].id] == [again[0].id]
        assert again[0].ref.number == lost[0].ref.number
        for end in End:
            assert [False] == await store.finish([TaskOutcome(lost[0].ref, end)])
        assert [True] == await store.finish(done(again))
        assert [None] == await store.find(["new"])
        await store.put([task("other")])
        [other] = await store.find(["other"])
        assert other.number > new.number


async def test_claims_that_ended_in_the_lost_moments_are_given_back(opened):
    """Tasks that ended in the lost moments are given back once a beat counts more claims than their process has."""
    with RedisServer(config=AOF) as server:
        store = await opened(server.url)
        await store.put([task("x"), task("y"), task("z")])
        await store.join("a", HOUR_US)
        ended, held = (await store.claim(Claim(owner="a", count=2))).tasks
        log = Log(server)
        log.keep()
        assert [True] == await store.finish(done([ended]))
        await asyncio.to_thread(log.bring_back)
        await reconnect(store)
        assert 2 == (await store.beat("a")).claimed_count
        assert await store.join("b", HOUR_US, former="a", held=[held.ref])
        counts = await store.counts()
        assert (2, 1) == (counts[DurableState.READY], counts[DurableState.CLAIMED])
        [again] = (await store.claim(Claim(owner="b", count=1))).tasks
        assert (ended.id, 0) == (again.id, again.lost_count)
        assert again.ref.token > ended.ref.token
        assert [False, True, True] == await store.finish(done([ended, held, again]))


@pytest.mark.real_time("a runner goes by it")
async def test_everything_is_deleted_under_a_running_runner(opened, redis_server, caplog):
    """A runner whose keys are all deleted joins again, and runs what is put from then on."""
    tasks = DurableTasks(RedisStore(redis_server.url), lease=0.5)
    ran = []

    @tasks.task(name="work")
    async def work(n):
        ran.append(n)
        await asyncio.sleep(0.05)

    async with RateLimitedExecutor("x", rate="1000/s") as executor, tasks.running(executor) as runner:
        for round in range(3):
            await asyncio.gather(*(work.put([round, n]) for n in range(5)))
            await asyncio.sleep(0.02)
            redis_server.flush()
        await work.put("last")
        async with asyncio.timeout(20):
            while "last" not in ran or runner.statistics().running:
                await asyncio.sleep(0.02)
    assert "the lease of this process has ended" in caplog.text
    store = await opened()
    assert 0 == sum((await store.counts()).values())


# Servers that refuse calls


async def test_full_server_takes_no_tasks_and_lets_them_run(opened):
    """A full server refuses puts, while claims, beats and ends work, until there is room again."""
    with RedisServer(config=["maxmemory 8mb", "maxmemory-policy noeviction"]) as server:
        store = await opened(server.url)
        await store.join("a", HOUR_US)
        put = 0
        with pytest.raises(StoreUnavailableError, match="the server is full: raise its maxmemory"):
            while True:
                await store.put(
                    [task(f"{put} {n}", body=b"x" * 1000, lane=f"l{n % 3}" if n % 2 else None) for n in range(100)]
                )
                put += 1
        assert 100 * put == sum((await store.counts()).values())
        assert Beat((), 0) == await store.beat("a")
        await store.join("b", HOUR_US, former="a")
        await store.cancel(["0 0"])
        ended = 1
        while claimed := (await store.claim(Claim(owner="b", count=500))).tasks:
            assert all(
                await store.finish([TaskOutcome(each.ref, End.DEAD if ended == 1 else End.DONE) for each in claimed])
            )
            ended += len(claimed)
        await store.leave("b")
        dead = await store.rows(DurableState.DEAD, limit=10_000)
        assert dead
        await store.cancel([row.id for row in dead])
        assert [True] == await store.put([task("room")])


async def test_server_that_would_evict_tasks_is_refused(opened):
    """A server that may evict any key is refused with the remedy; one that evicts only keys with an expiry is not."""
    with RedisServer(config=["maxmemory 50mb", "maxmemory-policy allkeys-lru"]) as server:
        with pytest.raises(StoreUnavailableError, match="set maxmemory-policy noeviction"):
            await opened(server.url)
        server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        await opened(server.url)


async def test_server_that_keeps_nothing_is_warned_of(opened, caplog):
    """A server without persistence is warned of; one with an append-only log is not."""
    await opened()
    assert "set appendonly yes" in caplog.text
    caplog.clear()
    with RedisServer(config=AOF) as server:
        await opened(server.url)
        assert "" == caplog.text


async def test_who_may_not_is_told_what_to_do(clock):
    """A wrong password, missing rights, a replica or no server is refused with a remedy, without showing a password."""
    rights = re.search(r"^ACL SETUSER tasks (.*)$", HOWTO.read_text(encoding="utf-8"), re.MULTILINE)[1]
    poor, timeless = rights.replace(" +zadd", ""), rights.replace(" +time", "")
    assert rights not in (poor, timeless)
    with RedisServer(password="pass", users={"poor": poor, "timeless": timeless}) as server:
        for url, words in (
            (server.url_of("", "secret"), "set the server's user name and password"),
            (server.url_of("poor", "secret"), "ACL SETUSER"),
            (server.url_of("timeless", "secret"), r"ACL SETUSER \(missing: \+time\)"),
            (server.url.rpartition("/")[0] + "/99", "choose a database"),
            ("redis://:secret@127.0.0.1:1/0", "Connect"),
        ):
            store = RedisStore(url)
            with pytest.raises(StoreUnavailableError, match=words) as caught:
                await store.open(clock)
                try:
                    await store.put([task("x")])
                finally:
                    await store.aclose()
            assert "secret" not in f"{caught.value} {store!r}"
            assert caught.value.is_permanent == (words != "Connect")
        with RedisServer(replica_of=server) as replica:
            store = RedisStore(replica.control_url)
            await store.open(clock)
            with pytest.raises(StoreUnavailableError, match="READONLY|replica") as caught:
                await store.put([task("x")])
            assert not caught.value.is_permanent
            await store.aclose()


async def test_rights_of_the_how_to_are_enough(opened):
    """The rights that the how-to gives suffice for every call."""
    rights = re.search(r"^ACL SETUSER tasks (.*)$", HOWTO.read_text(encoding="utf-8"), re.MULTILINE)[1]
    with RedisServer(password="pass", users={"tasks": rights}) as server:
        store = await opened(server.url_of("tasks", "secret"))
        other = await opened(server.control_url)
        await store.wait(5)
        await store.put(
            [task(n, lane="l" if n % 2 else None, is_named=True, expires_us=10, delay_us=n % 3) for n in range(9)]
        )
        await store.put([task(n + 20, lane=f"l{n % 2}", is_blocking=False) for n in range(6)])
        await store.join("a", 30)
        tasks = (await store.claim(Claim(owner="a", count=3))).tasks
        await store.finish(
            [TaskOutcome(each.ref, end) for each, end in zip(tasks, (End.DONE, End.DEAD, End.UNKNOWN), strict=False)]
        )
        await store.cancel([each.id for each in tasks] + ["20", "none"])
        await store.requeue([each.id for each in tasks])
        await store.revive("default", [("f", 1)])
        await store.beat("a")
        await store.join("b", 30, former="a", held=[each.ref for each in tasks])
        await store.leave("b")
        await store.lanes()
        await store.counts()
        await store.rows(DurableState.DEAD)
        await store.rows(newest_first=True)
        await store.latencies()
        await store.find(["1"])
        server.ask("SCRIPT", "FLUSH")
        await store.wait(0.01)
        waiting = asyncio.ensure_future(store.wait(30))
        await asyncio.sleep(0.02)
        await other.put([task("y")])
        async with asyncio.timeout(20):
            await waiting


async def test_arguments_that_are_none(opened):
    """Bad arguments are refused with what is accepted."""
    for redis_, prefix, kind, words in (
        (5, "x", TypeError, "redis must be a URL or an asyncio client"),
        ("http://x", "x", ValueError, "redis must be a URL such as"),
        ("redis://x", 5, TypeError, "prefix must be a str"),
        ("redis://x", "", ValueError, "prefix must be printable, not empty"),
        ("redis://x", "{a}", ValueError, "without braces"),
    ):
        with pytest.raises(kind, match=words):
            RedisStore(redis_, prefix=prefix)
    with pytest.raises(StoreUnavailableError, match="not open"):
        await RedisStore("redis://localhost").counts()
    store = await opened()
    with pytest.raises(TypeError, match="RedisStore cannot take part in a transaction"):
        await store.put([], connection=object())


async def test_newer_release_is_refused(opened, redis_server):
    """A store of a newer release is refused: it may use the same keys differently."""
    store = await opened()
    await store.put([task("x")])
    redis_server.ask("HSET", "{durable}:store", "version", 99)
    with pytest.raises(
        StoreUnavailableError, match=r"newer release has made its keys \(layout 99; this one knows 1\)"
    ) as caught:
        await opened()
    assert caught.value.is_permanent


# Large numbers


async def test_what_is_left_to_others_is_passed_over_in_pages(opened):
    """A claim passes over any number of tasks of a full key, page by page."""
    store = await opened()
    await store.put([task(n, key="k") for n in range(12_000)])
    await store.put([task("other"), task("unknown", key="k")])
    await store.join("a", HOUR_US)
    claims = await store.claim(Claim(owner="a", count=5, full_keys=frozenset("k")))
    assert ["other"] == [each.id for each in claims.tasks]
    assert claims.next_in_us is None


async def test_thousands_in_one_call(opened):
    """Ten thousand tasks can be put, listed, claimed and ended in one call each, and leave no keys behind."""
    store = await opened()
    count = 10_000
    assert all(await store.put([task(n, expires_us=HOUR_US, is_named=True) for n in range(count)]))
    assert [str(n) for n in range(2500)] == [row.id for row in await store.rows(limit=2500)]
    await store.join("a", HOUR_US)
    claimed = (await store.claim(Claim(owner="a", count=count))).tasks
    assert [str(n) for n in range(count)] == [each.id for each in claimed]
    ends = [End.UNKNOWN, End.DEAD]
    assert all(await store.finish([TaskOutcome(each.ref, ends[n % 2]) for n, each in enumerate(claimed)]))
    assert count // 2 == len(dead := await store.rows(DurableState.DEAD, limit=count))
    assert all(row.id == str(2 * n + 1) for n, row in enumerate(dead))
    assert count // 2 == await store.revive("default", [("f", 1)])
    assert [DurableState.DEAD] * len(dead) == await store.requeue([row.id for row in dead])
    claimed = (await store.claim(Claim(owner="a", count=count))).tasks
    assert all(await store.finish(done(claimed)))
    assert [False] * count == await store.finish(done(claimed))
    keys = await store._client.keys("*")
    assert {b"{durable}:ended", b"{durable}:owners", b"{durable}:store"} == set(keys)
    assert [False] == await store.finish([TaskOutcome(Ref(-1, 1), End.DONE)])
