"""The bytes of HTTP/1.1 requests, made once for each template: only the number of a request is filled in later."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from ratelimited_executor.load.requests import fill, percent_format

if TYPE_CHECKING:
    from ratelimited_executor.load.requests import RequestTemplate

__all__ = ["Origin", "Wire", "wire_of"]

_PORTS: Final = {"http": 80, "https": 443}
# All that may stand in a target, and so is sent as it is; the rest is encoded.
_SAFE: Final = "/?%:@!$&'()*+,;=~-._"
_STRAY_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_WITHOUT_LENGTH: Final = frozenset({"GET", "OPTIONS", "TRACE"})  # a request without a body says so in all other methods
_METHODS_BEYOND: Final = frozenset({"HEAD", "CONNECT"})  # their responses have no body, whatever their headers say
# Headers with which a connection does something else than one request after the other.
_HEADERS_BEYOND: Final = frozenset({"connection", "content-length", "expect", "transfer-encoding", "upgrade"})


class Origin(NamedTuple):
    """What connections lead to.

    Attributes:
        host: a name or an address, without brackets.
        port: the port.
        is_tls: True for https.
    """

    host: str
    port: int
    is_tls: bool


@dataclass(frozen=True, slots=True)
class Wire:
    """The bytes of one kind of request.

    Attributes:
        origin: where they are sent.
        head: a format of everything above the body, with the length of the body as its last field, if there is one.
        head_count: how often the number of the request stands in ``head``.
        body: a format of the body; None for none.
        body_count: how often the number of the request stands in ``body``.
        fixed: the whole, if it has no number.
    """

    origin: Origin
    head: bytes
    head_count: int
    body: bytes | None
    body_count: int
    fixed: bytes | None

    def of(self, number: int) -> bytes:
        """Return the bytes of a request by its number."""
        if self.fixed is not None:
            return self.fixed
        if self.body is None:
            return self.head % ((number,) * self.head_count)
        body = self.body % ((number,) * self.body_count)
        return self.head % (*(number,) * self.head_count, len(body)) + body


def wire_of(template: RequestTemplate) -> Wire | None:
    """Return the bytes of a kind of request; None if a general client has to send it.

    That is so for HEAD and CONNECT, for headers that change how a connection is used, and for a number in the host.
    """
    names = {name.lower() for name in template.headers}
    hosts = {urlsplit(fill(template.url, number)).netloc for number in (0, 1)}
    if template.method in _METHODS_BEYOND or names & _HEADERS_BEYOND or len(hosts) > 1:
        return None
    parts = urlsplit(fill(template.url, 0))
    host = parts.hostname or ""
    try:
        host = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:  # the general client has the words for it
        return None
    origin = Origin(host=host, port=parts.port or _PORTS[parts.scheme], is_tls=parts.scheme == "https")
    target, head_count = _target_of(template.url)
    headers = _headers_of(template, origin)
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).replace("%", "%%")
    head = f"{template.method} {target} HTTP/1.1\r\n{text}".encode()
    if template.body is None:
        head += b"\r\n" if template.method in _WITHOUT_LENGTH else b"Content-Length: 0\r\n\r\n"
        wire = Wire(origin, head, head_count, None, 0, None)
    else:
        body, body_count = percent_format(template.body)
        wire = Wire(origin, head + b"Content-Length: %d\r\n\r\n", head_count, body.encode(), body_count, None)
    if wire.head_count or wire.body_count:
        return wire
    return Wire(origin, wire.head, 0, wire.body, 0, wire.of(0))


def _target_of(url: str) -> tuple[str, int]:
    """Return a format of the target of a request line, and how often the number stands in it."""
    _, _, rest = url.partition("#")[0].partition("//")
    begin = min((rest.find(sign) for sign in "/?" if sign in rest), default=len(rest))
    target, count = percent_format(rest[begin:], _encoded)
    return target if target.startswith("/") else f"/{target}", count


def _encoded(text: str) -> str:
    return quote(_STRAY_PERCENT.sub("%25", text), safe=_SAFE)


def _headers_of(template: RequestTemplate, origin: Origin) -> dict[str, str]:
    """Return the headers of a request: those of the template, and those that any request has."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    is_default = origin.port == _PORTS["https" if origin.is_tls else "http"]
    headers = {
        "Host": host if is_default else f"{host}:{origin.port}",
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": "ratelimited-executor",
    }
    parts = urlsplit(fill(template.url, 0))
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    if template.body is not None:
        headers["Content-Type"] = "application/octet-stream"
    given = {name.lower() for name in template.headers}
    return {name: value for name, value in headers.items() if name.lower() not in given} | template.headers
