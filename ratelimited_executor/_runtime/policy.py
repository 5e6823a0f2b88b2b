"""The choices that an executor is made with, and what they come to: the limits that the queue asks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.exact import ExactGrid, ExactShare
from ratelimited_executor._core.limits.combined import Bound, CombinedPermits
from ratelimited_executor._core.limits.exact_paced import ExactPacedLimit
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits import PermitGrid
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._core.records import PERMITS
from ratelimited_executor._core.strictness import Strictness
from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.arguments import count_of, delay_of
from ratelimited_executor._runtime.quota import Quota, rate_or_quota

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratelimited_executor._core.adaptive import Adaptive
    from ratelimited_executor._core.fleet.granted import GrantedPermits
    from ratelimited_executor._core.limits.limit import Limit
    from ratelimited_executor._kernel.contracts import Permits

__all__ = [
    "Burst",
    "Paced",
    "Policy",
    "PolicyPlan",
    "WhenFull",
    "Window",
    "check_key_rate",
    "limit_of_key",
    "read_rates",
    "read_resources",
    "slack_of",
]

# A task's first line runs a little after its start was decided: a coroutine's on the loop's next turn. So much of the
# slack is kept for that, and the law holds for times that are read there, too.
RESERVE_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True, repr=False)
class Paced:
    """Start tasks on a grid of permits: one permit every ``1 / rate`` seconds.

    By default never more tasks start in any window of the rate's ``per`` than it has permits. With
    ``strictness=Strictness.NOMINAL`` at most ``rate x (b - a + slack) + 1`` start in any window [a, b].

    Args:
        slack: seconds for which a permit may still be used, >= 0: what a late timer catches up with. A quarter of it,
            5 ms at most, is kept for the way from the decision to the first line of the task.
        strictness: which of the two holds.
    """

    slack: float = 0.02
    strictness: Strictness = Strictness.EXACT

    def __post_init__(self) -> None:
        object.__setattr__(self, "slack", delay_of("slack", self.slack))
        if not isinstance(self.strictness, Strictness):
            raise TypeError(f"strictness must be Strictness.EXACT or Strictness.NOMINAL, got {self.strictness!r}")

    def __repr__(self) -> str:
        strictness = "" if self.strictness is Strictness.EXACT else f", strictness={self.strictness}"
        return f"Paced(slack={self.slack!r}{strictness})"


@dataclass(frozen=True, slots=True)
class Window:
    """Start tasks as soon as the rate allows: never more than its ``permits`` in any window of its ``per``, exactly.

    Nothing is spread: of a rate of 100 a minute, 100 tasks may start at once, and the next one a minute after the first.

    Args:
        margin: seconds by which a start may take effect later than it was decided, >= 0: a start waits for so much more
            than ``per`` after the one that it follows. The default covers the way to a task's first line; for a limit that
            is enforced at the other end of a network, add by how much the way there varies.
    """

    margin: float = RESERVE_SECONDS

    def __post_init__(self) -> None:
        object.__setattr__(self, "margin", delay_of("margin", self.margin))


@dataclass(frozen=True, slots=True)
class Burst:
    """Start tasks from a token bucket: ``permits`` at once after a pause, and the rate in the long run.

    In any window of w seconds, at most ``permits + rate x w`` starts are decided; the first line of a task may come 5 ms
    later than its decision.

    Args:
        permits: the depth of the bucket, >= 1.
    """

    permits: int

    def __post_init__(self) -> None:
        count_of("permits", self.permits, least=1)


Policy = Paced | Window | Burst


class WhenFull(Enum):
    """What becomes of a task when ``max_pending`` tasks wait already."""

    RAISE = "raise"
    """The call raises ``BacklogFullError``, and nothing changes."""

    WAIT = "wait"
    """``await schedule_wait(...)`` waits for room, first come, first served; the other calls raise ``BacklogFullError``."""

    DROP_LOWEST = "drop lowest"
    """The least important task is dropped, of several the one that is due last: the new one, if it is that."""

    DROP_OLDEST = "drop oldest"
    """The task that has waited longest is dropped."""


def read_rates(name: str, value: Any) -> tuple[Rate | Quota, ...]:
    """Return the rates that a parameter asks for: one, or several in a sequence or a text with commas.

    Raises:
        TypeError: if it has a wrong type.
        ValueError: if it is empty, or a rate is out of range.
    """
    if isinstance(value, str):
        try:
            return tuple(map(rate_or_quota, value.split(",")))
        except ValueError as error:
            raise ValueError(str(error) if name == "rate" else f"{name}: {error}") from None
    if isinstance(value, Quota):
        return (value,)
    if not isinstance(value, (list, tuple)):
        return (Rate.of(value),)
    if not value:
        raise ValueError(f"{name} must hold one rate at least, got {value!r}")
    return tuple(rate for part in value for rate in read_rates(name, part))


def read_resources(value: Any) -> dict[str, tuple[Rate | Quota, ...]]:
    """Return the rates of resources by name.

    Raises:
        TypeError: if it has a wrong type.
        ValueError: if a name is taken, or a rate is out of range.
    """
    if value is None:
        return {}
    if not hasattr(value, "items"):
        raise TypeError(f"resources must be a mapping from name to rate, got {value!r}")
    for resource in value:
        if not isinstance(resource, str) or not resource:
            raise TypeError(f"resources must have names that are not empty, got {resource!r}")
        if resource == PERMITS:
            raise ValueError(f"resources cannot have one named {PERMITS!r}: that is what rate= limits")
    return {resource: read_rates(f"resources[{resource!r}]", rate) for resource, rate in value.items()}


def slack_of(policy: Policy) -> float:
    """Return the slack of a grid in seconds, less what is kept for the way to a task's first line."""
    slack = policy.slack if isinstance(policy, Paced) else Paced().slack
    return slack - min(slack / 4, RESERVE_SECONDS)


