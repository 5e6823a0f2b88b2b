"""``bench --peers``: several processes share one load, and coordinate through a real Redis."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ratelimited_executor.cli.bench.contact import ExchangeError, Meeting, Times
from ratelimited_executor.cli.bench.rendezvous import Rendezvous
from ratelimited_executor.cli.exits import CommandError
from tests.cli.bench.service import Service, served
from tests.cli.bench.test_bench import bench
from tests.cli.refusals import assert_refused
from tests.helpers import until
from tests.peers.servers import RedisServer

pytestmark = pytest.mark.real_time("processes, sockets and Redis have no virtual time")

SWIFT = Times(
    join_timeout=60, poll_interval=0.05, lead_time=0.5, waiting_timeout=30, result_timeout=30, heartbeat_interval=0.1
)
IMPATIENT = replace(SWIFT, result_timeout=2)  # for tests of one that is missing


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Run one service for all tests of this file."""
    with served() as running:
        yield running


class Participants:
    """Processes that share a load; leaving the context kills those that still run.

    Attributes:
        processes: in the order in which they were started.
    """

    def __init__(self, place, url: str, *arguments: str, count: int = 2) -> None:
        self._stack = ExitStack()
        self.processes = [
            self._stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "ratelimited_executor", "bench", *arguments, "--peers", url]
                    + ["--expect", str(count), "--json", f"{number}.json"],
                    cwd=place.path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(count)
        ]

    def __enter__(self) -> Participants:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        self._stack.close()

    def ended(self, index: int) -> tuple[int, str, str]:
        """Wait until a process ends; return its exit status and its output."""
        out, err = self.processes[index].communicate(timeout=90)
        return self.processes[index].returncode, out, err


def measurement(place, index: int) -> dict:
    return json.loads(place.text(f"{index}.json"))


def test_two_participants_send_each_request_once_and_report_the_whole(place, service, redis_server) -> None:
    """Both report the same figures of all requests, with a row for each participant, and no request is sent twice."""
    service.seen.clear()
    load = ["--rate", "ordinary=80", "--rate", "urgent=20", "--for", "2s", "--warm-up", "500ms", "--group", "two"]
    with Participants(place, redis_server.url, f"{service.url}/echo/{{class}}/{{n}}", *load) as participants:
        endings = [participants.ended(index) for index in range(2)]
    first, second = (measurement(place, index) for index in range(2))

    assert [0, 0] == [status for status, _, _ in endings], endings
    assert first["figures"] == second["figures"]
    assert (200, {}) == (first["figures"]["count"], first["figures"]["errors"])
    assert [("ordinary", 160), ("urgent", 40)] == [
        (each["name"], each["count"]) for each in first["figures"]["classes"]
    ]
    rows = first["participants"]
    assert (200, [1, 1]) == (sum(row["count"] for row in rows), [row["sent_part"] for row in rows])
    assert [100, 100] == [row["count"] for row in rows]
    assert [*range(250)] == sorted(int(path.rpartition("/")[2]) for _, path, _, _ in service.seen)
    assert all("by participant" in out for _, out, _ in endings)
    assert "1 of 2 participants have joined" in endings[0][2] + endings[1][2]


def test_killed_participant_is_in_the_report_until_its_last_checkpoint(place, service, redis_server) -> None:
    """What was measured until then counts; the report names the missing one, and which part was sent and is known."""
    service.seen.clear()
    load = ["--rate", "100", "--for", "6s", "--group", "killed", "--quiet", "--html", "page.html"]
    with Participants(place, redis_server.url, f"{service.url}/echo/x", *load) as participants:
        until(lambda: len(service.seen) > 350)
        participants.processes[1].kill()
        status, out, err = participants.ended(0)
    found = measurement(place, 0)
    missing = next(row for row in found["participants"] if row["is_missing"])

    assert 1 == status, err
    assert 0 < missing["count"] < 300
    assert found["figures"]["count"] == 300 + missing["count"] == sum(row["count"] for row in found["participants"])
    assert pytest.approx(missing["count"] / 300, abs=0.01) == missing["known_part"]
    assert missing["known_part"] <= missing["sent_part"] < 0.95
    assert "THE LOAD IS INCOMPLETE" in out and f"{missing['name']} is missing, last heard of after" in out
    assert f", with figures up to {missing['known_part']:.0%}. " in out
    assert "The load is incomplete" in place.text("page.html")
    assert "THE LOAD IS INCOMPLETE" in bench("compare", "0.json", "0.json").stdout


