"""The policies: what a rate means for starts that are close together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from ratelimited_executor._core.limits.exact_paced import ExactPacedLimit
from ratelimited_executor._core.limits.paced import PacedLimit
from ratelimited_executor._core.limits.token_bucket import TokenBucketLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.exact import ExactGrid, ExactShare
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._core.permits.strictness import Strictness
from ratelimited_executor._core.queue.records import PERMITS
from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.arguments import count_of, delay_of

if TYPE_CHECKING:
    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.limits.limit import Limit
    from ratelimited_executor._core.permits.rates import Rate

__all__ = [
    "WHOLE",
    "Burst",
    "Paced",
    "Part",
    "Policy",
    "Rule",
    "WhenFull",
    "Window",
    "check_key_rate",
    "check_whole",
    "limit_of_key",
    "rule_of",
]

# A task's first line runs a little after its start was decided: a coroutine's on the loop's next turn. This much of the
# slack is reserved for that, so that the law also holds for times that are read there.
RESERVE_SECONDS: Final = 0.005
_SLACK_SECONDS: Final = 0.02  # the default for a permit: how late a timer may be at no cost


class Part(NamedTuple):
    """The part of one peer of several that share a rate.

    Attributes:
        peers: the number of peers.
        rank: the rank of this one.
        phase: how much later the permits of a grid come up than on the epoch's grid, as a part of the gap between two
            permits, 0 <= phase < 1; the same for all peers.
    """

    peers: int = 1
    rank: int = 0
    phase: float = 0.0

    def of(self, permits: int) -> int:
        """Return its part of a number of permits."""
        return permits * (self.rank + 1) // self.peers - permits * self.rank // self.peers


WHOLE: Final = Part()


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Paced:
    """Start tasks on a grid of permits: one permit every ``1 / rate`` seconds.

    By default never more tasks start in any window of the rate's ``per`` than it has permits. With
    ``strictness=Strictness.NOMINAL`` at most ``rate x (b - a + slack) + 1`` start in any window [a, b].

    Args:
        slack: how many seconds after its time a permit may still be used, >= 0, so that a late timer costs nothing. A
            quarter of it, at most 5 ms, is reserved for the time between the decision and the first line of the task.
        strictness: which of the two laws holds.
    """

    slack: float
    strictness: Strictness

    def __init__(self, slack: DurationLike = _SLACK_SECONDS, strictness: Strictness = Strictness.EXACT) -> None:
        if not isinstance(strictness, Strictness):
            raise TypeError(f"strictness must be Strictness.EXACT or Strictness.NOMINAL, got {strictness!r}")
        object.__setattr__(self, "slack", delay_of("slack", slack))
        object.__setattr__(self, "strictness", strictness)

    def __repr__(self) -> str:
        strictness = "" if self.strictness is Strictness.EXACT else f", strictness={self.strictness}"
        return f"Paced(slack={self.slack!r}{strictness})"


@dataclass(frozen=True, slots=True, init=False)
class Window:
    """Start tasks as soon as the rate allows: never more than its ``permits`` in any window of its ``per``, exactly.

    Nothing is spread: at a rate of 100 a minute, 100 tasks may start at once, and the next one a minute after the first.

    Args:
        margin: seconds by which a start may take effect later than it was decided, >= 0: a start waits for ``per`` plus
            this after the one that it follows. The default covers the time to a task's first line; for a limit that is enforced
            at the other end of a network, add the variation of the latency.
    """

    margin: float

    def __init__(self, margin: DurationLike = RESERVE_SECONDS) -> None:
        object.__setattr__(self, "margin", delay_of("margin", margin))


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


class Rule(ABC):
    """The limits that a policy creates for a rate.

    It is used for the rate that paces an executor, that of each resource, and that of each key. Of several rates of one
    thing, the one with the shortest ``per`` paces, and the others are exact windows beside it.

    Args:
        policy: the user's policy.
    """

    __slots__ = ("policy",)

    kind: ClassVar[str]  # the kind of its limits in statistics
    example: ClassVar[str]  # how the policy is written
    is_numbered: ClassVar[bool] = (
        False  # True if the permits of the rate that paces are numbered, and created by grid()
    )
    is_whole: ClassVar[bool] = False  # True if a rate must be a whole number of permits
    has_depth: ClassVar[bool] = False  # True if the policy, not the rate, says how much may start at one instant

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    @property
    def usable_seconds(self) -> float:
        """How long a permit may be used, less the reserve for the time to a task's first line."""
        return _less_reserve(_SLACK_SECONDS)

    @property
    def beside(self) -> WindowRule:
        """The rule of further rates."""
        return WindowRule(Window())

    @abstractmethod
    def depth(self, rate: Rate, resource: str) -> int | None:
        """Return how much of a resource may start at one instant, for a finite rate of all peers; None for any.

        It is the largest cost of a start as well, and what peers with fixed parts divide: each gets its part of it, which
        must be at least 1.
        """

    @abstractmethod
    def limit(self, rate: Rate, depth: int | None, now_ns: int) -> Limit:
        """Create the limit of a rate, which may be 0 or infinite.

        Args:
            rate: this peer's part of it.
            depth: its part of :meth:`depth`; None if that is any amount, and at a rate of 0 or infinity.
            now_ns: the time on the timeline.
        """

    @abstractmethod
    def limit_of_key(self, rate: Rate, now_ns: int, *, spacing: Fraction) -> Limit:
        """Create the limit of a key's rate, which is finite.

        Args:
            rate: the rate of the key.
            now_ns: the time on the timeline.
            spacing: seconds between two permits of the executor: a key whose time has come waits for the next of them.
        """

    def grid(self, rate: Rate, part: Part, now_ns: int) -> PermitGrid:
        """Create the numbered permits of the rate that paces, if the policy has them."""
        raise NotImplementedError(f"{self.policy!r} has no numbered permits")


