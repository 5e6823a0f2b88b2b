"""Phases of executors: even for any number of them in a process, and the same for a name in every process."""

import pytest

from ratelimited_executor._core.permits.phases import phase_of, phases


@pytest.mark.parametrize("count", [2, 3, 5, 10, 50, 1000])
def test_phases_lie_apart_nearly_evenly_however_many_there_are(count):
    """The widest gap between two of the first ``count`` phases is less than twice as wide as if they were even."""
    found = sorted(phase for phase, _ in zip(phases(), range(count), strict=False))
    gaps = [later - earlier for earlier, later in zip(found, [*found[1:], found[0] + 1], strict=True)]
    assert found[0] == 0
    assert max(gaps) < 2 / count


def test_phase_of_a_name_is_the_same_everywhere():
    """The phase of a name depends on nothing but the name, and is part of the protocol between peers."""
    assert phase_of("mail") == 0x5126AC48 / 2**32
    assert all(0 <= phase_of(name) < 1 for name in ("", "x", "é", "\ud800", "a" * 10_000))
