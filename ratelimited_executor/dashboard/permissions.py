"""Who may change what: a function of the user decides, for each action of each executor and each store."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ratelimited_executor.dashboard.guards import is_granted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.requests import Request

__all__ = ["Permissions"]


class Permissions:
    """Asks the function of the user.

    Args:
        ask: called with a request, or, if it has to be called with three arguments or takes any number, with a request, an action and the name of the executor
            or store; None allows nothing.
    """

    def __init__(self, ask: Callable[..., Any] | None) -> None:
        self._ask = ask
        self._is_detailed = ask is not None and _takes_three(ask)

    async def may(self, request: Request, action: str, name: str) -> bool:
        """Return True if a request may make a change.

        Raises:
            TypeError: if the function returns anything but a bool.
        """
        if self._ask is None:
            return False
        return await is_granted(self._ask, request, *((action, name) if self._is_detailed else ()))

    async def of(self, request: Request, actions: Iterable[str], name: str) -> frozenset[str]:
        """Return which of some changes a request may make: a function of the request alone is asked once."""
        if self._is_detailed:
            return frozenset([each for each in actions if await self.may(request, each, name)])
        return frozenset(actions if await self.may(request, "", name) else ())


def _takes_three(ask: Callable[..., Any]) -> bool:
    """True if a function is made for three arguments: optional ones after the request have a meaning of their own."""
    try:
        signature = inspect.signature(ask)
        signature.bind(None, None, None)
    except (TypeError, ValueError):  # or it has no signature, as some of C have none
        return False
    if any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()):
        return True
    try:
        signature.bind(None)
    except TypeError:
        return True
    return False
