"""Slots: limits on how many holders do something at the same time."""

from __future__ import annotations

from ratelimited_executor._core.slots.keeping import SlotHolder, SlotStatistics
from ratelimited_executor._runtime.limits.slots import OnLost, Slot, SlotHold, Slots, current_slot

__all__ = ["OnLost", "Slot", "SlotHold", "SlotHolder", "SlotStatistics", "Slots", "current_slot"]
