"""The example client keeps a real server's limit, and after a refusal returns no earlier than it was told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import ModuleType

import httpx
import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.testing import audit

# On a busy machine a request may reach the server this much later than it was started.
TRANSIT_SECONDS = 1


@pytest.mark.real_time("a real HTTP server and client")
async def test_a_rate_below_the_limit_is_never_refused(example: Callable[[str], ModuleType]) -> None:
    """At half the limit no request is refused, even if some are delayed and arrive together."""
    program = example("retry_after")

    server = await program.fetch_all(60, limit=100, rate=50)

    assert (60, 0) == (len(server.arrivals), server.violation_count)


@pytest.mark.real_time("a real HTTP server and client")
async def test_refused_requests_come_back_no_earlier_than_told_and_all_succeed(
    example: Callable[[str], ModuleType],
) -> None:
    """At twice the limit every request succeeds in the end, and all attempts keep the client's rate, even retries."""
    program = example("retry_after")

    server = await program.fetch_all(120, limit=30, rate=60)

    assert server.violation_count > 0
    assert server.early_count == 0
    assert len(server.arrivals) == 120 + server.violation_count
    assert audit(server.arrivals, 60, slack=TRANSIT_SECONDS).ok


async def test_every_attempt_takes_a_permit_and_retries_go_first(
    example: Callable[[str], ModuleType], virtual_clock: object, audit: Callable[..., object]
) -> None:
    """Attempts, retries included, keep the rate, and a refused request is not repeated within its second."""
    program = example("retry_after")
    loop = asyncio.get_running_loop()
    attempts: list[tuple[float, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        attempts.append((loop.time(), request.url.path))
        return httpx.Response(200) if loop.time() >= 1.5 else httpx.Response(429, headers={"Retry-After": "1"})

    async with (
        httpx.AsyncClient(base_url="http://api.test", transport=httpx.MockTransport(answer)) as http,
        RateLimitedExecutor("api", rate=10) as executor,
    ):
        client = program.ApiClient(http, executor, randomness=random.Random(1))
        await asyncio.gather(*(client.get(f"/{number}") for number in range(20)))

    times = [time for time, _ in attempts]
    assert audit(times, 10).ok
    assert len(attempts) == 20 + sum(time < 1.5 for time in times)
    for path in {path for _, path in attempts}:
        own = [time for time, other in attempts if other == path]
        assert all(after - before >= 1.0 for before, after in zip(own, own[1:], strict=False))


async def test_gives_up_after_the_last_attempt(example: Callable[[str], ModuleType], virtual_clock: object) -> None:
    """After its last attempt the client raises an error that names the path and the number of refusals."""
    program = example("retry_after")
    transport = httpx.MockTransport(lambda request: httpx.Response(429))

    async with httpx.AsyncClient(base_url="http://api.test", transport=transport) as http:
        client = program.ApiClient(http, None, attempt_count_max=3)
        with pytest.raises(program.GaveUpError, match="/x: refused 3 times"):
            await client.get("/x")


@pytest.mark.parametrize(
    ("header", "expected"),
    [(None, 0.0), ("7", 7.0), (" 7 ", 7.0), ("soon", 0.0), ("-3", 0.0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0)],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(
    example: Callable[[str], ModuleType], header: str | None, expected: float
) -> None:
    """A header without a number or a date, or with one in the past, means no wait."""
    assert expected == example("retry_after").retry_after_seconds(header)


def test_retry_after_reads_a_date_to_come(example: Callable[[str], ModuleType]) -> None:
    """A date in the future becomes the seconds until then."""
    when = datetime.now(UTC) + timedelta(seconds=100)

    seconds = example("retry_after").retry_after_seconds(format_datetime(when, usegmt=True))

    assert 90 < seconds <= 100
