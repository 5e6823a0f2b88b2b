"""The bytes of requests."""

from __future__ import annotations

import pytest

from ratelimited_executor.cli.bench.wire import Origin, wire_of
from ratelimited_executor.load.requests import RequestTemplate


@pytest.mark.parametrize(
    ("url", "target", "origin"),
    [
        ("http://host", "/", Origin("host", 80, False)),
        ("https://host?a=b", "/?a=b", Origin("host", 443, True)),
        (
            "http://HOST:8000/a b/{n:03}/{x}?q={n}&p=5%#part",
            "/a%20b/007/%7Bx%7D?q=7&p=5%25",
            Origin("host", 8000, False),
        ),
        ("http://[::1]:80/%41/../é", "/%41/../%C3%A9", Origin("::1", 80, False)),
        ("http://bücher.example/", "/", Origin("xn--bcher-kva.example", 80, False)),
        ("http://u:p@host/{n:x}{n}", "/77", Origin("host", 80, False)),
    ],
)
def test_url_becomes_target_and_origin(url, target, origin) -> None:
    """What may stand in a target is sent as it is, the rest is encoded, and the number is filled in."""
    wire = wire_of(RequestTemplate(url=url))

    assert origin == wire.origin
    assert wire.of(7).startswith(f"GET {target} HTTP/1.1\r\nHost: ".encode())


@pytest.mark.parametrize(
    ("template", "lines"),
    [
        (RequestTemplate(url="http://[::1]:81/"), ["Host: [::1]:81"]),
        (RequestTemplate(url="http://h/", headers={"host": "other", "ACCEPT": "a"}), ["host: other", "ACCEPT: a"]),
        (RequestTemplate(url="http://h/", method="POST"), ["Content-Length: 0"]),
        (RequestTemplate(url="http://h/", body="{n} 5%"), ["Content-Length: 5", "", "12 5%"]),
        (
            RequestTemplate(url="http://h/", headers={"X": "50%"}, body="é{n:04}"),
            ["X: 50%", "Content-Length: 6", "", "é0012"],
        ),
    ],
)
def test_headers_and_length_are_those_of_the_request(template, lines) -> None:
    """A header that is given replaces ours of the same name, and the length counts bytes."""
    text = wire_of(template).of(12).decode()
    names = [line.partition(":")[0].lower() for line in text.partition("\r\n\r\n")[0].split("\r\n")[1:]]

    assert "\r\n".join(lines) in text
    assert len(names) == len(set(names))


def test_request_without_a_number_is_made_once() -> None:
    """The same bytes are sent each time."""
    wire = wire_of(RequestTemplate(url="http://h/", body="x"))

    assert wire.of(1) is wire.of(2) is wire.fixed
