"""The state of ``tickets.lua``: the limits shared by a group, how much of each is used, and who shares them.

Nothing here calls Redis: the caller reads the keys and the server's time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.laws import read_earlier, read_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["LimitView", "LimitsView", "PeerView", "limit_names_of", "limits_of", "names_of", "pattern_of"]

_STATE: Final = Struct("<9d")  # numbers of the state
_BEYOND: Final = 1 << 53  # for the script, which counts in doubles
_CALLING_SECONDS: Final = 1.0  # who has called in this time counts as active
_SEEN_US: Final = 10_000_000  # and in this one, as a peer
_LAWS: Final = {"b": "g"}  # letters of settings: letters of their states, where they differ


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """One limit of a plan.

    Attributes:
        name: the name of its resource and kind.
        resource: the resource that it counts.
        used: the amount in use; what is reserved for the next moments counts too, so it may exceed ``amount`` for a while.
        amount: the most that it admits.
        free_in: seconds until all of it is free again.
    """

    name: str
    resource: str
    used: int
    amount: int
    free_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """One executor that shares the limits, in one process.

    Attributes:
        id: the id of this incarnation of its process, and the executor's number there.
        last_call: seconds since its last call.
        is_active: True if it has called within a second; one without waiting tasks does not call.
    """

    id: str
    last_call: float
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsView:
    """The limits that the executors of one name share in a group.

    Attributes:
        name: the name of the executor.
        plan: the limits in force, in words.
        last_call: seconds since the last call.
        quarantine: seconds until anything may start again; None if there is no quarantine.
        penalty: seconds until a penalty by ``penalize()`` ends; None if there is none.
        limits: the limits, in the plan's order.
        peers: the peers that called in the last ten seconds, the latest first.
    """

    name: str
    plan: str
    last_call: float
    quarantine: float | None
    penalty: float | None
    limits: Sequence[LimitView]
    peers: Sequence[PeerView] = ()

    @property
    def active_count(self) -> int:
        """Return how many peers have called within a second."""
        return sum(peer.is_active for peer in self.peers)


def limits_of(name: str, now_us: int, tickets: Mapping[bytes, bytes], seen: Mapping[str, float]) -> LimitsView | None:
    """Read the limits of the executors of one name; None if their key is gone.

    Args:
        name: the name of its executors.
        now_us: the server's time.
        tickets: the hash of that name.
        seen: the sorted set of that name: when each peer has called.

    Raises:
        ValueError: if the script cannot have written it.
    """
    if not tickets:
        return None
    calls = sorted(((peer, us) for peer, us in seen.items() if peer[:1] != "!"), key=lambda each: -each[1])
    state = tickets.get(b"state", b"")
    if len(state) != _STATE.size:
        raise ValueError(f"the state of {name!r} has {len(state)} bytes in place of {_STATE.size}")
    numbers = _STATE.unpack(state)
    if not all(0 <= number < _BEYOND for number in (*numbers, *(us for _, us in calls))):  # a NaN is not, either
        raise ValueError(f"the state of {name!r} has a time that cannot be")
    since, safe, lapsed, last, _, penalty, *_ = numbers
    stored = {field[2:].decode(errors="replace"): text for field, text in tickets.items() if field[:2] == b"l:"}

    def limit_of(limit: str, resource: str, settings: str) -> LimitView:
        letter = _LAWS.get(settings[:1], settings[:1])
        head, _, text = stored.get(letter + limit, b"").partition(b";")
        is_earlier = bool(text) and int(head.split(b",")[0]) != since
        sound = (
            read_earlier(settings, text.decode("latin-1"), int(lapsed))
            if is_earlier
            else read_limit(settings, text.decode("latin-1"), now_us)
        )
        if sound is None:
            raise ValueError(f"the state of the limit {limit!r} is not sound")
        use = sound.use(now_us)
        free_in = max(0, use.until_us - now_us) / 1e6
        return LimitView(name=limit, resource=resource, used=use.used, amount=use.amount, free_in=free_in)

    return LimitsView(
        name=name,
        plan=tickets.get(b"plan_id", b"").decode(errors="replace"),
        last_call=max(0, now_us - last) / 1e6,
        quarantine=(safe - now_us) / 1e6 if safe > now_us else None,
        penalty=(penalty - now_us) / 1e6 if penalty > now_us else None,
        limits=[limit_of(*each) for each in json.loads(tickets.get(b"plan", b"[]"))],
        peers=[_peer_of(peer, max(0.0, now_us - us) / 1e6) for peer, us in calls if us >= now_us - _SEEN_US],
    )


def _peer_of(peer: str, seconds: float) -> PeerView:
    return PeerView(id=peer, last_call=seconds, is_active=seconds <= _CALLING_SECONDS)


# Names.


def pattern_of(prefix: str, group: str | None = None, key: str = "tickets") -> str:
    r"""Return the SCAN pattern of one key of each executor of a group, or of all groups.

    >>> print(pattern_of("rle", "a*b"))
    {rle:a\*b}:*:tickets
    """
    inner = "*" if group is None else _literal(group)
    return f"{{{_literal(prefix)}:{inner}}}:*:{key}"


def names_of(keys: Iterable[str], prefix: str, group: str, key: str = "tickets") -> list[str]:
    """Return the sorted names of a group's executors that have a key of a kind.

    >>> names_of(["{rle:mail}:sms:tickets", "{rle:mail}:a:b:tickets"], "rle", "mail")
    ['a:b', 'sms']
    """
    head, tail = f"{{{prefix}:{group}}}:", f":{key}"
    return sorted({each[len(head) : -len(tail)] for each in keys if each.startswith(head) and each.endswith(tail)})


def limit_names_of(keys: Iterable[str], prefix: str) -> dict[str, list[str]]:
    """Return the sorted names of the executors of each group of keys, in order; a group that has slots alone has none.

    >>> limit_names_of(["{rle:b}:sms:tickets", "{rle:b}:a:b:tickets", "{rle:mail}::slots"], "rle")
    {'b': ['a:b', 'sms'], 'mail': []}
    """
    names: dict[str, set[str]] = {}
    head = f"{{{prefix}:"
    for key in keys:
        group, _, rest = key[len(head) :].partition("}:")
        name, _, kind = rest.rpartition(":")
        if key.startswith(head) and kind in ("tickets", "slots"):
            names.setdefault(group, set()).update(() if kind == "slots" else (name,))
    return {group: sorted(names[group]) for group in sorted(names)}


def _literal(text: str) -> str:
    """Write a text as a pattern that matches nothing else."""
    return "".join(f"\\{character}" if character in "\\*?[]^" else character for character in text)
