"""Give LangChain's models a limiter whose rate can be shared by processes, and which keeps it exactly.

LangChain's own ``InMemoryRateLimiter`` counts in one process, and polls. This one hands each call its permit in the order
in which calls came, and takes whatever a limiter of this library takes: several rates, quotas, and
``BlockingManager(peers=RedisPeers(...))`` for one rate in all processes.

LangChain asks it in threads and in event loops, before each request; what a request will cost it does not say, so it limits
requests and not tokens. Run ``python examples/langchain_limiter.py``; needs ``pip install langchain-core``.
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
        limiter: whose permits calls use up.
        expires: seconds that a call waits at most; then it raises ``TaskExpiredError``. None for as long as it takes.
    """

    def __init__(self, limiter: BlockingLimiter, *, expires: float | None = None) -> None:
        self.limiter = limiter
        self.expires = expires

    def acquire(self, *, blocking: bool = True) -> bool:
        """Use up a permit; False if there is none and it may not wait."""
        if blocking:
            self.limiter.acquire(expires=self.expires)
            return True
        try:
            self.limiter.acquire_nowait()
        except anyio.WouldBlock:
            return False
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Do the same without stopping the event loop.

        Each that waits takes one of the loop's worker threads, of which asyncio has 32 at most: those beyond wait for a
        thread, in the same order. One that is cancelled uses up its permit nevertheless.
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
