"""The programs that measure real fleets say what each scenario is."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no Redis for Windows")


@pytest.mark.parametrize("name", ["fleet", "slots", "tickets"])
def test_scenarios_have_a_line_each(name) -> None:
    """Each scenario has a docstring, and a name for the command line."""
    scenarios = __import__(f"bench.real.{name}", fromlist=["SCENARIOS"]).SCENARIOS
    assert len(scenarios) > 10
    assert all(scenario.__doc__ for scenario in scenarios.values())
    assert all(each.replace("-", "").isalpha() for each in scenarios)
