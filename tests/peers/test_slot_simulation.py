"""Histories of slots in virtual time exceed no limit, and strand or leak nothing; deliberately broken rules are found.

python -m tests.peers.slot_simulation --histories 10000
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ratelimited_executor._core.fleet.slot_peer import SlotPeer
from ratelimited_executor._core.fleet.slots import SlotAuthority, SlotCall, SlotReply
from ratelimited_executor._core.slots.slots import FOREVER_US, SlotPools

from .slot_simulation import Found, World

HISTORIES = 120
BROKEN_HISTORIES = 400  # at most, until one fails


def test_histories_keep_the_laws() -> None:
    """Histories with all faults at once keep the laws, and hand over more than a thousand slots."""
    handed = lost = 0
    for seed in range(HISTORIES):
        found = World(seed).run()
        assert found.is_right, (seed, found)
        handed, lost = handed + found.handed, lost + found.lost
    assert handed > 1000
    assert lost > 0


class WithoutQuarantine(SlotAuthority):
    """Hands slots over although it may have forgotten who holds some."""

    def _go_on(self, now_us: int, run: str, call: SlotCall) -> int:
        clock_us = super()._go_on(now_us, run, call)
        self._safe_us = 0
        return clock_us


class CountsTimeThatNobodySaw(SlotAuthority):
    """Lets leases end by the server's clock, whatever its steps."""

    def _go_on(self, now_us: int, run: str, call: SlotCall) -> int:
        before, last = self._clock_us, self._last_us
        was_whole = self._is_whole and run == self._run
        clock_us = super()._go_on(now_us, run, call)
        if was_whole:
            clock_us = self._clock_us = before + max(0, now_us - last)
        return clock_us


class FencesFromOne(SlotAuthority):
    """Counts fences from 1 again after a loss."""

    def _go_on(self, now_us: int, run: str, call: SlotCall) -> int:
        before = self._pools.fence if self._is_whole else 0
        clock_us = super()._go_on(now_us, run, call)
        self._pools.fence = before
        return clock_us

    def call(self, now_us: int, run: str, call: SlotCall) -> SlotReply:
        return super().call(now_us, run, replace(call, fence=0))


class HandsOverOnlyWhenAsked(SlotPools):
    """Keeps a freed slot for the next new request, instead of a waiter."""

    def _end(self, now_us: int, left: Any) -> None:
        hand_over, self._hand_over = self._hand_over, lambda _: None  # type: ignore[method-assign]
        super()._end(now_us, left)
        self._hand_over = hand_over  # type: ignore[method-assign]


class ReleasesAnybody(SlotPools):
    """Frees the slot held longest, whoever releases."""

    def release(self, token: Any, now_us: int) -> bool:
        lease = self._leases.get(token)
        if lease is not None and lease.fence > 0:
            token = next(iter(lease.pools[0].holding))
        return super().release(token, now_us)


class NeverConfirmed(SlotPools):
    """Treats each hand-over as confirmed."""

    def _hold(self, lease: Any) -> None:
        super()._hold(lease)
        self._end_at(lease, FOREVER_US)


def with_pools(kind: type[SlotPools]) -> Callable[[], SlotAuthority]:
    """Return a factory of authorities with pools of ``kind``, also after a loss."""

    class Authority(SlotAuthority):
        def _go_on(self, now_us: int, run: str, call: SlotCall) -> int:
            was_whole = self._is_whole
            clock_us = super()._go_on(now_us, run, call)
            if not was_whole:
                fence, self._pools = self._pools.fence, kind()
                self._pools.fence = fence
            return clock_us

    return Authority


class HoldsForLonger(SlotPeer):
    """Keeps using a slot for a while after its lease."""

    def take_in(self, call: SlotCall, reply: SlotReply, sent_ns: int, now_ns: int) -> Any:
        changed = super().take_in(call, reply, sent_ns, now_ns)
        for claim in self.claims:
            claim.end_ns += self.lease_ns
        return changed


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ({"new_authority": WithoutQuarantine}, "law"),
        ({"new_authority": CountsTimeThatNobodySaw}, "law"),
        ({"new_authority": FencesFromOne}, "fences"),
        ({"new_authority": with_pools(HandsOverOnlyWhenAsked)}, "stranded"),
        ({"new_authority": with_pools(ReleasesAnybody)}, "law"),
        ({"new_authority": with_pools(NeverConfirmed)}, "leaked"),
        ({"new_peer": HoldsForLonger}, "law"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value.values())).__name__,
)
def test_rule_that_is_broken_on_purpose_is_found(broken: dict[str, Any], what: str) -> None:
    """Each rule broken on purpose is found, which shows that the histories can fail."""
    for seed in range(BROKEN_HISTORIES):
        found: Found = World(seed, **broken).run()
        if getattr(found, what):
            return
    pytest.fail(f"{BROKEN_HISTORIES} histories, and nothing was found")
