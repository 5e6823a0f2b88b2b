"""Random histories of a group that shares its limits keep them, and deliberately broken rules are found."""

import asyncio
import os
from collections import Counter
from dataclasses import replace

import pytest

from ratelimited_executor import Window
from ratelimited_executor._core.fleet import laws
from ratelimited_executor._core.fleet.budget import TicketBudget
from ratelimited_executor._core.fleet.ticket_peer import TicketPeer
from ratelimited_executor._core.fleet.tickets import TicketAuthority
from tests.peers.test_group_limits import Group
from tests.peers.ticket_group import most_in
from tests.peers.ticket_simulation import history_of

COUNT = int(os.environ.get("TICKET_HISTORIES", "10"))


def test_no_window_of_any_limit_has_more_than_it_says() -> None:
    """No window of a limit is exceeded, whatever is lost, forgotten, restarted or stepped."""
    faults, started = Counter(), 0
    for seed in range(COUNT):
        history = history_of(seed)
        assert [] == history.wrong, seed
        faults += history.faults
        started += len(history.starts)
    assert started > 20 * COUNT
    assert len(faults) == 6


def no_quarantine(monkeypatch) -> None:
    """Begin eras without a quarantine, and admit what may have been used before."""
    begin = TicketAuthority._begin_era

    def begin_era(self, now_us, run, call) -> None:
        begin(self, now_us, run, call)
        self._state.safe_us = now_us

    monkeypatch.setattr(TicketAuthority, "_begin_era", begin_era)


def no_memory(monkeypatch) -> None:
    """Ignore what peers remember."""
    monkeypatch.setattr(TicketAuthority, "_adopt", lambda *_: None)


def no_redating(monkeypatch) -> None:
    """Let unseen time pass for the limits of an earlier era."""
    monkeypatch.setattr(laws._Window, "redate", lambda self, t_us: setattr(self._log, "now_us", t_us))
    for kind in (laws._Bucket, laws._Pace):
        monkeypatch.setattr(kind, "redate", lambda self, t_us: setattr(self, "_now", t_us))


def no_vouching(monkeypatch) -> None:
    """Accept every call, whatever the clock shows."""
    go_on = TicketAuthority._go_on

    def trust(self, now_us, run, call) -> bool:
        go_on(self, now_us, run, call)
        self._state.last_us = self._now_us
        return True

    monkeypatch.setattr(TicketAuthority, "_go_on", trust)


def void_tickets_used(monkeypatch) -> None:
    """Use tickets of an earlier era."""
    monkeypatch.setattr(TicketBudget, "drop", lambda _: None)


def refusal_that_burns(monkeypatch) -> None:
    """Charge a limit that admits although another refuses, so that less starts than allowed."""
    decide = TicketAuthority._decide

    def burning(self, asked, call, life_us) -> bool:
        is_blocking = decide(self, asked, call, life_us)
        if asked.at_us:
            for limit, cost in zip(asked.limits, asked.amounts, strict=True):
                if cost and limit.earliest(self._now_us, cost) == self._now_us:
                    limit.take(self._now_us, cost, life_us)
        return is_blocking

    monkeypatch.setattr(TicketAuthority, "_decide", burning)


def old_memory(monkeypatch) -> None:
    """Let a peer remember only the first reply."""
    remember = TicketPeer._remember

    def first_only(self, reply, now_ns) -> None:
        if not self._copies:
            remember(self, reply, now_ns)

    monkeypatch.setattr(TicketPeer, "_remember", first_only)


def silent_leaving(monkeypatch) -> None:
    """Let a peer leave without reporting what it remembers."""
    leave = TicketPeer.leave
    monkeypatch.setattr(
        TicketPeer, "leave", lambda self, now_ns: [replace(call, copies=()) for call in leave(self, now_ns)]
    )


@pytest.mark.parametrize(
    ("broken", "seeds"),
    [
        (no_quarantine, [0]),
        (no_memory, [4]),
        (no_redating, [3]),
        (no_vouching, [137]),
        (void_tickets_used, [363]),
        (old_memory, [2]),
    ],
)
def test_broken_rule_is_found(monkeypatch, broken, seeds) -> None:
    """A broken rule exceeds a limit in one of the histories where it did before, or else in one of many."""
    broken(monkeypatch)
    assert any(history_of(seed).wrong for seed in [*seeds, *range(300)])


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_broken", [False, True])
async def test_silent_leaving_is_found(monkeypatch, is_broken) -> None:
    """What a peer has used is known to those who join after the server has forgotten it, as it tells that when it leaves."""
    if is_broken:
        silent_leaving(monkeypatch)
    async with Group() as group:
        one = await group.join(rate="40/20s", policy=Window())
        group.load(100)
        await asyncio.sleep(4)
        group.server.forget()
        await one.shutdown(cancel_pending=True)
        group.executors.clear()
        await group.join(rate="40/20s", policy=Window())
        group.load(100)
        await asyncio.sleep(8)
        assert is_broken is (most_in(group.starts, 20) > 40)


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_broken", [False, True])
async def test_refusal_that_burns_is_found(monkeypatch, is_broken) -> None:
    """A group starts ten a second, as its tokens allow, and fewer if refusals are charged to the window."""
    if is_broken:
        refusal_that_burns(monkeypatch)
    async with Group() as group:
        for _ in range(2):
            await group.join(rate="102/10s", resources={"tokens": "100/1s"}, policy=Window())
        group.load(300, cost=10)
        await asyncio.sleep(22.5)
        assert is_broken is (len(group.starts) < 180)
