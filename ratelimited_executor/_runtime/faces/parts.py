"""The parts of a started executor, as its faces see them: for the type checker alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ratelimited_executor._runtime.insight.insight import Insights
from ratelimited_executor._runtime.insight.observing import ObservableParts
from ratelimited_executor._runtime.repeat.cycle import CycleParts
from ratelimited_executor._runtime.task.permit import PermitParts

if TYPE_CHECKING:
    from ratelimited_executor._runtime.limits.keys import Keys
    from ratelimited_executor._runtime.task.launch import Threads

__all__ = ["FaceParts"]


class FaceParts(Insights, ObservableParts, PermitParts, CycleParts, Protocol):
    """The parts of a started executor that its faces use; most use only its engine, an :class:`Intake`."""

    @property
    def keys(self) -> Keys:
        """The limits of keys."""
        ...

    @property
    def threads(self) -> Threads:
        """The thread pool for calls in threads."""
        ...
