"""What keeps a page safe: a strict policy of its contents, and no changes that come from another site.

A browser says of each request where it comes from. ``Sec-Fetch-Site`` does so reliably, but only over HTTPS and to localhost;
``Origin`` does so for each POST. A form of another site can forge neither. This is the scheme of F. Valsorda,
"Cross-Site Request Forgery" (2025), which Go's ``net/http.CrossOriginProtection`` implements; other than that, a request with
neither header is refused here: it is no browser's, and whoever writes a program can set one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HEADERS", "is_same_origin"]

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


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return True if a request that changes something comes from a page of this very host.

    Args:
        headers: of the request, with names in lower case.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin, host = headers.get("origin"), headers.get("host")
    return bool(host) and origin is not None and urlsplit(origin).netloc == host
