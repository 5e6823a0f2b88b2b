"""The populations of a simulation: accounts, users or devices, each with a key and a record of its jobs.

Each key is to be synced once in every *period*. A key is *locked* while a job works on it: another job that starts
meanwhile is a lock conflict. The conflict is counted and the job continues, because how to react is the application's
choice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._core.durations import delay_of, format_duration, seconds_of
from ratelimited_executor._kernel.fields import MemberFields, PopulationFields
from ratelimited_executor._runtime.arguments import callable_of, number_of
from ratelimited_executor.simulation.limits import KEYS_MAX, check_most
from ratelimited_executor.spread.keys import key_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.spread.keys import Key

__all__ = ["Life", "Member", "Population"]

_AGE_COUNT_MAX: Final = 2000  # the largest sample of keys for measuring their ages


class Life(NamedTuple):
    """The life of a key that has joined or left a population.

    Attributes:
        key: the key.
        joined: seconds since the start at which it joined; None if it was there.
        left: seconds since the start at which it left; None if it is there.
        syncs: the number of its syncs until then.
    """

    key: Key
    joined: float | None
    left: float | None
    syncs: int


class Member(MemberFields):
    """A key of a population, and the record of its jobs.

    Attributes:
        population: its population.
        key: the key.
        number: its number in the population, from 0 on.
        weight: its amount of work, in multiples of a usual one.
        group: its group, such as a bank; None without groups.
        synced_at: seconds since the start at which it was last synced; if never, those at which it joined.
        active: the number of jobs that work on it now.
        syncs: the number of its syncs.
        failures: the number of its failures.
        longest: its longest time without a sync in seconds, including the time from the start, or from when it joined, to
            the first sync.
    """

    __slots__ = ()

    def __init__(
        self,
        population: Population,
        key: Key,
        number: int,
        weight: float,
        group: str | None,
        joined_at: float = 0.0,
    ) -> None:
        self.population = population
        self.key = key
        self.number = number
        self.weight = weight
        self.group = group
        self.synced_at = joined_at
        self.active = 0
        self.syncs = 0
        self.failures = 0
        self.longest = 0.0

    def begin(self) -> None:
        """Record that a job begins to work on it; a lock conflict, if another one already does."""
        if self.active:
            self.population.conflict_count += 1
        self.active += 1


class Population(PopulationFields):
    """Keys that are to be synced once in each period.

    Args:
        name: the name of the population.
        keys: their number, for the integers from 0 on, or the keys themselves, each once; those that are there at the start.
        period: seconds, a timedelta or a str such as ``"8h"``.
        weight: a function of a key that returns its amount of work, > 0 and finite; by default 1 for each.
        group: a function of a key that returns its group.
        is_changing: True if keys may join and leave, so that there may be none.

    Attributes:
        members: those that are there, by key, in the order in which they joined.
        left: those that have left, by key: their jobs that were on the way still run.
        lives: the lives of keys that have left, in that order.
        add_interval: called with the seconds between a sync and the previous one.
        outages: the outages by group, as (begin, end).
        conflict_count: jobs that have started while another worked on their key, since the last sample.
        outage_count: jobs that failed because of an outage, since the last sample.
        joined_count: keys that joined, since the last sample.
        left_count: keys that left, since the last sample.
        unserved_count: those of them that were never synced in their life.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if there is no key, a key occurs twice, or a weight or the period is out of range.
    """

    def __init__(
        self,
        name: str,
        keys: int | Iterable[Key],
        *,
        period: DurationLike,
        weight: Callable[[Any], float] | None = None,
        group: Callable[[Any], str] | None = None,
        is_changing: bool = False,
    ) -> None:
        self.name = name
        self.is_changing: Final = is_changing
        self._weight, self._group = weight, group
        self.period = float(seconds_of("period", period))
        if isinstance(keys, bool) or (isinstance(keys, int) and keys < (not is_changing)):
            raise ValueError(f"keys of the population {name} must be at least one, got {keys!r}")
        if isinstance(keys, int):
            check_most(f"keys of the population {name}", keys, KEYS_MAX, "keys")
        self.members: dict[Key, Member] = {}
        self.made_count = 0  # members so far, those that have left included
        for key in range(keys) if isinstance(keys, int) else keys:
            if key in self.members:
                raise ValueError(f"keys of the population {name} must differ, {key!r} occurs twice")
            self._add(key, 0.0)
        self.left: dict[Key, Member] = {}
        self.lives: list[Life] = []
        self._joined_at: dict[Key, float] = {}
        self._on_join: list[Callable[[Any], object]] = []
        self._on_leave: list[Callable[[Any], object]] = []
        self.joined_count = self.left_count = self.unserved_count = 0
        if not self.members and not is_changing:
            raise ValueError(f"keys of the population {name} must be at least one, got none")
        self.add_interval: Callable[[float], object] = float
        self.conflict_count = 0
        self.outage_count = 0
        self.outages: dict[str, list[tuple[float, float]]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Key]:
        return iter(self.members)

    def __contains__(self, key: object) -> bool:
        return key in self.members

    def knows(self, key: Key) -> bool:
        """True if a key is there, or has left."""
        return key in self.members or key in self.left

    # Keys that join and leave.

    def on_join(self, call: Callable[[Any], object]) -> None:
        """Call a function with each key that joins, when it is there."""
        self._on_join.append(callable_of("call", call))

    def on_leave(self, call: Callable[[Any], object]) -> None:
        """Call a function with each key that leaves, when it is no longer there."""
        self._on_leave.append(callable_of("call", call))

    def join(self, key: Key, now: float) -> None:
        """Let a key join; one that has left may join again, and begins a life of its own.

        Args:
            key: the key.
            now: seconds since the start.

        Raises:
            ValueError: if the key is there already, or the population is not one whose keys change.
        """
        if not self.is_changing:
            raise ValueError(f"population {self.name} has keys that never change: give it joins= or lifetime=")
        if key in self.members:
            raise ValueError(
                f"joins of the population {self.name} must be of keys that are not there, got {key!r} at {now:.6g} s, which has "
                "not left: let it leave first, or leave out that it joins again"
            )
        check_most(f"keys of the population {self.name}", len(self.members) + 1, KEYS_MAX, "keys")
        self._add(key, now)
        self._joined_at[key] = now
        self.left.pop(key, None)
        self.joined_count += 1
        for call in self._on_join:
            call(key)

    def leave(self, key: Key, now: float) -> None:
        """Let a key leave; jobs that work on it, or wait to, still run.

        Args:
            key: the key.
            now: seconds since the start.

        Raises:
            ValueError: if the key is not there.
        """
        member = self.members.pop(key, None)
        if member is None:
            raise ValueError(f"keys that leave the population {self.name} must be there, got {key!r}")
        self.left[key] = member
        self.lives.append(Life(key, self._joined_at.pop(key, None), now, member.syncs))
        self.left_count += 1
        self.unserved_count += not member.syncs
        for call in self._on_leave:
            call(key)

    def all_lives(self) -> list[Life]:
        """Return the lives of all keys that have joined or left, those that are there last."""
        there = (Life(key, at, None, self.members[key].syncs) for key, at in self._joined_at.items())
        return [*self.lives, *there]

    def _add(self, key: Key, now: float) -> None:
        key_bytes(key)  # refuses an invalid key
        share = 1.0 if self._weight is None else number_of(f"weight of {key!r}", self._weight(key))
        if share <= 0:
            raise ValueError(f"weight of {key!r} in the population {self.name} must be > 0, got {share!r}")
        group = None if self._group is None else self._group(key)
        self.members[key] = Member(self, key, self.made_count, share, group, now)
        self.made_count += 1

    # Jobs and outages.

    def add_outage(self, group: str, begin: DurationLike, end: DurationLike) -> tuple[float, float]:
        """Fail the group's jobs that start in [begin, end), since the start; return both bounds in seconds."""
        since, until = delay_of("begin", begin), delay_of("end", end)
        if since >= until:
            raise ValueError(f"an outage must begin at 0 s or later, and end later, got {begin!r} to {end!r}")
        if not any(member.group == group for member in self.members.values()):
            groups = sorted({str(member.group) for member in self.members.values()})
            raise ValueError(f"group must be one of the population {self.name}, {', '.join(groups[:8])}, got {group!r}")
        self.outages.setdefault(group, []).append((since, until))
        return since, until

    def is_out(self, member: Member, now: float) -> bool:
        """True if a key's group is out."""
        for begin, end in self.outages.get(member.group or "", ()):  # noqa: SIM110  # faster than any(), on the path of jobs
            if begin <= now < end:
                return True
        return False

    # Queries.

    def never_synced(self) -> list[Key]:
        """Return the keys that have not been synced yet."""
        return [key for key, member in self.members.items() if not member.syncs]

    def ages(self, now: float) -> list[float]:
        """Return the times since the last sync: of all keys, or of a fixed sample if there are many."""
        members = list(self.members.values())
        step = max(1, math.ceil(len(members) / _AGE_COUNT_MAX))
        return [now - member.synced_at for member in members[::step]]

    def __repr__(self) -> str:
        return f"<Population {self.name} of {len(self)} keys, each once in {format_duration(self.period)}>"
