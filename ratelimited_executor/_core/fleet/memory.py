"""What an authority of tickets remembers, and its form as texts: a head, and a record for each place of a key.

A database keeps the texts. For a call it reads the head, the records of the call's keys, and some of those that are due
to be forgotten; afterwards it writes the head and the records that differ. So the cost of a call does not depend on how
many keys there are.

A *place* is ``l:`` with the law and name of a limit of the plan, ``k:`` with the law and the name of a key, ``p:`` for
the penalty of a key, or ``q:`` for its queue. Places of keys have a time of rest, from which on they may be forgotten.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._core.fleet.ticket_calls import PlanLimit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimited_executor._core.fleet.ticket_calls import TicketCall

__all__ = [
    "LEAD_US",
    "Kept",
    "Queue",
    "StateRecord",
    "TicketMemory",
    "Turn",
    "VersionError",
    "check_version",
    "place_order",
]

LEAD_US: Final = 1_000_000
"""A lead or a debt in a queue is forgiven beyond the starts of a share in this time, in microseconds."""

_DRIFT_PART: Final = 2000  # clocks diverge by one part in so many

VERSION: Final = 2
"""Of the texts; increment it with every change of their meaning."""


class Kept(NamedTuple):
    """The stored form of a limit: the beginning of its era (0 for a copy), serial, settings and text."""

    since_us: int
    serial: int
    settings: str
    text: str


@dataclass(slots=True)
class Turn:
    """A peer at a queue: what it was served, until when it is hungry, the time between its calls, when it is to be back."""

    served: int
    until_us: int
    cycle_us: int
    back_us: int


@dataclass(slots=True)
class Queue:
    """The order of peers at the limits of a plan, or at the limit of a key."""

    since_us: int  # the beginning of its era
    virtual: int = 0  # what the least served hungry peer was served
    turns: dict[str, Turn] = field(default_factory=dict)  # by peer

    def hungry(self, now_us: int) -> list[str]:
        """Return who is hungry, and forget who has not been for long."""
        for peer in [peer for peer, turn in self.turns.items() if turn.until_us < now_us - LEAD_US]:
            del self.turns[peer]
        return [peer for peer, turn in self.turns.items() if turn.until_us >= now_us]


class StateRecord(NamedTuple):
    """The stored form of a place: when it is at rest, and its text."""

    rest_us: int
    text: str


@dataclass(slots=True)
class TicketMemory:
    """The memory of one executor's authority."""

    run: str
    since_us: int
    last_us: int
    safe_us: int  # when the quarantine ends
    lapsed_us: int  # when the tickets of earlier eras have lapsed
    count: int = 0
    penalty_us: int = 0
    until_us: int = 0  # when all limits are at rest
    plan_id: str = ""
    plan: tuple[PlanLimit, ...] = ()
    limits: dict[str, Kept] = field(default_factory=dict)  # by place
    key_penalties: dict[str, tuple[int, int]] = field(default_factory=dict)  # by place (beginning of the era, end)
    rest_us: dict[str, int] = field(default_factory=dict)  # when the place of a key is at rest
    queues: dict[str, Queue] = field(default_factory=dict)  # by key; empty for that of the plan
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # of each peer, the time and number of its last call
    load: int = 0  # microseconds of the server, with recent ones
    machine: tuple[str, int, int] = "", 0, 0  # of the last caller that vouched: its id, offset and error

    @classmethod
    def new(cls, run: str, now_us: int) -> TicketMemory:
        """Return the memory of a group that has surely not existed before: it needs no quarantine."""
        return cls(run, now_us, now_us, now_us, now_us, now_us)

    def is_spanned(self, now_us: int, call: TicketCall) -> bool:
        """True if the clock of the caller's machine shows that the server's has not been set since the last vouched call."""
        machine, offset_us, error_us = self.machine
        allowed_us = error_us + call.error_us + (now_us - self.last_us) // _DRIFT_PART
        return machine == call.machine != "" and abs(call.offset_us - offset_us) <= allowed_us

    def note_queue(self, key: str) -> None:
        """Record when the queue of a key is at rest: once each of its turns is forgotten."""
        queue = self.queues.get(key)
        if queue is None:
            self.rest_us.pop(f"q:{key}", None)
        else:
            self.rest_us[f"q:{key}"] = LEAD_US + max((turn.until_us for turn in queue.turns.values()), default=0)

    def forget(self, place: str) -> None:
        """Forget the place of a key."""
        self.limits.pop(place, None)
        self.key_penalties.pop(place, None)
        self.rest_us.pop(place, None)
        if place.startswith("q:"):
            self.queues.pop(place[2:], None)

    # As texts.

    def head(self) -> str:
        """Return the text of all that is of no key."""
        limits = {place: kept for place, kept in self.limits.items() if place.startswith("l:")}
        queue = _queue_text(self.queues[""]) if "" in self.queues else None
        numbers = self.since_us, self.last_us, self.safe_us, self.lapsed_us, self.count, self.penalty_us, self.until_us
        return _text(
            [VERSION, (self.run, *numbers), self.plan_id, self.plan, limits, queue, self.seen, self.load, self.machine]
        )

    def records(self) -> dict[str, StateRecord]:
        """Return the places of keys."""
        return {place: StateRecord(rest_us, self._text_of(place)) for place, rest_us in self.rest_us.items()}

    def _text_of(self, place: str) -> str:
        if place[0] == "k":
            return _text(self.limits[place])
        return _text(self.key_penalties[place] if place[0] == "p" else _queue_text(self.queues[place[2:]]))

    @classmethod
    def read(cls, head: str, records: Iterable[tuple[str, StateRecord]]) -> TicketMemory:
        """Return the memory with the places of some keys.

        Raises:
            VersionError: if the texts are those of a later release.
            ValueError: if they are damaged, or those of an earlier one.
        """
        version, *rest = json.loads(head)
        check_version(version, VERSION)
        try:
            numbers, plan_id, plan, limits, queue, seen, load, machine = rest
            memory = cls(*numbers)
            memory.plan_id, memory.load = plan_id, load
            memory.plan = tuple(PlanLimit(*each) for each in plan)
            memory.limits = {place: Kept(*kept) for place, kept in limits.items()}
            name, offset_us, error_us = machine
            memory.machine = name, offset_us, error_us
            memory.queues = {} if queue is None else {"": _queue_of(queue)}
            memory.seen = {peer: (us, number) for peer, (us, number) in seen.items()}
            for place, (rest_us, text) in records:
                memory._adopt(place, rest_us, json.loads(text))  # of this class
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"not the memory of an authority: {error}") from error
        return memory

    def _adopt(self, place: str, rest_us: int, value: Any) -> None:
        self.rest_us[place] = rest_us
        if place[0] == "k":
            self.limits[place] = Kept(*value)
        elif place[0] == "p":
            since_us, until_us = value
            self.key_penalties[place] = since_us, until_us
        else:
            self.queues[place[2:]] = _queue_of(value)


class VersionError(Exception):
    """The memory was written by a later release.

    Args:
        version: of the texts.
    """

    def __init__(self, version: object) -> None:
        super().__init__(f"the memory has version {version}, which this release does not know")


def check_version(version: object, known: int) -> None:
    """Check that texts are of the version that is known.

    Raises:
        VersionError: if they are of a later one.
        ValueError: if they are of an earlier one, whose meaning is not known any more, or of none.
    """
    if isinstance(version, int) and version > known:
        raise VersionError(version)
    if version != known:
        raise ValueError(f"not the memory of this release: version {version!r}")


def place_order(rest: tuple[int, str]) -> tuple[int, bytes]:
    """Return the sort key of a time of rest and a place: the order of a database of bytes."""
    return rest[0], rest[1].encode("utf-8", "surrogatepass")


def _queue_text(queue: Queue) -> list[Any]:
    turns = queue.turns.items()
    return [
        queue.since_us,
        queue.virtual,
        {peer: [turn.served, turn.until_us, turn.cycle_us, turn.back_us] for peer, turn in turns},
    ]


def _queue_of(value: Any) -> Queue:
    since_us, virtual, turns = value
    return Queue(since_us, virtual, {peer: Turn(*turn) for peer, turn in turns.items()})


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
