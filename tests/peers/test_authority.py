"""The laws of the authority that grants a fleet's permits, checked for the one in memory and the script on Redis.

The server's clock is an argument, so nothing here waits. The invariants are those that the protocol relies on: each
permit goes to one peer at most; all permits go to peers that want them, in shares by weighted max-min; and none is
granted while a new authority cannot know what the previous one has granted.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
import redis
from redis.crc import key_slot

from ratelimited_executor._core.fleet.grid import FleetGrid, grid_rate
from ratelimited_executor._core.fleet.protocol import Grant, Reply, Request
from ratelimited_executor._core.rates import Rate
from ratelimited_executor.peers.redis.script import VERSION, keys_of

from ..helpers import fluid_shares
from .binaries import KINDS
from .servers import RedisServer
from .subjects import FLAWS, KEYS, InMemory, LuaOnRedis, Subject

pytestmark = pytest.mark.real_time("a real server, on one side")

NewSubject = Callable[[], Subject]

INTERVAL_US = 250_000
START_US = 1_704_067_200_000_000
FIRST = START_US // INTERVAL_US
QUARANTINE = 5
STEP_US = 1000  # a clock that goes back by no more is treated as standing still
JUMP_INTERVALS = 3
LATE_US = 200_000  # two starts may be closer together than their permits by this much
MANY = 1 << 40

# Fine and coarse, whole and fractional, and one with more permits in an interval than one call at once looks at.
RATES = [
    Rate(100),
    Rate(4),
    Rate(Fraction(7, 3)),
    Rate(1, per=10),
    Rate(1000),
    Rate(Fraction(100_000, 7)),
    Rate(100_000),
]
STRETCHES = [Fraction(0), Fraction(18_500, 1_000_000)]
RATIOS = [grid_rate(rate, INTERVAL_US, stretch) for rate in RATES for stretch in STRETCHES]
LOOK_COUNT = 256  # permits that one call for permits at once looks at
PHASES = st.sampled_from([0.0, 0.37, 1 - 2**-32])
COARSE_RATIOS = [ratio for ratio in RATIOS if ratio[0] <= LOOK_COUNT * ratio[1]]

# The fixture is a function that makes a new subject for each example.
quick = partial(settings, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["memory", *KINDS])
def new_subject(request: pytest.FixtureRequest, server_of: Callable[[str], RedisServer]) -> Iterator[NewSubject]:
    """Return a function that makes a new authority."""
    if request.param == "memory":
        yield InMemory
    else:
        yield from _new_on_redis(server_of(request.param))


@pytest.fixture
def new_on_redis(redis_server: RedisServer) -> Iterator[Callable[[], LuaOnRedis]]:
    """Return a function that makes a new authority on Redis."""
    yield from _new_on_redis(redis_server)


def _new_on_redis(server: RedisServer) -> Iterator[Callable[[], LuaOnRedis]]:
    with server.client() as client:
        yield partial(LuaOnRedis, client)


@dataclass
class Group:
    """Peers of one subject, and a ledger of their grants against which each reply is checked.

    Attributes:
        subject: the authority.
        ratio: the rate that the peers believe in force, as (step, unit).
        weights: weights of peers other than 1.
        phase: phase of the first grid, as a part of the gap between two permits.
        now_us: the server's clock.
        owners: the peer to which each (era, interval, place) was granted.
        plans: what all peers must see alike of each (era, interval): the number of permits, and where they lie.
        ranks: ranks of the current members.
        latest: the calls that may be repeated.
        sequences: numbers of wishes.
    """

    subject: Subject
    ratio: tuple[int, int] = RATIOS[0]
    weights: dict[str, float] = field(default_factory=dict)
    phase: float = 0.0
    now_us: int = START_US + 5
    last_us: int = 0
    owners: dict[tuple[str, int, int], str] = field(default_factory=dict)
    plans: dict[tuple[str, int], tuple[int, int, FleetGrid | None]] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    latest: dict[str, Request] = field(default_factory=dict)
    sequences: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # Time.

    @property
    def number(self) -> int:
        """Number of the running interval by the server's clock."""
        return self.now_us // INTERVAL_US

    def go_to(self, number: int, part: float = 0.4) -> None:
        """Set the clock to a part of an interval."""
        self.now_us = number * INTERVAL_US + int(part * INTERVAL_US)

    def warm_up(self, peers: Sequence[str] = ("a",), later: int = 0) -> None:
        """Let peers join, and run the clock past the quarantine, so that the next call is granted permits."""
        for number in range(self.number, self.number + max(QUARANTINE, lapse_intervals(self.ratio)) + 2):
            for place, peer in enumerate(peers):
                self.go_to(number, 0.1 + 0.8 * place / len(peers))
                self.call(peer, later=later)
        self.go_to(self.number + 1)

    # Calls.

    def request(self, peer: str, **wishes: Any) -> Request:
        """Make a request, by default for permits of the next interval."""
        step, unit = self.ratio
        values = {
            "step": step,
            "unit": unit,
            "base": int(self.phase * unit),
            "weight": self.weights.get(peer, 1.0),
            "sequence": next(self.sequences),
        }
        return Request(peer=peer, interval_us=INTERVAL_US, quarantine=QUARANTINE, **{**values, **wishes})

    def call(self, peer: str, wanted: int = 0, **wishes: Any) -> Reply:
        """Call for ``wanted`` permits of the next interval, all due by its begin."""
        values = {"urgent": wanted, "soon": wanted, "later": wanted}
        return self.send(self.request(peer, **{**values, **wishes}))

    def ask(self, peer: str, count: int) -> Reply:
        """Call for permits at once, and for none of the next interval."""
        return self.send(self.request(peer, now=count, is_fetching=False))

    def leave(self, peer: str) -> Reply:
        """Let a peer leave."""
        return self.send(self.request(peer, is_leaving=True))

    def send(self, request: Request) -> Reply:
        """Send a request, and check the reply."""
        reply = self.subject.call(self.now_us, request)
        self._check(request, reply)
        return reply

    # The ledger.

    def _check(self, request: Request, reply: Reply) -> None:
        is_same_clock = self.now_us >= self.last_us - STEP_US
        self.last_us = max(self.now_us, self.last_us) if is_same_clock else self.now_us
        number = self.last_us // INTERVAL_US
        assert (self.now_us, INTERVAL_US) == (reply.now_us, reply.grid.interval_us)
        for grant, wanted in ((reply.upcoming, number + 1), (reply.running, number)):
            if grant.grid is not None:
                assert wanted == grant.number
                assert reply.safe <= grant.number
                self._enter(request.peer, reply.era, grant)
        for time_us in reply.running.times_us() if request.now else ():
            assert number <= time_us // INTERVAL_US <= number + 1
        if request.is_leaving:
            self.ranks.pop(request.peer, None)
            self._release(request.peer, number + 1)
        else:
            self.ranks[request.peer] = reply.rank
            assert len(self.ranks) == len(set(self.ranks.values())), self.ranks

    def _enter(self, peer: str, era: str, grant: Grant) -> None:
        assert grant.grid is not None
        assert grant.grid.count(grant.number) == grant.count
        assert grant.count <= 1 or math.gcd(grant.stride, grant.count) == 1
        told = grant.count, grant.stride, grant.grid
        assert told == self.plans.setdefault((era, grant.number), told)
        ranks = ranks_of(grant)
        assert len(ranks) == len(set(ranks))
        for rank in ranks:
            assert 0 <= rank < grant.count
            place = rank * grant.stride % grant.count
            assert peer == self.owners.setdefault((era, grant.number, place), peer), (era, grant.number, place)

    def _release(self, peer: str, number: int) -> None:
        """Remove the grants of a coming interval from a peer that has left: it has dropped all that it held."""
        self.owners = {key: owner for key, owner in self.owners.items() if (owner, key[1]) != (peer, number)}

    def count_of(self, number: int) -> int:
        """Count the permits of an interval granted in any era."""
        return sum(granted == number for _, granted, _ in self.owners)


def lapse_intervals(ratio: tuple[int, int]) -> int:
    """Return the least number of intervals after the next in which a new era grants nothing."""
    step, unit = ratio
    return 1 + math.ceil(unit / step + LATE_US / INTERVAL_US) if unit >= step else 0


def ranks_of(grant: Grant) -> list[int]:
    """Return the ranks of a grant."""
    return [rank for part in grant.ranks for rank in part]


