"""Settings of executors by the hour of the day, such as a rate for the night."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratelimited_executor.testing.clock import VirtualClock

__all__ = ["DAY_SECONDS", "HOUR_SECONDS", "Shift", "in_force"]

HOUR_SECONDS: Final = 3600.0
DAY_SECONDS: Final = 86_400.0


def in_force(hours: Mapping[int, Any], epoch: float) -> Any:
    """Return what is in force at a time: an omitted hour has the value of the one before it.

    >>> [in_force({8: "day", 20: "night"}, hour * 3600) for hour in (0, 8, 19, 20)]
    ['night', 'day', 'day', 'night']
    """
    now = int(epoch // HOUR_SECONDS) % 24
    return hours[max((hour for hour in hours if hour <= now), default=max(hours))]


class Shift:
    """Sets what is in force from now on, if the hour changes it; to be called at the beginning of each hour.

    Args:
        executors: the executors.
        name: the name of their setting.
        hours: its values, by the hour of the day from which on they are in force.
        clock: the clock of the simulation.
    """

    def __init__(self, executors: Sequence[Any], name: str, hours: Mapping[int, Any], clock: VirtualClock) -> None:
        self.executors: Final = tuple(executors)
        self._name = name
        self._hours = hours
        self._clock = clock

    def __call__(self) -> None:
        """Set it."""
        now = self._clock.wall()
        if int(now // HOUR_SECONDS) % 24 in self._hours:
            for executor in self.executors:
                setattr(executor, self._name, in_force(self._hours, now))
