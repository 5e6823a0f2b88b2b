"""Joint admission to the limits of a group: calls of peers, replies and rules, over plain values.

``peers/redis/tickets.lua`` has the same rules; one test suite covers both. The rules of each limit are in ``laws.py``.
The rules here keep those valid across processes, any of which may stop, and a server that may forget:

1. **All or nothing.** A ticket has costs in several resources, and under its key's limit. All these limits are charged
   at one time, or none: a refusal costs nothing. The time may lie ahead, up to the *horizon* of the limit that holds
   the ticket longest: so turns are reserved, and nobody polls.
2. **In the peer's order.** A run refused by a limit of the plan blocks the peer's later runs. A run refused by the
   limit of its key blocks those of that key.
3. **One plan.** The limits in force are those that a process has set last, or with which it has started.
4. **Time passes only if a peer vouches for it.** A call states the range of server times in which it may arrive, by a
   clock that its peer has compared with the server's, and since when the two have agreed. A call that arrives at
   another time has no effect: it is late, or the clock has stepped, which the peer then reports. After a gap that no
   such clock spans, an *era* begins, if there is anything to remember or a quarantine was not over. The clock of a
   machine, which no end of a process stops, spans a gap between two of its peers: each tells how far the server's clock
   is ahead of the machine's. If that differs by more than their errors and the drift, the server's clock was set. If
   it goes back by no more than the difference between two servers' clocks, time stands still here; if by more, an era
   begins. A call has a number: what it corrects is corrected once, however often it is heard, and if it is heard after a
   later one it gets nothing, as its peer no longer waits for the answer.
5. **An era** begins if the state is missing, incomplete or damaged; after a restart of the server, whose last writes
   may be lost; and if a peer has seen the clock step. Until its *quarantine* is over, nothing is admitted, so that
   earlier tickets have lapsed. The state of limits is *redated*: it counts as if everything had been used when
   the last of these could. So no unobserved time passes for it. Penalties end with the quarantine.
6. **Peers remember what the server forgets**, of limits whose state counts for longer than a quarantine lasts. Each
   reply contains the state of these, with a *serial*: the number of the last change. Numbers begin at the time in each
   era, so that they rise across a loss. In a quarantine the peers send the state back, and the latest of each limit is
   in force: it includes every ticket of a living peer, as each peer has remembered at least its own. A peer that leaves
   sends its copies, too. Tickets of a peer that was killed since, and that no other peer has heard of, are forgotten.
7. **Fair shares.** A peer that was refused, or whose tickets lie ahead, is *hungry* until it is expected back, and for
   a short while after. It is expected when it was told to ask again, or when half of what it got is due. What hungry
   peers were served is counted, by weight: none may be ahead of the mean of the others by more than its share of what
   can be reserved, as in start-time fair queueing (Goyal, Vin, Cheng, 1996). A peer that joins is level with the least
   served, so idleness earns no credit. There is one order for the limits of the plan and one for each key; a ticket is
   judged by the one that holds it longer, as two orders would block each other. Fairness wastes nothing: under a pace
   or a burst, where a time that passes is lost, a ticket is free for whoever asks if it comes before any other hungry
   peer is expected, or, beside one that is late, within the share of the near future. It counts like any other.
8. **Keys at rest leave nothing behind.** Each call forgets some that are due, and more than it adds.
9. **The load is bounded.** A reply says how long to wait before the next call: so long that the calls of all peers take
   a quarter of a core, as it comes near that.

A limit of another law is another limit, even under the same name or key: peers of two releases may differ in the law.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from ratelimited_executor._core.fleet.laws import SharedLimit, agreed_time, read_earlier, read_limit
from ratelimited_executor._core.fleet.limit_settings import (
    LimitSettings,
    PaceSettings,
    QuotaSettings,
    WindowSettings,
    life_of,
    read_settings,
)
from ratelimited_executor._core.fleet.memory import LEAD_US, Kept, Queue, TicketMemory, Turn, place_order
from ratelimited_executor._core.fleet.shares import UNIT, Share
from ratelimited_executor._core.fleet.ticket_calls import (
    AHEAD_MAX_US,
    CLOCK_HOLDER,
    FAIR_HOLDER,
    LAPSED_US,
    LimitState,
    PlanLimit,
    TicketCall,
    TicketOutcome,
    TicketReply,
    TicketRun,
)

__all__ = ["TicketAuthority", "places_of", "swept_count"]

_NEVER_US: Final = 1 << 53
_PROMPT_US: Final = 2_000  # a peer that is back so soon after it was expected, and a cycle, is not late
_EARLY_US: Final = 1_000  # a peer may be back by so much before it was told to, and is not refused for that
_LINGER_US: Final = 30_000  # for which a late peer is hungry that was served: it may want no more
_REFUSED_US: Final = 250_000  # for which a late peer is hungry that was refused
_CYCLES: Final = 2  # calls of the slowest hungry peer, in which all can reserve
_SWEPT: Final = 2  # keys forgotten in each call, and again for each key of the call
_UNREAD_US: Final = 86_400_000_000  # for which the copy of a key is kept without a request for it
_LAWS: Final = {"p": "p", "b": "g", "w": "w", "q": "q"}  # letters of settings: letters of their states
_SEEN_US: Final = 10_000_000  # for which a peer that does not call is known
_CALLING_US: Final = 1_000_000  # peers that have called in this time share the load
_CALL_US: Final = 60  # time of the server for a call
_LINE_US: Final = 10  # and for each run or ticket in it
_LOAD_US: Final = 250_000  # in which the load falls to the half
_LOAD_PART: Final = 4  # a quarter of a core


_NOTHING: Final = Kept(0, 0, "", "")


@dataclass(slots=True)
class _Asked:
    """A run in progress: the limits that it is charged to, their settings, names and costs, and its key's limit."""

    run: TicketRun
    limits: list[SharedLimit]
    settings: list[LimitSettings]
    names: list[str]
    amounts: list[int]
    own: SharedLimit | None
    tickets: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    holder: str = ""
    at_us: int = 0
    again_us: int = 0
    is_contended: bool = False

    def queue_at(self, place: int) -> str:
        """Return the name of the queue for a limit: the key's, or the plan's."""
        return self.run.key if self.own is not None and place == len(self.limits) - 1 else ""


