"""The view of a group's rates: a table for each on a terminal or in a pipe, JSON for programs."""

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
from ratelimited_executor.cli.slots_view import draw_slots, slots_fields

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from ratelimited_executor.peers.redis.inspection import IntervalView, PeerView, RateView
    from ratelimited_executor.peers.redis.slot_inspection import SlotsView
    from ratelimited_executor.peers.redis.ticket_inspection import LimitsView

__all__ = ["Picture", "draw", "to_json"]

_RUN_DIGITS: Final = 8  # of the forty digits of a run's id: enough to see it change
_COLUMNS: Final = ("rank", "weight", "demand", "running", "next", "share", "seen")
_WIDTHS: Final = {
    "demand": 7,
    "running": 9,
    "next": 9,
    "share": 7,
    "seen": 13,
}  # minimum widths, so that columns stay in place


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Snapshot of a group.

    Attributes:
        prefix: the prefix of all Redis keys.
        group: the name of the group.
        now_us: the server's time, in microseconds since the epoch.
        rates: the rates, in order of their names.
        limits: the limits of executors that share more than one pace.
        slots: the slots of its pools; None if it has none.
    """

    prefix: str
    group: str
    now_us: int
    rates: Sequence[RateView]
    limits: Sequence[LimitsView] = ()
    slots: SlotsView | None = None


def draw(picture: Picture, error: str | None = None) -> RenderableType:
    """Return a picture as tables, followed by the error that prevented a newer one."""
    when = datetime.fromtimestamp(picture.now_us / 1e6, UTC)
    parts: list[RenderableType] = [
        Text(f"group {visible(picture.group)} at {when:%Y-%m-%d %H:%M:%S} UTC", style="bold")
    ]
    for rate in picture.rates:
        parts += [Text(), _head(rate), _table(rate)]
    for shared in picture.limits:
        parts += [Text(), _limits_head(shared), _limits_table(shared)]
    if picture.slots is not None:
        parts += draw_slots(picture.slots)
    elif not picture.rates and not picture.limits:
        parts.append(Text("no rates any more", style="yellow"))
    if error is not None:
        parts += [Text(), Text(visible(error), style="red")]
    return Group(*parts)


def _head(rate: RateView) -> Text:
    text = Text.assemble((visible(rate.name), "bold cyan"), f": {_rate(rate.rate)}")
    if rate.next_rate is not None and rate.next_in is not None:
        text.append(f", {_rate(rate.next_rate)} in {format_duration(rate.next_in)}", style="yellow")
    text.append(
        f"; era {visible(rate.run[:_RUN_DIGITS])}:{rate.epoch}; grant interval {format_duration(rate.interval)}"
    )
    text.append(f"; {rate.active_count} active of {len(rate.peers)} peers")
    if rate.quarantine is not None:
        text.append(f"; quarantine for {format_duration(rate.quarantine)}", style="bold yellow")
    if not rate.active_count:
        text.append(f"; last call {format_duration(rate.last_call)} ago", style="dim")
    return text


def _limits_head(shared: LimitsView) -> Text:
    text = Text.assemble((visible(shared.name), "bold cyan"), f": {visible(shared.plan)}")
    text.append(f"; last call {format_duration(shared.last_call)} ago")
    if shared.quarantine is not None:
        text.append(f"; quarantine for {format_duration(shared.quarantine)}", style="bold yellow")
    if shared.penalty is not None:
        text.append(f"; penalty for {format_duration(shared.penalty)}", style="yellow")
    return text


def _limits_table(shared: LimitsView) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("limit")
    for name in ("used", "of", "free in"):
        table.add_column(name, justify="right", no_wrap=True, min_width=_WIDTHS["running"])
    for limit in shared.limits:
        free = format_duration(limit.free_in) if limit.used else "-"
        table.add_row(Text(visible(limit.name)), f"{limit.used:,}", f"{limit.amount:,}", free)
    return table


def _table(rate: RateView) -> Table:
    table = Table(box=None, pad_edge=False, show_footer=True)
    footers = {"running": _filled(rate.running), "next": _filled(rate.upcoming)}
    table.add_column("peer", footer="granted", min_width=len("granted"), overflow="fold")  # the only one that may wrap
    for name in _COLUMNS:
        table.add_column(name, footer=footers.get(name, ""), justify="right", no_wrap=True, min_width=_WIDTHS.get(name))
    for peer in rate.peers:
        table.add_row(*_row(peer), style="dim" if peer.is_stale else None)
    return table


def _row(peer: PeerView) -> list[Text]:
    # Planned permits are in brackets until the peer fetches them.
    ready = f"({peer.planned:,})" if peer.planned else f"{peer.upcoming:,}"
    cells = [
        str(peer.rank),
        f"{peer.weight:g}",
        f"{peer.demand:,}",
        f"{peer.running:,}",
        ready,
        "-" if peer.share is None else f"{peer.share:.1%}".replace("%", " %"),
        f"{'stale, ' if peer.is_stale else ''}{format_duration(peer.seen)}",
    ]
    return [
        Text(visible(peer.id)),
        *map(Text, cells),
    ]  # no markup: an id may be any text


def _filled(interval: IntervalView) -> str:
    return f"{interval.granted_count:,} of {interval.permits:,}"


def _rate(rate: Fraction) -> str:
    """Format permits a second.

    >>> from fractions import Fraction
    >>> _rate(Fraction(200000, 2037)), _rate(Fraction(1, 12)), _rate(Fraction(12345))
    ('98.18/s', '0.08333/s', '12,345/s')
    """
    value = float(rate)
    return f"{value:,.2f}".rstrip("0").rstrip(".") + "/s" if value >= 1 else f"{value:.4g}/s"


def to_json(picture: Picture) -> str:
    """Return a picture as one line of JSON; times in seconds, rates a second."""
    rates = [_rate_fields(rate, picture.now_us / 1e6) for rate in picture.rates]
    head = {"group": picture.group, "prefix": picture.prefix, "time": picture.now_us / 1e6}
    slots = {} if picture.slots is None else {"slots": slots_fields(picture.slots)}
    limits = {"limits": [_limits_fields(each) for each in picture.limits]} if picture.limits else {}
    return json.dumps({**head, "rates": rates, **limits, **slots})


def _limits_fields(shared: LimitsView) -> dict[str, Any]:
    return {
        "name": shared.name,
        "plan": shared.plan,
        "last_call": shared.last_call,
        "quarantine": shared.quarantine,
        "penalty": shared.penalty,
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
    }


def _rate_fields(rate: RateView, now: float) -> dict[str, Any]:
    following = None
    if rate.next_rate is not None and rate.next_in is not None:
        following = {"rate": float(rate.next_rate), "at": round(now + rate.next_in, 6)}
    return {
        "name": rate.name,
        "rate": float(rate.rate),
        "next_rate": following,
        "era": f"{rate.run}:{rate.epoch}",
        "interval": rate.interval,
        "quarantine": rate.quarantine,
        "last_call": rate.last_call,
        "active": rate.active_count,
        "running": _interval_fields(rate.running),
        "next": _interval_fields(rate.upcoming),
        "peers": [_peer_fields(peer) for peer in rate.peers],
    }


def _interval_fields(interval: IntervalView) -> dict[str, int]:
    return {"number": interval.number, "permits": interval.permits, "granted": interval.granted_count}


def _peer_fields(peer: PeerView) -> dict[str, Any]:
    return {
        "id": peer.id,
        "rank": peer.rank,
        "weight": peer.weight,
        "demand": peer.demand,
        "running": peer.running,
        "next": peer.upcoming,
        "planned": peer.planned,
        "share": peer.share,
        "seen": peer.seen,
        "is_stale": peer.is_stale,
    }