def test_redis_that_dies_meanwhile_leaves_each_its_own_report(place, service, redis_server) -> None:
    """Each sends the rest of its share, and reports its own figures with the reason that they could not be merged."""
    service.seen.clear()
    load = ["--rate", "50", "--for", "4s", "--group", "dies", "--quiet"]
    with Participants(place, redis_server.url, f"{service.url}/echo/x", *load) as participants:
        until(lambda: len(service.seen) > 20)
        redis_server.kill()
        endings = [participants.ended(index) for index in range(2)]

    assert [1, 1] == [status for status, _, _ in endings]
    assert all("could not be merged" in out for _, out, _ in endings)
    assert [100, 100] == [measurement(place, index)["figures"]["count"] for index in range(2)]


def test_interrupted_participant_calls_no_other_missing(place, service, redis_server) -> None:
    """It does not wait for those who go on, and they report where it was stopped."""
    service.seen.clear()
    load = ["--rate", "100", "--for", "4s", "--group", "stopped", "--quiet"]
    with Participants(place, redis_server.url, f"{service.url}/echo/x", *load) as participants:
        until(lambda: len(service.seen) > 60)
        participants.processes[0].send_signal(signal.SIGINT)
        endings = [participants.ended(index) for index in range(2)]

    assert [130, 1] == [status for status, _, _ in endings], endings
    assert "it was interrupted after" in endings[0][1] and "the other participants continue" in endings[0][1]
    assert "is missing" not in endings[0][1]
    assert "was stopped after" in endings[1][1]


def test_interrupt_while_waiting_ends_at_once(place, redis_server) -> None:
    """The exit status is 130, and the process does not stay among those that wait."""
    command = [sys.executable, "-m", "ratelimited_executor", "bench", "json:dumps", "--rate", "5", "--group", "alone"]
    with subprocess.Popen(
        [*command, "--peers", redis_server.url, "--expect", "2"], cwd=place.path, stdout=-1, stderr=-1, text=True
    ) as process:
        assert "1 of 2 participants" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert (130, "") == (process.returncode, err)
    with redis_server.client() as client:
        assert not client.exists("{rle:alone}:bench:waiting")


# Refusals.


def test_redis_that_is_away_is_refused_before_anything_is_sent(place, service) -> None:
    """The exit status is 2, and so it is for a bad URL and for options that do not go together."""
    url, common = f"{service.url}/", ["--rate", "5"]
    away = bench(url, *common, "--peers", "redis://127.0.0.1:1/0", "--expect", "2")
    assert_refused(away, "--peers: Redis cannot be used", "127.0.0.1:1")
    assert_refused(bench(url, *common, "--peers", "http://x", "--expect", "2"), "--peers cannot be used", "redis://")
    assert_refused(bench(url, *common, "--peers", "redis://x"), "--peers needs --expect")
    assert_refused(bench(url, *common, "--expect", "2"), "need --peers")
    search = ["--find-max", "--p99", "1s"]
    assert_refused(bench(url, *common, *search, "--peers", "redis://x"), "--peers needs --expect")
    assert_refused(bench(url, *common, *search, "--group", "x"), "need --peers")


# The rendezvous by itself.


def rendezvous(url: str, *, times: Times = SWIFT, expect: int = 2, group: str = "g", **settings: str) -> Rendezvous:
    return Rendezvous(url, group=group, expect=expect, settings=settings, clock=time.perf_counter, times=times)


async def met(url: str, *, count: int = 2, **more) -> list[tuple[Rendezvous, Meeting]]:
    """Let ``count`` participants meet, and return the rendezvous and the meeting of each."""
    places = [rendezvous(url, expect=count, **more) for _ in range(count)]
    meetings = await asyncio.gather(*(each.meet(lambda count: None) for each in places))
    return list(zip(places, meetings, strict=True))


def slack(*places: Rendezvous) -> float:
    """Return by how much the beginnings of participants may differ: half a round trip of each, and drifting clocks."""
    return max(each._redis._round_trip for each in places) + 0.01


async def close(pairs: list[tuple[Rendezvous, Meeting]]) -> None:
    for each, _ in pairs:
        await each.close()