class PacedRule(Rule):
    """A grid of permits, or a pace in a single number where a grid would be too much."""

    __slots__ = ()

    kind: ClassVar[str] = "rate"
    example: ClassVar[str] = "Paced()"
    is_numbered: ClassVar[bool] = True

    @property
    def usable_seconds(self) -> float:
        """How long a permit may be used, less the reserve for the time to a task's first line."""
        return _less_reserve(self.policy.slack)

    def depth(self, rate: Rate, resource: str) -> None:
        """Return None: any amount may start, and later tasks wait until it is paid for."""

    def limit(self, rate: Rate, depth: int | None, now_ns: int) -> Limit:  # noqa: ARG002  # it has neither depth nor begin
        """Create a pace of the policy's strictness."""
        return _paced(self.policy, rate, round(self.usable_seconds * NS))

    def limit_of_key(self, rate: Rate, now_ns: int, *, spacing: Fraction) -> Limit:  # noqa: ARG002  # the signature of all rules
        """Create a pace that forgives at most two permits of the executor and two starts of the key.

        Otherwise a key would lose rate because the two paces are out of step.
        """
        return _paced_of_key(self.policy, rate, spacing).unused()

    def grid(self, rate: Rate, part: Part, now_ns: int) -> PermitGrid:
        """Create the numbered permits of a rate, or this peer's part of them."""
        slack_ns = round(self.usable_seconds * NS)
        if self.policy.strictness is Strictness.NOMINAL:
            return PermitGrid(
                rate, slack_ns=slack_ns, now_ns=now_ns, peers=part.peers, rank=part.rank, phase=part.phase
            )
        if part.peers == 1:
            return ExactGrid(rate, slack_ns=slack_ns, now_ns=now_ns, phase=part.phase)
        return ExactShare(
            rate,
            slack_ns=round(self.policy.slack * NS),
            reserve_ns=round(RESERVE_SECONDS * NS),
            now_ns=now_ns,
            peers=part.peers,
            rank=part.rank,
            phase=part.phase,
        )


class WindowRule(Rule):
    """An exact window."""

    __slots__ = ()

    kind: ClassVar[str] = "window"
    example: ClassVar[str] = "Window()"
    is_whole: ClassVar[bool] = True

    @property
    def beside(self) -> WindowRule:
        """The rule itself."""
        return self

    @property
    def margin_ns(self) -> int:
        """How much later than its decision a start may take effect."""
        margin: float = self.policy.margin
        return round(margin * NS)

    def depth(self, rate: Rate, resource: str) -> int:  # noqa: ARG002  # it is the same for all
        """Return the permits of a window."""
        return int(rate.permits)

    def limit(self, rate: Rate, depth: int | None, now_ns: int) -> Limit:  # noqa: ARG002  # its rate says it all
        """Create a window."""
        return WindowLimit(rate, margin_ns=self.margin_ns)

    def limit_of_key(self, rate: Rate, now_ns: int, *, spacing: Fraction) -> Limit:  # noqa: ARG002  # it has no pace
        """Create a window."""
        return WindowLimit(rate, margin_ns=self.margin_ns)


