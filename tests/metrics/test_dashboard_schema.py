"""Grafana knows every field of the dashboard: the models of Grafana's schema read it and write it back unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

DASHBOARD = Path(__file__).parents[2] / "docs" / "howto" / "grafana-dashboard.json"


def lost(given: Any, known: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each field that the models have lost, because the schema does not have it, or have changed."""
    if isinstance(given, dict):
        for name, value in given.items():
            if name in known:
                yield from lost(value, known[name], f"{path}/{name}")
            elif value not in (None, [], {}):
                yield f"{path}/{name}"
    elif isinstance(given, list):
        for number, (one, other) in enumerate(zip(given, known, strict=True)):
            yield from lost(one, other, f"{path}/{number}")
    elif given != known:
        yield f"{path}: {given!r}, {known!r}"


def known_of(given: dict[str, Any]) -> Any:
    """Return the dashboard as the models write it after they have read it."""
    return json.loads(JSONEncoder().encode(Dashboard.from_json(given)))


@pytest.fixture(scope="module")
def dashboard():
    """Return the file that a user imports."""
    plugins.register_default_plugins()
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def test_grafana_knows_every_field_of_the_dashboard(dashboard):
    """The models keep every field, including those of panels, their targets and the options of each kind of panel."""
    assert list(lost(dashboard, known_of(dashboard))) == []


@pytest.mark.parametrize(
    ("path", "name"), [((), "titel"), (("panels", 0), "targts"), (("panels", 0, "targets", 0), "expression")]
)
def test_field_that_grafana_does_not_know_is_found(dashboard, path, name):
    """A misspelt field, which Grafana would ignore without a message, is reported with its path."""
    changed = json.loads(json.dumps(dashboard))
    place = changed
    for step in path:
        place = place[step]
    place[name] = "x"
    assert list(lost(changed, known_of(changed))) == ["/".join(["", *map(str, path), name])]
