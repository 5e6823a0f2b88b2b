"""A thousand lanes run by four real processes, of which some are killed, keep their rules; broken rules are found."""

import sys

import pytest

from .lanes import Found, judge, kill_and_judge

pytestmark = pytest.mark.real_time("processes are killed")


@pytest.mark.slow
@pytest.mark.timeout(600)  # takes most of a minute on a busy machine
@pytest.mark.parametrize("kind", ["sqlite", *([] if sys.platform == "win32" else ["postgresql"])])
async def test_lanes_keep_their_order_whoever_is_killed(tmp_path, kind, request):
    """Lanes stay in order, one task at a time, though four processes are killed."""
    where = str(tmp_path / "tasks.db") if kind == "sqlite" else request.getfixturevalue("database").url
    found = await kill_and_judge(where, tmp_path, lanes=400, tasks=1200, kills=4, seconds=300)
    assert [] == found.wrong
    assert found.doubled <= found.claimed
    assert found.kills


@pytest.mark.parametrize(("lines", "wrong"), [
    (["1 0 a begin", "1 0 a end", "1 1 a begin", "1 1 a end"], ""),
    (["1 0 a begin", "2 0 a begin", "2 0 a end", "2 1 a begin", "2 1 a end"], ""),  # process 1 was killed
    (["2 0 a begin", "3 1 a begin", "2 0 a end", "3 1 a end"], "began while"),
    (["2 1 a begin", "2 1 a end", "2 0 a begin", "2 0 a end"], "began after"),
    (["1 0 a begin", "2 1 a begin", "2 1 a end"], "never ended"),
    (["2 0 a begin", "2 0 a end"] * 2 + ["2 1 a begin", "2 1 a end"], "began twice"),
])  # fmt: skip
def test_judge_finds_what_is_wrong(lines, wrong):
    """The judge finds each broken rule, and allows a second start only for tasks that a killed process had claimed."""
    found = Found(claimed=1 if lines[0].startswith("1 0") else 0)
    judge(found, lines, 2, {1})
    if wrong:
        assert wrong in " ".join(found.wrong)
    else:
        assert [] == found.wrong
