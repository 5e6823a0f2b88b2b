"""Slots: how many may do something at the same time, whoever they are."""

from __future__ import annotations

from ratelimited_executor._runtime.slots import Slot, SlotHold, SlotHolder, Slots, SlotStatistics

__all__ = ["Slot", "SlotHold", "SlotHolder", "SlotStatistics", "Slots"]
