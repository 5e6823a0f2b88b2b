"""What a group costs a real server: many peers in one process, over a few connections.

    python -m tests.peers.load                               # 10, 100 and 1,000 peers, a row each: 3 times 15 s
    python -m tests.peers.load --peers 1000 --demand ahead   # tasks that are due later: nothing is asked for at once
    python -m tests.peers.load --peers 1000 --join 1         # all of them join a new group within a second: that second alone

Each peer is the pure one of production, with settings, id, phase and clock of its own, and calls once in a grant interval
through the transport of production. While it runs, all grants are written down: a permit that is granted twice in an era,
or a second in which 1 % more or less than the rate is granted, makes the command fail.

What makes a number lie:

* Messages of several calls, as when a connection is late, spare the server system calls: look at ``calls/msg``, which is 1
  in a fleet of processes. A fleet has a connection for each peer besides, and so a larger event loop at the server.
* ``cpu`` is all that the server spends, its timers too: at few calls these are most of it, so that an idle second is
  measured before, shown in the first line, and taken off. A virtual machine's ``cpu`` knows no stolen time.
* ``script``, its percentiles and ``slowest`` are times by the wall: other processes on the same cores make them longer.
* Round trips contain this process's own loop, which serves all connections, and Python's parser; ``late`` is how much later
  than wanted calls went out. If it is not far below the interval, the load is not the one that was asked for.
* All peers want more than their share, and have one weight: the water level is found in one pass. Uneven demands take more.
* No peer calls between its regular calls, as one of production does whose task is due early: with a backlog that is in vain.
* Loopback, no TLS, no replica, nothing persisted, one rate in the group, and a server with no other clients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import redis

from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.peer import Peer
from ratelimited_executor._core.fleet.policies import Strictness
from ratelimited_executor._core.fleet.protocol import Grant, Reply, Request
from ratelimited_executor._core.rates import Rate
from ratelimited_executor.peers.fleet import FleetPeers
from ratelimited_executor.peers.redis.peers import RedisTransport
from ratelimited_executor.peers.redis.script import keys_of

from .servers import RedisServer

PREFIX, GROUP, NAME = "rle", "load", "rate"
SIZES = (10, 100, 1000)
TIMEOUT_NS = 80_000_000  # the timeout of FleetPeers: a longer call is lost in production
WANTED_INTERVALS = 16  # parts of its share that each busy peer wants at any time
AHEAD_NS = 12_000_000  # until the first task is due, if all are due later; tasks due in 10 ms are asked for at once
LATE_PART_MAX = 0.2  # part of an interval: calls later than this miss the end of their interval
TOLERANCE = 0.01  # part of the rate
COLD_INTERVALS = 3  # after the quarantine, until the first full plans
COLD_SECONDS_MAX = 20
_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load to measure.

    Attributes:
        peers: number of peers.
        seconds: length of the measurement, after the cold start.
        rate: permits a second of the group.
        interval: seconds in a grant interval.
        busy: part of the peers that wants permits; the others call once, and then are idle.
        demand: ``backlog``, tasks that are all due, or ``ahead``, tasks due later.
        connections: number of connections for the calls.
        join: seconds within which the peers join; an interval unless given.
    """

    peers: int
    seconds: float
    rate: float
    interval: float
    busy: float
    demand: str
    connections: int
    join: float | None = None

    @property
    def busy_count(self) -> int:
        """The number of peers that want permits."""
        return max(1, round(self.peers * self.busy))

    @property
    def calls_per_second(self) -> float:
        """The number of calls that the busy peers want to make."""
        return self.busy_count / self.interval


