"""The choices of one run: an ordinary run, and the deviations from it, drawn from a seed or given.

Theory. Whatever a search may vary in a run is a choice between named options at a named point, such as which fault hits
the second call of ``bank.charge``. The first option is the ordinary one: no fault, the shortest delay, asyncio's order.
So a run is a seed and a set of deviations, and each deviation is found again by its point and number, whatever others
are left out: that is what makes a history short. Rejected: one sequence of choices for the whole run, as in Hypothesis,
in which leaving one out gives all later ones another meaning.

Which points deviate in a run is drawn first, then how often each does. With the same chances everywhere, a run with many
points would be full of faults, and no run would get far. Sources: Groce et al., "Swarm testing" (2012), and the sites of
FoundationDB's BUGGIFY, of which some are active in each run.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["ChoiceKind", "Choices", "Deviation", "DrawnPicks", "GivenPicks", "format_replay", "parse_replay"]

# A point deviates in at most half of its choices: a program that tries again until it succeeds comes to an end.
_CHANCE_MAX: Final = 0.5
# In a run, all points may deviate, or a half or a quarter of them.
_SHARE_HALVINGS: Final = 2

_SEED = re.compile(r"seed (-?\d+)")
_DEVIATION = re.compile(r"(?P<point>.+?) #(?P<number>[1-9]\d*): (?P<value>.+)")


class ChoiceKind(Enum):
    """What a choice varies; the report of a search counts by it."""

    FAULT = "fault"
    CANCEL = "cancel"
    CRASH = "crash"
    ORDER = "order"
    DELAY = "delay"
    INPUT = "input"

    @property
    def is_rare(self) -> bool:
        """True if the ordinary option is the usual one; False if all options are as likely."""
        return self not in (ChoiceKind.DELAY, ChoiceKind.INPUT)


# How often the chance of a deviation may be halved, by the number of choices that a run has: some calls, and perhaps hundreds of steps of tasks.
# What happens once in a run, such as a crash, would with large chances alone always happen near its beginning.
_CHANCE_HALVINGS: Final = {ChoiceKind.FAULT: 4, ChoiceKind.ORDER: 7, ChoiceKind.CANCEL: 8, ChoiceKind.CRASH: 10}


@dataclass(frozen=True, slots=True)
class Deviation:
    """A choice that did not take the ordinary option.

    Attributes:
        point: the name of the place in the run.
        number: which choice at this point it was, from 1.
        value: the option taken.
        simpler: the options before that one, the ordinary one first; empty if read from a text.
    """

    point: str
    number: int
    value: str
    simpler: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.point} #{self.number}: {self.value}"


class Picks(Protocol):
    """Decides which option a choice takes."""

    def __call__(self, point: str, number: int, options: Sequence[str], kind: ChoiceKind) -> int:
        """Return the index of the option to take."""
        ...


class DrawnPicks:
    """Draws options from a seed.

    Args:
        seed: any integer; the same seed draws the same options for the same choices.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"choices {seed}")  # noqa: S311  # it must be repeatable, not secret
        self._share = 0.5 ** self._random.randint(0, _SHARE_HALVINGS)
        self._chances: dict[str, float] = {}

    def __call__(self, point: str, number: int, options: Sequence[str], kind: ChoiceKind) -> int:  # noqa: ARG002  # as of Picks
        """Return the index of an option."""
        if not kind.is_rare:
            return self._random.randrange(len(options))
        if point not in self._chances:
            is_active = self._random.random() < self._share
            self._chances[point] = _CHANCE_MAX * 0.5 ** self._random.uniform(0, _CHANCE_HALVINGS[kind]) * is_active
        return self._random.randrange(1, len(options)) if self._random.random() < self._chances[point] else 0


class GivenPicks:
    """Takes the given deviations, and the ordinary option everywhere else."""

    def __init__(self, deviations: Iterable[Deviation]) -> None:
        self._values = {(each.point, each.number): each.value for each in deviations}

    def __call__(self, point: str, number: int, options: Sequence[str], kind: ChoiceKind) -> int:  # noqa: ARG002  # as of Picks
        """Return the index of the given option; 0 if none is given, or it is not an option here."""
        value = self._values.get((point, number))
        return options.index(value) if value in options else 0


class Choices:
    """Makes the choices of one run, and keeps the deviations.

    Attributes:
        deviations: those made until now, in order.
        is_ordinary: set it to end the deviations: from then on every choice takes its ordinary option.
        counts: for each kind and point, how often each option was taken.
    """

    def __init__(self, picks: Picks) -> None:
        self._picks = picks
        self._numbers: Counter[str] = Counter()
        self.deviations: list[Deviation] = []
        self.is_ordinary = False
        self.counts: dict[tuple[ChoiceKind, str], Counter[str]] = defaultdict(Counter)

    def choose(self, kind: ChoiceKind, point: str, options: Sequence[str]) -> int:
        """Return the index of the option to take; 0 is the ordinary one."""
        if self.is_ordinary or len(options) < 2:
            return 0
        self._numbers[point] += 1
        number = self._numbers[point]
        index = self._picks(point, number, options, kind)
        counts = self.counts[kind, point]
        if not counts:
            counts.update(dict.fromkeys(options, 0))
        counts[options[index]] += 1
        if index:
            self.deviations.append(Deviation(point, number, options[index], tuple(options[:index])))
        return index


def format_replay(seed: int, deviations: Collection[Deviation]) -> str:
    """Return the text by which a run is repeated; :func:`parse_replay` reads it.

    >>> format_replay(7, [Deviation("bank.charge", 2, "reply lost")])
    'seed 7; bank.charge #2: reply lost'
    """
    return "; ".join([f"seed {seed}", *map(str, deviations)])


def parse_replay(text: str) -> tuple[int, list[Deviation]]:
    """Return the seed and the deviations of a text.

    Raises:
        ValueError: if the text has another form.
    """
    head, *parts = [part.strip() for part in text.split(";")]
    seed = _SEED.fullmatch(head)
    found = [_DEVIATION.fullmatch(part) for part in parts]
    if seed is None or None in found:
        raise ValueError(f"replay must look like 'seed 7; bank.charge #2: reply lost', got {text!r}")
    return int(seed[1]), [Deviation(match["point"], int(match["number"]), match["value"]) for match in found if match]
