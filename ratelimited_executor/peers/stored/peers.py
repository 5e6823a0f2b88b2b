"""What peers with a memory in a database have in common: their settings, and the keeper of their slots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.durations import duration_of
from ratelimited_executor._core.fleet.slot_peer import SlotSettings
from ratelimited_executor.peers.fleet import FleetPeers, new_peer_id
from ratelimited_executor.peers.slots import GroupSlots

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.fleet.policies import Outage
    from ratelimited_executor.peers.slots import SlotTransport
    from ratelimited_executor.peers.transport import Transport

__all__ = ["StoredPeers"]


class StoredPeers(FleetPeers):
    """Base of peers that decide for themselves.

    Args:
        transport: carries the calls of executors.
        slot_transport: makes one for the calls of slots.
        lease: seconds, 0.5 to 600, for which a slot is held without renewal.
        hang_timeout: seconds, at least ``lease``, for which an event loop may be blocked before its slots are no longer
            renewed.
        new_id: makes the id of a process's slots.
        options: for :class:`~ratelimited_executor.peers.fleet.FleetPeers`.
    """

    __slots__ = ("_new_slots",)

    def __init__(
        self,
        transport: Transport,
        slot_transport: Callable[[], SlotTransport],
        *,
        lease: DurationLike,
        hang_timeout: DurationLike,
        outage: Outage,
        clock_difference: DurationLike,
        timeout: DurationLike,
        new_id: Callable[[], str] = new_peer_id,
        **options: Any,
    ) -> None:
        super().__init__(transport, outage=outage, clock_difference=clock_difference, timeout=timeout, **options)
        lease_seconds, hang_seconds = duration_of("lease", lease), duration_of("hang_timeout", hang_timeout)
        for name, seconds, least, most in (
            ("lease", lease_seconds, 0.5, 600.0),
            ("hang_timeout", hang_seconds, lease_seconds, 86_400.0),
        ):
            if not least <= seconds <= most:
                raise ValueError(f"{name} must be from {least:g} to {most:g} seconds, got {seconds:g}")
        self._new_slots = partial(
            GroupSlots,
            SlotSettings(
                id="",
                lease_us=round(lease_seconds * 1e6),
                difference_us=round(duration_of("clock_difference", clock_difference) * 1e6),
            ),
            slot_transport,
            new_id=new_id,
            timeout=max(duration_of("timeout", timeout), lease_seconds / 20),
            hang_timeout=hang_seconds,
            outage=outage,
        )

    def join(self, owner: Any) -> Any:
        """Join the group's limits of an executor's name; return the member.

        Raises:
            ValueError: if its rate is adaptive.
        """
        if owner.is_adaptive:
            raise ValueError(
                f"the rate of {owner.name!r} is adaptive, which {type(self).__name__} do not share: use RedisPeers"
            )
        return super().join(owner)

    def slots(self) -> GroupSlots:
        """Return the keeper of a manager's slots; only the manager calls it."""
        return self._new_slots()
