"""Changes are accepted only from pages of the same host, and pages served only under its known names."""

import httpx
import pytest
from starlette.responses import PlainTextResponse

from ratelimited_executor.dashboard.guards import HEADERS, KnownHosts, is_same_origin, stranger_text


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site"}, False),  # another host of the same domain
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),  # typed in: not sent by a form of this page
        ({"sec-fetch-site": "cross-site", "origin": "http://me", "host": "me"}, False),
        ({"origin": "http://me:8000", "host": "me:8000"}, True),
        ({"origin": "https://me", "host": "me"}, True),
        ({"origin": "http://me", "host": "me:8000"}, False),
        ({"origin": "http://evil", "host": "me"}, False),
        ({"origin": "http://me.evil", "host": "me"}, False),
        ({"origin": "null", "host": "me"}, False),  # a sandboxed frame
        ({"origin": "http://[::1]:8000", "host": "[::1]:8000"}, True),
        ({"origin": "http://[::1", "host": "me"}, False),
        ({"origin": "http://me@evil", "host": "me"}, False),
        ({"origin": "http://me/evil", "host": "me"}, False),
        ({"origin": "//me", "host": "me"}, False),
        ({"origin": "", "host": ""}, False),
        ({"origin": "http://", "host": ""}, False),
        ({"host": "me"}, False),
        ({}, False),
    ],
)
def test_request_of_another_site_changes_nothing(headers, expected):
    """Only a request whose headers, which a page cannot forge, name the same origin may change something."""
    assert is_same_origin(headers) is expected


def test_program_is_told_which_header_is_missing():
    """A request without a header that tells its origin is no browser's: the refusal names the header."""
    assert "it has no header Origin" in stranger_text({"host": "me"})
    for headers in ({"origin": "http://evil"}, {"sec-fetch-site": "cross-site"}):
        assert stranger_text(headers) == "The request did not come from this page."


def test_policy_allows_nothing_inline_and_no_other_host():
    """The policy allows no inline code and no other host, so that injected code does not run."""
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8765", 200),
        ("LocalHost", 200),
        ("[::1]:8765", 200),
        ("10.0.0.7:8765", 200),  # where the request has arrived
        ("evil.example", 421),
        ("evil.example:8765", 421),
        ("localhost.evil.example", 421),
        ("localhost@evil.example", 421),
        ("evil.example/localhost", 421),
        ("10.0.0.8", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
async def test_page_is_served_under_its_own_names_only(host, status):
    """A request for another host, as after DNS rebinding, is refused with the remedy."""
    app = KnownHosts(PlainTextResponse("the page"), ["localhost", "::1"], "start it with --allow-host")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://10.0.0.7") as web:
        answer = await web.get("/", headers={"Host": host})
    assert answer.status_code == status
    assert ("the page" in answer.text, "start it with --allow-host" in answer.text) == (status == 200, status != 200)
