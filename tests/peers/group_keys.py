"""The keys of shared limits, as the script writes them for calls of peers."""

from __future__ import annotations

from typing import Any

from ratelimited_executor._core.fleet.limit_settings import PaceSettings, WindowSettings
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketCall, TicketReply, TicketRun
from ratelimited_executor.peers.redis.ticket_script import (
    TICKET_SCRIPT,
    ticket_arguments_of,
    ticket_keys_of,
    ticket_reply_of,
)

SECOND = 1_000_000
PLAN_ID = "10/min; tokens 1000/min"
PLAN = tuple(
    PlanLimit(f"{resource}/window/60", resource, WindowSettings.of(amount, 60 * SECOND).write())
    for resource, amount in (("permits", 10), ("tokens", 1000))
)
PACE = (PlanLimit("permits/rate", "permits", PaceSettings.of(100, SECOND).write()),)
COSTS = (("permits", 1), ("tokens", 50))


def call(client: Any, *runs: TicketRun, name: str = "mail", group: str = "default", **fields: Any) -> TicketReply:
    """Make one call as the peer ``web-1:17:aa:0`` by default, which vouches for the server's time."""
    keys = ticket_keys_of("rle", group, name)
    asked = TicketCall(
        **{
            "peer": "web-1:17:aa:0",
            "since_us": 1,
            "latest_us": 1 << 52,
            "ahead_us": 100_000,
            "difference_us": 0,
            "quarantine_us": 1,
            "plan_id": PLAN_ID,
            "plan": PLAN,
            "runs": runs,
            **fields,
        }
    )
    return ticket_reply_of(client.eval(TICKET_SCRIPT, len(keys), *keys, *ticket_arguments_of(asked)))


def stay_active(client: Any, name: str = "mail", group: str = "default") -> None:
    """Let all peers have called in an hour, in their order, so that they are active however slow a test is."""
    seen, later_us = ticket_keys_of("rle", group, name)[3], now_us(client) + 3600 * SECOND
    for number, (peer, us) in enumerate(client.zrange(seen, 0, -1, withscores=True)):
        if us < later_us:  # not the mark behind all peers
            client.zadd(seen, {peer: later_us + number})


def share(client: Any, name: str = "mail", group: str = "default", count: int = 3, **fields: Any) -> None:
    """Share limits as two peers that stay active, of which the first has got ``count`` permits and called last."""
    call(client, name=name, group=group, **fields)
    call(client, name=name, group=group, peer="web-2:18:bb:0", **fields)
    call(client, TicketRun(count, COSTS), name=name, group=group, number=1, **fields)
    stay_active(client, name, group)


def now_us(client: Any) -> int:
    """Return the server's time."""
    seconds, microseconds = client.time()
    return seconds * SECOND + microseconds
