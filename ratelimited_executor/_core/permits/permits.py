"""Which permits may be taken now: the law of ``Paced``.

Theory. The *phase* Phi(t) is the integral of the rate since the epoch; permit p comes up when Phi(t) = p. While the
rate never changes, Phi(t) = t x rate, so every process with the same rate sees the same grid; a change of the rate
keeps the phase. An interval [s, e) owns the permits ceil(Phi(s)) ... ceil(Phi(e)) - 1: fractional rates are exact over
any span, and nothing is carried over.

Each start takes one permit whose time has come. A permit may be taken until ``slack`` after its time; the newest permit
stays until the next comes up, so that an idle executor starts at once. A start at ``t`` that is more than ``slack``
after its permit's time voids all permits below Phi(t - slack) + 1.

Law: at most Phi(b) - Phi(a - slack) + 1 starts happen in any [a, b].
Proof. If no start in [a, b] is late, their permits are distinct numbers in [Phi(a - slack), Phi(b)]: at most the
difference plus one. If a start in [a, b] uses a permit below Phi(a - slack), it is late, at t1 >= a; it is the first in
[a, b], because every later start uses a permit of at least Phi(t1 - slack) + 1 >= Phi(a - slack) + 1, and of those there
are at most Phi(b) - Phi(a - slack). Clock steps and stalls enter only as later times.

Costs. A start of cost c takes its permit and uses up the next c - 1 permits, so that the next start waits until they
have come up. The costs of the starts in any [a, b] then sum to at most Phi(b) - Phi(a - slack) + c, c the cost of the
last one: their blocks of numbers are disjoint, and all but the last end below Phi(b). When a cost is settled to less,
the permits that have not come up yet are given back: no start can have used those.

Rejected: a token bucket (a burst of its depth after every pause), a minimum gap between starts (never catches up after
a timer that is a millisecond late, so the rate is not reached), floats (ten years of 0.1 a second are not exact).

A share of the grid. Of ``peers`` peers, the one of rank r owns the permits that are r modulo ``peers``. Each permit has
one owner, so the sum over the peers keeps the law, provided that no permit is used late: with more than one peer, the
newest permit does not stay. A change of the rate moves to the epoch's grid of the new rate, which all peers share,
instead of keeping this peer's phase; at that moment each peer may start one task more than the law allows.

All times are integer nanoseconds on one monotonic timeline. Cost: a handful of integer operations a call.
Source: derived here; tests/core/permits/test_permits.py checks the law on random histories.
"""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ratelimited_executor._core.permits.rates import step_and_unit
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.fields import GridFields, state_of
from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from ratelimited_executor._core.permits.rates import Rate

__all__ = ["PermitGrid", "Piece"]

_PHASE_UNIT: Final = 1 << 32  # phases are integers in parts of it, so that a grid is exact