class Ledger:
    """Records every permit that was granted, and to which peer.

    A permit is named twice: by (interval, place), as in the script, and by its time, as in a peer.
    """

    def __init__(self) -> None:
        self.doubled: list[str] = []
        self.owned: dict[tuple[str, int], int] = {}  # permits there are, by era and interval
        self._by_place: dict[tuple[str, int, int], tuple[int, str]] = {}
        self._by_time: dict[tuple[str, int], tuple[int, str]] = {}

    def note(self, peer: int, kind: str, era: str, grant: Grant) -> None:
        """Record a grant; ``kind`` tells permits in advance from those at once, which a reply repeats."""
        if grant.grid is None:
            return
        owner = peer, kind
        self.owned[era, grant.number] = grant.count
        places = sorted(rank * grant.stride % grant.count for ranks in grant.ranks for rank in ranks)
        for place, time_us in zip(places, grant.times_us(), strict=True):
            by_place = self._by_place.setdefault((era, grant.number, place), owner)
            by_time = self._by_time.setdefault((era, time_us), owner)
            if by_place != owner or by_time != owner:
                others = f"{by_place} by place, {by_time} by time"
                self.doubled.append(f"era {era}, interval {grant.number}, place {place}: {owner} after {others}")

    def granted(self) -> Counter[tuple[str, int]]:
        """Count the permits granted, by era and interval, each once however often replies repeated it."""
        return Counter((era, number) for era, number, _ in self._by_place)


class SimulatedPeer:
    """One peer, and the tasks that it pretends to have."""

    def __init__(self, load: Load, number: int) -> None:
        self.number = number
        self.wanted = max(2.0, WANTED_INTERVALS * load.rate * load.interval / load.busy_count)
        self.is_busy = number < load.busy_count
        self._is_backlog = load.demand == "backlog"
        self._now_ns = 0
        made = FleetPeers(None, interval=load.interval, strictness=Strictness.NOMINAL, seed=number)  # type: ignore[arg-type]
        # As long as an id in production: it is an argument of each call, and a field of three hashes.
        settings = replace(made._settings, id=f"worker-{number:05}:{10_000 + number}:{secrets.token_hex(8)}:0")
        self.peer = Peer(settings, Rate.of(load.rate), ServerClock())

    def demand(self, due_ns: int, *_: int) -> int:
        """Count the tasks that are due by a local time."""
        if not self.is_busy:
            return 0
        if self._is_backlog:
            return math.ceil(self.wanted)
        ahead = (due_ns - self._now_ns - AHEAD_NS) / self.peer.interval_ns()
        return math.ceil(self.wanted * ahead) if ahead > 0 else 0

    def request(self, now_ns: int) -> Request | None:
        """Return the next call; None if there is nothing to call for."""
        self._now_ns = now_ns
        permits = self.peer.permits
        permits.take(permits.usable(now_ns))
        if not self.peer.has_demand(self.demand, now_ns):
            self.peer.idle()
            return None
        return self.peer.request(now_ns, self.demand, is_regular=True)


@dataclass
class Seen:
    """What this process has seen of its calls."""

    calls: int = 0
    messages: int = 0
    trips_ns: list[int] = field(default_factory=list)  # of messages
    late_ns: list[int] = field(default_factory=list)  # of calls
    lost_count: int = 0  # calls that take longer than production waits


