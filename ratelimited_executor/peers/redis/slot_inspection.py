"""The state of a group's slots for operators: the keys of ``slots.lua``, parsed into values.

Nothing here calls Redis: the caller reads the keys and the server's time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.slots import peer_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ClaimView", "PoolView", "SlotsView", "slots_of"]

_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """A claim that holds a slot, or waits for one.

    Attributes:
        token: identifies it to the authority.
        pools: the pools whose slots it holds or waits for.
        name: the name of the holder.
        node: its process: host and process id.
        fence: the fence of its slot; 0 if it waits.
        age: seconds for which it has held its slot, or waited.
        left: seconds left of its lease, which is renewed every quarter.
        limit: the limit of its pools by key, as its process has it: how many may hold slots at a time; None for other pools.
    """

    token: str
    pools: tuple[str, ...]
    name: str
    node: str
    fence: int
    age: float
    left: float
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool.

    Attributes:
        name: its name.
        limit: how many slots may be held; for a pool by key, the smallest limit of its claims.
        holders: the claims that hold a slot, the longest held first.
        waiting: the claims that wait, the next one first.
        is_by_key: True for the pool of a key, which has no limit of its own.
    """

    name: str
    limit: int
    holders: Sequence[ClaimView]
    waiting: Sequence[ClaimView]
    is_by_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsView:
    """The slots of a group; times in seconds from the moment of reading.

    Attributes:
        pools: the pools, in the order of their names.
        quarantine: the time until slots are handed over again; None without a quarantine.
        lease: how long a lease lasts.
        difference: the largest difference between the clocks of two servers.
        last_call: the time since any peer's last call; without calls no lease ends, and ages stay as they were then.
    """

    pools: Sequence[PoolView]
    quarantine: float | None
    lease: float
    difference: float
    last_call: float = 0.0

    @property
    def is_stale(self) -> bool:
        """True if there are claims, but no call for so long that their processes must be gone."""
        return self.last_call > self.lease and any(pool.holders or pool.waiting for pool in self.pools)


def slots_of(
    now_us: int,
    state: Mapping[str, str],
    held: Iterable[str],
    line: Iterable[str],
    ends: Mapping[str, float],
) -> SlotsView | None:
    """Read the slots of a group; None if there are none.

    Args:
        now_us: the server's time in microseconds.
        state: the hash ``slots``.
        held: members of the sorted set of this name, in order.
        line: members of the sorted set of this name, in order.
        ends: the sorted set of this name.

    Raises:
        ValueError: if a field is not as the script writes it.
        KeyError: if a field is missing.
    """
    if not state.get("since"):
        return None
    last_us, clock_us, safe_us, lease_us = (int(state[name]) for name in ("last", "clock", "safe", "lease"))
    passed_us = now_us - last_us
    clock_us += passed_us if 0 <= passed_us <= lease_us // 3 else 0  # the rule of slots.lua
    names = sorted(field[2:] for field in state if field.startswith("l:"))
    claims: dict[str, ClaimView] = {}
    for field, text in state.items():
        if field.startswith("t:"):
            token = field[2:]
            fence, since_us, _, name, own_limit, *pools = json.loads(text)
            claims[token] = ClaimView(
                token=token,
                pools=tuple(pools),
                name=name,
                node=peer_of(peer_of(token)),
                fence=int(fence),
                age=max(0, clock_us - int(since_us)) / _MICROSECONDS,
                left=(ends.get(token, clock_us) - clock_us) / _MICROSECONDS,
                limit=int(own_limit) if own_limit else None,
            )
    holders, waiting = _by_pool(held, claims), _by_pool(line, claims)
    return SlotsView(
        pools=[
            PoolView(
                name=name,
                limit=int(state.get(f"l:{name}", _own_limit([*holders.get(name, []), *waiting.get(name, [])]))),
                holders=holders.get(name, []),
                waiting=waiting.get(name, []),
                is_by_key=f"l:{name}" not in state,
            )
            for name in sorted({*names, *holders, *waiting})
        ],
        quarantine=(safe_us - clock_us) / _MICROSECONDS if safe_us > clock_us else None,
        lease=lease_us / _MICROSECONDS,
        difference=int(state["difference"]) / _MICROSECONDS,
        last_call=max(0, passed_us) / _MICROSECONDS,
    )


def _own_limit(claims: Iterable[ClaimView]) -> int:
    """Return the smallest limit of a pool's claims; 0 if none has one."""
    return min((claim.limit for claim in claims if claim.limit is not None), default=0)


def _by_pool(members: Iterable[str], claims: Mapping[str, ClaimView]) -> dict[str, list[ClaimView]]:
    r"""Read members ``<pool>\0<place>:<token>``; ignore the mark of the state."""
    found: dict[str, list[ClaimView]] = {}
    for member in members:
        pool, is_one, rest = member.partition("\0")
        claim = claims.get(rest.partition(":")[2])
        if is_one and claim is not None:
            found.setdefault(pool, []).append(claim)
    return found