class Piece(NamedTuple):
    """A span of constant rate: Phi(t) = (base + (t - start) * step) / unit."""

    start: int
    base: int
    step: int
    unit: int

    def floor(self, time_ns: int) -> int:
        """Return the number of the last permit that has come up by a time."""
        return (self.base + (time_ns - self.start) * self.step) // self.unit

    def ceil(self, time_ns: int) -> int:
        """Return the number of the first permit that comes up at a time or later."""
        return -((-self.base - (time_ns - self.start) * self.step) // self.unit)


@used_there
class PermitGrid(GridFields):
    """The numbered permits of one rate, and which of them are taken or void.

    Args:
        rate: the rate in force from ``now_ns`` on.
        slack_ns: how long after its time a permit may be taken.
        now_ns: the time on the timeline; permits before it are void, except the newest.
        peers: how many peers share the grid, >= 1.
        rank: the rank of this peer, 0 <= rank < peers.
        phase: how much later each permit comes up than on the epoch's grid, as a part of the gap between two permits,
            0 <= phase < 1. Every law is invariant under a shift of time.
    """

    __slots__ = ("_lifted", "_phase", "_timed", "rate")

    _pieces: list[Piece]

    def __init__(
        self, rate: Rate, *, slack_ns: int, now_ns: int, peers: int = 1, rank: int = 0, phase: float = 0.0
    ) -> None:
        assert slack_ns >= 0, slack_ns
        assert 0 <= rank < peers, (rank, peers)
        assert 0 <= phase < 1, phase
        self.rate = rate
        self.slack_ns = max(slack_ns, 1)  # a permit's time is rounded up to a nanosecond, which must not make it late
        self.peers = peers
        self.rank = rank
        self._phase = int(phase * _PHASE_UNIT)
        self.usable_until_ns = now_ns  # until when the permits that usable() counted last stay usable
        self._pieces = []  # oldest first; the last is in force; older ones reach back at most `slack`
        self._next = 0  # all permits below are taken or void
        self._first = self._last = 0  # own permits that usable() counted last: first, first + peers, ... < last
        self._lifted: tuple[int, list[Piece], int, Rate] | None = None  # when the limit was lifted; the state before
        self._void_to = None  # the value for _next if a late permit is taken
        self._log = None  # of the starts in the last window, for permits that keep one
        self._looked_ns = now_ns  # the time of the last usable(), for those permits
        self.open_receipt = None  # of the latest starts, until their effect is reported: likewise
        # Piece, number and time of the permit whose time was computed last: after a permit is taken, the time of the
        # next is asked for, and again when that one is counted.
        self._timed: tuple[Piece | None, int, int] = (None, 0, 0)
        self._anchor(rate, now_ns)

    # Changing the rate.

    def set_rate(self, rate: Rate, now_ns: int) -> None:
        """Put ``rate`` in force from ``now_ns`` on, keeping the phase; with peers, move to their common grid."""
        if rate == self.rate:
            self._last = self._first
            return
        if self._lifted is not None and self._lifted[0] == now_ns and self.rate.is_unlimited:
            _, self._pieces, self._next, self.rate = self._lifted  # the limit was lifted for zero time: undo that
        if self.rate.is_unlimited or rate.is_unlimited:
            if self._pieces:
                self._lifted = now_ns, self._pieces, self._next, self.rate
            self._anchor(rate, now_ns)  # an infinite Phi cannot be kept: start on the grid of a new rate
        elif self.peers > 1:
            # A pause, or a change that peers make at different times, must not put one out of step with the others.
            ahead = len(range(self._own(self._pieces[-1].floor(now_ns) + 1), self._next, self.peers))
            self._anchor(rate, now_ns)
            self._next += 1
            if ahead:  # permits that a cost used up in advance stay used up
                self._next = self._own(self._next) + ahead * self.peers
        else:
            old = self._pieces[-1]
            step, unit = self._step_and_unit(rate)
            # Rounded down to a billionth of a permit, so that no permit comes up early.
            base = (old.base + (now_ns - old.start) * old.step) * unit // old.unit
            if old.start == now_ns:
                self._pieces.pop()
            self._pieces.append(Piece(now_ns, base, step, unit))
            while len(self._pieces) > 1 and self._pieces[1].start <= now_ns - self.slack_ns:
                del self._pieces[0]
        self.rate = rate
        self._last = self._first

    def _anchor(self, rate: Rate, now_ns: int) -> None:
        if rate.is_unlimited:
            self._pieces = []
            return
        step, unit = self._step_and_unit(rate)
        self._pieces = [Piece(0, -(self._phase * unit // _PHASE_UNIT) % unit, step, unit)]
        self._next = self._pieces[0].floor(now_ns)

    counts_effects: Final = False  # True if a start counts from its effect, which must then be reported
    is_bursty: Final = False  # True if many starts may be admitted at once; here a permit not taken in time is lost
    is_by_wall_clock: Final = False  # True if a step of the wall clock may allow a start
    decides_each: Final = False  # True if each start is decided separately
    is_by_tickets: Final = False
    is_foreseeable: Final = True  # True if a trial can forecast
    receipts: Final = ()  # of limits that settle starts: there are none

    @property
    def is_stopped(self) -> bool:
        """True if no permit comes up."""
        return self.rate.is_zero

    @property
    def is_unlimited(self) -> bool:
        """True if everything may start at once."""
        return self.rate.is_unlimited

    # Using permits.

    def usable(self, now_ns: int) -> int:
        """Count the permits that may be taken at ``now_ns``; they stay usable until :attr:`usable_until_ns`."""
        return self._usable_on_grid(now_ns)

    @two_bodies
    def _usable_on_grid(self, now_ns: int) -> int:
        """Count by the grid alone, for forecasts as well."""
        pieces, peers = self._pieces, self.peers
        if not pieces:
            self.usable_until_ns = now_ns
            return UNLIMITED
        piece = pieces[-1]
        self._void_to = None
        self._first = self._last = 0
        start, base, step, unit = piece
        if step == 0:
            return 0
        number, since, slack_ns = self._next, now_ns - start, self.slack_ns
        if peers > 1:
            number += (self.rank - number) % peers
        ahead = base + since * step - number * unit  # phase since that permit came up, times unit
        if ahead < 0:
            return 0
        first, last = number, number + ahead // unit
        if since < slack_ns and len(pieces) > 1:
            fresh = self._ceil_phase(now_ns - slack_ns)
        else:  # the slack does not reach back before a piece
            fresh = number - ((min(since, slack_ns) * step - ahead) // unit)
        if fresh > first:
            first = fresh if peers == 1 else self._own(fresh)
        if first <= last:
            self._first, self._last = first, last + 1
            until = self._time_of(first)
            self.usable_until_ns = now_ns if until is None else max(now_ns, until + self.slack_ns)
            return (last - first) // peers + 1
        if peers == 1:  # The newest permit, older than the slack: it may be used, and voids what the law demands.
            self._first, self._last = last, last + 1
            self._void_to = fresh + 1
            self.usable_until_ns = now_ns
            return 1
        return 0

    def take(self, count: int = 1, now_ns: int = 0) -> None:  # noqa: ARG002  # for permits that remember starts
        """Take some of the permits that :meth:`usable` counted."""
        if not self._pieces or not count:
            return
        assert self._first + (count - 1) * self.peers < self._last, (self._first, self._last, count)
        self._first += count * self.peers
        self._next = self._first - self.peers + 1 if self._void_to is None else self._void_to
        self._void_to = None

    def charge(self, cost: int) -> list[int]:
        """Set the total cost of the last start, which uses up the following permits; return its receipt."""
        self._next += (cost - 1) * self.peers
        self._last = self._first
        return [self._next, cost]

    def settle(self, receipt: list[int], cost: int, now_ns: int) -> None:
        """Correct the cost of a start; only the last start can have permits ahead to give back."""
        end, charged = receipt
        change = cost - charged
        is_last = end == self._next
        if change < 0 and self._pieces:
            come_up = self._pieces[-1].floor(now_ns) + 1
            ahead = max(0, self._next - come_up) // self.peers if is_last else 0
            change = -min(-change, ahead)
        self._next += change * self.peers
        self._last = self._first
        receipt[:] = self._next if is_last else end, charged + change

    def begin_at(self, time_ns: int) -> None:
        """Do nothing: the law is one of this grid."""

    def next_time(self, now_ns: int) -> int | None:
        """Return when the next permit may be taken, >= ``now_ns``; None if never at this rate."""
        return now_ns if self.usable(now_ns) else self.next_fresh_time(now_ns)

    def next_fresh_time(self, now_ns: int) -> int | None:
        """Return the next permit's time; call only where :meth:`usable` returned 0."""
        if not self._pieces or self._pieces[-1].step == 0:
            return None
        number = self._own(
            max(self._next, self._ceil_phase(now_ns - self.slack_ns), self._pieces[-1].floor(now_ns) + 1)
        )
        when = self._time_of(number)
        assert when is not None, number
        return max(when, now_ns)

    __getstate__ = state_of

    def trial(self) -> Self:
        """Return a copy for questions about the future."""
        return copy(self)

    def next_number_time(self) -> int:
        """Return a lower bound on the next usable permit's time; a past time if unknown."""
        if not self._pieces or self._pieces[-1].step == 0:
            return 0
        when = self._time_of(self._next if self.peers == 1 else self._own(self._next))
        return 0 if when is None else when

    def pace(self) -> tuple[float, float]:
        """Return how many permits of this peer come up a second, and how many may be usable at once."""
        if not self._pieces:
            return 0.0, math.inf
        _, _, step, unit = self._pieces[-1]
        if step > unit * NS:  # a permit in less than 1e-18 s may exceed a float
            return 0.0, math.inf
        per_second = step / unit * NS / self.peers
        return per_second, per_second * self.slack_ns / NS

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the permits that can be taken in [``now_ns``, ``end_ns``), if none lapses."""
        if not self._pieces:
            return UNLIMITED
        piece = self._pieces[-1]
        if piece.step == 0:
            return 0
        usable, first = self._forecast(now_ns)
        return usable + max(0, (piece.ceil(end_ns) - 1 - first) // self.peers + 1)

    def startable_until(self, now_ns: int, end_ns: int) -> int:  # noqa: ARG002  # there is no other limit
        """Count the starts that limits other than the grid admit: without limit."""
        return UNLIMITED

    def time_after(self, now_ns: int, count: int) -> int | None:
        """Return when the ``count``-th permit from now (1 is the next) can be taken; None if never at this rate."""
        if not self._pieces:
            return now_ns
        usable, first = self._forecast(now_ns)
        if count <= usable:
            return now_ns
        if self._pieces[-1].step == 0:
            return None
        return self._time_of(first + (count - usable - 1) * self.peers)

    def _forecast(self, now_ns: int) -> tuple[int, int]:
        """Return the number of usable permits, and the own permit that comes up after them; take none."""
        seen = self._first, self._last, self._void_to, self.usable_until_ns
        usable = self._usable_on_grid(now_ns)
        taken = self._next if self._void_to is None else self._void_to
        self._first, self._last, self._void_to, self.usable_until_ns = seen
        return usable, self._own(max(taken, self._pieces[-1].floor(now_ns) + 1))

    def _is_late(self, now_ns: int) -> bool:
        """True if only the newest permit may be taken, later than the slack."""
        if self.peers > 1 or self._pieces[-1].step == 0:
            return False
        newest = self._pieces[-1].floor(now_ns)
        return self._next <= newest < self._ceil_phase(now_ns - self.slack_ns)

    def _own(self, number: int) -> int:
        """Return the first own permit at or after ``number``."""
        return number + (self.rank - number) % self.peers

    def _ceil_phase(self, time_ns: int) -> int:
        for piece in reversed(self._pieces):
            if piece.start <= time_ns:
                return piece.ceil(time_ns)
        return self._pieces[0].ceil(self._pieces[0].start)

    def _time_of(self, number: int) -> int | None:
        """Return when a permit comes up at the rate in force; None if it came up before the last change."""
        piece = self._pieces[-1]
        timed = self._timed
        if timed[1] == number and timed[0] is piece:
            return timed[2]
        start, base, step, unit = piece
        ahead = number * unit - base
        if ahead < 0:
            return None
        when = start - (-ahead // step)
        self._timed = piece, number, when
        return when

    def _step_and_unit(self, rate: Rate) -> tuple[int, int]:
        """Return a finite rate as permits per nanosecond, ``step / unit``."""
        return step_and_unit(rate)