def go_round(group: Group, demands: dict[str, int], coming: dict[str, int], peers: Sequence[str]) -> dict[str, Grant]:
    """Let each peer call once for what it has reported before, and run to the next interval; return the grants."""
    grants = {}
    for index, peer in enumerate(peers):
        group.go_to(group.number, 0.1 + 0.8 * index / len(peers))
        wanted = demands[peer]
        later = wanted + coming.get(peer, 0)
        grants[peer] = group.call(peer, wanted, later=later).upcoming
        demands[peer] = later - size(grants[peer])
    group.go_to(group.number + 1)
    return grants


def size(grant: Grant) -> int:
    """Count the permits of a grant."""
    return sum(map(len, grant.ranks))


# I1, I7: random histories of everything that may happen.

PEERS = "abcde"
WEIGHTS = dict(zip(PEERS, (1.0, 1.0, 3.0, 0.5, 2.0), strict=True))
WISHES = st.sampled_from([0, 0, 1, 2, 3, 5, 8, 13, 30, 300])

CALLS = st.tuples(st.just("call"), st.sampled_from(PEERS), WISHES, WISHES, WISHES, st.just(0))
ASKING_CALLS = st.tuples(st.just("call"), st.sampled_from(PEERS), WISHES, WISHES, WISHES, WISHES)
ASKS = st.tuples(st.just("ask"), st.sampled_from(PEERS), WISHES)
TICKS = st.tuples(
    st.just("tick"), st.one_of(st.integers(0, 100_000), st.sampled_from([120_000, INTERVAL_US, 1_500_000]))
)
REPEATS = st.tuples(st.just("repeat"), st.sampled_from(PEERS))
LEAVES = st.tuples(st.just("leave"), st.sampled_from(PEERS))
NEW_RATES = st.tuples(st.just("rate"), st.sampled_from(PEERS), st.sampled_from(RATIOS))
JUMPS = st.tuples(st.just("jump"), st.sampled_from(PEERS))
STEPS_BACK = st.tuples(st.just("tick"), st.sampled_from([-1, -STEP_US, -STEP_US - 1, -100_000, -INTERVAL_US - 10]))
LOSSES = st.tuples(st.just("lose"), st.sampled_from(KEYS))
SETS_BACK = st.tuples(st.just("set back"), st.sampled_from(["members", "plan0", "plan1"]))
SPOILT = st.tuples(st.just("spoil"), st.sampled_from(sorted(FLAWS)))
FAULTS = st.one_of(JUMPS, STEPS_BACK, LOSSES, SETS_BACK, SPOILT, st.sampled_from([("wipe",), ("fail over",)]))

STEPS = st.one_of(CALLS, CALLS, CALLS, ASKING_CALLS, ASKS, TICKS, TICKS, REPEATS, LEAVES, NEW_RATES, st.just(("save",)))
PEACE = st.lists(STEPS, min_size=10, max_size=60)
ATTRITION = st.sampled_from(KEYS).flatmap(
    lambda key: st.lists(
        st.one_of(STEPS, st.sampled_from([("set back", key), ("set back" if key == "state" else "lose", key)])),
        min_size=10,
        max_size=120,
    )
)
# What follows a fault: at once, in its quarantine, or after it.
WAITS = st.tuples(st.just("tick"), st.sampled_from([0, 600_000, 1_600_000]))
WAR = st.lists(st.tuples(PEACE, FAULTS, WAITS, PEACE), min_size=1, max_size=3).map(
    lambda spells: [step for before, fault, wait, after in spells for step in [*before, fault, wait, *after]]
)
WARMED_UP = [("tick", (QUARANTINE + 1) * INTERVAL_US)]


def play(group: Group, history: Sequence[tuple[Any, ...]]) -> Iterator[Reply]:
    """Play a history, and yield each reply."""
    latest = group.latest
    for step in history:
        match step:
            case ("call", peer, urgent, more, yet_more, now):
                soon = urgent + more
                latest[peer] = group.request(peer, urgent=urgent, soon=soon, later=soon + yet_more, now=now)
                yield group.send(latest[peer])
            case ("ask", peer, now):
                latest[peer] = group.request(peer, now=now, is_fetching=False)
                yield group.send(latest[peer])
            case ("repeat", peer) if peer in latest:
                yield group.send(latest[peer])
            case ("leave", peer):
                yield group.leave(peer)
            case ("rate", peer, ratio):
                group.ratio = ratio
                yield group.send(group.request(peer, urgent=2, soon=4, later=6, is_new_rate=True))
            case ("jump", peer):
                yield group.send(group.request(peer, urgent=2, soon=4, later=6, has_jumped=True))
            case ("tick", microseconds):
                group.now_us += microseconds
            case ("wipe",):
                group.subject.wipe()
                group.ranks.clear()
                group.last_us = group.now_us
            case ("fail over",):
                group.subject.fail_over()
                group.last_us = group.now_us
            case ("lose", key):
                group.subject.lose(key)
                group.ranks.clear()
                group.last_us = 0 if key == "state" else group.last_us
            case ("save",):
                group.subject.save()
            case ("set back", key):
                group.subject.set_back([key])
                group.ranks.clear()
            case ("spoil", flaw):
                group.subject.spoil(flaw)


@given(ratio=st.sampled_from(RATIOS), history=WAR, is_warm=st.booleans(), phase=PHASES)
@quick(max_examples=120)
def test_permits_are_granted_to_one_peer_each_in_every_history(
    new_subject: NewSubject, ratio: tuple[int, int], history: list[tuple[Any, ...]], is_warm: bool, phase: float
) -> None:
    """No permit is granted to two peers in any history of calls, repeats, changes of the rate, and faults.

    The ledger also checks that all peers are told the same of an interval, and that none is granted before it is safe.
    """
    group = Group(new_subject(), ratio, WEIGHTS, phase)
    group.call("a", 3)
    for _ in play(group, (WARMED_UP if is_warm else []) + history):
        pass
    group.subject.cleanup()


@given(ratio=st.sampled_from(COARSE_RATIOS), history=ATTRITION)
@quick(max_examples=150)
def test_permits_are_granted_to_one_peer_each_whatever_key_is_lost_or_set_back_alone(
    new_subject: NewSubject, ratio: tuple[int, int], history: list[tuple[Any, ...]]
) -> None:
    """A key that is lost or set back grants no permit twice, and begins no era: the state knows the plans' versions."""
    group = Group(new_subject(), ratio, WEIGHTS)
    group.call("a", 3)
    eras = {reply.era for reply in play(group, [*WARMED_UP, *history])}
    assert len(eras) <= 1
    group.subject.cleanup()


@given(ratio=st.sampled_from(RATIOS), history=PEACE)
@quick(max_examples=120)
def test_script_answers_as_the_authority_in_memory_does(
    new_on_redis: Callable[[], LuaOnRedis], ratio: tuple[int, int], history: list[tuple[Any, ...]]
) -> None:
    """Script and memory give the same replies to a history, except for which permits of an interval a peer gets.

    This depends on the order of the members, and their number differs by one. Redis keeps small hashes in the order in
    which they were made, as Python does, so that even that number is the same here.
    """
    _compare(new_on_redis(), ratio, [*WARMED_UP, *history])


@given(ratio=st.sampled_from(RATIOS), history=WAR)
@quick(max_examples=80)
def test_script_answers_as_the_authority_in_memory_does_in_spite_of_faults(
    new_on_redis: Callable[[], LuaOnRedis], ratio: tuple[int, int], history: list[tuple[Any, ...]]
) -> None:
    """Script and memory give the same replies across clock steps, restarts, failovers and damaged keys."""
    _compare(new_on_redis(), ratio, [*WARMED_UP, *history])


class Both:
    """The two authorities as one, whose replies must agree."""

    def __init__(self, one: InMemory, other: LuaOnRedis) -> None:
        self.one, self.other = one, other
        self.calls = 0

    def call(self, now_us: int, request: Request) -> Reply:
        """Call both, and compare."""
        self.calls += 1
        replies = self.one.call(now_us, request), self.other.call(now_us, request)
        expected, actual = (_outline(reply) for reply in replies)
        assert expected == actual, f"call {self.calls}: {request}"
        return replies[0]

    def wipe(self) -> None:
        """Wipe both."""
        self.one.wipe()
        self.other.wipe()

    def fail_over(self) -> None:
        """Fail both over."""
        self.one.fail_over()
        self.other.fail_over()

    def lose(self, key: str) -> None:
        """Lose a key in both."""
        self.one.lose(key)
        self.other.lose(key)

    def save(self) -> None:
        """Save both."""
        self.one.save()
        self.other.save()

    def set_back(self, keys: Collection[str]) -> None:
        """Set both back."""
        self.one.set_back(keys)
        self.other.set_back(keys)

    def spoil(self, flaw: str) -> None:
        """Spoil both."""
        self.one.spoil(flaw)
        self.other.spoil(flaw)

    def keys(self) -> dict[str, int]:
        """Return the keys of the one that has some."""
        return self.other.keys()

    def cleanup(self) -> None:
        """Clean up."""
        self.other.cleanup()


