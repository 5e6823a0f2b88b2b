"""Gates of keys for the tests of several modules."""

from ratelimited_executor._core.keys.gate import KeyGate
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.rates import Rate

NS = 1_000_000_000
NOW = 1_704_067_200 * NS
WIDTH = NS + 1000  # nanoseconds added to a window of a second


def gate_of(permits: int = 1, *, concurrency=None, make=lambda rate: WindowLimit(rate)) -> KeyGate:
    """Return a gate that knows one slow key."""
    return KeyGate(
        limit_of=lambda key: make(Rate(permits)) if key == "slow" else None,
        concurrency_of=lambda key: concurrency,
    )
