"""Shortening: what a failure does not need is left out, and the rest is as simple and as early as it can be."""

from collections.abc import Callable

from hypothesis import given, strategies

from ratelimited_executor.testing.choices import Deviation
from ratelimited_executor.testing.shrinking import shrink

from ..helpers import examples

Test = Callable[[list[Deviation]], bool]
OPTIONS = ("none", "a", "b", "c")


def _deviation(point: str, number: int, index: int = 1) -> Deviation:
    return Deviation(point, number, OPTIONS[index], OPTIONS[:index])


def _shrink(deviations: list[Deviation], test: Test, runs_max: int = 10_000) -> tuple[list[Deviation], int]:
    count = 0

    def fails(candidate: list[Deviation]) -> list[Deviation] | None:
        nonlocal count
        count += 1
        return candidate if test(candidate) else None

    return shrink(deviations, fails, runs_max=runs_max), count


@given(
    needed=strategies.sets(strategies.integers(0, 199), max_size=4),
    size=strategies.integers(1, 200),
)
@examples(100)
def test_only_what_is_needed_is_left(needed: set[int], size: int) -> None:
    """Of up to 200 deviations those are left that the failure needs, in far fewer runs than there are subsets."""
    points = {f"p{number}" for number in needed if number < size}

    left, count = _shrink(
        [_deviation(f"p{number}", 1) for number in range(size)],
        lambda candidate: points <= {each.point for each in candidate},
    )

    assert points == {each.point for each in left}
    assert len(points) == len(left)
    assert count <= 2 * size + 100


def test_values_become_simpler() -> None:
    """A value is replaced by the simplest one with which it still fails."""
    left, _ = _shrink([_deviation("p", 1, 3)], lambda each: bool(each) and each[0].value in ("b", "c"))

    assert [_deviation("p", 1, 2)] == left


def test_deviations_come_earlier() -> None:
    """A deviation moves to the first place at which it still fails."""
    left, _ = _shrink([_deviation("p", 57)], lambda each: bool(each) and each[0].number >= 9)

    assert [_deviation("p", 9)] == left


def test_a_failure_without_deviations_needs_none() -> None:
    """If nothing is needed, nothing is left."""
    left, count = _shrink([_deviation("p", number) for number in range(1, 100)], lambda _: True)

    assert [] == left
    assert count < 10


def test_runs_are_limited() -> None:
    """It takes no more runs than it may, and returns the best until then."""
    deviations = [_deviation(f"p{number}", 1) for number in range(100)]

    left, count = _shrink(deviations, lambda each: len(each) >= 50, runs_max=3)

    assert 3 == count
    assert 50 <= len(left) <= 100
    assert (deviations, 0) == _shrink(deviations, lambda _: True, runs_max=0)


def test_what_was_made_counts_and_not_what_was_asked_for() -> None:
    """A run that does not come to some of its deviations goes on without those."""

    def fails(candidate: list[Deviation]) -> list[Deviation] | None:
        made = [each for each in candidate if each.point == "p0"]
        return made or None

    left = shrink([_deviation(f"p{number}", 1) for number in range(8)], fails, runs_max=100)

    assert [_deviation("p0", 1)] == left
