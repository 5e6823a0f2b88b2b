"""The starts that a peer's tickets allow, and the return of unused parts.

To the queue, they are one limit for each resource. A ticket is requested because a task needs it, but belongs to no
task: the first task to start uses it. Its parts count at the ticket's own time, so a start may use parts of several
tickets and leave others.

A part may be used from the ticket's time until the end of its life, both judged by every time that the authority's
clock may show now. Parts that are left then are given back. Parts that are used are reported, with the latest time by
which their starts may have been, so that limits that count starts by their time need not count them any later.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ratelimited_executor._core.fleet.claims import PermitClaim
from ratelimited_executor._core.fleet.ticket_calls import Correction
from ratelimited_executor._core.limits.combined import CombinedPermits
from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._core.permits.exact import CALL_NS
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._kernel.admission import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction
    from typing import Self

    from ratelimited_executor._core.fleet.clock import ServerClock
    from ratelimited_executor._core.limits.effects import Effects

__all__ = ["BudgetLimit", "BudgetPermits", "HeldTicket", "KeyBudgetLimit", "TicketBudget"]

_CORRECTIONS_MAX: Final = 10_000  # waiting to be sent; beyond that the oldest are lost


@dataclass(slots=True, eq=False)
class HeldTicket:
    """A ticket granted to this peer.

    Attributes:
        at_us: the earliest time of use, by the authority's clock.
        until_us: the latest time of use.
        left: the unused amount of each resource.
        receipts: of each limit, as (name, resource, receipt, whether starts are to be reported).
        key: of the tasks that may start by it; empty for tasks without a key.
        key_settings: of the key's limit.
        key_cost: its cost under the key's limit; 0 once it is used.
        key_receipt: of the key's limit.
        is_key_dated: True if starts are to be reported to the key's limit.
        is_key_reported: True once its start is.
        is_used: True once a start has used a part of it.
        drops: how often the peer had dropped its tickets before this one; once more, and nothing of it goes back.
    """

    at_us: int
    until_us: int
    left: dict[str, int]
    receipts: tuple[tuple[str, str, int, bool], ...]
    key: str = ""
    key_settings: str = ""
    key_cost: int = 0
    key_receipt: int = 0
    is_key_dated: bool = False
    is_key_reported: bool = False
    is_used: bool = False
    drops: int = 0


class TicketParts(list[list[Any]]):
    """The parts of tickets that a start has used, as [ticket, amount].

    Attributes:
        is_reported: True once its start is.
    """

    is_reported = False


class TicketBudget:
    """The tickets that a peer holds.

    Args:
        clock: the authority's.
        is_clock_whole: returns True while our own clock has run without a break; otherwise no ticket is usable.

    Attributes:
        corrections: to be sent to the authority.
        corrected: settings of the keys that have corrections or reports.
        reports: starts to be reported: of each (limit, key, receipt), the latest time of a start and the cost.
        next_us: when the next ticket may come, by the authority's clock; 0 if not known.
        sharing_count: how many peers share what the limits allow.
        slowest: by resource, the most in a second, if another process has set the limits in force.
        used_count: permits of tickets that were used.
        lapsed_count: permits of tickets that were not used in time.
        generation: grows whenever earlier tickets become void.
        is_usable: ``is_clock_whole``.
        on_use: called when a ticket is used.
    """

    __slots__ = (
        "_begun",
        "_clock",
        "_coming",
        "_coming_keys",
        "_drops",
        "_keys",
        "_looked_ns",
        "_open",
        "_sums",
        "corrected",
        "corrections",
        "generation",
        "is_usable",
        "lapsed_count",
        "next_us",
        "on_use",
        "reports",
        "sharing_count",
        "slowest",
        "used_count",
    )  # fmt: skip

    def __init__(self, clock: ServerClock, *, is_clock_whole: Callable[[], bool] = lambda: True) -> None:
        self._clock = clock
        self.is_usable = is_clock_whole
        self.generation = 0
        self._drops = 0  # how often all tickets were dropped
        self._looked_ns = 0  # the time of the last look
        self.on_use: Callable[[], None] = _nothing
        self._begun: deque[tuple[tuple[str, Any], int]] = (
            deque()
        )  # starts that have taken effect: receipt, time of ours
        self._coming: list[HeldTicket] = []  # by time
        self._open: list[HeldTicket] = []  # usable now, by the end of their lives
        self._sums: Counter[str] = Counter()  # the unused amounts of the open tickets
        self._keys: dict[str, list[HeldTicket]] = {}  # the open tickets that may start a task of a key, by cost
        self.corrections: deque[Correction] = deque(maxlen=_CORRECTIONS_MAX)
        self._coming_keys: dict[str, list[HeldTicket]] = {}  # and of the coming ones, by time
        self.corrected: dict[str, str] = {}
        self.reports: dict[tuple[str, str, int], list[int]] = {}
        self.next_us = 0
        self.sharing_count = 1
        self.slowest: dict[str, Fraction] = {}
        self.used_count = 0
        self.lapsed_count = 0

    def hold(self, ticket: HeldTicket) -> None:
        """Add a ticket."""
        ticket.drops = self._drops
        insort(self._coming, ticket, key=_at_of)
        if ticket.key_cost:
            insort(self._coming_keys.setdefault(ticket.key, []), ticket, key=_at_of)

    def drop(self) -> None:
        """Drop all tickets and corrections: they are void, and tickets of starts that have not taken effect."""
        self._clear()
        self.generation += 1
        self._drops += 1
        self._begun.clear()
        self.corrections.clear()
        self.corrected.clear()
        self.reports.clear()

    def return_all(self) -> None:
        """Give back all tickets, and drop those of starts that have not taken effect: other limits are in force."""
        self.give_all_back()
        self.generation += 1

    @property
    def ticket_count(self) -> int:
        """How many tickets are held, and not used up."""
        return sum(any(ticket.left.values()) or ticket.key_cost > 0 for ticket in self._open) + len(self._coming)

    def lapse_us(self) -> int:
        """Return when the next ticket lapses, by the authority's clock; call only if one is held."""
        return min(ticket.until_us for ticket in (*self._open, *self._coming)) + 1

    def mostly_due_us(self, key: str = "") -> int | None:
        """Return by when three quarters of the held tickets are due, by the authority's clock; None if none is ahead.

        Args:
            key: of the tickets; empty for all.
        """
        coming = self._coming_keys.get(key, []) if key else self._coming
        count = len(self.costs_of_key(key)) if key else self.ticket_count
        place = 3 * count // 4 - (count - len(coming))
        return coming[max(0, place)].at_us if coming else None

    def give_all_back(self) -> None:
        """Give back all held tickets: nothing will start."""
        for ticket in [*self._open, *self._coming]:
            self._give_back(ticket)
        self._clear()

    def _clear(self) -> None:
        self._coming.clear()
        self._open.clear()
        self._sums.clear()
        self._keys.clear()
        self._coming_keys.clear()

    def held_count(self, now_ns: int) -> int:
        """Count the permits held that have not lapsed."""
        self._look(now_ns)
        return self._sums[PERMITS] + sum(ticket.left.get(PERMITS, 0) for ticket in self._coming)

    def free_count(self, now_ns: int) -> int:
        """Count the unused tickets of no key that have not lapsed."""
        self._look(now_ns)
        return sum(not ticket.key and any(ticket.left.values()) for ticket in (*self._open, *self._coming))

    def left_of(self, resource: str, now_ns: int) -> int:
        """Return how much of a resource may be used now."""
        self._look(now_ns)
        return self._sums[resource] if self.is_usable() else 0

    def names(self, resource: str, now_ns: int) -> bool:
        """True if some ticket that may be used now has a cost in a resource, which may be 0."""
        self._look(now_ns)
        return self.is_usable() and any(resource in ticket.left for ticket in self._open)

    def use(self, resource: str, amount: int) -> TicketParts:
        """Use up to an amount of what :meth:`left_of` returned; return the parts, as [ticket, amount].

        An amount of 0 is a part as well, by which the cost can be corrected.
        """
        parts = TicketParts()
        if not amount:
            parts += [[ticket, 0] for ticket in self._open if resource in ticket.left][:1]
            return parts
        for ticket in self._open:
            part = min(amount, ticket.left.get(resource, 0))
            if part > 0:
                ticket.left[resource] -= part
                ticket.is_used = True
                parts.append([ticket, part])
                amount -= part
            if not amount:
                break
        self.on_use()
        used = sum(part for _, part in parts)
        self._sums[resource] -= used
        if resource == PERMITS:
            self.used_count += used
        return parts

    def claim(self, resource: str, parts: list[list[Any]], effects: Effects) -> None:
        """Let the parts of tickets that a start has just used be checked again when its effects begin.

        Args:
            resource: its name; empty for a key's limit.
            parts: as [ticket, amount].
            effects: those of the start.
        """
        if parts:
            end_ns = min(ticket.until_us for ticket, _ in parts) * 1000
            effects.append(PermitClaim(self, (resource, parts), self._clock.surely_before(end_ns, self._looked_ns)))

    def started(self, receipt: tuple[str, Any], at_ns: int) -> None:
        """Note that a start has taken effect, at a time of ours or before; from any thread."""
        self._begun.append((receipt, at_ns))

    def lapsed(self, receipt: tuple[str, list[list[Any]]]) -> None:
        """Count permits that were used for a start, and not in time."""
        resource, parts = receipt
        if resource == PERMITS:
            amount = sum(amount for _, amount in parts)
            self.used_count -= amount
            self.lapsed_count += amount

    def costs_of_key(self, key: str) -> list[int]:
        """Return what each ticket of a key covers under its limit, in ascending order."""
        return sorted(each.key_cost for tickets in (self._keys, self._coming_keys) for each in tickets.get(key, ()))

    def key_count(self, key: str, now_ns: int) -> int:
        """Count the tickets by which tasks of a key may start now."""
        self._look(now_ns)
        return len(self._keys.get(key, ()))

    def covers_key(self, key: str, cost: int, now_ns: int) -> bool:
        """True if a ticket lets a task of a key and a cost start now."""
        self._look(now_ns)
        return self.held_key(key, cost)

    def held_key(self, key: str, cost: int) -> bool:
        """True if a ticket covered the cost of a task of a key at the last look."""
        tickets = self._keys.get(key, [])
        return bool(tickets) and tickets[-1].key_cost >= cost

    def when_key(self, key: str, cost: int, now_ns: int) -> int | None:
        """Return when the next held ticket of a key that covers a cost may be used; None if there is none."""
        for ticket in self._coming_keys.get(key, ()):
            if ticket.key_cost >= cost:
                return max(now_ns, self._clock.surely_after(ticket.at_us * 1000, now_ns))
        return None

    def use_key(self, key: str, cost: int) -> HeldTicket | None:
        """Use the smallest ticket of a key that covers a cost, give back the rest, and return it; None if there is none."""
        tickets = self._keys.get(key, [])
        place = bisect_left(tickets, cost, key=_key_cost_of)
        if place == len(tickets):
            return None
        ticket = tickets[place]
        self._close_key(ticket)
        if ticket.key_cost > cost:
            self.correct_key(ticket, ticket.key_cost - cost)
        ticket.key_cost = 0
        if PERMITS not in ticket.left:  # else it is counted with its permits
            self.used_count += 1
            self.on_use()
        return ticket

    def _close_key(self, ticket: HeldTicket) -> None:
        tickets = self._keys[ticket.key]
        tickets.remove(ticket)
        if not tickets:
            del self._keys[ticket.key]

    @property
    def has_reports(self) -> bool:
        """True if starts are to be reported."""
        return bool(self._begun or self.reports)

    def look_at_starts(self) -> None:
        """Report the starts that have taken effect since the last look to the limits that count them by their time."""
        while self._begun:
            (resource, parts), at_ns = self._begun.popleft()
            start_us = -((self._clock.at(at_ns) + self._clock.error_ns(at_ns)) // -1000)
            if not resource:
                ticket, cost = parts[0]
                if ticket.is_key_dated and not ticket.is_key_reported and ticket.drops == self._drops:
                    ticket.is_key_reported = True
                    self.corrected[ticket.key] = ticket.key_settings
                    self._note_start("", ticket.key, ticket.key_receipt, cost, start_us)
            elif not parts.is_reported:
                parts.is_reported = True
                for ticket, amount in parts:
                    for name, counted, receipt, is_dated in ticket.receipts:
                        if is_dated and counted == resource and ticket.drops == self._drops:
                            self._note_start(name, "", receipt, amount, start_us)

    def _counts(self, ticket: HeldTicket, amount: int) -> bool:
        """True if a ticket's limits are told a change: once tickets are dropped, they no longer know what it was charged."""
        return amount < 0 or ticket.drops == self._drops

    def _note_start(self, name: str, key: str, receipt: int, cost: int, start_us: int) -> None:
        known = self.reports.setdefault((name, key, receipt), [0, 0])
        known[0], known[1] = max(known[0], start_us), known[1] + cost

    def correct_key(self, ticket: HeldTicket, amount: int, *, has_started: bool = True) -> None:
        """Return an unused amount to the limit of a ticket's key; charge more if negative."""
        if ticket.key_settings and self._counts(ticket, amount):
            receipt = ticket.key_receipt, ticket.is_key_dated
            self.corrections.append(_correction("", ticket, amount, *receipt, has_started=has_started))
            self.corrected[ticket.key] = ticket.key_settings

    def correct(self, ticket: HeldTicket, resource: str, amount: int, *, has_started: bool = True) -> None:
        """Return an unused amount of a resource to a ticket's limits; charge more if negative."""
        for name, counted, receipt, is_dated in ticket.receipts:
            if counted == resource and self._counts(ticket, amount):
                made = _correction(name, ticket, amount, receipt, is_dated, has_started=has_started)
                self.corrections.append(made)

    def when(self, resource: str, amount: int, now_ns: int) -> int | None:
        """Return when the held tickets allow an amount to be used; None if they do not."""
        left = self.left_of(resource, now_ns)
        if left >= amount if amount else self.names(resource, now_ns):
            return now_ns
        if not self._clock.is_known:
            return None
        lapsing = deque(self._open if self.is_usable() else ())
        for ticket in self._coming:
            while lapsing and ticket.at_us > lapsing[0].until_us:
                left -= lapsing.popleft().left.get(resource, 0)
            lapsing.append(ticket)
            if resource not in ticket.left:
                continue
            left += ticket.left[resource]
            if left >= amount:
                return max(now_ns, self._clock.surely_after(ticket.at_us * 1000, now_ns))
        return None

    def after_held(self, resource: str, now_ns: int) -> tuple[int, int]:
        """Return how much of a resource is held, and when the next ticket after these may come, in our time."""
        held = self.left_of(resource, now_ns) + sum(ticket.left.get(resource, 0) for ticket in self._coming)
        last_us = max([self.next_us, *(ticket.at_us + 1 for ticket in self._coming[-1:])])
        return held, self._clock.surely_after(last_us * 1000, now_ns) if last_us and self._clock.is_known else now_ns

    def _look(self, now_ns: int) -> None:
        """Open the tickets that are due, and give back what was not used in time."""
        self._looked_ns = now_ns
        if not (self._coming or self._open) or not self._clock.is_known:
            return
        time_ns, error_ns = self._clock.at(now_ns), self._clock.error_ns(now_ns)
        earliest_us, latest_us = (time_ns - error_ns) // 1000, -((time_ns + error_ns) // -1000)
        count = 0
        for ticket in self._coming:
            if ticket.at_us > earliest_us:
                break
            count += 1
            insort(self._open, ticket, key=_until_of)
            self._sums.update(ticket.left)
            if ticket.key_cost:
                insort(self._keys.setdefault(ticket.key, []), ticket, key=_key_cost_of)
                coming = self._coming_keys[ticket.key]
                coming.pop(0)  # it is the first of its key, as of all
                if not coming:
                    del self._coming_keys[ticket.key]
        del self._coming[:count]
        gone = bisect_left(self._open, latest_us, key=_until_of)
        for ticket in self._open[:gone]:
            self._sums.subtract(ticket.left)
            self.lapsed_count += ticket.left.get(PERMITS, 0)
            if ticket.key_cost:
                self._close_key(ticket)
            self._give_back(ticket)
        del self._open[:gone]

    def _give_back(self, ticket: HeldTicket) -> None:
        for resource, amount in ticket.left.items():
            if amount:
                self.correct(ticket, resource, amount, has_started=False)
        if ticket.key_cost:
            self.correct_key(ticket, ticket.key_cost, has_started=False)


def _correction(
    name: str,
    ticket: HeldTicket,
    amount: int,
    receipt: int,
    is_dated: bool,
    *,
    has_started: bool,
) -> Correction:
    """Make a correction; a start that may have been reported counts no earlier than its ticket's time."""
    key = "" if name else ticket.key
    is_whole = not has_started and not ticket.is_used
    counts_us = ticket.at_us if is_dated and has_started and amount > 0 else receipt
    return Correction(name, key, ticket.at_us, amount, counts_us, is_whole)


def _nothing() -> None:
    pass


def _at_of(ticket: HeldTicket) -> int:
    return ticket.at_us


def _until_of(ticket: HeldTicket) -> int:
    return ticket.until_us


def _key_cost_of(ticket: HeldTicket) -> int:
    return ticket.key_cost


class BudgetLimit(Limit):
    """The amount of one resource that held tickets leave.

    Args:
        budget: the tickets held.
        resource: its name.
        cost_max: the largest cost that the group's limits ever admit; None for any.
        is_free: True if nothing limits the resource: starts need no ticket for it.
        estimate: returns when a total cost will have been admitted, by this process's limits; None if never.
    """

    counts_effects: ClassVar[bool] = True  # a ticket is checked again when the user's code begins
    __slots__ = ("_budget", "_cost_max", "_estimate", "_is_free", "_newest", "_resource")

    def __init__(
        self,
        budget: TicketBudget,
        resource: str,
        *,
        cost_max: int | None,
        is_free: bool,
        estimate: Callable[[int, int], int | None],
    ) -> None:
        self._budget = budget
        self._resource = resource
        self._is_free = is_free
        self._cost_max = cost_max
        self._estimate = estimate
        self._newest: list[list[Any]] | None = None  # parts used by the last start

    @property
    def cost_max(self) -> int | None:
        """The largest cost that is ever admitted; None if any is, sooner or later."""
        return self._cost_max

    def count(self, now_ns: int) -> int:
        """Return the amount that may be used now."""
        return UNLIMITED if self._is_free else self._budget.left_of(self._resource, now_ns)

    def admits(self, cost: int, now_ns: int) -> bool:
        """True if tickets cover a start; for a cost of 0, a ticket that was granted while there was no deficit."""
        return self._is_free or (super().admits(cost, now_ns) if cost else self._budget.names(self._resource, now_ns))

    def take(self, cost: int, now_ns: int) -> Any:  # noqa: ARG002  # the tickets' own times count
        """Record a start; return the parts of tickets that it uses."""
        self._newest = TicketParts() if self._is_free else self._budget.use(self._resource, cost)
        return self._newest

    def take_effect(self, receipt: Any, now_ns: int) -> None:
        """Report that a start has taken effect by now."""
        self._budget.started((self._resource, receipt), now_ns)

    def defer(self, receipt: Any, effects: Effects) -> None:
        """Let the tickets of a start be checked again when ``effects`` begin."""
        self._budget.claim(self._resource, receipt, effects)

    def settle(self, receipt: Any, cost: int, now_ns: int) -> None:
        """Correct the cost of a start: from held tickets for the last start, else with the authority."""
        parts: list[list[Any]] = receipt
        change = cost - sum(amount for _, amount in parts)
        if change > 0 and parts is self._newest:
            more = self._budget.use(self._resource, min(change, self._budget.left_of(self._resource, now_ns)))
            change -= sum(amount for _, amount in more)
            parts.extend(more)
        if change > 0 and parts:
            self._budget.correct(parts[-1][0], self._resource, -change)
            parts[-1][1] += change
        for part in reversed(parts):
            if change >= 0:
                break
            back = min(-change, part[1])
            part[1] -= back
            change += back
            self._budget.correct(part[0], self._resource, back)

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when held tickets admit a start of a cost; None if that is not known yet."""
        return now_ns if self._is_free else self._budget.when(self._resource, cost, now_ns)

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""
        if self._is_free:
            return now_ns
        when_ns = self._budget.when(self._resource, count, now_ns)
        if when_ns is not None:
            return when_ns
        held, next_ns = self._budget.after_held(self._resource, now_ns)
        more, begin_ns = (count - held - 1) * self._budget.sharing_count, max(now_ns, next_ns)
        slowest = self._budget.slowest.get(self._resource)
        if slowest is None:
            return self._estimate(more, begin_ns)
        return begin_ns + int(more * 1_000_000_000 / slowest) if slowest else None

    def count_until(self, now_ns: int, end_ns: int) -> int:  # noqa: ARG002  # the group decides
        """Return a count without limit: the group decides how many starts are admitted."""
        return 0 if self._cost_max == 0 else UNLIMITED

    def trial(self, time_ns: Callable[[], int]) -> Self:  # noqa: ARG002  # future grants are not known
        """Return itself."""
        return self

    def change_to(self, other: Self, now_ns: int) -> None:  # noqa: ARG002  # tickets stay as they are
        """Adopt the settings of another limit."""
        self._cost_max, self._estimate, self._is_free = other._cost_max, other._estimate, other._is_free

    def idle_at(self, now_ns: int) -> int:
        """Return the present: the authority remembers."""
        return now_ns


class KeyBudgetLimit(Limit):
    """The tickets left for one key; to the key gate, a limit that admits one task per ticket that covers its cost.

    Args:
        budget: the tickets held.
        text: the key as text.
        settings: of its limit; empty if it has none.
        cost_max: the largest cost that its limit ever admits; None for any.
        per_second: the most that its limit admits in a second; None if unlimited.

    Attributes:
        refused_ns: until when the group refuses to the key ...
        refused_cost: ... a cost, and more.
    """

    counts_effects: ClassVar[bool] = True  # as for the tickets of a resource
    __slots__ = ("_budget", "_cost_max", "_per_second", "refused_cost", "refused_ns", "settings", "text")

    def __init__(
        self, budget: TicketBudget, text: str, settings: str, *, cost_max: int | None, per_second: float | None
    ) -> None:
        self._budget = budget
        self._cost_max = cost_max
        self._per_second = per_second
        self.text = text
        self.settings = settings
        self.refused_ns = self.refused_cost = 0

    @property
    def cost_max(self) -> int | None:
        """The largest cost that is ever admitted; None if any is, sooner or later."""
        return self._cost_max

    @property
    def is_paid_afterwards(self) -> bool:
        """True under a pace, which admits any cost."""
        return self._cost_max is None

    @property
    def is_foreseeable(self) -> bool:
        """Return False: the group decides."""
        return False

    def count(self, now_ns: int) -> int:
        """Count the tickets that may be used now."""
        return self._budget.key_count(self.text, now_ns)

    def admits(self, cost: int, now_ns: int) -> bool:
        """True if a ticket covers the cost of a start; a cost of 0 needs none."""
        return not cost or self._budget.covers_key(self.text, cost, now_ns)

    def refuses(self, cost: int, now_ns: int) -> bool:  # else a limit of all may be why no ticket comes
        """True if the group is known to refuse a cost at a time."""
        return cost >= self.refused_cost and now_ns < self.refused_ns

    def take(self, cost: int, now_ns: int) -> Any:  # noqa: ARG002  # the ticket's own time counts
        """Record a start; return its receipt: the ticket and the cost."""
        return [self._budget.use_key(self.text, cost), cost]

    def take_effect(self, receipt: Any, now_ns: int) -> None:
        """Report that a start has taken effect by now."""
        if receipt[0] is not None:
            self._budget.started(("", [receipt]), now_ns)

    def defer(self, receipt: Any, effects: Effects) -> None:
        """Let the ticket of a start be checked again when ``effects`` begin."""
        if receipt[0] is not None:
            self._budget.claim("", [receipt], effects)

    def settle(self, receipt: Any, cost: int, now_ns: int) -> None:  # noqa: ARG002  # as above
        """Correct the cost of a start."""
        held, charged = receipt
        if held is not None and cost != charged:
            self._budget.correct_key(held, charged - cost)
            receipt[1] = cost

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a held ticket that covers a cost may be used, or the group's refusal ends; None if neither is known."""
        if self._budget.held_key(self.text, cost):  # no look: at a later time, tickets would have lapsed
            return now_ns
        when = self._budget.when_key(self.text, cost, now_ns)
        return self.refused_ns if when is None and self.refuses(cost, now_ns) else when

    def most_within(self, seconds: float) -> float:
        """Return the largest cost that the group may admit within some seconds."""
        if self._per_second is None:
            return UNLIMITED
        return max(1, self._cost_max or 0, int(seconds * self._per_second))

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""
        if self._cost_max == 0:
            return None
        later = 0 if not self._per_second else round((count - 1) / self._per_second * 1e9)
        return max(now_ns, self.refused_ns) + later

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Estimate how many starts are admitted."""
        begin_ns = max(now_ns, self.refused_ns)
        return 0 if begin_ns >= end_ns or self._cost_max == 0 else int(self.most_within((end_ns - begin_ns) / 1e9))

    def trial(self, time_ns: Callable[[], int]) -> Self:  # noqa: ARG002  # future grants are not known
        """Return itself."""
        return self

    def change_to(self, other: Self, now_ns: int) -> None:  # noqa: ARG002  # tickets stay as they are
        """Adopt the settings of another limit."""
        self.settings, self._cost_max, self._per_second = other.settings, other._cost_max, other._per_second

    def idle_at(self, now_ns: int) -> int:
        """Return when the group's refusal ends."""
        return max(now_ns, self.refused_ns)


class BudgetPermits(CombinedPermits):
    """All limits on one executor's starts in a group, derived from its held tickets."""

    __slots__ = ()

    is_by_tickets = True
    is_foreseeable: Final = False

    def take_effect(self, now_ns: int) -> None:
        """Report that the latest start has taken effect by ``now_ns``, or soon after the look at the tickets."""
        receipts, self.open_receipt = self.open_receipt, None
        for _, limit, receipt in receipts or ():
            limit.take_effect(receipt, min(now_ns, self.usable_until_ns + CALL_NS))
