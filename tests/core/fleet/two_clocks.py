"""Two clocks that drift, and the messages between them."""

from fractions import Fraction

from hypothesis import strategies as st

from ratelimited_executor._core.fleet.clock import ServerClock

NS = 1_000_000_000
MS = 1_000_000
NOW_NS = 1_704_067_200 * NS
DELAYS = st.one_of(st.sampled_from([0, 1, 1000, 20 * MS, 80 * MS]), st.integers(0, 5 * MS))
DRIFTS = st.one_of(st.sampled_from([-500, 0, 500]), st.integers(-500, 500))


class TwoClocks:
    """The local clock and the authority's, which drifts from it by some parts per million."""

    def __init__(self, now_ns: int = NOW_NS, ahead_ns: int = 37 * NS) -> None:
        self.now_ns = now_ns
        self._server = (now_ns + ahead_ns) * 1_000_000
        self.drift = 0

    @property
    def server_ns(self) -> Fraction:
        """The authority's time."""
        return Fraction(self._server, 1_000_000)

    def run(self, passed_ns: int) -> None:
        """Let time pass."""
        self.now_ns += passed_ns
        self._server += passed_ns * (1_000_000 + self.drift)

    def step(self, by_ns: int) -> None:
        """Set the authority's clock."""
        self._server += by_ns * 1_000_000

    def exchange(self, clock: ServerClock, out_ns: int, back_ns: int) -> bool:
        """Ask the authority for its time in whole microseconds."""
        sent = self.now_ns
        self.run(out_ns)
        told = int(self.server_ns) // 1000 * 1000
        self.run(back_ns)
        return clock.measure(told, sent, self.now_ns)

    def off(self, clock: ServerClock) -> Fraction:
        """Return how far the true time is outside of the bounds; at most 0 if they contain it."""
        return abs(clock.at(self.now_ns) - self.server_ns) - clock.error_ns(self.now_ns)
