"""Random programs of calls for tickets and slots, for authorities that must all give the same replies."""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ratelimited_executor import ExecutorManager
from ratelimited_executor._core.fleet.limit_settings import BurstSettings, PaceSettings, QuotaSettings, WindowSettings
from ratelimited_executor._core.fleet.slots import SlotCall, SlotDeclaration, SlotEntry, SlotReply
from ratelimited_executor._core.fleet.ticket_calls import (
    Correction,
    LimitCopy,
    PlanLimit,
    Report,
    TicketCall,
    TicketReply,
    TicketRun,
)
from ratelimited_executor.policies import Adaptive

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
PEERS = ("host:1:a:0", "host:2:b:0", "other:1:c:0")
KEYS = ("'ann'", "'ben'", "3", "b'x'", "'\u20ac'")
ODD = ("'\ud800'", "\0")  # no key has such a text, but a database should keep any
SETTINGS = (
    PaceSettings.of(2, SECOND).write(),
    PaceSettings.of(5, SECOND, is_exact=False).write(),
    WindowSettings.of(3, 2 * SECOND).write(),
    BurstSettings.of(4, 1, SECOND).write(),
)


def plan_of(number: int, now_us: int) -> tuple[str, tuple[PlanLimit, ...]]:
    """Return one of some plans."""
    if number == 0:
        return "pace", (PlanLimit("rate", "permits", PaceSettings.of(100, SECOND).write()),)
    if number == 1:
        return "both", (
            PlanLimit("window", "permits", WindowSettings.of(20, SECOND).write()),
            PlanLimit("minute", "permits", WindowSettings.of(200, 60 * SECOND).write()),
            PlanLimit("tokens", "tokens", BurstSettings.of(100, 50, SECOND).write()),
        )
    period = now_us // (60 * SECOND)
    begin = period * 60 * SECOND
    quota = QuotaSettings(40, 7, period, begin, begin + 60 * SECOND, begin + 120 * SECOND, 20_000, SECOND)
    return "quota", (PlanLimit("quota", "permits", quota.write()),)


async def work() -> float:
    """Return the time of the start."""
    return time.monotonic()


async def hold(pool: Any) -> int:
    """Hold a slot for a moment; return its fence."""
    async with pool.hold() as slot:
        return slot.fence


async def lower_an_adaptive_rate(mine: Any, others: Any) -> None:
    """Lower an adaptive rate by one of two processes of a group, and wait until the other one has adopted it."""
    async with ExecutorManager(peers=mine) as one, ExecutorManager(peers=others) as other:
        executors = [
            manager.executor("mail", rate="50/s", adaptive=Adaptive(floor=1, ceiling=100), drain_timeout=0)
            for manager in (one, other)
        ]
        for executor in executors:
            executor.schedule_many(str, range(10_000))
        await asyncio.sleep(0.3)
        executors[0].rate = "20/s"
        async with asyncio.timeout(30):
            while executors[1].rate.per_second > 25:  # it may have been raised again since
                await asyncio.sleep(0.02)


