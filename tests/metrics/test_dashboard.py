"""The dashboard queries only series that the exporter for Prometheus offers, and it queries every one of them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.durable import DurableTasks, MemoryStore
from ratelimited_executor.metrics import instrument, instrument_tasks

ADDED_BY_PROMETHEUS = {"job", "instance"}
DASHBOARD = Path(__file__).parents[2] / "docs" / "howto" / "grafana-dashboard.json"


@pytest.fixture
async def page(virtual_clock):
    """Return what Prometheus would scrape: the names of samples, each with its labels."""
    provider = MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False)
    tasks = DurableTasks(MemoryStore())
    async with RateLimitedExecutor("mail", rate=5) as executor, tasks:
        await tasks.task(print).put(1)
        with instrument(executor, meter_provider=provider), instrument_tasks(tasks, meter_provider=provider):
            await executor.submit(asyncio.sleep, 1)
            text = generate_latest().decode()
    provider.shutdown()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("ratelimited_executor"):
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return asked + [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]


async def test_dashboard_asks_for_what_is_there(page):
    """Each name in a query is a sample or a label, and each series except sums and counts has a query; of stores, the latency."""
    labels = set().union(*page.values())
    asked = {name for query in queries() for name in re.findall(r"\bratelimited_executor\w+", query)}
    assert asked <= page.keys() | labels
    of_stores = {name for name in page if name.startswith("ratelimited_executor_durable_")}
    assert (asked & of_stores) == {"ratelimited_executor_durable_latency_seconds"}
    assert {name for name in page if not name.endswith(("_sum", "_count"))} - of_stores == asked - labels - of_stores
    assert {"ratelimited_executor_name", "ratelimited_executor_result", "le"} <= labels


async def test_labels_of_the_dashboard_are_those_of_its_series(page):
    """A query filters by labels that its series has, or that Prometheus adds, and it groups by labels of the series."""
    for query in queries():
        series = [name for name in page if re.search(rf"\b{name}\b", query)]
        assert len(series) == 1, query
        for part in re.findall(r"by \(([^)]*)\)", query):
            assert set(part.split(", ")) <= page[series[0]], query
        for part in re.findall(r"\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=", part)) <= page[series[0]] | ADDED_BY_PROMETHEUS, query


def test_all_instances_of_a_job_are_one():
    """Each query sums over the instances of its job, counters after ``rate()``; a shared rate may be a maximum, and what all tell of one store is."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for query in (target["expr"] for panel in dashboard["panels"] for target in panel["targets"]):
        assert 'job=~"$job"' in query
        summed = re.search(r"(\$?\w+) by \([^)]*\) \((rate\()?ratelimited_executor_(\w+)\{", query)
        assert summed is not None, query
        alike = {
            "rate_per_second": "$rate_of",
            "durable_latency_seconds": "max",
        }  # what each instance tells of all of them
        assert summed[1] == alike.get(summed[3], "sum"), query
        assert (summed[2] is not None) == summed[3].endswith(("_total", "_bucket")), query
    (chosen,) = [each for each in dashboard["templating"]["list"] if each["name"] == "rate_of"]
    assert (
        [option["value"] for option in chosen["options"]] == re.findall(r": (\w+)", chosen["query"]) == ["max", "sum"]
    )


def test_legends_are_filled_in_from_labels_that_the_query_keeps():
    """Each label in a legend is one by which its query groups; any other would be empty."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), target
