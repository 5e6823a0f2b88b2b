"""The lease of a process: it has one owner after another, and no owner keeps claims that its process does not know."""

import asyncio

import pytest

from ratelimited_executor._core.durable.tasks import Claim, End, NewTask, TaskOutcome
from ratelimited_executor._runtime.durable.lease import Lease
from ratelimited_executor._runtime.time.clock import clock_for
from ratelimited_executor.exceptions import StoreUnavailableError


@pytest.fixture
async def lease(store):
    """Return a lease of 15 s that has begun, on a store with three tasks."""
    clock = clock_for(asyncio.get_running_loop())
    await store.open(clock)
    await store.put([NewTask(id=str(n), name="f") for n in range(3)])
    made = Lease(store, "me", 15.0, clock.monotonic)
    await made.begin()
    yield made
    await store.aclose()


async def claim(lease, count=1):
    return (await lease.claim(Claim(owner=lease.owner, count=count))).tasks


async def is_lost(call) -> bool:
    """Await a call, and return True if its answer was lost."""
    try:
        await call
    except StoreUnavailableError:
        return True
    return False


async def claim_unheard(lease, store):
    """Claim a task, and lose the answer."""
    store.is_mute = True
    assert await is_lost(claim(lease))
    store.is_mute = False


async def settle_unheard(lease, store, known, times=1):
    """Continue as another owner that holds a claim, and lose the answers."""
    store.is_mute = True
    for _ in range(times):
        assert await is_lost(lease.settle(lambda: {known.ref}))
    store.is_mute = False


async def owners_of(store, *ids):
    return [row.owner for row in await store.find(ids)]


async def test_each_beginning_is_another_owner(lease):
    """Each begin is a new owner, whatever happened to the last one."""
    assert ("me-1", 1) == (lease.owner, lease.count)
    await lease.begin()
    assert ("me-2", 2) == (lease.owner, lease.count)
    assert lease.is_of("me-2")
    assert not lease.is_of("me-1")


async def test_of_two_beginnings_at_once_the_second_changes_nothing(lease, store, monkeypatch):
    """If pump and beat both begin a new lease, the second one changes nothing, and claims between them stay renewed."""
    join, is_answered, count = store.join, asyncio.Event(), 0

    async def join_late(*args, **options):
        nonlocal count
        count += 1
        wait = asyncio.sleep(0) if count == 1 else is_answered.wait()
        answer = await join(*args, **options)
        await wait
        return answer

    monkeypatch.setattr(store, "join", join_late)
    async with asyncio.TaskGroup() as group:
        group.create_task(lease.begin())
        group.create_task(lease.begin())
        await asyncio.sleep(0.1)
        [claimed] = await claim(lease)
        is_answered.set()
    assert "me-2" == lease.owner
    for _ in range(10):
        await asyncio.sleep(5)
        assert () == await lease.renew(lambda: {claimed.ref})
    assert ["me-2"] == await owners_of(store, claimed.id)


async def test_lease_is_over_after_its_time_without_a_beat(lease):
    """A lease ends after its time, counted from the sending of the last beat that was answered."""
    await asyncio.sleep(9.9)
    assert not lease.is_over()
    assert () == await lease.renew(list)
    await asyncio.sleep(14.9)
    assert not lease.is_over()
    await asyncio.sleep(0.2)
    assert lease.is_over()


async def test_lease_that_begins_is_over_before_it_ends_in_the_store(lease, store):
    """A new lease is over here before it ends in the store, where it counts from the last beat of any owner."""
    await store.join("other", 15_000_000)
    await store.beat("other")
    await asyncio.sleep(100)
    await lease.begin()
    while (await store.beat("other")) is not None and lease.owner in store._table._owners:
        await asyncio.sleep(0.5)
    assert lease.is_over()


async def test_owner_stays_while_every_claim_is_answered(lease):
    """While every claim is answered, settling keeps the owner."""
    await claim(lease)
    assert await lease.settle(list)
    assert 1 == lease.count


async def test_claims_that_were_not_heard_of_are_given_back(lease, store):
    """Claims whose answers were lost are given back; under a new owner, known ones stay renewed and cancellable."""
    [known] = await claim(lease)
    await claim_unheard(lease, store)
    assert await lease.settle(lambda: {known.ref})
    assert ["me-2", ""] == await owners_of(store, "0", "1")
    for _ in range(10):
        assert () == await lease.renew(lambda: {known.ref})
        await asyncio.sleep(5)
    await store.cancel(["0"])
    assert (known.ref,) == await lease.renew(lambda: {known.ref})
    assert ["1", "2"] == [task.id for task in await claim(lease, 5)]
    assert [True] == await store.finish([TaskOutcome(known.ref, End.DONE)])


