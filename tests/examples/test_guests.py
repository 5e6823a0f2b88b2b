"""Other people's code keeps our limits: each example with the real package, against a server that counts."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor, TaskExpiredError
from ratelimited_executor.blocking import BlockingManager
from ratelimited_executor.testing import audit

if TYPE_CHECKING:
    from ..peers.servers import RedisServer
    from .conftest import Site

    Load = Callable[[str], ModuleType]

EXAMPLES = Path(__file__).parents[2] / "examples"
# On a busy machine a request may reach the server this much later than it was started.
TRANSIT_SECONDS = 0.5

pytestmark = [pytest.mark.real_time("a real server, and packages that know no virtual time"), pytest.mark.timeout(300)]


def judged(site: Site, rate: float) -> bool:
    """Return True if the arrivals keep a rate."""
    return audit(site.arrivals, rate, slack=TRANSIT_SECONDS).ok


# httpx


async def test_async_client_of_httpx_keeps_the_rate_and_a_number_at_once(example: Load, site: Site) -> None:
    """Forty requests at once arrive at the rate, and at most three are under way."""
    program = example("httpx_transport")
    site.seconds = 0.05
    async with RateLimitedExecutor("api", rate="50/s", max_concurrency=3) as executor:
        async with httpx.AsyncClient(transport=program.LimitedTransport(executor)) as client:
            answers = await asyncio.gather(*(client.get(site.url) for _ in range(40)))

    assert {200} == {answer.status_code for answer in answers}
    assert site.most <= 3
    assert site.arrivals[-1] - site.arrivals[0] >= 39 / 50 - TRANSIT_SECONDS
    assert judged(site, 50)


def test_threads_with_a_client_of_httpx_keep_the_rate(example: Load, site: Site) -> None:
    """Eight threads that share a client together keep the rate."""
    program = example("httpx_transport")
    with BlockingManager() as manager, ThreadPoolExecutor(8) as pool:
        limiter = manager.limiter("api", rate="50/s")
        with httpx.Client(transport=program.BlockingTransport(limiter)) as client:
            answers = list(pool.map(client.get, [site.url] * 40))
        assert (40, 0) == (limiter.statistics().done, limiter.statistics().running)

    assert {200} == {answer.status_code for answer in answers}
    assert site.arrivals[-1] - site.arrivals[0] >= 39 / 50 - TRANSIT_SECONDS
    assert judged(site, 50)


async def test_refused_request_holds_up_all_others(example: Load, site: Site) -> None:
    """After a 429 neither client sends a request before the server's second is over."""
    program = example("httpx_transport")
    for count in (0, 2):
        site.refusals = 1
        if count == 0:
            async with RateLimitedExecutor("api") as executor:
                async with httpx.AsyncClient(transport=program.LimitedTransport(executor)) as client:
                    statuses = [(await client.get(site.url)).status_code for _ in range(2)]
        else:
            statuses = await asyncio.to_thread(get_twice, program, site.url)
        assert [429, 200] == statuses
        assert site.arrivals[count + 1] - site.arrivals[count] >= 0.99


def get_twice(program: ModuleType, url: str) -> list[int]:
    with BlockingManager() as manager:
        with httpx.Client(transport=program.BlockingTransport(manager.limiter("api"))) as client:
            return [client.get(url).status_code for _ in range(2)]


# LangChain


