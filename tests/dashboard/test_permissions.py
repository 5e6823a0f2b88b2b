"""Who may change what is decided by a function of the request, or of the request, the action and the name."""

import pytest

from ratelimited_executor.dashboard.permissions import Permissions

ACTIONS = ("pause", "resume", "set-rate")


async def test_function_of_the_request_is_asked_once_for_all():
    """A function of one argument decides about all actions alike, asked once for a page."""
    asked = []

    def ask(request):
        asked.append(request)
        return request == "ann"

    permissions = Permissions(ask)
    assert await permissions.of("ann", ACTIONS, "mail") == set(ACTIONS)
    assert await permissions.of("bob", ACTIONS, "mail") == set()
    assert asked == ["ann", "bob"]
    assert await permissions.may("ann", "pause", "mail")


@pytest.mark.parametrize("is_async", [False, True])
async def test_function_of_three_decides_about_each(is_async):
    """A function of three arguments is asked about each action of each executor."""

    def decide(request, action, name):
        return (action, name) == ("pause", "mail")

    async def ask(request, action, name):
        return decide(request, action, name)

    permissions = Permissions(ask if is_async else decide)
    assert await permissions.of("ann", ACTIONS, "mail") == {"pause"}
    assert await permissions.of("ann", ACTIONS, "payments") == set()
    assert await permissions.may("ann", "pause", "mail")
    assert not await permissions.may("ann", "resume", "mail")


async def test_without_a_function_nothing_is_allowed():
    """Nobody may change anything unless a function says so."""
    permissions = Permissions(None)
    assert await permissions.of("ann", ACTIONS, "mail") == set()
    assert not await permissions.may("ann", "pause", "mail")


@pytest.mark.parametrize(
    ("ask", "is_detailed"),
    [
        (lambda request: True, False),
        (lambda request, action: True, False),
        (lambda *everything: True, True),
        (lambda request, action, name, more=1: True, True),
        (lambda request, action, name, more: True, False),
        (lambda request, role="admin", force=False: bool(force), False),
    ],
)
def test_number_of_arguments_decides(ask, is_detailed):
    """Only a function that is made for three arguments gets the action and the name; optional ones mean something else."""
    assert Permissions(ask)._is_detailed is is_detailed
