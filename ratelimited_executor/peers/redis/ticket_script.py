"""The script that admits tickets in Redis (``tickets.lua``), and its calls and replies as values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.ticket_calls import LimitState, PlanLimit, TicketCall, TicketOutcome, TicketReply
from ratelimited_executor._redis.lua import LuaScript

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["TICKET_SCRIPT", "TICKET_VERSION", "ticket_arguments_of", "ticket_keys_of", "ticket_reply_of"]

# Increment with every change of the keys or their meaning: a script of a later version starts with a new state; a
# script of an earlier version then refuses to work on it, unless there has been no call for a minute.
TICKET_VERSION: Final = 3

_TICKETS: Final = LuaScript(
    __package__,
    ("laws.lua", "tickets.lua"),
    keys=("tickets", "keys", "rest", "seen"),
    arguments=TicketCall,
    texts=("plan",),
    VERSION=TICKET_VERSION,
)
TICKET_SCRIPT: Final = _TICKETS.text

_HEAD_COUNT: Final = 5  # fields of a reply before the limits
_FIELD_COUNT: Final = 4  # of each limit and outcome
_PS: Final = 1_000_000  # picoseconds in a microsecond


def ticket_keys_of(prefix: str, group: str, name: str) -> list[str]:
    """Return the script's keys for one executor; all keys of a group are in one slot of a cluster."""
    base = f"{{{prefix}:{group}}}:{name}"
    return [f"{base}:{key}" for key in _TICKETS.keys]


def ticket_arguments_of(call: TicketCall) -> list[str]:
    """Write a call as the script's arguments."""
    return _TICKETS.write(call)


def ticket_reply_of(values: Sequence[bytes]) -> TicketReply:
    """Read the script's answer."""
    numbers, era, plan_id, plan, flaw = (value.decode() for value in values[:_HEAD_COUNT])
    now_us, quarantine_us, penalty_us, gap_us, peers, count = map(int, numbers.split(","))
    entries = [values[start : start + _FIELD_COUNT] for start in range(_HEAD_COUNT, len(values), _FIELD_COUNT)]
    return TicketReply(
        now_us=now_us,
        era=era,
        quarantine_us=quarantine_us,
        plan_id=plan_id,
        penalty_us=penalty_us,
        gap_us=gap_us,
        peers=peers,
        plan=tuple(PlanLimit(*each) for each in json.loads(plan)) if plan else (),
        limits=tuple(_limit_of(*entry) for entry in entries[:count]),
        outcomes=tuple(_outcome_of(*entry) for entry in entries[count:]),
        flaw=flaw,
    )


def _limit_of(name: bytes, resource: bytes, numbers: bytes, text: bytes) -> LimitState:
    used, amount, until_us, is_dated, serial = map(int, numbers.split(b","))
    return LimitState(
        name.decode(), resource.decode(), used, amount, until_us, bool(is_dated), serial, text.decode("latin-1")
    )


def _outcome_of(tickets: bytes, numbers: bytes, holder: bytes, text: bytes) -> TicketOutcome:
    life_us, at_us, again_us, is_contended, serial = map(int, numbers.split(b","))
    made = [ticket for part in tickets.split(b";")[:-1] for ticket in _tickets_of(part, life_us)]
    return TicketOutcome(
        tuple(made), life_us, holder.decode(), at_us, again_us, bool(is_contended), serial, text.decode("latin-1")
    )


def _tickets_of(text: bytes, life_us: int) -> Iterable[tuple[int, tuple[int, ...]]]:
    """Read a ticket, or a run: tickets of a pace, each at the time of its number."""
    if text[:1] != b"r":
        at_us, *receipts = map(int, text.split(b","))
        return [(at_us, tuple(receipts))]
    first_us, first_ps, gap_us, gap_ps, count, part = map(int, text[2:].split(b","))
    first, gap = first_us * _PS + first_ps, gap_us * _PS + gap_ps
    times = [-(time // -_PS) for time in range(first, first + count * gap, gap)]
    return [(time, (-((time + life_us) // -part) * part if part else time,)) for time in times]
