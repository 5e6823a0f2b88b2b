"""The requests of a load as OpenTelemetry metrics, exported by OTLP over HTTP while it runs and at its end.

``OTLPMetricExporter`` encodes and sends them, in a thread; it reads ``OTEL_EXPORTER_OTLP_*``. They do not go through instruments
of the SDK, which would take several microseconds for each request: ``load.tally`` counts them, between the starts of requests. What
is exported only grows (cumulative temporality), and counts the requests of this process alone.

Names: ``http.client.request.duration`` is that of the semantic conventions of OpenTelemetry for HTTP clients, with their bounds and
attributes, and counts from the time of sending. ``ratelimited_executor.bench.response_time`` counts from the due time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from ratelimited_executor._core.urls import masked, masked_text
from ratelimited_executor.cli.bench.open_load import in_steps
from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.load.recording import EDGES
from ratelimited_executor.load.tally import BoundedHistogram, RequestTally

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from urllib.parse import SplitResult

    from ratelimited_executor.cli.bench.open_load import Live
    from ratelimited_executor.load.recording import LoadRecorder
    from ratelimited_executor.load.requests import RequestTemplate

__all__ = ["BY_ENVIRONMENT", "ExportedLoad", "LoadExport", "OtlpSender", "attributes_of", "sender_to"]

BY_ENVIRONMENT: Final = "env"  # in place of a URL
_PATH: Final = "/v1/metrics"
_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_PREFIX: Final = "ratelimited_executor.bench"
_PERIOD_SECONDS: Final = 10.0  # between two exports, unless OTEL_METRIC_EXPORT_INTERVAL says otherwise
_END_SECONDS: Final = 4.0  # for the last export, after which the command ends
_TIMEOUT_SECONDS: Final = (
    3.0  # for any, its retries included, unless one of these variables has less than the time at the end
)
_TIMEOUT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
# The bounds that the semantic conventions advise, as the service itself has them.
_HTTP_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class ExportedLoad(Protocol):
    """A load whose requests are exported."""

    recorder: LoadRecorder

    def live(self) -> Live:
        """Return a snapshot of it."""
        ...

    def class_names(self) -> Sequence[str]:
        """Return the names of the classes by their indexes; none without classes."""
        ...


class OtlpSender(Protocol):
    """Sends metrics."""

    def send(self, metrics: Sequence[Any]) -> str:
        """Send metrics, from a thread; return why that failed, or an empty text."""
        ...

    def close(self) -> None:
        """End a send that waits for another try."""
        ...


def attributes_of(templates: Sequence[RequestTemplate]) -> dict[str, Any]:
    """Return the attributes that all of some requests have in common: method, and host, port and scheme of the server."""
    methods = {each.method for each in templates}
    servers = {(parts.hostname, parts.port, parts.scheme) for parts in (urlsplit(each.url) for each in templates)}
    attributes: dict[str, Any] = {"http.request.method": methods.pop() if len(methods) == 1 else "_OTHER"}
    if len(servers) == 1:
        host, port, scheme = servers.pop()
        default = 443 if scheme == "https" else 80
        attributes |= {"server.address": host or "", "server.port": port or default, "url.scheme": scheme}
    return attributes


@dataclass(slots=True, kw_only=True)
class LoadExport:
    """Exports the requests of loads that follow each other.

    Args:
        sender: sends them.
        to: where to, as messages say.
        of_class: the attributes of the requests of each class, by its index; empty if they are not HTTP requests. The last one
            stands for those of further classes.
        has_rate: False if no request has a time at which it is due, as of users.
        period: seconds between two exports.

    Attributes:
        sent_count: exports that succeeded.
        failed_count: exports that failed.
        reason: why the last of these did.
    """

    sender: OtlpSender
    to: str
    of_class: Sequence[dict[str, Any]]
    has_rate: bool = True
    period: float = _PERIOD_SECONDS
    sent_count: int = field(default=0, init=False)
    failed_count: int = field(default=0, init=False)
    reason: str = field(default="", init=False)
    _tally: RequestTally = field(default_factory=lambda: RequestTally(EDGES, _HTTP_BOUNDS), init=False)
    _load: ExportedLoad | None = field(default=None, init=False)
    _begun_ns: int = field(default_factory=time.time_ns, init=False)

    @asynccontextmanager
    async def of(self, load: ExportedLoad) -> AsyncIterator[None]:
        """Export a load that is played meanwhile, at intervals."""
        self._load = load
        self._tally.follow(load.recorder)
        exporting = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            exporting.cancel()
            await asyncio.wait({exporting})

    async def end(self) -> tuple[int, int, str]:
        """Export what has not been; return how many exports succeeded and failed, and why the last of these did."""
        if self._load is not None:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self._export()
            except TimeoutError:
                self.failed_count += 1
                self.reason = f"no answer within {_END_SECONDS:g} s"
        self.sender.close()
        return self.sent_count, self.failed_count, self.reason

    def add(self, sent_count: int, failed_count: int, reason: str) -> None:
        """Count the exports of another process, as its :meth:`end` has returned them."""
        self.sent_count += sent_count
        self.failed_count += failed_count
        self.reason = reason or self.reason

    def failures_text(self) -> str:
        """Return what should be known about all exports; an empty text if none failed."""
        if not self.failed_count:
            return ""
        count = self.sent_count + self.failed_count
        return (
            f"--otlp: {self.failed_count} of {count} exports to {self.to} failed, the last one because: "
            f"{masked_text(self.reason)}"
        )

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self.period)
            await self._export()

    async def _export(self) -> None:
        await in_steps(self._tally.take_in_steps())
        reason = await asyncio.to_thread(self.sender.send, self._metrics())
        if reason:
            self.failed_count += 1
            self.reason = reason
        else:
            self.sent_count += 1

    def _metrics(self) -> list[Any]:
        """Return all metrics as they are now."""
        from opentelemetry.sdk.metrics import export  # noqa: PLC0415  # an extra, imported on use

        assert self._load is not None
        now_ns, names, live = time.time_ns(), self._load.class_names(), self._load.live()
        responses, services = [], []
        for kind, requests in self._tally.kinds.items():
            known = self.of_class[min(kind.class_index, len(self.of_class) - 1)] if self.of_class else {}
            more: dict[str, Any] = {f"{_PREFIX}.class": names[kind.class_index]} if names else {}
            if kind.status is not None:
                more["http.response.status_code"] = kind.status
            if kind.error is not None:
                more["error.type"] = kind.error if kind.status is None else str(kind.status)
            responses.append(self._point(requests.responses, {**known, **more}, now_ns))
            if requests.services.count:
                services.append(self._point(requests.services, {**known, **more}, now_ns))
        duration = "http.client.request.duration" if self.of_class else f"{_PREFIX}.service_time"
        cumulative = export.AggregationTemporality.CUMULATIVE
        made = [
            (f"{_PREFIX}.response_time", "Time from when a request was due to its end.", responses),
            (duration, "Time from the sending of a request to its end.", services),
        ]
        histograms = [
            export.Metric(name, text, "s", export.Histogram(points, cumulative))
            for name, text, points in made
            if points
        ]
        levels: list[tuple[str, str, str, float]] = [
            ("active_requests", "{request}", "Requests that were sent and have not ended.", live.in_flight)
        ]
        if self.has_rate:
            levels += [
                ("target_rate", "{request}/s", "Requests that are due in a second.", live.rate),
                ("waiting_requests", "{request}", "Requests that are due and wait for a connection.", live.waiting),
            ]
        gauges = [
            export.Metric(
                f"{_PREFIX}.{name}",
                text,
                unit,
                export.Gauge([export.NumberDataPoint({}, self._begun_ns, now_ns, value)]),
            )
            for name, unit, text, value in levels
        ]
        return [*histograms, *gauges]

    def _point(self, histogram: BoundedHistogram, attributes: dict[str, Any], now_ns: int) -> Any:
        from opentelemetry.sdk.metrics import export  # noqa: PLC0415  # an extra, imported on use

        return export.HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=self._begun_ns,
            time_unix_nano=now_ns,
            count=histogram.count,
            sum=histogram.total,
            bucket_counts=list(histogram.counts),
            explicit_bounds=list(histogram.bounds),
            min=histogram.least,
            max=histogram.most,
        )


class _HttpSender:
    """Sends metrics by the exporter of OpenTelemetry, whose log it keeps for itself.

    Args:
        endpoint: the URL of the endpoint; None for what the environment says.
    """

    def __init__(self, endpoint: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415  # an extra, imported on use
        from opentelemetry.sdk.metrics import export  # noqa: PLC0415  # as above
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # as above
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415  # as above

        self._export = export
        self._scope = InstrumentationScope(_PREFIX, version("ratelimited-executor"))
        own = {"service.instance.id": uuid.uuid4().hex}
        if "OTEL_SERVICE_NAME" not in os.environ and "service.name" not in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        ):
            own["service.name"] = "ratelimited-executor-bench"
        self._resource = Resource.create(own)
        self._exporter = metric_exporter.OTLPMetricExporter(endpoint=endpoint, timeout=_timeout_of_environment())
        self._sending = threading.Lock()  # one that was given up goes on in its thread

    def send(self, metrics: Sequence[Any]) -> str:
        export = self._export
        scope = export.ScopeMetrics(self._scope, metrics, "")
        data = export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])
        with self._sending, _log_of("opentelemetry") as told:
            try:
                result = self._exporter.export(data)
            except Exception as error:  # noqa: BLE001  # whatever it is, the load goes on
                return f"{type(error).__name__}: {error}"
        return "" if result is export.MetricExportResult.SUCCESS else (told[0] if told else "the endpoint refused it")

    def close(self) -> None:
        self._exporter.shutdown()


def sender_to(url: str) -> OtlpSender:
    """Return what sends metrics to the base URL of an OTLP endpoint, or to the one that the environment names.

    Args:
        url: the URL, to whose path ``/v1/metrics`` is added unless it ends so; or ``BY_ENVIRONMENT``.

    Raises:
        CommandError: if the URL is not one, the environment names none, or the extra is not installed.
    """
    endpoint = None
    if url == BY_ENVIRONMENT:
        if not any(os.environ.get(name) for name in _VARIABLES):
            raise CommandError(f"--otlp {BY_ENVIRONMENT} needs {_VARIABLES[0]}, the URL of the endpoint: it is not set")
    else:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(parts):
            raise CommandError(
                f"--otlp must be a URL such as http://localhost:4318, or {BY_ENVIRONMENT}, got {masked(url)!r}"
            )
        endpoint = parts._replace(path=f"{parts.path.removesuffix(_PATH).rstrip('/')}{_PATH}", fragment="").geturl()
    try:
        return _HttpSender(endpoint)
    except ModuleNotFoundError as error:
        raise CommandError("--otlp needs the exporter: pip install 'ratelimited-executor[otlp]'") from error


def _has_port(parts: SplitResult) -> bool:
    """Return False if the port of a URL is not one."""
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def _timeout_of_environment() -> float:
    """Return the seconds for an export: a longer one would hold up the end of the command."""
    for name in _TIMEOUT_VARIABLES:
        try:
            return min(float(os.environ.get(name, "")), _END_SECONDS)
        except ValueError:  # as of the exporter, which takes its default then
            continue
    return _TIMEOUT_SECONDS


def period_of_environment() -> float:
    """Return the seconds between two exports that ``OTEL_METRIC_EXPORT_INTERVAL`` asks for in milliseconds, or 10."""
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    return max(1, int(text)) / 1000 if text.isascii() and text.isdigit() else _PERIOD_SECONDS


@contextmanager
def _log_of(name: str) -> Iterator[list[str]]:
    """Collect the messages that a logger and those below it log meanwhile, in place of showing them."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]  # one function is all of it
    logger = logging.getLogger(name)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield told
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
