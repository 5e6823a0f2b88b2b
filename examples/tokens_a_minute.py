"""Keep a language model's limits of requests and tokens a minute, with the OpenAI client or a compatible one.

The cost of a request is known only with its response. So a request reserves the most that it can cost, its prompt and its
``max_tokens``, and the reservation is settled to the usage in the response. Both limits are windows, as in such APIs.

With ``peers=RedisPeers("redis://...")`` the limits apply to all replicas together, and replicas that have work get the
tokens. Without Redis, each of ``replicas`` processes keeps its part of both limits, and no other replica can use what one
leaves unused.

Run ``python examples/tokens_a_minute.py`` to see it with a fake model. For a real one, pass
``AsyncOpenAI(max_retries=0).chat.completions.create``: the client's own retries would bypass the limiter.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from ratelimited_executor import Rate, RateLimitedExecutor
from ratelimited_executor.policies import Window

BYTES_PER_TOKEN = 3  # English has about four: the estimate should err upwards, and is settled anyway


def make_executor(
    *, requests: int, tokens: int, replicas: int = 1, minute: float = 60, peers: Any = None
) -> RateLimitedExecutor:
    """Return an executor for one replica's part of the limits a minute; with ``peers``, for all replicas together."""
    if requests < replicas:
        raise ValueError(f"{requests} requests a minute cannot be split among {replicas} replicas")
    return RateLimitedExecutor(
        "model",
        rate=Rate(requests // replicas, per=minute),
        resources={"tokens": Rate(tokens // replicas, per=minute)},
        policy=Window(margin=0.01 * minute),  # requests take different times to arrive
        peers=peers,
    )


def limited(create: Callable[..., Awaitable[Any]], executor: RateLimitedExecutor) -> Callable[..., Awaitable[Any]]:
    """Wrap ``create`` so that it waits for a request and its tokens; for any client with this interface.

    Args:
        create: a function such as ``AsyncOpenAI(max_retries=0).chat.completions.create``.
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
    """Stand in for a model that answers "yes"."""
    await asyncio.sleep(0.1)
    return SimpleNamespace(usage=SimpleNamespace(total_tokens=20), content="yes")


async def main() -> None:
    """Ask twenty questions at once; 300 tokens in two seconds admit some of them, and settled tokens admit more."""
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
