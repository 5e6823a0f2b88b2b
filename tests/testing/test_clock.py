"""The virtual clock alone: where it starts, its two scales, and what it refuses."""

import math

import pytest

from ratelimited_executor.abc import Clock
from ratelimited_executor.testing import VirtualClock


def test_clock_starts_at_the_same_instant_in_every_run() -> None:
    """A fresh clock reads 0 on the monotonic scale, and the first second of 2024 (UTC) on the wall."""
    clock = VirtualClock()

    assert (0.0, 1_704_067_200.0) == (clock.monotonic(), clock.wall())


def test_clock_is_a_clock() -> None:
    """The virtual clock satisfies the protocol that a manager takes."""
    assert isinstance(VirtualClock(), Clock)


def test_block_moves_both_scales() -> None:
    """Time that passes in a blocking callback passes on the monotonic scale and on the wall alike."""
    clock = VirtualClock(start_wall=100.0)

    clock.block(2.5)

    assert (2.5, 102.5) == (clock.monotonic(), clock.wall())


@pytest.mark.parametrize(("seconds", "expected"), [(3600.0, 4600.0), (-3600.0, -2600.0), (0, 1000.0)])
def test_step_moves_the_wall_only(seconds: float, expected: float) -> None:
    """A step in either direction changes the wall clock and leaves monotonic time alone."""
    clock = VirtualClock(start_wall=1000)

    clock.step_wall(seconds)

    assert (0.0, expected) == (clock.monotonic(), clock.wall())


def test_steps_add_up_and_time_goes_on_after_them() -> None:
    """Two steps of the wall clock and the time between them add up exactly."""
    clock = VirtualClock(start_wall=0)

    clock.step_wall(10)
    clock.block(1)
    clock.step_wall(-3)

    assert (1.0, 8.0) == (clock.monotonic(), clock.wall())


@pytest.mark.parametrize("seconds", [-1.0, -math.ulp(0.0), math.nan, math.inf, -math.inf])
def test_block_refuses_to_run_backwards_or_for_ever(seconds: float) -> None:
    """A negative or infinite blocking time is refused by name, and the clock stays where it is."""
    clock = VirtualClock()

    with pytest.raises(ValueError, match="seconds must be"):
        clock.block(seconds)

    assert 0.0 == clock.monotonic()


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_step_refuses_what_is_no_time(seconds: float) -> None:
    """A step that is not finite is refused, and the wall clock stays where it is."""
    clock = VirtualClock(start_wall=5)

    with pytest.raises(ValueError, match="seconds must be finite"):
        clock.step_wall(seconds)

    assert 5.0 == clock.wall()


def test_clock_refuses_a_start_that_is_no_number() -> None:
    """A text in place of the start is a TypeError, an infinite start a ValueError; both name the parameter."""
    with pytest.raises(TypeError, match="start_wall"):
        VirtualClock(start_wall="now")  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(ValueError, match="start_wall"):
        VirtualClock(start_wall=math.inf)


def test_repr_shows_both_scales() -> None:
    """The representation shows both scales, so that a test can be followed."""
    assert "VirtualClock(monotonic=0, wall=1704067200.000000000)" == repr(VirtualClock())