def _compare(other: LuaOnRedis, ratio: tuple[int, int], history: list[tuple[Any, ...]]) -> None:
    one = InMemory()
    group = Group(Both(one, other), ratio, WEIGHTS, phase=0.37)
    group.call("a", 3)
    for step in history:
        # The script computes the time of a permit to a fraction of a microsecond: avoid that very time.
        while (grid := _grid_in_force(one, group.now_us)) is not None and _is_near_permit(grid, group.now_us):
            group.now_us += 1
        for _ in play(group, [step]):
            pass
    group.subject.cleanup()


def _outline(reply: Reply) -> dict[str, Any]:
    """Return what does not depend on the order of the members."""
    outline: dict[str, Any] = {
        "now": reply.now_us, "epoch": reply.era.split(":")[1], "safe": reply.safe, "rank": reply.rank,
        "grid": reply.grid, "flaw": reply.flaw, "peers": reply.peers if reply.upcoming.grid is not None else None,
    }  # fmt: skip
    for name, grant in (("upcoming", reply.upcoming), ("running", reply.running)):
        outline[name] = grant.number, grant.count, grant.stride, grant.grid, size(grant)
    return outline


def _grid_in_force(subject: InMemory, now_us: int) -> FleetGrid | None:
    """Return the grid of the running interval; None before the first call, and where the state is not sound."""
    authority = subject.authority
    return (
        None
        if authority._grid is None or not authority._is_sound(now_us)
        else authority._grid_of(max(now_us, authority._last_us) // INTERVAL_US)
    )


def _is_near_permit(grid: FleetGrid, now_us: int) -> bool:
    """Return True if a permit comes up within two microseconds."""
    passed = Fraction(now_us - grid.since * INTERVAL_US, INTERVAL_US) * grid.step / grid.unit
    phase = (passed + Fraction(grid.base, grid.unit)) % 1
    return grid.step > 0 and min(phase, 1 - phase) * INTERVAL_US * grid.unit < 2 * grid.step


# I3, I4, I5: the number of permits granted.


@given(
    ratio=st.sampled_from(RATIOS),
    weights=st.lists(st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0]), min_size=1, max_size=6),
    arrivals=st.lists(st.lists(WISHES, min_size=6, max_size=6), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
@quick(max_examples=60)
def test_supply_or_demand_is_granted_by_weighted_max_min(
    new_subject: NewSubject, ratio: tuple[int, int], weights: list[float], arrivals: list[list[int]], seed: int
) -> None:
    """With a call of each peer in each interval, all supply or demand is granted, each share within one of max-min."""
    order = random.Random(seed)
    group = Group(new_subject(), ratio, dict(zip("uvwxyz", weights, strict=False)))
    peers = list(group.weights)
    demands = dict(zip(peers, arrivals[0], strict=False))
    for number in (group.number, group.number + QUARANTINE):  # nothing is granted yet, and no plan counts them out
        group.go_to(number)
        for peer in peers:
            group.call(peer, later=demands[peer])
    group.go_to(group.number + 1)
    for numbers in arrivals:
        planned = {peer: (Fraction(group.weights[peer]), demands[peer]) for peer in peers}
        order.shuffle(peers)
        grants = go_round(group, demands, dict(zip(peers, numbers, strict=False)), peers)
        granted = {peer: size(grant) for peer, grant in grants.items()}
        supply = grants[peers[0]].count
        shares = fluid_shares(planned, supply)
        assert min(supply, sum(demand for _, demand in planned.values())) == sum(granted.values())
        assert {} == {peer: (granted[peer], shares[peer]) for peer in peers if abs(granted[peer] - shares[peer]) >= 1}
    group.subject.cleanup()


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param([1, 1, 1], id="three alike"),
        pytest.param([1, 1, 3], id="one three times"),
        pytest.param([1.0] * 9, id="nine alike"),
        pytest.param([1, 2, 3, 4, 5.5], id="five different"),
    ],
)
@pytest.mark.parametrize("rate", [Rate(Fraction(7, 3)), Rate(4), Rate(100), Rate(1000)], ids=str)
def test_shares_of_a_hundred_intervals_are_by_weight(new_subject: NewSubject, rate: Rate, weights: list[float]) -> None:
    """Remainders go round: no peer is off its share by more than a few permits, however few an interval has."""
    group = Group(new_subject(), grid_rate(rate, INTERVAL_US), {f"peer {i}": float(w) for i, w in enumerate(weights)})
    peers = list(group.weights)
    group.warm_up(peers, MANY)
    demands = dict.fromkeys(peers, MANY)
    granted: Counter[str] = Counter()
    supply = 0
    for _ in range(100):
        grants = go_round(group, demands, {}, peers)
        granted.update({peer: size(grant) for peer, grant in grants.items()})
        supply += grants[peers[0]].count
    ideal = {peer: supply * weight / sum(weights) for peer, weight in group.weights.items()}
    off_max = 4 if supply < 4000 else 0.01 * min(ideal.values())

    assert supply == granted.total()
    assert {} == {peer: (granted[peer], ideal[peer]) for peer in peers if abs(granted[peer] - ideal[peer]) > off_max}


def test_modest_peers_get_all_they_want_and_the_others_share_the_rest(new_subject: NewSubject) -> None:
    """Of 25 permits two peers get the one that each wants per interval, and the rest is shared by weight."""
    group = Group(new_subject(), weights={"hot": 1.0, "warm": 1.0, "big": 3.0})
    peers = ["slow", *group.weights, "calm"]
    group.warm_up(peers, MANY)
    coming = {"slow": 1, "calm": 1}
    demands = {peer: coming.get(peer, MANY) for peer in peers}
    go_round(group, demands, coming, peers)
    demands |= coming
    go_round(group, demands, coming, peers)
    granted: Counter[str] = Counter()
    for _ in range(100):
        grants = go_round(group, demands, coming, peers)
        assert (1, 1) == (size(grants["slow"]), size(grants["calm"]))
        granted.update({peer: size(grant) for peer, grant in grants.items()})

    assert 2500 == granted.total()
    assert {"hot": 460, "warm": 460, "big": 1380} == {
        peer: pytest.approx(granted[peer], rel=0.01) for peer in group.weights
    }


def test_new_peer_that_calls_first_has_its_share(new_subject: NewSubject) -> None:
    """The peer that makes the plan is included in it, and gets its share also of what is not urgent."""
    group = Group(new_subject())
    group.warm_up(["a"], MANY)
    replies = [group.call(peer, soon=20, later=20) for peer in ("new", "a")]
    counts = [size(reply.upcoming) for reply in replies]

    assert [2, 2] == [reply.peers for reply in replies]
    assert counts in ([12, 13], [13, 12])


def test_peer_that_calls_first_after_a_pause_has_its_share(new_subject: NewSubject) -> None:
    """A peer that calls after a pause has its share: what it reported before the pause counts again."""
    group = Group(new_subject())
    group.warm_up(later=20)
    group.call("a", soon=0, later=20)
    group.go_to(group.number + 10)
    reply = group.call("a", soon=20, later=20)

    assert (1, 20) == (reply.peers, size(reply.upcoming))


def test_weight_holds_from_the_call_on_that_tells_it(new_subject: NewSubject) -> None:
    """A peer that makes the plan is counted with the weight of this call."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    group.weights["a"] = 4.0
    counts = [size(group.call(peer, MANY).upcoming) for peer in ("a", "b")]

    assert [20, 5] == counts


def test_peers_that_are_silent_for_three_intervals_get_no_share(new_subject: NewSubject) -> None:
    """The share of a crashed peer stays unused for three intervals, and no longer."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    log = []
    for _ in range(6):
        log.append(size(group.call("a", soon=MANY, later=MANY).upcoming))
        group.go_to(group.number + 1)

    assert {*log[:3]} <= {12, 13}
    assert [25, 25, 25] == log[3:]


