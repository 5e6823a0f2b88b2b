"""The state of ``tickets.lua``: the limits shared by a group, and how much of each is used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.laws import read_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LimitView", "LimitsView", "limits_of"]

_STATE: Final = Struct("<9d")  # numbers of the state
_LAWS: Final = {"b": "g"}  # letters of settings: letters of their states, where they differ


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """One limit of a plan.

    Attributes:
        name: of its resource and kind.
        resource: that it counts.
        used: the amount in use.
        amount: the most that it admits.
        free_in: seconds until all of it is free again.
    """

    name: str
    resource: str
    used: int
    amount: int
    free_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsView:
    """The limits of one executor's group.

    Attributes:
        name: of the executor.
        plan: the limits in force, in words.
        last_call: seconds since the last call.
        quarantine: seconds until tickets are admitted again; None if there is no quarantine.
        penalty: seconds until a penalty by ``penalize()`` ends; None if there is none.
        limits: in the plan's order.
    """

    name: str
    plan: str
    last_call: float
    quarantine: float | None
    penalty: float | None
    limits: Sequence[LimitView]


def limits_of(name: str, now_us: int, tickets: Mapping[bytes, bytes]) -> LimitsView | None:
    """Read the limits of one executor; None if its key is gone.

    Args:
        name: of the executor.
        now_us: the server's time.
        tickets: the hash of that name.

    Raises:
        ValueError: if the script cannot have written it.
    """
    if not tickets:
        return None
    state = tickets.get(b"state", b"")
    if len(state) != _STATE.size:
        raise ValueError(f"the state of {name!r} has {len(state)} bytes in place of {_STATE.size}")
    _, safe, _, last, _, penalty, *_ = _STATE.unpack(state)
    stored = {
        field[2:].decode(errors="replace"): text.partition(b";")[2].decode("latin-1")
        for field, text in tickets.items()
        if field.startswith(b"l:")
    }
    return LimitsView(
        name=name,
        plan=tickets.get(b"plan_id", b"").decode(errors="replace"),
        last_call=max(0, now_us - last) / 1e6,
        quarantine=(safe - now_us) / 1e6 if safe > now_us else None,
        penalty=(penalty - now_us) / 1e6 if penalty > now_us else None,
        limits=[
            _limit_of(limit, resource, settings, stored.get(_LAWS.get(settings[:1], settings[:1]) + limit, ""), now_us)
            for limit, resource, settings in json.loads(tickets.get(b"plan", b"[]"))
        ],
    )


def _limit_of(name: str, resource: str, settings: str, text: str, now_us: int) -> LimitView:
    limit = read_limit(settings, text, now_us)
    if limit is None:
        raise ValueError(f"the state of the limit {name!r} is not sound")
    use = limit.use(now_us)
    return LimitView(
        name=name, resource=resource, used=use.used, amount=use.amount, free_in=max(0, use.until_us - now_us) / 1e6
    )
