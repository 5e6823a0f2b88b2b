"""``bench --otlp``: the requests of a load as OpenTelemetry metrics, received by an endpoint of OTLP over HTTP."""

from __future__ import annotations

import gzip
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ratelimited_executor.load.requests import RequestTemplate
from tests.cli.bench.service import Service, served
from tests.cli.refusals import assert_refused
from tests.cli.bench.test_bench import bench

service_pb2 = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="the extra otlp is not installed"
)
metric_exporter = pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="the extra otlp is not installed"
)

from ratelimited_executor.cli.bench.otlp import attributes_of, sender_to  # noqa: E402  # need the extra

pytestmark = pytest.mark.real_time("processes and sockets have no virtual time")

COMMAND = [sys.executable, "-m", "ratelimited_executor", "bench"]
RESPONSE, HTTP = "ratelimited_executor.bench.response_time", "http.client.request.duration"


class Endpoint(ThreadingHTTPServer):
    """An endpoint that keeps what it gets.

    Attributes:
        status: what it answers; 0 for nothing at all.
        got: (path, headers, message) of each request.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.got: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def exports(self) -> list[dict[str, Any]]:
        """Return the metrics of each request by name, under "resource" the attributes of their resource."""
        made = []
        for _, _, message in self.got:
            [of_resource] = message.resource_metrics
            [of_scope] = of_resource.scope_metrics
            metrics: dict[str, Any] = {each.name: each for each in of_scope.metrics}
            made.append(metrics | {"resource": attributes(of_resource.resource.attributes)})
        return made


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        message = service_pb2.ExportMetricsServiceRequest.FromString(body)
        self.server.got.append((self.path, dict(self.headers), message))
        if not self.server.status:
            time.sleep(20)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


def attributes(pairs: Any) -> dict[str, Any]:
    """Return attributes of protobuf as a dictionary."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in pairs}


def points(metric: Any) -> list[tuple[dict[str, Any], Any]]:
    """Return the points of a histogram, with their attributes."""
    assert metric.unit == "s"
    return [(attributes(each.attributes), each) for each in metric.histogram.data_points]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Run one service for all tests of this file."""
    with served() as running:
        yield running


@contextmanager
def listening() -> Iterator[Endpoint]:
    """Run an endpoint in a thread."""
    with Endpoint() as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        yield endpoint
        endpoint.shutdown()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Run an endpoint for one test."""
    with listening() as running:
        yield running


def run(place: Any, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=place.path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**known, **environment},
    )


def test_requests_are_exported_while_they_are_sent_and_at_the_end(place, service, endpoint) -> None:
    """Counts rise from export to export, and the last has all requests, by class, status and error, as the report has them."""
    load = ["--rate", "ok=40", "--rate", "status=20", "--for", "1500ms", "--json", "out.json"]
    file = place.write(
        "requests.jsonl",
        "\n".join(
            json.dumps({"url": f"{service.url}/{path}", "class": name})
            for name, path in (("ok", "echo/ok"), ("status", "status/503"))
        ),
    )
    done = run(
        place, service.url, *load, "--requests", str(file), "--otlp", endpoint.url, OTEL_METRIC_EXPORT_INTERVAL="300"
    )
    assert (0, "") == (done.returncode, done.stderr.replace("\r", "").strip("\n") if "--otlp" in done.stderr else "")
    assert {"/v1/metrics"} == {path for path, _, _ in endpoint.got}
    exports = endpoint.exports()
    assert len(exports) >= 2
    counts = [sum(point.count for _, point in points(each[RESPONSE])) for each in exports if RESPONSE in each]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] == 90
    last = exports[-1]
    port = int(service.url.rpartition(":")[2])
    common = {"http.request.method": "GET", "server.address": "127.0.0.1", "server.port": port, "url.scheme": "http"}
    of_class = "ratelimited_executor.bench.class"
    ok = {**common, of_class: "ok", "http.response.status_code": 200}
    failed = {**common, of_class: "status", "http.response.status_code": 503, "error.type": "503"}
    figures = json.loads(place.text("out.json"))["figures"]
    for name, longest in ((RESPONSE, figures["response_times"]["max"]), (HTTP, figures["service_times"]["max"])):
        found = points(last[name])
        assert [(ok, 60), (failed, 30)] == sorted(
            ((each, point.count) for each, point in found), key=lambda each: -each[1]
        )
        for _, point in found:
            assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
            assert sum(point.bucket_counts) == point.count
            assert point.min * point.count <= point.sum <= point.max * point.count
            assert last[name].histogram.aggregation_temporality == 2  # cumulative
            assert point.start_time_unix_nano < point.time_unix_nano
        assert math.isclose(longest, max(point.max for _, point in found), rel_tol=1e-4, abs_tol=2e-6)
    [active] = last["ratelimited_executor.bench.active_requests"].gauge.data_points
    assert 0 == (active.as_int or active.as_double)
    assert "ratelimited-executor-bench" == last["resource"]["service.name"]


