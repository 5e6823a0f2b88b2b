"""When a peer that has had its share asks again."""

import pytest

from ratelimited_executor._core.fleet.memory import Queue, Turn
from ratelimited_executor._core.fleet.shares import UNIT, Share

GAP = 200_000
CYCLE = 2_000


def share(*others: Turn, free_us: int = 0) -> Share:
    """Return the share of a peer that was served three tickets, of which it may have had two."""
    return Share(Queue(0), 0, 1 + len(others), 3 * UNIT, 2 * UNIT, GAP, CYCLE, [*others], free_us)


@pytest.mark.parametrize(
    ("others", "again_us"),
    [
        ([Turn(UNIT, 900_000, CYCLE, 50_000)], 50_000),
        ([Turn(UNIT, 900_000, CYCLE, 50_000), Turn(3 * UNIT, 900_000, CYCLE, 3_000)], 50_000),
        ([Turn(UNIT, 30_000, CYCLE, -1)], 30_000),
        ([Turn(UNIT, 900_000, CYCLE, 800_000)], 2 * GAP + 1),
        ([Turn(UNIT, 900_000, CYCLE, 500)], CYCLE),
    ],
    ids=["behind", "beside one refused like it", "late", "until all are level", "not before a call"],
)
def test_who_is_ahead_waits_for_who_is_behind(others, again_us):
    """It asks again when one who was served less is back, or no longer waited for; at the latest when all are level."""
    assert again_us == share(*others).again_us(UNIT, 0, 0)


def test_what_is_free_comes_first():
    """Before the time until which all is free, it does not ask again."""
    assert 70_000 == share(Turn(UNIT, 900_000, CYCLE, 50_000), free_us=70_000).again_us(UNIT, 0, 0)
