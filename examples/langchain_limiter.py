"""Give LangChain's models a limiter that keeps its rate exactly, and can share it among processes.

LangChain's own ``InMemoryRateLimiter`` counts in one process, and polls. This limiter grants permits in the order of the
calls, and supports everything that limiters of this library support: several rates, quotas, and
``BlockingManager(peers=RedisPeers(...))`` for one rate in all processes.

LangChain calls it from threads and event loops, before each request, without the cost of the request; so it limits
requests, not tokens. Run ``python examples/langchain_limiter.py``; it needs ``pip install langchain-core``.
"""

import asyncio
import time

import anyio
from langchain_core.language_models import FakeListChatModel
from langchain_core.rate_limiters import BaseRateLimiter

from ratelimited_executor.blocking import BlockingLimiter, BlockingManager


class PermitRateLimiter(BaseRateLimiter):
    """Waits for permits of a limiter: ``init_chat_model(..., rate_limiter=PermitRateLimiter(limiter))``.

    Args:
        limiter: the limiter whose permits the calls use.
        expires: seconds for which a call waits at most before it raises ``TaskExpiredError``; None for no limit.
    """

    def __init__(self, limiter: BlockingLimiter, *, expires: float | None = None) -> None:
        self.limiter = limiter
        self.expires = expires

    def acquire(self, *, blocking: bool = True) -> bool:
        """Use a permit; return False if none is available and ``blocking`` is False."""
        if blocking:
            self.limiter.acquire(expires=self.expires)
            return True
        try:
            self.limiter.acquire_nowait()
        except anyio.WouldBlock:
            return False
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Use a permit, as :meth:`acquire` does, without blocking the event loop.

        Each waiting call occupies one of the loop's worker threads, of which asyncio has at most 32; further calls wait
        for a thread, in the same order. A call that is cancelled still uses its permit.
        """
        return await asyncio.to_thread(self.acquire, blocking=blocking)


async def main(limiter: BlockingLimiter) -> None:
    """Ask ten questions at once."""
    model = FakeListChatModel(responses=["yes", "no"], rate_limiter=PermitRateLimiter(limiter))
    answers = await model.abatch([f"Is {number} even?" for number in range(10)])
    print([answer.content for answer in answers])


if __name__ == "__main__":
    with BlockingManager() as manager:
        began = time.monotonic()
        asyncio.run(main(manager.limiter("model", rate="10/s")))
        print(f"{time.monotonic() - began:.1f} s")
