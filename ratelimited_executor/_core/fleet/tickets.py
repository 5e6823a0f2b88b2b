"""Joint admission to the limits of a group: calls of peers, replies and rules, over plain values.

``peers/redis/tickets.lua`` has the same rules; one test suite covers both. The rules of each limit are in ``laws.py``.
The rules here keep those valid across processes, any of which may stop, and a server that may forget:

1. **All or nothing.** A ticket has costs in several resources, and under its key's limit. All these limits are charged
   at one time, or none: a refusal costs nothing. The time may lie in the near future, up to a grant interval ahead.
2. **In the peer's order.** A run refused by a limit of the plan blocks the peer's later runs. A run refused by the
   limit of its key does not. It is admitted ahead of its key's time if the plan has no room before that time; otherwise
   after all others, and by a tenth of an interval at most: a ticket with a later time moves all tickets behind it.
3. **One plan.** The limits in force are those that a process has set last, or with which it has started.
4. **Time passes only if a peer vouches for it.** A call states the range of server times in which it may arrive, by a
   clock that its peer has compared with the server's, and since when the two have agreed. A call that arrives at
   another time has no effect: it is late, or the clock has stepped, which the peer then reports. After a gap that no
   such clock spans, an *era* begins, if there is anything to remember or a quarantine was not over. If the server's
   clock goes back by no more than the difference between two servers' clocks, time stands still here; if by more, an
   era begins.
5. **An era** begins if the state is missing, incomplete or damaged; after a restart of the server, whose last writes
   may be lost; and if a peer has seen the clock step. Until its *quarantine* is over, nothing is admitted, so that
   earlier tickets have lapsed. The state of limits is *redated*: it counts as if everything had been used at the end of
   the quarantine. So no unobserved time passes for it. Penalties end with the quarantine.
6. **Peers remember what the server forgets.** Each reply contains the state of the limits, with a *serial*: the number
   of the last change. Numbers begin at the time in each era, so that they rise across a loss. In a quarantine the peers
   send the state back, and the latest of each limit is in force: it includes every ticket of a living peer, as each
   peer has remembered at least its own. A peer that leaves sends its copies, too. Tickets of a peer that was killed
   since, and that no other peer has heard of, are forgotten.
7. **Fair shares.** A peer that was refused for lack of room is *hungry*, for two intervals and a second at most.
   Another peer may be ahead of the least served hungry peer by the starts of the group in an interval, and no more. An
   idle peer resumes level with it: as in start-time fair queueing (Goyal, Vin, Cheng, 1996), idleness earns no credit.
8. **Keys at rest leave nothing behind.** Each call forgets some that are due, and more than it adds.

A limit of another law is another limit, even under the same name or key: peers of two releases may differ in the law.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final, NamedTuple

from ratelimited_executor._core.fleet.laws import QuotaSettings, SharedLimit, decide, read_limit, read_settings

__all__ = [
    "CLOCK_HOLDER",
    "FAIR_HOLDER",
    "Correction",
    "LimitCopy",
    "LimitState",
    "Outcome",
    "PlanLimit",
    "TicketAuthority",
    "TicketCall",
    "TicketReply",
    "TicketRun",
]

FAIR_HOLDER: Final = "peers"
"""Holder of a ticket that was refused because others must be served first."""

CLOCK_HOLDER: Final = "clock"
"""Holder of a ticket that was refused because its call did not vouch for the server's time."""

