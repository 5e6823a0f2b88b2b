"""Let agents of pydantic-ai share a pool of slots with each other and with other code.

``Agent(max_concurrency=)`` and ``ConcurrencyLimitedModel`` accept any ``AbstractConcurrencyLimiter``. This one holds slots
of a pool, so agents, models and tasks of executors count together, those with a larger priority go first, and the limit
can be changed while they run; with ``ExecutorManager(peers=RedisPeers(...))`` the limit applies to all processes.

Run ``python examples/pydantic_ai_limiter.py``; it needs ``pip install pydantic-ai-slim``.
"""

import asyncio
from collections import deque

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart
from pydantic_ai.concurrency import AbstractConcurrencyLimiter
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ratelimited_executor import ExecutorManager
from ratelimited_executor.slots import SlotHold, Slots


class SlotLimiter(AbstractConcurrencyLimiter):
    """Holds a slot for each run or request: ``Agent(..., max_concurrency=SlotLimiter(slots))``.

    Args:
        slots: the pool.
        priority: the priority of this limiter's waiters; larger is more important.
    """

    def __init__(self, slots: Slots, *, priority: float = 0) -> None:
        self.slots = slots
        self.priority = priority
        self._holds: deque[SlotHold] = deque()
        self._leaving: set[asyncio.Task[None]] = set()

    async def acquire(self, source: str) -> None:
        """Wait for a slot; ``source``, such as ``agent:helper``, becomes the name of its holder."""
        hold = self.slots.hold(priority=self.priority, name=source)
        await hold.__aenter__()
        self._holds.append(hold)

    def release(self) -> None:
        """Release the slot that was held longest: pydantic-ai does not say which one, and any will do."""
        task = asyncio.ensure_future(self._holds.popleft().__aexit__(None, None, None))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def answer(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Stand in for a model."""
    await asyncio.sleep(0.3)
    return ModelResponse(parts=[TextPart("yes")])


async def main() -> None:
    """Run ten agents at once, three at a time."""
    async with ExecutorManager() as manager:
        gpu = manager.slots("gpu", limit=3)
        agent = Agent(FunctionModel(answer), name="helper", max_concurrency=SlotLimiter(gpu))
        runs = [asyncio.create_task(agent.run("Is it?")) for _ in range(10)]
        await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
        print([holder.name for holder in gpu.statistics().holders], gpu.statistics().waiting, "wait")
        await asyncio.gather(*runs)
        print(gpu.statistics().handed, "slots handed over")


if __name__ == "__main__":
    asyncio.run(main())
