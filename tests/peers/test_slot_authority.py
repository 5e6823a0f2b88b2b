"""The laws of the authority that hands over a group's slots, checked for the one in memory and the script on Redis.

The clocks are arguments, so nothing here waits.
"""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import redis

from ratelimited_executor._core.fleet.slots import SlotCall, SlotDeclaration, SlotEntry, SlotReply
from ratelimited_executor._core.slots.slots import LOST, WAITING

from .binaries import KINDS as SERVERS
from .servers import RedisServer
from .slot_subjects import KEYS, SlotsInMemory, SlotsOnRedis, SlotSubject

pytestmark = pytest.mark.real_time("a real server, on one side")

SECOND = 1_000_000
START = 1_704_067_200 * SECOND
LEASE = 9 * SECOND
SPARE = LEASE // 20  # how much longer than its holder's a lease lasts at the server
DIFFERENCE = SECOND
QUARANTINE = LEASE + SPARE + DIFFERENCE


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of the shared server."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def on_redis(client: redis.Redis) -> Iterator[SlotsOnRedis]:
    """The script on Redis."""
    subject = SlotsOnRedis(client)
    yield subject
    subject.cleanup()


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, server_of: Callable[[str], RedisServer]) -> Iterator[SlotSubject]:
    """Each subject in turn."""
    if request.param == "memory":
        yield SlotsInMemory()
        return
    with redis.Redis.from_url(server_of(request.param).url) as client:
        on_server = SlotsOnRedis(client)
        yield on_server
        on_server.cleanup()


