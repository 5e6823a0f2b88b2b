"""What keeps a page safe: a strict policy of its contents, known names of its host, no changes from another site.

A browser says of each request where it comes from. ``Sec-Fetch-Site`` does so reliably, but only over HTTPS and to localhost;
``Origin`` does so for each POST. A form of another site can forge neither. This is the scheme of F. Valsorda,
"Cross-Site Request Forgery" (2025), which Go's ``net/http.CrossOriginProtection`` implements; other than that, a request with
neither header is refused here: it is no browser's, and whoever writes a program can set one.

A browser takes a page of ``evil.example`` and this page for the same site if ``evil.example`` resolves to this address at the
second look (DNS rebinding). Only ``Host`` tells them apart.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "HEADERS",
    "KnownHosts",
    "StrictHeaders",
    "host_of",
    "is_granted",
    "is_same_origin",
    "stranger_text",
    "with_body",
]

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every answer."""
_RAW_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class StrictHeaders:
    """Sets the headers of every answer of an application: pages, files, redirects, refusals.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as the application does."""

        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_RAW_HEADERS]}
            await send(message)

        await self._app(scope, receive, send_strictly)


class KnownHosts:
    """Refuses requests for another host: to an application that everybody may read, they come by DNS rebinding.

    The address at which a request has arrived is known as well, as no other site can have it as its name.

    Args:
        app: the application.
        names: names and addresses of the host, in lower case; addresses without brackets.
        remedy: what to do about a name that is missing.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], remedy: str) -> None:
        self._app = app
        self._names = frozenset(names)
        self._remedy = remedy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as the application does, or refuse it with status 421."""
        if scope["type"] == "http":
            header = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            host = host_of(header)
            if host not in self._names and host != (scope.get("server") or ("",))[0]:
                return await _refuse(send, f"No page is served here under the name {header!r}: {self._remedy}.\n")
        return await self._app(scope, receive, send)


async def _refuse(send: Send, text: str) -> None:
    """Answer that this server is not the one that the request is for."""
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def host_of(header: str) -> str:
    """Return the name or the address in a ``Host`` header, in lower case; an empty text if there is none.

    >>> host_of("LOCALHOST:8765"), host_of("[::1]:8765"), host_of("[::1"), host_of("me@evil")
    ('localhost', '::1', '', '')
    """
    try:
        parts = urlsplit(f"//{header}")
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == header and "@" not in header else ""


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return True if a request that changes something comes from a page of this very host.

    Args:
        headers: the headers of the request, with names in lower case.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin, host = headers.get("origin"), headers.get("host")
    return bool(host) and origin in (f"http://{host}", f"https://{host}")


def stranger_text(headers: Mapping[str, str]) -> str:
    """Return why a request is refused that :func:`is_same_origin` does not accept."""
    text = "The request did not come from this page"
    if "sec-fetch-site" in headers or "origin" in headers:
        return f"{text}."
    return f"{text}: it has no header Origin, as each browser sends; a program sends the scheme and host of this page."


async def is_granted(ask: Callable[..., Any], *asked: Any) -> bool:
    """Return what a function of the user decides about a request.

    Raises:
        TypeError: if it returns anything but a bool, such as a redirect to a login, which would count as a yes.
    """
    answer = ask(*asked)
    if inspect.isawaitable(answer):
        answer = await answer
    if not isinstance(answer, bool):
        raise TypeError(f"authorize and authorize_view must return a bool, got {answer!r}")
    return answer


async def with_body(request: Request, bytes_max: int, too_large: Callable[[], Exception]) -> Request:
    """Return a request whose body has been read, so that ``form()``, ``body()`` and ``stream()`` work for all who call them.

    Raises:
        Exception: what ``too_large`` returns, if the body has more bytes.
    """
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > bytes_max:
            raise too_large()
        return message

    whole = type(request)(request.scope, receive)
    await whole.body()
    return whole