async def test_participants_agree_on_ranks_and_a_beginning(redis_server) -> None:
    """All have the same moment to begin, in the future, and a later meeting may use the same name."""
    for _ in range(2):
        started = time.perf_counter()
        pairs = await met(redis_server.url, count=3)
        begins = [meeting.begin for _, meeting in pairs]
        await close(pairs)

        assert [0, 1, 2] == sorted(meeting.rank for _, meeting in pairs)
        assert 1 == len({meeting.run for _, meeting in pairs})
        allowed = slack(*(each for each, _ in pairs))
        assert max(begins) - min(begins) < allowed
        assert min(begins) > started + SWIFT.lead_time - allowed


async def test_participant_that_looks_late_takes_part_and_is_nobody_elses(redis_server) -> None:
    """A participant that polls rarely joins the meeting that named it, even after its beginning, and no other one."""
    slow, swift, third = (
        rendezvous(redis_server.url, times=replace(SWIFT, poll_interval=interval)) for interval in (1.5, 0.05, 0.05)
    )
    late = asyncio.ensure_future(slow.meet(lambda count: None))
    await asyncio.sleep(0.2)
    early = await swift.meet(lambda count: None)
    alone = asyncio.ensure_future(third.meet(lambda count: None))
    meeting = await late
    await asyncio.sleep(0.2)

    assert (early.run, early.names) == (meeting.run, meeting.names)
    assert meeting.rank != early.rank
    assert meeting.begin == pytest.approx(early.begin, abs=slack(slow, swift))
    assert meeting.begin < time.perf_counter()
    assert not alone.done()
    alone.cancel()
    await asyncio.wait({alone})
    with redis_server.client() as client:
        assert not client.exists("{rle:g}:bench:waiting", "{rle:g}:bench:plans")
    for each in (slow, swift, third):
        await each.close()


async def test_rights_that_the_how_to_lists_are_enough() -> None:
    """The rights of the how-to suffice for a meeting, a load and a trial in the group they name, and in no other."""
    page = (Path(__file__).parents[3] / "docs" / "howto" / "measure-a-service.md").read_text(encoding="utf-8")
    found = re.search(r"^ACL SETUSER loader on >secret (.*)$", page, re.MULTILINE)
    assert found is not None
    with RedisServer(users={"loader": f"on >secret {found[1]}"}) as server:
        url = server.url_of("loader", "secret")
        pairs = await met(url, group="shop", times=replace(SWIFT, checkpoint_interval=0.05))
        contacts = [each.contact(one, seconds=1) for each, one in pairs]
        left = asyncio.Event()

        async def checkpoint() -> int:
            left.set()
            return 5

        async with contacts[0].in_touch(), contacts[0].with_checkpoints(checkpoint):
            await left.wait()
            await asyncio.sleep(0.2)
        results = await asyncio.gather(
            *(contact.exchange(one.rank, is_stopped=lambda: False) for contact, (_, one) in zip(contacts, pairs))
        )
        await contacts[0].publish(0, {}, is_stopped=lambda: True)
        await contacts[1].follow(0, 1, is_stopped=lambda: False)
        await contacts[1].leave()
        with server.client() as client:
            kinds = {key.split(b":bench:")[1].partition(b":")[2].partition(b":")[0] for key in client.keys()}
        other = rendezvous(url, group="other")
        with pytest.raises(CommandError, match="NOPERM|NoPermission"):
            await other.meet(lambda count: None)
        await close([*pairs, (other, pairs[0][1])])

    assert [{0: 0, 1: 1}] * 2 == [each.results for each in results]
    assert {b"heard", b"checkpoints", b"results", b"outcomes", b"left"} <= kinds


async def test_other_settings_are_refused_by_who_came_later(redis_server) -> None:
    """The later one is refused with the difference, and the first one continues to wait."""
    first, later = rendezvous(redis_server.url, rate="5/s"), rendezvous(redis_server.url, rate="6/s")
    waiting = asyncio.ensure_future(first.meet(lambda count: None))
    await asyncio.sleep(0.2)
    with pytest.raises(CommandError, match="rate is 6/s here, and 5/s there"):
        await later.meet(lambda count: None)

    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})
    await first.close()
    await later.close()