def test_each_process_exports_its_share(place, service, endpoint) -> None:
    """Of several processes each exports its own requests, under a name of its own; together they are all."""
    load = ["--rate", "100", "--for", "1s", "--processes", "2", "--otlp", f"{endpoint.url}/v1/metrics"]
    done = run(place, f"{service.url}/echo/x", *load)
    assert 0 == done.returncode, done.stderr
    last = {each["resource"]["service.instance.id"]: points(each[RESPONSE]) for each in endpoint.exports()}
    assert [50, 50] == [sum(point.count for _, point in each) for each in last.values()]


def test_environment_names_the_endpoint(place, service, endpoint) -> None:
    """The standard variables of OpenTelemetry give the endpoint, its headers, and the name of the service."""
    load = ["--rate", "20", "--for", "500ms", "--otlp", "env"]
    done = run(
        place,
        f"{service.url}/echo/x",
        *load,
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint.url,
        OTEL_EXPORTER_OTLP_HEADERS="x-token=letmein",
        OTEL_SERVICE_NAME="shop-load",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    assert 0 == done.returncode, done.stderr
    [(path, headers, _)] = endpoint.got
    assert ("/v1/metrics", "letmein") == (path, {name.lower(): value for name, value in headers.items()}["x-token"])
    assert "shop-load" == endpoint.exports()[0]["resource"]["service.name"]


def test_function_has_no_attributes_of_http(place, endpoint) -> None:
    """The calls of a function are exported with our own names, and the kind of their error."""
    place.write("target.py", "async def call(number):\n    1 / (number % 2)\n")
    done = run(place, "target.py:call", "--rate", "20", "--for", "1s", "--otlp", endpoint.url)
    assert 0 == done.returncode, done.stderr
    [last] = endpoint.exports()
    assert HTTP not in last
    found = sorted(
        (each.get("error.type", ""), point.count)
        for each, point in points(last["ratelimited_executor.bench.service_time"])
    )
    assert [("", 10), ("ZeroDivisionError", 10)] == found


def test_requests_of_users_are_exported_by_their_steps(place, service, endpoint) -> None:
    """Users have requests by step, with no method that all would have, and no rate."""
    place.write(
        "shop.py",
        "async def buyer(client):\n    await client.get('/echo/a')\n    await client.post('/echo/a')\n",
    )
    done = run(place, service.url, "--scenario", "shop.py:buyer", "--users", "2", "--for", "1s", "--otlp", endpoint.url)
    assert 0 == done.returncode, done.stderr
    last = endpoint.exports()[-1]
    assert "ratelimited_executor.bench.target_rate" not in last
    found = {each["ratelimited_executor.bench.class"]: each for each, _ in points(last[HTTP])}
    assert {"GET /echo/a": 200, "POST /echo/a": 200} == {
        name: each["http.response.status_code"] for name, each in found.items()
    }
    assert {"_OTHER"} == {each["http.request.method"] for each in found.values()}


@pytest.mark.parametrize("processes", [1, 2])
def test_secret_in_the_query_of_the_endpoint_stays_there(place, service, endpoint, processes) -> None:
    """The path is added before a query, of which no message shows a secret; all processes tell in one line what failed."""
    load = ["--rate", "20", "--for", "1s", "--quiet", "--processes", f"{processes}"]
    done = run(place, f"{service.url}/echo/x", *load, "--otlp", f"{endpoint.url}/ingest/?api_key=letmein")
    assert (0, "") == (done.returncode, done.stderr)
    assert {"/ingest/v1/metrics?api_key=letmein"} == {path for path, _, _ in endpoint.got}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/ingest?api_key=letmein"
        done = run(place, f"{service.url}/echo/x", *load, "--otlp", url)
    [line] = done.stderr.splitlines()
    assert (0, True) == (done.returncode, line.startswith(f"--otlp: {processes} of {processes} exports to http://"))
    assert "letmein" not in line


@pytest.mark.parametrize(("status", "told"), [(None, "refused"), (0, "failed"), (400, "400")])
def test_endpoint_that_is_away_is_told_at_the_end(place, service, status, told) -> None:
    """An endpoint that is away, hangs or refuses changes neither the figures nor the exit status, and is told once, at the end."""
    with listening() as endpoint, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint.status = status or 0
        url = endpoint.url if status is not None else f"http://127.0.0.1:{closed.getsockname()[1]}"
        load = ["--rate", "50", "--for", "2s", "--errors", "0", "--json", "out.json", "--quiet"]
        where = url.replace("http://", "http://ann:letmein@")
        done = run(place, f"{service.url}/echo/x", *load, "--otlp", where, OTEL_METRIC_EXPORT_INTERVAL="200")
    assert 0 == done.returncode, done.stderr
    assert 100 == json.loads(place.text("out.json"))["figures"]["count"]
    [line] = done.stderr.splitlines()
    assert line.startswith("--otlp: ")
    assert "exports to http://***@127.0.0.1:" in line
    assert told in line.lower()
    assert "letmein" not in line


def test_url_that_is_none_is_refused() -> None:
    """A value of --otlp that is no URL is refused before anything is sent, without its password."""
    for url in ("localhost:4318", "redis://ann:letmein@host", "http://ann:letmein@host:port/", "http://host:70000"):
        result = bench("http://localhost:1/", "--rate", "1", "--otlp", url)
        assert_refused(result, "--otlp must be a URL such as http://localhost:4318, or env")
        assert "letmein" not in result.output


def test_environment_without_an_endpoint_is_refused(monkeypatch) -> None:
    """With --otlp env the command names the variable that is missing, before anything is sent."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    result = bench("http://localhost:1/", "--rate", "1", "--otlp", "env")
    assert_refused(result, "--otlp env needs OTEL_EXPORTER_OTLP_ENDPOINT")


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, 3),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "1.5"}, 1.5),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "20"}, 4),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "2", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "20"}, 4),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, 3),
    ],
)
def test_timeout_of_the_environment_holds_up_no_end(monkeypatch, variables, seconds) -> None:
    """An export takes as long as the environment allows, but never longer than the time at the end of a load."""
    for name in ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    timeouts = []
    exporter = metric_exporter.OTLPMetricExporter
    monkeypatch.setattr(
        metric_exporter,
        "OTLPMetricExporter",
        lambda **options: timeouts.append(options["timeout"]) or exporter(**options),
    )
    sender_to("http://localhost:1").close()
    assert [seconds] == timeouts


def test_attributes_are_those_that_all_requests_have() -> None:
    """Requests with different methods have the one that stands for others, and of several servers none is named."""
    one, two = RequestTemplate(url="https://shop.example/a"), RequestTemplate(url="http://b.example:81/", method="PUT")
    assert attributes_of([one]) == {
        "http.request.method": "GET", "server.address": "shop.example", "server.port": 443, "url.scheme": "https",
    }  # fmt: skip
    assert attributes_of([one, two]) == {"http.request.method": "_OTHER"}
