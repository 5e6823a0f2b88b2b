"""Slots: limits on how many holders do something at the same time."""

from __future__ import annotations

from ratelimited_executor._runtime.limits.slots import (
    OnLost,
    Slot,
    SlotHold,
    SlotHolder,
    Slots,
    SlotStatistics,
    current_slot,
)

__all__ = ["OnLost", "Slot", "SlotHold", "SlotHolder", "SlotStatistics", "Slots", "current_slot"]
