"""Parameters of scenario files stand where they are named, with the values that a run gives them."""

import pytest

from ratelimited_executor.simulation import load_toml, simulate
from ratelimited_executor.simulation.parameters import with_parameters

FILE = """
name = "load"
[parameters]
workers = 3
rate = 10
unit = "min"
[executors.api]
max_concurrency = "{workers}"
rate = "{rate}/{unit}"
[jobs.call]
duration = 1
[[arrivals]]
executor = "api"
job = "call"
count = 20
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "load.toml"
    path.write_text(FILE)
    return path


def test_usual_values_are_those_of_the_file(file):
    """A value that is a parameter has its type; within a text it is written out."""
    table = load_toml(file).parameters()
    assert {"max_concurrency": 3, "rate": "10/min"} == table["executors"]["api"]
    assert {"workers": 3, "rate": 10, "unit": "min"} == table["parameters"]


def test_given_values_replace_the_usual_ones(file):
    """A run with other values does what they say, and its database says so."""
    scenario = load_toml(file, {"workers": 1, "unit": "s"}, name="other")
    assert ("other", {"workers": 1, "rate": 10, "unit": "s"}) == (scenario.name, scenario.parameters()["parameters"])
    assert 20.0 == simulate(scenario, days=0.01, until_done=True).end


@pytest.mark.parametrize(
    ("table", "given", "error", "words"),
    [
        ({"parameters": {"a": 1}}, {"b": 1}, ValueError, r"there is no parameter b: \[parameters\] has a"),
        ({"days": "{a}", "parameters": {}}, {}, ValueError, r"\{a\} must be a parameter: \[parameters\] has none"),
        ({"parameters": {"a": 1}}, {}, ValueError, 'parameter a is used nowhere: write "{a}" where it applies'),
        ({"parameters": {"a": 1}, "name": "x {b}"}, {}, ValueError, r"\{b\} must be a parameter: .* has a"),
        ({"parameters": 5}, {}, TypeError, "parameters must be a table"),
        ({"parameters": {"a b": 5}}, {}, ValueError, "'a b' must be a name"),
        ({"parameters": {"a": [5]}}, {}, TypeError, "a must be a number, a text, true or false"),
    ],
)
def test_what_cannot_be_is_refused(table, given, error, words):
    """Unknown names and values of other types are refused with what there is."""
    with pytest.raises(error, match=words):
        with_parameters(table, given)


def test_braces_that_are_no_names_stay():
    """Only a name in braces is a parameter."""
    table = {"parameters": {"a": 1}, "jobs": [{"text": "{} {1} { a } {{a}}"}]}
    assert [{"text": "{} {1} { a } {1}"}] == with_parameters(table, {})["jobs"]
