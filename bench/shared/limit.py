"""What a process of a round is told: the side, its limit and its load. Everything here can be pickled and written as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Job", "Limit", "Load", "Task"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that all processes of a round share.

    Attributes:
        count: starts in each period, over all keys.
        seconds: the period of ``count`` and ``tokens``.
        key_count: starts of each key in each second; None for a limit without keys.
        tokens: tokens in each period; None for a limit without tokens.
        slots: how many may hold a slot at a time; None for a limit of starts.
        lease: the seconds after which the slot of a dead process is free, on sides that have leases.
        more: settings of an executor of ours beside these.
    """

    count: int = 1
    seconds: float = 1.0
    key_count: int | None = None
    tokens: int | None = None
    slots: int | None = None
    lease: float = 10.0
    more: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """What each process does with the limit.

    Attributes:
        kind: "closed" for workers of which each asks again at once, "sparse" for one permit now and then, "arrivals" for
            asking at random times whatever waits, "slots" for workers that hold a slot, "model" for calls of a language
            model.
        workers: how many ask at a time: "closed", "slots" and "model".
        work: seconds of CPU time after each start: "closed"; seconds for which a slot is held: "slots".
        rate: arrivals a second of one process: "arrivals".
        keys: how many keys the arrivals have, all equally likely.
        hot: the part of the arrivals that is of one further key; the counts of what was asked for leave those out.
        pause: the least and the greatest pause in seconds: "sparse".
        port: the port of the language model.
        costs: the least and the greatest cost of a call in tokens: "model".
    """

    kind: str = "closed"
    workers: int = 1
    work: float = 0.0
    rate: float = 0.0
    keys: int = 0
    hot: float = 0.0
    pause: tuple[float, float] = (0.1, 0.3)
    port: int = 0
    costs: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Job:
    """One round of one side.

    Attributes:
        processes: how many processes share the limit.
        settle: seconds from the first start until the measurement begins.
        seconds: how long is measured.
    """

    limit: Limit
    load: Load
    processes: int
    settle: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """What one process is told.

    Attributes:
        kind: the adapter, a name in ``bench.shared.adapters.ADAPTERS``.
        variant: which algorithm of the adapter.
        backend: where the limit is shared; a URL of Redis.
        group: a name that no other round uses.
        number: the number of the process, from 0.
        counter: the port of the counter.
        lifetime: seconds after which the process ends by itself.
    """

    kind: str
    variant: str
    backend: str
    group: str
    number: int
    counter: int
    lifetime: float
    limit: Limit
    load: Load
