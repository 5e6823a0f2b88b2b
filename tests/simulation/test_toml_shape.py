"""The shape of a scenario file is checked before anything of it is made."""

import pytest

from ratelimited_executor.simulation.toml_shape import check_shape

API = {"executors": {"api": {}}, "arrivals": [{"executor": "api", "job": "call", "rate": 1}]}


def test_a_scenario_needs_executors_and_arrivals():
    """One of each is enough."""
    check_shape(API)
    for name in API:
        with pytest.raises(ValueError, match=name):
            check_shape({key: value for key, value in API.items() if key != name})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"executors": {"api": {"max_concurency": 3}}},
            "max_concurency, which is unknown: it can have .*max_concurrency",
        ),
        ({"executors": {"api": {"retry": {"bas": 1}}}}, r"\[executors.api\] retry has bas"),
        ({"jobs": {"call": {"then": {"when": 1}}}}, r"\[jobs.call\] then has when"),
        ({"arrivals": [{"rate": 1, "count": 2}]}, "must have one of .*, got count, rate"),
    ],
)
def test_an_unknown_name_is_named(change, words):
    """With its place, and the names that are known."""
    with pytest.raises(ValueError, match=words):
        check_shape({**API, **change})
