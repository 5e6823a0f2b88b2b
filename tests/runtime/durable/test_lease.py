"""The lease of a process: one owner after the other, and none that holds what nobody knows of."""

import asyncio

import pytest

from ratelimited_executor import StoreUnavailableError
from ratelimited_executor._core.durable.tasks import Claim, NewTask
from ratelimited_executor._runtime.clock import clock_for
from ratelimited_executor._runtime.durable.lease import Lease, News


@pytest.fixture
async def lease(store):
    """A lease of 15 s that has begun, on a store with three tasks."""
    clock = clock_for(asyncio.get_running_loop())
    await store.open(clock)
    await store.put([NewTask(id=str(n), name="f") for n in range(3)])
    made = Lease(store, "me", 15.0, clock.monotonic)
    await made.begin()
    yield made
    await store.aclose()


async def claim(lease, count=1):
    return (await lease.claim(Claim(owner=lease.owner, count=count))).tasks


async def test_each_beginning_is_another_owner(lease):
    """What was claimed for the one before is not claimed for the next."""
    assert ("me-1", 1) == (lease.owner, lease.count)
    await lease.begin()
    assert ("me-2", 2) == (lease.owner, lease.count)


async def test_of_two_beginnings_at_once_the_first_counts(lease, store, monkeypatch):
    """Both the pump and the beat hear of a lease that has ended; what is claimed between stays renewed."""
    join, is_answered = store.join, asyncio.Event()

    async def join_late(owner, lease_us):
        await join(owner, lease_us)
        await (asyncio.sleep(0) if owner == "me-2" else is_answered.wait())

    monkeypatch.setattr(store, "join", join_late)
    async with asyncio.TaskGroup() as group:
        group.create_task(lease.begin())
        group.create_task(lease.begin())
        await asyncio.sleep(0.1)
        [claimed] = await claim(lease)
        is_answered.set()
    for _ in range(10):
        await asyncio.sleep(5)
        assert await lease.renew(lambda: {claimed.ref}, [].append)
    [row] = await store.find([claimed.id])
    assert lease.owner == row.owner


async def test_lease_is_over_after_its_time_without_a_beat(lease):
    """Counted from the moment at which the last beat that was answered had been sent."""
    await asyncio.sleep(9.9)
    assert not lease.is_over()
    assert await lease.renew(list, [].append)
    await asyncio.sleep(14.9)
    assert not lease.is_over()
    await asyncio.sleep(0.2)
    assert lease.is_over()


async def test_lease_that_begins_is_over_before_it_ends_in_the_store(lease, store):
    """There it counts from the last beat of anybody, which may have been long ago."""
    await store.join("other", 15_000_000)
    await store.beat("other")
    await asyncio.sleep(100)
    await lease.begin()
    while (await store.beat("other")) is not None and lease.owner in store._table._owners:
        await asyncio.sleep(0.5)
    assert lease.is_over()


async def test_owner_stays_while_every_claim_is_answered(lease):
    """Settling costs nothing then."""
    await claim(lease)
    await lease.settle(list)
    assert 1 == lease.count


async def test_claims_that_were_not_heard_of_go_back_when_the_others_have_ended(lease, store):
    """Until then the owner's lease is renewed, as what is known of it runs."""
    [known] = await claim(lease)
    store.is_mute = True
    with pytest.raises(StoreUnavailableError):
        await claim(lease)
    store.is_mute = False
    held, news = {known.ref}, []
    await lease.settle(lambda: held)
    assert "me-2" == lease.owner
    assert ["2"] == [task.id for task in await claim(lease, 5)]
    for _ in range(10):
        assert await lease.renew(lambda: held, news.append)
        await asyncio.sleep(5)
    held.clear()
    assert await lease.renew(lambda: held, news.append)
    assert {News()} == set(news)
    assert ["0", "1"] == [task.id for task in await claim(lease, 5)]  # the former one has left, with all of its claims


async def test_leaving_gives_back_what_all_owners_have(lease, store):
    """At once."""
    [known] = await claim(lease)
    store.is_mute = True
    with pytest.raises(StoreUnavailableError):
        await claim(lease)
    store.is_mute = False
    await lease.settle(lambda: {known.ref})
    await lease.leave()
    other = Lease(store, "other", 15.0, asyncio.get_running_loop().time)
    await other.begin()
    assert 3 == len(await claim(other, 5))


async def test_every_owner_is_renewed_by_a_store_that_loses_its_answers(lease, store):
    """And by one that is away for one of them: the others do not wait for it."""
    [known] = await claim(lease)
    store.is_mute = True
    with pytest.raises(StoreUnavailableError):
        await claim(lease)
    store.is_mute = False
    await lease.settle(lambda: {known.ref})
    [later] = await claim(lease)
    store.is_mute = True
    for _ in range(10):
        with pytest.raises(StoreUnavailableError):
            await lease.renew(lambda: {known.ref, later.ref}, [].append)
        await asyncio.sleep(5)
    assert lease.is_over()  # as far as is known here
    store.is_mute = False
    assert await lease.renew(lambda: {known.ref, later.ref}, [].append)
    assert not lease.is_over()
    assert {"me-1", "me-2"} == {row.owner for row in await store.find([known.id, later.id])}