class Group:
    """Peers of an authority, with one clock for all of them.

    Attributes:
        now: the time by the clock of the peers.
        ahead: by how much the server's clock is ahead of that.
    """

    def __init__(self, subject: SlotSubject, *, limit: int | None = 1, pools: tuple[str, ...] = ("gpu",)) -> None:
        self.subject = subject
        self.now = START
        self.ahead = 0
        self.reply = self.subject.call(self.now, SlotCall(peer="p", lease_us=LEASE, difference_us=DIFFERENCE))
        self._told_at = self.now
        if limit is not None:
            self.call(limits=tuple((pool, limit) for pool in pools))
            self.pass_time(QUARANTINE)

    def call(self, peer: str = "p", **fields) -> SlotReply:
        """Make one call of a peer that has seen the time since the latest answer pass."""
        seen = {"era": self.reply.era, "told_us": self.reply.now_us, "seen_us": self.now - self._told_at, **fields}
        call = SlotCall(peer=peer, lease_us=LEASE, difference_us=DIFFERENCE, **seen)
        self.reply = self.subject.call(self.now + self.ahead, call)
        self._told_at = self.now
        return self.reply

    def pass_time(self, passed: int) -> None:
        """Let time pass, with a call in each quarter of a lease."""
        while passed > 0:
            self.now += min(passed, LEASE // 4)
            passed -= LEASE // 4
            self.call("somebody")

    def enter(
        self, *tokens: str, pools=("gpu",), priority: float = 0.0, fence: int = 0, until: int = 0, limit: int = -1
    ) -> list[int]:
        """Ask for slots or renew leases; return the fences."""
        entries = tuple(SlotEntry(token, pools, priority, fence, until, "note", limit) for token in tokens)
        peer = tokens[0].rpartition(":")[0] if tokens else "p"
        return list(self.call(peer, entries=entries).fences)

    def held(self, pool: str = "gpu") -> tuple[int, int]:
        """Return how many hold a pool's slots, and how many wait."""
        return self.call(watched=(pool,)).pools[0][1:3]


def test_slots_are_handed_over_in_the_step_that_frees_them(subject):
    """A freed slot is held by the next waiter in the same step, and its peer is notified by name."""
    group = Group(subject)
    (first,) = group.enter("p:1")
    assert [WAITING] == group.enter("q:1")
    assert [WAITING] == group.enter("r:1", priority=1.0)
    subject.woken()

    group.call("p", releases=("p:1",))

    assert ["r:1"] == subject.woken()
    assert (1, 1) == group.held()
    assert [first + 1] == group.enter("r:1", priority=1.0)  # known by the next call if the message was lost
    assert [WAITING] == group.enter("q:1")


def test_peer_that_releases_hears_of_its_own_tokens_in_the_reply(subject):
    """A peer that releases a slot gets hand-overs to its own tokens in the reply, without a message."""
    group = Group(subject)
    group.enter("p:1", "p:2", "p:3")
    subject.woken()

    reply = group.call("p", releases=("p:1",))

    assert ["p:2"] == list(reply.handed)
    assert [] == subject.woken()


def test_pool_of_which_nobody_has_set_a_limit_goes_by_that_of_who_asks(subject):
    """In a pool without a limit each entry uses its own: it waits while that many are held, and in order of arrival."""
    group, pools = Group(subject), ("of a key",)
    first, second, third = group.enter("p:1", "p:2", "p:3", pools=pools, limit=2)
    assert first < second
    assert third == WAITING
    group.call("p", releases=("p:3",))
    assert [WAITING] == group.enter("q:1", pools=pools, limit=1)  # of a process with a lower limit
    assert [WAITING] == group.enter("p:4", pools=pools, limit=2)

    group.call("p", releases=("p:1",))
    assert (1, 2) == group.held("of a key")
    group.call("p", releases=("p:2",))
    assert group.enter("q:1", pools=pools, limit=1)[0] > second
    assert group.enter("p:4", pools=pools, limit=2)[0] > second


def test_after_a_loss_pools_by_key_are_handed_over_again(subject):
    """After a loss of the state, those who waited in the quarantine get slots of pools by key once it is over."""
    group, pools = Group(subject), ("of a key",)
    (fence,) = group.enter("p:1", pools=pools, limit=1)
    until = group.now + LEASE
    subject.wipe()
    assert [fence] == group.enter("p:1", pools=pools, limit=1, fence=fence, until=until)
    assert [WAITING] * 2 == group.enter("q:1", "q:2", pools=pools, limit=2)

    for _ in range(8):
        group.now += LEASE // 4
        waiting = group.enter("q:1", "q:2", pools=pools, limit=2)
        group.enter("p:1", pools=pools, limit=1, fence=fence, until=group.now + LEASE)
    assert waiting[0] > fence
    assert waiting[1] == WAITING


def test_call_that_is_repeated_does_nothing_twice(subject):
    """A call repeated after a lost answer has no further effect."""
    group = Group(subject, limit=2)
    first = group.enter("p:1", "p:2", "p:3")
    assert first == group.enter("p:1", "p:2", "p:3")
    for _ in range(2):
        group.call("p", releases=("p:1",))
    assert (2, 0) == group.held()


@pytest.mark.parametrize("pools", [("gpu",), ("gpu", "licence"), ("licence", "gpu")])
def test_dead_holder_frees_its_slots_after_a_lease(subject, pools):
    """The slots of a dead holder are free after its lease, whoever calls."""
    group = Group(subject, pools=("gpu", "licence"))
    group.enter("dead:1", pools=pools)
    group.enter("q:1", pools=pools)
    for _ in range(4):
        group.now += (LEASE + SPARE) // 4 - 1
        assert [WAITING] == group.enter("q:1", pools=pools)
    group.now += 4

    assert group.enter("q:1", pools=pools)[0] > 0
    assert [LOST] == group.enter("dead:1", pools=pools, fence=1, until=group.now + LEASE)  # too late
    group.call("dead", releases=("dead:1",))  # and its release frees nothing
    assert (1, 0) == group.held()


def test_hand_over_that_nobody_hears_of_lasts_for_half_a_lease(subject):
    """A hand-over that is never confirmed ends after half a lease and the spare time."""
    group = Group(subject)
    group.enter("p:1")
    group.enter("dead:1")
    group.enter("q:1")
    group.call("p", releases=("p:1",))
    for passed in (LEASE // 4, LEASE // 4, SPARE - 1):
        group.now += passed
        assert [WAITING] == group.enter("q:1")
    group.now += 1

    assert group.enter("q:1")[0] > 0


def test_slots_of_several_pools_are_handed_over_in_one_step_or_not_at_all(subject):
    """Slots of several pools are handed over in one step, and a waiter for both is not overtaken for ever."""
    group = Group(subject, pools=("gpu", "licence"))
    group.enter("p:1", pools=("gpu",))
    assert [WAITING] == group.enter("q:1", pools=("gpu", "licence"))
    assert (0, 1) == group.held("licence")  # it holds nothing while it waits
    assert [WAITING] == group.enter("r:1", pools=("licence",))  # and is not overtaken

    group.call("p", releases=("p:1",))
    assert (1, 0) == group.held("gpu")
    assert (1, 1) == group.held("licence")
    group.call("q", releases=("q:1",))
    assert (1, 0) == group.held("licence")


def test_limit_halts_and_goes_on(subject):
    """A limit of 0 halts the pool, a higher one wakes waiters at once, and a lower one takes no slot away."""
    group = Group(subject, limit=3)
    group.enter("p:1", "p:2", "p:3", "p:4")
    group.call("q", limits=(("gpu", 1),))
    assert (3, 1) == group.held()
    group.call("p", releases=("p:1", "p:2"))
    assert (1, 1) == group.held()
    group.call("q", limits=(("gpu", 0),))
    group.call("p", releases=("p:3",))
    assert (0, 1) == group.held()
    subject.woken()
    group.call("q", limits=(("gpu", 5),))
    assert ["p:4"] == subject.woken()


def test_declared_limit_holds_where_it_is_another_than_before(subject):
    """A declared limit applies only if it differs from the previous declaration: a halt survives a restart."""
    group = Group(subject, limit=None)
    for declared, told, expected in (
        ((8, 8), (), 8),
        ((8, 8), (("gpu", 0),), 0),
        ((8, 8), (), 0),  # a restart
        ((4, 4), (), 4),  # a deployment
        ((8, 8), (), 8),  # a rollback
    ):
        group.call("x")
        group.pass_time(QUARANTINE)
        group.call("x", declared=(SlotDeclaration("gpu", *declared, 0),))
        group.call("x", limits=told)
        assert expected == group.call("x", watched=("gpu",)).pools[0].limit


def test_after_a_loss_the_limit_that_was_set_last_is_in_force(subject):
    """After a loss the limit set last is in force, as far as any peer knows it, and a new one overrides it."""
    group = Group(subject, limit=8)
    group.call("q", limits=(("gpu", 0),))
    version = group.call("q", watched=("gpu",)).pools[0].version
    subject.wipe()
    group.call("p", declared=(SlotDeclaration("gpu", 8, 8, version - 1),))
    group.call("q", declared=(SlotDeclaration("gpu", 8, 0, version),))
    group.call("r", declared=(SlotDeclaration("gpu", 8, 8, 0),))
    assert (0, version) == group.call(watched=("gpu",)).pools[0][::3]

    group.call("r", limits=(("gpu", 5),))
    group.call("p", declared=(SlotDeclaration("gpu", 8, 8, version - 1),))
    group.call("q", declared=(SlotDeclaration("gpu", 8, 0, version),))
    assert 5 == group.call(watched=("gpu",)).pools[0].limit


@pytest.mark.parametrize("loss", ["wiped", "restarted"])
def test_nothing_is_handed_over_for_a_lease_after_a_loss(subject, loss):
    """After a loss nothing is handed over for a lease; holders keep their slots, and unknown ones end by then."""
    group = Group(subject, limit=2)
    fences = group.enter("p:1", "q:1")
    until = group.reply.now_us + LEASE
    era = group.reply.era
    if loss == "wiped":
        subject.wipe()
    else:
        subject.run = "b" * 40

    group.now += SECOND
    assert fences[:1] == group.enter("p:1", fence=fences[0], until=until)
    assert group.reply.era != era
    group.call("r", limits=(("gpu", 2),))
    assert [WAITING] == group.enter("r:1")
    assert QUARANTINE == group.reply.quarantine_us
    for _ in range(10):
        group.now += SECOND
        assert fences[:1] == group.enter("p:1", fence=fences[0], until=until)
        assert [WAITING] == group.enter("r:1")
    group.now += SECOND
    (fence,) = group.enter("r:1")
    assert fence > max(fences)
    assert [LOST] == group.enter("q:1", fence=fences[1], until=until)
    assert (2, 0) == group.held()


@pytest.mark.parametrize(("late", "answer"), [(LEASE - DIFFERENCE - 1, True), (LEASE - DIFFERENCE, False)])
def test_lease_is_adopted_only_where_it_has_surely_not_passed(subject, late, answer):
    """A lease is adopted only if it has certainly not ended, given the difference of two servers' clocks."""
    group = Group(subject)
    (fence,) = group.enter("p:1")
    until = group.reply.now_us + LEASE
    subject.wipe()
    group.now += late

    assert [fence if answer else LOST] == group.enter("p:1", fence=fence, until=until)


def test_hand_over_that_nobody_has_heard_of_is_none_after_a_restart(subject):
    """After a restart an unconfirmed hand-over is void: the memory may be older, and the slot another's."""
    group = Group(subject)
    (fence,) = group.enter("p:1")
    until = group.reply.now_us + LEASE
    group.enter("q:1")
    group.call("p", releases=("p:1",))  # q:1 has a slot, and does not know
    subject.run = "b" * 40

    assert [WAITING] == group.enter("q:1")
    assert [fence] == group.enter("p:1", fence=fence, until=until)  # as if it had not been released
    assert (1, 1) == group.held()


def test_ask_that_comes_late_takes_no_lease_away(subject):
    """A late request, sent before its peer knew of its slot, does not take the lease away."""
    group = Group(subject)
    (fence,) = group.enter("p:1")
    until = group.reply.now_us + LEASE
    subject.run = "b" * 40
    group.enter("p:1")  # the late request

    assert [fence] == group.enter("p:1", fence=fence, until=until)
    assert (1, 0) == group.held()


def test_unknown_lease_is_not_adopted_without_a_loss(subject):
    """A lease unknown to an authority that has lost nothing is not adopted: the slot may be another's."""
    group = Group(subject)
    assert [LOST] == group.enter("p:1", fence=7, until=group.now + LEASE)
    assert (0, 0) == group.held()


@pytest.mark.parametrize("step", [-3600 * SECOND, -SECOND, SPARE, SECOND, 3600 * SECOND])
def test_step_of_the_clock_ends_no_lease(subject, step):
    """A step of the server's clock ends no lease too early, and keeps it for the time since the previous call at most."""
    group = Group(subject)
    (fence,) = group.enter("p:1")
    group.now += LEASE // 4
    assert [WAITING] == group.enter("q:1")
    group.ahead += step
    for _ in range(3):  # although its renewals are lost
        group.now += LEASE // 4 - 1
        assert [WAITING] == group.enter("q:1")
    assert 3 <= group.reply.ends_us <= SPARE + LEASE // 4 + 3

    group.now += group.reply.ends_us
    assert group.enter("q:1")[0] > fence


def test_time_that_no_process_has_seen_pass_does_not_pass(subject):
    """No lease ends, and no quarantine, by the time of a caller that has had no answer in this era."""
    group = Group(subject)
    (fence,) = group.enter("p:1")
    entry = SlotEntry("p:1", ("gpu",), 0.0, fence, 1, "")
    for era in ("", "another"):
        group.now += 2 * LEASE
        assert [fence] == list(group.call("p", entries=(entry,), era=era).fences)

    era = group.reply.era
    subject.wipe()
    for _ in range(2):
        group.now += QUARANTINE
        assert QUARANTINE == group.call("q", era=era).quarantine_us


def test_time_on_the_way_counts_as_far_as_it_may_be_no_step(subject):
    """The time that messages are under way counts up to the spare: what is beyond that may be a step."""
    group = Group(subject)
    group.enter("p:1")
    end = LEASE + SPARE
    for way in (SPARE // 2, SPARE, 3 * SPARE):
        group.call("q", seen_us=0)
        group.now += way
        end -= min(way, SPARE)
        assert end == group.call("q", seen_us=0).ends_us


def test_answer_tells_when_a_lease_may_end(subject):
    """An answer tells when the first lease or wait of the group ends, unless it is renewed by then."""
    group = Group(subject)
    assert group.reply.ends_us == 0
    group.enter("dead:1")
    assert LEASE + SPARE == group.reply.ends_us
    group.now += LEASE // 4
    group.enter("q:1")
    assert LEASE + SPARE - LEASE // 4 == group.reply.ends_us


def test_first_waiter_is_announced_to_the_other_holders(subject):
    """The first waiter of a pool is announced to the other peers that hold its slots, once; later ones are not."""
    group = Group(subject, limit=3)
    group.enter("p:1", "p:2")
    group.enter("q:1")
    assert [] == subject.woken()
    group.enter("r:1")
    (told, other) = sorted(subject.woken())
    assert told in ("p:1", "p:2")
    assert "q:1" == other
    group.enter("r:2")
    assert [] == subject.woken()


def test_waiter_of_a_key_is_announced_to_its_holders_alone(subject):
    """The waiter of a pool by key is announced to the holders of that pool, but not to its own process."""
    group = Group(subject)
    group.enter("p:1", pools=("ann",), limit=2)
    group.enter("r:1", pools=("ann",), limit=2)
    group.enter("q:1", pools=("annie",), limit=2)
    group.enter("r:2", pools=("ann",), limit=2)
    assert ["p:1"] == subject.woken()


@pytest.mark.parametrize("step", [0, -3600 * SECOND])
def test_fences_rise_over_a_loss(subject, step):
    """Fences rise across a loss of the state: they begin at the time, and after the last that a peer knows."""
    group = Group(subject)
    (before,) = group.enter("p:1")
    subject.wipe()
    group.ahead += step
    group.call(limits=(("gpu", 1),), fence=before)
    group.pass_time(QUARANTINE)

    (after,) = group.enter("q:1")
    assert after > before >= START


priorities = st.sampled_from([-1.5, -1.0, 0.0, 1e-9, 2.0, 1e300])
tokens = st.sampled_from(["p:1", "p:2", "q:1", "q:2", "r:1", "r:2", "r:3"])
poolses = st.sampled_from(
    [("gpu",), ("gpu",), ("licence",), ("gpu", "licence"), ("licence", "gpu", "x"), ("a key",), ("a key",)]
)
OWN_LIMITS = {"p": 2, "q": 2, "r": 1}  # of a key's pool, by peer
programs = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.lists(tokens, max_size=3), poolses, priorities),
        st.tuples(st.just("enter"), st.lists(tokens, max_size=3), poolses, priorities),
        st.tuples(st.just("release"), st.lists(tokens, min_size=1, max_size=3)),
        st.tuples(st.just("pass"), st.integers(0, 8), st.sampled_from([0, 0, 0, 0, -3, 4, 100])),  # and a step
        st.tuples(st.just("limit"), st.sampled_from(["gpu", "licence", "x"]), st.integers(0, 3)),
        st.tuples(
            st.just("declare"),
            st.sampled_from(["gpu", "licence"]),
            st.integers(0, 3),
            st.integers(0, 3),
            st.sampled_from([0, 7, START * 2]),
        ),
        st.tuples(st.sampled_from(["wipe", "restart"])),
    ),
    max_size=50,
)


