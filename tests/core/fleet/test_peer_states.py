"""The states of a peer: their table, the events that change them, and that nothing else does."""

import itertools
import re
from pathlib import Path

import pytest

import ratelimited_executor
from ratelimited_executor._core.fleet import peer_states, ticket_peer
from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.limit_settings import PaceSettings
from ratelimited_executor._core.fleet.peer_states import PEER_TRANSITIONS, PeerState
from ratelimited_executor._core.fleet.policies import Outage
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketReply
from ratelimited_executor._core.fleet.ticket_peer import NEWS_NS, TicketPeer, TicketSettings
from ratelimited_executor.exceptions import IllegalTransitionError

ROOT = Path(ratelimited_executor.__file__).parents[1]
NOW_NS = 1_704_067_200 * 1_000_000_000
SETTINGS = TicketSettings(id="one", weight=1000, ahead_us=100_000, difference_us=1_000_000, outage=Outage.STOP)


def pace(count, resource="permits"):
    """Return a plan's function for a pace."""
    return lambda _: (PlanLimit("permits/rate", resource, PaceSettings.of(count, 1_000_000).write()),)


class Life:
    """One peer, and its possible events."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS
        self.peer = TicketPeer(SETTINGS, "100/s", pace(100), ServerClock())

    def call(self):
        """Make a call."""
        return self.peer.request((), self.now_ns)

    def take(self, call, plan_id=""):
        """Let the authority answer a call; another plan may be in force than that of the call."""
        self.peer.clock.measure(self.now_ns, self.now_ns, self.now_ns)
        reply = TicketReply(now_us=self.now_ns // 1000, era="1", quarantine_us=0, plan_id=plan_id or call.plan_id, penalty_us=0)
        self.peer.receive(call, reply, is_step=False, now_ns=self.now_ns)

    def answer(self) -> None:
        """Let the authority answer."""
        self.take(self.call())

    def silence(self) -> None:
        """Let two calls get no answer."""
        self.peer.fail(None, self.now_ns)
        self.peer.fail(None, self.now_ns)

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
    life.peer.fail(None, NOW_NS)
    assert life.peer.state is ACTIVE
    life.peer.fail(None, NOW_NS)
    assert life.peer.state is OUTAGE


def test_limits_set_while_an_answer_is_under_way_are_called_for_at_once():
    """Limits set during a call are sent at once, and are not confirmed by the answer to an earlier call."""
    life = Life()
    life.answer()
    peer = life.peer
    assert peer.next_call(0, NOW_NS) is None
    assert peer.is_settled
    before = life.call()
    peer.set_plan("80/s", pace(80), NOW_NS)
    life.take(before)
    assert NOW_NS == peer.next_call(0, NOW_NS)
    assert not peer.is_settled
    call = life.call()
    assert ("80/s", pace(80)(0), True) == (call.plan_id, call.plan, call.is_new_plan)
    life.take(call)
    assert peer.is_settled
    assert peer.is_own_plan
    assert peer.next_call(0, NOW_NS) is None


def test_limits_set_by_another_since_are_not_own():
    """Limits that another peer has set since this one's are confirmed, but not this one's, until they are followed."""
    life = Life()
    life.take(life.call(), "70/s of another")
    assert life.peer.is_settled
    assert not life.peer.is_own_plan
    life.peer.follow("70/s", pace(70))
    assert life.peer.is_own_plan
    life.take(life.call(), "70/s of another")
    assert life.peer.is_own_plan
    life.take(life.call(), "60/s of another")
    assert not life.peer.is_own_plan


def test_limits_in_force_are_known_for_as_long_as_answers_come():
    """The limits in force are known for three quarters of a second after an answer; a peer that watches calls in time."""
    life = Life()
    assert not life.peer.is_told(NOW_NS)
    life.answer()
    assert life.peer.is_told(NOW_NS + NEWS_NS)
    assert not life.peer.is_told(NOW_NS + NEWS_NS + 1)
    life.rest()
    assert not life.peer.is_told(NOW_NS)
    life.peer.watch(NOW_NS + NEWS_NS)
    assert NOW_NS + NEWS_NS // 3 == life.peer.next_call(0, NOW_NS + NEWS_NS - 1)
    assert life.peer.next_call(0, NOW_NS + NEWS_NS) is None


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
    text = Path(ticket_peer.__file__).read_text(encoding="utf-8")
    assert ["PeerState.SYNC", "state"] == re.findall(r"self\._state = (\S+)", text)
    with pytest.raises(AttributeError):
        Life().peer.state = CLOSED


@pytest.mark.parametrize("state", PeerState)
def test_state_is_drawn_and_documented(state):
    """All states are documented in the head of the module and on the page on fleets."""
    assert state.name in peer_states.__doc__
    assert f"| `{state.value}` |" in (ROOT / "docs" / "explanation" / "fleet.md").read_text(encoding="utf-8")
