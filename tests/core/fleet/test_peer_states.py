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
SETTINGS = TicketSettings(id="one", weight=1000, ahead_us=100_000, difference_us=0, outage=Outage.STOP)


def plan_of(rate):
    """Return the limits of a pace."""
    return lambda _: (PlanLimit("permits/rate", "permits", PaceSettings.of(rate, 1_000_000).write()),)


class Life:
    """One peer, and its possible events."""

    def __init__(self) -> None:
        self.peer = TicketPeer(SETTINGS, "100/s", plan_of(100), ServerClock())

    def answer(self, plan_id="100/s", now_ns=NOW_NS) -> None:
        """Let the authority answer, with limits in force."""
        self.peer.clock.measure(now_ns, now_ns, now_ns)
        reply = TicketReply(now_us=now_ns // 1000, era="1", quarantine_us=0, plan_id=plan_id, penalty_us=0)
        self.peer.receive(self.peer.request((), now_ns), reply, is_step=False, now_ns=now_ns)

    def silence(self) -> None:
        """Let two calls get no answer."""
        self.peer.fail(None, NOW_NS)
        self.peer.fail(None, NOW_NS)

    def rest(self) -> None:
        """Let no task be able to start."""
        self.peer.idle()

    def suspend(self) -> None:
        """Suspend the machine; a group that was left is not told."""
        if self.peer.state is not PeerState.CLOSED:
            self.peer.resync()

    def leave(self) -> None:
        """Close the executor."""
        self.peer.close()


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


def test_limits_that_are_set_while_an_answer_is_under_way_are_called_for_at_once():
    """Limits set during a call are sent at once, and are not in force before the answer to that."""
    life = Life()
    life.answer()
    peer = life.peer
    request = peer.request((), NOW_NS)
    reply = TicketReply(now_us=NOW_NS // 1000, era="1", quarantine_us=0, plan_id="100/s", penalty_us=0)
    peer.set_plan("80/s", plan_of(80), NOW_NS)
    peer.receive(request, reply, is_step=False, now_ns=NOW_NS)
    assert NOW_NS == peer.next_call(0, NOW_NS)
    assert not peer.is_settled
    life.answer("80/s")
    assert peer.next_call(0, NOW_NS) is None
    assert (peer.is_settled, peer.is_own_plan) == (True, True)
    life.answer("100/s")
    assert not peer.is_own_plan  # another peer has set limits since


def test_limits_that_are_followed_are_those_in_force():
    """Limits of another peer that are followed count as this peer's own, until others are in force."""
    life = Life()
    life.answer("120/s")
    assert not life.peer.is_own_plan
    life.peer.follow("120.0/s", plan_of(120))
    assert life.peer.is_own_plan
    life.answer("120/s")
    assert life.peer.is_own_plan
    life.answer("90/s")
    assert not life.peer.is_own_plan


def test_limits_in_force_are_known_for_as_long_as_answers_come():
    """The limits in force are known as long as answers come, and a peer that has to know them calls three times as often."""
    life = Life()
    assert not life.peer.is_told(NOW_NS)
    life.answer()
    assert life.peer.is_told(NOW_NS + NEWS_NS)
    assert not life.peer.is_told(NOW_NS + NEWS_NS + 1)
    life.rest()
    assert not life.peer.is_told(NOW_NS)
    life.peer.watch(NOW_NS + NEWS_NS)
    assert life.peer.next_call(0, NOW_NS + 1) == NOW_NS + NEWS_NS // 3
    assert life.peer.next_call(0, NOW_NS + NEWS_NS - 1) == NOW_NS + NEWS_NS // 3
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
