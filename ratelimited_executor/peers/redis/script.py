"""The script that grants permits in Redis (``grant.lua``), and its requests and replies as values.

Its arguments are the fields of :class:`~ratelimited_executor._core.fleet.protocol.Request`, in their order, so that a
field added there is available in Lua. Its reply is a list of texts, which :func:`reply_of` converts to a
:class:`~ratelimited_executor._core.fleet.protocol.Reply`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.fleet.grid import FleetGrid
from ratelimited_executor._core.fleet.protocol import NO_GRANT, Grant, Reply, Request
from ratelimited_executor._redis.lua import LuaScript

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SCRIPT", "VERSION", "arguments_of", "keys_of", "reply_of"]

# Increment with every change of the keys or their meaning: a script of a later version takes the state over with a new
# era; a script of an earlier version then refuses to work on it, unless there has been no call for a minute. Version 1
# stored none.
VERSION: Final = 3

_GRANT: Final = LuaScript(
    __package__, "grant.lua", keys=("state", "members", "plan0", "plan1", "tickets"), arguments=Request, VERSION=VERSION
)
SCRIPT: Final = _GRANT.text

_HEAD_COUNT: Final = 7  # fields of a reply before the two grants
_GRANT_COUNT: Final = 5


def keys_of(prefix: str, group: str, name: str) -> list[str]:
    """Return the script's keys for one rate; all keys of a group are in one slot of a cluster."""
    base = f"{{{prefix}:{group}}}:{name}"
    return [f"{base}:{key}" for key in _GRANT.keys]


def arguments_of(request: Request) -> list[str]:
    """Write a request as the script's arguments."""
    return _GRANT.write(request)


def reply_of(values: Sequence[Any]) -> Reply:
    """Read the script's answer."""
    fields = [value.decode() if isinstance(value, bytes) else str(value) for value in values]
    now, era, safe, rank, peers, grid, flaw = fields[:_HEAD_COUNT]
    grants = [
        _grant_of(fields[start : start + _GRANT_COUNT]) for start in range(_HEAD_COUNT, len(fields), _GRANT_COUNT)
    ]
    upcoming, running = grants or (NO_GRANT, NO_GRANT)
    return Reply(
        now_us=int(now),
        era=era,
        safe=int(safe),
        rank=int(rank),
        peers=int(peers),
        grid=_grid_of(grid),
        flaw=flaw,
        upcoming=upcoming,
        running=running,
    )


def _grid_of(text: str) -> FleetGrid:
    return FleetGrid(*map(int, text.removeprefix("g").split(",")))


def _grant_of(fields: Sequence[str]) -> Grant:
    number, count, stride, grid, ranks = fields
    if not number:
        return NO_GRANT
    ranges = [range(*map(int, part.split("-"))) for part in ranks.split(",") if part]
    return Grant(int(number), int(count), int(stride), _grid_of(grid), ranges)