_REDATED_US: Final = 1 << 52  # the present, for a state of another era: all its times are before it
_SERVED_UNIT: Final = 1000  # of a ticket at weight 1
_KEY_AHEAD: Final = 10  # a ticket may be ahead of its key's time by an interval divided by this
_HUNGRY_INTERVALS: Final = 2
_SWEPT: Final = 2  # keys forgotten in each call, and again for each key of the call
_UNREAD_US: Final = 86_400_000_000  # for which the copy of a key is kept without a request for it
_LAWS: Final = {"p": "g", "b": "g", "w": "w", "q": "q"}  # letters of settings: letters of their states
_HUNGRY_US: Final = 1_000_000  # added to the intervals: within it a peer calls again, however long it has to wait


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
        receipt: of the ticket, from that limit.
    """

    limit: str
    key: str
    admitted_us: int
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
        interval_us: how far ahead a ticket may be admitted.
        difference_us: the largest difference between the clocks of two servers.
        quarantine_us: how long a new era admits nothing; longer than all earlier tickets are valid.
        has_jumped: True if the server's clock has stepped in this era.
        plan_id: names the peer's plan.
        plan: the peer's limits.
        is_new_plan: True if the plan is to be put in force.
        penalties: (key, how long nothing starts); an empty key stands for the whole group.
        corrections: of tickets of this era.
        copies: the limits that the peer remembers, in a quarantine.
        runs: the tickets that it asks for, in order; a run of no tickets gives the settings for a key's correction.
        waiting: how many more tickets it could use at once.
    """

    peer: str
    weight: int = 1000
    era: str = ""
    since_us: int = 0
    earliest_us: int = 0
    latest_us: int = 0
    interval_us: int
    difference_us: int
    quarantine_us: int
    has_jumped: bool = False
    plan_id: str
    plan: tuple[PlanLimit, ...]
    is_new_plan: bool = False
    penalties: tuple[tuple[str, int], ...] = ()
    corrections: tuple[Correction, ...] = ()
    copies: tuple[LimitCopy, ...] = ()
    runs: tuple[TicketRun, ...] = ()
    waiting: int = 0


