"""Joint admission to the limits of a group: the calls of peers, the replies, and the rules, over plain values.

``peers/redis/tickets.lua`` has the same rules; one suite of tests holds for both. Those of each limit stand in ``laws.py``.
Here is what it takes that they hold between processes, any of which may stop, and a server that may forget:

1. **All or nothing.** A ticket costs something of several resources, of its key too. It is taken of all their limits at
   one time, or of none: a refusal costs nothing. The time may lie in the near future, up to a grant interval ahead.
2. **In the peer's order.** What a limit of all refuses stands before what the peer asks for after it. What the limit of a
   key refuses does not; and it is admitted ahead of its key's time where the plan has no room before that, or after all
   others and by a tenth of an interval at most: what is admitted later moves all that come behind it.
3. **One plan.** The limits in force are those that a process has set last, by its start too.
4. **Time passes as somebody vouches for.** A call tells between which times of the server it may be heard, by a clock
   that its peer has compared with the server's, and since when the two have agreed. Heard at another time nothing comes
   of it: it is late, or the clock has stepped, of which the peer is to tell. After a gap that no such clock spans, an *era*
   begins, as long as there is anything to remember, or a quarantine was not over. Where the server's clock is back by no more than the clocks of two
   servers differ, it stands still here; by more, an era begins.
5. **An era** begins where the state is not there, or not whole, or damaged; where the server is another run, whose last
   writes may be lost; and where a peer has seen the clock step. Until its *quarantine* is over nothing is admitted, so
   that tickets of before have lapsed. What limits remember is *redated*: it counts as if it had all been used as the
   quarantine ends. So no unseen time passes for it. Penalties are over with it.
6. **Peers remember what the server forgets.** Each reply tells what the limits remember, with a *serial*: the number of
   the last change. Numbers begin at the time in each era, so that they rise over a loss. In a quarantine the peers tell it back, and the latest of each limit is in force: it knows of every ticket
   that a living peer has got, as each of them has remembered more than that. Who leaves tells what it remembers, too. What
   a peer got that was killed since, and of which nobody else has heard, is forgotten.
7. **Fair shares.** A peer that was refused for want of room is *hungry*, for two intervals and a second at most. Another may be ahead
   of the hungry peer that was served least by what the group starts in an interval, and no more. Who was idle starts
   beside it: as in start-time fair queueing (Goyal, Vin, Cheng, 1996), where idleness saves up nothing.
8. **Keys that rest leave nothing behind.** Each call forgets some whose time has come, and more than it brings.

A limit of another law is another limit, though it has the same name, and so is a key's: peers of two releases may differ
in it.
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
"""What holds a ticket back that is refused because others are to be served first."""

CLOCK_HOLDER: Final = "clock"
"""What holds a ticket back that is asked for at a time that nobody vouches for."""

_REDATED_US: Final = 1 << 52  # the present, for a state of another era: all its times are before it
_SERVED_UNIT: Final = 1000  # of a ticket at weight 1
_KEY_AHEAD: Final = 10  # of an interval, by so many parts a ticket may be ahead of its key's time
_HUNGRY_INTERVALS: Final = 2
_SWEPT: Final = 2  # keys that are forgotten in a call, and for each key of it
_UNREAD_US: Final = 86_400_000_000  # for which a key's copy is kept that nobody asks for
_LAWS: Final = {"p": "g", "b": "g", "w": "w", "q": "q"}  # of settings, by their letters: letters of states
_HUNGRY_US: Final = 1_000_000  # and as long: by when it calls again, however far away what it waits for is


class PlanLimit(NamedTuple):
    """One limit of a plan.

    Attributes:
        name: tells it from the others of the plan, and is the same in all processes and after a change of its amount.
        resource: what it counts.
        settings: its text, of ``laws.py``.
    """

    name: str
    resource: str
    settings: str


class TicketRun(NamedTuple):
    """Tickets that need the same.

    Attributes:
        wanted: how many.
        costs: of each, as (resource, cost > 0).
        key: whose limit counts as well; empty for none.
        settings: of the key's limit; empty if it has none, but for penalties.
        key_cost: what each costs of it.
    """

    wanted: int
    costs: tuple[tuple[str, int], ...]
    key: str = ""
    settings: str = ""
    key_cost: int = 1


class Correction(NamedTuple):
    """What a ticket did not use, or what it cost beyond what it took.

    Attributes:
        limit: the name of a limit; of a key if that is not empty.
        key: whose limit.
        admitted_us: the ticket's time.
        cost: given back; below 0, charged.
        receipt: the limit's, of that ticket.
    """

    limit: str
    key: str
    admitted_us: int
    cost: int
    receipt: int


class LimitCopy(NamedTuple):
    """What a limit remembers, as a reply told it.

    Attributes:
        name: of the limit, or the key.
        is_key: True if it is a key's.
        serial: the number of its last change.
        text: what it remembered.
    """

    name: str
    is_key: bool
    serial: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketCall:
    """What a peer asks for one executor.

    Attributes:
        peer: who calls.
        weight: its part where not all is enough for all, in thousandths, >= 1.
        era: the last that it was told of; empty before.
        since_us: since when its clock has agreed with the server's, by that; 0 if it is not known yet.
        earliest_us: by the server's clock, when this may be heard first ...
        latest_us: ... and last.
        interval_us: how far ahead a ticket may be admitted.
        difference_us: by which the clocks of two servers differ at most.
        quarantine_us: how long nothing is admitted in a new era; longer than all tickets of before are valid.
        has_jumped: True if the server's clock has stepped in this era.
        plan_id: names the peer's plan.
        plan: its limits.
        is_new_plan: True if it is to be put in force.
        penalties: (key, how long nothing starts), for all if the key is empty.
        corrections: of tickets of this era.
        copies: what the peer remembers, in a quarantine.
        runs: what it asks for, in order; for a correction of a key a run of no tickets tells its settings.
        waiting: how many tickets more it could use at once.
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
        resource: what it counts.
        used: how much of it is used.
        amount: what it admits.
        until_us: when all of that is free again; if it is over, the limit remembers nothing.
        serial: the number of its last change.
        text: what it remembers.
    """

    name: str
    resource: str
    used: int
    amount: int
    until_us: int
    serial: int
    text: str


class Outcome(NamedTuple):
    """What has become of a run.

    Attributes:
        tickets: of each that is admitted its time, and the receipts: of the limits of the plan that count what it costs, in
            the plan's order, and of the key's.
        holder: the name of the limit that has refused the next one, ``FAIR_HOLDER``, ``CLOCK_HOLDER``, or the key's; empty
            if none was.
        at_us: when it could be admitted; 0 if that is not known, or never.
        serial: of the key's limit, as in :class:`LimitState`; 0 without one.
        text: what that remembers.
    """

    tickets: tuple[tuple[int, tuple[int, ...]], ...] = ()
    holder: str = ""
    at_us: int = 0
    serial: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketReply:
    """What the authority answers.

    Attributes:
        now_us: the server's clock, in microseconds since the epoch.
        era: another one means that tickets of before are void.
        quarantine_us: how long nothing is admitted yet.
        plan_id: of the plan in force.
        penalty_us: before that nothing is admitted.
        limits: those in force.
        outcomes: of each run.
        flaw: ``state`` if what was there could not be believed; else empty.
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
    """The stored form of a limit: the beginning of its era, 0 for a copy; serial, settings and text."""

    since_us: int
    serial: int
    settings: str
    text: str


