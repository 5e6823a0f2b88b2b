"""The list of groups: how each of them stands, the ones in trouble first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.dashboard.texts import NOTHING, count_text, plan_text, seconds_text
from ratelimited_executor.dashboard.views import page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GroupList", "GroupRow", "group_list_of", "worst_first"]

_SHOWN_MAX: Final = 3  # executors of a group, and words about each


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group in the list; its texts are empty where it has not been read.

    Attributes:
        name: the name of the group.
        state: what holds it, or that it is in use.
        colour: the class of the state's colour; empty if it is not known.
        rates: the limits in force of each name of executors, in words.
        used: the part of the fullest limit that is in use, from 0 to 1; None if it has none.
        demand: how much of that limit is in use.
        peers: the active peers of all peers.
        slots: the held slots of all slots.
        rank: 0 for the worst; groups of the same rank are in order of ``used``.
    """

    name: str
    state: str
    colour: str
    rates: Sequence[str]
    used: float | None
    demand: str
    peers: str
    slots: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """A page of the list; ``count`` groups in all, of which ``found_count`` have what was looked for."""

    rows: Sequence[GroupRow]
    count: int
    found_count: int
    page: int
    page_count: int


def group_list_of(names: Sequence[str], latest: Callable[[str], Any], *, find: str, page: int) -> GroupList:
    """Return a page of the list of groups.

    Args:
        names: those of all groups.
        latest: returns what was read of a group last; None if it was not.
        find: what their names have, in whatever case.
        page: its number; the nearest there is is returned.
    """
    wanted = find.casefold()
    found = [_row_of(name, latest(name)) for name in names if wanted in name.casefold()]
    found.sort(key=lambda row: (row.rank, -(row.used or 0.0), row.name))
    rows, page, page_count = page_of(found, page)
    return GroupList(rows=rows, count=len(names), found_count=len(found), page=page, page_count=page_count)


def worst_first(shared: Sequence[Any]) -> list[Any]:
    """Return limits of a group in order of trouble: those held, at their limit, active, idle; the fullest first."""

    def order(each: Any) -> tuple[bool, bool, float, bool, str]:
        used = max((limit.used / (limit.amount or 1) for limit in each.limits), default=0.0)
        return each.quarantine is None, each.penalty is None, -used, not each.active_count, each.name

    return sorted(shared, key=order)


def _row_of(name: str, picture: Any) -> GroupRow:
    if picture is None:
        return GroupRow(
            name=name, state="", colour="", rates=(), used=None, demand=NOTHING, peers=NOTHING, slots=NOTHING, rank=9
        )
    peers = [peer for shared in picture.limits for peer in shared.peers]
    active_count = sum(peer.is_active for peer in peers)
    fullest = max(
        (limit for shared in picture.limits for limit in shared.limits),
        key=lambda limit: limit.used / (limit.amount or 1),
        default=None,
    )
    used = None if fullest is None else min(1.0, fullest.used / (fullest.amount or 1))
    pools = () if picture.slots is None else [pool for pool in picture.slots.pools if not pool.is_by_key]
    rank, state, colour = _state_of(picture, active_count, used)
    more = len(picture.limits) - _SHOWN_MAX
    return GroupRow(
        name=name,
        state=state,
        colour=colour,
        rates=[
            *(f"{each.name}: {plan_text(each.plan)}" for each in picture.limits[:_SHOWN_MAX]),
            *([f"and {more} more"] * (more > 0)),
        ],
        used=used,
        demand=NOTHING if fullest is None else f"{count_text(fullest.used)} of {count_text(fullest.amount)}",
        peers=f"{active_count} of {len(peers)}" if peers else "0",
        slots=f"{sum(len(pool.holders) for pool in pools)} of {sum(pool.limit for pool in pools)}"
        if pools
        else NOTHING,
        rank=rank,
    )


def _state_of(picture: Any, active_count: int, used: float | None) -> tuple[int, str, str]:
    """Return the rank of a group, its state and the class of its colour."""
    quarantines = [each.quarantine for each in picture.limits if each.quarantine is not None]
    if picture.slots is not None and picture.slots.quarantine is not None:
        quarantines.append(picture.slots.quarantine)
    penalties = [each.penalty for each in picture.limits if each.penalty is not None]
    if quarantines:
        return 0, f"quarantine: {seconds_text(max(quarantines))} left", "wait"
    if penalties:
        return 1, f"penalty: {seconds_text(max(penalties))} left", "wait"
    if used is not None and used >= 1:
        return 2, "at its limit", "wait"
    return (3, "active", "good") if active_count else (4, "idle", "soft")
