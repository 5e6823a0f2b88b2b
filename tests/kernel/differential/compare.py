"""Compare two sides, make a program that differs as small as possible, and report how it differs."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .programs import Program, draw
from .sides import Side

SHRINK_SECONDS = 60.0
_REPORT_COUNT = (
    20  # runs of a program until it differs again: a difference in an order of addresses does not show each time
)
_CONTEXT_LINES = 4  # how many events are shown before the first one that differs
_MORE_LINES = 3  # how many events of each side are shown from there on


class Sides:
    """Two kernels to be compared.

    Args:
        one: usually the pure one.
        other: usually the compiled one.
    """

    def __init__(self, one: Side, other: Side) -> None:
        self.one, self.other = one, other

    def run(self, program: Program) -> tuple[list[Any], list[Any]]:
        """Run a program on both at the same time, and return the events of each."""
        self.one.send(program)
        self.other.send(program)
        return self.one.receive(), self.other.receive()

    def differ(self, program: Program) -> bool:
        """True if the program does not do the same on both."""
        one, other = self.run(program)
        return one != other

    def first_difference(self, seeds: Iterable[int]) -> tuple[int, Program] | None:
        """Return the first seed whose program differs, and that program made small; None if no program differs."""
        for seed in seeds:
            program = draw(seed)
            if self.differ(program):
                return seed, shrink(program, self.differ)
        return None

    def report(self, seed: int | None, program: Program) -> str:
        """Return a text that tells how a program differs, and how to run it again."""
        for _ in range(_REPORT_COUNT):
            one, other = self.run(program)
            if one != other:
                break
        head = (
            "the kernels differ"
            if seed is None
            else f"the kernels differ by the program of seed {seed}, of which this is left"
        )
        text = json.dumps(program, indent=1)
        return "\n".join(
            [
                f"{head}; to run it again:",
                "",
                f"python -m tests.kernel.differential replay - <<'PROGRAM'\n{text}\nPROGRAM",
                "",
                *difference(one, other, self.one.kernel.get("kernel", "one"), self.other.kernel.get("kernel", "other")),
            ]
        )


def difference(one: list[Any], other: list[Any], name: str, other_name: str) -> list[str]:
    """Return lines that show where two lists of events begin to differ."""
    place = next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    if place == len(one) == len(other):
        return [
            f"no difference in {len(one)} events; if there was one, it does not come each time: look for an order by addresses"
        ]
    lines = [f"event {place} differs, of {len(one)} and {len(other)}:"]
    lines += [f"    both: {json.dumps(event)}" for event in one[max(0, place - _CONTEXT_LINES) : place]]
    for side, events in ((name, one), (other_name, other)):
        found = events[place : place + _MORE_LINES] or ["(nothing more)"]
        lines += [f"    {side}: {json.dumps(event)}" for event in found]
    return lines


def shrink(program: Program, differs: Callable[[Program], bool], seconds: float = SHRINK_SECONDS) -> Program:
    """Leave out or make smaller what the difference does not need, until nothing more can go or the time is up."""
    stop = time.monotonic() + seconds

    def keep(smaller: Program) -> bool:
        """Continue with a smaller program if that differs as well; return whether it does."""
        nonlocal program
        is_kept = time.monotonic() < stop and differs(smaller)
        if is_kept:
            program = smaller
        return is_kept

    before = None
    while before != program and time.monotonic() < stop:
        before = program
        for name in ("ops", "executors"):
            size = len(program[name])
            while size:  # in large parts first, then in smaller ones
                at = 0
                while at < len(program[name]):
                    rest = program[name][:at] + program[name][at + size :]
                    if not ((rest or name == "ops") and keep({**program, name: rest})):
                        at += size
                size //= 2
        number = 0
        while number < len(paths := list(_paths(program))):
            if not any(map(keep, _without(program, paths[number]))):
                number += 1  # otherwise there is something else in the same place now, or something smaller
    return program


# What a program needs to be valid; all other entries may be left out of their dictionary.
_NEEDED = frozenset(
    {
        "do",
        "ops",
        "executors",
        "until",
        "kind",
        "call",
        "name",
        "of",
        "how",
        "tuple",
        "list",
        "odd",
        "cancel",
        "results",
    }
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a program, outer ones before inner ones."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _without(program: Program, path: tuple[Any, ...]) -> Iterator[Program]:
    """Yield programs in which the value at a path is left out or simpler."""
    owner: Any = program
    for key in path[:-1]:
        owner = owner[key]
    key, value = path[-1], owner[path[-1]]
    is_step = isinstance(owner, list) and len(path) > 1 and path[-2] in ("steps", "args", "delays")
    if (isinstance(owner, dict) and key not in _NEEDED) or is_step:
        yield _changed(program, path, lambda owner: owner.pop(key))
    simpler: list[Any] = []
    if isinstance(value, bool):
        simpler = [False] if value else []
    elif isinstance(value, int) and key in ("count", "max_runs", "steps"):
        simpler = [value // 2, value - 1] if value > 1 else []
    elif isinstance(value, (int, float)):
        simpler = [number for number in (0, 1.0, float(round(value))) if abs(number) < abs(value)]
    elif key == "kind" and value != "function":
        simpler = ["function", "coroutine"] if value != "coroutine" else ["function"]
    elif key == "rate" and value != "inf/s":
        simpler = ["inf/s"]
    for one in simpler:
        yield _changed(program, path, lambda owner, one=one: owner.__setitem__(key, one))


def _changed(program: Program, path: tuple[Any, ...], change: Callable[[Any], object]) -> Program:
    changed = copy.deepcopy(program)
    owner: Any = changed
    for key in path[:-1]:
        owner = owner[key]
    change(owner)
    return changed
