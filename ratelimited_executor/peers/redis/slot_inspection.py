"""The state of a group's slots for operators: the keys of ``slots.lua``, parsed into values.

Nothing here asks Redis: the caller reads the keys, and the time of the server that holds them.
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
    """One who holds a slot, or waits for one.

    Attributes:
        token: by which the authority knows it.
        pools: of which it holds slots, or waits for some.
        name: what it is called.
        node: its process: host and number.
        fence: of its slot; 0 if it waits.
        age: seconds for which it has held it, or waited.
        left: seconds that are left of its lease; it is renewed in each quarter, and lasts a third longer than its holder counts.
        limit: how many may hold slots of its pools at a time, as its process has it, where nobody has set a limit of these.
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
        name: what it is called.
        limit: how many slots may be held; of a key, the least of those that the processes name which hold or wait.
        holders: who holds one, the longest held first.
        waiting: who waits, the next one first.
        is_by_key: True if it is that of a key, of which nobody sets a limit.
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
        pools: in the order of their names.
        quarantine: how long none is handed over any more; None without a quarantine.
        lease: how long a lease lasts.
        difference: by which the clocks of two servers differ at most.
        last_call: since the last call of anybody; while nobody calls, no lease ends, and ages are as they were then.
    """

    pools: Sequence[PoolView]
    quarantine: float | None
    lease: float
    difference: float
    last_call: float = 0.0

    @property
    def is_stale(self) -> bool:
        """True if slots are held or waited for, and nobody has called for so long that whoever did is gone."""
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
        state: the hash.
        held: members of the sorted set of this name, in order.
        line: members of the sorted set of this name, in order.
        ends: the sorted set of this name.

    Raises:
        ValueError: if something is not as the script writes it.
        KeyError: if something is missing.
    """
    if not state.get("since"):
        return None
    last_us, clock_us, safe_us, lease_us = (int(state[name]) for name in ("last", "clock", "safe", "lease"))
    passed_us = now_us - last_us
    clock_us += passed_us if 0 <= passed_us <= lease_us // 3 else 0  # as the script's does
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
    """Return the least limit that those name who hold slots of a pool or wait for some."""
    return min((claim.limit for claim in claims if claim.limit is not None), default=0)


def _by_pool(members: Iterable[str], claims: Mapping[str, ClaimView]) -> dict[str, list[ClaimView]]:
    r"""Read ``<pool>\0<place>:<token>``; the mark of the state is none of them."""
    found: dict[str, list[ClaimView]] = {}
    for member in members:
        pool, is_one, rest = member.partition("\0")
        claim = claims.get(rest.partition(":")[2])
        if is_one and claim is not None:
            found.setdefault(pool, []).append(claim)
    return found
