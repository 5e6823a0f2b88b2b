"""Programs of very many tasks, each for a path of the kernel that few tasks never take and random programs rarely."""

from __future__ import annotations

from typing import Any

from .programs import Program


def _program(ops: list[list[Any]], *, until: float = 10.0, **executor: Any) -> Program:
    given = {"rate": "inf/s", "pacing": "ON_TIME", **executor}
    counted = [op for at in (0.5, 1.0001, 1.5, 3.0) for op in [[at, {"do": "statistics"}]]]
    ops = sorted([*ops, *counted], key=lambda pair: pair[0])
    return {"manager": {}, "executors": [given], "until": until, "leave": "drain", "ops": ops}


def _flood(count: int, at: float = 0.0, **given: Any) -> list[Any]:
    whole = {"do": "flood", "name": "f", "face": "call_later", "delay": 1.0, "spread": 0.0, "steps": 1000, "stride": 1}
    return [at, {**whole, "count": count, **given}]


def _thin(at: float, kept: int, **given: Any) -> list[Any]:
    return [at, {"do": "thin", "of": "f", "begin": 0, "kept": kept, "stride": 1, **given}]


def _move(at: float, kept: int, delay: float) -> list[Any]:
    return [at, {"do": "move", "of": "f", "begin": 1, "kept": kept, "stride": -1, "delay": delay}]


_JOINING = {
    "kind": "function",
    "steps": [["op", {"do": "flood", "name": "g", "face": face, "count": 700, "delay": 0.001, "spread": 0.1, "steps": 7, "stride": 1}]
        for face in ("call_later", "schedule")],
}  # fmt: skip

CORNERS: dict[str, Program] = {
    "17,000 equal due times": _program([_flood(17_000)]),
    "a slot that is merged": _program([_flood(9000, spread=0.0005, stride=-1)]),
    "a slot that is merged, joined meanwhile": _program(
        [_flood(9000, spread=0.0005, stride=-1), [0.1, {"do": "call_later", "name": "c", "delay": 0.9001, "call": _JOINING}]]
    ),
    "17,000 over a second": _program([_flood(17_000, spread=1.0, stride=7919)]),
    "records over a second": _program([_flood(5000, face="schedule", spread=1.0, stride=7919), _thin(0.5, 3)]),
    "a bucket in order": _program([_flood(512, spread=1.0, stride=-1)]),
    "a bucket that is just cut": _program([_flood(513, spread=1.0, stride=-1)]),
    "one that grows while it runs": _program(
        [_flood(500, spread=1.0, stride=-1), [0.2, {"do": "call_later", "name": "c", "delay": 0.9, "call": _JOINING}]]
    ),
    "compacted twice": _program([_flood(3000, spread=1.0), _thin(0.1, 10), _thin(0.2, 30, stride=-1), _move(0.3, 60, 0.75), _thin(0.4, 600)]),
    "compacted in steps": _program([_flood(17_000, spread=1.0, vary=True), _thin(0.1, 10), _move(0.1, 30, 1.5), _thin(0.11, 30)]),
    "all cancelled": _program([_flood(3000), _thin(0.1, 0), [0.2, {"do": "call_soon", "name": "c", "call": {"kind": "function"}}]]),
    "cancelled while they start": _program([_flood(2000, spread=0.5), _thin(1.2, 2), _move(1.3, 5, 0.0)]),
    "contexts that change": _program([_flood(3000, spread=0.7, vary=True, stride=7919)]),
    "used up": _program([_flood(3000, spread=0.5), _thin(1.4, 2)], rate="1000/s"),
    "moved within a second": _program([_flood(600, spread=1.0), _move(0.2, 2, 1.3)]),
    "spread": _program([_flood(700, spread=1.0, stride=-1), _thin(0.5, 10)], rate="1000/s", pacing="SPREAD"),
    "spread without a limit": _program([_flood(700, spread=1.0)], pacing="SPREAD"),
    "an overflow in another order": _program(
        [_flood(1500, face="schedule"), [1.3, {"do": "setting", "what": "order", "to": "latest"}], [2.0, {"do": "rate", "rate": "inf/s"}]],
        rate="100/s", until=5.0,
    ),
    "a plan that others join": _program(
        [_flood(40, face="schedule", spread=0.9), [1.4, {"do": "submit", "name": "t", "call": {"kind": "coroutine", "steps": [["suspend", 2]]}}], _thin(1.5, 2)],
        rate="100/s", pacing="SPREAD",
    ),
    "expired": _program([_flood(1500, face="schedule", spread=0.5)], rate="100/s", expires=0.5),
    "one at a time": _program([_flood(1500, face="schedule", spread=0.5)], max_concurrency=1),
    "a batch": _program([_flood(5000, face="delays", spread=1.5, stride=7919), [1.3, {"do": "cancel", "of": "f"}]]),
    "due now": _program([_flood(3000, face="execute", vary=True), [0.0, {"do": "call_soon", "name": "c", "call": {"kind": "function"}}]]),
    "paused in the middle": _program([_flood(2000, spread=1.0), [1.25, {"do": "pause"}], [2.5, {"do": "resume"}]]),
    "an interval that is cut, in another order": {
        **_program([_flood(1484, face="schedule", delay=0.0, steps=499, spread=1.0, stride=7919)], rate="100/s", order="latest", until=2.0),
        "manager": {"precision": 0.05}, "begin": 12.345, "leave": "cancel",
    },
    "shut down in the middle": _program([_flood(2000, spread=1.0), [1.25, {"do": "shutdown", "cancel": True}]]),
}  # fmt: skip