class PolicyPlan:
    """What policy, rates and resources come to, for one peer.

    Args:
        policy: how starts are limited in time.
        rates: of the executor's own permits.
        resources: the rates of others.
        count: how many peers share them.
        rank: which of them this is.

    Raises:
        ValueError: if a rate does not fit the policy, or cannot be shared by so many.
    """

    def __init__(
        self,
        policy: Policy,
        rates: Sequence[Rate | Quota],
        resources: Mapping[str, Sequence[Rate | Quota]],
        *,
        count: int = 1,
        rank: int = 0,
    ) -> None:
        self.policy = policy
        self.rates = tuple(rates)
        self.resources = dict(resources)
        self._count = count
        self._rank = rank
        plain = [rate for rate in self.rates if isinstance(rate, Rate)]
        self.rate = min(plain, key=lambda rate: rate.per) if plain else Rate(float("inf"))
        for name, each in ((PERMITS, self.rates), *self.resources.items()):
            for rate in each:
                self._check(name, rate)

    @property
    def is_plain(self) -> bool:
        """Whether one grid of permits is all of it."""
        return (
            isinstance(self.policy, Paced)
            and len(self.rates) == 1
            and not self.resources
            and self.rates[0] is self.rate
        )

    def with_rate(self, per_second: Fraction, adaptive: Adaptive) -> PolicyPlan:
        """Return the same with so many permits a second in place of the rate that paces, in the same ``per``.

        An exact window has a whole number of them, within the bounds of ``adaptive`` if there is one.
        """
        permits = per_second * self.rate.per
        if self._kind(PERMITS, self.rate) == "window":
            is_more = permits > Fraction(self.rate.permits)
            whole = -int(-permits // 1) if is_more else int(permits)
            least = math.ceil(Fraction(adaptive.floor) * self.rate.per)
            most = math.floor(Fraction(adaptive.ceiling) * self.rate.per)
            permits = Fraction(max(1, min(max(whole, least), most)))
        rate = Rate(permits, per=self.rate.per)
        rates = [rate if one is self.rate else one for one in self.rates]
        return PolicyPlan(self.policy, rates, self.resources, count=self._count, rank=self._rank)

    def grid(self, now_ns: int) -> PermitGrid:
        """Make the permits of the rate that paces."""
        assert isinstance(self.policy, Paced), self.policy
        slack_ns = round(slack_of(self.policy) * NS)
        if self.policy.strictness is Strictness.NOMINAL:
            return PermitGrid(self.rate, slack_ns=slack_ns, now_ns=now_ns, peers=self._count, rank=self._rank)
        if self._count == 1:
            return ExactGrid(self.rate, slack_ns=slack_ns, now_ns=now_ns)
        return ExactShare(
            self.rate,
            slack_ns=round(self.policy.slack * NS),
            reserve_ns=round(RESERVE_SECONDS * NS),
            now_ns=now_ns,
            peers=self._count,
            rank=self._rank,
        )

    def permits(
        self, old: Permits | None, *, now_ns: int, time_ns: Callable[[], int], wall_ns: Callable[[], int]
    ) -> CombinedPermits:
        """Make what admits starts; what ``old`` remembers of the past goes on as far as it fits."""
        grid = _grid_of(old)
        if not isinstance(self.policy, Paced) or self.rate not in self.rates:
            grid = None
        elif grid is None:
            grid = self.grid(now_ns)
        elif grid.rate != self.rate:
            grid.set_rate(self.rate, now_ns)
        known = list(old.bounds) if isinstance(old, CombinedPermits) else []
        fresh = [
            (rate, self._bound(name, rate, now_ns=now_ns, wall_ns=wall_ns))
            for name, each in ((PERMITS, self.rates), *self.resources.items())
            for rate in each
            if not (name == PERMITS and grid is not None and rate is self.rate)
        ]
        rest = [each for each in fresh if not self._go_on(*each, known, now_ns, is_same=True)]
        for rate, bound in rest:
            self._go_on(rate, bound, known, now_ns, is_same=False)
        bounds = [bound for _, bound in fresh]
        if self.rate.is_zero:  # a pause: what the limits have counted is wanted when it ends
            bounds += [bound for bound in known if bound.resource == PERMITS]
        permits = CombinedPermits(grid, bounds, rate=self.rate, time_ns=time_ns)
        if isinstance(old, CombinedPermits):
            permits.penalty_ns = old.penalty_ns
        return permits

    def _go_on(self, rate: Rate | Quota, bound: Bound, known: list[Bound], now_ns: int, *, is_same: bool) -> bool:
        """Let a known limit of the same kind go on under another rate, so that what it has counted still counts.

        Args:
            rate: what is wanted.
            bound: the new limit for it, into which the known one is put.
            known: the limits that have not gone on yet.
            now_ns: the time on the timeline.
            is_same: whether it must have the same ``per``, or period.
        """
        for one in known:
            if (one.resource, one.kind) != (bound.resource, bound.kind):
                continue
            if isinstance(rate, Quota):
                if one.text.split(" ", 1)[1] != bound.text.split(" ", 1)[1]:
                    continue
            elif is_same and getattr(one.limit, "rate", rate).per != rate.per:
                continue
            known.remove(one)
            limit: Any = one.limit
            if isinstance(rate, Quota):
                limit.permits = bound.limit.cost_max
            else:
                limit.set_rate(self._share(bound.resource, rate), now_ns)
            if isinstance(limit, TokenBucketLimit):
                limit.set_depth(self._depth(bound.resource, rate) or 1, now_ns)
            bound.limit = limit
            return True
        return False

    def __str__(self) -> str:
        return ", ".join(map(str, self.rates))

    def cost_max(self, resource: str) -> int | None:
        """Return the largest cost that is ever admitted; None if any is."""
        found = [
            self._depth(resource, rate) for rate in (self.rates if resource == PERMITS else self.resources[resource])
        ]
        return min((depth for depth in found if depth is not None), default=None)

    def _check(self, name: str, rate: Rate | Quota) -> None:
        where = "rate" if name == PERMITS else f"resources[{name!r}]"
        depth = self._depth(name, rate)
        if isinstance(rate, Rate) and not rate.is_unlimited and self._kind(name, rate) == "window":
            _check_whole(where, rate)
        if depth is not None and depth < 1 and not (isinstance(rate, Quota) and rate.permits == 0):
            if self._kind(name, rate) == "burst" and name == PERMITS:
                raise ValueError(
                    f"policy must have a permit for each of the {self._count} peers at least, got {self.policy!r}"
                )
            raise ValueError(f"{where} must have a permit for each of the {self._count} peers at least, got {rate!r}")

    def _depth(self, name: str, rate: Rate | Quota) -> int | None:
        """Return the largest cost that a rate admits; None if any."""
        if isinstance(rate, Quota):
            return self._part(rate.permits)
        kind = self._kind(name, rate)
        if rate.is_unlimited or rate.is_zero or kind == "rate":
            return None
        if kind == "burst" and name == PERMITS:
            assert isinstance(self.policy, Burst)
            return self._part(self.policy.permits)
        return self._part(int(rate.permits))

    def _kind(self, name: str, rate: Rate | Quota) -> str:
        if isinstance(rate, Quota):
            return "quota"
        each = self.rates if name == PERMITS else self.resources[name]
        shortest = min((one for one in each if isinstance(one, Rate)), key=lambda one: one.per)
        if isinstance(self.policy, Window) or rate is not shortest:
            return "window"
        return "rate" if isinstance(self.policy, Paced) else "burst"

    def _bound(self, name: str, rate: Rate | Quota, *, now_ns: int, wall_ns: Callable[[], int]) -> Bound:
        kind = self._kind(name, rate)
        margin = self.policy.margin if isinstance(self.policy, Window) else RESERVE_SECONDS
        limit: Limit
        if isinstance(rate, Quota):
            limit = QuotaLimit(
                self._part(rate.permits), period_of=rate.period_ns, wall_ns=wall_ns, margin_ns=round(margin * NS)
            )
        elif kind == "rate":
            limit = PacedLimit(self._share(name, rate), slack_ns=round(slack_of(self.policy) * NS))
        elif kind == "burst":
            limit = TokenBucketLimit(self._share(name, rate), depth=self._depth(name, rate) or 1, now_ns=now_ns)
        else:
            limit = WindowLimit(self._share(name, rate), margin_ns=round(margin * NS))
        return Bound(limit, resource=name, text=str(rate), kind=kind)

    def _part(self, permits: int) -> int:
        """Return this peer's part of a number of permits."""
        return permits * (self._rank + 1) // self._count - permits * self._rank // self._count

    def _share(self, name: str, rate: Rate) -> Rate:
        """Return this peer's part of a rate."""
        if self._count == 1 or rate.is_unlimited:
            return rate
        permits = Fraction(rate.permits)
        return Rate(
            self._part(int(permits)) if self._kind(name, rate) == "window" else permits / self._count, per=rate.per
        )


_NO_SPACING: Final = Fraction(0)


def check_key_rate(policy: Policy, rate: Rate | None) -> None:
    """Refuse a rate of a key that cannot hold as an exact window.

    Raises:
        ValueError: if it is one.
    """
    if isinstance(policy, Window) and rate is not None and not rate.is_unlimited:
        _check_whole("key_rate", rate)


def _check_whole(name: str, rate: Rate) -> None:
    permits = Fraction(rate.permits)
    if permits.denominator != 1:
        raise ValueError(
            f"{name} must be a whole number of permits where it holds as an exact window, got {rate!r}: "
            f"write Rate({permits.numerator}, per={float(rate.per * permits.denominator):g})"
        )


def limit_of_key(policy: Policy, rate: Rate, now_ns: int, *, spacing: Fraction = _NO_SPACING) -> Limit | None:
    """Make the limit of one key's rate; None if it is infinite.

    Args:
        spacing: seconds between two permits of the executor. A key whose time has come waits for the next of them, and for
            its turn: under ``Paced`` two of them, and two starts of the key at most, are forgiven like the lateness of a
            timer. Else a key would lose of its rate all that the two paces are out of step.
    """
    if rate.is_unlimited:
        return None
    if isinstance(policy, Window):
        return WindowLimit(rate, margin_ns=round(policy.margin * NS))
    if isinstance(policy, Burst):
        return TokenBucketLimit(rate, depth=policy.permits, now_ns=now_ns)
    return _paced_of_key(policy, rate, spacing).unused()


@lru_cache(maxsize=256)  # keys share a handful of rates, and come and go by the thousand
def _paced_of_key(policy: Paced, rate: Rate, spacing: Fraction) -> PacedLimit:
    own = spacing if not rate.per_second else 2 * min(spacing, 1 / rate.per_second)
    slack_ns = round(slack_of(policy) * NS) + math.ceil(own * NS)
    if policy.strictness is Strictness.NOMINAL:
        return PacedLimit(rate, slack_ns=slack_ns)
    return ExactPacedLimit(rate, slack_ns=slack_ns)


def _grid_of(permits: Permits | None) -> PermitGrid | GrantedPermits | None:
    if isinstance(permits, CombinedPermits):
        return permits.grid
    return permits  # type: ignore[return-value]  # what is not combined is a grid
