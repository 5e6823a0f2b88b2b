"""Spans of tasks, by the API of OpenTelemetry: linked to the span in which a task was scheduled, never children of it.

A task runs in the context variables of its caller, with the caller's current span, seconds or hours later. A span
started there would be a child of a span that has long ended. A function made by :func:`traced` starts a new trace
instead, with a link to the span in which the task was scheduled. The executor is not involved: tasks that are not
traced pay nothing. A durable task carries that span with its arguments.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from opentelemetry.trace import Span, TracerProvider

__all__ = ["traced"]

P = ParamSpec("P")
T = TypeVar("T")

_log: Final = logging.getLogger("ratelimited_executor.tracing")
_SCOPE: Final = "ratelimited_executor"
_RESULT: Final = f"{_SCOPE}.result"
_FAILED: Final = "the span %r could not be recorded"


@overload
def traced(fn: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def traced(
    *,
    name: str | None = None,
    attributes: Mapping[str, str | bool | int | float] | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def traced(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    attributes: Mapping[str, str | bool | int | float] | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Any:
    """Return a function that runs in its own span, for tasks: ``schedule(traced(send), message)``. Also a decorator.

    The span is the root of a trace, with a link to the current span of the task's context variables, which is the one
    in which the task was scheduled. Each attempt, each run of a repeating task and each item of a batch has its own
    span. An exception of the function is recorded, and sets the status of the span.

    Args:
        fn: the function to call in the span, async or not.
        name: the name of the span; the qualified name of the function if None.
        attributes: the attributes of the span.
        tracer_provider: the provider of the tracer; the global one if None, even if it is set later.

    Raises:
        TypeError: if an argument has a wrong type.
        ImportError: if OpenTelemetry's API is not installed.
    """
    if fn is None:
        return functools.partial(_traced, name=name, attributes=attributes, tracer_provider=tracer_provider)
    return _traced(fn, name=name, attributes=attributes, tracer_provider=tracer_provider)


def _traced(
    fn: Callable[..., Any],
    *,
    name: str | None,
    attributes: Mapping[str, Any] | None,
    tracer_provider: TracerProvider | None,
) -> Callable[..., Any]:
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {fn!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a text, or None, got {name!r}")
    if tracer_provider is not None and not callable(getattr(tracer_provider, "get_tracer", None)):
        raise TypeError(f"tracer_provider must be a TracerProvider of OpenTelemetry, or None, got {tracer_provider!r}")
    spans = _Spans(name or _name_of(fn), dict(attributes or {}), tracer_provider)

    async def follow(span: Span, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with spans.current(span, is_last=True):
            return await coroutine

    async def call_async(*args: Any, **options: Any) -> Any:
        with spans.current(spans.begin(), is_last=True):
            return await fn(*args, **options)

    def call(*args: Any, **options: Any) -> Any:
        span = spans.begin()
        with spans.current(span, is_last=False):
            result = fn(*args, **options)
        if inspect.iscoroutine(result):
            return follow(span, result)
        spans.end(span, "done")
        return result

    # The span of an async function begins with its first step: a task cancelled before that has no span.
    made = functools.wraps(fn)(call_async if inspect.iscoroutinefunction(fn) else call)
    vars(made)["durable_spans"] = spans  # for ``_runtime/durable/functions.py``, which does not know OpenTelemetry
    return made


def _name_of(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    return name


class _Spans:
    """The spans of one function.

    Args:
        name: the name of each span.
        attributes: the attributes of each span.
        provider: the provider of the tracer; the global one if None.
    """

    __slots__ = ("_attributes", "_context", "_format", "_name", "_trace", "_tracer")

    def __init__(self, name: str, attributes: dict[str, Any], provider: TracerProvider | None) -> None:
        self._trace, self._context, self._format = _api()
        self._name = name
        self._attributes = attributes
        self._tracer = (provider or self._trace).get_tracer(_SCOPE)

    def begin(self) -> Span:
        """Return a new root span, linked to the current span; an invalid one if none can be started."""
        trace = self._trace
        invalid: Span = trace.INVALID_SPAN
        try:
            accepted = trace.get_current_span().get_span_context()
            span: Span = self._tracer.start_span(
                self._name,
                context=trace.set_span_in_context(invalid),  # keeps everything else in the context
                links=[trace.Link(accepted)] if accepted.is_valid else [],
                attributes=self._attributes,
            )
        except Exception:  # noqa: BLE001  # as below
            _log.exception(_FAILED, self._name)
            return invalid
        return span

    def carried(self) -> str:
        """Return the current span in the format of W3C Trace Context, for a durable task; empty if there is none."""
        carrier: dict[str, str] = {}
        with self._logged():
            self._format.inject(carrier)
        return carrier.get("traceparent", "")

    def carry(self, span: str) -> None:
        """Make a carried span the current one, to which the next span has a link, in the rest of this context."""
        with self._logged():
            self._context.attach(self._format.extract({"traceparent": span}))

    @contextmanager
    def current(self, span: Span, *, is_last: bool) -> Iterator[None]:
        """Run a block in a span, and end the span after it if ``is_last`` or if the block raises."""
        try:
            with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except asyncio.CancelledError:
            self.end(span, "cancelled")
            raise
        except Exception as error:
            with self._logged():
                span.record_exception(error)
                span.set_status(self._trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
            self.end(span, "failed")
            raise
        except BaseException:  # such as SystemExit, which is no error
            self.end(span, "failed")
            raise
        if is_last:
            self.end(span, "done")

    def end(self, span: Span, result: str) -> None:
        """End a span with its result."""
        with self._logged():
            span.set_attribute(_RESULT, result)
            span.end()

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """Log exceptions of the tracer, of its processors and of user code that they call: no task fails for its span."""
        try:
            yield
        except Exception:  # noqa: BLE001  # as the specification of OpenTelemetry demands of instrumentation
            _log.exception(_FAILED, self._name)


def _api() -> tuple[Any, Any, Any]:
    """Return of OpenTelemetry's API the modules of traces and contexts, and the format of W3C Trace Context.

    Raises:
        ImportError: if the API is not installed.
    """
    try:
        from opentelemetry import context, trace  # noqa: PLC0415  # an extra, imported on use
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415  # the same
    except ImportError as error:
        raise ImportError("traced needs the extra: pip install 'ratelimited-executor[tracing]'") from error
    return trace, context, TraceContextTextMapPropagator()
