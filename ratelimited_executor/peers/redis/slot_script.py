"""The script that hands over slots in Redis (``slots.lua``), and its calls and replies as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.fleet.slots import PoolState, SlotCall, SlotReply
from ratelimited_executor._redis.lua import LuaScript

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SLOT_SCRIPT", "SLOT_VERSION", "slot_arguments_of", "slot_keys_of", "slot_reply_of", "wake_channel_of"]

# Increment with every change of the keys or their meaning: a script of a later version starts with a new state; a
# script of an earlier version then refuses to work on it, unless there has been no call for a minute.
SLOT_VERSION: Final = 2

_SLOTS: Final = LuaScript(
    __package__, "slots.lua", keys=("slots", "held", "line", "ends"), arguments=SlotCall, VERSION=SLOT_VERSION
)
SLOT_SCRIPT: Final = _SLOTS.text

_HEAD_COUNT: Final = 6  # fields of a reply before the fences


def slot_keys_of(prefix: str, group: str) -> list[str]:
    """Return the script's keys of a group; all keys of a group are in one slot of a cluster."""
    return [f"{{{prefix}:{group}}}::{key}" for key in _SLOTS.keys]  # the name of the rate is empty


def wake_channel_of(prefix: str, group: str, peer: str) -> str:
    """Return the channel that notifies a peer of slots handed to it."""
    return f"{slot_keys_of(prefix, group)[0]}:{peer}"


def slot_arguments_of(call: SlotCall) -> list[str]:
    """Write a call as the script's arguments."""
    return _SLOTS.write(call)


def slot_reply_of(values: Sequence[Any]) -> SlotReply:
    """Read the script's answer."""
    fields = [value.decode() if isinstance(value, bytes) else str(value) for value in values]
    now, era, quarantine, ends, flaw, fence = fields[:_HEAD_COUNT]
    rest = iter(fields[_HEAD_COUNT:])
    fences = tuple(int(next(rest)) for _ in range(int(next(rest))))
    handed = {next(rest): int(next(rest)) for _ in range(int(next(rest)))}
    numbers = [int(each) for each in rest]
    return SlotReply(
        now_us=int(now),
        era=era,
        quarantine_us=int(quarantine),
        ends_us=int(ends),
        fence=int(fence),
        fences=fences,
        handed=handed,
        pools=tuple(PoolState(*numbers[start : start + 4]) for start in range(0, len(numbers), 4)),
        flaw=flaw,
    )
