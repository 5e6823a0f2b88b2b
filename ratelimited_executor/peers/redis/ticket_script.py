"""The script that admits tickets in Redis (``tickets.lua``), and its calls and replies as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.fleet.tickets import LimitState, Outcome, TicketCall, TicketReply
from ratelimited_executor._redis.lua import LuaScript

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TICKET_SCRIPT", "TICKET_VERSION", "ticket_arguments_of", "ticket_keys_of", "ticket_reply_of"]

# Increment with every change of the keys or their meaning: a script of a later version starts with a new state; a
# script of an earlier version then refuses to work on it, unless there has been no call for a minute.
TICKET_VERSION: Final = 1

_TICKETS: Final = LuaScript(
    __package__,
    ("laws.lua", "tickets.lua"),
    keys=("tickets", "keys", "rest", "hungry", "seen", "state"),
    arguments=TicketCall,
    texts=("plan",),
    VERSION=TICKET_VERSION,
)
TICKET_SCRIPT: Final = _TICKETS.text

_HEAD_COUNT: Final = 7  # fields of a reply before the limits
_LIMIT_COUNT: Final = 7
_OUTCOME_COUNT: Final = 5


def ticket_keys_of(prefix: str, group: str, name: str) -> list[str]:
    """Return the script's keys for one executor; all keys of a group are in one slot of a cluster."""
    base = f"{{{prefix}:{group}}}:{name}"
    return [f"{base}:{key}" for key in _TICKETS.keys]


def ticket_arguments_of(call: TicketCall) -> list[str]:
    """Write a call as the script's arguments."""
    return _TICKETS.write(call)


def ticket_reply_of(values: Sequence[Any]) -> TicketReply:
    """Read the script's answer."""
    fields = [value.decode() if isinstance(value, bytes) else str(value) for value in values]
    now, era, quarantine, plan_id, penalty, flaw, count = fields[:_HEAD_COUNT]
    end = _HEAD_COUNT + _LIMIT_COUNT * int(count)
    return TicketReply(
        now_us=int(now),
        era=era,
        quarantine_us=int(quarantine),
        plan_id=plan_id,
        penalty_us=int(penalty),
        limits=tuple(
            _limit_of(*fields[start : start + _LIMIT_COUNT]) for start in range(_HEAD_COUNT, end, _LIMIT_COUNT)
        ),
        outcomes=tuple(
            _outcome_of(*fields[start : start + _OUTCOME_COUNT]) for start in range(end, len(fields), _OUTCOME_COUNT)
        ),
        flaw=flaw,
    )


def _limit_of(name: str, resource: str, used: str, amount: str, until: str, serial: str, text: str) -> LimitState:
    return LimitState(name, resource, int(used), int(amount), int(until), int(serial), text)


def _outcome_of(tickets: str, holder: str, at: str, serial: str, text: str) -> Outcome:
    return Outcome(tuple(map(_ticket_of, tickets.split(";")[:-1])), holder, int(at), int(serial), text)


def _ticket_of(text: str) -> tuple[int, tuple[int, ...]]:
    at, *receipts = map(int, text.split(","))
    return at, tuple(receipts)
