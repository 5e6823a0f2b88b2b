"""Limits of every kind at once over a real group: processes, a real server, and a counter of starts outside of the fleet.

    python -m bench.real.tickets              # every scenario, a line each: some ten minutes
    python -m bench.real.tickets crash stop   # some of them

A start needs a permit of a pace and of an exact window, tokens of a pace and of an exact window, and in one executor the rate
of its key, in another a slot; in ``together`` both. The first statement of a task reads the monotonic clock that all processes
of a machine share, and ten processes report these times. Every law is checked in every window that begins or ends with a start.
For each law, a line shows the largest amount in one of its windows, and the *spare*: the shortest time in which more started,
minus the window. Below 0 the law was broken. If there are more processes than cores, a start may be delayed between the
decision and its first statement, and no limiter can prevent that: the report shows the longest delay as well.

``used`` is the part of the limit that was used most. Half of the tasks are of one key, so that its rate is used up, too.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.peers.processes import wait_until
from tests.peers.real_slots import LEASE, percentile
from tests.peers.real_tickets import (
    INTERVAL,
    MANY_KEYS,
    MARGIN,
    PROCESSES,
    QUARANTINE,
    TicketFleet,
    fleet,
    plan_of,
)
from tests.peers.servers import RedisServer, redis_cluster, sentinel_group

if TYPE_CHECKING:
    from collections.abc import Callable

# Scenarios: each returns its figures; the laws are checked for all of them.

Result = tuple[TicketFleet, dict[str, Any]]


def begun(running: TicketFleet, count: int = PROCESSES, **options: Any) -> list[int]:
    """Start processes, and wait until all limits are in use."""
    numbers = running.add(count, **options)
    running.wait_for_entry()
    time.sleep(max(law.seconds for law in running.plan.laws))
    return numbers


def stretch(running: TicketFleet, windows: int = 1) -> tuple[float, float]:
    """Let the fleet run for some of the longest windows, and return when that was."""
    seconds = windows * max(law.seconds for law in running.plan.laws)
    start = running.after(seconds)
    return start, start + seconds


def _steady(running: TicketFleet) -> dict[str, Any]:
    begun(running)
    start, end = stretch(running, 2)
    return {
        "used": running.used_by_both(start, end),
        **{f"of {law}": running.used_of(law, start, end) for law in running.plan.laws if law.of != "key"},
        "of the key in demand": running.used_of_key(start, end),
    }


def paced(server: RedisServer) -> Result:
    """Ten processes under a pace, windows of 10 s, tokens, rates of keys, and slots, without faults."""
    with fleet(plan_of(seconds=10), url=server.url) as running:
        return running, _steady(running)


def windows(server: RedisServer) -> Result:
    """The same, with all limits as exact windows."""
    with fleet(plan_of(seconds=10, policy="Window"), url=server.url) as running:
        return running, _steady(running)


def together(server: RedisServer) -> Result:
    """Ten processes whose tasks each need tickets, the rate of their key, and a slot."""
    with fleet(plan_of(seconds=10), url=server.url, is_together=True) as running:
        return running, _steady(running)


def clocks(server: RedisServer) -> Result:
    """Ten processes whose clocks are up to 30 s apart."""
    with fleet(plan_of(seconds=10), url=server.url) as running:
        for number in range(PROCESSES):
            running.add(1, ahead=30.0 * number / (PROCESSES - 1) - 15)
        running.wait_for_entry()
        time.sleep(10)
        return running, {"used": running.used_by_both(*stretch(running))}


def crash(server: RedisServer) -> Result:
    """Ten processes, of which four are killed one after the other."""
    with fleet(plan_of(), url=server.url) as running:
        for number in begun(running)[:4]:
            running.signal(number, signal.SIGKILL)
            time.sleep(0.7)
        time.sleep(1.5 * LEASE)
        return running, {"used afterwards": running.used_by_both(*stretch(running, 2))}


def stop(server: RedisServer) -> Result:
    """Ten processes, of which three in turn are stopped for longer than a lease."""
    with fleet(plan_of(), url=server.url) as running:
        for number in begun(running)[:3]:
            running.signal(number, signal.SIGSTOP)
            time.sleep(2.5 * LEASE)
            running.signal(number, signal.SIGCONT)
            time.sleep(0.5)
        return running, {"lost": len(running.lost), "used afterwards": running.used_by_both(*stretch(running, 2))}


def blocked(server: RedisServer) -> Result:
    """Ten processes, of which three have their event loops blocked for three leases, twice."""
    with fleet(plan_of(), url=server.url, block=3 * LEASE) as running:
        numbers = begun(running)
        for _ in range(2):
            for number in numbers[:3]:
                os.kill(running.processes[number].pid, signal.SIGUSR1)
            time.sleep(3 * LEASE + 1)
        return running, {"lost (0)": len(running.lost), "used afterwards": running.used_by_both(*stretch(running, 2))}


def _befallen(running: TicketFleet, do: Callable[[], object], pause: float) -> dict[str, Any]:
    """Let a fault happen to the server, and wait until all limits are in use again."""
    begun(running)
    time.sleep(1.3)  # in the middle of a window
    do()
    back = time.monotonic()
    first = running.wait_for_entry()
    time.sleep(max(0.0, pause - (first - back)))
    start, end = stretch(running, 2)
    return {
        "first start after": first - back,
        "lost": len(running.lost),
        "used afterwards": running.used_by_both(start, end),
    }


# When earlier use has left the windows, counted as used at the end of the quarantine.
AGAIN = QUARANTINE + 5 + 2


def restart(server: RedisServer) -> Result:
    """A server that is killed in the middle of a window, and comes back empty."""
    with fleet(plan_of(), url=server.url) as running:
        return running, _befallen(running, lambda: (server.kill(), server.restart()), AGAIN)


def restart_with_memory(_: RedisServer) -> Result:
    """A server that is killed in the middle of a window, and comes back with all that is in its log."""
    with (
        RedisServer(config=["appendonly yes", "appendfsync always"]) as server,
        fleet(plan_of(), url=server.url) as running,
    ):
        return running, _befallen(running, lambda: (server.kill(), server.restart()), AGAIN)


def old_snapshot(server: RedisServer) -> Result:
    """A server that comes back with its state of two seconds before."""
    with fleet(plan_of(), url=server.url) as running:

        def fall() -> None:
            server.ask("SAVE")
            time.sleep(2)
            server.kill()
            server.restart()

        return running, _befallen(running, fall, AGAIN)


def flush_all(server: RedisServer) -> Result:
    """A server whose keys are all deleted in the middle of a window."""
    with fleet(plan_of(), url=server.url) as running:
        return running, _befallen(running, lambda: server.ask("FLUSHALL"), AGAIN)


def client_kill(server: RedisServer) -> Result:
    """A server that closes all connections, twenty times."""

    def fall() -> None:
        for _ in range(10):
            for kind in ("normal", "pubsub"):
                server.ask("CLIENT", "KILL", "TYPE", kind)
                time.sleep(0.2)

    with fleet(plan_of(), url=server.url) as running:
        return running, _befallen(running, fall, 1)


def fail_over(_: RedisServer) -> Result:
    """Ten processes behind sentinels, whose master is killed in the middle of a window."""
    with sentinel_group() as group, fleet(plan_of(), sentinels=group.addresses, master=group.name, url="") as running:

        def fall() -> None:
            old = group.master()
            old.kill()
            group.wait_failed_over(old)

        return running, _befallen(running, fall, AGAIN)


def cluster(_: RedisServer) -> Result:
    """Ten processes on a cluster of three masters."""
    with redis_cluster(3) as servers, fleet(plan_of(), url=servers.url, cluster=True) as running:
        begun(running)
        return running, {"used": running.used_by_both(*stretch(running, 2))}


LOWER = plan_of(rate=10, share=8, slots=2)


def limits(server: RedisServer) -> Result:
    """Limits that one process lowers to a quarter for all, and raises again."""
    plan = plan_of()
    commands = [
        {"rate": each.options["rates"], "resources": each.options["resources"], "slots": each.options["limit"]}
        for each in (LOWER, plan)
    ]
    with fleet(plan, url=server.url, commands=commands) as running:
        numbers = begun(running)
        lowered = running.command(numbers[4]) + INTERVAL + MARGIN
        time.sleep(12)
        raised = running.command(numbers[4])
        broken = running.broken(LOWER.laws, lowered, raised)
        used = max(running.used_of(law, raised - 5, raised) for law in LOWER.laws if law.of != "key")
        most = running.most(lowered, raised)
        time.sleep(5)
        return running, {
            "broken while lower": broken or "none",
            "most at 2 slots": most,
            "used of the lower": used,
            "used of the higher": running.used_by_both(*stretch(running)),
            "broken": [*broken, *(["slots"] if most > LOWER.options["limit"] else ())],
        }


def busy_one(server: RedisServer) -> Result:
    """One busy process, and nine that start a task every twenty seconds."""
    with fleet(plan_of(seconds=10), url=server.url) as running:
        (busy,) = running.add(1, load=3000)
        running.add(PROCESSES - 1, load=0, flow=0.05)
        running.wait_for_entry()
        time.sleep(10)
        start, end = stretch(running, 2)
        return running, {
            "used": running.used_by_both(start, end),
            "part of the busy one": running.count_of(busy, start, end) / running.count_of(None, start, end),
        }


def ten_beside_many(server: RedisServer) -> Result:
    """Ten tasks of equal priority, five times, beside a process with 100,000; the time until the ten have started."""
    plan = plan_of(share=1_000_000, slots=0, keys=MANY_KEYS)
    with fleet(plan, url=server.url, commands=[{"load": 10}] * 5, hot=0.0) as running:
        running.add(1, load=100_000)
        (small,) = running.add(1, load=0)
        running.wait_for_entry()
        time.sleep(3)
        seconds = []
        for _ in range(5):
            told = running.command(small)
            wait_until(lambda told=told: running.count_of(small, told) >= 10, "ten start", seconds=20)
            seconds.append(sorted(when for when, who in running.by if who == small and when >= told)[9] - told)
            time.sleep(2)
        share = 10 / (40 / 2)
        return running, {
            "worst s": max(seconds),
            "best s": min(seconds),
            "share and two intervals": share + 2 * INTERVAL,
        }


def idle_submit(server: RedisServer) -> Result:
    """Ten processes, of which one submits a task now and then; the time from submit to start."""
    plan = plan_of(share=1_000_000, slots=0, keys=MANY_KEYS)
    with fleet(plan, url=server.url, load=0, hot=0.0) as running:
        running.add(PROCESSES - 1, flow=0.05)
        running.add(1, probe=0.2)
        running.wait_for_entry()
        time.sleep(2)
        running.waits.clear()
        time.sleep(20)
        return running, {
            "submits": len(running.waits),
            "p50 ms": 1e3 * percentile(running.waits, 0.5),
            "p99 ms": 1e3 * percentile(running.waits, 0.99),
        }


def slots(server: RedisServer) -> Result:
    """Ten processes with tasks of 50 ms, held only by the limit of slots."""
    plan = plan_of(rate=400, share=1_000_000, keys=0)
    with fleet(plan, url=server.url) as running:
        begun(running)
        start, end = running.after(8), time.monotonic()
        gaps = running.hand_offs(start, end)
        return running, {
            "used of the slots": running.used(start, end),
            "free p50 ms": 1e3 * percentile(gaps, 0.5),
            "p99 ms": 1e3 * percentile(gaps, 0.99),
        }


SCENARIOS: dict[str, Callable[[RedisServer], Result]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        paced, windows, together, clocks, crash, stop, blocked, restart, restart_with_memory, old_snapshot, flush_all, client_kill,
        fail_over, cluster, limits, busy_one, ten_beside_many, idle_submit, slots,
    )
}  # fmt: skip


def line_of(name: str, running: TicketFleet, figures: dict[str, Any]) -> str:
    """Return the line of a scenario."""
    laws = [
        f"{law}: {running.most_of(law)} ({1e3 * running.spare(law):.1f}, "
        f"decided {1e3 * running.spare(law, is_decided=True):.1f} ms)"
        for law in running.plan.laws
    ]
    told = [f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()]
    return (
        f"{name}: {', '.join(told)}; {'; '.join(laws)}; slots {running.most()}/{running.limit}; {len(running.costs)} starts, "
        f"held up p99 {1e3 * percentile(running.held_up, 0.99):.1f} ms, longest {1e3 * max(running.held_up, default=0):.1f} ms"
    )


def main() -> None:
    """Run scenarios, and print a line each; fail if a law was broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join(SCENARIOS))
    is_right = True
    for name in parser.parse_args().scenarios or SCENARIOS:
        with RedisServer() as server:
            running, figures = SCENARIOS[name](server)
        broken = [*running.broken(running.plan.laws), *figures.pop("broken", ())]
        is_right &= not broken
        print(line_of(name, running, figures), *([f"BROKEN: {'; '.join(broken)}"] if broken else []), flush=True)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