async def test_participant_that_is_about_to_be_refused_does_not_take_part(redis_server) -> None:
    """A participant that has not yet seen that its settings differ is left out of the meeting."""
    first, second, later = (rendezvous(redis_server.url, rate=rate) for rate in ("5/s", "5/s", "6/s"))
    waiting = asyncio.ensure_future(first.meet(lambda count: None))
    await asyncio.sleep(0.2)
    now = await later._redis.time()
    await later._look(now, now)
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await second.meet(lambda count: None)
    meeting = await waiting
    assert 2 == len(meeting.names)
    for each in (first, second, later):
        await each.close()


async def test_proposal_that_comes_after_its_beginning_is_dropped(redis_server) -> None:
    """The others have met without the author of the late proposal, and the author waits for new ones."""
    times = replace(SWIFT, waiting_timeout=0.3)
    author, *others = (rendezvous(redis_server.url, times=times) for _ in range(3))
    take = author._redis.client.set

    async def take_and_stand_still(*arguments, **options) -> object:
        taken = await take(*arguments, **options)
        author._redis.client.set = take
        await asyncio.sleep(2)
        return taken

    author._redis.client.set = take_and_stand_still
    waiting = asyncio.ensure_future(author.meet(lambda count: None))
    await asyncio.sleep(0.1)
    now = await others[0]._redis.time()
    await others[0]._look(now, now)  # there for a moment, so that the author proposes a beginning
    await asyncio.sleep(0.2)
    first, second = await asyncio.gather(*(each.meet(lambda count: None) for each in others))
    await asyncio.sleep(2)

    assert first.run == second.run
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})
    for each in (author, *others):
        await each.close()


async def test_too_few_participants_are_told(redis_server) -> None:
    """The error says how many of the expected participants came within the time."""
    lonely = rendezvous(redis_server.url, times=Times(join_timeout=0.3, poll_interval=0.05))
    with pytest.raises(CommandError, match="1 of 2 participants came within 0.3 s"):
        await lonely.meet(lambda count: None)
    await lonely.close()


async def test_results_lost_by_a_restart_are_given_again(redis_server) -> None:
    """A participant that still waits for results gives its own again."""
    (first, one), (second, other) = pairs = await met(redis_server.url)
    giving = asyncio.ensure_future(first.contact(one, seconds=1).exchange({"from": one.rank}, is_stopped=lambda: False))
    await asyncio.sleep(0.3)
    redis_server.flush()
    both = await asyncio.gather(
        giving, second.contact(other, seconds=1).exchange({"from": other.rank}, is_stopped=lambda: False)
    )
    await close(pairs)

    assert [{0: {"from": 0}, 1: {"from": 1}}] * 2 == [each.results for each in both]


async def test_results_lost_while_they_are_read_are_given_again(redis_server) -> None:
    """Results lost between being listed and being read are given again, so nobody is missing, oneself included."""
    ((alone, meeting),) = pairs = await met(redis_server.url, count=1)
    read = alone._redis.client.hgetall

    async def read_after_a_flush(key: str) -> object:
        if key.endswith(":results"):
            redis_server.flush()
            alone._redis.client.hgetall = read
        return await read(key)

    alone._redis.client.hgetall = read_after_a_flush
    exchanged = await alone.contact(meeting, seconds=1).exchange(1, is_stopped=lambda: False)
    redis_server.flush()
    alone._redis.client.hgetall = read_after_a_flush
    stopped = await alone.contact(meeting, seconds=1).exchange(1, is_stopped=lambda: True)
    await close(pairs)

    assert {0: 1} == exchanged.results == stopped.results


async def test_silent_participant_is_given_up_and_a_living_one_waited_for(redis_server) -> None:
    """A participant is waited for as long as its heartbeats arrive, and given up once they stop."""
    (first, one), (second, other) = pairs = await met(redis_server.url, times=IMPATIENT)
    async with second.contact(other, seconds=1).in_touch():
        waiting = asyncio.ensure_future(first.contact(one, seconds=1).exchange(1, is_stopped=lambda: False))
        await asyncio.sleep(2 * IMPATIENT.result_timeout)
        assert not waiting.done()
    exchanged = await waiting
    await close(pairs)

    assert {one.rank: 1} == exchanged.results
    assert exchanged.heard[other.rank] > -SWIFT.lead_time