def make_model(site: Site, limiter: Any) -> Any:
    """Return a chat model that asks the server, as LangChain's models ask theirs."""
    from langchain_core.language_models import SimpleChatModel

    class Model(SimpleChatModel):
        def _call(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> str:
            return str(httpx.post(site.url, json=messages[0].content).status_code)

        @property
        def _llm_type(self) -> str:
            return "site"

    return Model(rate_limiter=limiter)


def test_models_of_langchain_keep_the_rate_in_threads_and_loops(example: Load, site: Site) -> None:
    """``batch`` in threads and ``abatch`` on an event loop take permits of the same limiter."""
    program = example("langchain_limiter")
    with BlockingManager() as manager:
        limiter = manager.limiter("model", rate="50/s")
        model = make_model(site, program.PermitRateLimiter(limiter))
        batches: list[Any] = []
        thread = threading.Thread(target=lambda: batches.append(model.batch([str(n) for n in range(20)])))
        thread.start()
        batches.append(asyncio.run(model.abatch([str(n) for n in range(20)])))
        thread.join()
        assert 40 == limiter.statistics().done

    assert ["200"] * 40 == [answer.content for batch in batches for answer in batch]
    assert site.arrivals[-1] - site.arrivals[0] >= 39 / 50 - TRANSIT_SECONDS
    assert judged(site, 50)


async def test_limiter_of_langchain_need_not_wait(example: Load) -> None:
    """``blocking=False`` returns whether there was a permit, and ``expires`` limits the wait."""
    program = example("langchain_limiter")
    manager = BlockingManager(interval=0.05)
    limiter = program.PermitRateLimiter(manager.limiter("model", rate="1/min"), expires=0.05)
    try:
        assert await limiter.aacquire(blocking=False)
        assert not await limiter.aacquire(blocking=False)
        assert not await asyncio.to_thread(limiter.acquire, blocking=False)
        with pytest.raises(TaskExpiredError):
            await limiter.aacquire()
    finally:
        manager.close()


# Celery


@pytest.mark.slow
def test_workers_of_celery_share_the_rate(redis_server: RedisServer, site: Site, tmp_path: Path) -> None:
    """The forked processes of a real worker together deliver all messages of a real broker at one rate."""
    environment = {**os.environ, "REDIS_URL": redis_server.url, "RATE": "20/s"}
    log, quick = tmp_path / "log", ["--without-mingle", "--without-gossip", "--without-heartbeat"]
    with log.open("w") as sink:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_worker", "worker", "--concurrency", "3", "-l", "INFO", *quick],
            cwd=EXAMPLES, env=environment, stdout=sink, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        code = "import sys, celery_worker as c; [c.deliver.delay(sys.argv[1], {'number': n}) for n in range(20)]"
        subprocess.run([sys.executable, "-c", code, site.url], cwd=EXAMPLES, env=environment, check=True, timeout=120)
        deadline = time.monotonic() + 120
        while log.read_text().count("succeeded") < 20:
            assert time.monotonic() < deadline, log.read_text()
            assert worker.poll() is None, log.read_text()
            time.sleep(0.05)
    finally:
        worker.terminate()
        try:
            worker.wait(15)
        finally:
            worker.kill()

    assert sorted(range(20)) == sorted(body["number"] for body in site.bodies)  # type: ignore[index]  # sent as JSON
    assert len(set(re.findall(r"ForkPoolWorker-(\d+)\] Task celery_worker.deliver\S+ succeeded", log.read_text()))) > 1
    assert site.arrivals[-1] - site.arrivals[0] >= 19 / 20 - TRANSIT_SECONDS
    assert judged(site, 20)
    assert "Traceback" not in log.read_text()
    assert 3 == log.read_text().count("leaves its group")


# pydantic-ai


async def test_agents_of_pydantic_ai_share_slots(example: Load, site: Site) -> None:
    """Two agents and a task share the slots of one pool, and the more important agent goes first."""
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent, ModelResponse, TextPart
    from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
    from pydantic_ai.models.function import FunctionModel

    program = example("pydantic_ai_limiter")
    site.seconds = 0.1
    async with ExecutorManager() as manager, httpx.AsyncClient() as client:

        async def answer(messages: Any, info: Any) -> ModelResponse:
            await client.get(site.url)
            return ModelResponse(parts=[TextPart("yes")])

        gpu = manager.slots("gpu", limit=2)
        helper = Agent(FunctionModel(answer), name="helper", max_concurrency=program.SlotLimiter(gpu))
        limited = ConcurrencyLimitedModel(FunctionModel(answer), program.SlotLimiter(gpu, priority=1))
        urgent = Agent(limited, name="urgent")
        ended: list[str] = []

        async def run(agent: Agent) -> None:
            await agent.run("Is it?")
            ended.append(agent.name or "")

        async with gpu.hold(), asyncio.TaskGroup() as group:
            for agent in [helper] * 4 + [urgent] * 2:
                group.create_task(run(agent))
            while gpu.statistics().waiting < 5:
                await asyncio.sleep(0.01)
            assert {"agent:helper"} == {holder.name for holder in gpu.statistics().holders[1:]}
        assert (7, 0, 0) == (gpu.statistics().handed, gpu.statistics().held, gpu.statistics().waiting)

    assert ["helper", "urgent", "urgent", "helper", "helper", "helper"] == ended
    assert 1 == site.most  # the other slot belongs to the test


async def test_cancelled_run_of_pydantic_ai_gives_its_slot_back(example: Load) -> None:
    """A cancelled run gives its slot back if it has one, and gives up waiting if it has none."""
    pytest.importorskip("pydantic_ai")
    program = example("pydantic_ai_limiter")
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=1)
        agent = program.Agent(program.FunctionModel(program.answer), max_concurrency=program.SlotLimiter(gpu))
        runs = [asyncio.create_task(agent.run("Is it?")) for _ in range(3)]
        while gpu.statistics().waiting < 2:
            await asyncio.sleep(0.01)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        async with gpu.hold(expires=5):
            assert (1, 0) == (gpu.statistics().held, gpu.statistics().waiting)


