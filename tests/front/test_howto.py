"""The programs of the how-to do what it shows, for its service with the requests of its curl lines."""

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest

from ..helpers import skip_without_apsw

skip_without_apsw()
PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "durable-tasks-over-http.md").read_text(encoding="utf-8")
SERVICE, *PROGRAMS = re.findall(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", PAGE, re.MULTILINE | re.DOTALL)
REQUESTS = re.findall(r"^```sh\n(curl .*?)^```$(?:\n+^```json\n(.*?)^```$)?", PAGE, re.MULTILINE | re.DOTALL)


def request_of(line):
    """Return what a line with curl sends."""
    words = shlex.split(line)[1:]
    options = [(word, words[index + 1]) for index, word in enumerate(words) if word in ("-X", "-H", "-d")]
    values = {value for _, value in options}
    [url] = [word for word in words if not word.startswith("-") and word not in values]
    headers = dict(value.split(": ", 1) for name, value in options if name == "-H")
    given = {name: value for name, value in options if name != "-H"}
    return httpx.Request(given.get("-X", "GET"), url, headers=headers, content=given.get("-d"))


async def test_curl_lines_get_what_the_page_shows(monkeypatch, tmp_path, virtual_clock):
    """Each request of the page succeeds, and gets the answer that is shown below it; without the token, none does."""
    monkeypatch.setenv("FRONT_TOKEN", "s3cret")
    monkeypatch.chdir(tmp_path)
    service = {}
    exec(compile(SERVICE[0], "service.py", "exec"), service)
    assert len(REQUESTS) >= 5
    async with (
        service["running"](service["app"]),
        httpx.AsyncClient(transport=httpx.ASGITransport(service["app"])) as web,
    ):
        for lines, shown in REQUESTS:
            for line in lines.splitlines():
                answer = await web.send(request_of(line))
                assert (answer.status_code in (200, 201, 204)) == ("169.254" not in line), answer.text
            assert not shown or answer.json() == json.loads(shown)
        assert (await web.get("http://127.0.0.1:8000/queue/counts")).status_code == 403
        assert (await web.get("http://127.0.0.1:8000/queue/openapi.json")).status_code == 403


@pytest.mark.parametrize(("code", "output"), PROGRAMS)
def test_program_prints_what_the_page_says(code, output, capsys):
    """Each other program runs, on a real loop, as it may open sockets, and prints what is shown below it."""
    exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == output