class LimitState(NamedTuple):
    """A limit of the plan in force at the time of a reply.

    Attributes:
        name: of the limit.
        resource: that it counts.
        used: the amount in use.
        amount: the most that it admits.
        until_us: when all of it is free again; once past, the limit remembers nothing.
        serial: the number of its last change.
        text: its state.
    """

    name: str
    resource: str
    used: int
    amount: int
    until_us: int
    serial: int
    text: str


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
        tickets: the time and receipts of each admitted ticket. The receipts are those of the plan's limits on its
            resources, in the plan's order, and then that of the key's limit.
        holder: what refused the next ticket: the name of a limit or a key, ``FAIR_HOLDER`` or ``CLOCK_HOLDER``; empty
            if none was refused.
        at_us: when the refused ticket could be admitted; 0 if not known, or never.
        serial: of the key's limit, as in :class:`LimitState`; 0 without one.
        text: the state of the key's limit.
    """

    tickets: tuple[tuple[int, tuple[int, ...]], ...] = ()
    holder: str = ""
    at_us: int = 0
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
        penalty_us: the time before which nothing is admitted.
        limits: of the plan in force.
        outcomes: of each run.
        flaw: ``state`` if the stored state was not valid; else empty.
    """

    now_us: int
    era: str
    quarantine_us: int
    plan_id: str
    penalty_us: int
    limits: tuple[LimitState, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    flaw: str = ""


class _Kept(NamedTuple):
    """The stored form of a limit: the beginning of its era (0 for a copy), serial, settings and text."""

    since_us: int
    serial: int
    settings: str
    text: str


_NOTHING: Final = _Kept(0, 0, "", "")


@dataclass(slots=True)
class _State:
    """The memory of one executor's authority."""

    run: str
    since_us: int
    last_us: int
    safe_us: int
    count: int = 0
    penalty_us: int = 0
    until_us: int = 0  # when all limits are at rest
    plan_id: str = ""
    plan: tuple[PlanLimit, ...] = ()
    limits: dict[str, _Kept] = field(default_factory=dict)  # by field, like all below
    key_penalties: dict[str, tuple[int, int]] = field(default_factory=dict)  # (beginning of the era, end)
    rest_us: dict[str, int] = field(default_factory=dict)  # when a key is at rest
    served: dict[str, int] = field(default_factory=dict)  # of hungry peers
    hungry_us: dict[str, int] = field(default_factory=dict)  # until when they are hungry
    interval: int = 0  # the number of the running one
    started: int = 0  # tickets of this interval ...
    started_before: int = 0  # ... and of the one before


@dataclass(slots=True)
class _Asked:
    """A run in progress: the limits that it is charged to, their names, its costs, and its key's limit."""

    run: TicketRun
    limits: list[SharedLimit]
    names: list[str]
    amounts: list[int]
    own: SharedLimit | None
    tickets: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    holder: str = ""
    at_us: int = 0

    def free_at(self, begin_us: int) -> int:
        """Return when the plan's limits admit a ticket, 0 if never; until then its key blocks no other."""
        if self.own is None:
            return 0
        return decide(self.limits[:-1], self.amounts[:-1], begin_us, -1).at_us or 0


class TicketAuthority:
    """Decides on the tickets of one executor's group."""

    __slots__ = ("_flaw", "_is_damaged", "_limits", "_now_us", "_redated", "_state")

    _state: _State

    def __init__(self) -> None:
        self._now_us = 0
        self._flaw = ""
        self._is_damaged = False
        self._limits: dict[str, tuple[SharedLimit, str]] = {}  # read in this call, with their settings
        self._redated: set[str] = set()  # of these, the ones from another era

    def call(self, now_us: int, run: str, call: TicketCall) -> TicketReply:
        """Answer one call.

        Args:
            now_us: the server's clock.
            run: identifies the run of the server.
            call: the peer's call.
        """
        self._flaw = ""
        is_vouched = self._go_on(now_us, run, call)
        state = self._state
        if call.is_new_plan or call.plan_id == state.plan_id or not state.plan_id:
            state.plan_id, state.plan = call.plan_id, call.plan
        if self._now_us < state.safe_us:
            self._adopt(call)
        limits, keys = self._read(call)
        if self._is_damaged:
            self._begin_era(now_us, run, call)
            self._adopt(call)
            limits, keys = self._read(call)
        for key, us in call.penalties:
            self._penalize(key, self._now_us + us)
        settings = _settings_of(call)
        outcomes = [Outcome(holder="" if is_vouched else CLOCK_HOLDER) for _ in call.runs]
        if self._now_us >= state.safe_us:
            if call.era == self._era:
                self._correct(call, limits, keys)
            if is_vouched:
                outcomes = self._admit(call, limits, keys)
        self._write(is_vouched=is_vouched)
        if is_vouched and self._now_us >= state.safe_us:
            self._sweep(_SWEPT * (1 + len({run.key for run in call.runs if run.key})))
        return TicketReply(
            now_us=now_us,
            era=self._era,
            quarantine_us=max(0, state.safe_us - self._now_us),
            plan_id=state.plan_id,
            penalty_us=state.penalty_us,
            limits=tuple(self._told(each, limits[each.name]) for each in state.plan),
            outcomes=tuple(
                outcome._replace(serial=kept.serial, text=kept.text)
                for run, outcome in zip(call.runs, outcomes, strict=True)
                for kept in [self._kept_of(run.key, settings.get(run.key, ""))]
            ),
            flaw=self._flaw,
        )

    def _told(self, each: PlanLimit, limit: SharedLimit) -> LimitState:
        kept = self._state.limits.get(_field_of("l", each.name, each.settings), _NOTHING)
        use = limit.use(self._now_us)
        return LimitState(each.name, each.resource, use.used, use.amount, use.until_us, kept.serial, kept.text)

    def _kept_of(self, key: str, settings: str) -> _Kept:
        """Return the stored form of a key's limit, or an empty one."""
        return self._state.limits.get(_field_of("k", key, settings), _NOTHING) if settings else _NOTHING

    # The state.

    @property
    def _era(self) -> str:
        return f"{self._state.run}:{self._state.since_us}"

    def _go_on(self, now_us: int, run: str, call: TicketCall) -> bool:
        """Advance time, or begin an era; return True if the caller vouches for the time."""
        is_first = not hasattr(self, "_state")
        if is_first:
            self._state = _State(run, 0, now_us, now_us)
        state = self._state
        is_vouched = call.since_us > 0 and call.earliest_us <= now_us <= call.latest_us
        is_gap = is_vouched and now_us - state.last_us > call.quarantine_us // 2 and call.since_us > state.last_us
        is_step = state.last_us > now_us + call.difference_us or (call.has_jumped and call.era == self._era)
        if is_first or run != state.run or is_step or (is_gap and max(state.until_us, state.safe_us) > state.last_us):
            self._begin_era(now_us, run, call)
        self._now_us = max(now_us, state.last_us)
        if is_vouched:
            state.last_us = self._now_us
        return is_vouched

    def _begin_era(self, now_us: int, run: str, call: TicketCall) -> None:
        state = self._state
        state.run, state.last_us, state.safe_us = run, now_us, now_us + call.quarantine_us
        self._now_us = now_us
        state.since_us = max(now_us, state.since_us + 1)
        state.count = max(now_us, state.count)
        state.penalty_us = min(state.penalty_us, state.safe_us)
        state.served.clear()
        state.hungry_us.clear()

    def _adopt(self, call: TicketCall) -> None:
        """Adopt the caller's copies that are newer."""
        state = self._state
        for copy in call.copies:
            place = f"{'k' if copy.is_key else 'l'}:{copy.text[:1]}{copy.name}"
            if copy.text and copy.serial > state.limits.get(place, _NOTHING).serial:
                state.limits[place] = _Kept(0, copy.serial, "", copy.text)
                if copy.is_key:
                    state.rest_us[place] = self._now_us + _UNREAD_US
            state.count = max(state.count, copy.serial)

    def _read(self, call: TicketCall) -> tuple[dict[str, SharedLimit], dict[str, SharedLimit]]:
        """Read the limits of the plan in force and those of keys, by name."""
        self._limits, self._redated, self._is_damaged = {}, set(), False
        settings = _settings_of(call)
        return (
            {
                each.name: self._limit(_field_of("l", each.name, each.settings), each.settings)
                for each in self._state.plan
            },
            {key: self._limit(_field_of("k", key, text), text) for key, text in settings.items()},
        )

    def _limit(self, place: str, settings: str) -> SharedLimit:
        """Read a limit, redated if it is from another era; at rest if there is no valid state."""
        state = self._state
        if place in self._limits:
            return self._limits[place][0]
        kept = state.limits.get(place, _NOTHING)
        found = self._load(place, kept, settings)
        if found is None:
            self._flaw = "state"
            self._is_damaged = self._is_damaged or kept.since_us > 0  # not for a copy: other peers may send it again
            del state.limits[place]
            state.rest_us.pop(place, None)
            found = read_limit(settings, "", self._now_us)
            assert found is not None, settings  # peers send sound settings
        self._limits[place] = found, settings
        return found

    def _load(self, place: str, kept: _Kept, settings: str) -> SharedLimit | None:
        """Make a limit from its stored form; None if that is not sound."""
        is_old = kept.since_us != self._state.since_us and kept.text != ""
        found = read_limit(settings, kept.text, _REDATED_US if is_old else self._now_us)
        if found is not None and is_old:
            found.redate(self._state.safe_us)
            found.is_changed = False
            self._redated.add(place)
        return found

    def _penalize(self, key: str, until_us: int) -> None:
        state = self._state
        if not key:
            state.penalty_us = max(until_us, state.penalty_us)
            return
        until_us = max(until_us, self._penalty_of(key))
        state.key_penalties[f"p:{key}"] = state.since_us, until_us
        state.rest_us[f"p:{key}"] = until_us

    def _penalty_of(self, key: str) -> int:
        """Return the time before which nothing of a key is admitted."""
        since_us, until_us = self._state.key_penalties.get(f"p:{key}", (0, 0))
        return until_us if since_us == self._state.since_us else 0

    def _write(self, *, is_vouched: bool) -> None:
        """Store changed limits, and delete those of keys at rest."""
        for place in self._limits:
            self._keep(place, is_vouched=is_vouched)

    def _keep(self, place: str, *, is_vouched: bool = True) -> None:
        state, (limit, settings) = self._state, self._limits[place]
        kept = state.limits.get(place, _NOTHING)
        is_key = place.startswith("k:")
        if is_key and is_vouched and limit.is_at_rest(self._now_us):
            state.limits.pop(place, None)
            state.rest_us.pop(place, None)
        elif limit.is_changed or place in self._redated or (is_key and kept.text and settings != kept.settings):
            serial = state.count if limit.is_changed else kept.serial
            state.limits[place] = _Kept(state.since_us, serial, settings if is_key else "", limit.write())
            made, rest_us = read_settings(settings), limit.use(self._now_us).until_us
            if isinstance(made, QuotaSettings):
                rest_us = made.next_end_us + made.late_us
            state.until_us = max(state.until_us, rest_us)
            if is_key:
                state.rest_us[place] = rest_us

    def _sweep(self, count: int) -> None:
        """Forget some keys that are due; first redate those from another era."""
        state = self._state
        due = nsmallest(count, ((us, place.encode()) for place, us in state.rest_us.items() if us <= self._now_us))
        for _, name in due:
            place = name.decode()
            kept = state.limits.get(place, _NOTHING)
            is_old = kept.since_us != state.since_us and kept.settings != ""
            limit = self._load(place, kept, kept.settings) if is_old else None
            if limit is not None:
                self._limits[place] = limit, kept.settings
                self._keep(place)
            else:
                state.key_penalties.pop(place, None)
                state.limits.pop(place, None)
                del state.rest_us[place]

    # The tickets.

    def _correct(self, call: TicketCall, limits: dict[str, SharedLimit], keys: dict[str, SharedLimit]) -> None:
        for each in call.corrections:
            limit = keys.get(each.key) if each.key else limits.get(each.limit)
            if limit is None:
                continue  # of another plan
            change = limit.give_back if each.cost > 0 else limit.add
            change(each.admitted_us, abs(each.cost), each.receipt)
            self._state.count += 1

    def _admit(
        self, call: TicketCall, by_name: dict[str, SharedLimit], by_key: dict[str, SharedLimit]
    ) -> list[Outcome]:
        """Decide on each run; then again, a little ahead, on the runs held back only by their keys."""
        allowance = self._allowance(call)
        asked = [_Asked(run, *self._limits_for(run, by_name, by_key.get(run.key))) for run in call.runs]
        total, is_hungry = 0, call.waiting > 0
        for ahead_us in (0, call.interval_us // _KEY_AHEAD):
            for each in asked:
                if ahead_us and (each.holder == "" or each.holder != each.run.key):
                    continue
                before = len(each.tickets)
                is_short = self._decide(each, call, ahead_us, allowance - total)
                total += len(each.tickets) - before
                if is_short:
                    is_hungry = is_hungry or each.at_us > 0
                    break
            else:
                continue
            break
        self._serve(call, total, is_hungry=is_hungry)
        return [Outcome(tuple(each.tickets), each.holder, each.at_us) for each in asked]

    def _limits_for(
        self, run: TicketRun, by_name: dict[str, SharedLimit], own: SharedLimit | None
    ) -> tuple[list[SharedLimit], list[str], list[int], SharedLimit | None]:
        """Return the limits that a ticket is charged to, their names and its costs, and its key's limit."""
        costs = dict(run.costs)
        counted = [each for each in self._state.plan if each.resource in costs]
        limits = [by_name[each.name] for each in counted]
        names = [each.name for each in counted]
        amounts = [costs[each.resource] for each in counted]
        if own is not None:
            limits.append(own)
            names.append(run.key)
            amounts.append(run.key_cost)
        return limits, names, amounts, own

    def _decide(self, asked: _Asked, call: TicketCall, ahead_us: int, allowance: int) -> bool:
        """Admit as many tickets of a run as possible; return True if it blocks the runs after it."""
        state, now_us, run = self._state, self._now_us, asked.run
        key_us = max(now_us, self._penalty_of(run.key)) if run.key else now_us
        begin_us = max(key_us, state.penalty_us)
        asked.holder, asked.at_us = "", 0
        given = 0
        while len(asked.tickets) < run.wanted:
            first = key_us if asked.own is None else asked.own.earliest(key_us, run.key_cost)
            if first is None or (first > now_us + ahead_us and first > asked.free_at(begin_us)):
                asked.holder, asked.at_us = run.key, first or 0
                return False
            is_behind = given >= allowance
            horizon_us = -1 if is_behind else now_us + call.interval_us
            decision = decide(asked.limits, asked.amounts, begin_us, horizon_us)
            if decision.receipts is None or decision.at_us is None:
                asked.at_us = decision.at_us or 0
                if is_behind and 0 < asked.at_us <= now_us + call.interval_us:
                    asked.holder, asked.at_us = FAIR_HOLDER, now_us + call.interval_us // 4
                else:
                    asked.holder = "penalty" if decision.holder is None else asked.names[decision.holder]
                return asked.own is None or decision.holder != len(asked.limits) - 1 or is_behind
            asked.tickets.append((decision.at_us, tuple(decision.receipts)))
            given += 1
            state.count += 1
        return False

    def _allowance(self, call: TicketCall) -> int:
        """Return how many tickets the peer may get ahead of hungry ones."""
        state = self._state
        for peer, until in list(state.hungry_us.items()):
            if until <= self._now_us:
                del state.hungry_us[peer], state.served[peer]
        number = self._now_us // call.interval_us
        if number != state.interval:
            state.started_before = state.started if number == state.interval + 1 else 0
            state.interval, state.started = number, 0
        rivals = [served for peer, served in state.served.items() if peer != call.peer]
        if not rivals:
            return 1 << 40
        lead = max(1, state.started, state.started_before) * _SERVED_UNIT
        own = state.served.get(call.peer, min(rivals))
        return max(0, min(rivals) + lead - own + _cost_of(call) - 1) // _cost_of(call)

    def _serve(self, call: TicketCall, count: int, *, is_hungry: bool) -> None:
        """Record the tickets of a peer, and that it is hungry if it wants more."""
        state = self._state
        state.started += count
        rivals = [served for peer, served in state.served.items() if peer != call.peer]
        own = state.served.get(call.peer, min(rivals, default=0)) + count * _cost_of(call)
        if is_hungry:
            state.served[call.peer] = own if rivals else 0
            state.hungry_us[call.peer] = self._now_us + _HUNGRY_INTERVALS * call.interval_us + _HUNGRY_US
        elif call.peer in state.served and call.runs:
            del state.served[call.peer], state.hungry_us[call.peer]


def _cost_of(call: TicketCall) -> int:
    """Return how much a ticket of a peer counts in its share."""
    return max(1, _SERVED_UNIT * 1000 // call.weight)


def _settings_of(call: TicketCall) -> dict[str, str]:
    """Return the settings of keys' limits; the last ones of a key with several."""
    return {run.key: run.settings for run in call.runs if run.key and run.settings}


def _field_of(kind: str, name: str, settings: str) -> str:
    """Return the field of a limit: by its law and its name, of a plan (``l``) or a key (``k``)."""
    return f"{kind}:{_LAWS.get(settings[:1], '')}{name}"