def test_peer_that_is_silent_since_the_clock_went_back_gets_no_share(new_subject: NewSubject) -> None:
    """After the clock goes back by an hour, a silent peer last seen by the old clock is not counted for that hour."""
    group = Group(new_subject())
    group.warm_up(["a", "dead"], MANY)
    group.now_us -= 3_600_000_000
    for _ in range(QUARANTINE + 6):
        reply = group.call("a", soon=MANY, later=MANY)
        group.go_to(group.number + 1)

    assert (1, 25) == (reply.peers, size(reply.upcoming))


# I7: when an authority may grant.


def test_new_authority_grants_nothing_in_its_quarantine(new_subject: NewSubject) -> None:
    """The first interval with grants is the second after the first call, and the quarantine later."""
    group = Group(new_subject())
    safe = FIRST + 2 + QUARANTINE

    assert [safe] * (QUARANTINE + 3) == [_safe_at(group, number) for number in range(FIRST, FIRST + QUARANTINE + 3)]
    assert [0, 0, 25, 25] == [group.count_of(safe + shift) for shift in (-2, -1, 0, 1)]


def _safe_at(group: Group, number: int) -> int:
    """Call for all permits, of the next interval and at once; return the first interval that is safe."""
    group.go_to(number, 0.0)
    return group.call("a", MANY, now=MANY).safe


@pytest.mark.parametrize("kind", ["wipe", "fail_over"])
def test_authority_that_takes_over_grants_nothing_in_its_quarantine(new_subject: NewSubject, kind: str) -> None:
    """A server that restarts or takes over does not know the earlier grants, and grants nothing in its quarantine."""
    group = Group(new_subject())
    group.warm_up(later=MANY)
    before = group.call("a", MANY)
    getattr(group.subject, kind)()
    number = group.number
    after = group.call("a", MANY, now=3)
    counts = []
    for later in range(number, number + QUARANTINE + 2):
        group.go_to(later)
        counts.append(size(group.call("b", MANY).upcoming))

    assert before.era != after.era
    assert number + 2 + QUARANTINE == after.safe
    assert [0] * (QUARANTINE + 1) == counts[:-1]
    assert counts[-1] > 0


@pytest.mark.parametrize("kind", ["wipe", "fail_over", "state", "back", "jump"])
@pytest.mark.parametrize("rate", [Rate(1), Rate(1, per=10), Rate(Fraction(7, 3)), Rate(1, per=3600)], ids=str)
def test_era_of_a_slow_rate_begins_a_gap_after_the_permits_of_the_last_have_lapsed(
    new_subject: NewSubject, rate: Rate, kind: str
) -> None:
    """A new era of a slow rate begins a gap after the latest possible use of the last era's permits."""
    group = Group(new_subject(), grid_rate(rate, INTERVAL_US, STRETCHES[1]))
    group.call("a")
    group.go_to(group.number + 2 + max(QUARANTINE, lapse_intervals(group.ratio)), 0.9)
    before = group.call("a", MANY)
    match kind:
        case "state":
            group.subject.lose("state")
        case "back":
            group.now_us -= 3_600_000_000
        case "wipe" | "fail_over":
            getattr(group.subject, kind)()
    number = group.number
    after = group.call("a", MANY, now=MANY, has_jumped=kind == "jump")
    least = lapse_intervals(group.ratio)

    assert before.era != after.era or kind == "state"  # which has the number of the era as well
    assert (number + 2 + max(least, 0 if kind == "jump" else QUARANTINE)) == after.safe
    begin_us = after.safe * INTERVAL_US - group.now_us
    assert begin_us >= 2 * INTERVAL_US + LATE_US + INTERVAL_US / (group.ratio[0] / group.ratio[1])
    group.now_us += 1000
    assert ("", after.era) == (group.call("b").flaw, group.call("b").era)


def test_era_that_begins_with_a_slower_rate_waits_for_a_gap_of_that_one(new_subject: NewSubject) -> None:
    """An era that begins with a slower rate waits for the gap of that rate, since a task may just have started."""
    group = Group(new_subject())
    group.warm_up()
    group.call("a", MANY)
    group.subject.fail_over()
    group.ratio = grid_rate(Rate(1, per=10), INTERVAL_US)
    reply = group.call("b", is_new_rate=True)

    assert group.number + 2 + lapse_intervals(group.ratio) == reply.safe
    assert (reply.safe, "") == (group.call("a").safe, group.call("a").flaw)


def test_quarantine_of_a_slow_rate_is_shorter_once_a_faster_one_is_put_in_force(new_subject: NewSubject) -> None:
    """The quarantine depends on the gap of the rate in force, and is never shorter than the authority's minimum."""
    group = Group(new_subject(), grid_rate(Rate(1, per=3600), INTERVAL_US))
    slow = group.call("a")
    assert slow.safe == FIRST + 2 + lapse_intervals(group.ratio)
    group.go_to(group.number + 3)
    group.ratio = RATIOS[0]
    fast = group.call("a", is_new_rate=True)
    group.go_to(group.number + 1)
    group.ratio = grid_rate(Rate(1, per=10), INTERVAL_US)
    again = group.call("a", is_new_rate=True)

    assert fast.safe == FIRST + 3 + 2 + QUARANTINE == again.safe
    assert (slow.era, "") == (again.era, again.flaw)


@pytest.mark.parametrize("back_us", [STEP_US + 1, INTERVAL_US, 3_600_000_000], ids=str)
def test_authority_whose_clock_goes_back_begins_anew(new_subject: NewSubject, back_us: int) -> None:
    """A clock that goes back begins a new era: by it, intervals whose permits were granted are yet to come."""
    group = Group(new_subject())
    group.warm_up(later=MANY)
    group.go_to(group.number + 10)
    before = group.call("a", MANY)
    group.now_us -= back_us
    number = group.number
    after = group.call("a", MANY, now=MANY)

    assert before.era != after.era
    assert (number + 2 + QUARANTINE, 0, 0) == (after.safe, size(after.upcoming), size(after.running))

    group.go_to(number + QUARANTINE + 1)
    again = group.call("a", MANY, now=MANY)
    assert after.era == again.era
    assert (25, 0) == (size(again.upcoming), size(again.running))


def test_permits_lie_right_when_the_clock_goes_back_behind_the_begin_of_the_grid(new_subject: NewSubject) -> None:
    """Intervals before that of the first call have as many permits as all others."""
    group = Group(new_subject(), grid_rate(Rate(Fraction(7, 3)), INTERVAL_US))
    group.call("a")
    group.go_to(FIRST - 1000)
    for number in range(FIRST - 1000, FIRST - 1000 + QUARANTINE + 1 + 24):
        group.go_to(number)
        group.call("a", MANY)

    assert 14 == len(group.owners)


def test_rate_changes_when_the_clock_goes_back_behind_the_begin_of_the_grid(new_subject: NewSubject) -> None:
    """A change of the rate keeps the phase also in intervals before that of the first call."""
    group = Group(new_subject(), grid_rate(Rate(Fraction(7, 3)), INTERVAL_US))
    old = group.call("a").grid
    group.go_to(FIRST - 1001)
    group.call("a")
    group.ratio = grid_rate(Rate(Fraction(5, 3)), INTERVAL_US)
    new = group.call("a", is_new_rate=True).grid

    assert (Fraction(5, 12), FIRST - 1001) == (Fraction(new.step, new.unit), new.since)
    assert Fraction(old.base + old.step * (new.since - old.since), old.unit) % 1 == Fraction(new.base, new.unit)


def test_clock_that_goes_back_by_a_hair_stands_still(new_subject: NewSubject) -> None:
    """A clock that goes back by a millisecond, as corrections do, keeps the era, and no interval is planned twice."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    group.go_to(group.number, 0.0)
    before = group.call("a", MANY)
    number = group.number
    group.now_us -= STEP_US
    after = group.call("b", MANY)
    back = group.call("a", MANY)

    assert (before.era, before.safe) == (after.era, after.safe)
    assert number + 1 == before.upcoming.number == after.upcoming.number
    assert before.upcoming == back.upcoming
    assert before.now_us - STEP_US == after.now_us


def test_claim_of_a_jump_voids_the_permits_of_before(new_subject: NewSubject) -> None:
    """A claimed jump of the clock grants nothing for three intervals, in which peers may still use their permits."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    before = group.call("a", MANY)
    number = group.number
    claim = group.call("b", MANY, has_jumped=True, now=MANY)
    safe = number + 1 + JUMP_INTERVALS
    log = []
    for later in range(number, number + JUMP_INTERVALS + 1):
        group.go_to(later, 0.5)
        log.append((group.number + 1 - safe, size(group.call("a", MANY, now=MANY).upcoming)))

    assert before.era != claim.era
    assert (safe, 0, 0) == (claim.safe, size(claim.upcoming), size(claim.running))
    assert [(-3, 0), (-2, 0), (-1, 0)] == log[:-1]
    assert log[-1][1] > 0


