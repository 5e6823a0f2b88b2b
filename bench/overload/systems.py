"""How each library does each scenario, or why it cannot.

In scenarios about order, buckets are as deep as the permits of 20 ms, as in ``bench/peers``, so that all libraries
promise the same. In the scenario about that promise, each library has the settings with which its documentation begins,
and a second row has stricter ones. Each library waits in its own way: ``acquire()``, ``try_acquire_async()``,
``limit(timeout=)``. For a limit of each key beside a limit for all, a library without keys gets a limiter for each key
and one for all, in both orders.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from bench.harness import has_module
from bench.peers.peer import burst_of
from bench.peers.throttled import RETRY_SECONDS_MIN, WAIT_SECONDS_MAX
from ratelimited_executor import Burst, Pacing, Rate, RateLimitedExecutor, Window
from ratelimited_executor.orders import Fair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

__all__ = ["HEAVY", "KEYED", "TENANTS", "WINDOWS", "Acquire", "Crowd", "System"]


class Acquire(Protocol):
    """Waits for permits."""

    def __call__(self, key: str, cost: int = 1) -> Awaitable[Any]:
        """Return when the permits are there."""
        ...


class Crowd(Protocol):
    """Lets calls wait at the same time, one for each key in the list, and runs them."""

    def __call__(self, call: Callable[[str], Awaitable[None]], keys: Sequence[str]) -> Awaitable[Any]:
        """Return when all calls have run."""
        ...


@dataclass(frozen=True, slots=True)
class System:
    """One row of one scenario.

    Attributes:
        name: the name in the table.
        opened: provides what the scenario uses; a text says why the system cannot do the scenario.
        package: the package that must be installed; "" for ours.
        per_min: the shortest duration of a rate in seconds, as throttled-py has whole seconds only.
    """

    name: str
    opened: Callable[..., AbstractAsyncContextManager[Any]] | str
    package: str = ""
    per_min: float = 0.0

    @property
    def is_installed(self) -> bool:
        """Return whether the package can be imported."""
        return not self.package or has_module(self.package)


def crowd_of(acquire: Acquire) -> Crowd:
    """Let a task of its own wait for each call, as a server does for requests."""

    async def crowd(call: Callable[[str], Awaitable[None]], keys: Sequence[str]) -> None:
        async def one(key: str) -> None:
            await acquire(key)
            await call(key)

        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(one(key))

    return crowd


# Ours.


@contextlib.asynccontextmanager
async def _ours(**settings: Any) -> AsyncIterator[Acquire]:
    async with RateLimitedExecutor("overload", pacing=Pacing.ON_TIME, drain_timeout=0, **settings) as executor:

        def acquire(key: str, cost: int = 1) -> Awaitable[Any]:
            return executor.acquire(key=key, cost=cost)

        yield acquire


def _ours_by(**settings: Any) -> Callable[[int, float], AbstractAsyncContextManager[Acquire]]:
    return lambda permits, per: _ours(rate=Rate(permits, per=per), **settings)


@contextlib.asynccontextmanager
async def _ours_keyed(rate: int, key_rates: Mapping[str, int]) -> AsyncIterator[Acquire]:
    async with _ours(rate=rate, key_rate=key_rates.get) as acquire:
        yield acquire


# aiolimiter.


@contextlib.asynccontextmanager
async def _aiolimiter(permits: float, per: float) -> AsyncIterator[Acquire]:
    limiter = _aiolimiter_limiter(permits, per)

    def acquire(key: str, cost: int = 1) -> Awaitable[Any]:  # noqa: ARG001  # it knows no keys
        return limiter.acquire(cost)  # type: ignore[no-any-return]  # the package is an extra

    yield acquire


def _aiolimiter_limiter(permits: float, per: float) -> Any:
    from aiolimiter import AsyncLimiter  # noqa: PLC0415  # an extra, imported on use

    return AsyncLimiter(permits, per)


def _aiolimiter_shallow(permits: int, per: float) -> AbstractAsyncContextManager[Acquire]:
    depth = burst_of(round(permits / per))
    return _aiolimiter(depth, depth * per / permits)


def _aiolimiter_heavy(permits: int, per: float, cost: int) -> AbstractAsyncContextManager[Acquire]:
    return _aiolimiter(cost, cost * per / permits)  # a bucket must hold the largest cost


@contextlib.asynccontextmanager
async def _aiolimiter_keyed(rate: int, key_rates: Mapping[str, int], *, key_first: bool) -> AsyncIterator[Acquire]:
    def make(rate: int) -> Any:
        limiter = _aiolimiter_limiter(burst_of(rate), burst_of(rate) / rate)
        return limiter.acquire

    yield _both({key: make(each) for key, each in key_rates.items()}, make(rate), key_first=key_first)


def _both(
    of_key: Mapping[str, Callable[[], Awaitable[Any]]], of_all: Callable[[], Awaitable[Any]], *, key_first: bool
) -> Acquire:
    """Acquire from the limiter of the key and from the limiter of all, one after the other."""

    async def acquire(key: str, cost: int = 1) -> None:
        assert cost == 1
        for one in (of_key[key], of_all) if key_first else (of_all, of_key[key]):
            await one()

    return acquire


# aiometer.


@contextlib.asynccontextmanager
async def _aiometer(permits: int, per: float) -> AsyncIterator[Crowd]:
    import aiometer  # noqa: PLC0415  # an extra, imported on use

    async def crowd(call: Callable[[str], Awaitable[None]], keys: Sequence[str]) -> None:
        await aiometer.run_on_each(call, keys, max_per_second=permits / per)

    yield crowd


# PyrateLimiter.


@contextlib.asynccontextmanager
async def _pyrate(permits: int, per: float) -> AsyncIterator[Acquire]:
    import pyrate_limiter  # noqa: PLC0415  # an extra, imported on use

    rate = pyrate_limiter.Rate(permits, round(per * 1000))
    with pyrate_limiter.Limiter(rate) as limiter:

        async def acquire(key: str, cost: int = 1) -> None:
            await limiter.try_acquire_async(key, cost)

        yield acquire


def _pyrate_bucket(rate: int) -> Any:
    import pyrate_limiter  # noqa: PLC0415  # as above

    rates = [pyrate_limiter.Rate(rate, pyrate_limiter.Duration.SECOND, burst=burst_of(rate))]
    return pyrate_limiter.StateBucket(rates, algorithm=pyrate_limiter.GCRA())


@contextlib.asynccontextmanager
async def _pyrate_even(permits: int, per: float) -> AsyncIterator[Acquire]:
    from pyrate_limiter import Limiter  # noqa: PLC0415  # as above

    with Limiter(_pyrate_bucket(round(permits / per)), buffer_ms=0) as limiter:

        async def acquire(key: str, cost: int = 1) -> None:
            await limiter.try_acquire_async(key, cost)

        yield acquire


@contextlib.asynccontextmanager
async def _pyrate_keyed(rate: int, key_rates: Mapping[str, int], *, key_first: bool) -> AsyncIterator[Acquire]:
    from pyrate_limiter import Limiter  # noqa: PLC0415  # as above

    with contextlib.ExitStack() as stack:

        def make(rate: int) -> Any:
            limiter = stack.enter_context(Limiter(_pyrate_bucket(rate), buffer_ms=0))
            return limiter.try_acquire_async

        yield _both({key: make(each) for key, each in key_rates.items()}, make(rate), key_first=key_first)


@contextlib.asynccontextmanager
async def _pyrate_factory(rate: int, key_rates: Mapping[str, int]) -> AsyncIterator[Acquire]:
    from pyrate_limiter import BucketFactory, Limiter, RateItem  # noqa: PLC0415  # as above

    class PerKey(BucketFactory):
        def __init__(self) -> None:
            self.by_key = {key: _pyrate_bucket(each) for key, each in key_rates.items()}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return RateItem(name, self.by_key[name].now(), weight=weight)

        def get(self, item: Any) -> Any:
            return self.by_key[item.name]

    with Limiter(PerKey(), buffer_ms=0) as keys, Limiter(_pyrate_bucket(rate), buffer_ms=0) as everybody:

        async def acquire(key: str, cost: int = 1) -> None:
            await keys.try_acquire_async(key, cost)
            await everybody.try_acquire_async("all", cost)

        yield acquire


# throttled-py.


def _throttled_limiter(permits: int, per: float, **settings: Any) -> Any:
    from throttled.asyncio import MemoryStore, Throttled, per_duration  # noqa: PLC0415  # an extra, imported on use

    burst = settings.pop("burst", None)
    return Throttled(
        key="overload",
        quota=per_duration(timedelta(seconds=per), permits, burst=burst),
        store=MemoryStore(),
        timeout=WAIT_SECONDS_MAX,
        **settings,
    )


@contextlib.asynccontextmanager
async def _throttled(permits: int, per: float, **settings: Any) -> AsyncIterator[Acquire]:
    limiter = _throttled_limiter(permits, per, **settings)

    def acquire(key: str, cost: int = 1) -> Awaitable[Any]:  # noqa: ARG001  # a key is a limit of its own
        return limiter.limit(cost=cost)  # type: ignore[no-any-return]  # the package is an extra

    yield acquire


def _throttled_by(using: str | None = None) -> Callable[[int, float], AbstractAsyncContextManager[Acquire]]:
    return lambda permits, per: _throttled(permits, per, **({} if using is None else {"using": using}))


def _retry_burst(rate: float) -> int:
    """Return the least burst with which a rate can be kept if each waiter asks again after a number of seconds."""
    return max(1, round(rate * RETRY_SECONDS_MIN))


def _throttled_even(permits: int, per: float) -> AbstractAsyncContextManager[Acquire]:
    return _throttled(permits, per, using="gcra", burst=_retry_burst(permits / per))


def _throttled_heavy(permits: int, per: float, cost: int) -> AbstractAsyncContextManager[Acquire]:
    return _throttled(permits, per, using="gcra", burst=max(cost, _retry_burst(permits / per)))


@contextlib.asynccontextmanager
async def _throttled_keyed(rate: int, key_rates: Mapping[str, int], *, key_first: bool) -> AsyncIterator[Acquire]:
    def make(rate: int) -> Any:
        return _throttled_limiter(rate, 1.0, using="gcra", burst=_retry_burst(rate)).limit

    yield _both({key: make(each) for key, each in key_rates.items()}, make(rate), key_first=key_first)


# Scenarios.


def _acquiring(
    opened: Callable[..., AbstractAsyncContextManager[Acquire]],
) -> Callable[..., AbstractAsyncContextManager[Crowd]]:
    """Make a crowd, each call of which waits in a task of its own, from what gives permits."""

    @contextlib.asynccontextmanager
    async def crowded(*arguments: Any) -> AsyncIterator[Crowd]:
        async with opened(*arguments) as acquire:
            yield crowd_of(acquire)

    return crowded


def _keyed(opened: Any, *, key_first: bool) -> Callable[..., AbstractAsyncContextManager[Acquire]]:
    return lambda rate, key_rates: opened(rate, key_rates, key_first=key_first)


_NO_LIMITER = "cannot: it runs a list of calls, each of cost 1 and without a key"

WINDOWS = [
    System("ours, Window()", _acquiring(_ours_by(policy=Window()))),
    System("ours, Paced(), the default", _acquiring(_ours_by())),
    System("ours, Burst(N)", _acquiring(lambda n, per: _ours(rate=Rate(n, per=per), policy=Burst(n)))),
    System("aiolimiter AsyncLimiter(N, per)", _acquiring(_aiolimiter), "aiolimiter"),
    System("aiolimiter AsyncLimiter(1, per / N)", _acquiring(lambda n, per: _aiolimiter(1, per / n)), "aiolimiter"),
    System("aiometer max_per_second", _aiometer, "aiometer"),
    System("PyrateLimiter, sliding window, the default", _acquiring(_pyrate), "pyrate_limiter"),
    System("throttled-py, token bucket, the default", _acquiring(_throttled_by()), "throttled", per_min=1.0),
    System("throttled-py, sliding window", _acquiring(_throttled_by("sliding_window")), "throttled", per_min=1.0),
]

HEAVY = [
    System("ours, Paced(), the default", lambda permits, per, _: _ours_by()(permits, per)),
    System("ours, Window()", lambda permits, per, _: _ours_by(policy=Window())(permits, per)),
    System("ours, Burst(cost)", lambda permits, per, cost: _ours_by(policy=Burst(cost))(permits, per)),
    System("aiolimiter", _aiolimiter_heavy, "aiolimiter"),
    System("aiometer", _NO_LIMITER, "aiometer"),
    System("PyrateLimiter, sliding window", lambda permits, per, _: _pyrate(permits, per), "pyrate_limiter"),
    System("throttled-py GCRA", _throttled_heavy, "throttled"),
]

TENANTS = [
    System("ours, order=Fair()", _acquiring(_ours_by(order=Fair()))),
    System("ours, default order", _acquiring(_ours_by())),
    System("aiolimiter", _acquiring(_aiolimiter_shallow), "aiolimiter"),
    System("aiometer", _aiometer, "aiometer"),
    System("PyrateLimiter GCRA", _acquiring(_pyrate_even), "pyrate_limiter"),
    System("throttled-py GCRA", _acquiring(_throttled_even), "throttled"),
]

KEYED = [
    System("ours, key_rate", _ours_keyed),
    System("aiolimiter, key first", _keyed(_aiolimiter_keyed, key_first=True), "aiolimiter"),
    System("aiolimiter, key last", _keyed(_aiolimiter_keyed, key_first=False), "aiolimiter"),
    System("aiometer", _NO_LIMITER, "aiometer"),
    System("PyrateLimiter, key first", _keyed(_pyrate_keyed, key_first=True), "pyrate_limiter"),
    System("PyrateLimiter, key last", _keyed(_pyrate_keyed, key_first=False), "pyrate_limiter"),
    System("PyrateLimiter, BucketFactory of keys first", _pyrate_factory, "pyrate_limiter"),
    System("throttled-py, key first", _keyed(_throttled_keyed, key_first=True), "throttled"),
    System("throttled-py, key last", _keyed(_throttled_keyed, key_first=False), "throttled"),
]
