"""The limits of a plan in the form that a group of processes shares, and the permits derived from their tickets."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING
from zlib import crc32

from ratelimited_executor._core.fleet.budget import BudgetLimit, BudgetPermits, KeyBudgetLimit
from ratelimited_executor._core.fleet.limit_settings import (
    DRIFT,
    BurstSettings,
    LimitSettings,
    PaceSettings,
    QuotaSettings,
    WindowSettings,
)
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit
from ratelimited_executor._core.keys.keys import text_of_key
from ratelimited_executor._core.limits.combined import Bound
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._runtime.limits.quota import Quota, period_number

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ratelimited_executor._core.fleet.budget import TicketBudget
    from ratelimited_executor._runtime.limits.plan import PolicyPlan
    from ratelimited_executor._runtime.limits.policy import Rule

__all__ = ["check_shared", "group_limit_of_key", "group_limits", "group_permits"]

_US = 1_000_000


def check_shared(rule: Rule) -> None:
    """Refuse a policy whose limits have no form that a group shares.

    Raises:
        TypeError: if it is such a policy.
    """
    _settings_by(rule, PERMITS, Rate(1), is_exact=True)


def group_limits(
    plan: PolicyPlan, *, valid_us: int, late_us: int, is_exact: bool
) -> tuple[str, Callable[[int], tuple[PlanLimit, ...]]]:
    """Return a name of a plan's limits, and a function that describes them at the authority's time (epoch us).

    Args:
        plan: the plan of this process.
        valid_us: the longest time for which a ticket under a quota may be used.
        late_us: the largest difference between the calendars of processes.
        is_exact: True if a pace holds in any window; if False, it may be exceeded by one ticket.
    """
    fixed: list[tuple[str, str, LimitSettings | Quota]] = []
    for resource, each in ((PERMITS, plan.rates), *plan.resources.items()):
        for rate in each:
            if isinstance(rate, Quota):
                fixed.append((f"{resource}/quota/{rate.per}", resource, rate))
            elif not rate.is_unlimited:
                kind, settings = _settings_of(plan, resource, rate, is_exact=is_exact)
                fixed.append((f"{resource}/{kind}", resource, settings))

    names = [name for name, _, _ in fixed]
    for place, (name, resource, one) in enumerate(fixed):  # two windows of one length count separately
        count = names[:place].count(name)
        fixed[place] = (f"{name}#{count + 1}" if count else name, resource, one)

    def limits_at(now_us: int) -> tuple[PlanLimit, ...]:
        return tuple(
            PlanLimit(
                name,
                resource,
                (_periods_of(one, now_us, valid_us, late_us) if isinstance(one, Quota) else one).write(),
            )
            for name, resource, one in fixed
        )

    rates = {PERMITS: plan.rates, **plan.resources}
    text = "; ".join(f"{resource} {', '.join(map(str, each))}" for resource, each in rates.items())
    return f"{plan.policy} {text}", limits_at


def group_limit_of_key(
    plan: PolicyPlan, rate: Rate, key: Hashable, budget: TicketBudget, *, is_exact: bool
) -> KeyBudgetLimit | None:
    """Return the group's limit for a key's rate; None if the rate is infinite."""
    if rate.is_unlimited:
        return None
    rule = plan.rule
    _, settings = _settings_by(rule, PERMITS, rate, is_exact=is_exact)
    per_second = rate.per_second
    return KeyBudgetLimit(
        budget,
        text_of_key(key),
        settings.write(),
        cost_max=0 if rate.is_zero else rule.depth(rate, PERMITS),
        per_second=None if per_second is None else float(per_second),
    )


def _settings_of(plan: PolicyPlan, resource: str, rate: Rate, *, is_exact: bool) -> tuple[str, LimitSettings]:
    return _settings_by(plan.rule_of(resource, rate), resource, rate, is_exact=is_exact)


def _settings_by(rule: Rule, resource: str, rate: Rate, *, is_exact: bool) -> tuple[str, LimitSettings]:
    ratio = rate.per_second
    assert ratio is not None
    count, per_us = ratio.numerator, ratio.denominator * _US
    if rule.kind == "rate":
        return "rate", PaceSettings.of(count, per_us, is_exact=is_exact)
    if rule.kind == "burst":
        return "burst", BurstSettings.of(rule.depth(rate, resource) or 1, count, per_us)
    if rule.kind != "window":
        raise TypeError(
            f"policy must be one that processes can share, such as Paced(), got {rule.policy!r}: use one of those, or omit peers="
        )
    width_us = math.ceil(Fraction(rate.per) * _US) + rule.beside.margin_ns // 1000
    return f"window/{float(rate.per):g}", WindowSettings.of(int(rate.permits), width_us)


def _periods_of(quota: Quota, now_us: int, valid_us: int, late_us: int) -> QuotaSettings:
    begin, end = quota.period(now_us / _US)
    _, next_end = quota.period(end)
    return QuotaSettings(
        amount=quota.permits,
        calendar=crc32(f"{quota.per} {quota.start} {quota.tz}".encode()),
        number=max(1, period_number(quota, begin)),
        begin_us=max(round(begin) * _US, valid_us + late_us),
        end_us=round(end) * _US,
        next_end_us=round(next_end) * _US,
        valid_us=valid_us,
        late_us=late_us,
    )


def group_permits(plan: PolicyPlan, budget: TicketBudget, *, time_ns: Callable[[], int]) -> BudgetPermits:
    """Return permits that admit a start if tickets cover its permits, and each resource that it needs."""
    return BudgetPermits(
        None,
        [
            Bound(
                BudgetLimit(
                    budget,
                    resource,
                    cost_max=plan.cost_max(resource),
                    is_free=all(isinstance(rate, Rate) and rate.is_unlimited for rate in each),
                    estimate=_estimate_of(each),
                ),
                resource=resource,
                text=", ".join(map(str, each)),
                kind="group",
            )
            for resource, each in ((PERMITS, plan.rates), *plan.resources.items())
        ],
        rate=plan.rate,
        time_ns=time_ns,
    )


def _estimate_of(rates: Sequence[Rate | Quota]) -> Callable[[int, int], int | None]:
    """Return a function that estimates when an amount will have been admitted, if this process gets all of the rate."""
    ratios = [rate.per_second for rate in rates if isinstance(rate, Rate) and rate.per_second is not None]
    slowest = min(ratios, default=None)

    def estimate(amount: int, now_ns: int) -> int | None:
        if slowest is None:
            return now_ns
        return None if not slowest else now_ns + int(amount * 1_000_000_000 * (1 + DRIFT) / slowest)

    return estimate
