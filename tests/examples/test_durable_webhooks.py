"""The example service loses no accepted webhook, even if it is killed again and again."""

import random
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ..helpers import until
from ..serving import serving

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.real_time("a real server process that is killed"),
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a busy machine takes a minute
]


@contextmanager
def service(tmp_path, store, log):
    """Run the example as its reader would, on a free port, and kill it at the end."""
    command = ["-m", "uvicorn", "durable_webhooks:app", "--port", "0", "--app-dir", str(EXAMPLES)]
    with serving(command, log, folder=tmp_path, variables={"DURABLE_STORE": store, "DURABLE_LEASE": "1"}) as running:
        yield running.url


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_was_accepted_is_delivered_though_the_service_is_killed(tmp_path, site, kind, request):
    """Two processes are each killed while they accept and deliver, and the events of a customer arrive in order."""
    store = "webhooks.db" if kind == "sqlite" else request.getfixturevalue("postgresql")
    draw = random.Random(3)
    accepted = []
    for life in range(2):
        with service(tmp_path, store, tmp_path / f"log{life}") as url, httpx.Client(base_url=url, timeout=60) as client:
            for number in range(draw.randrange(5, 25)):
                event = {"number": len(accepted), "customer": f"c{number % 3}"}
                body = {
                    "id": f"{kind}-{life}-{number}",
                    "url": f"{site.url}/hooks",
                    "event": event,
                    "customer": event["customer"],
                }
                answer = client.post("/webhooks", json=body)
                assert (202, True) == (answer.status_code, answer.json()["created"])
                assert not client.post("/webhooks", json=body).json()["created"]
                accepted.append(event)
    with service(tmp_path, store, tmp_path / "log") as url, httpx.Client(base_url=url, timeout=60) as client:
        for life in range(2):
            until(lambda: client.get(f"/webhooks/{kind}-{life}-0").json()["state"] == "gone")
        until(lambda: len({body["number"] for body in site.bodies}) == len(accepted))
    times = Counter(body["number"] for body in site.bodies)
    assert set(range(len(accepted))) == set(times)
    assert sum(times.values()) <= len(accepted) + 2 * 3  # at each kill, one event of each customer may be sent twice
    for customer in ("c0", "c1", "c2"):
        first_seen = list(dict.fromkeys(body["number"] for body in site.bodies if body["customer"] == customer))
        assert sorted(first_seen) == first_seen


def test_refused_event_is_no_longer_tried_and_wrong_input_is_refused(tmp_path):
    """A receiver's 404 makes a dead letter at the first attempt; what a store cannot take is refused with 4xx."""
    with service(tmp_path, "webhooks.db", tmp_path / "log") as url, httpx.Client(base_url=url, timeout=60) as client:
        good = {"id": "a", "url": f"{url}/nowhere", "event": {}}
        for wrong in ({"id": ""}, {"id": "x" * 256}, {"id": "\0"}, {"url": "no url"}, {"customer": ""}, {"event": 5}):
            assert 422 == client.post("/webhooks", json={**good, **wrong}).status_code, wrong
        assert 413 == client.post("/webhooks", json={**good, "event": {"text": "x" * 300_000}}).status_code
        assert 202 == client.post("/webhooks", json=good).status_code
        until(lambda: client.get("/webhooks/a").json()["state"] == "dead")
        assert "gone" == client.get("/webhooks/unknown").json()["state"]
