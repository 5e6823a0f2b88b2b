"""The example client keeps both limits of a real server, wastes little, and makes no tenant wait for another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import ModuleType

import httpx
import pytest

# On a busy machine a request may reach the server this much later than it was started.
TRANSIT_SECONDS = 0.5


@pytest.mark.real_time("a real HTTP server and client")
async def test_limits_are_never_broken_and_every_call_is_answered(example: Callable[[str], ModuleType]) -> None:
    """Tokens are the limit here, and the small tenant is served before the backlog of the big one is done."""
    program = example("llm_client")
    limits = program.Limits(requests=30, tokens=8_000, minute=1.0)

    report = await program.run(list(program.make_calls(5)), limits=limits, believed=limits, margin=TRANSIT_SECONDS)

    assert (55, 0) == (report.server.attempt_count, report.server.violation_count)
    assert sorted(report.answers) == sorted(count for _, (_, count) in report.server.accepted)
    assert report.tenant_seconds["small"] < report.tenant_seconds["big"]
    assert max(report.utilisation()) <= 1


@pytest.mark.real_time("a real HTTP server and client")
async def test_refused_calls_come_back_no_earlier_than_told_and_all_are_answered(
    example: Callable[[str], ModuleType],
) -> None:
    """A client that assumes twice the limits is refused, waits as it is told, and gets every answer in the end."""
    program = example("llm_client")
    limits = program.Limits(requests=30, tokens=8_000, minute=1.0)

    report = await program.run(list(program.make_calls(4)), limits=limits, believed=limits.times(2), margin=0)

    assert report.server.violation_count > 0
    assert 0 == report.server.early_count
    assert 44 == len(report.answers) == len(report.server.accepted)
    assert report.server.attempt_count == 44 + report.server.violation_count


@pytest.mark.parametrize(("is_settling", "second_start"), [(True, 0.1), (False, 60.0)])
async def test_what_a_call_has_not_used_is_free_once_it_is_answered(
    example: Callable[[str], ModuleType], virtual_clock: object, is_settling: bool, second_start: float
) -> None:
    """Two reservations exceed a minute's tokens; the second call starts early if the first returns unused ones."""
    program = example("llm_client")
    loop = asyncio.get_running_loop()
    starts: list[float] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        starts.append(loop.time())
        await asyncio.sleep(0.1)
        return httpx.Response(200, json={"usage": {"total_tokens": 300}})

    limits = program.Limits(requests=10, tokens=1_000, minute=60.0)
    calls = [program.Call("tenant", number, prompt_tokens=100, max_tokens=500) for number in range(2)]
    async with (
        httpx.AsyncClient(base_url="http://api.test", transport=httpx.MockTransport(answer)) as http,
        program.make_executor(limits, margin=0) as executor,
    ):
        client = program.ModelClient(http, executor, is_settling)
        used = await asyncio.gather(*(client.complete(call) for call in calls))

    assert [300, 300] == used
    assert second_start == pytest.approx(starts[1] - starts[0], abs=0.01)


async def test_a_refusal_holds_everybody_for_as_long_as_it_says(
    example: Callable[[str], ModuleType], virtual_clock: object
) -> None:
    """After a 429 no call starts before Retry-After has passed, and then all calls are answered."""
    program = example("llm_client")
    loop = asyncio.get_running_loop()
    began = loop.time()
    starts: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        starts.append(loop.time() - began)
        if len(starts) == 3:
            return httpx.Response(429, headers={"Retry-After": "7"})
        return httpx.Response(200, json={"usage": {"total_tokens": json.loads(request.content)["prompt_tokens"]}})

    limits = program.Limits(requests=2, tokens=1_000, minute=1.0)
    async with (
        httpx.AsyncClient(base_url="http://api.test", transport=httpx.MockTransport(answer)) as http,
        program.make_executor(limits, margin=0) as executor,
    ):
        client = program.ModelClient(http, executor)
        calls = [program.Call("tenant", number, prompt_tokens=10, max_tokens=20) for number in range(6)]
        used = await asyncio.gather(*(client.complete(call) for call in calls))

    assert [10] * 6 == used
    assert 7 == len(starts)
    assert all(start <= starts[2] + 0.01 or start >= starts[2] + 7 for start in starts)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([], 0.0, None),
        ([(0.0, 400), (0.5, 400)], 0.9, 1),  # the third request within a minute
        ([(0.0, 400), (0.5, 400)], 1.0, None),
        ([(0.0, 700)], 0.5, 1),  # 700 + 400 tokens
        ([(0.0, 600)], 0.5, None),
    ],
)
def test_server_counts_in_an_exact_window(
    example: Callable[[str], ModuleType], before: list[tuple[float, int]], now: float, expected: int | None
) -> None:
    """The server allows two requests and 1,000 tokens in any second, and a refusal has the seconds to wait."""
    program = example("llm_client")
    server = program.ModelServer(program.Limits(requests=2, tokens=1_000, minute=1.0))
    for number, (when, tokens) in enumerate(before):
        assert server.judge(program.Call("tenant", number, 0, tokens), when) == [when, tokens]

    judged = server.judge(program.Call("tenant", 99, 100, 300), now)

    assert expected == (judged if isinstance(judged, int) else None)
    assert server.violation_count == (expected is not None)
