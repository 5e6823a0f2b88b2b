"""What a call for tickets costs a real server: the script as processes call it, beside a bare one.

    python -m bench.real.load_tickets                  # 20 s
    python -m bench.real.load_tickets --together 20    # as under load: the server finds so many calls at once

A ticket of ``one pace`` is under one limit, the rate of an executor. Other tickets are under three limits of all, a pace, an
exact window with all of its parts, and tokens a minute; in some rows under the rate of its key, too, each another one of
10,000. ``floor`` is a script that reads and writes a hash: what any call costs, however little it does.

``server`` is the processor time of the whole server for a call, by INFO: with its event loop, the parser, and what the
kernel does for the socket. ``script`` is the wall time of EVALSHA by COMMANDSTATS. Calls come one by one, each after the
answer to the one before, or so many at a time. All rows take turns, in stretches of some calls, on one server; each figure
is the median of the stretches. ``over floor`` is the difference of two medians, for one ticket.

What would make a number lie: another process on the core of the server makes ``script`` longer, and empties the caches of
both, so that the floor has to be measured in the same run, as it is here. A processor that sleeps between calls, or slows
down, makes all of them longer. A server of another version, or another allocator, differs by more than a change
of the script. Calls that come alone find the caches of the processor cold, at a server that has little to do. One peer calls: the sets of hungry peers are nearly empty; in a group that waits, a call costs
some sorted sets' writes more. Everything is admitted; a refusal is cheaper.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import TypeAlias

import redis

from ratelimited_executor._core.fleet.limit_settings import BurstSettings, PaceSettings, WindowSettings
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketCall, TicketReply, TicketRun
from ratelimited_executor.peers.redis.ticket_script import (
    TICKET_SCRIPT,
    ticket_arguments_of,
    ticket_keys_of,
    ticket_reply_of,
)
from tests.peers.servers import RedisServer

SECOND = 1_000_000
KEY_COUNT = 10_000
BATCHES = (1, 10, 100)
WARM_SECONDS = 2.5  # until the log of the window has all of its parts

# Far above what one connection asks for, so that all are admitted.
PACE = (PlanLimit("permits/rate", "permits", PaceSettings.of(400_000, SECOND).write()),)
PLAN = (
    *PACE,
    PlanLimit("permits/2s", "permits", WindowSettings.of(10**7, 2 * SECOND).write()),
    PlanLimit("tokens/minute", "tokens", BurstSettings.of(10**9, 10**9, SECOND).write()),
)
KEY = PaceSettings.of(1000, SECOND, is_exact=False).write()
COSTS = (("permits", 1), ("tokens", 500))

Call: TypeAlias = Callable[[redis.Redis], object]  # on a connection or a pipeline

FLOOR = """
local known = redis.call('HMGET', KEYS[1], 'a', 'b', 'c')
redis.call('HSET', KEYS[1], 'a', ARGV[1], 'b', known[1] or '', 'c', ARGV[2])
return {known[1], known[2], known[3]}
"""


class Tickets:
    """A process that asks for tickets.

    Args:
        client: client of the server.
        name: of the executor.
        plan: its limits.
    """

    def __init__(self, client: redis.Redis, name: str, plan: tuple[PlanLimit, ...]) -> None:
        self._script = client.register_script(TICKET_SCRIPT)
        self._keys = ticket_keys_of("load", "group", name)
        self._call = TicketCall(
            peer="host-1234-5678abcd",
            ahead_us=100_000,
            difference_us=SECOND,
            quarantine_us=1000,
            plan_id=f"the plan of {name}",
            plan=plan,
        )
        reply = self._send()
        time.sleep(0.01)  # the quarantine
        self._call = replace(self._call, era=reply.era, since_us=reply.now_us, latest_us=reply.now_us + 1000 * SECOND)
        self._send()
        self._draw = random.Random(1)

    def _send(self) -> TicketReply:
        return ticket_reply_of(self._script(self._keys, ticket_arguments_of(self._call)))

    def ask(self, count: int, *, has_keys: bool) -> Call:
        """Return a function that asks for ``count`` tickets, each time for other keys."""
        texts = [
            ticket_arguments_of(replace(self._call, runs=tuple(self._runs(count, has_keys=has_keys))))
            for _ in range(200)
        ]
        turn = cycle(texts)
        return lambda client: self._script(self._keys, next(turn), client)

    def _runs(self, count: int, *, has_keys: bool) -> Iterator[TicketRun]:
        if not has_keys:
            yield TicketRun(count, COSTS)
            return
        for _ in range(count):
            yield TicketRun(1, COSTS, f"user-{self._draw.randrange(KEY_COUNT)}", KEY)


def floor(client: redis.Redis) -> Call:
    """Return a function that reads and writes a hash."""
    script = client.register_script(FLOOR)
    text = "1704067200000000,1704067200000000,0"
    return lambda client: script(["{load}:floor"], [text, text], client)


def cost(client: redis.Redis, call: Call, calls: int, together: int) -> tuple[float, float]:
    """Return microseconds a call: of the server's processor, and of the script."""
    call(client)
    client.config_resetstat()
    pipelines = []
    for _ in range(-(-calls // together) if together > 1 else 0):
        pipelines.append(client.pipeline(transaction=False))
        for _ in range(together):
            call(pipelines[-1])
        pipelines[-1].scripts.clear()  # the server has them
    before = client.info("cpu")
    for pipeline in pipelines:
        pipeline.execute()
    for _ in range(0 if pipelines else calls):
        call(client)
    after = client.info("cpu")
    count, script = (client.info("commandstats")["cmdstat_evalsha"][name] for name in ("calls", "usec_per_call"))
    spent = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    return spent / count * 1e6, script


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--calls", type=int, default=200, help="of a stretch")
    parser.add_argument("--stretches", type=int, default=25, help="of each row")
    parser.add_argument("--together", type=int, default=1, help="calls that the server finds at once")
    chosen = parser.parse_args()
    with RedisServer() as server, server.client() as client:
        info = client.info("server")
        print(info.get("server_name", "redis"), info.get("valkey_version", info["redis_version"]))
        one, three = Tickets(client, "one", PACE), Tickets(client, "three", PLAN)
        rows = [("floor", 1, floor(client))]
        for name, tickets, has_keys in (
            ("one pace", one, False),
            ("three limits", three, False),
            ("three limits, key", three, True),
        ):
            rows += [(name, batch, tickets.ask(batch, has_keys=has_keys)) for batch in BATCHES]
        spent: list[list[tuple[float, float]]] = [[] for _ in rows]
        end = time.monotonic() + WARM_SECONDS
        while time.monotonic() < end:
            for _, _, call in rows:
                call(client)
        for _ in range(chosen.stretches):
            for row, (_, batch, call) in zip(spent, rows, strict=True):
                row.append(cost(client, call, max(20, chosen.calls // batch), chosen.together))
        print(
            f"{'':20}{'batch':>6}{'server us/call':>16}{'script us/call':>16}{'server us/ticket':>18}{'over floor':>12}"
        )
        least = statistics.median(each for each, _ in spent[0])
        for row, (name, batch, _) in zip(spent, rows, strict=True):
            whole, script = (statistics.median(each) for each in zip(*row, strict=True))
            print(
                f"{name:20}{batch:>6}{whole:>16.1f}{script:>16.1f}{whole / batch:>18.1f}{(whole - least) / batch:>12.1f}"
            )


if __name__ == "__main__":
    main()
