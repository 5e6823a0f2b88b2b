"""Keep the requests and tokens a minute of a language model, with the client of OpenAI or one that is like it.

What a request costs is known when it is answered. So it reserves the most that it can cost, its prompt and its
``max_tokens``, and is settled to what the response says. Both limits are windows, as such APIs count them.

With ``peers=RedisPeers("redis://...")`` the limits are those of all replicas together, and who has work gets the tokens.
Without Redis each of ``replicas`` processes keeps its part of both limits: what one replica leaves is lost to others.

Run ``python examples/tokens_a_minute.py`` to see it with a model that is none. The real one is
``AsyncOpenAI().chat.completions.create``; it should not try again by itself (``max_retries=0``), past the limiter.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from ratelimited_executor import Rate, RateLimitedExecutor
from ratelimited_executor.policies import Window

BYTES_PER_TOKEN = 3  # English has four: an estimate should err upwards, and is settled anyway


def make_executor(
    *, requests: int, tokens: int, replicas: int = 1, minute: float = 60, peers: Any = None
) -> RateLimitedExecutor:
    """Return an executor that keeps one replica's part of the limits of a minute, or all of them, with peers."""
    if requests < replicas:
        raise ValueError(f"{requests} requests a minute cannot be split among {replicas} replicas")
    return RateLimitedExecutor(
        "model",
        rate=Rate(requests // replicas, per=minute),
        resources={"tokens": Rate(tokens // replicas, per=minute)},
        policy=Window(margin=0.01 * minute),  # requests do not all take equally long to arrive
        peers=peers,
    )


def limited(create: Callable[..., Awaitable[Any]], executor: RateLimitedExecutor) -> Callable[..., Awaitable[Any]]:
    """Return ``create`` as it is, but that it waits for a request and its tokens; for any client of this interface.

    Args:
        create: such as ``AsyncOpenAI(max_retries=0).chat.completions.create``.
        executor: keeps the limits.
    """

    async def wait_and_create(*, messages: list[dict[str, Any]], max_tokens: int, **options: Any) -> Any:
        prompt = sum(len(str(message["content"]).encode()) for message in messages) // BYTES_PER_TOKEN + 1
        async with executor.permit(cost={"tokens": prompt + max_tokens}) as permit:
            response = await create(messages=messages, max_tokens=max_tokens, **options)
            permit.settle({"tokens": response.usage.total_tokens})
        return response

    return wait_and_create


async def create(**_: Any) -> Any:
    """Stand for a model, which says "yes"."""
    await asyncio.sleep(0.1)
    return SimpleNamespace(usage=SimpleNamespace(total_tokens=20), content="yes")


async def main() -> None:
    """Ask twenty questions at once, of which 300 tokens in two seconds admit a part; what is settled admits more."""
    loop = asyncio.get_running_loop()
    async with make_executor(requests=100, tokens=300, minute=2) as executor:
        ask, began = limited(create, executor), loop.time()
        asking = [ask(messages=[{"role": "user", "content": "Is it?"}], max_tokens=60) for _ in range(20)]
        for number, answer in enumerate(asyncio.as_completed(asking), start=1):
            await answer
            if number % 5 == 0:
                print(f"{number} answers after {loop.time() - began:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
