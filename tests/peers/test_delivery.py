"""What processes get of the limits that they share: a short version of cases of ``python -m bench fleet``.

Left to the bench are the cases that lie between two others; of the rest, every sixth one of each table runs, and those that
miss a goal. ``ALL_CASES=1`` runs all.
A law is asserted in every case. A goal that the protocol misses today is in ``missed_goals.json``, and its test has to
fail until the protocol reaches it::

    python -m tests.peers.test_delivery      # after the protocol has improved: runs all cases, and writes that file
"""

import json
import sys
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from tests.helpers import ALL_CASES

from bench.fleet import met
from bench.fleet.cases import CASES
from bench.fleet.programs import Report, run_case

MISSED_FILE = Path(__file__).with_name("missed_goals.json")
MISSED_GOALS = json.loads(MISSED_FILE.read_text(encoding="utf-8"))  # by case and figure: the figure today
BY_ID = {case.id: case for case in CASES if not case.is_between}


def _chosen() -> list[str]:
    """Return the cases to run."""
    groups: dict[str, list[str]] = defaultdict(list)
    for case in BY_ID.values():
        groups[case.group].append(case.id)
    return [
        each
        for ids in groups.values()
        for number, each in enumerate(ids)
        if ALL_CASES or number % 6 == 1 or len(ids) == 1 or each in MISSED_GOALS
    ]


@lru_cache(maxsize=8)  # the tests of a case run one after the other
def report_of(case_id: str) -> Report:
    return run_case(BY_ID[case_id], is_quick=True)


def _expected(reason: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)] if reason else []


def _parameters() -> list:
    """Return the law and then the goals of each case."""
    found = []
    for case in map(BY_ID.get, _chosen()):
        found.append(pytest.param(case.id, "law", id=f"{case.id} - law"))
        for figure, goal in case.goals.items():
            missed = MISSED_GOALS.get(case.id, {}).get(figure)
            reason = f"the goal of {figure} is {goal:g}; {missed} today" if missed else ""
            found.append(pytest.param(case.id, figure, id=f"{case.id} - {figure}", marks=_expected(reason)))
    return found


@pytest.mark.parametrize(("case_id", "figure"), _parameters())
def test_delivery(case_id: str, figure: str) -> None:
    """Processes never exceed a limit that they share, and reach the goals of the case."""
    report = report_of(case_id)

    if figure == "law":
        assert report.broken == []
        assert report.worst or "adaptive" in BY_ID[case_id].settings
    else:
        goal = BY_ID[case_id].goals[figure]
        assert met(figure, report.figures[figure], goal), f"{figure} {report.figures[figure]:.4g}, the goal is {goal:g}"


def test_each_missed_goal_is_one_of_a_case() -> None:
    """The list of missed goals has none that no test looks at."""
    assert [] == [case_id for case_id in MISSED_GOALS if case_id not in BY_ID]
    for case_id, figures in MISSED_GOALS.items():
        assert figures.keys() <= BY_ID[case_id].goals.keys()


def main() -> None:
    """Run each case, and write down the goals that it misses."""
    found = {}
    for case in BY_ID.values():
        figures = run_case(case, is_quick=True).figures
        missed = {
            name: f"{figures[name]:.3g}" for name, goal in case.goals.items() if not met(name, figures[name], goal)
        }
        if missed:
            found[case.id] = missed
    MISSED_FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
