"""Groups as the command would read them from Redis, made without a server."""

import asyncio

from ratelimited_executor.cli.operate.peers_view import Picture
from ratelimited_executor.dashboard.errors import PageError
from ratelimited_executor.dashboard.group import make_group_app
from ratelimited_executor.dashboard.group_history import GroupRecorder
from ratelimited_executor.peers.redis.slot_inspection import ClaimView, PoolView, SlotsView
from ratelimited_executor.peers.redis.ticket_inspection import LimitsView, LimitView, PeerView


def limits(name="llm", *, used=3, active=1, quarantine=None, penalty=None):
    """Return limits with one limit, two peers and some active ones of them."""
    limit = LimitView(name="permits/window/60", resource="permits", used=used, amount=100, free_in=12.0)
    peers = [
        PeerView(id=f"host:{number}", last_call=0.1 if number < active else 5.0, is_active=number < active)
        for number in range(max(2, active))
    ]
    return LimitsView(
        name=name, plan="100/min", last_call=0.1, quarantine=quarantine, penalty=penalty, limits=[limit], peers=peers
    )


def pool(name="gpu", *, held=2, waiting=1, is_by_key=False):
    """Return a pool of slots, some held and some waited for."""
    claims = [
        ClaimView(token=f"t{number}", pools=(name,), name="job", node="host", fence=number, age=3.0, left=9.0)
        for number in range(held + waiting)
    ]
    return PoolView(name=name, limit=4, holders=claims[:held], waiting=claims[held:], is_by_key=is_by_key)


def picture(*, group="team", shared=(), pools=()):
    """Return a group with the given limits and pools."""
    slots = SlotsView(pools=pools, quarantine=None, lease=15.0, difference=0.5) if pools else None
    return Picture(prefix="rle", group=group, now_us=10**15, limits=shared, slots=slots)


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
