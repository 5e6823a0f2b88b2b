"""Random programs do the same on both kernels in all that can be observed, and the comparison finds flaws."""

import json
import sys

import pytest

from ...helpers import first_quick
from . import __main__ as command
from .broken import BROKEN
from .compare import Sides, difference, shrink
from .corners import CORNERS
from .programs import draw
from .sides import SECONDS_MAX, Side

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the sides are waited for by select() on pipes")

PROGRAMS_EACH = 10
BROKEN_PROGRAMS_MAX = 60  # how many random programs may be needed to find a flaw


@pytest.fixture(scope="module")
def pure():
    """The pure kernel in a process of its own."""
    with Side(is_pure=True) as side:
        yield side


@pytest.fixture(scope="module")
def sides(pure):
    """Both kernels. Tests are skipped if there is no compiled kernel; other tests check whether there should be one."""
    with Side(is_pure=False) as compiled:
        if not compiled.kernel["is_compiled"]:
            pytest.skip(f"there is no compiled kernel: {compiled.kernel['kernel']}")
        yield Sides(pure, compiled)


@pytest.mark.parametrize("group", first_quick(range(10)))
def test_random_programs_do_the_same_on_both_kernels(sides, group):
    """Starts, times, arguments, order, states, counts, errors, contexts and texts are equal on both kernels."""
    found = sides.first_difference(range(group * PROGRAMS_EACH, (group + 1) * PROGRAMS_EACH))
    if found is not None:
        pytest.fail(sides.report(*found), pytrace=False)


@pytest.mark.parametrize("name", CORNERS)
def test_many_tasks_do_the_same_on_both_kernels(sides, name):
    """The kernels also agree where buckets are large, cut into slots, merged, compacted, spread or used up."""
    program = CORNERS[name]
    if sides.differ(program):
        pytest.fail(sides.report(None, shrink(program, sides.differ)), pytrace=False)


# The comparison itself.


def test_program_does_the_same_each_time(pure):
    """The events of a program depend neither on the process nor on the programs that ran in it before."""
    with Side(is_pure=True) as other:
        sides = Sides(pure, other)
        other.run(draw(1))
        for program in [*map(draw, range(0, 100, 8)), CORNERS["compacted in steps"]]:
            one, another = sides.run(program)
            assert one == another, difference(one, another, "one", "other")


def test_programs_are_data_and_do_much():
    """A seed always gives the same program, which JSON can hold; 300 of them contain the rare operations, too."""
    programs = [draw(seed) for seed in range(300)]
    assert programs == [json.loads(json.dumps(draw(seed))) for seed in range(300)]
    text = json.dumps(programs)
    assert [] == [
        name
        for name in ("call_later", "schedule", "many", "flood", "shutdown", "types_coroutine", "bad")
        if f'"{name}"' not in text
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_flaw_is_found(pure, name):
    """A kernel with a deliberate flaw differs in one of the first random programs, or in the large one for it."""
    corner = BROKEN[name].corner
    programs = map(draw, range(BROKEN_PROGRAMS_MAX)) if corner is None else [CORNERS[corner]]
    with Side(is_pure=True, broken=name, seconds_max=3.0 if "hangs" in name else SECONDS_MAX) as broken:
        assert any(map(Sides(pure, broken).differ, programs))


@pytest.mark.slow
def test_report_has_a_small_program_that_can_be_run_again(pure, tmp_path, capsys):
    """The program in a report still differs; the report shows the first difference and a command to run it again."""
    with Side(is_pure=True, broken="done callbacks come in another order") as broken:
        sides = Sides(pure, broken)
        seed, program = sides.first_difference(range(BROKEN_PROGRAMS_MAX))
        report = sides.report(seed, program)
    assert len(program["ops"]) <= 4
    assert f"seed {seed}" in report
    printed = report.partition("<<'PROGRAM'\n")[2].partition("PROGRAM")[0]
    assert program == json.loads(printed)
    assert "event " in report
    path = tmp_path / "program.json"
    path.write_text(printed)
    assert 0 == command.main(["replay", str(path), "--kernel", "pure"])
    assert "end" in [json.loads(line)[0] for line in capsys.readouterr().out.splitlines()]
    assert 1 == command.main(["--broken", "done callbacks come in another order", "replay", str(path)])
    assert "differs" in capsys.readouterr().out


@pytest.mark.slow
def test_process_that_dies_is_told_and_started_again(pure):
    """The events name the signal that killed a process and the place; the next program gets a new process."""
    call = [0.0, {"do": "call_later", "name": "c", "delay": 1.0, "call": {"kind": "function"}}]
    program = {"executors": [{}], "until": 1.0, "ops": [call, [0.5, {"do": "cancel", "of": "c"}]]}
    with Side(is_pure=True, broken="a process dies") as broken:
        ((what, words),) = broken.run(program)
        assert "died" == what
        assert "SIGSEGV" in words
        assert "do_cancel" in words
        program["ops"].pop()
        assert pure.run(program) == broken.run(program)


@pytest.mark.slow
def test_process_that_hangs_is_ended(pure):
    """A program that hangs counts as a difference, and the next program gets a new process."""
    call = [0.0, {"do": "call_later", "name": "c", "delay": 1.0, "call": {"kind": "function"}}]
    program = {"executors": [{}], "until": 1.0, "ops": [call, [0.5, {"do": "cancel", "of": "c"}]]}
    with Side(is_pure=True, broken="a process hangs", seconds_max=1.0) as broken:
        assert [["hung", "for 1 s"]] == broken.run(program)
        program["ops"].pop()
        assert pure.run(program) == broken.run(program)


def test_shrinking_keeps_what_matters():
    """Shrinking keeps what the difference needs, without other operations, options, steps, settings, large numbers."""

    def differs(program):
        return any(op["do"] == "cancel" for _, op in program["ops"]) and len(program["executors"]) > 0

    program = next(program for program in map(draw, range(100)) if len(program["executors"]) > 1 and differs(program))
    small = shrink(program, differs)
    ((at, op),) = small["ops"]
    assert (0, "cancel") == (at, op["do"])
    assert {"do", "of"} == set(op)
    assert 1 == len(small["executors"])
    assert {} == {
        key: value
        for key, value in small["executors"][0].items()
        if (key, value) not in (("rate", "inf/s"), ("pacing", "ON_TIME"))
    }
