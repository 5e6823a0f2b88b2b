"""The state of a group for operators: the hashes of ``grant.lua``, parsed into values.

Nothing here calls Redis: the caller reads the hashes and the server's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.grid import FleetGrid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "STALE_INTERVALS",
    "IntervalView",
    "PeerView",
    "RateView",
    "names_of",
    "pattern_of",
    "rate_names_of",
    "rate_of",
]

STALE_INTERVALS: Final = 3  # grant intervals without a call, after which plans ignore a peer
_MICROSECONDS: Final = 1_000_000
_RANKS: Final = "ranks"  # a field beside the members


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalView:
    """One grant interval of one rate.

    Attributes:
        number: since the epoch.
        permits: how many it owns.
        granted: permits that each peer has fetched, by id; includes peers that have left.
        planned: permits reserved for each peer, by id, until it fetches them.
    """

    number: int
    permits: int
    granted: Mapping[str, int]
    planned: Mapping[str, int]

    @property
    def granted_count(self) -> int:
        """Return how many permits have been granted."""
        return sum(self.granted.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """One peer of one rate.

    Attributes:
        id: of this incarnation of its process.
        rank: a number that no other peer of the rate has.
        weight: its share, relative to others, while demand exceeds the rate.
        demand: the permits that it still wants, as reported last; used by the next plan.
        running: permits of the running interval granted to it.
        upcoming: permits of the next interval granted to it.
        planned: permits of the next interval reserved for it.
        share: its part of the running interval's permits, 0 to 1; None if there are none.
        seen: seconds since its last call.
        is_stale: True if plans ignore it: it is idle, or gone.
    """

    id: str
    rank: int
    weight: float
    demand: int
    running: int
    upcoming: int
    planned: int
    share: float | None
    seen: float
    is_stale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RateView:
    """One rate of a group; all times in seconds by the server's clock, from the moment of reading.

    Attributes:
        name: of the executors that share it.
        rate: permits a second in force.
        next_rate: the rate that follows it; None if none was set.
        next_in: the time until ``next_rate`` is in force; None if none was set.
        interval: the length of a grant interval.
        run: the run of the server that grants.
        epoch: how many eras there have been.
        quarantine: the time until permits are granted again; None without a quarantine.
        last_call: the time since any peer's last call.
        running: the running grant interval.
        upcoming: the next grant interval.
        peers: in the order of their ranks.
    """

    name: str
    rate: Fraction
    next_rate: Fraction | None
    next_in: float | None
    interval: float
    run: str
    epoch: int
    quarantine: float | None
    last_call: float
    running: IntervalView
    upcoming: IntervalView
    peers: Sequence[PeerView]

    @property
    def active_count(self) -> int:
        """Return how many peers plans include."""
        return sum(not peer.is_stale for peer in self.peers)


# Names.


def pattern_of(prefix: str, group: str | None = None, key: str = "state") -> str:
    r"""Return the SCAN pattern of one key of each executor of a group, or of all groups.

    >>> print(pattern_of("rle", "a*b"))
    {rle:a\*b}:*:state
    """
    inner = "*" if group is None else _literal(group)
    return f"{{{_literal(prefix)}:{inner}}}:*:{key}"


def names_of(keys: Iterable[str], prefix: str, group: str, key: str = "state") -> list[str]:
    """Return the sorted names of a group's executors that have a key of a kind.

    >>> names_of(["{rle:mail}:sms:state", "{rle:mail}:a:b:state"], "rle", "mail")
    ['a:b', 'sms']
    """
    head, tail = f"{{{prefix}:{group}}}:", f":{key}"
    return sorted({each[len(head) : -len(tail)] for each in keys if each.startswith(head) and each.endswith(tail)})


def rate_names_of(keys: Iterable[str], prefix: str) -> dict[str, list[str]]:
    """Return the sorted names of the rates of each group of keys, in order; a group that has slots alone has none.

    >>> rate_names_of(["{rle:b}:sms:tickets", "{rle:b}:a:b:state", "{rle:mail}::slots"], "rle")
    {'b': ['a:b', 'sms'], 'mail': []}
    """
    names: dict[str, set[str]] = {}
    head = f"{{{prefix}:"
    for key in keys:
        group, _, rest = key[len(head) :].partition("}:")
        name, _, kind = rest.rpartition(":")
        if key.startswith(head) and kind in ("state", "tickets", "slots"):
            names.setdefault(group, set()).update(() if kind == "slots" else (name,))
    return {group: sorted(names[group]) for group in sorted(names)}


def _literal(text: str) -> str:
    """Write a text as a pattern that matches nothing else."""
    return "".join(f"\\{character}" if character in "\\*?[]^" else character for character in text)


# Rates.


def rate_of(
    name: str, now_us: int, state: Mapping[str, str], members: Mapping[str, str], plans: Iterable[Mapping[str, str]]
) -> RateView | None:
    """Read one rate; None if its keys are gone.

    Args:
        name: of the rate.
        now_us: the server's time in microseconds, read before the hashes or with them.
        state: the hash of this name.
        members: the hash of this name.
        plans: both hashes of plans, in any order.

    Raises:
        ValueError: if a field is not as the script writes it.
        KeyError: if a field is missing.
    """
    if not state.get("grid"):
        return None
    last_us = int(state["last"])
    now_us = max(now_us, last_us)  # hashes read later may be of a later interval
    grid, following = _grid_of(state["grid"]), _grid_of(state["next"]) if state.get("next") else None
    number = now_us // grid.interval_us
    if following is not None and number >= following.since:  # the next call will store that
        grid, following = following, None
    running, upcoming = (
        _interval_of(each, following if following is not None and each >= following.since else grid, plans)
        for each in (number, number + 1)
    )
    peers = [
        _peer_of(key, text, now_us, grid.interval_us, running, upcoming)
        for key, text in members.items()
        if key != _RANKS
    ]
    safe = int(state["safe"])
    return RateView(
        name=name,
        rate=_per_second(grid),
        next_rate=None if following is None else _per_second(following),
        next_in=None if following is None else (following.since * grid.interval_us - now_us) / _MICROSECONDS,
        interval=grid.interval_us / _MICROSECONDS,
        run=state["run"],
        epoch=int(state["epoch"]),
        quarantine=(safe * grid.interval_us - now_us) / _MICROSECONDS if safe > number else None,
        last_call=(now_us - last_us) / _MICROSECONDS,
        running=running,
        upcoming=upcoming,
        peers=sorted(peers, key=lambda peer: (peer.rank, peer.id)),
    )


def _grid_of(text: str) -> FleetGrid:
    interval_us, step, unit, base, since = map(int, text.removeprefix("g").split(","))
    if interval_us < 1 or unit < 1:
        raise ValueError(f"not a grid: {text!r}")
    return FleetGrid(interval_us, step, unit, base, since)


def _per_second(grid: FleetGrid) -> Fraction:
    return Fraction(grid.step, grid.unit) * _MICROSECONDS / grid.interval_us


def _interval_of(number: int, grid: FleetGrid, plans: Iterable[Mapping[str, str]]) -> IntervalView:
    """Find the plan of an interval; without a plan, nothing was requested."""
    plan = next((plan for plan in plans if plan.get("number") == str(number)), None)
    if plan is None:
        return IntervalView(number=number, permits=grid.count(number), granted={}, planned={})
    granted: dict[str, int] = {}
    planned: dict[str, int] = {}
    for field, text in plan.items():
        kind, peer = field[:2], field[2:]
        if kind == "g:":  # fetched before the interval began
            granted[peer] = granted.get(peer, 0) + _count(text)
        elif kind == "a:":  # requested at once; follows "sequence;"
            granted[peer] = granted.get(peer, 0) + _count(text.partition(";")[2])
        elif kind == "r:":
            planned[peer] = _count(text)
    return IntervalView(number=number, permits=int(plan["count"]), granted=granted, planned=planned)


def _count(ranges: str) -> int:
    """Count the permits in 'start-stop,start-stop,'."""
    pairs = (part.partition("-") for part in ranges.split(",") if part)
    return sum(int(stop) - int(start) for start, _, stop in pairs)


def _peer_of(
    key: str, text: str, now_us: int, interval_us: int, running: IntervalView, upcoming: IntervalView
) -> PeerView:
    weight, demand, seen_us, rank = text.split(",")
    silence_us = max(0, now_us - int(seen_us))
    return PeerView(
        id=key,
        rank=int(rank),
        weight=float(weight),
        demand=int(demand),
        running=running.granted.get(key, 0),
        upcoming=upcoming.granted.get(key, 0),
        planned=upcoming.planned.get(key, 0),
        share=running.granted.get(key, 0) / running.permits if running.permits else None,
        seen=silence_us / _MICROSECONDS,
        is_stale=silence_us > STALE_INTERVALS * interval_us,
    )
