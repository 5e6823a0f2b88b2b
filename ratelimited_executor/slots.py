"""Slots: how many may do something at the same time, whoever they are."""

from __future__ import annotations

from ratelimited_executor._runtime.slots import OnLost, Slot, SlotHold, SlotHolder, Slots, SlotStatistics, current_slot

__all__ = ["OnLost", "Slot", "SlotHold", "SlotHolder", "SlotStatistics", "Slots", "current_slot"]
