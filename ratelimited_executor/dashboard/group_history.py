"""What the page of groups remembers: a point of each limit and pool every few seconds, whether anybody looks or not.

Redis holds the present alone, so the points are kept in the memory of this process. The number of groups and of series is
limited: an hour of one series takes 12 to 17 KB, and each point of a group takes a few calls of Redis.
"""

from __future__ import annotations

import asyncio
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from ratelimited_executor.dashboard.errors import PageError
from ratelimited_executor.dashboard.history import POINT_COUNT, STEP_SECONDS, History
from ratelimited_executor.dashboard.plots import plot_of
from ratelimited_executor.dashboard.texts import number_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from typing import NoReturn

    from ratelimited_executor.dashboard.plots import Plot

__all__ = ["GROUP_COUNT_MAX", "SERIES_COUNT_MAX", "GroupRecorder"]

GROUP_COUNT_MAX: Final = 50
"""Groups with a history."""
SERIES_COUNT_MAX: Final = 10
"""Limits and pools of one group with a history, and counts of peers, in this order."""
_SEARCH_SECONDS: Final = 30.0  # between two searches for groups if nobody looks: each scans all keys of the server
_PAUSE_SECONDS: Final = 1.0  # between two rounds, at least

_logger = getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")
SeriesName: TypeAlias = tuple[str, ...]
"""``("limit", name of the executor, name)``, ``("pool", name)`` or ``("peers", name of the executor)``."""


class _LimitPoint(NamedTuple):
    at: float
    used: float
    limit: float


class _PoolPoint(NamedTuple):
    at: float
    held: float  # slots
    limit: float
    waiting: float  # claims


class _PeersPoint(NamedTuple):
    at: float
    active: float  # that have called lately


class _Shown(NamedTuple):
    title: str
    lines: Sequence[str]


_SHOWN: Final[Mapping[str, Sequence[_Shown]]] = {
    "limit": (_Shown("in use", ("used", "limit")),),
    "pool": (_Shown("held slots", ("held", "limit")), _Shown("waiting for a slot", ("waiting",))),
    "peers": (_Shown("active peers", ("active",)),),
}
"""The plots of each kind of series, all of counts; their titles follow the name of the series."""


class GroupRecorder:
    """Records how groups stand; while they cannot be read, their plots have a gap.

    Args:
        groups: returns their names, as they were at most so many seconds ago.
        read: returns the limits and slots of one.
        clock: returns epoch seconds.

    ``groups`` and ``read`` raise :class:`PageError` if they cannot.
    """

    def __init__(
        self,
        *,
        groups: Callable[[float], Awaitable[Sequence[str]]],
        read: Callable[[str], Awaitable[Any]],
        clock: Callable[[], float],
    ) -> None:
        self._groups = groups
        self._read = read
        self._clock = clock
        self._recorded: dict[str, dict[SeriesName, History[Any]]] = {}
        self._latest: dict[str, tuple[float, Any]] = {}  # what each recorded group had last, and when

    async def run(self) -> NoReturn:
        """Record until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            next_at = loop.time() + STEP_SECONDS
            try:
                await self.take()
            except Exception:  # an error of our own must not end the history, nor the page
                _logger.exception("the history of the groups has no point of this round: internal error; continuing")
            await asyncio.sleep(max(_PAUSE_SECONDS, next_at - loop.time()))

    async def take(self) -> None:
        """Take a point of each group; those for which the time of a step does not suffice get none."""
        loop = asyncio.get_running_loop()
        end = loop.time() + STEP_SECONDS
        try:
            names = await self._groups(_SEARCH_SECONDS)
        except PageError:
            return
        present: dict[str, None] = dict.fromkeys(names)
        _make_room(self._recorded, present, lambda _: {}, GROUP_COUNT_MAX)
        for name in [each for each in present if each in self._recorded]:
            try:
                picture = await self._read(name)
            except PageError:
                pass  # a gap
            else:
                self._add(name, picture)
            if loop.time() >= end:  # as when the server hangs, and each read times out
                return

    def latest(self, group: str) -> Any:
        """Return what was read of a recorded group at its last point; None if that is long ago, or it is not recorded."""
        at, picture = self._latest.get(group, (0.0, None))
        return picture if self._clock() - at <= 2 * STEP_SECONDS else None

    def _add(self, group: str, picture: Any) -> None:
        for gone in self._latest.keys() - self._recorded.keys():
            del self._latest[gone]
        self._latest[group] = self._clock(), picture
        recorded = self._recorded[group]
        points = dict(_points_of(picture, self._clock()))
        _make_room(recorded, points, lambda name: History(type(points[name])), SERIES_COUNT_MAX)
        for name, point in points.items():
            if name in recorded:
                recorded[name].add(point)

    def is_recorded(self, group: str) -> bool:
        """True if a group has a history."""
        return group in self._recorded

    def plots(self, group: str) -> dict[SeriesName, list[Plot]]:
        """Return the plots of each series of a group that has points of the last hour."""
        end = self._clock()
        return {
            name: _plots_of(name, history, end)
            for name, history in self._recorded.get(group, {}).items()
            if end - history.last_of("at") <= STEP_SECONDS * POINT_COUNT
        }


def _make_room(kept: dict[K, V], present: Mapping[K, object], make: Callable[[K], V], count_max: int) -> None:
    """Add what is present and not kept yet; if there is no room, in place of what is gone, or not at all."""
    for name in present:
        if name in kept:
            continue
        if len(kept) >= count_max:
            gone = next((each for each in kept if each not in present), None)
            if gone is None:
                return
            del kept[gone]
        kept[name] = make(name)


def _points_of(picture: Any, at: float) -> Iterator[tuple[SeriesName, tuple[float, ...]]]:
    """Yield a point of each series of a group; pools of single keys have none."""
    for shared in picture.limits:
        for limit in shared.limits:
            yield ("limit", shared.name, limit.name), _LimitPoint(at, limit.used, limit.amount)
    for pool in () if picture.slots is None else picture.slots.pools:
        if not pool.is_by_key:
            yield ("pool", pool.name), _PoolPoint(at, len(pool.holders), pool.limit, len(pool.waiting))
    for shared in picture.limits:
        yield ("peers", shared.name), _PeersPoint(at, shared.active_count)


def _plots_of(name: SeriesName, history: History[Any], end: float) -> list[Plot]:
    kind, *_, own_name = name
    times = history.column("at")
    return [
        plot_of(
            f"{own_name}, {title}",
            times,
            {line: history.column(line) for line in lines},
            end=end,
            text_of=number_text,
            is_whole=True,
        )
        for title, lines in _SHOWN[kind]
    ]
