"""The outage policies and strictness of a peer."""

import pytest

from ratelimited_executor._core.fleet.policies import Outage, Strictness


@pytest.mark.parametrize("value", [True, 2.0, "3", None])
def test_static_outage_takes_integers_only(value):
    """``Outage.static`` refuses other types than integers, which would otherwise fail only in an outage."""
    with pytest.raises(TypeError, match="peers_max must be an integer"):
        Outage.static(value)


@pytest.mark.parametrize("value", [0, -1])
def test_static_outage_takes_one_peer_at_least(value):
    """``Outage.static`` refuses less than one peer."""
    with pytest.raises(ValueError, match="peers_max must be >= 1"):
        Outage.static(value)


@pytest.mark.parametrize("make", [lambda: Outage("stopp"), lambda: Outage("static", 0), lambda: Outage("")])
def test_outage_of_another_kind_is_refused(make):
    """An unknown kind of outage policy is refused: it would use the whole rate alone."""
    with pytest.raises((TypeError, ValueError)):
        make()


def test_outages_are_values():
    """Outage policies are values, with equality and a readable repr."""
    assert Outage.static(3) == Outage("static", 3)
    assert Outage.STOP == Outage("stop") != Outage.LOCAL
    assert ["stop", "static(3)", "local"] == [str(each) for each in (Outage.STOP, Outage.static(3), Outage.LOCAL)]


def test_strictness_is_one_of_two():
    """Strictness is exact or nominal."""
    assert [Strictness.EXACT, Strictness.NOMINAL] == [Strictness("exact"), Strictness("nominal")]
    with pytest.raises(ValueError, match="about"):
        Strictness("about")
