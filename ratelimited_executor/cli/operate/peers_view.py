"""The view of a group's limits: tables on a terminal or in a pipe, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.escapes import visible
from ratelimited_executor.cli.operate.slots_view import draw_slots, slots_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.peers.redis.slot_inspection import SlotsView
    from ratelimited_executor.peers.redis.ticket_inspection import LimitsView

__all__ = ["Picture", "draw", "to_json"]

_WIDTH: Final = 9  # of a number at least, so that columns stay in place


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Snapshot of a group.

    Attributes:
        prefix: the prefix of all Redis keys.
        group: the name of the group.
        now_us: the server's time, in microseconds since the epoch.
        limits: those of each executor, in order of their names.
        slots: the slots of its pools; None if it has none.
    """

    prefix: str
    group: str
    now_us: int
    limits: Sequence[LimitsView]
    slots: SlotsView | None = None


def draw(picture: Picture, error: str | None = None) -> RenderableType:
    """Return a picture as tables, followed by the error that prevented a newer one."""
    when = datetime.fromtimestamp(picture.now_us / 1e6, UTC)
    parts: list[RenderableType] = [
        Text(f"group {visible(picture.group)} at {when:%Y-%m-%d %H:%M:%S} UTC", style="bold")
    ]
    for shared in picture.limits:
        parts += [Text(), _head(shared), _limits_table(shared)]
        if shared.peers:
            parts.append(_peers_table(shared))
    if picture.slots is not None:
        parts += draw_slots(picture.slots)
    elif not picture.limits:
        parts.append(Text("no limits any more", style="yellow"))
    if error is not None:
        parts += [Text(), Text(visible(error), style="red")]
    return Group(*parts)


def _head(shared: LimitsView) -> Text:
    text = Text.assemble((visible(shared.name), "bold cyan"), f": {visible(shared.plan)}")
    text.append(f"; {shared.active_count} active of {len(shared.peers)} peers")
    text.append(f"; last call {format_duration(shared.last_call)} ago", style="dim" if shared.active_count else None)
    if shared.quarantine is not None:
        text.append(
            f"; starts nothing for {format_duration(shared.quarantine)}: earlier permits may be in use",
            style="bold yellow",
        )
    if shared.penalty is not None:
        text.append(f"; penalty for {format_duration(shared.penalty)}", style="yellow")
    return text


def _limits_table(shared: LimitsView) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("limit")
    for name in ("used", "of", "free in"):
        table.add_column(name, justify="right", no_wrap=True, min_width=_WIDTH)
    for limit in shared.limits:
        free = format_duration(limit.free_in) if limit.used else "-"
        table.add_row(Text(visible(limit.name)), f"{limit.used:,}", f"{limit.amount:,}", free)
    return table


def _peers_table(shared: LimitsView) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("peer", overflow="fold")  # the only one that may wrap
    table.add_column("last call", justify="right", no_wrap=True, min_width=_WIDTH)
    for peer in shared.peers:
        called = f"{format_duration(peer.last_call)} ago"  # as text, for an id may contain markup
        table.add_row(Text(visible(peer.id)), Text(called), style=None if peer.is_active else "dim")
    return table


def to_json(picture: Picture) -> str:
    """Return a picture as one line of JSON; times in seconds."""
    head = {"group": picture.group, "prefix": picture.prefix, "time": picture.now_us / 1e6}
    slots = {} if picture.slots is None else {"slots": slots_fields(picture.slots)}
    return json.dumps({**head, "limits": [_limits_fields(each) for each in picture.limits], **slots})


def _limits_fields(shared: LimitsView) -> dict[str, Any]:
    return {
        "name": shared.name,
        "plan": shared.plan,
        "last_call": shared.last_call,
        "quarantine": shared.quarantine,
        "penalty": shared.penalty,
        "active": shared.active_count,
        "limits": [
            {
                "name": limit.name,
                "resource": limit.resource,
                "used": limit.used,
                "amount": limit.amount,
                "free_in": limit.free_in,
            }
            for limit in shared.limits
        ],
        "peers": [{"id": each.id, "last_call": each.last_call, "active": each.is_active} for each in shared.peers],
    }
