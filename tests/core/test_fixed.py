"""Attributes that are fixed or misspelt are refused with the reason and what can be set."""

import copy
import pickle
import weakref

import pytest

from ratelimited_executor import ExecutorManager
from ratelimited_executor._core.fixed import Fixed
from ratelimited_executor.peers import StaticPeers

from ..helpers import redis_peers

MADE = {
    "StaticPeers": lambda: StaticPeers(2, 1),
    "RedisPeers": lambda: redis_peers(group="g"),
    "ExecutorManager": lambda: ExecutorManager(),
}
WRONG = [
    ("StaticPeers", "rank", "rank of StaticPeers cannot be changed: pass rank= to StaticPeers()"),
    ("StaticPeers", "count", "count of StaticPeers cannot be set"),
    ("StaticPeers", "rang", "StaticPeers has no attribute 'rang'; StaticPeers() takes n, rank"),
    ("RedisPeers", "late", "late of RedisPeers cannot be changed: pass late= to RedisPeers()"),
    ("RedisPeers", "weight", "weight of RedisPeers cannot be changed: pass weight= to RedisPeers()"),
    ("RedisPeers", "id", "id of RedisPeers cannot be set"),
    ("RedisPeers", "lat", "RedisPeers has no attribute 'lat'; RedisPeers() takes redis, group, prefix, weight, "),
    ("ExecutorManager", "interval", "interval of ExecutorManager cannot be changed: pass interval= to ExecutorManager()"),
    ("ExecutorManager", "peers", "peers of ExecutorManager cannot be changed: pass peers= to ExecutorManager()"),
    ("ExecutorManager", "executors", "executors of ExecutorManager cannot be set"),
    ("ExecutorManager", "intervall", "ExecutorManager has no attribute 'intervall'; ExecutorManager() takes interval, clock"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "text"), WRONG, ids=lambda value: str(value)[:20])
def test_attribute_that_cannot_be_set_is_refused(kind, name, text):
    """Setting a fixed attribute raises ``AttributeError`` with name and object, and changes nothing."""
    thing = MADE[kind]()
    before = getattr(thing, name, None)
    with pytest.raises(AttributeError) as caught:
        setattr(thing, name, 1)
    assert str(caught.value).startswith(text)
    assert (name, thing) == (caught.value.name, caught.value.obj)
    assert before == getattr(thing, name, None)
    assert type(thing).__name__ == kind


def test_fixed_peers_are_values_still():
    """Fixed peers are still equal, hashable, copied and pickled as values."""
    peers = StaticPeers(3, 2)
    assert {peers} == {StaticPeers(3, 2), copy.copy(peers), pickle.loads(pickle.dumps(peers))}
    with pytest.raises(AttributeError, match="rank of StaticPeers cannot be changed"):
        del peers.rank
    assert 2 == peers.rank


def test_what_is_fixed_can_be_referred_to_weakly():
    """Fixed objects can be weakly referenced."""
    for kind in ("RedisPeers", "ExecutorManager"):
        thing = MADE[kind]()
        assert thing is weakref.ref(thing)()


def test_class_of_the_user_s_own_has_attributes_of_its_own():
    """A user's subclass without slots may have its own attributes."""

    class Named(ExecutorManager):
        pass

    manager = Named()
    manager.label = "mail"
    assert "mail" == manager.label
    with pytest.raises(AttributeError, match="interval of Named cannot be changed"):
        manager.interval = 2
    assert not hasattr(Fixed(), "__dict__")