class TicketAuthority:
    """Decides on the tickets of one executor's group.

    Args:
        memory: what is remembered; without it, everything may have been forgotten.
    """

    __slots__ = ("_flaw", "_is_damaged", "_limits", "_now_us", "_redated", "_state")

    _state: TicketMemory

    def __init__(self, memory: TicketMemory | None = None) -> None:
        if memory is not None:
            self._state = memory
        self._now_us = 0
        self._flaw = ""
        self._is_damaged = False
        self._limits: dict[str, tuple[SharedLimit, str]] = {}  # read in this call, with their settings
        self._redated: set[str] = set()  # of these, the ones from another era

    @property
    def memory(self) -> TicketMemory:
        """What it remembers, after a call."""
        return self._state

    def call(self, now_us: int, run: str, call: TicketCall) -> TicketReply:
        """Answer one call.

        Args:
            now_us: the server's clock.
            run: identifies the run of the server.
            call: the peer's call.
        """
        self._flaw = ""
        settings = _settings_of(call)
        is_vouched = self._go_on(now_us, run, call)
        state = self._state
        if call.is_new_plan or call.plan_id == state.plan_id or not state.plan_id:
            state.plan_id, state.plan = call.plan_id, call.plan
        if self._now_us < state.safe_us:
            self._adopt(call)
        limits, keys = self._read(settings)
        if self._is_damaged:
            self._begin_era(now_us, run, call)
            self._adopt(call)
            limits, keys = self._read(settings)
        for key, us in call.penalties:
            self._penalize(key, self._now_us + us)
        known_number = self._meet(call)
        is_awaited = is_vouched and call.number >= known_number
        outcomes = [TicketOutcome(holder="" if is_awaited else CLOCK_HOLDER) for _ in call.runs]
        if self._now_us >= state.safe_us:
            if call.era == self._era and call.number > known_number:
                self._correct(call, limits, keys)
            if is_awaited:
                outcomes = self._admit(call, settings, limits, keys)
        self._write(call, is_vouched=is_vouched)
        if is_vouched and self._now_us >= state.safe_us:
            self._sweep(now_us, swept_count(call))
        return TicketReply(
            now_us=now_us,
            era=self._era,
            quarantine_us=max(0, state.safe_us - self._now_us),
            plan_id=state.plan_id,
            penalty_us=state.penalty_us,
            gap_us=self._gap_of(outcomes),
            peers=sum(us >= self._now_us - _SEEN_US for us, _ in state.seen.values()),
            plan=() if state.plan_id == call.plan_id else state.plan,
            limits=tuple(self._told(each, limits[each.name], call) for each in state.plan),
            outcomes=tuple(
                outcome._replace(serial=kept.serial, text=kept.text)
                for run, outcome in zip(call.runs, outcomes, strict=True)
                for kept in [self._kept_of(run.key, settings.get(run.key, ""), call)]
            ),
            flaw=self._flaw,
        )

    def _told(self, each: PlanLimit, limit: SharedLimit, call: TicketCall) -> LimitState:
        kept = self._state.limits.get(_field_of("l", each.name, each.settings), _NOTHING)
        use = limit.use(self._now_us)
        return LimitState(
            each.name,
            each.resource,
            use.used,
            use.amount,
            use.until_us,
            _is_dated(_read(each.settings)),
            kept.serial,
            kept.text if use.until_us > self._now_us + call.quarantine_us else "",
        )

    def _kept_of(self, key: str, settings: str, call: TicketCall) -> Kept:
        """Return the stored form of a key's limit that is to be remembered, or an empty one."""
        place = _field_of("k", key, settings)
        if not settings or self._limits[place][0].use(self._now_us).until_us <= self._now_us + call.quarantine_us:
            return _NOTHING
        return self._state.limits.get(place, _NOTHING)

    def _meet(self, call: TicketCall) -> int:
        """Note who calls; return the number of the caller's latest call so far, -1 if there is none."""
        seen, now_us = self._state.seen, self._now_us
        _, number = seen.get(call.peer, (0, -1))
        seen[call.peer] = now_us, max(number, call.number)
        if call.number % 64 == 1:  # peers of short lives, too
            for peer in [peer for peer, (us, _) in seen.items() if us < now_us - _SEEN_US]:
                del seen[peer]
        return number

    def _gap_of(self, outcomes: list[TicketOutcome]) -> int:
        """Count the load of a call; return how long its peer is to wait before the next one."""
        state = self._state
        cost = _CALL_US + _LINE_US * sum(1 + len(each.tickets) for each in outcomes)
        state.load += cost
        mean = _LOAD_PART * state.load / _LOAD_US  # 1 at the load that is allowed
        if mean < 0.6:
            return 0
        calling = sum(us > self._now_us - _CALLING_US for us, _ in state.seen.values())
        return int(calling * cost * _LOAD_PART * min(1.0, (mean - 0.6) / 0.4))

    # The state.

    @property
    def _era(self) -> str:
        return f"{self._state.run}:{self._state.since_us}"

    def _go_on(self, now_us: int, run: str, call: TicketCall) -> bool:
        """Advance time, or begin an era; return True if the caller vouches for the time."""
        is_first = not hasattr(self, "_state")
        if is_first:
            self._state = TicketMemory(run, 0, now_us, now_us, now_us)
        state = self._state
        is_vouched = call.since_us > 0 and call.earliest_us <= now_us <= call.latest_us
        is_gap = is_vouched and now_us - state.last_us > call.quarantine_us // 2 and call.since_us > state.last_us
        is_gap = is_gap and max(state.until_us, state.safe_us) > state.last_us and not state.is_spanned(now_us, call)
        is_step = state.last_us > now_us + call.difference_us or (call.has_jumped and call.era == self._era)
        if is_first or run != state.run or is_step or is_gap:
            self._begin_era(now_us, run, call)
        self._now_us = max(now_us, state.last_us)
        state.load = state.load * _LOAD_US // (_LOAD_US + self._now_us - state.last_us)
        if is_vouched:
            state.last_us, state.machine = self._now_us, (call.machine, call.offset_us, call.error_us)
        return is_vouched

    def _begin_era(self, now_us: int, run: str, call: TicketCall) -> None:
        state = self._state
        state.run, state.last_us, state.safe_us = run, now_us, now_us + call.quarantine_us
        state.machine = "", 0, 0  # it says nothing of this time
        state.lapsed_us = now_us + min(LAPSED_US, call.quarantine_us)
        self._now_us = now_us
        state.since_us = max(now_us, state.since_us + 1)
        if call.era == self._era:  # lost at the time at which it began, by a clock that went back
            state.since_us += 1
        state.count = max(now_us, state.count)
        state.penalty_us = min(state.penalty_us, state.safe_us)

    def _adopt(self, call: TicketCall) -> None:
        """Adopt the caller's copies that are newer."""
        state = self._state
        for copy in call.copies:
            place = f"{'k' if copy.is_key else 'l'}:{copy.text[:1]}{copy.name}"
            if copy.text and copy.serial > state.limits.get(place, _NOTHING).serial:
                state.limits[place] = Kept(0, copy.serial, "", copy.text)
                if copy.is_key:
                    state.rest_us[place] = self._now_us + _UNREAD_US
            state.count = max(state.count, copy.serial)

    def _read(self, settings: dict[str, str]) -> tuple[dict[str, SharedLimit], dict[str, SharedLimit]]:
        """Read the limits of the plan in force and those of keys, by name."""
        self._limits, self._redated, self._is_damaged = {}, set(), False
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
            found = read_limit(settings, "", state.last_us)
            assert found is not None, settings  # peers send sound settings
        self._limits[place] = found, settings
        return found

    def _load(self, place: str, kept: Kept, settings: str) -> SharedLimit | None:
        """Make a limit from its stored form; None if that is not sound."""
        is_old = kept.since_us != self._state.since_us and kept.text != ""
        if not is_old:
            return read_limit(settings, kept.text, self._state.last_us)  # nothing has passed that nobody vouches for
        found = read_earlier(settings, kept.text, self._state.lapsed_us)
        if found is not None:
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

    def _write(self, call: TicketCall, *, is_vouched: bool) -> None:
        """Store changed limits, and delete those of keys at rest."""
        for place in self._limits:
            self._keep(place, is_vouched=is_vouched)
        for key in {run.key for run in call.runs if run.key}:
            self._state.note_queue(key)

    def _keep(self, place: str, *, is_vouched: bool = True) -> None:
        state, (limit, settings) = self._state, self._limits[place]
        kept = state.limits.get(place, _NOTHING)
        is_key = place.startswith("k:")
        if is_key and is_vouched and limit.is_at_rest(self._now_us):
            state.limits.pop(place, None)
            state.rest_us.pop(place, None)
        elif limit.is_changed or place in self._redated or (is_key and kept.text and settings != kept.settings):
            serial = state.count if limit.is_changed else kept.serial
            state.limits[place] = Kept(state.since_us, serial, settings if is_key else "", limit.write())
            made, rest_us = read_settings(settings), limit.use(self._now_us).until_us
            if isinstance(made, QuotaSettings):
                rest_us = made.next_end_us + made.late_us
            state.until_us = max(state.until_us, rest_us)
            if is_key:
                state.rest_us[place] = rest_us

    def _sweep(self, now_us: int, count: int) -> None:
        """Forget some keys that are due; first redate those from another era."""
        state = self._state
        due = nsmallest(count, ((us, place) for place, us in state.rest_us.items() if us <= now_us), key=place_order)
        for _, place in due:
            kept = state.limits.get(place, _NOTHING)
            is_old = kept.since_us != state.since_us and kept.settings != ""
            limit = self._load(place, kept, kept.settings) if is_old else None
            if limit is not None:
                self._limits[place] = limit, kept.settings
                self._keep(place)
            else:
                state.forget(place)

    # The tickets.

    def _correct(self, call: TicketCall, limits: dict[str, SharedLimit], keys: dict[str, SharedLimit]) -> None:
        for report in call.reports:
            limit = keys.get(report.key) if report.key else limits.get(report.limit)
            if limit is not None:
                limit.report(report.start_us, report.cost, report.receipt)
                self._state.count += 1
        for correction in call.corrections:
            limit = keys.get(correction.key) if correction.key else limits.get(correction.limit)
            if limit is None:
                continue  # of another plan
            if correction.cost > 0:
                limit.give_back(
                    correction.admitted_us, correction.cost, correction.receipt, is_whole=correction.is_whole
                )
            else:
                limit.add(correction.admitted_us, -correction.cost, correction.receipt)
            self._state.count += 1

    def _admit(
        self,
        call: TicketCall,
        settings: dict[str, str],
        by_name: dict[str, SharedLimit],
        by_key: dict[str, SharedLimit],
    ) -> list[TicketOutcome]:
        """Decide on each run that no earlier one blocks."""
        outcomes: list[TicketOutcome] = []
        refused: dict[str, _Asked] = {}  # the runs that were refused, by what they block: a key's later runs, or all
        for run in call.runs:
            asked = self._asked(run, by_name, by_key.get(run.key), settings.get(run.key, ""))
            life_us = life_of(asked.settings, call.life_us)
            first = refused.get("") or refused.get(run.key)
            if first is not None and run.wanted:
                asked.holder, asked.at_us, asked.again_us = first.holder, first.at_us, first.again_us
                asked.is_contended = True
            elif run.wanted:
                queue = self._decide(asked, call, life_us)
                if queue is not None:
                    refused[queue] = asked
            outcomes.append(
                TicketOutcome(
                    tuple(asked.tickets), life_us, asked.holder, asked.at_us, asked.again_us, asked.is_contended
                )
            )
        return outcomes

    def _asked(self, run: TicketRun, by_name: dict[str, SharedLimit], own: SharedLimit | None, key: str) -> _Asked:
        """Return a run with the limits that a ticket is charged to."""
        costs = dict(run.costs)
        counted = [each for each in self._state.plan if each.resource in costs]
        asked = _Asked(
            run,
            [by_name[each.name] for each in counted],
            [_read(each.settings) for each in counted],
            [each.name for each in counted],
            [costs[each.resource] for each in counted],
            own,
        )
        if own is not None:
            asked.limits.append(own)
            asked.settings.append(_read(key))
            asked.names.append(run.key)
            asked.amounts.append(run.key_cost)
        return asked

    def _decide(self, asked: _Asked, call: TicketCall, life_us: int) -> str | None:
        """Admit as many tickets of a run as possible; return the queue that refuses the rest, None if none does."""
        state, now_us, run = self._state, self._now_us, asked.run
        penalty_us = self._penalty_of(run.key) if run.key else 0
        begin_us = max(now_us + call.after_us, state.penalty_us, penalty_us)
        longest = self._longest(asked)
        share = self._share(asked, longest, call)
        unit = _unit_of(call)
        refused = ""  # the queue in which the peer is hungry from now on
        is_refused = False
        while len(asked.tickets) < run.wanted:
            when, place = agreed_time(asked.limits, asked.amounts, begin_us)
            if when is None or when > min([_NEVER_US, *(limit.foreseen_us for limit in asked.limits)]):
                asked.holder, asked.at_us = asked.names[place or 0], when or 0
                asked.again_us = min(when, now_us + LEAD_US) if when else 0
                return asked.queue_at(place or 0)
            if when > now_us:
                place = self._holder(asked)
                horizon_us = self._horizon(asked, place, call)
                if when > now_us + horizon_us:
                    is_refused = True
                    asked.holder = "penalty" if place is None else asked.names[place]
                    asked.at_us = turn_us = when
                    if place is not None:
                        refused = asked.queue_at(place)
                        turn_us = max(when, self._turn_of(asked, place, when, call))
                    elif penalty_us > max(now_us, state.penalty_us):  # of the key
                        asked.holder = refused = run.key
                    asked.again_us = turn_us - horizon_us + (0 if refused else _EARLY_US)
                    break
            if share is not None and share.served + unit > share.most and when >= share.free_us:
                is_refused, refused = True, asked.queue_at(share.place)
                asked.holder, asked.at_us = refused or FAIR_HOLDER, 0
                asked.again_us = share.again_us(unit, when, now_us)
                break
            receipts = [
                limit.take(when, cost, life_us) for limit, cost in zip(asked.limits, asked.amounts, strict=True)
            ]
            asked.tickets.append((when, tuple(receipts)))
            state.count += 1
            if share is not None:
                share.served += unit
        queue = refused if is_refused else None
        self._serve(asked, longest, share, call, refused=queue)
        asked.is_contended = is_refused or share is not None or self._is_busy(asked)
        return queue

    def _longest(self, asked: _Asked) -> dict[str, tuple[int, int]]:
        """Return the limit of each queue that alone would hold a ticket longest, as (time, place)."""
        longest: dict[str, tuple[int, int]] = {}
        for place, (limit, cost) in enumerate(zip(asked.limits, asked.amounts, strict=True)):
            when = limit.earliest(self._now_us, cost)
            queue = asked.queue_at(place)
            rank = _NEVER_US if when is None else when, place
            if queue not in longest or rank[0] > longest[queue][0]:
                longest[queue] = rank
        return longest

    def _holder(self, asked: _Asked) -> int | None:
        """Return the limit that holds a ticket longest, after those that hold it before; None if none does."""
        when, longest, holder = self._now_us, 0, None
        while True:
            times = [
                limit.earliest(when, cost) or when for limit, cost in zip(asked.limits, asked.amounts, strict=True)
            ]
            latest = max(times, default=when)
            if latest - when <= longest:
                return holder
            when, longest, holder = latest, latest - when, times.index(latest)

    def _is_busy(self, asked: _Asked) -> bool:
        """True if a limit that counts starts by their time is more than half used."""
        return any(
            2 * use.used > use.amount
            for limit, settings in zip(asked.limits, asked.settings, strict=True)
            if _is_dated(settings)
            for use in [limit.use(self._now_us)]
        )

    # Fair shares.

    def _queue(self, name: str) -> Queue | None:
        """Return a queue of this era; None if nobody was hungry there."""
        queue = self._state.queues.get(name)
        return queue if queue is not None and queue.since_us == self._state.since_us else None

    def _share(self, asked: _Asked, longest: dict[str, tuple[int, int]], call: TicketCall) -> Share | None:
        """Return the share of a peer in the queue that holds it longest; None if no other is hungry."""
        found: tuple[int, Share] | None = None
        for name, (when, place) in longest.items():
            queue = self._queue(name)
            if queue is None:
                continue
            others = [queue.turns[peer] for peer in queue.hungry(self._now_us) if peer != call.peer]
            if others and (found is None or when > found[0]):
                found = when, self._share_of(queue, others, place, asked, call)
        return found[1] if found else None

    def _share_of(self, queue: Queue, others: list[Turn], place: int, asked: _Asked, call: TicketCall) -> Share:
        settings, hungry_count = asked.settings[place], len(others) + 1
        gap_us = settings.gap_us * max(1, asked.amounts[place])
        cycle_us = max(call.cycle_us, *(turn.cycle_us for turn in others))
        near_us = max(call.ahead_us, _CYCLES * cycle_us)
        share = max(UNIT, near_us * UNIT / gap_us / hungry_count)
        if not isinstance(settings, PaceSettings):
            use = asked.limits[place].use(self._now_us)
            share = max(share, (use.amount - use.used) / max(1, asked.amounts[place]) * UNIT / hungry_count)
        lead = max(share, LEAD_US * UNIT / gap_us / hungry_count)
        least = min(turn.served for turn in others)
        mean = sum(turn.served for turn in others) / len(others)
        queue.virtual = max(queue.virtual, least)
        turn = queue.turns.get(call.peer)
        is_new = turn is None or turn.until_us < self._now_us
        served = max(turn.served if turn else 0, queue.virtual - (UNIT if is_new else int(lead)))
        free_us = 0
        if not isinstance(settings, WindowSettings | QuotaSettings):
            late_us = self._now_us + near_us // hungry_count
            free_us = min(late_us if each.back_us < self._now_us else each.back_us for each in others)
        return Share(
            queue, place, hungry_count, min(served, int(mean + lead)), mean + share, gap_us, cycle_us, others, free_us
        )

    def _serve(
        self,
        asked: _Asked,
        longest: dict[str, tuple[int, int]],
        share: Share | None,
        call: TicketCall,
        *,
        refused: str | None,
    ) -> None:
        """Record in each queue what a peer was served, and when it is back; begin one where it was refused, or waits."""
        queues, given = self._state.queues, len(asked.tickets) * _unit_of(call)
        back_us, hungry = max(self._now_us, asked.again_us), refused
        if asked.tickets:
            first_us, last_us = asked.tickets[0][0], asked.tickets[-1][0]
            back_us = (first_us + last_us) // 2
            if hungry is None and last_us > self._now_us:
                hungry = max(longest, key=lambda name: longest[name][0], default=None)
        back_us += call.cycle_us + _PROMPT_US
        until_us = back_us + (_LINGER_US if refused is None else _REFUSED_US)
        for name in longest:
            queue = self._queue(name)
            if queue is None:
                if hungry != name:
                    continue
                queue = queues[name] = Queue(self._state.since_us)
            turn = queue.turns.get(call.peer)
            is_alone = not [peer for peer in queue.hungry(self._now_us) if peer != call.peer]
            if share is not None and share.queue is queue:
                served = share.served
            else:
                served = max(turn.served if turn else 0, queue.virtual) + given
                if is_alone:
                    queue.virtual = max(queue.virtual, served)  # nobody pays later for what nobody else wanted
            if queue.turns or hungry == name:
                queue.turns[call.peer] = Turn(served, until_us, call.cycle_us, back_us)
            elif name:
                del queues[name]

    def _turn_of(self, asked: _Asked, place: int, when_us: int, call: TicketCall) -> int:
        """Return when a limit may admit a ticket to a peer, after one of cost 1 to each hungry peer before it.

        What their next tasks cost is not known. To be back too soon costs a call; to be back too late, what is free until
        then: the others wait for this peer.
        """
        settings, count = asked.settings[place], self._before(asked.queue_at(place), call.peer)
        if not isinstance(settings, WindowSettings):
            return when_us + count * settings.gap_us
        # What was started together leaves the window together.
        rounds, rest = divmod(count + max(1, asked.amounts[place]) - 1, max(1, settings.amount))
        return (asked.limits[place].earliest(self._now_us, rest + 1) or 0) + rounds * settings.width

    def _before(self, name: str, peer: str) -> int:
        """Count the hungry peers of a queue that are served before a peer."""
        queue = self._queue(name)
        if queue is None:
            return 0
        mine, count, is_past = queue.turns.get(peer), 0, False
        served = mine.served if mine else queue.virtual
        for other in queue.hungry(self._now_us):
            is_past = is_past or other == peer
            theirs = queue.turns[other].served
            count += other != peer and (theirs < served or (theirs == served and not is_past))
        return count

    def _horizon(self, asked: _Asked, place: int | None, call: TicketCall) -> int:
        """Return how far ahead a ticket held by a limit may be admitted."""
        if place is None:
            return min(call.ahead_us + call.after_us, AHEAD_MAX_US)
        settings = asked.settings[place]
        queue = self._queue(asked.queue_at(place))
        count = 1 if queue is None else len({call.peer, *queue.turns})
        far = max(call.ahead_us * (1 if count < 2 else 2), 3 * count * settings.gap_us, 3 * call.cycle_us // 2)
        if isinstance(settings, WindowSettings):
            far = min(far, max(call.ahead_us, settings.width // 2))
        return min(far + call.after_us, AHEAD_MAX_US)


def _unit_of(call: TicketCall) -> int:
    """Return how much a ticket of a peer counts in its share."""
    return max(1, UNIT * 1000 // call.weight)


def _read(settings: str) -> LimitSettings:
    found = read_settings(settings)
    assert found is not None, settings  # peers send sound settings
    return found


def _is_dated(settings: LimitSettings) -> bool:
    """True if a limit counts starts by their time."""
    return isinstance(settings, WindowSettings) or (isinstance(settings, PaceSettings) and settings.amount > 0)


def _settings_of(call: TicketCall) -> dict[str, str]:
    """Return the settings of keys' limits; the last ones of a key with several."""
    return {run.key: run.settings for run in call.runs if run.key and run.settings}


def swept_count(call: TicketCall) -> int:
    """Return how many places a call forgets at most."""
    return _SWEPT * (1 + len({run.key for run in call.runs if run.key}))


def places_of(call: TicketCall) -> set[str]:
    """Return the places of keys that a call may need."""
    keys = {run.key for run in call.runs if run.key}.union(key for key, _ in call.penalties if key)
    limits = {_field_of("k", key, settings) for key, settings in _settings_of(call).items()}
    copies = {f"k:{copy.text[:1]}{copy.name}" for copy in call.copies if copy.is_key}
    return limits.union(copies, (f"{kind}:{key}" for key in keys for kind in "pq"))


def _field_of(kind: str, name: str, settings: str) -> str:
    """Return the field of a limit: by its law and its name, of a plan (``l``) or a key (``k``)."""
    return f"{kind}:{_LAWS.get(settings[:1], '')}{name}"
