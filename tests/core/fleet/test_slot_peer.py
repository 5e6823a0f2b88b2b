"""A process's side of a group's slots: when it calls, what it sends, and until when a slot is surely held."""

from functools import partial

import pytest

from ratelimited_executor._core.fleet.slot_peer import EntryState, SlotClaim, SlotPeer, SlotSettings
from ratelimited_executor._core.fleet.slots import PoolState, SlotCall, SlotReply

MS = 1_000_000
LEASE = 1_000 * MS
HELD, WAITING, LOST, GONE = EntryState.HELD, EntryState.WAITING, EntryState.LOST, EntryState.GONE


class Line:
    """A peer, and a server whose answers the test gives."""

    def __init__(self, **options) -> None:
        self.peer = SlotPeer(SlotSettings(id="h:1:x", lease_us=LEASE // 1000, difference_us=0), **options)
        self.now = 10**12
        self.pool = PoolState(5, 0, 0, 1)
        self.last: SlotCall

    def ask(self, *, pools=("gpu",), priority=0.0) -> SlotClaim:
        claim = SlotClaim(pools, priority, "note")
        self.peer.ask(claim, self.now)
        return claim

    def call(self, *fences: int, passed: int = MS, era: str = "1", **answer) -> list[SlotClaim]:
        """Make the call that is due, whose answer comes after a while."""
        due = self.peer.next_call(self.now)
        assert due is not None
        self.now = max(self.now, due)
        sent, self.last = self.now, self.peer.request(self.now)
        self.now += passed
        reply = SlotReply(
            now_us=self.now // 1000,
            era=era,
            quarantine_us=0,
            fence=max(fences, default=0),
            fences=fences or (0,) * len(self.last.entries),
            pools=(self.pool,) * len(self.last.watched),
            **answer,
        )
        return self.peer.take_in(self.last, reply, sent, self.now)

    def told(self) -> list[str]:
        return [entry.token for entry in self.last.entries]


def test_state_of_a_new_pool_is_asked_for_at_once():
    """A pool without a limit of this process is asked for at once, again after a failed call, and then once."""
    line = Line()
    line.peer.declare("gpu", None)
    assert not line.peer.has_read("gpu")
    assert line.now == line.peer.next_call(line.now)
    line.peer.note_failure(line.peer.request(line.now), line.now)
    assert not line.peer.has_read("gpu")
    assert line.peer.is_idle  # closing does not wait for the answer
    line.call()
    assert line.peer.has_read("gpu")
    assert (("gpu",), 5) == (line.last.watched, line.peer.pools["gpu"].limit)
    line.peer.declare("gpu", None)
    assert line.peer.next_call(line.now) is None


def test_what_is_new_goes_at_once_and_together():
    """New entries, releases and limits are sent at once in one call, and then nothing is due."""
    line = Line()
    assert line.peer.next_call(line.now) is None
    first, second = line.ask(), line.ask()
    line.peer.set_limit("gpu", 3)
    assert line.now == line.peer.next_call(line.now)
    assert [first, second] == line.call(7, 0)  # the second one waits
    assert (HELD, WAITING) == (first.state, second.state)
    assert (("gpu", 3),) == line.last.limits

    line.peer.release(first)
    line.call()
    assert ((first.token,), (), ()) == (line.last.releases, line.last.entries, line.last.limits)


def test_whoever_holds_or_waits_is_renewed_in_each_quarter():
    """Holders and waiters are renewed in each quarter of a lease, in one call with all that are soon due."""
    line = Line()
    first = line.ask()
    line.call(7)
    begun = line.now
    line.now += LEASE // 8
    second = line.ask()
    line.call(7, 0)
    line.now = begun + LEASE // 5
    due = line.peer.next_call(line.now)
    assert begun - MS + LEASE // 8 < due <= begun + LEASE // 4 + LEASE // 8
    line.call(7, 0)
    assert {first.token, second.token} == set(line.told())
    assert (first.fence, first.until_us) == line.last.entries[line.told().index(first.token)][3:5]


def test_lease_is_counted_from_when_the_call_was_sent_and_is_shorter():
    """A lease counts from the sending of the call, and is shorter than at the authority; a late answer is worthless."""
    line = Line()
    claim = line.ask()
    sent = line.now
    line.call(7, passed=300 * MS)
    assert sent + LEASE - 2 * MS <= claim.end_ns < sent + LEASE
    assert [] == line.peer.look(claim.end_ns - 1)
    assert [claim] == line.peer.look(claim.end_ns)
    assert LOST is claim.state
    line.call()
    assert (claim.token,) == line.last.releases  # the server may still have it

    late = line.ask()
    assert [] == line.call(9, passed=LEASE)
    assert WAITING is late.state
    assert [late] == line.call(9)


def test_call_without_an_answer_is_repeated_with_all_that_it_said():
    """A call without an answer is repeated whole after a pause, which grows up to a part of a lease."""
    line = Line()
    claim, gone = line.ask(), line.ask()
    line.call(7, 8)
    line.peer.release(gone)
    line.peer.set_limit("gpu", 2)
    line.peer.renew(claim)
    pauses = []
    for _ in range(8):
        line.now = max(line.now, line.peer.next_call(line.now))
        call = line.peer.request(line.now)
        assert ((claim.token,), (gone.token,), (("gpu", 2),)) == (
            tuple(entry.token for entry in call.entries),
            call.releases,
            call.limits,
        )
        line.peer.note_failure(call, line.now)
        pauses.append(line.peer.next_call(line.now) - line.now)
    assert sorted(pauses) == pauses
    assert 20 * MS == pauses[0]
    assert pauses[-1] <= LEASE // 6


def test_release_while_the_ask_is_under_way_is_told():
    """A release during the request is sent after the answer, so that the slot is given back."""
    line = Line()
    claim = line.ask()
    call = line.peer.request(line.now)
    line.peer.release(claim)
    reply = SlotReply(now_us=0, era="1", quarantine_us=0, fence=7, fences=(7,), pools=(PoolState(5, 1, 0, 1),))
    assert [] == line.peer.take_in(call, reply, line.now, line.now)
    assert GONE is claim.state
    line.call()
    assert (claim.token,) == line.last.releases
    assert line.peer.is_idle


class Spare(Line):
    """A peer with a slot that nobody misses: others are free, and nobody waits."""

    def __init__(self, *, limit: int = -1, **pool) -> None:
        super().__init__()
        self.pool = PoolState(**{"limit": 2, "held": 1, "waiting": 0, "version": 1} | pool)
        self.claim = SlotClaim(("gpu",), 0.0, "note", limit=limit)
        self.peer.ask(self.claim, self.now)
        self.sent = self.now
        self.call(7)


def test_release_that_nobody_misses_travels_with_the_next_call():
    """A release goes with the next call if nobody waits for the slot and others are free; alone in a quarter of a lease."""
    line = Spare()
    line.peer.release(line.claim)
    assert 1 == line.peer.untold_count("gpu")
    due = line.peer.next_call(line.now)
    assert line.sent + LEASE // 5 < due <= line.sent + LEASE // 4
    second = line.ask()
    assert line.now + 8 * MS >= line.peer.next_call(line.now)
    line.call(8)
    assert ((line.claim.token,), [second.token]) == (line.last.releases, line.told())
    assert 0 == line.peer.untold_count("gpu")

    line.peer.release(second)
    line.call()
    assert (second.token,) == line.last.releases
    assert line.peer.next_call(line.now) is None


@pytest.mark.parametrize(
    "line",
    [
        partial(Spare, held=2),
        partial(Spare, waiting=1),
        partial(Spare, limit=1),  # of a key
    ],
)
def test_release_that_somebody_may_miss_goes_at_once(line):
    """A release goes at once if no other slot is free, or somebody waits."""
    line = line()
    line.peer.release(line.claim)
    assert line.now == max(line.now, line.peer.next_call(line.now) - 4 * MS)


def test_release_goes_at_once_as_somebody_begins_to_wait():
    """The notice that somebody waits sends the releases that were kept, and later ones, at once."""
    line = Spare()
    line.peer.release(line.claim)
    assert [] == line.peer.note_woken(line.claim.token)
    assert line.now == max(line.now, line.peer.next_call(line.now))

    line = Spare()
    line.peer.note_woken(line.claim.token)
    line.peer.release(line.claim)
    assert line.now == max(line.now, line.peer.next_call(line.now))

    line = Line()  # the notice overtakes the answer
    claim = line.ask()
    call = line.peer.request(line.now)
    line.peer.note_woken(claim.token)
    reply = SlotReply(now_us=0, era="1", quarantine_us=0, fence=7, fences=(7,), pools=(PoolState(5, 1, 0, 1),))
    assert [claim] == line.peer.take_in(call, reply, line.now, line.now)
    line.peer.release(claim)
    assert line.now + MS >= line.peer.next_call(line.now)


def test_release_is_not_kept_without_notices_or_beside_own_waiters_or_in_a_hurry():
    """A release goes at once where no notices arrive, where this process waits itself, and where it is told to hurry."""
    line = Spare()
    line.peer.poll_ns = 100 * MS
    line.peer.release(line.claim)
    assert line.now == max(line.now, line.peer.next_call(line.now))

    line = Spare()
    line.ask(pools=("other",))
    line.call(0)
    line.peer.release(line.claim)
    assert line.now == max(line.now, line.peer.next_call(line.now))

    line = Spare()
    line.peer.release(line.claim)
    line.peer.hurry()
    assert line.now == max(line.now, line.peer.next_call(line.now))


def test_who_was_never_told_is_not_released():
    """An entry that was never sent is released without a call, since the authority does not know it."""
    line = Line()
    claims = [line.ask() for _ in range(129)]
    line.peer.release(claims[-1])
    line.call()
    assert () == line.last.releases
    assert claims[-1].token not in line.told()


def test_so_many_who_wait_are_told_and_the_others_follow():
    """A limited number of waiters is sent for each priority and pools, in order, and the others follow."""
    line = Line()
    claims = [line.ask() for _ in range(300)]
    urgent = line.ask(priority=1.0)
    line.call()
    line.call()
    told = {claim for claim in claims if claim.is_told}
    assert set(claims[:128]) == told
    assert urgent.is_told
    for claim in claims[:100]:
        line.peer.release(claim)
    assert set(claims[:228]) == {claim for claim in claims if claim.is_told}
    assert 300 - 100 + 1 == len(line.peer.waiting())


def test_lost_answers_lose_who_held_and_let_ask_again_who_waited():
    """After lost answers holders lose their slots, and waiters ask again."""
    line = Line()
    holds, waits = line.ask(), line.ask()
    line.call(7, 0)
    line.peer.renew(holds)
    line.peer.note_woken(waits.token)
    assert [holds] == line.call(-1, -1)
    assert (LOST, WAITING) == (holds.state, waits.state)
    line.call(9)
    assert [waits.token] == line.told()
    assert HELD is waits.state


def test_another_era_is_told_the_limits_again():
    """In a new era declarations repeat the limit known to be in force."""
    line = Line()
    line.peer.declare("gpu", 8)
    line.call()
    assert (("gpu", 8, 8, 0),) == line.last.declared
    line.ask()
    line.call(7)
    assert () == line.last.declared
    assert PoolState(5, 0, 0, 1) == line.peer.pools["gpu"]
    line.ask()
    line.call(7, era="2")
    line.call(era="2")
    assert (("gpu", 8, 5, 1),) == line.last.declared


def test_owner_that_is_not_well_is_not_renewed():
    """The lease of an unhealthy owner is not renewed, and is tried again after a pause."""
    well = ["owner"]
    line = Line(may_renew=well.__contains__)
    claim = line.ask()
    claim.owner = "owner"
    line.call(7)
    well.clear()
    line.now += LEASE // 4
    line.call()
    assert [] == line.told()
    assert line.peer.next_call(line.now) > line.now + LEASE // 5
    well.append("owner")
    line.call(7)
    assert [claim.token] == line.told()


def test_slot_that_stands_idle_waits_for_no_gap():
    """A free slot is reported without the pause between calls, which is longer for slow servers."""
    line = Line()
    first, second = line.ask(), line.ask()
    line.call(7, 0, passed=2 * MS)
    line.ask()
    sent = line.now - 2 * MS
    assert sent + 8 * MS == line.peer.next_call(line.now)

    line.peer.release(first)
    assert line.now == max(line.now, line.peer.next_call(line.now))
    line.call(0, passed=2 * MS)
    line.ask()
    line.peer.note_woken(second.token)
    assert line.now == max(line.now, line.peer.next_call(line.now))


def test_owner_that_is_not_well_does_not_wait():
    """An unhealthy owner does not wait for slots, so that none is handed over in vain."""
    line = Line(may_renew="well".__eq__)
    first, second = line.ask(), line.ask()
    first.owner, second.owner = "hangs", "well"
    line.call(7)
    assert [second.token] == line.told()


def test_who_waits_asks_more_often_where_nobody_tells_it():
    """Without notices a waiter asks more often, and a holder does not."""
    line = Line()
    line.ask()
    line.call(7)
    line.peer.poll_ns = LEASE // 10
    assert line.peer.next_call(line.now) > line.now + LEASE // 5
    line.ask()
    line.call(0)
    assert line.peer.next_call(line.now) <= line.now + LEASE // 10


def test_call_states_what_was_told_of_the_clock_and_the_time_since():
    """A call has the server's time in the latest answer, and the time since, less what clocks may drift apart."""
    line = Line()
    line.ask()
    line.call(0)
    assert ("", 0) == (line.last.era, line.last.told_us)
    told_us = line.now // 1000
    line.now += 100 * MS
    line.ask()
    line.call(0)

    assert ("1", told_us) == (line.last.era, line.last.told_us)
    assert 99_000 <= line.last.seen_us < 100_000


def test_who_waits_asks_when_a_lease_may_end():
    """A waiter asks when the lease that ends first does; a holder only renews its own."""
    line = Line()
    claim = line.ask()
    line.call(0, ends_us=100_000)
    assert line.now + 100 * MS == line.peer.next_call(line.now)
    line.call(handed={claim.token: 7}, ends_us=100_000)
    assert line.peer.next_call(line.now) > line.now + 100 * MS


def test_slots_of_which_there_is_a_notice_are_coming_until_the_answer():
    """A notified claim is coming until the answer; if the slots were lost meanwhile, it is told to wait again."""
    line = Line()
    claim = line.ask()
    assert [claim] == line.call(0)
    assert [] == line.call(0, passed=LEASE // 4)  # known before
    assert [claim] == line.peer.note_woken(claim.token)
    assert claim.is_coming
    assert [] == line.peer.note_woken("h:1:x:99")

    assert [claim] == line.call(0)
    assert not claim.is_coming
    line.peer.note_woken(claim.token)
    assert [claim] == line.call(7)
    assert (HELD, False) == (claim.state, claim.is_coming)


def test_slots_that_stay_in_a_process_are_asked_for_as_they_are_given_back():
    """Once a process has got slots by its own release, the next release asks for them, too, for the first waiter."""
    line = Line()
    first, second, third = line.ask(), line.ask(), line.ask()
    line.call(7, 0, 0)
    assert [] == line.peer.release(first)  # another process may be before it
    line.call(handed={second.token: 8})
    assert HELD is second.state

    assert [third] == line.peer.release(second)
    assert third.is_coming
    assert [third] == line.call(9)
    assert ([third.token], (second.token,)) == (line.told(), line.last.releases)

    fourth = line.ask()
    line.call(0)
    assert [fourth] == line.peer.release(third)
    assert [fourth] == line.call(0)  # another process was
    line.peer.note_woken(fourth.token)
    line.call(11)
    line.ask()
    line.call(0)
    assert [] == line.peer.release(fourth)