class BurstRule(Rule):
    """A token bucket."""

    __slots__ = ()

    kind: ClassVar[str] = "burst"
    example: ClassVar[str] = "Burst(n), with its depth"
    has_depth: ClassVar[bool] = True

    def depth(self, rate: Rate, resource: str) -> int:
        """Return the depth of the bucket; for a resource, the permits of its ``per``."""
        permits: int = self.policy.permits
        return permits if resource == PERMITS else int(rate.permits)

    def limit(self, rate: Rate, depth: int | None, now_ns: int) -> Limit:
        """Create a bucket."""
        return TokenBucketLimit(rate, depth=depth or 1, now_ns=now_ns)

    def limit_of_key(self, rate: Rate, now_ns: int, *, spacing: Fraction) -> Limit:  # noqa: ARG002  # it has no pace
        """Create a bucket."""
        return TokenBucketLimit(rate, depth=self.policy.permits, now_ns=now_ns)


RULES: Final[dict[type, type[Rule]]] = {Paced: PacedRule, Window: WindowRule, Burst: BurstRule}


def rule_of(policy: Any) -> Rule:
    """Return the rule of a policy; a class in place of an object is refused, and the error names it.

    Raises:
        TypeError: if it is not a policy.
    """
    for kind, rule in RULES.items():
        if isinstance(policy, kind):
            return rule(policy)
    *most, last = (kind.__name__ for kind in RULES)
    wanted = f"policy must be a {', '.join(most)} or {last}"
    for kind, rule in RULES.items():
        if isinstance(policy, type) and issubclass(policy, kind):
            raise TypeError(f"{wanted}, got the class {policy.__name__}: write {rule.example}")
    raise TypeError(f"{wanted}, got {policy!r}")


class WhenFull(Enum):
    """What happens to a task when ``max_pending`` tasks are already waiting."""

    RAISE = "raise"
    """The call raises ``BacklogFullError``, and nothing changes."""

    WAIT = "wait"
    """``await schedule_wait(...)`` waits for room, first come, first served; the other calls raise ``BacklogFullError``."""

    DROP_LOWEST = "drop lowest"
    """The least important task is dropped; among equals, the one due last, which may be the new task."""

    DROP_OLDEST = "drop oldest"
    """The task that has waited longest is dropped."""


def _less_reserve(slack: float) -> float:
    """Return a slack less the reserve for the time to a task's first line."""
    return slack - min(slack / 4, RESERVE_SECONDS)


_NO_SPACING: Final = Fraction(0)


def check_key_rate(rule: Rule, rate: Rate | None) -> None:
    """Refuse a rate of a key that a rule cannot keep.

    Raises:
        ValueError: if it is such a rate.
    """
    if rate is not None and not rate.is_unlimited and rule.is_whole:
        check_whole("key_rate", rate)


def check_whole(name: str, rate: Rate) -> None:
    """Refuse a rate that is not a whole number of permits.

    Raises:
        ValueError: if it is such a rate.
    """
    permits = Fraction(rate.permits)
    if permits.denominator != 1:
        raise ValueError(
            f"{name} must be a whole number of permits where it holds as an exact window, got {rate!r}: "
            f"write Rate({permits.numerator}, per={float(rate.per * permits.denominator):g})"
        )


def limit_of_key(rule: Rule, rate: Rate, now_ns: int, *, spacing: Fraction = _NO_SPACING) -> Limit | None:
    """Create the limit of one key's rate; None if it is infinite. Arguments as for :meth:`Rule.limit_of_key`."""
    return None if rate.is_unlimited else rule.limit_of_key(rate, now_ns, spacing=spacing)


@lru_cache(maxsize=256)  # keys share a handful of rates, and come and go by the thousand
def _paced_of_key(policy: Paced, rate: Rate, spacing: Fraction) -> PacedLimit:
    own = spacing if not rate.per_second else 2 * min(spacing, 1 / rate.per_second)
    slack_ns = round(_less_reserve(policy.slack) * NS) + math.ceil(own * NS)
    return _paced(policy, rate, slack_ns)


def _paced(policy: Paced, rate: Rate, slack_ns: int) -> PacedLimit:
    kind = PacedLimit if policy.strictness is Strictness.NOMINAL else ExactPacedLimit
    return kind(rate, slack_ns=slack_ns)