class TicketProgram:
    """Calls for tickets that are made of earlier replies."""

    def __init__(self, seed: int, *, is_odd: bool = True) -> None:
        self._keys = KEYS + (ODD if is_odd else ())
        self.draw = random.Random(seed)
        self.now_us = START
        self.run = "a"
        self._number = 0
        self._plan = 0
        self._replies: dict[str, TicketReply] = {}
        self._held: list[tuple[TicketRun, int, tuple[int, ...], tuple[str, ...], str]] = []

    def steps(self, count: int) -> Iterator[TicketCall]:
        """Yield calls; each answer is to be given to :meth:`take_in` first."""
        for _ in range(count):
            yield self._step()

    def _step(self) -> TicketCall:
        draw = self.draw
        usual = draw.random() < 0.95
        self.now_us += draw.choice(
            [0, 300, 5_000, 40_000, 400_000] if usual else [-SECOND // 2, -9 * SECOND, 20 * SECOND]
        )
        if draw.random() < 0.01:
            self.run += "a"
        is_new_plan = draw.random() < 0.03
        self._plan = draw.randrange(3) if is_new_plan else self._plan
        plan_id, plan = plan_of(self._plan, self.now_us)
        peer = draw.choice(PEERS)
        known = self._replies.get(peer)
        self._number += draw.random() < 0.97
        is_known = known is not None and draw.random() < 0.97
        call = TicketCall(
            peer=peer,
            weight=draw.choice([1000, 3000]),
            era=known.era if known is not None and is_known else "",
            since_us=1 if is_known else 0,
            earliest_us=self.now_us - 50 if is_known else 0,
            latest_us=self.now_us + 50 if is_known else 0,
            number=self._number,
            ahead_us=draw.choice([0, 100_000]),
            life_us=draw.choice([0, 5_000, 200_000]),
            after_us=draw.choice([0, 0, 0, 40_000, 150_000]),
            cycle_us=draw.choice([0, 2_000]),
            difference_us=SECOND,
            quarantine_us=1_800_000,
            has_jumped=draw.random() < 0.005,
            plan_id=plan_id,
            plan=plan,
            is_new_plan=is_new_plan,
            penalties=((draw.choice(["", *self._keys]), draw.choice([1000, 300_000])),) if draw.random() < 0.03 else (),
            runs=tuple(self._run() for _ in range(draw.randint(0, 3))),
        )
        return replace(call, **self._news(known))

    def _run(self) -> TicketRun:
        draw = self.draw
        costs: tuple[tuple[str, int], ...] = (("permits", draw.randint(0, 2)),)
        if draw.random() < 0.3:
            costs += (("tokens", draw.randint(0, 30)),)
        key = draw.choice(self._keys) if draw.random() < 0.6 else ""
        settings = SETTINGS[hash_of(key) % len(SETTINGS)] if key and key != "3" else ""
        return TicketRun(draw.choice([0, 1, 1, 3, 30]), costs, key, settings, draw.choice([1, 2]))

    def _news(self, known: TicketReply | None) -> dict[str, Any]:
        """Return corrections, reports and copies."""
        draw, held, news = self.draw, self._held, {"corrections": [], "reports": [], "copies": []}
        for run, at_us, receipts, names, key in [held.pop() for _ in range(min(len(held), draw.randint(0, 2)))]:
            for name, receipt in zip((*names, key) if key else names, receipts, strict=False):
                whose = ("", key) if name == key else (name, "")
                if draw.random() < 0.5:
                    news["reports"].append(Report(*whose, at_us + draw.randint(0, 9000), 1, receipt))
                else:
                    news["corrections"].append(Correction(*whose, at_us, draw.choice([1, 1, -2]), receipt))
        if known is not None and known.quarantine_us and draw.random() < 0.7:
            news["copies"] = [
                LimitCopy(each.name, False, each.serial, each.text)
                for reply in self._replies.values()
                for each in reply.limits
                if each.text
            ]
        return {name: tuple(each) for name, each in news.items()}

    def take_in(self, call: TicketCall, reply: TicketReply) -> None:
        """Remember an answer."""
        self._replies[call.peer] = reply
        for run, outcome in zip(call.runs, reply.outcomes, strict=True):
            costs = dict(run.costs)
            names = tuple(each.name for each in reply.limits if each.resource in costs)
            for at_us, receipts in outcome.tickets[:2]:
                self._held.append((run, at_us, receipts, names, run.key if run.settings else ""))
        del self._held[:-40]


def hash_of(text: str) -> int:
    """Return a number of a text that is the same in each process."""
    return sum(map(ord, text))


class SlotProgram:
    """Calls for slots that are made of earlier replies."""

    def __init__(self, seed: int, *, is_odd: bool = True) -> None:
        self._odd = ODD if is_odd else ("note", "key:x")
        self.draw = random.Random(seed)
        self.now_us = START
        self.run = "a"
        self._count = 0
        self._era, self._told_us = "", 0
        self._claims: dict[str, dict[str, tuple[tuple[str, ...], int, int]]] = {peer: {} for peer in PEERS}

    def step(self) -> SlotCall:
        """Return the next call."""
        draw = self.draw
        usual = draw.random() < 0.93
        self.now_us += draw.choice([0, 1000, 50_000, 400_000] if usual else [-SECOND, 3 * SECOND, 30 * SECOND])
        if draw.random() < 0.01:
            self.run += "a"
        peer = draw.choice(PEERS)
        claims = self._claims[peer]
        entries, releases = [], []
        for token in draw.sample(sorted(claims), min(len(claims), draw.randint(0, 3))):
            pools, fence, until_us = claims[token]
            if draw.random() < 0.5:
                entries.append(SlotEntry(token, pools, 0, fence, until_us, self._odd[0]))
            else:
                releases.append(token)
                del claims[token]
        for _ in range(draw.randint(0, 2)):
            self._count += 1
            pools = tuple(draw.sample(["a", "b", self._odd[1]], draw.randint(1, 2)))
            limit = draw.choice([-1, -1, 1, 2])
            entries.append(SlotEntry(f"{peer}:{self._count}", pools, draw.randint(0, 1), 0, 0, "", limit))
            claims[entries[-1].token] = pools, 0, 0
        return SlotCall(
            peer=peer,
            lease_us=2 * SECOND,
            difference_us=SECOND,
            era=self._era,
            told_us=self._told_us,
            seen_us=max(0, self.now_us - self._told_us),
            entries=tuple(entries),
            releases=tuple(releases),
            limits=((draw.choice("ab"), draw.randint(0, 4)),) if draw.random() < 0.1 else (),
            declared=(SlotDeclaration("a", 2, 2, 0),) if draw.random() < 0.1 else (),
            watched=("a", "b"),
        )

    def take_in(self, call: SlotCall, reply: SlotReply) -> None:
        """Remember an answer."""
        self._era, self._told_us = reply.era, reply.now_us
        claims = self._claims[call.peer]
        for entry, fence in zip(call.entries, reply.fences, strict=True):
            claims[entry.token] = entry.pools, max(0, fence), reply.now_us + call.lease_us
        for token, fence in reply.handed.items():
            if token in claims:
                claims[token] = claims[token][0], fence, reply.now_us + call.lease_us // 2
