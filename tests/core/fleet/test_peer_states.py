"""The states of a peer: their table, the events that change them, and that nothing else does."""

import itertools
import re
from fractions import Fraction
from pathlib import Path

import pytest

import ratelimited_executor
from ratelimited_executor._core.fleet import peer as peer_module
from ratelimited_executor._core.fleet import peer_states
from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.grid import FleetGrid
from ratelimited_executor._core.fleet.peer import Peer, PeerSettings, PeerState
from ratelimited_executor._core.fleet.peer_states import PEER_TRANSITIONS
from ratelimited_executor._core.fleet.policies import Outage
from ratelimited_executor._core.fleet.protocol import Reply
from ratelimited_executor._core.rates import Rate
from ratelimited_executor.exceptions import IllegalTransitionError

ROOT = Path(ratelimited_executor.__file__).parents[1]
NOW_NS = 1_704_067_200 * 1_000_000_000
SETTINGS = PeerSettings(
    id="one", interval_us=250_000, late_us=18_500, stretch=Fraction(0), quarantine=5, phase=0.4, weight=1.0,
    outage=Outage.STOP,
)  # fmt: skip


class Life:
    """One peer, and its possible events."""

    def __init__(self) -> None:
        self.peer = Peer(SETTINGS, Rate(100), ServerClock())

    def answer(self) -> None:
        """Let the authority answer."""
        request = self.peer.request(NOW_NS, lambda *_: 1, is_regular=True)
        self.peer.clock.measure(NOW_NS, NOW_NS, NOW_NS)
        grid = FleetGrid(250_000, 25, 1, 0, NOW_NS // 250_000_000)
        reply = Reply(now_us=NOW_NS // 1000, era="1", safe=0, rank=0, peers=1, grid=grid)
        self.peer.receive(request, reply, is_step=False, now_ns=NOW_NS)

    def silence(self) -> None:
        """Let two calls get no answer."""
        self.peer.fail(NOW_NS)
        self.peer.fail(NOW_NS)

    def rest(self) -> None:
        """Let no task be able to start."""
        self.peer.idle()

    def suspend(self) -> None:
        """Suspend the machine; a group that was left is not told."""
        if self.peer.state is not PeerState.CLOSED:
            self.peer.resync()

    def leave(self) -> None:
        """Close the executor."""
        self.peer.leave()


EVENTS = ["answer", "silence", "rest", "suspend", "leave"]
SYNC, ACTIVE, IDLE, OUTAGE, CLOSED = PeerState
AFTER = {  # state -> state after each event
    SYNC: [ACTIVE, OUTAGE, SYNC, SYNC, CLOSED],
    ACTIVE: [ACTIVE, OUTAGE, IDLE, SYNC, CLOSED],
    IDLE: [ACTIVE, OUTAGE, IDLE, SYNC, CLOSED],
    OUTAGE: [ACTIVE, OUTAGE, OUTAGE, SYNC, CLOSED],
    CLOSED: [CLOSED, CLOSED, CLOSED, CLOSED, CLOSED],
}


def test_every_history_goes_by_the_table_of_events():
    """All histories of up to five events follow the table, and take every transition in it."""
    taken = set()
    for history in itertools.product(EVENTS, repeat=5):
        life, before = Life(), SYNC
        for event in history:
            getattr(life, event)()
            assert AFTER[before][EVENTS.index(event)] is life.peer.state, (history, event)
            taken.add((before, life.peer.state))
            before = life.peer.state
    allowed = {(state, after) for state, follow in PEER_TRANSITIONS.items() for after in follow}
    assert allowed == {(state, after) for state, after in taken if state is not after}


def test_one_call_without_an_answer_is_no_outage():
    """A single call without an answer is not an outage, and a second one is."""
    life = Life()
    life.answer()
    life.peer.fail(NOW_NS)
    assert life.peer.state is ACTIVE
    life.peer.fail(NOW_NS)
    assert life.peer.state is OUTAGE


def test_rate_that_is_set_while_an_answer_is_under_way_is_called_for_at_once():
    """A rate set during a call is sent at once, and is not in force before the answers of the next interval."""
    life = Life()
    life.answer()
    peer = life.peer
    request = peer.request(NOW_NS, lambda *_: 1, is_regular=True)
    grid = FleetGrid(250_000, 25, 1, 0, NOW_NS // 250_000_000)
    reply = Reply(now_us=NOW_NS // 1000, era="1", safe=0, rank=0, peers=1, grid=grid)
    peer.set_rate(Rate(80))
    peer.receive(request, reply, is_step=False, now_ns=NOW_NS)
    assert NOW_NS == peer.next_call(NOW_NS)
    peer.receive(peer.request(NOW_NS, lambda *_: 1, is_regular=True), reply, is_step=False, now_ns=NOW_NS)
    assert NOW_NS < peer.next_call(NOW_NS)
    assert not peer.is_settled
    later_ns = NOW_NS + 250_000_000
    peer.clock.measure(later_ns, later_ns, later_ns)
    request = peer.request(later_ns, lambda *_: 1, is_regular=True)
    reply = Reply(now_us=later_ns // 1000, era="1", safe=0, rank=0, peers=1, grid=grid)
    peer.receive(request, reply, is_step=False, now_ns=later_ns)
    assert peer.is_settled
    assert not peer.is_own_rate  # another peer has set a rate since


def test_rate_that_is_followed_is_the_one_in_force_to_the_last_digit():
    """A rate that is followed is recognised as the one in force in spite of rounding, and a different one is not."""
    life = Life()
    life.answer()
    grid = life.peer.grid
    life.peer.follow(Rate(Fraction(100) - Fraction(1, 100_000)))
    assert life.peer.is_own_rate
    life.peer.follow(Rate(101))
    assert not life.peer.is_own_rate
    assert grid is life.peer.grid


def test_rate_in_force_is_known_for_as_long_as_answers_come():
    """The rate in force is known as long as answers come, one in an interval."""
    life = Life()
    assert not life.peer.is_told(NOW_NS)
    life.answer()
    assert life.peer.is_told(NOW_NS + 500_000_000)
    assert not life.peer.is_told(NOW_NS + 500_000_001)
    life.rest()
    assert not life.peer.is_told(NOW_NS)
    life.peer.watch(NOW_NS + life.peer.news_ns())
    assert life.peer.has_demand(lambda *_: 0, NOW_NS + 999_999_999)
    assert not life.peer.has_demand(lambda *_: 0, NOW_NS + 1_000_000_000)
    assert not life.peer.is_watching


def test_final_state_is_left_by_nothing():
    """A transition from a final state raises an error, and changes nothing."""
    life = Life()
    life.leave()
    with pytest.raises(IllegalTransitionError, match="peer one: closed to sync"):
        life.peer.resync()
    assert life.peer.state is CLOSED
    assert set() == PEER_TRANSITIONS[CLOSED]
    assert set(PeerState) == set(PEER_TRANSITIONS)


def test_one_function_changes_the_state():
    """The state is assigned by one function of the module only, and cannot be set from outside."""
    text = Path(peer_module.__file__).read_text(encoding="utf-8")
    assert ["PeerState.SYNC", "state"] == re.findall(r"self\._state = (\S+)", text)
    with pytest.raises(AttributeError):
        Life().peer.state = CLOSED


@pytest.mark.parametrize("state", PeerState)
def test_state_is_drawn_and_documented(state):
    """All states are documented in the head of the module and on the page on fleets."""
    assert state.name in peer_states.__doc__
    assert f"| `{state.value}` |" in (ROOT / "docs" / "explanation" / "fleet.md").read_text(encoding="utf-8")
