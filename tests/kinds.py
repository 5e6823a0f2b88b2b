"""One of each policy, and of each kind of limit: what holds for all of them is tested with these.

Whoever adds a policy or a limit adds it here; ``runtime/limits/test_policy.py`` and ``core/limits/test_limit.py`` fail
until then. What a test has to know of a policy stands beside it, not in the test. A test of fewer of them says which, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ratelimited_executor._core.limits.exact_paced import ExactPacedLimit
from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._runtime.limits.policy import Policy
from ratelimited_executor.policies import Burst, Paced, Strictness, Window
from ratelimited_executor.testing import audit, worst_window

NS = 1_000_000_000
SLACK = 20_000_000
LATE = 0.005  # how much later than its decision a task's first line may run


class PolicyKind(NamedTuple):
    """What tests know of a policy.

    Attributes:
        make: makes one, given how many tasks it may start at once after a pause, if it is one of those that do.
        at_once: returns how much may start at one instant, given policy, rate, and if that is the rate of a resource;
            None if any amount may, and later starts wait until it is paid for.
        excess: returns by how much the costs of starts exceed the law, given policy, times, rate, costs and ``at_once``.
    """

    make: Callable[[int], Policy]
    at_once: Callable[[Any, Rate, bool], int | None]
    excess: Callable[[Any, Sequence[float], Rate, Sequence[int], Any], float]


POLICIES: dict[type, PolicyKind] = {
    Paced: PolicyKind(
        lambda _: Paced(),
        lambda policy, rate, is_resource: None,
        lambda policy, times, rate, costs, at_once: (
            audit(
                times, rate, slack=None if policy.strictness is Strictness.EXACT else policy.slack, costs=costs
            ).worst_excess
        ),
    ),
    Window: PolicyKind(
        lambda _: Window(),
        lambda policy, rate, is_resource: int(rate.permits),
        lambda policy, times, rate, costs, at_once: worst_window(times, float(rate.per), costs=costs)[0] - at_once,
    ),
    Burst: PolicyKind(
        Burst,
        lambda policy, rate, is_resource: int(rate.permits) if is_resource else policy.permits,
        lambda policy, times, rate, costs, at_once: (
            audit(times, rate, slack=LATE, burst=at_once, costs=costs).worst_excess
        ),
    ),
}

# Each limit of so many permits in so many seconds, given its source of time.
LIMITS: dict[type, Callable[[Rate, Callable[[], int]], Limit]] = {
    WindowLimit: lambda rate, _: WindowLimit(rate),
    TokenBucketLimit: lambda rate, clock: TokenBucketLimit(rate, depth=_depth_of(rate), now_ns=clock()),
    PacedLimit: lambda rate, _: PacedLimit(rate, slack_ns=SLACK),
    ExactPacedLimit: lambda rate, _: ExactPacedLimit(rate, slack_ns=SLACK),
    QuotaLimit: lambda rate, clock: QuotaLimit(
        int(rate.permits), period_of=lambda wall: _period_of(wall, int(rate.per * NS)), wall_ns=clock
    ),
}


def each_policy(burst: int) -> list[Policy]:
    """Return one of each policy."""
    return [kind.make(burst) for kind in POLICIES.values()]


def at_once(policy: Policy, rate: Any, *, is_resource: bool = False) -> int | None:
    """Return how much a policy lets start at one instant; None if any amount, which later starts pay for."""
    return POLICIES[type(policy)].at_once(policy, Rate.of(rate), is_resource)


def check_law(
    policy: Policy,
    times: Sequence[float],
    rate: Any,
    *,
    costs: Sequence[int] | None = None,
    is_resource: bool = False,
) -> None:
    """Assert that starts keep the law of a policy."""
    costs = [1] * len(times) if costs is None else costs
    depth = at_once(policy, rate, is_resource=is_resource)
    excess = POLICIES[type(policy)].excess(policy, times, Rate.of(rate), costs, depth)
    assert excess <= 0, f"{policy} at {rate} is exceeded by {excess:g}"


def _depth_of(rate: Rate) -> int:
    return 1 if rate.is_unlimited or rate.is_zero else int(rate.permits)


def _period_of(wall_ns: int, length_ns: int) -> tuple[int, int]:
    begin_ns = wall_ns // length_ns * length_ns
    return begin_ns, begin_ns + length_ns
