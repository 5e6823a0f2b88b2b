"""The limits that policy, rates and resources result in, for the queue."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.limits.combined import Bound, CombinedPermits
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._runtime.limits.policy import WHOLE, Part, check_whole, rule_of
from ratelimited_executor._runtime.limits.quota import Quota, rate_or_quota

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratelimited_executor._core.limits.combined import Pace
    from ratelimited_executor._core.permits.adaptive import Adaptive
    from ratelimited_executor._core.permits.permits import PermitGrid
    from ratelimited_executor._runtime.limits.policy import Policy, Rule

__all__ = ["PolicyPlan", "read_rates", "read_resources"]


_THOUSANDS: Final = r"\d,\d{3}(?!\d)"


def read_rates(name: str, value: Any) -> tuple[Rate | Quota, ...]:
    """Return the rates of a parameter: one, or several in a sequence or a text with commas.

    Raises:
        TypeError: if it has a wrong type.
        ValueError: if it is empty, or a rate is out of range.
    """
    if isinstance(value, str):
        if re.search(
            _THOUSANDS, value
        ):  # a comma separates rates: this would be a rate of 1 a second, and another of 0
            raise ValueError(f"{name} must not have a comma inside a number, write 1_000/s: got {value!r}")
        try:
            return tuple(map(rate_or_quota, value.split(",")))
        except ValueError as error:
            raise ValueError(str(error) if name == "rate" else f"{name}: {error}") from None
    if isinstance(value, Quota):
        return (value,)
    if not isinstance(value, (list, tuple)):
        return (Rate.of(value),)
    if not value:
        raise ValueError(f"{name} must contain at least one rate, got {value!r}")
    if sum(isinstance(part, (int, float)) for part in value) > 1:
        raise ValueError(
            f"{name} must have one rate for each span, and bare numbers are all per second: 10 in 60 seconds is "
            f"'10/min' or Rate(10, per=60), got {value!r}"
        )
    return tuple(rate for part in value for rate in read_rates(name, part))


def read_resources(value: Any) -> dict[str, tuple[Rate | Quota, ...]]:
    """Return the rates of resources by name.

    Raises:
        TypeError: if it has a wrong type.
        ValueError: if a name is reserved, or a rate is out of range.
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


