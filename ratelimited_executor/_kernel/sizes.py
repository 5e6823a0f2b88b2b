"""Thresholds of the kernel, the same for both of its bodies."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BLOCKED_SECONDS",
    "CALL_COUNT_MAX",
    "CALL_NS",
    "COMPACT_COUNT",
    "CROWD_COUNT",
    "DESCRIPTOR_SECONDS_MAX",
    "FAR_SECONDS",
    "FEW_COUNT",
    "LARGE_COUNT",
    "LONG_HOLD_SECONDS",
    "MARGIN_COUNT",
    "OPEN_COUNT_MAX",
    "PART_COUNT",
    "PHASE_SECONDS_MAX",
    "PLACE_COUNT",
    "PULL_STEPS",
    "READY_RECORD_COUNT_MAX",
    "RECORD_COUNT_MAX",
    "ROUNDING_SECONDS",
    "ROUND_UP",
    "RUN_COUNT",
    "SLICE_SECONDS",
    "SLOT_COUNT",
    "SPARE_COUNT",
    "START_COUNT_MAX",
    "STRETCH_COUNT_MAX",
    "TICKS",
    "TICKS_MAX",
]

BLOCKED_SECONDS: Final = 1.0  # a timer later than this is worth a warning
CALL_COUNT_MAX: Final = 1024  # done callbacks called in one turn of the loop
# The end of a plain call is taken as its effect, but at most this long after its decision: a call that holds the loop
# for longer has taken effect before, and must not cost the rate all of its duration.
CALL_NS: Final = 5_000_000
COMPACT_COUNT: Final = 128  # entries of a heap of engines, stale ones included, that are tolerated
CROWD_COUNT: Final = 64  # starts in one run from which the next wake-up may come later
DESCRIPTOR_SECONDS_MAX: Final = 9e9  # the system counts nanoseconds in 63 bits
FAR_SECONDS: Final = 1e15  # 30 million years: later due times are kept, and their intervals need not be told apart
FEW_COUNT: Final = 256  # tasks that become ready quickly: no wake-up is spent on them before there is a permit
LARGE_COUNT: Final = 16384  # a bucket with more tasks is put in order before its time comes
MARGIN_COUNT: Final = 3  # permits by which an estimate may be off
OPEN_COUNT_MAX: Final = (
    512  # positions kept as one sorted list: an insertion into so many is cheaper than the loop around it
)
PULL_STEPS: Final = 2.0  # work between two looks at the clock: about two milliseconds
READY_RECORD_COUNT_MAX: Final = 256  # tasks with records made ready in one step: about a millisecond
RECORD_COUNT_MAX: Final = 4096  # records in one run: what a compaction touches
RUN_COUNT: Final = 4096  # positions taken in one step: about a millisecond
PART_COUNT: Final = 16384  # positions of a fuller slot sorted in one step by the compiled body: about a millisecond
PLACE_COUNT: Final = 4096  # positions put into slots in one step: about a millisecond
PHASE_SECONDS_MAX: Final = 0.1  # between two executors: a longer one would only make tasks late
ROUND_UP: Final = 1 + 2**-51  # makes up for the rounding of a sum and of a difference
SLICE_SECONDS: Final = 0.003  # of work before the loop gets its turn, plus the last task started
SLOT_COUNT: Final = 1024  # into which an open bucket is cut
START_COUNT_MAX: Final = 1024  # tasks started between two turns of the loop
STRETCH_COUNT_MAX: Final = 1024  # tasks of one stretch: the event loop gets its turn even where time stands still
SPARE_COUNT: Final = 64  # empty places of a bucket that are tolerated
ROUNDING_SECONDS: Final = 1e-6  # more than rounding can put a due time before its slot
LONG_HOLD_SECONDS: Final = 0.1  # a task that blocks the loop for longer is named in a warning
TICKS: Final = 1000  # in a second of a loop whose time is coarse
TICKS_MAX: Final = 1e12  # seconds, from which there are no ticks
