"""What the tests of overload ask and use."""

import asyncio

from ratelimited_executor import RetryLater


def now() -> float:
    return asyncio.get_running_loop().time()


def seen(handle) -> None:
    """Look at how a task ended, so that nobody is told that nobody did."""
    if not handle.cancelled():
        handle.exception()


async def turns(count=3) -> None:
    """Give the loop some turns."""
    for _ in range(count):
        await asyncio.sleep(0)


class Flaky:
    """Fails for a number of calls, and notes when each started."""

    def __init__(self, failures, error=RetryLater) -> None:
        self.failures = failures
        self.error = error
        self.starts: list[float] = []

    def __call__(self, *_):
        self.starts.append(now())
        if len(self.starts) <= self.failures:
            raise self.error() if isinstance(self.error, type) else self.error
        return "done"

    async def later(self, *_):
        """Fail on the second step."""
        self.starts.append(now())
        number = len(self.starts)
        await asyncio.sleep(0.5)
        if number <= self.failures:
            raise self.error() if isinstance(self.error, type) else self.error
        return "done"

    @property
    def pauses(self) -> list[float]:
        """The seconds between the starts."""
        return [late - early for early, late in zip(self.starts, self.starts[1:], strict=False)]