# Tokens a minute


async def create_by_httpx(client: httpx.AsyncClient, **request: Any) -> Any:
    """Ask as a client of OpenAI's interface does."""
    response = await client.post("chat/completions", json=request)
    return json.loads(response.content, object_hook=lambda fields: SimpleNamespace(**fields))


@pytest.mark.parametrize("client", ["httpx", "openai"])
async def test_tokens_a_minute_are_kept_and_what_is_not_used_is_given_back(
    example: Load, site: Site, client: str
) -> None:
    """Calls that reserve 200 of 2,000 tokens and use 50: forty fit in a minute, not ten, and the others wait."""
    program = example("tokens_a_minute")
    site.answer = {
        "id": "1", "object": "chat.completion", "created": 1, "model": "site",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 40, "total_tokens": 50},
    }  # fmt: skip
    site.seconds = 0.02
    if client == "openai":
        openai = pytest.importorskip("openai")
        session = openai.AsyncOpenAI(api_key="none", base_url=site.url, max_retries=0)
        create = session.chat.completions.create
    else:
        session = httpx.AsyncClient(base_url=site.url, timeout=30)
        create = functools.partial(create_by_httpx, session)
    minute = 6.0  # half of it is a margin for a busy machine
    executor = program.make_executor(requests=200, tokens=4000, replicas=2, minute=minute)
    async with session, executor:
        ask = program.limited(create, executor)
        messages = [{"role": "user", "content": "x" * 57}]
        answers = await asyncio.gather(*(ask(model="m", messages=messages, max_tokens=180) for _ in range(45)))

    assert [50] * 45 == [answer.usage.total_tokens for answer in answers]
    assert {180} == {body["max_tokens"] for body in site.bodies}  # type: ignore[index]  # sent as JSON
    assert site.arrivals[30] - site.arrivals[0] < minute - TRANSIT_SECONDS  # the last reservations keep some calls back
    assert site.arrivals[40] - site.arrivals[0] >= minute - TRANSIT_SECONDS
    with pytest.raises(ValueError, match="cannot be split among 4 replicas"):
        program.make_executor(requests=3, tokens=1000, replicas=4)


# All


@pytest.mark.parametrize("name", ["httpx_transport", "langchain_limiter", "pydantic_ai_limiter", "tokens_a_minute"])
def test_example_runs_as_it_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The example runs as a script, as its reader would run it, without a network."""
    if name == "pydantic_ai_limiter":
        pytest.importorskip("pydantic_ai")
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert ("", True) == (printed.err, bool(printed.out))