class Group:
    """Peers that each call once in a grant interval."""

    def __init__(self, load: Load, url: str) -> None:
        self.ledger = Ledger()
        self.seen = Seen()
        self.step_count = 0
        self.last: Reply | None = None
        self._load = load
        self._peers = [SimulatedPeer(load, number) for number in range(load.peers)]
        self._transports = [RedisTransport(url, GROUP, PREFIX) for _ in range(load.connections)]
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    async def start(self) -> None:
        """Start calling, and return after the cold start."""
        await self.join()
        end = time.monotonic() + COLD_SECONDS_MAX
        while self.last is None or self.number < self.last.safe + COLD_INTERVALS:
            if time.monotonic() > end:
                raise TimeoutError(f"no full rate after {COLD_SECONDS_MAX} s: {self.seen.calls} calls, {self.last}")
            await self.sleep(self._load.interval)

    async def join(self) -> None:
        """Start calling."""
        count, loop = len(self._transports), asyncio.get_running_loop()
        for index, transport in enumerate(self._transports):
            await transport.connect()
            self._tasks.append(loop.create_task(self._serve(transport, self._peers[index::count])))

    @property
    def number(self) -> int:
        """The number of the interval of the last reply."""
        assert self.last is not None
        return self.last.now_us // self.last.grid.interval_us

    async def sleep(self, seconds: float) -> None:
        """Let the peers call for ``seconds``; raise an error of theirs."""
        done, _ = await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def aclose(self) -> None:
        """Stop all calls."""
        self._is_closing = True  # before Python 3.12 wait_for() in a client may swallow the cancellation
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport in self._transports:
            await transport.aclose()

    async def _serve(self, transport: RedisTransport, peers: list[SimulatedPeer]) -> None:
        """Make the calls of some peers over one connection."""
        begin, join_ns = time.monotonic_ns(), (self._load.join or self._load.interval) * _NS
        due = [(begin + round(each.peer.settings.phase * join_ns), each.number, each) for each in peers]
        heapq.heapify(due)
        while due and not self._is_closing:
            now = time.monotonic_ns()
            if due[0][0] > now:
                await asyncio.sleep((due[0][0] - now) / _NS)
                continue
            calls: list[tuple[SimulatedPeer, Request]] = []
            while due and due[0][0] <= now:
                when, _, each = heapq.heappop(due)
                request = each.request(now)
                if request is not None:
                    self.seen.late_ns.append(now - when)
                    calls.append((each, request))
            if calls:
                await self._call(transport, calls)
                for each, _ in calls:
                    heapq.heappush(due, (each.peer.next_call(time.monotonic_ns()), each.number, each))

    async def _call(self, transport: RedisTransport, calls: list[tuple[SimulatedPeer, Request]]) -> None:
        sent = time.monotonic_ns()
        async with asyncio.timeout(5):
            replies = await transport.call([(NAME, request) for _, request in calls])
        got = time.monotonic_ns()
        seen = self.seen
        seen.calls += len(calls)
        seen.messages += 1
        seen.trips_ns.append(got - sent)
        seen.lost_count += len(calls) * (got - sent > TIMEOUT_NS)
        for (each, request), reply in zip(calls, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            is_step = not each.peer.clock.measure(reply.now_us * 1000, sent, got)
            self.step_count += is_step
            each.peer.receive(request, reply, is_step=is_step, now_ns=got)
            self.ledger.note(each.number, "upcoming", reply.era, reply.upcoming)
            self.ledger.note(each.number, "running", reply.era, reply.running)
        self.last = replies[-1]


class Meter:
    """Reads the statistics of a server between two moments."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        client.config_set("slowlog-log-slower-than", 1000)
        client.config_set("slowlog-max-len", 4096)
        self.begin()

    def begin(self) -> None:
        """Start measuring."""
        self._client.config_resetstat()
        self._client.slowlog_reset()
        self._start_ns, self._start_cpu = time.monotonic_ns(), self._cpu()

    def end(self) -> None:
        """Stop measuring."""
        self.cpu = self._cpu() - self._start_cpu
        self.seconds = (time.monotonic_ns() - self._start_ns) / _NS
        commands = self._client.info("commandstats")
        own = {"config", "slowlog", "info", "client", "hello", "auth", "script"}
        calls = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in commands.items()}
        script = commands.get("cmdstat_evalsha", {"calls": 0, "usec_per_call": 0.0})
        self.calls, self.script_us = script["calls"], script["usec_per_call"]
        self.inside = {name: n for name, n in calls.items() if name.partition("|")[0] not in own and name != "evalsha"}
        self.inside["info"] = calls.get("info", 0)
        percentiles = self._client.info("latencystats").get("latency_percentiles_usec_evalsha")  # from version 7 on
        self.script_p50_us, self.script_p99_us = (percentiles and round(percentiles[name]) for name in ("p50", "p99"))
        slow = [entry["duration"] for entry in self._client.slowlog_get(4096) if entry["command"][:7] == b"EVALSHA"]
        self.slow_count, self.slowest_ms = len(slow), max(slow) / 1000 if slow else None

    def _cpu(self) -> float:
        info = self._client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


COLUMNS = (
    ("peers", 5), ("calls/s", 8), ("wanted", 7), ("calls/msg", 10), ("cpu us/call", 12), ("cpu %", 7),
    ("script us", 10), ("p50", 5), ("p99", 6), ("slowest ms", 11), ("keys kB", 8), ("trip ms p50", 12), ("p99", 7),
    ("late ms p99", 12), ("lost", 6), ("granted", 9), ("worst s", 9), ("doubled", 8),
)  # fmt: skip


def row_of(cells: tuple[object, ...]) -> str:
    """Return one line of the table."""
    texts = [f"{cell:.2f}" if isinstance(cell, float) else "-" if cell is None else str(cell) for cell in cells]
    return "".join(text.rjust(width) for text, (_, width) in zip(texts, COLUMNS, strict=True))


def percentile(values: list[int], part: float) -> float:
    """Return a percentile of the values, divided by a million."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] / 1e6 if values else 0.0


def granted_part(ledger: Ledger, numbers: range, interval: float) -> tuple[float, float]:
    """Return the part of the permits that was granted: over all, and in the second with the largest deviation."""
    eras = {era for era, _ in ledger.owned}
    per_second = max(1, round(1 / interval))
    counted = ledger.granted()
    granted = [sum(counted[era, number] for era in eras) for number in numbers]
    owned = [max((ledger.owned.get((era, number), 0) for era in eras), default=0) for number in numbers]
    parts = [
        sum(granted[start : start + per_second]) / max(1, sum(owned[start : start + per_second]))
        for start in range(len(granted) - per_second + 1)
    ]
    return sum(granted) / max(1, sum(owned)), max(parts, key=lambda part: abs(part - 1), default=0.0)


async def measure(load: Load, server: RedisServer, idle_cpu: float, *, is_verbose: bool) -> bool:
    """Run one group, and print its row; return True if all grants were right."""
    with server.client() as client:
        meter = Meter(client)
        group = Group(load, server.url)
        try:
            await group.start()
            meter.end()
            cold_text = f"cold start: {meter.seconds:.1f} s, {meter.script_us:.0f} us in the script, slowest {meter.slowest_ms} ms"
            group.seen = Seen()
            meter.begin()
            first = group.number + 2  # whose grants are within the measurement
            await group.sleep(load.seconds)
            meter.end()
            seen, group.seen = group.seen, Seen()
            last = group.number - 1
            await group.sleep(2 * load.interval)
        finally:
            await group.aclose()
        kilobytes = sum(client.memory_usage(key, samples=0) or 0 for key in keys_of(PREFIX, GROUP, NAME)) / 1000
    ledger = group.ledger
    whole, worst = granted_part(ledger, range(first, last + 1), load.interval)
    cpu = max(0.0, meter.cpu - idle_cpu * meter.seconds)
    calls = max(1, meter.calls)
    cells = (
        load.peers, round(meter.calls / meter.seconds), round(load.calls_per_second), seen.calls / max(1, seen.messages),
        cpu / calls * 1e6, 100 * cpu / meter.seconds,
        round(meter.script_us), meter.script_p50_us, meter.script_p99_us,
        meter.slowest_ms, round(kilobytes, 1),
        percentile(seen.trips_ns, 0.5), percentile(seen.trips_ns, 0.99), percentile(seen.late_ns, 0.99),
        seen.lost_count, f"{whole:.2%}", f"{worst:.2%}", len(ledger.doubled),
    )  # fmt: skip
    print(row_of(cells), flush=True)
    if is_verbose:
        inside = Counter(meter.inside).most_common()
        print(
            f"{'':5}  a call: {', '.join(f'{name} {count / calls:.2f}' for name, count in inside if count)};"
            f" slower than 1 ms: {meter.slow_count} of {meter.calls}; steps of the clock: {group.step_count}; {cold_text}",
            flush=True,
        )
    if percentile(seen.late_ns, 0.99) > LATE_PART_MAX * load.interval * 1000:
        print("       not the load that was asked for: this process was late; only 'doubled' counts", flush=True)
    for text in ledger.doubled[:10]:
        print(f"        granted twice: {text}", flush=True)
    return not ledger.doubled and abs(whole - 1) <= TOLERANCE and abs(worst - 1) <= TOLERANCE


async def measure_joining(load: Load, server: RedisServer, idle_cpu: float) -> bool:
    """Let one group join, and print what that took; return True if all grants were right."""
    with server.client() as client:
        group = Group(load, server.url)
        meter = Meter(client)
        try:
            await group.join()
            await group.sleep(load.join or load.interval)
            meter.end()
            ranks = {each.peer.rank for each in group._peers}
        finally:
            await group.aclose()
    cpu = max(0.0, meter.cpu - idle_cpu * meter.seconds)
    late = percentile(group.seen.late_ns, 0.99)
    print(
        f"{load.peers} peers joined in {meter.seconds:.1f} s with {meter.calls} calls: {cpu / max(1, meter.calls) * 1e6:.0f} us "
        f"of CPU a call, {100 * cpu / meter.seconds:.0f} % of a core; script {meter.script_us:.0f} us, p99 "
        f"{meter.script_p99_us} us, slowest {meter.slowest_ms} ms; calls were late by {late:.0f} ms (p99); "
        f"{len(ranks - {None})} ranks",
        flush=True,
    )
    return not group.ledger.doubled


@contextlib.contextmanager
def idle_server() -> Iterator[tuple[RedisServer, float]]:
    """Start a server, and measure its CPU seconds per idle second."""
    with RedisServer() as server:
        with server.client() as client:
            meter = Meter(client)
            time.sleep(2)
            meter.end()
            info, allocator = client.info("server"), client.info("memory")["mem_allocator"]
        kind = info.get("server_name", "redis")
        version = info.get("valkey_version", info["redis_version"])
        idle = meter.cpu / meter.seconds
        print(f"{kind} {version}, {allocator}; idle: {100 * idle:.2f} % of a core")
        yield server, idle


def main() -> None:
    """Let groups call a server of their own, and print what it costs; fail if a permit is granted wrongly."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--peers", type=int, action="append", help="may be given several times; 10, 100 and 1000")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which is measured, after a cold start of 3 s")
    parser.add_argument("--rate", type=float, default=5000.0, help="permits a second of the group")
    parser.add_argument("--interval", type=float, default=0.25, help="seconds in a grant interval")
    parser.add_argument("--busy", type=float, default=1.0, help="part of the peers that wants permits")
    parser.add_argument("--demand", choices=("backlog", "ahead"), default="backlog", help="due already, or due later")
    parser.add_argument("--connections", type=int, default=8, help="over which calls go")
    parser.add_argument("--join", type=float, help="seconds within which the peers join: that is all that is measured")
    parser.add_argument("--verbose", action="store_true", help="count the commands that the script calls, too")
    chosen = vars(parser.parse_args())
    sizes, is_verbose = chosen.pop("peers") or SIZES, chosen.pop("verbose")
    is_right = True
    with idle_server() as (server, idle_cpu):
        if chosen["join"] is None:
            print(row_of(tuple(name for name, _ in COLUMNS)))
        for peers in sizes:
            server.flush()
            load = Load(peers=peers, **chosen)
            if load.join is not None:
                is_right &= asyncio.run(measure_joining(load, server, idle_cpu))
                continue
            is_right &= asyncio.run(measure(load, server, idle_cpu, is_verbose=is_verbose))
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
