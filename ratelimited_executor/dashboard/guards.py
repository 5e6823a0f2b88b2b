"""What keeps a page safe: a strict policy of its contents, and no changes that come from another site.

A browser says of each request where it comes from. ``Sec-Fetch-Site`` does so reliably, but only over HTTPS and to localhost;
``Origin`` does so for each POST. A form of another site can forge neither. This is the scheme of F. Valsorda,
"Cross-Site Request Forgery" (2025), which Go's ``net/http.CrossOriginProtection`` implements; other than that, a request with
neither header is refused here: it is no browser's, and whoever writes a program can set one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "StrictHeaders", "is_same_origin"]

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


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return True if a request that changes something comes from a page of this very host.

    Args:
        headers: of the request, with names in lower case.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin, host = headers.get("origin"), headers.get("host")
    return bool(host) and origin in (f"http://{host}", f"https://{host}")
