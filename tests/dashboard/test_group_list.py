"""The list of groups: the worst first, searched and paged, with what is known of each."""

from dataclasses import replace

import pytest

from ratelimited_executor.dashboard.group_list import group_list_of

from .pictures import limits, picture, pool


def rows(pictures, find="", page=1):
    listed = group_list_of(sorted(pictures), pictures.get, find=find, page=page)
    return listed, [row.name for row in listed.rows]


def test_groups_in_trouble_come_first():
    """A quarantine comes before a penalty, before a full limit, before the fullest, before the idle and the unread."""
    pictures = {
        "a-unread": None,
        "b-idle": picture(shared=[limits(active=0)]),
        "c-active": picture(shared=[limits(used=3)]),
        "d-busy": picture(shared=[limits(used=90)]),
        "e-full": picture(shared=[limits(used=100)]),
        "f-penalty": picture(shared=[limits(penalty=3.0)]),
        "g-quarantine": picture(shared=[limits(quarantine=2.0)]),
        "h-slots": picture(pools=[pool(held=2)]),
    }
    listed, names = rows(pictures)
    assert names == [
        "g-quarantine", "f-penalty", "e-full", "d-busy", "c-active", "b-idle", "h-slots", "a-unread",
    ]  # fmt: skip
    states = {row.name: row.state for row in listed.rows}
    assert states["g-quarantine"] == "quarantine: 2 s left"
    assert states["e-full"] == "at its limit"
    busy = next(row for row in listed.rows if row.name == "d-busy")
    assert (busy.rates, busy.demand, busy.peers, busy.slots) == (["llm: 100/min"], "90 of 100", "1 of 2", "-")
    assert next(row for row in listed.rows if row.name == "h-slots").slots == "2 of 4"


def test_quarantine_of_slots_counts():
    """A group whose slots are in quarantine is in trouble as well."""
    shown = picture(pools=[pool()])
    shown = replace(shown, slots=replace(shown.slots, quarantine=7.0))
    assert rows({"x": shown})[0].rows[0].state == "quarantine: 7 s left"


def test_list_is_searched_and_paged():
    """A page has 50 groups; a search ignores case; the nearest page is returned."""
    pictures = {f"g{number:03}": None for number in range(120)}
    listed, names = rows(pictures, page=9)
    assert (listed.page, listed.page_count, len(names), listed.count) == (3, 3, 20, 120)
    assert rows(pictures, find="G00")[0].found_count == 10


def test_many_executors_of_a_group_are_counted():
    """The limits of three names are shown, and the others counted."""
    shown = picture(shared=[limits(f"e{number}") for number in range(5)])
    assert rows({"x": shown})[0].rows[0].rates == ["e0: 100/min", "e1: 100/min", "e2: 100/min", "and 2 more"]


@pytest.mark.parametrize("amount", [0, 100])
def test_limit_of_nothing_is_no_error(amount):
    """A limit of 0, as of a paused group, is full as soon as anything is in use."""
    shared = limits(used=1)
    shared = replace(shared, limits=[replace(shared.limits[0], amount=amount)])
    assert rows({"x": picture(shared=[shared])})[0].rows[0].used == (1.0 if amount == 0 else 0.01)