_NOTHING: Final = _Kept(0, 0, "", "")


@dataclass(slots=True)
class _State:
    """All that the authority of one executor remembers."""

    run: str
    since_us: int
    last_us: int
    safe_us: int
    count: int = 0
    penalty_us: int = 0
    until_us: int = 0  # when all limits are at rest
    plan_id: str = ""
    plan: tuple[PlanLimit, ...] = ()
    limits: dict[str, _Kept] = field(default_factory=dict)  # by fields, as of all below
    key_penalties: dict[str, tuple[int, int]] = field(default_factory=dict)  # of the era that began then, until when
    rest_us: dict[str, int] = field(default_factory=dict)  # when a key is at rest
    served: dict[str, int] = field(default_factory=dict)  # of hungry peers
    hungry_us: dict[str, int] = field(default_factory=dict)  # until when they are
    interval: int = 0  # the number of the running one
    started: int = 0  # tickets of it ...
    started_before: int = 0  # ... and of the one before


@dataclass(slots=True)
class _Asked:
    """A run that is decided on, the limits that it is taken of, with their names and its costs, and that of its key."""

    run: TicketRun
    limits: list[SharedLimit]
    names: list[str]
    amounts: list[int]
    own: SharedLimit | None
    tickets: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    holder: str = ""
    at_us: int = 0

    def free_at(self, begin_us: int) -> int:
        """Return when the limits of the plan admit a ticket; until then its key blocks no other. 0, if they never do."""
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
        self._limits: dict[str, tuple[SharedLimit, str]] = {}  # that this call has read, with their settings
        self._redated: set[str] = set()  # those of them that were of another era

    def call(self, now_us: int, run: str, call: TicketCall) -> TicketReply:
        """Answer one call.

        Args:
            now_us: the server's clock.
            run: tells its runs apart.
            call: what a peer asks.
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
        """Return what is stored of the key's limit, if it has one."""
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
        """Take over what the caller remembers, where it knows more."""
        state = self._state
        for copy in call.copies:
            place = f"{'k' if copy.is_key else 'l'}:{copy.text[:1]}{copy.name}"
            if copy.text and copy.serial > state.limits.get(place, _NOTHING).serial:
                state.limits[place] = _Kept(0, copy.serial, "", copy.text)
                if copy.is_key:
                    state.rest_us[place] = self._now_us + _UNREAD_US
            state.count = max(state.count, copy.serial)

    def _read(self, call: TicketCall) -> tuple[dict[str, SharedLimit], dict[str, SharedLimit]]:
        """Read the limits of the plan in force, and of keys, by their names."""
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
        """Read a limit, redated if it is of another era; at rest if there is nothing to believe."""
        state = self._state
        if place in self._limits:
            return self._limits[place][0]
        kept = state.limits.get(place, _NOTHING)
        found = self._load(place, kept, settings)
        if found is None:
            self._flaw = "state"
            self._is_damaged = self._is_damaged or kept.since_us > 0  # not for a copy, which others may tell again
            del state.limits[place]
            state.rest_us.pop(place, None)
            found = read_limit(settings, "", self._now_us)
            assert found is not None, settings  # peers send what is sound
        self._limits[place] = found, settings
        return found

    def _load(self, place: str, kept: _Kept, settings: str) -> SharedLimit | None:
        """Make a limit of what is kept; None if that is not sound."""
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
        """Return before when nothing of a key is admitted."""
        since_us, until_us = self._state.key_penalties.get(f"p:{key}", (0, 0))
        return until_us if since_us == self._state.since_us else 0

    def _write(self, *, is_vouched: bool) -> None:
        """Keep what has changed; of keys that are at rest, nothing."""
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
        """Forget some keys whose time has come, unless that was of another era."""
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
        """Decide on each run; runs that only their keys hold back are examined again, a little ahead, after all others."""
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
        """Return the limits that a ticket is taken of, with their names and its costs, and that of its key."""
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
        """Admit what may be of a run; return whether it stands before the runs after it."""
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
        """Return how many tickets the peer may get before others that are hungry."""
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
        """Record what a peer has got, and whether it wants more."""
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
    """Return what a ticket of a peer counts in its share."""
    return max(1, _SERVED_UNIT * 1000 // call.weight)


def _settings_of(call: TicketCall) -> dict[str, str]:
    """Return the settings of keys' limits; those that a call tells last, if it tells several."""
    return {run.key: run.settings for run in call.runs if run.key and run.settings}


def _field_of(kind: str, name: str, settings: str) -> str:
    """Return where a limit is stored: by its law and its name, of a plan (``l``) or a key (``k``)."""
    return f"{kind}:{_LAWS.get(settings[:1], '')}{name}"
