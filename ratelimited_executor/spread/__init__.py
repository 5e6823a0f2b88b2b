"""Spread the work of a whole population over a cycle, identically on every machine: pure functions.

A *key* (a customer's number, a UUID) has an *offset* in a *period*, which depends only on a hash of the key: no state,
no coordination, and the same in every process, Python version and language. A *cycle* of, say, eight hours is divided
into *cycle slots*. A key belongs to the slot that contains its offset, and databases can select the keys of a slot
themselves.

>>> cycle_slots("8h")
128
>>> cycle_slot_of(4711, "8h"), round(offset(4711, "8h"), 3)
(58, 13174.755)
"""

from __future__ import annotations

from ratelimited_executor.spread.balance import balance
from ratelimited_executor.spread.keys import Key, key_bytes, key_hash, offset, offset_ns
from ratelimited_executor.spread.slots import CycleSlots, cycle_slot_of, cycle_slots, reciprocal
from ratelimited_executor.spread.sql import bucket_expression, install_sqlite, slot_predicate

__all__ = [
    "CycleSlots",
    "Key",
    "balance",
    "bucket_expression",
    "cycle_slot_of",
    "cycle_slots",
    "install_sqlite",
    "key_bytes",
    "key_hash",
    "offset",
    "offset_ns",
    "reciprocal",
    "slot_predicate",
]
