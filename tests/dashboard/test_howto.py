"""Programs of the how-to of the live page, asked as a browser asks them."""

import re
from pathlib import Path

import httpx
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "live-page.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _virtual(virtual_clock):
    """Run the executors and the requests for pages on one virtual loop."""


def program_under(heading):
    """Return the names that the first program below a heading defines."""
    code = re.search(rf"^## {heading}$.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    names = {}
    exec(compile(code, heading, "exec"), names)
    return names


async def test_password_is_asked_for(monkeypatch):
    """Without credentials or with wrong ones, a client is challenged and sees nothing; with the right ones, it sees all."""
    monkeypatch.setenv("PAGE_PASSWORD", "seven of nine")
    service = program_under("Ask for a password")
    async with service["manager"]:
        transport = httpx.ASGITransport(service["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as web:
            for auth in (None, ("ann", "wrong"), ("ann", "")):
                refused = await web.get("/executors/", auth=auth)
                assert (refused.status_code, "mail" in refused.text) == (401, False)
                assert refused.headers["www-authenticate"] == 'Basic realm="executors"'
                assert refused.headers["cache-control"] == "no-store"
            right = httpx.BasicAuth("ann", "seven of nine")
            assert "mail" in (await web.get("/executors/", auth=right)).text
            paused = await web.post(
                "/executors/change",
                data={"name": "mail", "action": "pause"},
                headers={"Sec-Fetch-Site": "same-origin"},
                auth=right,
            )
            assert (paused.status_code, service["mail"].is_paused) == (303, True)
