"""Calls of peers for tickets, and the replies of their authority: plain values.

The rules are in ``tickets.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ratelimited_executor._core.fleet.limit_settings import LIFE_MAX_US

__all__ = [
    "AHEAD_MAX_US",
    "CLOCK_HOLDER",
    "FAIR_HOLDER",
    "LAPSED_US",
    "Correction",
    "LimitCopy",
    "LimitState",
    "PlanLimit",
    "Report",
    "TicketCall",
    "TicketOutcome",
    "TicketReply",
    "TicketRun",
]

FAIR_HOLDER: Final = "peers"
"""Holder of a ticket that was refused because others must be served first."""

CLOCK_HOLDER: Final = "clock"
"""Holder of a ticket that was refused because its call did not vouch for the server's time."""

AHEAD_MAX_US: Final = 250_000
"""How far ahead a ticket may be admitted, in microseconds."""

LAPSED_US: Final = AHEAD_MAX_US + LIFE_MAX_US + 50_000
"""The time in microseconds after which a ticket has surely lapsed, by a server's clock that drifts."""


class PlanLimit(NamedTuple):
    """One limit of a plan.

    Attributes:
        name: unique in the plan; the same in all processes and after a change of the amount.
        resource: that it counts.
        settings: their text, by ``laws.py``.
    """

    name: str
    resource: str
    settings: str


class TicketRun(NamedTuple):
    """A request for tickets with the same costs.

    Attributes:
        wanted: how many tickets.
        costs: of each ticket, as (resource, cost >= 0).
        key: whose limit applies as well; empty for none.
        settings: of the key's limit; empty if it has none, except for penalties.
        key_cost: of each ticket under the key's limit.
    """

    wanted: int
    costs: tuple[tuple[str, int], ...]
    key: str = ""
    settings: str = ""
    key_cost: int = 1


class Correction(NamedTuple):
    """An unused or additional cost of a ticket.

    Attributes:
        limit: the name of a limit of the plan; empty for a key's.
        key: whose limit it is; empty for a limit of the plan.
        admitted_us: the ticket's time.
        cost: to give back; if negative, to charge.
        receipt: of the ticket, from that limit; or, of what may have been reported, a time no later than its start.
        is_whole: True if all that the ticket cost is given back.
    """

    limit: str
    key: str
    admitted_us: int
    cost: int
    receipt: int
    is_whole: bool = False


class Report(NamedTuple):
    """Starts by tickets that have the same receipt.

    Attributes:
        limit: the name of a limit of the plan; empty for a key's.
        key: whose limit it is; empty for a limit of the plan.
        start_us: a time by which all have surely started.
        cost: of all.
        receipt: of the tickets, from that limit.
    """

    limit: str
    key: str
    start_us: int
    cost: int
    receipt: int


