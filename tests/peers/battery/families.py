"""The families of limits that a battery runs side by side: what each process declares, and the laws that must hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .resource import AnyLaw, AtOnce, Bucket, Fences, Law, Quota


@dataclass(frozen=True)
class Family:
    """One executor, or one pool of slots, of the same name in all processes.

    Attributes:
        ceiling: starts a second that all limits together allow, if all is well.
        backlog: tasks that each process keeps waiting.
        laws: what must hold at the resource.
        options: parameters of the executor.
        policy: the name of its policy, with its arguments.
        work: seconds that each task takes.
        tokens: the most tokens that a task reserves; it settles to half of them. 0 for none.
        keys: number of keys; 0 for none.
        slots: slots of a pool that each task needs; 0 for none.
        holders: how many coroutines of each process hold a slot in turn, instead of tasks.
    """

    ceiling: float
    backlog: int
    laws: tuple[AnyLaw, ...]
    options: dict[str, Any] = field(default_factory=dict)
    policy: tuple[Any, ...] = ("Paced",)
    work: float = 0.0
    tokens: int = 0
    keys: int = 0
    slots: int = 0
    holders: int = 0


FAMILIES = {
    "pace": Family(60, 40, (Law("60/s", 60),), {"rate": "60/s"}),
    "window": Family(50, 40, (Law("50/s", 50),), {"rate": "50/s"}, ("Window",)),
    "burst": Family(40, 40, (Bucket("20 + 40/s", 20, 40),), {"rate": "40/s"}, ("Burst", 20)),
    "several": Family(
        30, 40, (Law("40/s", 40), Law("150/5s", 150, 5), Law("200 tokens/s", 200, of="tokens")),
        {"rate": "40/s, 150/5s", "resources": {"tokens": "200/s"}}, ("Window",), work=0.02, tokens=9,
    ),
    "pool": Family(100, 0, (AtOnce("5 at once", 5), Fences()), work=0.05, slots=5, holders=3),
    "quota": Family(
        30, 20, (Law("30/s", 30), Quota("600/min", 600)), {"rate": "30/s, 600 per minute UTC"}, ("Window",)
    ),
    "key_rate": Family(
        60, 60, (Law("80/s", 80), Law("5/s a key", 5, per_key=True)), {"rate": "80/s", "key_rate": "5/s"}, keys=12
    ),
    "key_concurrency": Family(
        160, 20, (Law("200/s", 200), AtOnce("2 a key", 2, per_key=True)), {"rate": "200/s", "key_concurrency": 2},
        ("Window",), work=0.05, keys=4,
    ),
    "slots": Family(
        80, 20, (Law("100/s", 100), Law("400/5s", 400, 5), AtOnce("4 at once", 4), Fences()),
        {"rate": "100/s, 400/5s"}, ("Window",), work=0.05, slots=4,
    ),
}  # fmt: skip
