"""Runs one fault against families of limits, and judges what the resource has counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .backends import backend
from .families import FAMILIES
from .faults import FAULTS, Scene
from .group import Group
from .resource import Found, Quota, Resource

POLL_SECONDS = 0.05
LOOK_SECONDS = 0.25  # a look takes some milliseconds, for which a proxy in this process waits
WARM_SECONDS = 30  # to the first start of each family
STEADY_SECONDS = 2.5  # from then on to the fault
STILL_SECONDS = 30  # without a start, after which a family stands still
PART = 0.85  # of the rate before the fault that a second must have for the recovery to be over
FEW = 5.0  # starts a second below which a second says nothing: then the next start is the recovery

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Account:
    """What became of a family.

    Attributes:
        before: starts a second before the fault.
        after: starts a second in the last two seconds.
        first: seconds from the end of the fault to the next start; None if there was none.
        recovery: seconds from there to the first second with most of what there was before; None if there was none.
        is_spent: True if its quota was used, so that it could not recover.
        laws: what each law has found.
        unstarted: tasks that have neither started nor wait.
        may_stand: True if it may stand still.
    """

    name: str
    before: float
    after: float
    first: float | None
    recovery: float | None
    is_spent: bool
    laws: tuple[Found, ...]
    unstarted: int
    may_stand: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a fault did, from ``begin`` on for ``took`` seconds."""

    fault: str
    server: str
    begin: float
    took: float
    accounts: tuple[Account, ...]
    errors: Counter[str]
    silent: frozenset[int]
    notes: tuple[str, ...]

    @property
    def broken(self) -> list[str]:
        """Describe what must never be: a law broken, a task lost, a process or a family that stands still."""
        words = [
            f"{each.name}, {found} {found.at - self.begin:+.2f} s from the fault's begin on"
            + (f" ({found.note})" if found.note else "")
            for each in self.accounts
            for found in each.laws
            if found.is_broken
        ]
        words += [f"{each.name}: {each.unstarted} tasks lost" for each in self.accounts if each.unstarted]
        words += [
            f"{each.name}: nothing has started for {STILL_SECONDS} s"
            for each in self.accounts
            if each.first is None and not (each.is_spent or each.may_stand)
        ]
        words += [f"process {process} does not answer" for process in sorted(self.silent)]
        return words + [f"{count} times {error}" for error, count in self.errors.items()]

    def recovery_of(self, *names: str) -> float | None:
        """Return the slowest recovery of families; None if one has not recovered."""
        found = [each for each in self.accounts if each.name in names and not each.is_spent]
        times = [each.recovery for each in found]
        return max((each for each in times if each is not None), default=0.0) if None not in times else None


def run(
    name: str,
    server: str,
    *,
    families: Sequence[str] = tuple(FAMILIES),
    processes: int = 4,
    settings: Mapping[str, Any] | None = None,
    least: float = 5.5,
    most: float = 12.0,
    awaited: Collection[str] = (),
    log: str = "",
    tell: Tell = lambda text, part: None,
) -> Outcome:
    """Let a fault happen to a group, and judge what it did.

    Args:
        name: of the fault.
        server: ``redis``, ``valkey``, ``debian``, or the path of a program.
        families: names of families.
        processes: how many there are at first.
        settings: parameters of the peers.
        least: seconds to watch after the fault, at least.
        most: and at most, if not all families have recovered before; longer only if one has not started at all.
        awaited: families of which only the first starts, before and after the fault, are awaited, instead of the recovery
            of all; the other ones may stand still.
        log: level of what processes log to stderr.
        tell: is told what goes on, and the part that is done.
    """
    fault = FAULTS[name]
    tell("servers", 0.0)
    with backend(fault.topology, server) as authority, Resource() as resource:
        peers = {**authority.peers, "settings": dict(settings or {})}
        with Group(resource, families, peers, authority.environment, log) as group:
            tell("first starts", 0.1)
            group.add(processes)
            must = [index for index, each in enumerate(families) if not awaited or each in awaited]
            _wait_for_starts(resource, must)
            time.sleep(1 if awaited else STEADY_SECONDS)
            tell(fault.text, 0.4)
            scene = Scene(authority, group)
            begin = time.monotonic()
            fault.happen(scene)
            over = scene.over or time.monotonic()
            before = [_before(resource, index, begin, FAMILIES[each].ceiling) for index, each in enumerate(families)]
            tell("recovery", 0.6)
            rates = {index: 0.0 if awaited else before[index] for index in must}
            while (now := time.monotonic()) < over + max(most, STILL_SECONDS):
                if now > over + least and _are_back(resource, families, over, rates, now):
                    break
                if now > over + most and _are_back(resource, families, over, dict.fromkeys(must, 0.0), now):
                    break
                time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            unstarted, errors, silent = group.reports()
            tell("done", 1.0)
        accounts = tuple(
            Account(
                each,
                before[index],
                resource.count(index, now - 2, now) / 2,
                _first(resource, index, over),
                _recovery(resource, index, over, before[index], now),
                _is_spent(resource, index, each, now),
                tuple(law.look(resource, index) for law in FAMILIES[each].laws),
                unstarted.get(each, 0),
                index not in must,
            )
            for index, each in enumerate(families)
        )
        return Outcome(name, server, begin, over - begin, accounts, errors, frozenset(silent), tuple(scene.notes))


def _wait_for_starts(resource: Resource, families: Iterable[int]) -> None:
    """Wait until families have started something."""
    end = time.monotonic() + WARM_SECONDS
    while time.monotonic() < end and not all(resource.count(index, 0, end) for index in families):
        time.sleep(POLL_SECONDS)


def _before(resource: Resource, family: int, begin: float, ceiling: float) -> float:
    return min(ceiling, resource.count(family, begin - 2, begin) / 2)


def _first(resource: Resource, family: int, over: float) -> float | None:
    return min((at - over for at in resource.arrivals(family, over)), default=None)


def _recovery(resource: Resource, family: int, over: float, rate: float, now: float) -> float | None:
    """Return when the first second began that had most of the rate, in seconds from the end of the fault on."""
    if rate < FEW:
        return _first(resource, family, over)
    times = sorted(resource.arrivals(family, over))
    needed = max(1, round(PART * rate))
    candidates = [over, *times]
    first = 0
    for candidate in candidates:
        if candidate + 1 > now:
            return None
        while first < len(times) and times[first] < candidate:
            first += 1
        if first + needed <= len(times) and times[first + needed - 1] < candidate + 1:
            return candidate - over
    return None


def _are_back(resource: Resource, families: Sequence[str], over: float, rates: Mapping[int, float], now: float) -> bool:
    """Return True if families have recovered to their rates, or used their quota."""
    return all(
        _recovery(resource, index, over, rate, now) is not None or _is_spent(resource, index, families[index], now)
        for index, rate in rates.items()
    )


def _is_spent(resource: Resource, family: int, name: str, now: float) -> bool:
    return any(isinstance(law, Quota) and law.is_spent(resource, family, now) for law in FAMILIES[name].laws)