async def test_checkpoints_of_a_silent_participant_stay(redis_server) -> None:
    """Checkpoints of a participant that falls silent are kept; those that a restart of Redis lost are left again."""
    times = replace(IMPATIENT, checkpoint_interval=0.1)
    (first, one), (second, other) = pairs = await met(redis_server.url, times=times)
    numbers = iter(range(1000))

    async def checkpoint() -> int | None:
        number = next(numbers)
        if number == 3:
            redis_server.flush()
        return None if number == 1 else number

    async with second.contact(other, seconds=1).with_checkpoints(checkpoint):
        await asyncio.sleep(1)
    left = next(numbers)
    exchanged = await first.contact(one, seconds=1).exchange("own", is_stopped=lambda: False)
    await close(pairs)

    assert {one.rank: "own"} == exchanged.results
    found = sorted(exchanged.checkpoints.pop(other.rank))
    assert {} == exchanged.checkpoints
    assert [0, *range(2, len(found) + 1)] == found
    assert 4 < len(found) <= left


async def test_what_is_left_early_in_a_long_load_outlives_it(redis_server) -> None:
    """Checkpoints of one that died, figures of one that was interrupted, and that it was: others read them at the end."""
    times, seconds = replace(SWIFT, checkpoint_interval=0.01), 2 * 3600
    ((alone, meeting),) = pairs = await met(redis_server.url, count=1, times=times)
    contact = alone.contact(meeting, seconds=seconds)
    contact._seconds = 1  # so that there is a checkpoint soon

    async def checkpoint() -> int:
        return 1

    async with contact.in_touch(), contact.with_checkpoints(checkpoint):
        await asyncio.sleep(0.1)
    await contact.exchange(1, is_stopped=lambda: True)
    await contact.leave()
    await close(pairs)
    with redis_server.client(decode_responses=True) as client:
        lifetimes = {key.partition(f"{meeting.run}:")[2]: client.ttl(key) for key in client.keys(f"*{meeting.run}*")}

    assert {"heard", "checkpoints:0", "results", "left"} == lifetimes.keys()
    assert min(lifetimes.values()) > seconds


async def test_lost_cancellation_does_not_keep_a_participant(redis_server) -> None:
    """A cancellation that is lost, as Python 3.11 may lose one while a command is sent, is repeated."""
    ((alone, meeting),) = pairs = await met(redis_server.url, count=1, times=replace(SWIFT, checkpoint_interval=0.01))
    cancellations = []

    async def checkpoint() -> None:
        while len(cancellations) < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancellations.append(1)
        raise asyncio.CancelledError

    async with alone.contact(meeting, seconds=1).with_checkpoints(checkpoint):
        await asyncio.sleep(0.1)
    await close(pairs)

    assert 2 == len(cancellations)


async def test_outage_of_redis_is_not_the_silence_of_others(redis_server) -> None:
    """As nobody can be heard during an outage, the time for which a participant may be silent starts anew after it."""
    (first, one), (_, other) = pairs = await met(redis_server.url)
    now, polls, read = [0.0], iter(range(1, 1000)), first._redis.client.hkeys

    async def read_with_an_outage(key: str) -> object:
        if key.endswith(":results"):
            poll = next(polls)
            if poll == 2:
                now[0] += 0.95 * SWIFT.result_timeout
                raise OSError
            if poll == 3:
                now[0] += 0.1 * SWIFT.result_timeout
            if poll == 4:
                with redis_server.client() as client:
                    client.hset(key, str(other.rank), "2")
        return await read(key)

    first._redis.client.hkeys = read_with_an_outage
    first._redis.clock = lambda: now[0]
    exchanged = await first.contact(one, seconds=1).exchange(1, is_stopped=lambda: False)
    await close(pairs)

    assert {one.rank: 1, other.rank: 2} == exchanged.results


async def test_exchange_without_redis_says_why(redis_server) -> None:
    """Without Redis the exchange fails after the time for which a participant may be silent, with a reason that fits a sentence."""
    (first, one), _ = pairs = await met(redis_server.url, times=IMPATIENT)
    redis_server.kill()
    with pytest.raises(ExchangeError, match=r"connecting to .*[^.]$"):
        await first.contact(one, seconds=1).exchange(1, is_stopped=lambda: False)
    await close(pairs)