async def test_claim_on_its_way_finds_no_lease(lease, store):
    """A claim that arrives after its process has become another owner claims nothing."""
    store.late_by = lambda: 1.0
    assert await is_lost(claim(lease))
    store.late_by = None
    assert await lease.settle(list)
    await asyncio.sleep(2)
    assert ["", "", ""] == await owners_of(store, "0", "1", "2")


async def test_ends_that_the_store_has_lost_are_noticed_by_the_number_of_claims(lease, store):
    """After a failover the store may have claims of ended tasks; their number reveals them, and they are given back."""
    ended, held = await claim(lease, 2)
    for _ in range(2):
        assert () == await lease.renew(lambda: {held.ref, ended.ref})
        assert await lease.settle(lambda: {held.ref, ended.ref})
        assert 1 == lease.count
    assert () == await lease.renew(lambda: {held.ref})
    assert await lease.settle(lambda: {held.ref})
    assert ["", "me-2"] == await owners_of(store, ended.id, held.id)


async def test_number_of_claims_counts_for_nothing_while_one_is_under_way(lease, store, monkeypatch):
    """The count of claims is ignored while a claim is under way, as nobody knows whether it was made yet."""
    is_answered, ask = asyncio.Event(), store.claim

    async def claim_late(asked):
        answer = await ask(asked)
        await is_answered.wait()
        return answer

    monkeypatch.setattr(store, "claim", claim_late)
    claiming = asyncio.create_task(claim(lease))
    await asyncio.sleep(0)
    assert () == await lease.renew(list)
    is_answered.set()
    await claiming
    assert await lease.settle(list)
    assert 1 == lease.count


async def test_join_of_which_nothing_was_heard_is_made_again(lease, store):
    """A join whose answer was lost is repeated by the next settle or beat, and no held task is lost."""
    [known] = await claim(lease)
    for settle in (lease.settle, lease.renew):
        await claim_unheard(lease, store)
        before = lease.owner
        await settle_unheard(lease, store, known, times=3)
        assert before == lease.owner
        assert await settle(lambda: {known.ref}) is not None
        assert before != lease.owner
        assert [lease.owner] == await owners_of(store, known.id)


@pytest.mark.parametrize("has_joined", [False, True])
async def test_lease_that_has_ended_meanwhile_is_told(lease, store, has_joined):
    """A process that becomes another owner after its lease has ended holds nothing, whether the join arrived or not."""
    [known] = await claim(lease)
    await claim_unheard(lease, store)
    if has_joined:
        await settle_unheard(lease, store, known)
    await store.join("other", 15_000_000)
    for _ in range(6):
        await store.beat("other")
        await asyncio.sleep(5)
    await settle_unheard(lease, store, known, times=3)  # and it does not help that another answer is lost
    for _ in range(2):
        assert not await lease.settle(lambda: {known.ref})
        assert await lease.renew(lambda: {known.ref}) is None
    assert ["", ""] == await owners_of(store, "0", "1")
    await lease.begin()
    assert await lease.settle(list)
    assert () == await lease.renew(list)


@pytest.mark.parametrize("has_joined", [False, True])
async def test_leaving_gives_back_what_is_claimed(lease, store, has_joined):
    """Leaving gives back every claim at once, even one whose answer was lost, and even if the next owner has joined."""
    [known] = await claim(lease)
    await claim_unheard(lease, store)
    if has_joined:
        await settle_unheard(lease, store, known)
    await lease.leave()
    other = Lease(store, "other", 15.0, asyncio.get_running_loop().time)
    await other.begin()
    assert 3 == len(await claim(other, 5))


async def test_store_that_loses_its_answers_renews_the_lease(lease, store):
    """Beats whose answers are lost renew the lease in the store, while this process assumes that it has ended."""
    [known] = await claim(lease)
    store.is_mute = True
    for _ in range(10):
        assert await is_lost(lease.renew(lambda: {known.ref}))
        await asyncio.sleep(5)
    assert lease.is_over()  # as far as this process knows
    store.is_mute = False
    assert () == await lease.renew(lambda: {known.ref})
    assert not lease.is_over()
    assert ["me-1"] == await owners_of(store, known.id)
