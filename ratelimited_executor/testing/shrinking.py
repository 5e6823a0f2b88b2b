"""Finds the shortest history: fewer deviations, simpler ones, earlier ones.

Theory. Deviations are left out in large parts first, then in smaller ones, as in Zeller and Hildebrandt, "Simplifying and
isolating failure-inducing input" (2002); then each that is left is replaced by a simpler or an earlier one. Every
candidate is run, and kept only if it fails in the same way and is smaller by one measure, so the search ends. It begins
again after each success, until nothing more can go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor.testing.choices import Deviation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["shrink", "size_of"]


def shrink(
    deviations: Sequence[Deviation], fails: Callable[[list[Deviation]], list[Deviation] | None], *, runs_max: int
) -> list[Deviation]:
    """Return the smallest set of deviations found with which a run still fails.

    Args:
        deviations: those of a run that fails.
        fails: runs with the given deviations, and returns those that were made; None if the run does not fail likewise.
        runs_max: how many runs it may take, >= 0.
    """
    return _Shrinking(list(deviations), fails, runs_max).result()


class _Shrinking:
    def __init__(
        self, best: list[Deviation], fails: Callable[[list[Deviation]], list[Deviation] | None], runs_max: int
    ) -> None:
        self.best = best
        self._fails = fails
        self._runs_left = runs_max
        self._tried: set[tuple[Deviation, ...]] = set()

    def result(self) -> list[Deviation]:
        before = None
        while before != self.best and self._runs_left:
            before = self.best
            self._leave_out()
            self._simplify()
        return self.best

    def _leave_out(self) -> None:
        size = len(self.best)
        while size:
            at = 0
            while at < len(self.best):
                if not self._keep(self.best[:at] + self.best[at + size :]):
                    at += size
            size //= 2

    def _simplify(self) -> None:
        at = 0
        while at < len(self.best):
            others = self.best[:at], self.best[at + 1 :]
            if not any(self._keep([*others[0], simpler, *others[1]]) for simpler in _simpler(self.best[at])):
                at += 1

    def _keep(self, candidate: list[Deviation]) -> bool:
        """Go on from a candidate if it fails as well and is smaller; return True if so."""
        key = tuple(candidate)
        if key in self._tried or not self._runs_left:
            return False
        self._tried.add(key)
        self._runs_left -= 1
        made = self._fails(candidate)
        if made is None or size_of(made) >= size_of(self.best):
            return False
        self.best = made
        return True


def size_of(deviations: Sequence[Deviation]) -> tuple[int, int, int]:
    """Return the measure by which histories are compared: how many deviations, how simple, how early."""
    simpler, numbers = [len(each.simpler) for each in deviations], [each.number for each in deviations]
    return len(deviations), sum(simpler), sum(numbers)


def _simpler(deviation: Deviation) -> Iterator[Deviation]:
    """Yield simpler deviations at the same point, the simplest first."""
    point, number, value, simpler = deviation.point, deviation.number, deviation.value, deviation.simpler
    for index, option in enumerate(simpler[1:], start=1):
        yield Deviation(point, number, option, simpler[:index])
    for earlier in sorted({1, number // 2, number - 1} - {0, number}):
        yield Deviation(point, earlier, value, simpler)
