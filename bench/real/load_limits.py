"""What joint admission costs a real server: the laws of `laws.lua` in a script that reads, decides and writes.

    python -m bench.real.load_limits            # tickets alone, and in batches of 10, 100 and 500: 20 s
    python -m bench.real.load_limits --parts    # each limit by itself, too

A ticket is under the pace of the group, an exact window, tokens a minute, and the rate of its key, one of 10,000. The
script reads all states that its tickets need by one HMGET, decides ticket by ticket, and writes what has changed by one
HSET. Each ticket is admitted, and the log of the window has all of its parts, as under full load.

``cpu`` is the server's processor time in the script, by `os.clock` from its first line to its last; ``script`` is the
wall time of EVALSHA, which other processes on the same cores make longer. Both are of the best of twenty stretches.
Small batches are sent 100 tickets at a time, so that the caches of the server are warm, as they are under load: a call
that comes alone every millisecond takes several times as long. What is not in it: the server's event loop and parser,
which a message takes however many tickets it has, and the network. The sizes of messages and states grow with what an
authority adds to this.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from fractions import Fraction
from importlib.resources import files
from typing import TYPE_CHECKING

from ratelimited_executor._core.fleet.limit_settings import BurstSettings, LimitSettings, PaceSettings, WindowSettings
from tests.peers.servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

LAWS = files("ratelimited_executor.peers.redis").joinpath("laws.lua").read_text(encoding="utf-8")

# ARGV: number of tickets, settings and costs of the shared limits, settings of a key's limit, a key for each ticket.
MAIN = """
local count = tonumber(ARGV[1])
local shared = tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fields, place_of = {}, {}
for index = 1, shared do fields[index] = 'l' .. index end
local first = 4 + 2 * shared
for index = first, first + count - 1 do
  local key = 'k' .. ARGV[index]
  if not place_of[key] then
    fields[#fields + 1] = key
    place_of[key] = #fields
  end
end
local states, limits = redis.call('HMGET', KEYS[1], unpack(fields)), {}
for index = 1, #fields do
  limits[index] = read_limit(index <= shared and ARGV[1 + 2 * index] or ARGV[first - 1], states[index], now)
end
local costs, ticket, reply = {}, {}, {}
for index = 1, shared do costs[index], ticket[index] = tonumber(ARGV[2 + 2 * index]), limits[index] end
local has_keys = ARGV[first - 1] ~= ''
if has_keys then costs[shared + 1] = 1 end
for index = first, first + count - 1 do
  if has_keys then ticket[shared + 1] = limits[place_of['k' .. ARGV[index]]] end
  local when, holder, receipts = decide(ticket, costs, now, now + 250000)
  reply[#reply + 1] = receipts and string.format('%.0f', when) or 'no'
end
local changed = {}
for index, limit in ipairs(limits) do
  if limit.is_changed then
    changed[#changed + 1] = fields[index]
    changed[#changed + 1] = limit.law.write(limit)
  end
end
if #changed > 0 then redis.call('HSET', KEYS[1], unpack(changed)) end
reply[#reply + 1] = math.floor((os.clock() - begun) * 1000000 + 0.5)
return reply
"""

KEY_COUNT = 10_000
STRETCHES = 20  # stretches of each row
TOGETHER = 100  # tickets of a message, unless a batch is larger
BATCHES = (1, 10, 100, 500)
SECOND = 1_000_000
VALID = 20_000

# Settings and cost of a ticket. The rates are far above what one connection asks for, so that all are admitted.
PACE = (PaceSettings.of(400_000, SECOND), 1)
WINDOW = (WindowSettings.of(10**7, 2 * SECOND, valid_us=VALID), 1)
TOKENS = (BurstSettings.of(10**9, 10**9, SECOND, valid_us=VALID), 500)
KEY = PaceSettings.of(1000, SECOND, stretch=Fraction(0))


def measure(
    client: redis.Redis,
    shared: Sequence[tuple[LimitSettings, int]],
    key: LimitSettings | None,
    batch: int,
    seconds: float,
) -> tuple[float, float, float, int]:
    """Return the least microseconds per ticket of processor, script and round trip, and the number refused."""
    script = client.register_script("local begun = os.clock()\n" + LAWS + MAIN)
    head = [str(each) for made, cost in shared for each in (made.write(), cost)]
    head = [str(len(shared)), *head, key.write() if key else ""]
    draw = random.Random(1)
    client.script_load(script.script)
    together, refused = max(1, TOGETHER // batch), 0

    def call() -> tuple[int, int]:
        """Send some calls; return the number of tickets refused, and the processor time."""
        pipeline = client.pipeline(transaction=False)
        for _ in range(together):
            keys = [draw.randrange(KEY_COUNT) if key else 0 for _ in range(batch)]
            pipeline.evalsha(script.sha, 1, "{load}:limits", str(batch), *head, *keys)
        replies = pipeline.execute()
        return sum(reply.count(b"no") for reply in replies), sum(reply[-1] for reply in replies)

    end = time.monotonic() + 3  # until the log of the window has all of its parts
    while time.monotonic() < end:
        call()
    best = (math.inf, math.inf, math.inf)
    for _ in range(STRETCHES):
        client.config_resetstat()
        begun, calls, cpu = time.monotonic(), 0, 0
        while time.monotonic() < begun + seconds / STRETCHES:
            more_refused, spent = call()
            refused += more_refused
            cpu += spent
            calls += together
        trip = (time.monotonic() - begun) / calls * 1e6
        spent = client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
        best = min(best, (cpu / calls / batch, spent / batch, trip / batch))
    return *best, refused


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for which each row is measured")
    parser.add_argument("--parts", action="store_true", help="measure each limit by itself, too")
    chosen = parser.parse_args()
    rows = [("pace, window, tokens, key", [PACE, WINDOW, TOKENS], KEY)]
    if chosen.parts:
        rows += [("pace", [PACE], None), ("window", [WINDOW], None), ("tokens", [TOKENS], None), ("key", [], KEY)]
    with RedisServer() as server, server.client() as client:
        info = client.info("server")
        print(info.get("server_name", "redis"), info.get("valkey_version", info["redis_version"]))
        print(
            f"{'limits':28}{'batch':>6}{'cpu us/ticket':>15}{'script us/ticket':>18}{'trip us/ticket':>16}{'refused':>9}{'state bytes':>13}"
        )
        for name, shared, key in rows:
            for batch in BATCHES:
                server.flush()
                cpu, spent, trip, refused = measure(client, shared, key, batch, chosen.seconds)
                size = client.memory_usage("{load}:limits", samples=0)
                print(f"{name:28}{batch:>6}{cpu:>15.1f}{spent:>18.1f}{trip:>16.1f}{refused:>9}{size:>13}", flush=True)


if __name__ == "__main__":
    main()