def test_claim_of_a_jump_does_not_shorten_the_quarantine(new_subject: NewSubject) -> None:
    """Claiming a jump during the quarantine does not end it sooner."""
    group = Group(new_subject())
    safe = group.call("a").safe

    assert safe == group.call("b", has_jumped=True).safe


# State that is lost, set back or damaged.


@pytest.mark.parametrize("key", ["plan0", "plan1"])
def test_plan_that_is_lost_mutes_its_interval_and_no_other(new_subject: NewSubject, key: str) -> None:
    """After a plan is lost peers keep what they fetched, no others of that interval are granted, and the era stays."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    while f"plan{(group.number + 1) % 2}" != key:
        group.call("a", later=MANY)
        group.go_to(group.number + 1)
    before = group.call("a", 10, later=MANY)
    group.subject.lose(key)
    after = [group.call(peer, MANY) for peer in "bca"]
    group.go_to(group.number + 1, 0.0)
    asked = group.call("c", MANY, now=MANY)

    assert 10 == size(before.upcoming)
    assert [0, 0, 0] == [size(reply.upcoming) for reply in after]
    assert ["plan", "", ""] == [reply.flaw for reply in after]
    assert (before.era, before.safe, 0, "") == (asked.era, asked.safe, size(asked.running), asked.flaw)
    assert size(asked.upcoming) > 0


@pytest.mark.parametrize("keys", [["state"], ["plan0"], ["plan1"], ["members"]], ids=" ".join)
def test_key_that_is_set_back_alone_gives_nothing_away_twice(new_subject: NewSubject, keys: list[str]) -> None:
    """A key set back to an older copy grants no permit twice, though peers fetch from different copies."""
    group = Group(new_subject())
    group.warm_up("abcdef", MANY)
    total = 0
    for _ in range(6):
        group.subject.save()
        group.go_to(group.number, 0.0)
        for peer in "abcdef":
            group.call(peer, 4, later=MANY, now=2)
            group.subject.set_back(keys)
            group.now_us += 10_000
        total += group.count_of(group.number)
        group.go_to(group.number + 1)

    assert total > 0


def test_state_that_is_lost_alone_is_a_quarantine(new_subject: NewSubject) -> None:
    """If the state alone is lost a quarantine begins: the plans that are left do not count."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    group.call("a", 10)
    group.subject.lose("state")
    reply = group.call("b", MANY, now=MANY)

    assert (group.number + 2 + QUARANTINE, 0, 0) == (reply.safe, size(reply.upcoming), size(reply.running))


def test_members_that_are_lost_are_members_again_with_their_next_call(new_subject: NewSubject) -> None:
    """Lost members are members again with their next call; no permit is lost, but the next plan is for those alone."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    group.call("a", MANY)
    group.subject.lose("members")
    group.ranks.clear()
    for peer in "ab":
        group.call(peer, MANY)
    group.go_to(group.number + 1)
    counts = [size(group.call(peer, MANY).upcoming) for peer in "ab"]

    assert counts in ([12, 13], [13, 12])


@pytest.mark.parametrize("flaw", FLAWS)
def test_state_that_nobody_can_have_written_is_a_new_era(new_subject: NewSubject, flaw: str) -> None:
    """An impossible state begins a new era: one quarantine, reported once, and no call fails."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    before = group.call("a", MANY)
    group.subject.spoil(flaw)
    number = group.number
    replies = [group.call(peer, MANY, now=MANY) for peer in "ba"]
    counts = []
    for later in range(number + 1, number + QUARANTINE + 4):
        group.go_to(later)
        counts.append(sum(size(group.call(peer, MANY).upcoming) for peer in "ab"))

    assert ["state", ""] == [reply.flaw for reply in replies]
    assert [number + 2 + QUARANTINE] * 2 == [reply.safe for reply in replies]
    assert before.era != replies[0].era == replies[1].era
    assert [0, 0] == [size(reply.upcoming) + size(reply.running) for reply in replies]
    assert [0] * QUARANTINE + [25, 25, 25] == counts
    assert before.grid.per_second == group.call("a").grid.per_second


def test_clock_of_a_later_time_in_the_state_is_a_step_back(new_subject: NewSubject) -> None:
    """A state with a later time than the clock's is treated as a clock that has gone back, which begins a new era."""
    group = Group(new_subject())
    group.warm_up()
    group.now_us += 3_600_000_000
    group.call("a")
    group.now_us -= 3_600_000_000
    reply = group.call("a")

    assert (group.number + 2 + QUARANTINE, "") == (reply.safe, reply.flaw)


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("members", "b", "garbage"),
        ("members", "b", "nan,1,1,0"),
        ("members", "x", "1.0,5,-5,y"),
        ("members", "x", "1.0,5,5,9007199254740991"),
        ("members", "ranks", ""),
        ("members", "ranks", "garbage"),
        ("members", "ranks", "01"),
        ("plan1", "free", "0-1000000,7-3,"),
        ("plan1", "count", "many"),
        ("plan1", "stride", ""),
        ("plan1", "stride", "5"),
        ("plan1", "grid", "1,2"),
        ("plan1", "number", "nan"),
        ("plan1", "call", "0"),
        ("plan1", "peers", "?"),
        ("plan0", "g:a", "5-"),
        ("plan0", "a:a", "x;5-"),
    ],
)
def test_garbage_in_other_keys_is_over_with_its_interval(
    new_on_redis: Callable[[], LuaOnRedis], key: str, field: str, value: str
) -> None:
    """With garbage in other keys no call fails, nothing is granted twice, and after two intervals all is granted."""
    group = Group(new_on_redis())
    group.warm_up(["a", "b"], MANY)
    for _ in range(2):
        for peer in "ab":
            group.call(peer, 5, later=MANY)
        group.subject.write(key, field, value)
        group.ranks.clear()
        for peer in "abc":
            group.call(peer, MANY, now=MANY)
        group.go_to(group.number + 1)
    for _ in range(5):
        counts = [size(group.call(peer, MANY).upcoming) for peer in "ab"]
        group.go_to(group.number + 1)

    assert 25 == sum(counts)


# Releases.


def test_later_release_takes_the_state_over_and_an_earlier_one_is_refused(
    new_on_redis: Callable[[], LuaOnRedis],
) -> None:
    """A later protocol version takes over the state, and calls of the earlier one are refused with the reason."""
    subject = new_on_redis()
    group = Group(subject)
    group.warm_up(["a"], MANY)
    before = group.call("a", 5, later=MANY)
    subject.speak(VERSION + 1)
    after = group.call("b", MANY, now=MANY)

    assert before.era != after.era
    assert ("version", group.number + 2 + QUARANTINE) == (after.flaw, after.safe)

    subject.speak(VERSION)
    group.go_to(group.number + QUARANTINE + 3)
    with pytest.raises(redis.ResponseError, match=rf"version {VERSION + 1} of the protocol, this process {VERSION}"):
        group.call("a", MANY, now=MANY)

    subject.speak(VERSION + 1)
    assert 25 == size(group.call("b", MANY).upcoming)


