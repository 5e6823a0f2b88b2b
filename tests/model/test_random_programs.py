"""The library does what the reference model says for hundreds of random programs, two thousand with ``ALL_CASES=1``, and keeps the laws in real time."""

import itertools
import os

import pytest

from .compare import comparable, differences, replay, shrink
from .laws import broken_laws
from .model import Model
from .play import play_in_real_time
from .programs import SECOND, Program, draw

PROGRAMS_EACH = 34
REAL_TIME = "RANDOM_PROGRAMS_IN_REAL_TIME"  # how many programs run in real time; none if it is not set
SECONDS_MAX = 15  # the longest program that runs in real time


@pytest.mark.parametrize("part", range(60))
def test_random_programs_do_what_the_model_says(part, account, record_property):
    """Starts to the nanosecond, their order, states, and the counts before each operation are those of the model."""
    redrawn = 0
    for seed in range(part * PROGRAMS_EACH, (part + 1) * PROGRAMS_EACH):
        program, expected, attempts = comparable(seed)
        redrawn += attempts
        if differences(program, account, expected):
            fail(seed, program)
    record_property("drawn anew, because of what is known", redrawn)


def fail(seed: int, program: Program) -> None:
    """Fail with the smallest program that shows the same difference."""
    smallest = shrink(program)
    replay(smallest)
    pytest.fail(
        f"seed {seed} differs, and so does this program, which can be pasted into Python:\n\n"
        "from tests.model.compare import replay\nfrom tests.model.programs import Program\n\n"
        f"replay({smallest!r})\n\n" + "\n".join(differences(smallest))
    )


@pytest.mark.real_time("the laws hold with a real clock and timers that are really late")
@pytest.mark.skipif(REAL_TIME not in os.environ, reason=f"run with {REAL_TIME}=500, for half a minute")
@pytest.mark.timeout(3600)
def test_random_programs_keep_the_laws_in_real_time(account, capsys):
    """In real time nothing starts early or over the rate, and the counts always add up; all with wide tolerances.

    A change of the rate takes effect some milliseconds after it is asked for, and a first line runs after its decision.
    """
    count = int(os.environ[REAL_TIME])
    short = (program for program in map(draw, itertools.count()) if program.until <= SECONDS_MAX * SECOND)
    start_count, violations = 0, []
    for programs in _batched(list(itertools.islice(short, count)), 250):
        for program, seen in zip(programs, play_in_real_time(programs, account), strict=True):
            start_count += len(seen.starts)
            broken = broken_laws(program, Model(program).run(), seen, tolerance_ns=5_000_000, slack=0.25)
            violations += [f"{program!r}\n{line}" for line in broken]
    with capsys.disabled():
        print(f"\n{count} programs in real time, {start_count} starts, {len(violations)} violations")
    assert [] == violations


def _batched(programs: list, size: int) -> list[list]:
    return [programs[start : start + size] for start in range(0, len(programs), size)]
