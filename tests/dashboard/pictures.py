"""Groups as the command would read them from Redis, made without a server."""

import asyncio
from fractions import Fraction

from ratelimited_executor.cli.peers_view import Picture
from ratelimited_executor.dashboard.errors import PageError
from ratelimited_executor.dashboard.group import make_group_app
from ratelimited_executor.dashboard.group_history import GroupRecorder
from ratelimited_executor.peers.redis.inspection import IntervalView, PeerView, RateView
from ratelimited_executor.peers.redis.slot_inspection import ClaimView, PoolView, SlotsView
from ratelimited_executor.peers.redis.ticket_inspection import LimitsView, LimitView


def rate(name="mail", *, permits=40, granted=30, demand=(7, 5)):
    """Return a rate with one peer for each demand; each peer has half of the granted permits."""
    running = IntervalView(number=1, permits=permits // 4, granted={"a": granted // 4}, planned={})
    peers = [
        PeerView(
            id=f"host:{number}",
            rank=number,
            weight=1.0,
            demand=each,
            running=granted // 8,
            upcoming=0,
            planned=3,
            share=0.5,
            seen=0.2,
            is_stale=False,
        )
        for number, each in enumerate(demand)
    ]
    return RateView(
        name=name,
        rate=Fraction(permits),
        next_rate=None,
        next_in=None,
        interval=0.25,
        run="r",
        epoch=1,
        quarantine=None,
        last_call=0.1,
        running=running,
        upcoming=running,
        peers=peers,
    )


def limits(name="llm", *, used=3):
    """Return an executor with one limit of the group."""
    limit = LimitView(name="permits 100/60s", resource="permits", used=used, amount=100, free_in=12.0)
    return LimitsView(name=name, plan="100/60s", last_call=0.1, quarantine=None, penalty=None, limits=[limit])


def pool(name="gpu", *, held=2, waiting=1, is_by_key=False):
    """Return a pool of slots, some held and some waited for."""
    claims = [
        ClaimView(token=f"t{number}", pools=(name,), name="job", node="host", fence=number, age=3.0, left=9.0)
        for number in range(held + waiting)
    ]
    return PoolView(name=name, limit=4, holders=claims[:held], waiting=claims[held:], is_by_key=is_by_key)


def picture(*, group="team", rates=(), shared=(), pools=()):
    """Return a group with the given rates, limits and pools."""
    slots = SlotsView(pools=pools, quarantine=None, lease=15.0, difference=0.5) if pools else None
    return Picture(prefix="rle", group=group, now_us=10**15, rates=rates, limits=shared, slots=slots)


class Redis:
    """A substitute for Redis with groups that a test sets; ``is_away`` makes a read fail, after ``hangs`` seconds."""

    def __init__(self, **pictures):
        self.pictures = pictures
        self.is_away = False
        self.hangs = 0.0
        self.reads = []
        self.searches = []

    async def groups(self, age_max):
        self.searches.append(age_max)
        self._check()
        return list(self.pictures)

    async def read(self, name):
        self.reads.append(name)
        await asyncio.sleep(self.hangs)
        self._check()
        return self.pictures[name]

    def _check(self):
        if self.is_away:
            raise PageError(503, "Redis cannot be read: away")

    def clock(self):
        """Return epoch seconds that advance with the event loop's time."""
        return 1e9 + asyncio.get_running_loop().time()

    def recorder(self):
        return GroupRecorder(groups=self.groups, read=self.read, clock=self.clock)

    def app(self):
        return make_group_app(groups=self.groups, read=self.read, title="Groups", hosts=["127.0.0.1"], clock=self.clock)
