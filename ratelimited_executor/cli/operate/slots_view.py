"""The view of a group's slots: a table for each pool on a terminal or in a pipe, JSON for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.escapes import visible
from ratelimited_executor.cli.screen import Fitting

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ratelimited_executor.peers.redis.slot_inspection import ClaimView, PoolView, SlotsView

__all__ = ["draw_slots", "slots_fields"]

_WAITING_SHOWN: Final = 10  # waiters shown for a pool; the others are counted


def draw_slots(slots: SlotsView) -> list[RenderableType]:
    """Return the pools of a group as tables."""
    parts: list[RenderableType] = []
    if slots.quarantine is not None:
        text = f"slots: none is handed over for {format_duration(slots.quarantine)}, because holders may have been forgotten"
        parts += [Text(), Text(text, style="bold yellow")]
    if slots.is_stale:
        text = f"slots: nobody has called for {format_duration(slots.last_call)}; ages and leases are as they were then"
        parts += [Text(), Text(text, style="bold yellow")]
    for pool in slots.pools:
        parts += [Text(), _head(pool)]
        if pool.holders or pool.waiting:
            parts.append(Fitting(_table(pool), _lines(pool)))
    return parts


def _head(pool: PoolView) -> Text:
    text = Text.assemble((visible(pool.name), "bold cyan"), f": {len(pool.holders):,} of {pool.limit:,} slots held")
    if not pool.limit:
        text.append(", halted", style="bold yellow")
    if pool.waiting:
        text.append(f"; {len(pool.waiting):,} wait")
    return text


def _table(pool: PoolView) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("holder", overflow="fold")
    table.add_column("node", overflow="fold")
    for name in ("fence", "age", "lease left"):
        table.add_column(name, justify="right", no_wrap=True)
    for claim in pool.holders:
        table.add_row(*_row(claim, str(claim.fence)))
    for claim in pool.waiting[:_WAITING_SHOWN]:
        table.add_row(*_row(claim, "waits"), style="dim")
    if len(pool.waiting) > _WAITING_SHOWN:
        table.add_row(f"{len(pool.waiting) - _WAITING_SHOWN:,} more wait", style="dim")
    return table


def _lines(pool: PoolView) -> Group:
    """Return the claims of a pool on two lines each, for a narrow screen."""
    lines = []
    for claim in (*pool.holders, *pool.waiting[:_WAITING_SHOWN]):
        is_held = claim in pool.holders
        name, node, fence, age, left = (
            cell.plain for cell in _row(claim, f"fence {claim.fence}" if is_held else "waits")
        )
        lines.append(Text(f"{name}\n  {node}\n  {fence}, age {age}, lease left {left}", style="" if is_held else "dim"))
    if len(pool.waiting) > _WAITING_SHOWN:
        lines.append(Text(f"{len(pool.waiting) - _WAITING_SHOWN:,} more wait", style="dim"))
    return Group(*lines)


def _row(claim: ClaimView, fence: str) -> list[Text]:
    ages = format_duration(claim.age), format_duration(max(0.0, claim.left))
    return [*map(Text, (visible(claim.name), visible(claim.node), fence, *ages))]  # no markup: a name may be any text


def slots_fields(slots: SlotsView) -> dict[str, Any]:
    """Return the slots as fields for JSON; times in seconds."""
    return asdict(slots)
