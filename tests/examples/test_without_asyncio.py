"""Programs without asyncio use a scheduled executor: Flask, Django, Celery and a script, each as its users run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from ratelimited_executor.testing import audit

from ..helpers import extras, until

if TYPE_CHECKING:
    from .conftest import Site

    Load = Callable[[str], ModuleType]

EXAMPLES = Path(__file__).parents[2] / "examples"
TRANSIT_SECONDS = 0.5  # on a busy machine a request may reach the server this much later than it was started

pytestmark = [
    pytest.mark.real_time("a real server, and frameworks that know no virtual time"),
    pytest.mark.timeout(120),
]


def test_service_with_flask_delivers_under_the_rate(example: Load, site: Site) -> None:
    """Webhooks are accepted at once, delivered under the rate, and refused if they are wrong or too many wait."""
    with extras():
        import flask  # noqa: F401
    program = example("flask_service")
    client = program.app.test_client()
    with program.executor:
        for number in range(20):
            answer = client.post("/webhooks", json={"url": site.url, "payload": {"number": number}})
            assert 202 == answer.status_code
        assert answer.json["why"].startswith(("waiting", "running", "done"))
        wrong = client.post("/webhooks", json={"url": site.url, "payload": {}, "delay": -1})
        assert (400, {"error": "delay must be >= 0 seconds, got -1"}) == (wrong.status_code, wrong.json)
        late = {"url": site.url, "payload": {"number": 20}, "delay": 60}
        statuses = [client.post("/webhooks", json=late).status_code for _ in range(101)]
        assert 503 == statuses[-1]
        until(lambda: 20 == client.get("/webhooks").json["delivered"])
        program.executor.shutdown(cancel_futures=True)

    assert sorted(range(20)) == sorted(body["number"] for body in site.bodies)  # type: ignore[index]  # sent as JSON
    assert audit(site.arrivals, 20, slack=TRANSIT_SECONDS).ok


def test_view_of_django_schedules_and_its_callback_may_use_the_database(example: Load) -> None:
    """A view returns at once; its work uses the database of its worker thread, and its callback is in no event loop."""
    with extras():
        import django
        from django.conf import settings
        from django.test import Client, override_settings
    program = example("django_view")
    django.setup()
    assert settings.configured
    with program.executor, override_settings(ROOT_URLCONF=program.__name__, ALLOWED_HOSTS=["*"]):
        client = Client()
        assert 202 == client.get("/remind?name=Ada&delay=0.1").status_code
        assert 202 == client.get("/remind?name=Bob").status_code
        until(lambda: {"reminded": ["BOB", "ADA"]} == client.get("/reminded").json())


def test_task_of_celery_fans_out_under_the_rate(example: Load, site: Site) -> None:
    """One task makes its requests several at once, and under the rate."""
    with extras():
        import celery  # noqa: F401
    program = example("celery_fan_out")
    site.seconds = 0.05
    assert [200] * 20 == program.fetch.apply(args=[[site.url] * 20]).get(timeout=60)
    assert "ConnectError" in program.fetch.apply(args=[["http://127.0.0.1:1/"]]).traceback
    program.close()
    assert audit(site.arrivals, 20, slack=TRANSIT_SECONDS).ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_processes_that_a_celery_worker_has_forked_have_executors_of_their_own(site: Site) -> None:
    """The module is loaded before the fork, as by ``prefork``; each process starts its own threads, and ends them."""
    with extras():
        import celery  # noqa: F401
    code = """
        import os, sys, celery_fan_out as program
        for _ in range(2):
            if not os.fork():
                print(program.fetch([sys.argv[1]] * 3), flush=True)
                program.close()
                os._exit(0)
        for _ in range(2):
            assert os.wait()[1] == 0
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), site.url],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # A machine that is busy with other tests may not give a process the CPU for a tenth of a second, which is logged.
    errors = [line for line in run.stderr.splitlines() if "did not get the CPU" not in line]
    assert (0, "[200, 200, 200]\n" * 2, []) == (run.returncode, run.stdout, errors)
    assert 6 == len(site.arrivals)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_script_polls_until_it_is_interrupted(site: Site) -> None:
    """The script polls at its rate, writes summaries, and ends at once and without an error at Ctrl-C."""
    command = [sys.executable, str(EXAMPLES / "poll_script.py"), site.url, "--period", "100ms", "--summary", "200ms"]
    script = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: len(site.arrivals) >= 6)
        script.send_signal(signal.SIGINT)
        output, errors = script.communicate(timeout=30)
    finally:
        script.kill()
    assert (0, "") == (script.returncode, errors)
    lines = output.splitlines()
    assert "stopped" in lines
    assert lines[-1] == f"{{200: {len(site.arrivals)}}}"
    assert lines[0].startswith("{200: ")
