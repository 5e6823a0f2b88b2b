"""What is simulated: a class whose fields are its parameters."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ratelimited_executor.simulation.simulation import Simulation

__all__ = ["Scenario"]


class Scenario:
    """What is simulated: subclass it, give it parameters as the fields of a dataclass, and set up the world.

    >>> @dataclasses.dataclass
    ... class Invoices(Scenario):
    ...     '''Send all invoices of a month.'''
    ...
    ...     count: int = 500_000
    ...     rate: float = 50
    ...
    ...     def setup(self, sim):
    ...         send = sim.job("send", 0.4)
    ...         sim.executor("api", rate=self.rate, max_concurrency=40).schedule_many(send, range(self.count))

    Attributes:
        days: for how long it runs, unless it is told otherwise.
        interval: seconds in an interval of its executors.
    """

    days: ClassVar[float] = 7.0
    interval: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        """What it is called: the name of the class in small letters."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    def setup(self, sim: Simulation) -> Awaitable[None] | None:
        """Set up executors, jobs and arrivals; may be ``async``."""
        raise NotImplementedError(f"{type(self).__name__} must define setup(sim)")

    def parameters(self) -> dict[str, Any]:
        """Return the parameters, as they are written down."""
        names: list[str] = [field.name for field in fields(self)] if is_dataclass(self) else []
        return {name: getattr(self, name) for name in names}
