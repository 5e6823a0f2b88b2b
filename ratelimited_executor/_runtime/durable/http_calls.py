"""A durable function that calls a URL, with the request as its arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack
from urllib.parse import quote

from ratelimited_executor._core.repeat.retries import Retry
from ratelimited_executor._core.urls import masked
from ratelimited_executor._runtime.arguments import callable_of, seconds_of
from ratelimited_executor._runtime.durable.current import current_task
from ratelimited_executor._runtime.repeat.retrying import parse_retry_after
from ratelimited_executor.exceptions import RateLimitedExecutorError, RetryLater
from ratelimited_executor.typing import DurationLike  # noqa: TC001  # annotations of durable functions are read at runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aiohttp import ClientSession
    from yarl import URL

    from ratelimited_executor._runtime.durable.functions import DurableFunction, FunctionOptions
    from ratelimited_executor._runtime.durable.tasks import DurableTasks

__all__ = ["http_function"]

_TIMEOUT: Final = 30.0  # seconds
_RETRY: Final = Retry(12, base=2, cap=3600)  # for about an hour
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header (RFC 9110, section 5.1)
_VALUE: Final = re.compile(r"[^\0-\x08\n-\x1f\x7f]*")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?")
_FRAMING: Final = frozenset(
    {"connection", "content-length", "host", "transfer-encoding"}
)  # headers of the client's own
_TEMPORARY: Final = frozenset({408, 425, 429})  # as well as 5xx
_AFTER_MAX: Final = 86_400.0  # seconds: a Retry-After of a year is a mistake
_PLAIN: Final = "!#$&'()*+,/:;=?@[]"  # characters of an id that stay as they are


class HTTPCallError(RateLimitedExecutorError):
    """A call of a URL was refused.

    Attributes:
        status: the status of the response.
    """

    def __init__(self, call: str, status: int) -> None:
        super().__init__(call, status)
        self.call = call
        self.status = status

    def __str__(self) -> str:
        hint = ": redirects are not followed, call its target" if 300 <= self.status < 400 else ""
        return f"{self.call}: status {self.status}{hint}"


class HTTPCallLaterError(RetryLater):
    """A call of a URL failed, and another attempt may succeed.

    Attributes:
        status: the status of the response; None if there was none, and ``__cause__`` says why.
    """

    def __init__(self, call: str, status: int | None = None, after: float | None = None) -> None:
        super().__init__(after)
        self.args = call, status, after
        self.call = call
        self.status = status

    def __str__(self) -> str:
        cause = f"no response: {type(self.__cause__).__name__}: {self.__cause__}".removesuffix(": ")
        return f"{self.call}: {cause if self.status is None else f'status {self.status}'}"


def http_function(
    tasks: DurableTasks,
    *,
    hosts: Collection[str] | None,
    session: Callable[[], ClientSession] | None = None,
    **options: Unpack[FunctionOptions],
) -> DurableFunction[..., Coroutine[Any, Any, None]]:
    """Register a durable function that calls a URL: ``await call.put("POST", url, json={"order": 7})``.

    Its arguments are ``method`` and ``url``, and by name ``headers``, ``json`` or ``body`` (a text), and ``timeout``, the seconds
    of an attempt, 30 if not given. A status of 2xx ends the task. 408, 425, 429, 5xx, a failed connection and a timeout are
    retried by ``retry``, after ``Retry-After`` at the earliest. After any other status the task has failed for the last time:
    redirects are not followed. Each request has the headers ``Idempotency-Key``, the id of the task, and ``Task-Attempt``.

    Whoever can put a call decides what this process requests, from where it stands in your network: name the hosts.

    Args:
        tasks: the durable tasks.
        hosts: the hosts that may be called, as ``"api.example.org"``, for the port of http or https, or ``"10.0.0.7:8080"``; None
            for any, if no one else decides about URLs.
        session: makes the session of aiohttp, at the first call; it is closed with the tasks.
        options: those of :meth:`DurableTasks.task`; ``name`` is ``"http"`` if not given, and ``retry`` allows 12 attempts in about
            an hour. Name no errors in its ``on``, unless they are to be retried as well.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if a host is not one, or the name is registered already.
        ImportError: if the extra ``http`` is not installed.
    """
    try:
        import aiohttp  # noqa: F401, PLC0415  # an extra, imported on use
    except ImportError as error:
        raise ImportError("http_function needs the extra: pip install 'ratelimited-executor[http]'") from error
    known = None if hosts is None else _hosts_of(hosts)
    calls = _Calls(tasks, known, _session if session is None else callable_of("session", session))
    if "check" in options:
        raise TypeError("http_function() has no check=: it checks its arguments itself")
    options.setdefault("name", "http")
    options.setdefault("retry", _RETRY)
    options["check"] = calls.request
    return tasks.task(**options)(calls.call)


class _Calls:
    """The calls of one function, in one session.

    Args:
        tasks: with which the session is closed.
        hosts: the hosts that may be called, with their port, None for the default one; None for any host.
        make: makes a session.
    """

    def __init__(
        self, tasks: DurableTasks, hosts: frozenset[tuple[str, int | None]] | None, make: Callable[[], ClientSession]
    ) -> None:
        self._tasks = tasks
        self._hosts = hosts
        self._make = make
        self._session: ClientSession | None = None

    async def call(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        json: Any = None,
        body: str | None = None,
        timeout: DurationLike = _TIMEOUT,
    ) -> None:
        """Send the request, and raise for a response that is not 2xx."""
        import aiohttp  # noqa: PLC0415  # an extra, imported on use
        from multidict import CIMultiDict  # noqa: PLC0415  # it comes with aiohttp

        target = self.request(method, url, headers=headers, json=json, body=body, timeout=timeout)
        sent = CIMultiDict[str]()
        if (task := current_task()) is not None:
            sent.update({"Idempotency-Key": quote(task.id, safe=_PLAIN), "Task-Attempt": str(task.attempt_count + 1)})
        sent.update(headers or {})
        limit = aiohttp.ClientTimeout(total=seconds_of("timeout", timeout))
        told = f"{method} {masked(url)}"
        try:
            async with self._opened().request(
                method, target, headers=sent, json=json, data=body, timeout=limit, allow_redirects=False,
                raise_for_status=False,
            ) as response:  # fmt: skip
                status, after = response.status, parse_retry_after(response.headers.get("Retry-After"))
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:  # their texts contain the whole URL
            raise HTTPCallLaterError(told) from OSError(type(error).__name__)
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise HTTPCallLaterError(told) from error
        if status in _TEMPORARY or status >= 500:
            raise HTTPCallLaterError(told, status, None if after is None else min(after, _AFTER_MAX))
        if not 200 <= status < 300:
            raise HTTPCallError(told, status)

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        json: Any = None,
        body: str | None = None,
        timeout: DurationLike = _TIMEOUT,
    ) -> URL:
        """Return the URL of a request.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if it has a wrong value, or the host may not be called.
        """
        if method not in _METHODS:
            raise ValueError(f"method must be one of {', '.join(_METHODS)}, got {method!r}")
        target = _url_of("url", url)
        if target.scheme not in ("http", "https") or not target.raw_host:
            raise ValueError(f"url must begin with http:// or https:// and a host, got {masked(url)!r}")
        if self._hosts is not None and not self._hosts.intersection(_places_of(target)):
            place = f"{target.raw_host}" if target.is_default_port() else f"{target.raw_host}:{target.port}"
            raise ValueError(f"url must be of a host that may be called, got {place!r}: add it to hosts=")
        if json is not None and body is not None:
            raise TypeError("a call takes json= or body=, not both")
        if body is not None and not isinstance(body, str):
            raise TypeError(f"body must be a str, got {type(body).__name__}: encode other data as text")
        _check_headers({} if headers is None else headers)
        seconds_of("timeout", timeout)
        return target

    def _opened(self) -> ClientSession:
        """Return the session, opened on use."""
        if self._session is None or self._session.closed:
            resources = self._tasks._resources  # noqa: SLF001  # these durable tasks close what was opened for them
            if resources is None:
                raise RuntimeError("the tasks are not open: call this within 'async with tasks:'")
            self._session = self._make()
            resources.push_async_callback(self._session.close)
        return self._session


def _session() -> ClientSession:
    """Return a session without cookies, whose connections the executor limits."""
    import aiohttp  # noqa: PLC0415  # an extra, imported on use

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())


def _hosts_of(hosts: Any) -> frozenset[tuple[str, int | None]]:
    if isinstance(hosts, str) or not isinstance(hosts, Collection):
        raise TypeError(f"hosts must be a list of hosts, or None, got {hosts!r}")
    known = set()
    for host in hosts:
        match = _HOST.fullmatch(host) if isinstance(host, str) else None
        if match is None:
            raise ValueError(f"hosts must be as in 'api.example.org' or '10.0.0.7:8080', got {host!r}")
        name = _url_of("hosts", f"http://{match[1]}").raw_host
        assert name is not None
        known.add((name, None if match[2] is None else int(match[2])))
    return frozenset(known)


def _url_of(name: str, value: Any) -> URL:
    """Return a URL, parsed once, so that nothing is called but what was checked."""
    from yarl import URL  # noqa: PLC0415  # it comes with aiohttp

    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r}")
    try:
        url = URL(value)
        assert url.port is None or url.port >= 0
    except ValueError as error:
        raise ValueError(f"{name} must be valid, got {masked(value)!r}: {error}") from None
    return url


def _places_of(url: URL) -> set[tuple[str | None, int | None]]:
    """Return the ways to name the place that a URL leads to."""
    return {(url.raw_host, url.port)} | ({(url.raw_host, None)} if url.is_default_port() else set())


def _check_headers(headers: Any) -> None:
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a dict of texts, got {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers must be a dict of texts, got {type(value).__name__} for {name!r}")
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"headers must have valid names, and values without line breaks, unlike that of {name!r}")
        if name.lower() in _FRAMING:
            raise ValueError(f"headers must not have {name!r}, which follows from the URL and the body: leave it out")
