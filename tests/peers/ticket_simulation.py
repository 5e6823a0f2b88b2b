"""Random histories of a group that shares its limits, in virtual time: processes, loads and faults from a seed.

Starts of each history are counted at the resource, over all processes: no window with a limit may have more than it
allows. The faults are lost calls and answers, an authority that is away, FLUSHALL, restarts from a snapshot, steps of
the server's clock, processes that join, leave and are killed, and penalties. No process is killed within a second of
the server forgetting: what a killed process was granted, before any other has called, is lost if the server forgets
then.

    python -m tests.peers.ticket_simulation --histories 10000
"""

import argparse
import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ratelimited_executor import Burst, ExecutorManager, Paced, Window
from ratelimited_executor.testing import run_virtual
from tests.peers.ticket_group import Server, most_in

PROCESSES = 3
SECONDS = 25.0


@dataclass
class History:
    """What happened in one history.

    Attributes:
        starts: (time, cost) of each start.
        tokens: the same for a resource.
        keys: the same by key.
        wrong: broken limits, in words.
        faults: number of faults of each kind.
    """

    starts: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[tuple[float, int]] = field(default_factory=list)
    keys: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


PLANS: list[tuple[dict[str, Any], dict[float, float], float]] = [  # settings, most by width, tokens in 5 s
    ({"rate": "20/s, 60/5s", "policy": Paced()}, {1: 20, 5: 60}, 1e9),
    ({"rate": "40/5s", "policy": Window(), "resources": {"tokens": "200/5s"}}, {5: 40}, 200),
    ({"rate": "10/s", "policy": Burst(15)}, {1: 25, 5: 65}, 1e9),
    ({"rate": "30/s", "key_rate": "2/s"}, {1: 30}, 1e9),
    ({"rate": "0.5/s, 3/5s"}, {2: 1, 5: 3}, 1e9),
]


async def live(seed: int) -> History:
    """Run one history."""
    draw = random.Random(seed)
    history, server = History(), Server(seed)
    settings, bounds, tokens = draw.choice(PLANS)
    server.loss = draw.choice([0.0, 0.0, 0.05, 0.2])
    loop = asyncio.get_running_loop()
    kills, killed, forgot = random.Random(-seed), [-1.0], [-1.0]

    def start(cost: int, key: str | None) -> None:
        history.starts.append((loop.time(), 1))
        if cost:
            history.tokens.append((loop.time(), cost))
        if key is not None:
            history.keys.setdefault(key, []).append((loop.time(), 1))

    async def process(number: int) -> None:
        await asyncio.sleep(draw.choice([0.0, 0.0, draw.uniform(0, 10)]))
        while loop.time() < SECONDS:
            peers = server.peers(seed * 1000 + number)
            life = draw.choice([SECONDS, SECONDS, draw.uniform(1, 10)])
            async with ExecutorManager(peers=peers) as manager:
                executor = manager.executor("x", **settings)
                end = min(loop.time() + life, SECONDS)
                while loop.time() < end:
                    for _ in range(draw.randrange(30)):
                        cost = draw.randrange(1, 60) if "resources" in settings else 0
                        key = f"k{draw.randrange(4)}" if draw.random() < 0.8 else None
                        if draw.random() < 0.2:
                            cost = 0
                        executor.schedule(
                            start, cost, key, key=key, priority=draw.randrange(3), delay=draw.choice([0, draw.uniform(0, 2)]),
                            cost={"tokens": cost} if cost else 1,
                        )  # fmt: skip
                    if draw.random() < 0.03:
                        executor.penalize(draw.uniform(0, 2))
                    await asyncio.sleep(draw.uniform(0.1, 2))
                if kills.random() < 0.4 and loop.time() > forgot[0] + 1:
                    history.faults["kill"] += 1
                    peers.link.is_cut = True
                    killed[0] = loop.time()
                await executor.shutdown(cancel_pending=True)
            number += PROCESSES
            await asyncio.sleep(draw.uniform(0, 3))

    async def faults() -> None:
        while loop.time() < SECONDS:
            await asyncio.sleep(draw.expovariate(0.25))
            fault = draw.choice(["forget", "restart", "save", "step", "away"])
            if fault in ("forget", "restart"):
                await asyncio.sleep(max(0.0, killed[0] + 1 - loop.time()))
                forgot[0] = loop.time()
            history.faults[fault] += 1
            if fault == "forget":
                server.forget()
            elif fault == "save":
                server.save()
            elif fault == "restart":
                server.restart()
            elif fault == "step":
                server.ahead += draw.choice([-100, -2, -0.01, 0.01, 2, 100])
            else:
                server.is_away = True
                await asyncio.sleep(draw.uniform(0.05, 4))
                server.is_away = False

    async with asyncio.TaskGroup() as group:
        disturbing = group.create_task(faults())
        for each in [group.create_task(process(number)) for number in range(PROCESSES)]:
            await each
        disturbing.cancel()
    for width, most in bounds.items():
        found = most_in(history.starts, width)
        if found > most:
            history.wrong.append(f"{found} starts in {width} s, {most} allowed: {settings}")
    if most_in(history.tokens, 5) > tokens:
        history.wrong.append(f"{most_in(history.tokens, 5)} tokens in 5 s")
    if "key_rate" in settings:
        for key, starts in history.keys.items():
            if most_in(starts, 1) > 2:
                history.wrong.append(f"{most_in(starts, 1)} starts of {key} in 1 s")
    return history


def history_of(seed: int) -> History:
    """Run the history of a seed."""
    return run_virtual(live(seed))


def main() -> None:
    """Run many histories; print the broken limits, and counts of starts and faults."""
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    started, wrong, faults = 0, 0, Counter[str]()
    for seed in track(range(options.first, options.first + options.histories), "histories"):
        history = history_of(seed)
        started += len(history.starts)
        faults += history.faults
        if history.wrong:
            wrong += 1
            print(f"history {seed}: {'; '.join(history.wrong)}", flush=True)
    print(f"{options.histories} histories, {started} starts, {wrong} over a limit; {dict(faults)}")


if __name__ == "__main__":
    main()
