"""One of each policy, and of each kind of limit: what holds for all of them is tested with these.

Whoever adds a policy or a limit adds it here; ``runtime/limits/test_policy.py`` and ``core/limits/test_limit.py`` fail
until then. A test of fewer of them says which, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable

from ratelimited_executor._core.limits.exact_paced import ExactPacedLimit
from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.limits.quota import QuotaLimit
from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._runtime.limits.policy import Policy
from ratelimited_executor.policies import Burst, Paced, Window

NS = 1_000_000_000
SLACK = 20_000_000

# Each policy, given how many tasks it may start at once after a pause, if it is one of those that do.
POLICIES: dict[type, Callable[[int], Policy]] = {
    Paced: lambda _: Paced(),
    Window: lambda _: Window(),
    Burst: Burst,
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
    return [make(burst) for make in POLICIES.values()]


def _depth_of(rate: Rate) -> int:
    return 1 if rate.is_unlimited or rate.is_zero else int(rate.permits)


def _period_of(wall_ns: int, length_ns: int) -> tuple[int, int]:
    begin_ns = wall_ns // length_ns * length_ns
    return begin_ns, begin_ns + length_ns