def test_earlier_release_takes_over_what_was_abandoned(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """An earlier release may take over a minute after the last call of the later one, as after a rollback."""
    subject = new_on_redis()
    group = Group(subject)
    subject.speak(VERSION + 1)
    group.warm_up(["a"], MANY)
    subject.speak(VERSION)
    group.now_us += 60_000_000
    reply = group.call("b")

    assert ("version", group.number + 2 + QUARANTINE) == (reply.flaw, reply.safe)


def test_state_of_the_first_version_is_taken_over(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """A state of the first version, which named none, is taken over, and its scripts fail on the new grid."""
    subject = new_on_redis()
    group = Group(subject)
    old = {
        "run": f"{1:040x}",
        "epoch": "7",
        "safe": "0",
        "last": str(group.now_us - 5),
        "grid": "250000,25,1,0,1",
        "next": "",
    }
    for field, value in old.items():
        subject.write("state", field, value)
    reply = group.call("a", MANY, now=MANY)

    assert ("version", group.number + 2 + QUARANTINE) == (reply.flaw, reply.safe)
    assert f"{1:040x}:8" == reply.era
    assert "g" == subject.read("state", "grid")[0]


# I8: repeated calls.


@given(
    ratio=st.sampled_from(RATIOS),
    rounds=st.lists(st.lists(st.tuples(WISHES, WISHES, WISHES, WISHES), min_size=3, max_size=3), max_size=6),
    repeats=st.lists(st.integers(0, 5), min_size=18, max_size=18),
)
@quick(max_examples=60)
def test_repeated_call_has_the_same_answer_and_changes_nothing(
    new_subject: NewSubject,
    ratio: tuple[int, int],
    rounds: list[list[tuple[int, int, int, int]]],
    repeats: list[int],
) -> None:
    """Repeated calls leave all other replies as if each call had been made once."""
    once, often = (Group(new_subject(), ratio, WEIGHTS) for _ in range(2))
    places = iter(repeats)
    for group in (once, often):
        group.warm_up(PEERS[:3], 20)
    for wishes in rounds:
        sent: list[tuple[Request, Reply]] = []
        for index, (urgent, more, yet_more, now) in enumerate(wishes):
            for group in (once, often):
                group.go_to(group.number, 0.1 + 0.2 * index)
            soon = urgent + more
            request = once.request(PEERS[index], urgent=urgent, soon=soon, later=soon + yet_more, now=now)
            reply = once.send(request)
            assert reply == often.send(request), request
            sent.append((request, reply))
            for earlier, answer in sent[next(places) % len(sent) :]:
                again = often.send(earlier)
                assert (answer.upcoming, answer.running) == (again.upcoming, again.running)
        for group in (once, often):
            group.go_to(group.number + 1)
    for group in (once, often):
        group.subject.cleanup()


def test_repeated_call_gets_no_more_permits_at_once(new_subject: NewSubject) -> None:
    """A repeated wish, known by its number, gets no more permits; a new one gets more, and is told all so far."""
    group = Group(new_subject())
    group.warm_up()
    group.go_to(group.number, 0.0)
    request = group.request("a", now=3, is_fetching=False)
    first, again = group.send(request), group.send(request)
    group.now_us += 1000
    later = group.send(request)
    more = group.ask("a", 2)

    assert 3 == size(first.running)
    assert first.running == again.running == later.running
    assert ranks_of(first.running) == ranks_of(more.running)[:3]
    assert 5 == size(more.running)


# I9: permits that are given back.


def test_permits_given_back_are_taken_by_others(new_subject: NewSubject) -> None:
    """A peer that needs less than its plan gets that much, and the rest goes to the next caller."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    a = group.call("a", 4, later=MANY)
    b = group.call("b", MANY)
    again = group.call("a", MANY)

    assert (4, 21) == (size(a.upcoming), size(b.upcoming))
    assert a.upcoming == again.upcoming
    assert not set(ranks_of(a.upcoming)) & set(ranks_of(b.upcoming))


def test_permits_are_kept_that_are_due_in_the_interval_only(new_subject: NewSubject) -> None:
    """A peer keeps of its plan what it can use by the interval's end, and of what is left over only what is urgent."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], 10)
    a = group.call("a", urgent=0, soon=10, later=10)
    b = group.call("b", urgent=12, soon=20, later=20)
    c = group.call("c", urgent=1, soon=20, later=20)

    assert (10, 12, 1) == (size(a.upcoming), size(b.upcoming), size(c.upcoming))


def test_peer_that_leaves_has_no_share_in_the_next_plan(new_subject: NewSubject) -> None:
    """A peer that has left has no share in the next plan."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    group.call("a", MANY)
    group.leave("b")
    group.go_to(group.number + 1)
    reply = group.call("a", MANY)

    assert (25, 1) == (size(reply.upcoming), reply.peers)


def test_peer_that_leaves_gives_back_what_it_was_granted_of_the_next_interval(new_subject: NewSubject) -> None:
    """A peer that leaves gives back its permits of the next interval; those of the running one are lost."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    a = group.call("a", 10, later=MANY)
    group.leave("a")
    again = group.call("a", MANY)
    b = group.call("b", MANY)

    assert (10, 0, 25) == (size(a.upcoming), size(again.upcoming), size(b.upcoming))

    group.go_to(group.number + 1, 0.0)
    group.leave("b")
    assert 0 == size(group.ask("c", MANY).running)


def test_peer_that_leaves_gives_back_what_was_planned_for_it(new_subject: NewSubject) -> None:
    """What was planned for a peer that leaves is granted to the next caller without delay."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    b = group.call("b", MANY)
    group.leave("a")
    c = group.call("c", MANY)

    assert 25 == size(b.upcoming) + size(c.upcoming)


# Permits at once.


def test_permits_at_once_are_the_next_that_come_up(new_subject: NewSubject) -> None:
    """Permits granted at once in the middle of an interval are the next ones, and never past ones."""
    group = Group(new_subject())
    group.warm_up()
    number = group.number
    group.go_to(number, 0.5)
    grant = group.ask("a", 3).running

    assert [number * INTERVAL_US + place * 10_000 for place in (13, 14, 15)] == grant.times_us()

    group.go_to(number, 0.9)
    grants = group.ask("b", MANY).running, group.ask("a", MANY).running
    assert [[number * INTERVAL_US + place * 10_000 for place in (23, 24)], grant.times_us()] == [
        each.times_us() for each in grants
    ]


@pytest.mark.parametrize("ratio", COARSE_RATIOS, ids=lambda ratio: f"{ratio[0]} in {ratio[1]}")
@pytest.mark.parametrize("part", [0.0, 0.123456, 0.7])
def test_permits_at_once_are_those_to_come_the_earliest_first(
    new_subject: NewSubject, ratio: tuple[int, int], part: float
) -> None:
    """Permits at once are granted in order: one peer gets the next, and another that wants all gets the rest."""
    group = Group(new_subject(), ratio)
    group.warm_up()
    group.go_to(group.number + 5, part)
    grid = group.call("b").grid
    while part and _is_near_permit(grid, group.now_us):
        group.now_us += 1
    times = [grid.time_us(group.number, place) for place in range(grid.count(group.number))]
    to_come = [time_us for time_us in times if time_us >= group.now_us]

    assert to_come[:1] == group.ask("a", 1).running.times_us()
    assert to_come[1:] == group.ask("b", MANY).running.times_us()


def test_permits_at_once_of_a_fast_rate_are_granted_in_parts(new_subject: NewSubject) -> None:
    """Each call at once looks at a bounded number of permits, and later calls at the rest."""
    group = Group(new_subject(), grid_rate(Rate(10_000), INTERVAL_US))
    group.warm_up()
    group.go_to(group.number + 1, 0.0)
    totals = [0]
    for peer in itertools.islice(itertools.cycle("ab"), 12):
        group.ask(peer, MANY)
        totals.append(len(group.owners))

    assert 2500 == totals[-1]
    assert LOOK_COUNT == max(later - earlier for earlier, later in itertools.pairwise(totals))


def test_permits_planned_for_a_peer_that_did_not_call_are_given_away(new_subject: NewSubject) -> None:
    """What was planned for a peer that did not call is free once the interval runs, and reserved before."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    a = group.call("a", MANY)
    group.go_to(group.number + 1, 0.0)
    grant = group.ask("c", MANY).running

    assert size(a.upcoming) in (12, 13)
    assert 25 - size(a.upcoming) == size(grant)
    assert a.upcoming.number == grant.number


def test_permits_at_once_of_an_interval_that_nobody_planned_are_all_free(new_subject: NewSubject) -> None:
    """In an interval without a plan all permits are free at once, and count against the wish for the next interval."""
    group = Group(new_subject())
    group.warm_up()
    group.go_to(group.number + 7, 0.0)
    reply = group.call("a", 25, now=5)

    assert (5, 20) == (size(reply.running), size(reply.upcoming))
    assert (group.number, group.number + 1) == (reply.running.number, reply.upcoming.number)


# The rate.


@pytest.mark.parametrize(
    ("rate", "intervals"),
    [
        pytest.param(Rate(Fraction(7, 3)), 1200, id="7/3 a second for 300 s"),
        pytest.param(Rate(1, per=10), 1200, id="1 in 10 s for 300 s"),
        pytest.param(Rate(100_000), 40, id="100,000 a second for 10 s"),
        pytest.param(Rate(0.3), 1200, id="0.3 a second for 300 s"),
    ],
)
def test_sum_over_a_long_stretch_is_the_rate_exactly(new_subject: NewSubject, rate: Rate, intervals: int) -> None:
    """Over a long time the grants sum to the rate exactly, also if an interval's part of it is fractional."""
    group = Group(new_subject(), grid_rate(rate, INTERVAL_US))
    group.warm_up(later=MANY)
    total = 0
    for number in range(group.number, group.number + intervals):
        group.go_to(number)
        grant = group.subject.call(group.now_us, group.request("a", urgent=MANY, soon=MANY, later=MANY)).upcoming
        assert grant.count == size(grant)
        total += grant.count

    assert rate.per_second is not None
    assert rate.per_second * intervals * INTERVAL_US / 1_000_000 == total


def test_new_rate_holds_for_all_from_the_first_interval_without_a_plan_on(new_subject: NewSubject) -> None:
    """A new rate holds for all callers from the first interval without a plan: planned permits follow the old one."""
    group = Group(new_subject())
    group.warm_up(["a", "b"], MANY)
    old = group.ratio
    new = grid_rate(Rate(40), INTERVAL_US)
    number = group.number
    log = []
    for later in range(number, number + 5):
        for index, peer in enumerate("abc"):
            group.go_to(later, 0.2 + 0.2 * index)
            group.ratio = new if (later, peer) == (number, "b") else old  # what the others believe does not count
            reply = group.call(peer, MANY, is_new_rate=(later, peer) == (number, "b"))
            grid = reply.upcoming.grid
            assert grid is not None
            log.append((later - number + 1, peer, Fraction(grid.step, grid.unit), reply.upcoming.count))
            assert grid == reply.grid or (later, peer) == (number, "b")

    assert [
        (interval, peer, *((25, 25) if interval < 2 else (10, 10))) for interval in range(1, 6) for peer in "abc"
    ] == log


def test_new_rate_holds_at_once_where_nothing_is_granted(new_subject: NewSubject) -> None:
    """A new rate applies at once if no permits are planned, as for the first process after a faster rate has ended."""
    group = Group(new_subject())
    group.warm_up(["old"], MANY)
    group.call("old", MANY)
    group.go_to(group.number + 2, 0.0)
    group.ratio = grid_rate(Rate(4), INTERVAL_US)
    reply = group.call("new", 0, is_new_rate=True, now=MANY)

    assert (1, 1) == (reply.running.count, Fraction(reply.grid.step, reply.grid.unit))


def test_new_rate_holds_from_the_next_interval_on_where_only_the_running_one_is_planned(
    new_subject: NewSubject,
) -> None:
    """A new rate set by the first caller of an interval applies to the next interval, which has no plan."""
    group = Group(new_subject())
    group.warm_up(["old"], MANY)
    group.call("old", MANY)
    group.go_to(group.number + 1)
    group.ratio = grid_rate(Rate(4), INTERVAL_US)
    reply = group.call("new", MANY, is_new_rate=True, now=MANY)

    assert (25, 1) == (reply.running.count, reply.upcoming.count)


def test_new_rate_does_not_forget_a_plan_that_was_lost(new_subject: NewSubject) -> None:
    """A new rate does not apply to an interval whose permits were granted by the old one, even if its plan is lost."""
    group = Group(new_subject())
    group.warm_up(["old"], MANY)
    group.call("old", MANY)
    for key in ("plan0", "plan1"):
        group.subject.lose(key)
    group.ratio = grid_rate(Rate(4), INTERVAL_US)
    reply = group.call("new", MANY, is_new_rate=True, now=MANY)
    group.go_to(group.number + 1)

    assert (0, 0) == (reply.running.count, reply.upcoming.count)
    assert 1 == group.call("new", MANY).upcoming.count


def test_rate_that_is_in_force_already_changes_nothing(new_subject: NewSubject) -> None:
    """A process that sets the rate in force does not change the grid."""
    group = Group(new_subject())
    grid = group.call("a", is_new_rate=True).grid
    for _ in range(5):
        group.go_to(group.number + 1)
        reply = group.call("b", is_new_rate=True)

    assert grid == reply.grid


def test_rate_of_zero_grants_nothing_until_another_is_set(new_subject: NewSubject) -> None:
    """At a rate of 0 nothing is granted from the next interval on, and the peers stay members."""
    group = Group(new_subject())
    group.warm_up(later=MANY)
    counts = []
    for rate in (0, None, None, None, None, 100, None, None, None):
        group.ratio = group.ratio if rate is None else grid_rate(Rate(rate), INTERVAL_US)
        reply = group.call("a", MANY, is_new_rate=rate is not None, now=MANY)
        counts.append(size(reply.upcoming))
        group.go_to(group.number + 1, 0.0)

    assert [0, 0, 0, 0, 0, 25, 25, 25, 25] == counts


@given(
    ratios=st.lists(st.tuples(st.sampled_from(RATIOS), st.integers(0, 5)), min_size=1, max_size=5),
    start=st.sampled_from(RATIOS),
)
@example(  # the second is in force for one interval, in which it has no permit
    ratios=[((4194000, 7322724), 1), ((4194302, 7190232), 0), ((4194000, 7322724), 0)], start=(104857575, 4194303)
)
@quick(max_examples=100)
def test_phase_is_kept_over_changes_of_the_rate(
    new_subject: NewSubject, ratios: list[tuple[tuple[int, int], int]], start: tuple[int, int]
) -> None:
    """Across every change of the rate permits rise, and none are closer than at the faster of the two rates.

    So a change of the rate grants no permit too many.
    """
    group = Group(new_subject(), start)
    group.warm_up("ab")
    grids: dict[int, FleetGrid] = {}
    for ratio, intervals in [*ratios, (ratios[-1][0], 6)]:
        for index in range(intervals + 1):
            grids[group.number + 1] = _planned_grid(group.call("a"))
            group.now_us += 1000
            if not index:
                group.ratio = ratio
                group.call("b", is_new_rate=True)
            group.go_to(group.number + 1)
    _check_gaps(grids)
    group.subject.cleanup()


def _planned_grid(reply: Reply) -> FleetGrid:
    """Return the grid of the permits that were granted."""
    assert reply.upcoming.grid is not None
    return reply.upcoming.grid


def _check_gaps(grids: dict[int, FleetGrid]) -> None:
    """Check the gap between the last permit of each grid and the first of the next."""
    last: tuple[int, int, FleetGrid] | None = None
    since: list[FleetGrid] = []  # grids in force since the last permit
    for number, grid in grids.items():
        since.append(grid)
        count = grid.count(number)
        assert count >= 0
        if not count:
            continue
        first_us, last_us = grid.time_us(number, 0), grid.time_us(number, count - 1)
        assert number * INTERVAL_US <= first_us <= last_us <= (number + 1) * INTERVAL_US
        if last is not None:
            gaps_us = [Fraction(INTERVAL_US * each.unit, each.step) for each in since]
            rounding_us = 2 + gaps_us[-1] / 10**6
            assert first_us - last[1] > min(gaps_us) - rounding_us, (last, (number, first_us, grid))
        last, since = (number, last_us, grid), [grid]


def test_rate_that_is_replaced_before_it_holds_keeps_the_phase(new_subject: NewSubject) -> None:
    """A second new rate that comes before the first is in force keeps the phase, and the first stays in between."""
    group = Group(new_subject(), grid_rate(Rate(4), INTERVAL_US))
    group.warm_up("ab")
    grids = {}
    for index in range(7):
        grids[group.number + 1] = _planned_grid(group.call("a"))
        if index in (0, 1):
            group.ratio = grid_rate(Rate(6 + 2 * index), INTERVAL_US)
            group.call("b", is_new_rate=True)
        group.go_to(group.number + 1)

    assert [1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0] == [grid.step / grid.unit for grid in grids.values()]
    _check_gaps(grids)


def test_rate_that_begins_between_two_permits_has_none_at_its_begin(new_subject: NewSubject) -> None:
    """A slower rate that begins shortly after a permit has its next one a gap later, and none at its begin."""
    group = Group(new_subject(), grid_rate(Rate(Fraction(40, 3)), INTERVAL_US))
    group.warm_up()
    while (group.number + 2 - FIRST) % 3 != 1:  # a tenth of an interval after a permit
        group.go_to(group.number + 1)
    times_us = [0, *group.call("a", MANY).upcoming.times_us()]
    group.ratio = grid_rate(Rate(4), INTERVAL_US)
    group.call("a", is_new_rate=True)
    for _ in range(6):
        group.go_to(group.number + 1)
        times_us += group.call("a", MANY).upcoming.times_us()
    gaps_us = [later - earlier for earlier, later in itertools.pairwise(times_us[1:])]

    assert 75_000 == gaps_us[0]
    assert 75_000 - 2 <= min(gaps_us)


def test_new_rate_has_the_same_phase_in_both(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """Script and memory round the phase of a new rate alike: here 875 of 2,037 parts are 125 of 291."""
    old, new = (grid_rate(Rate(permits), INTERVAL_US, STRETCHES[1]) for permits in (2, 7))
    group = Group(Both(InMemory(), new_on_redis()), old)
    group.call("a")
    group.go_to(FIRST + 1272)
    group.call("a")
    group.ratio = new
    group.call("a", is_new_rate=True)
    group.go_to(FIRST + 1274)

    assert pytest.approx(875 / 2037, abs=1 / 291) == _phase(group.call("a").grid)


def _phase(grid: FleetGrid) -> float:
    return grid.base / grid.unit


def test_new_rate_holds_when_the_clock_goes_back(new_subject: NewSubject) -> None:
    """A rate that was to come in force does not wait for a clock that has gone back."""
    group = Group(new_subject())
    group.warm_up()
    group.ratio = grid_rate(Rate(40), INTERVAL_US)
    group.call("a", is_new_rate=True)
    group.now_us -= 3_600_000_000
    group.call("a")
    group.go_to(group.number + 1 + QUARANTINE)

    assert 10 == group.call("a", MANY).upcoming.count


# I12: keys.


def test_keys_of_a_group_lie_in_one_slot_of_a_cluster() -> None:
    """All keys of a group are in one slot of a cluster, so that one script may use them."""
    names = [key for rate in ("mail", "sms", "a:b", "", "ä") for key in keys_of("rle", "group 1", rate)]

    assert 25 == len(set(names))
    assert 1 == len({key_slot(name.encode()) for name in names})
    assert key_slot(b"rle:group 1") == key_slot(names[0].encode())


def test_every_key_expires(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """Every key expires after its peers have crashed, so that nothing stays in Redis."""
    group = Group(new_on_redis())
    group.warm_up(["a", "b"], 20)
    for index in range(4):
        group.call("a", 20, now=2)
        group.call("b", 20, now=2, is_new_rate=index == 2)
        group.go_to(group.number + 1)
    keys = group.subject.keys()

    assert 4 == len(keys)
    assert {} == {name: left for name, left in keys.items() if not 0 < left <= 86_400_000}


def test_every_key_expires_of_peers_that_crash_in_the_quarantine(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """Keys made by the first call in the quarantine expire, also if no other call follows."""
    group = Group(new_on_redis())
    group.call("a", 20)

    assert {} == {name: left for name, left in group.subject.keys().items() if left < 0}


def test_every_key_expires_of_a_peer_that_joins_and_fetches_nothing(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """Keys made after the last peer has left, by a peer that fetches nothing, expire too."""
    group = Group(new_on_redis())
    group.warm_up(later=20)
    group.leave("a")
    group.call("b", is_fetching=False)

    assert {} == {name: left for name, left in group.subject.keys().items() if left < 0}


def test_nothing_is_left_a_minute_after_the_last_peer_has_left(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """After the last peer has left, the members' key is deleted at once, and the others expire within a minute."""
    group = Group(new_on_redis())
    group.warm_up(["a", "b"], 20)
    group.call("a", 20)
    group.leave("a")
    before = max(group.subject.keys().values())
    group.leave("b")
    after = group.subject.keys()

    assert before > 60_000
    assert "members" not in {name.rsplit(":", 1)[1] for name in after}
    assert {} == {name: left for name, left in after.items() if not 0 < left <= 60_000}


def test_state_expires_after_a_peer_that_was_never_there_has_left(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """A state made by the leave of an unknown peer, as after a wipe, expires."""
    group = Group(new_on_redis())
    group.leave("a")

    assert {} == {name: left for name, left in group.subject.keys().items() if not 0 < left <= 60_000}


def test_state_stays_once_a_peer_has_come_back(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """A state that was to expire stays once a peer joins again within the minute."""
    group = Group(new_on_redis())
    group.warm_up(later=20)
    group.leave("a")
    group.go_to(group.number + 1)
    group.call("b", 20)

    assert {} == {name: left for name, left in group.subject.keys().items() if "plan" not in name and left < 60_000}


def test_plans_expire_after_the_intervals_that_they_are_for(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """A plan, which is needed for two intervals, expires after ten at most."""
    group = Group(new_on_redis())
    group.warm_up(later=20)
    group.call("a", 20)
    lives = [left for name, left in group.subject.keys().items() if "plan" in name]

    assert lives
    assert all(2 * INTERVAL_US < left * 1000 <= 10 * INTERVAL_US for left in lives)


# Ranks.


def test_ranks_are_the_smallest_that_nobody_has(new_subject: NewSubject) -> None:
    """A new peer gets the smallest free rank, such as that of one that has left; all others keep theirs."""
    group = Group(new_subject())
    log = [group.call(peer).rank for peer in "abc"]
    log += [group.leave("b").rank, group.call("d").rank, group.call("e").rank, group.call("a").rank]

    assert [0, 1, 2, 1, 1, 3, 0] == log


@pytest.mark.parametrize("seed", range(3))
def test_ranks_of_many_that_join_and_leave_are_the_smallest(new_subject: NewSubject, seed: int) -> None:
    """Many peers that join and leave always get the smallest free rank, also after the members were lost."""
    generator = random.Random(seed)
    group = Group(new_subject())
    ranks = {f"peer {index}": group.call(f"peer {index}").rank for index in range(90)}
    assert list(ranks.values()) == list(range(90))
    for step in range(150):
        peer = f"peer {generator.randrange(120)}"
        if step == 75:
            group.subject.lose("members")
            group.ranks.clear()
            ranks.clear()
        if generator.random() < 0.6:
            assert ranks.pop(peer, 0) == group.leave(peer).rank
        else:
            free = next(rank for rank in itertools.count() if rank not in ranks.values())
            reply = group.call(peer)
            assert (ranks.setdefault(peer, free), len(ranks)) == (reply.rank, reply.peers)
    group.subject.cleanup()


def test_who_joins_a_large_group_does_not_look_at_all_members(redis_server: RedisServer) -> None:
    """A call that joins does not read all members: else a thousand joins a second would overload the server."""
    with redis_server.client() as client:
        group = Group(LuaOnRedis(client))
        group.warm_up(["first"], MANY)
        group.go_to(group.number, 0.0)
        group.call("first", MANY)  # makes the plan, which reads all members
        client.config_resetstat()
        for index in range(200):
            group.call(f"peer {index}")
        for index in range(0, 200, 10):
            group.leave(f"peer {index}")
            group.call(f"peer {index + 1000}")
        commands = client.info("commandstats")
        group.subject.cleanup()

    assert 240 == commands["cmdstat_evalsha"]["calls"]
    assert "cmdstat_hgetall" not in commands


def test_fields_of_the_state_are_written_that_have_changed(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """Only changed fields of the state are written, and a lost field is written again by the next call."""
    subject = new_on_redis()
    group = Group(subject)
    group.warm_up(["a"], MANY)
    fields = ["version", "run", "epoch", "safe", "last", "calls", "grid", "next", "planned0", "planned1"]
    for field_name in fields:
        before = {name: subject.read("state", name) for name in fields}
        subject.remove("state", field_name)
        group.now_us += 1000
        group.call("a", later=MANY)
        after = {name: subject.read("state", name) for name in fields}
        assert before["run"] == after["run"]
        assert before["last"] != after["last"]


def test_peers_are_forgotten_after_a_while(new_subject: NewSubject) -> None:
    """A crashed peer is forgotten and its rank is free once a plan is made an hour later."""
    group = Group(new_subject())
    group.warm_up(["a", "b"])
    group.now_us += 3_600_000_000 + INTERVAL_US
    group.ranks.clear()
    group.call("b")
    group.go_to(group.number + 1)

    assert (0, 1) == (group.call("c").rank, group.call("b").rank)


def test_requests_and_replies_survive_the_way_to_redis(new_on_redis: Callable[[], LuaOnRedis]) -> None:
    """Ids of peers with separators and tiny or huge weights arrive at the script unchanged."""
    both = Both(InMemory(), new_on_redis())
    group = Group(both, weights={"host:1:ab,c;d-e": 1e-6, "{x}": 1e6, "ä\n": 1.5})
    group.warm_up(list(group.weights), MANY)
    for _ in range(3):
        for peer in group.weights:
            group.call(peer, MANY, now=1)
        group.go_to(group.number + 1)

    assert 3 == group.call("{x}", 3).peers
