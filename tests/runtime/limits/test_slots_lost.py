"""A body whose slot is lost is cancelled with its own error, left running, or reported to a function."""

import asyncio

import pytest

from ratelimited_executor._runtime.limits.slot_keeper import LocalSlots
from ratelimited_executor._runtime.limits.slots import Slots
from ratelimited_executor.exceptions import SlotLostError
from ratelimited_executor.slots import OnLost
from ratelimited_executor.testing import VirtualClock

from ...helpers import now_rounded


class Loser(LocalSlots):
    """Local slots that are lost on request."""

    def __init__(self) -> None:
        super().__init__()
        self.told = []

    async def acquire(self, pools, **options):
        self.told.append(options["lost"])
        return await super().acquire(pools, **options)

    def lose_after(self, seconds, number=0):
        asyncio.get_running_loop().call_later(seconds, lambda: self.told[number]())


@pytest.fixture
async def keeper(virtual_clock: VirtualClock) -> Loser:
    """A keeper with one pool of two slots."""
    keeper = Loser()
    keeper.open(asyncio.get_running_loop(), virtual_clock)
    keeper.set_limit("gpu", 2)
    return keeper


async def test_body_is_cancelled_and_the_error_says_why(keeper):
    """The body is cancelled when its slot is lost, the error says why, and the slot is given back."""
    gpu = Slots("gpu", keeper)
    keeper.lose_after(1)
    with pytest.raises(
        SlotLostError, match="fence 1 is lost: its lease was not renewed .* or an operator has released it"
    ) as caught:
        async with gpu.hold() as slot:
            await asyncio.sleep(5)

    assert ("gpu", 1, True) == (caught.value.pool, caught.value.fence, slot.is_lost)
    assert 1 == now_rounded()
    assert 0 == gpu.statistics().held
    assert 0 == asyncio.current_task().cancelling()
    await asyncio.sleep(1)  # no cancellation is left pending


async def test_body_goes_on_where_it_may(keeper):
    """With ``OnLost.FINISH`` the body continues, and can see that its slot is lost."""
    keeper.lose_after(1)
    async with Slots("gpu", keeper).hold(on_lost=OnLost.FINISH) as slot:
        await asyncio.sleep(5)
    assert slot.is_lost
    assert 5 == now_rounded()


async def test_function_is_called_with_the_slot(keeper):
    """A function given as ``on_lost`` is called once with the slot."""
    lost = []
    keeper.lose_after(1)
    async with Slots("gpu", keeper).hold(on_lost=lost.append) as slot:
        await asyncio.sleep(5)
    assert [slot] == lost


async def test_loss_after_the_end_is_none(keeper):
    """A loss after the slot was given back has no effect."""
    async with Slots("gpu", keeper).hold() as slot:
        await asyncio.sleep(1)
    keeper.told[0]()
    await asyncio.sleep(1)
    assert not slot.is_lost


async def test_cancellation_from_outside_stays_one(keeper):
    """A body whose slot is lost and that is cancelled from outside raises ``CancelledError``, and no other error."""
    entered = asyncio.Event()

    async def work():
        async with Slots("gpu", keeper).hold():
            entered.set()
            await asyncio.sleep(5)

    task = asyncio.create_task(work())
    await entered.wait()
    keeper.told[0]()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_timeout_around_it_and_within_keep_their_meaning(keeper):
    """``asyncio.timeout()`` around or within a hold still works: its cancellation is told from that of a lost slot."""
    keeper.lose_after(1)
    with pytest.raises(SlotLostError):
        async with asyncio.timeout(3), Slots("gpu", keeper).hold():
            await asyncio.sleep(5)

    with pytest.raises(TimeoutError):
        async with Slots("gpu", keeper).hold(), asyncio.timeout(1):
            await asyncio.sleep(5)
    assert 0 == asyncio.current_task().cancelling()


async def test_error_of_the_body_is_not_covered_up(keeper):
    """A body that fails while it is cancelled raises its own error."""
    keeper.lose_after(1)
    with pytest.raises(KeyError):
        async with Slots("gpu", keeper).hold():
            try:
                await asyncio.sleep(5)
            finally:
                raise KeyError("its own")
    assert 0 == asyncio.current_task().cancelling()


async def test_inner_hold_is_lost_and_the_outer_one_goes_on(keeper):
    """Losing the slot of an inner hold does not affect the outer one."""
    keeper.lose_after(1, number=1)
    async with Slots("gpu", keeper).hold() as outer:
        with pytest.raises(SlotLostError):
            async with Slots("gpu", keeper).hold():
                await asyncio.sleep(5)
        await asyncio.sleep(1)
    assert not outer.is_lost


@pytest.mark.parametrize("on_lost", ["cancel", None, True, 3])
async def test_other_reaction_is_refused(keeper, on_lost):
    """An unknown ``on_lost`` is refused at the call."""
    with pytest.raises(TypeError, match=r"on_lost must be OnLost\.CANCEL"):
        Slots("gpu", keeper).hold(on_lost=on_lost)


async def test_several_pools_are_held_in_one_step(keeper):
    """Several pools are taken at once, with none held while waiting for another; bad lists are refused at the call."""
    keeper.set_limit("licence", 1)
    gpu, licence = Slots("gpu", keeper), Slots("licence", keeper)
    async with licence.hold():
        waiting = asyncio.create_task(gpu.hold(also=[licence]).__aenter__())
        await asyncio.sleep(1)
        assert (0, 1) == (gpu.statistics().held, gpu.statistics().waiting)
    slot = await waiting
    assert (("gpu", "licence"), "gpu") == (slot.pools, slot.pool)
    assert (1, 1) == (gpu.statistics().held, licence.statistics().held)

    with pytest.raises(ValueError, match="twice"):
        gpu.hold(also=[licence, licence])
    with pytest.raises(ValueError, match="twice"):
        gpu.hold(also=[gpu])
    with pytest.raises(ValueError, match="another's"):
        gpu.hold(also=[Slots("gpu", Loser())])
    with pytest.raises(TypeError, match="also must be pools"):
        gpu.hold(also=["licence"])
    with pytest.raises(TypeError, match="iterable"):
        gpu.hold(also=licence)