class LimitCopy(NamedTuple):
    """The state of a limit, as copied from a reply.

    Attributes:
        name: of the limit, or the key.
        is_key: True for a key's limit.
        serial: the number of its last change.
        text: its state.
    """

    name: str
    is_key: bool
    serial: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketCall:
    """A peer's call for one executor.

    Attributes:
        peer: the id of the calling peer.
        weight: its share, relative to others, while demand exceeds the limits, in thousandths, >= 1.
        era: the latest that it was told; empty before the first answer.
        since_us: since when its clock has agreed with the server's, in server time; 0 if not known yet.
        earliest_us: the earliest server time at which this call may arrive ...
        latest_us: ... and the latest.
        machine: identifies the clock of the peer's machine, which all its processes share; empty if the system does not
            tell.
        offset_us: how far the server's clock is ahead of that clock ...
        error_us: ... with this bound on the error.
        number: of the call; later calls of a peer have larger ones.
        ahead_us: how far ahead a ticket may be admitted, if no more is needed to share it evenly.
        life_us: how long the peer wants its tickets to live.
        after_us: how much later than the present its tickets are to be.
        cycle_us: the time between two of its calls, at least.
        difference_us: the largest difference between the clocks of two servers.
        quarantine_us: how long a new era admits nothing; longer than all earlier tickets are valid.
        has_jumped: True if the server's clock has stepped in this era.
        plan_id: names the peer's plan.
        plan: the peer's limits.
        is_new_plan: True if the plan is to be put in force.
        penalties: (key, how long nothing starts); an empty key stands for the whole group.
        corrections: of tickets of this era.
        reports: of starts of this era.
        copies: the limits that the peer remembers, in a quarantine.
        runs: the tickets that it asks for, in order; a run of no tickets gives the settings for a key's correction.
    """

    peer: str
    weight: int = 1000
    era: str = ""
    since_us: int = 0
    earliest_us: int = 0
    latest_us: int = 0
    machine: str = ""
    offset_us: int = 0
    error_us: int = 0
    number: int = 0
    ahead_us: int
    life_us: int = 0
    after_us: int = 0
    cycle_us: int = 0
    difference_us: int
    quarantine_us: int
    has_jumped: bool = False
    plan_id: str
    plan: tuple[PlanLimit, ...]
    is_new_plan: bool = False
    penalties: tuple[tuple[str, int], ...] = ()
    corrections: tuple[Correction, ...] = ()
    reports: tuple[Report, ...] = ()
    copies: tuple[LimitCopy, ...] = ()
    runs: tuple[TicketRun, ...] = ()

    def sent_later(self, us: int) -> TicketCall:
        """Return the same call, sent so much later: its penalties end no later."""
        return replace(self, penalties=tuple((key, left_us - us) for key, left_us in self.penalties if left_us > us))


class LimitState(NamedTuple):
    """A limit of the plan in force at the time of a reply.

    Attributes:
        name: of the limit.
        resource: that it counts.
        used: the amount in use.
        amount: the most that it admits.
        until_us: when all of it is free again; once past, the limit remembers nothing.
        is_dated: True if it counts starts by their time: they are to be reported.
        serial: the number of its last change.
        text: its state, if it counts for longer than a quarantine from now; else empty.
    """

    name: str
    resource: str
    used: int
    amount: int
    until_us: int
    is_dated: bool
    serial: int
    text: str


class TicketOutcome(NamedTuple):
    """The result of a run.

    Attributes:
        tickets: the time and receipts of each admitted ticket. The receipts are those of the plan's limits on its
            resources, in the plan's order, and then that of the key's limit.
        life_us: how long each may be used.
        holder: what refused the next ticket: the name of a limit or a key, ``FAIR_HOLDER`` or ``CLOCK_HOLDER``; empty
            if none was refused.
        at_us: when the refused ticket could be used; 0 if not known, or never.
        again_us: when to ask for it again; 0 if that is useless.
        is_contended: True if others want what this run wants, or little of it is left: starts are to be reported soon.
        serial: of the key's limit, as in :class:`LimitState`; 0 without one.
        text: the state of the key's limit.
    """

    tickets: tuple[tuple[int, tuple[int, ...]], ...] = ()
    life_us: int = 0
    holder: str = ""
    at_us: int = 0
    again_us: int = 0
    is_contended: bool = False
    serial: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketReply:
    """The authority's answer to a call.

    Attributes:
        now_us: the server's clock, in microseconds since the epoch.
        era: a change means that earlier tickets are void.
        quarantine_us: the remaining time in which nothing is admitted.
        plan_id: of the plan in force.
        plan: this plan, if it is not the caller's; else empty.
        penalty_us: the time before which nothing is admitted.
        gap_us: how long to wait before the next call.
        peers: how many peers have called lately.
        limits: of the plan in force.
        outcomes: of each run.
        flaw: ``state`` if the stored state was not valid; else empty.
    """

    now_us: int
    era: str
    quarantine_us: int
    plan_id: str
    penalty_us: int
    gap_us: int = 0
    peers: int = 0
    plan: tuple[PlanLimit, ...] = ()
    limits: tuple[LimitState, ...] = ()
    outcomes: tuple[TicketOutcome, ...] = ()
    flaw: str = ""