class Books:
    """Who may be at work by the answers: from an answer until a lease after its call was sent."""

    def __init__(self) -> None:
        self.work: dict[str, tuple[int, int, tuple[str, ...], int]] = {}  # token -> fence, end, pools, end as told

    def claim(self, token: str, now: int) -> tuple[int, int]:
        """Return the fence and the told end of a current lease."""
        fence, until, _, told = self.work.get(token, (0, 0, (), 0))
        return (fence, told) if until > now else (0, 0)

    def note(self, token: str, fence: int, now: int, pools: tuple[str, ...], *, lasting: int = LEASE) -> None:
        """Note an answer."""
        if fence > 0:
            self.work[token] = fence, now + lasting, pools, now + lasting
        else:
            self.work.pop(token, None)

    def at_work(self, pool: str, now: int) -> int:
        """Count those who may be at work with a slot of a pool."""
        return sum(until > now and pool in pools for _, until, pools, _ in self.work.values())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs)
def test_both_do_the_same_and_keep_the_law(client, program):
    """In random programs with losses and restarts no pool exceeds its highest limit, and both subjects agree."""
    memory, lua = SlotsInMemory(), SlotsOnRedis(client)
    books, real = Books(), START  # real time; the server's clock is that plus its steps
    now = START
    era, told, told_at = "", 0, START  # of the latest answer
    limits: dict[str, int] = dict.fromkeys(("gpu", "licence", "x"), 0)  # highest limit in force while anybody works
    limits["a key"] = max(OWN_LIMITS.values())
    asked: dict[str, tuple[str, ...]] = {}
    try:
        for step, *rest in program:
            fields: dict = {}
            peer = "p"
            if step == "enter":
                entries = []
                peer = rest[0][0][0] if rest[0] else "p"
                for token in dict.fromkeys(rest[0]):
                    pools = asked.setdefault(token, rest[1])
                    fence, told = books.claim(token, real)
                    own = OWN_LIMITS[peer] if pools == ("a key",) else -1
                    entries.append(SlotEntry(token, pools, rest[2], fence, told + now - real, "note", own))
                fields["entries"] = tuple(entries)
            elif step == "release":
                fields["releases"] = tuple(rest[0])
                for token in rest[0]:
                    books.work.pop(token, None)
                    asked.pop(token, None)
            elif step == "limit":
                fields["limits"] = (tuple(rest),)
                limits[rest[0]] = max(limits[rest[0]], rest[1])
            elif step == "declare":
                fields["declared"] = (SlotDeclaration(*rest),)
                limits[rest[0]] = max(limits[rest[0]], *rest[1:3])
            elif step == "pass":
                now += rest[0] * SECOND // 2 + rest[1] * SECOND // 4
                real += rest[0] * SECOND // 2
            elif step == "wipe":
                memory.wipe()
                lua.wipe()
            else:
                memory.run = lua.run = ("b" if memory.run[0] == "a" else "a") * 40
            fields |= {"era": era, "told_us": told, "seen_us": real - told_at}
            call = SlotCall(peer=peer, lease_us=LEASE, difference_us=DIFFERENCE, watched=tuple(limits), **fields)
            reply = memory.call(now, call)
            assert reply == lua.call(now, call)
            era, told, told_at = reply.era, now, real
            for entry, fence in zip(call.entries, reply.fences, strict=True):
                books.note(entry.token, fence, real, entry.pools)
            for token, fence in reply.handed.items():
                books.note(token, fence, real, asked[token], lasting=LEASE // 2)
            for number, pool in enumerate(call.watched):
                assert books.at_work(pool, real) <= limits[pool]
                state = reply.pools[number]
                if not reply.quarantine_us:  # then nobody is at work who is unknown to the authority
                    assert state.held >= books.at_work(pool, real)
        assert sorted(memory.woken()) == sorted(lua.woken())
    finally:
        lua.cleanup()


# The state on a server.


@pytest.mark.parametrize("key", KEYS)
def test_state_of_which_a_part_is_lost_begins_anew(on_redis, key):
    """If a part of the state is lost, the rest is dropped, a quarantine begins, and holders are adopted."""
    group = Group(on_redis)
    (fence,) = group.enter("p:1")
    until = group.reply.now_us + LEASE
    on_redis.lose(key)

    assert [WAITING] == group.enter("q:1")
    assert ("state", QUARANTINE) == (group.reply.flaw, group.reply.quarantine_us)
    assert [fence] == group.enter("p:1", fence=fence, until=until)


@pytest.mark.parametrize(
    ("field", "value"),
    [("clock", "x"), ("last", "-1"), ("safe", "9" * 15 + "0"), ("safe", ""), ("fence", "1e9"), ("number", "nan")]
    + [("since", "garbage"), ("version", "0"), ("version", "garbage")],
)
def test_state_that_nobody_can_have_written_begins_anew(on_redis, field, value):
    """An impossible state is dropped, and a quarantine begins."""
    group = Group(on_redis)
    group.enter("p:1")
    on_redis.write(field, value)

    assert [WAITING] == group.enter("q:1")
    assert QUARANTINE == group.reply.quarantine_us


@pytest.mark.parametrize("value", ["garbage", "[]", "{}", '["x","1","","","gpu"]', "7"])
def test_damaged_lease_is_reported_and_begins_anew(on_redis, value):
    """A damaged lease causes one error, and then a quarantine."""
    group = Group(on_redis)
    group.enter("p:1")
    on_redis.write("t:p:1", value)

    with pytest.raises(redis.ResponseError, match="damaged"):
        group.call("p", releases=("p:1",))
    assert QUARANTINE == group.call().quarantine_us


def test_damaged_limit_halts_the_pool(on_redis):
    """A damaged limit halts the pool."""
    group = Group(on_redis, limit=3)
    on_redis.write("l:gpu", "many")

    assert [WAITING] == group.enter("p:1")


def test_later_version_is_left_alone(on_redis):
    """The state of a later version is refused, unless nobody has called for a minute."""
    group = Group(on_redis)
    on_redis.speak(9)
    group.call()
    on_redis.speak(1)

    with pytest.raises(redis.ResponseError, match="install one release"):
        group.call()
    group.now += 61 * SECOND
    assert QUARANTINE == group.call().quarantine_us


def test_nothing_is_kept_of_those_who_have_gone(on_redis):
    """A thousand holders that release or let their leases end leave nothing behind."""
    group = Group(on_redis, limit=3, pools=("gpu", "licence"))
    for number in range(200):
        group.enter(*(f"p:{number}-{each}" for each in range(5)), pools=("gpu", "licence"))
        group.call("p", releases=tuple(f"p:{number}-{each}" for each in range(4)))
        group.enter(f"p:{number}-key", pools=(f"key {number}",), limit=1)
        group.now += SECOND
        group.call()
    group.pass_time(2 * LEASE)

    assert {"slots": 0, "held": 0, "line": 0, "ends": 0} == on_redis.left()
    assert all(0 < left <= 86_400_000 for left in on_redis.lives())