class PolicyPlan:
    """The limits that policy, rates and resources result in, for one peer.

    Args:
        policy: how starts are limited in time.
        rates: the rates of the executor's own permits.
        resources: the rates of other resources, by name.
        part: the part of this peer, and the phase of its permits.

    Raises:
        ValueError: if a rate does not fit the policy, or cannot be shared by so many.
    """

    def __init__(
        self,
        policy: Policy,
        rates: Sequence[Rate | Quota],
        resources: Mapping[str, Sequence[Rate | Quota]],
        part: Part = WHOLE,
    ) -> None:
        self.policy = policy
        self.rule = rule_of(policy)
        self.rates = tuple(rates)
        self.resources = dict(resources)
        self._part = part
        plain = [rate for rate in self.rates if isinstance(rate, Rate)]
        self.rate = min(plain, key=lambda rate: rate.per) if plain else Rate(float("inf"))
        for name, each in ((PERMITS, self.rates), *self.resources.items()):
            for rate in each:
                self._check(name, rate)

    @property
    def phase(self) -> float:
        """How much later the permits come up than on the epoch's grid, as a part of the gap between two, 0 <= phase < 1."""
        return self._part.phase

    @property
    def is_plain(self) -> bool:
        """True if the plan is one grid of permits."""
        return self.rule.is_numbered and len(self.rates) == 1 and not self.resources and self.rates[0] is self.rate

    def with_rate(self, per_second: Fraction, adaptive: Adaptive) -> PolicyPlan:
        """Return the plan with another rate that paces, in permits a second, over the same ``per``.

        An exact window has a whole number of permits, within the bounds of ``adaptive`` if there is one.
        """
        permits = per_second * self.rate.per
        if self.rule_of(PERMITS, self.rate).is_whole:
            is_more = permits > Fraction(self.rate.permits)
            whole = -int(-permits // 1) if is_more else int(permits)
            least = math.ceil(Fraction(adaptive.floor) * self.rate.per)
            most = math.floor(Fraction(adaptive.ceiling) * self.rate.per)
            permits = Fraction(max(1, min(max(whole, least), most)))
        rate = Rate(permits, per=self.rate.per)
        rates = [rate if one is self.rate else one for one in self.rates]
        return PolicyPlan(self.policy, rates, self.resources, self._part)

    def part_of(self, count: int) -> PolicyPlan:
        """Return one part of ``count``, the smallest; at least one permit of each limit that has any."""
        for most in range(count, 0, -1):
            with suppress(ValueError):
                return PolicyPlan(self.policy, self.rates, self.resources, self._part._replace(peers=most, rank=0))
        return self

    def grid(self, now_ns: int) -> PermitGrid:
        """Create the permits of the rate that paces."""
        return self.rule.grid(self.rate, self._part, now_ns)

    def permits(
        self,
        grid: Pace | None,
        known: Sequence[Bound],
        *,
        now_ns: int,
        time_ns: Callable[[], int],
        wall_ns: Callable[[], int],
    ) -> CombinedPermits:
        """Create the permits that admit starts; the state of ``grid`` and ``known`` is kept as far as it fits."""
        if not self.rule.is_numbered or self.rate not in self.rates:
            grid = None
        elif grid is None:
            grid = self.grid(now_ns)
        elif grid.rate != self.rate:
            grid.set_rate(self.rate, now_ns)
        known = list(known)
        bounds = [
            self._bound(name, rate, now_ns=now_ns, wall_ns=wall_ns)
            for name, each in ((PERMITS, self.rates), *self.resources.items())
            for rate in each
            if not (name == PERMITS and grid is not None and rate is self.rate)
        ]
        rest = [bound for bound in bounds if not _go_on(bound, known, now_ns, is_same=True)]
        for bound in rest:
            _go_on(bound, known, now_ns, is_same=False)
        if self.rate.is_zero:  # a pause: the counts of the limits are needed when it ends
            bounds += [bound for bound in known if bound.resource == PERMITS]
        return CombinedPermits(grid, bounds, rate=self.rate, time_ns=time_ns)

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
        given: object = rate
        if isinstance(rate, Rate):
            rule = self.rule_of(name, rate)
            if rule.is_whole and not rate.is_unlimited:
                check_whole(where, rate)
            if rule.has_depth and name == PERMITS:
                where, given = "policy", self.policy
        if self._depth(name, rate) == 0 and rate.permits != 0:
            raise ValueError(
                f"{where} must have at least one permit for each of the {self._part.peers} peers, got {given!r}"
            )

    def _depth(self, name: str, rate: Rate | Quota) -> int | None:
        """Return the largest cost that a rate admits; None if any."""
        if isinstance(rate, Quota):
            return self._part.of(rate.permits)
        if rate.is_unlimited or rate.is_zero:
            return None
        depth = self.rule_of(name, rate).depth(rate, name)
        return None if depth is None else self._part.of(depth)

    def rule_of(self, name: str, rate: Rate) -> Rule:
        """Return the rule of a rate: the plan's own for the shortest of a resource, an exact window for the others."""
        each = self.rates if name == PERMITS else self.resources[name]
        shortest = min((one for one in each if isinstance(one, Rate)), key=lambda one: one.per)
        return self.rule if rate is shortest else self.rule.beside

    def _bound(self, name: str, rate: Rate | Quota, *, now_ns: int, wall_ns: Callable[[], int]) -> Bound:
        if isinstance(rate, Quota):
            quota = QuotaLimit(
                self._part.of(rate.permits),
                period_of=rate.period_ns,
                wall_ns=wall_ns,
                margin_ns=self.rule.beside.margin_ns,
            )
            return Bound(quota, resource=name, text=str(rate), kind="quota", period=str(rate).split(" ", 1)[1])
        rule = self.rule_of(name, rate)
        limit = rule.limit(self._share(rule, rate), self._depth(name, rate), now_ns)
        return Bound(limit, resource=name, text=str(rate), kind=rule.kind, period=rate.per)

    def _share(self, rule: Rule, rate: Rate) -> Rate:
        """Return this peer's part of a rate."""
        if self._part.peers == 1 or rate.is_unlimited:
            return rate
        permits = Fraction(rate.permits)
        return Rate(self._part.of(int(permits)) if rule.is_whole else permits / self._part.peers, per=rate.per)


def _go_on(bound: Bound, known: list[Bound], now_ns: int, *, is_same: bool) -> bool:
    """Change the rate of a known limit of the same kind, so that its counts are kept.

    Args:
        bound: the new limit, which takes over the known one.
        known: the previous limits that were not taken over yet.
        now_ns: the time on the timeline.
        is_same: True if it must have the same period, as a quota must at any rate.
    """
    for one in known:
        if (one.resource, one.kind) != (bound.resource, bound.kind):
            continue
        if (is_same or bound.kind == "quota") and one.period != bound.period:
            continue
        known.remove(one)
        one.limit.change_to(bound.limit, now_ns)
        bound.limit = one.limit
        return True
    return False
