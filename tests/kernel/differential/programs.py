"""Random programs for both kernels: what they are made of, and how one is drawn from a seed.

A program is data that JSON can hold: a dictionary in which ``manager`` and ``executors`` are settings and ``ops`` is a
list of pairs of a time, in seconds, and an operation. An operation is a dictionary: ``do`` names what is done, ``on``
is the index of the executor, ``name`` gives a name to the result, and ``of`` names the result of an earlier operation.
What is called is data, too::

    {"kind": "partial", "args": [1, {"tuple": [2]}], "steps": [["look"], ["op", {"do": "cancel", "of": "t3"}], ["return", 4]]}

A program stays a program if parts of it are left out, so that one that shows a difference can be made small: an
operation on something that does not exist does nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .bad_input import BAD_CALLS

Program = dict[str, Any]
Op = dict[str, Any]

RATES = ["inf/s"] * 8 + ["1/s", "3/s", "10/s", "40/s", "100/s", "1000/s", "7/3s", "1/2s"]
PLAIN_KINDS = ["function", "lambda", "partial", "method", "object", "class", "builtin", "sink", "generator"]
ASYNC_KINDS = [
    "coroutine",
    "lambda_coroutine",
    "partial_coroutine",
    "method_coroutine",
    "object_coroutine",
    "types_coroutine",
]
AWAITABLE_KINDS = ["awaitable", "future", "done_future", "task"]
ERRORS = [
    "ValueError",
    "KeyError",
    "Odd",
    "CancelledError",
    "StopIteration",
    "StopAsyncIteration",
    "BaseException",
    "TimeoutError",
]
VALUES: list[Any] = [None, 0, -1, 2.5, "", "text", True, {"tuple": []}, {"tuple": [1]}, {"tuple": [None]}, {"list": [1]}, {"odd": "object"},
    {"odd": "function"}, {"odd": "NotImplemented"}, {"odd": "exception"}]  # fmt: skip
VARIABLES = ["u", "v", "w"]


class Draw:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.count = 0  # of names given so far
        self.tasks: list[str] = []  # names of the results of schedule and its like
        self.calls: list[str] = []  # names of the results of the asyncio face
        self.batches: list[str] = []
        self.floods: list[str] = []
        self.waiters: list[str] = []
        self.callbacks: list[tuple[str, str]] = []
        self.is_small = rng.random() < 0.25  # nothing but callbacks of the asyncio face, as in most real programs
        self.has_variables = rng.random() < 0.5
        self.span = rng.choice([0.01, 1.0, 2.5, 2.5, 10.0])
        self.dues = [rng.choice([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.25]) for _ in range(3)]  # many are equal

    # The program.

    def program(self) -> Program:
        """Draw settings and operations."""
        rng = self.rng
        executors = [self.executor() for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        self.executor_count = len(executors)
        instants = sorted(self.instant() for _ in range(rng.randint(3, 40)))
        has_flood = rng.random() < 0.1
        ops = []
        for at in instants:  # in the order of their times, so that most names exist by the time they are used
            ops.append([at, self.on_flood() if self.floods and rng.random() < 0.2 else self.op()])
            if has_flood and not self.floods and rng.random() < 0.3:
                ops.append([at, self.flood()])
        return {
            "manager": {"interval": rng.choice([1.0, 1.0, 1.0, 0.25, 3.0])},
            "executors": executors,
            "begin": rng.choice([0.0, 0.0, 0.5, 12.345]),
            "debug": rng.random() < 0.1,
            "until": self.span + rng.choice([0.5, 3.0, 30.0]),
            "leave": rng.choice(["cancel", "cancel", "drain"]),
            "ops": ops,
        }

    def executor(self) -> dict[str, Any]:
        """Draw the settings of an executor; those with their default are left out."""
        rng = self.rng
        given = {"rate": rng.choice(RATES), "pacing": rng.choice(["SPREAD", "ON_TIME"])}
        for name, chance, values in (
            ("max_concurrency", 0.2, [1, 2, 5]),
            ("order", 0.1, ["earliest", "latest", "unimportant", "failing"]),
            ("expires", 0.1, [0.0, 0.5, 2.0]),
            ("max_pending", 0.05, [3, 10]),
            ("early", 0.05, [True]),
            ("policy", 0.1, ["Window", "NOMINAL"]),
            ("key_concurrency", 0.05, [1]),
            ("key_rate", 0.15, ["2/s", "20/s", "0/s"]),
        ):
            if rng.random() < chance:
                given[name] = rng.choice(values)
        if given.get("policy") == "Window":
            given["rate"] = "10/s"
        return given

    def instant(self) -> float:
        """Draw the time of an operation; it is often that of other operations, and that at which tasks are due."""
        rng = self.rng
        return rng.choice([0.0, rng.choice(self.dues), round(rng.uniform(0, self.span), 3)])

    def delay(self) -> float:
        """Draw a delay."""
        rng = self.rng
        return rng.choice(
            [0.0, rng.choice(self.dues), rng.choice(self.dues), round(rng.uniform(0, 2 * self.span), rng.randint(1, 6))]
        )

    def name(self, kind: str) -> str:
        """Return a new name."""
        self.count += 1
        return f"{kind}{self.count}"

    # Operations.

    def op(self, depth: int = 0) -> Op:
        """Draw an operation."""
        rng = self.rng
        if self.is_small:
            what = rng.choice(
                ["call_later"] * 6 + ["call_at", "call_soon", "call_soon", "cancel", "reschedule", "statistics"]
            )
        else:
            what = rng.choices(*WEIGHTS)[0]
        op: Op = {"do": what, **getattr(self, what)(depth)}
        if rng.random() < 0.1 and self.executor_count > 1:
            op["on"] = rng.randrange(self.executor_count)
        if self.has_variables and rng.random() < 0.5:
            op["vars"] = {variable: rng.choice(["a", "b", "c"]) for variable in VARIABLES if rng.random() < 0.6}
        return op

    def call(self, depth: int, kinds: list[str] | None = None) -> dict[str, Any]:
        """Draw a callable and its arguments."""
        rng = self.rng
        if self.is_small:
            kinds = ["function", "function", "method", "partial"]
        kind = rng.choice(kinds or PLAIN_KINDS * 2 + ASYNC_KINDS * 2 + AWAITABLE_KINDS)
        is_async = kind not in PLAIN_KINDS
        steps = [self.step(depth, is_async=is_async) for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))]
        if rng.random() < 0.5:
            steps.append(rng.choices([["return", rng.choice(VALUES)], self.failure()], [3, 1])[0])
        call: dict[str, Any] = {"kind": kind}
        if steps:
            call["steps"] = steps
        args = rng.choice(
            [
                [],
                [],
                ["one"],
                [None],
                [{"tuple": [1, 2]}],
                [rng.choice(VALUES) for _ in range(rng.randint(1, 4))],
                ["n"] * 300,
            ]
        )
        if args:
            call["args"] = args
        return call

    def failure(self) -> list[Any]:
        """Draw a step that raises an exception, with a cause, with a context or with neither."""
        return ["raise", self.rng.choice(ERRORS), self.rng.choice([None, None, "cause", "context", "suppressed"])]

    def step(self, depth: int, *, is_async: bool) -> list[Any]:
        """Draw a step of a callable."""
        rng = self.rng
        names = ["look", "set", "statistics"] + ["op"] * (3 if depth < 2 else 0) + ["block"]
        names += ["suspend", "suspend", "sleep", "catch", "await", "timeout", "task"] if is_async else []
        what = rng.choice(names)
        return {
            "look": lambda: ["look"],
            "set": lambda: ["set", rng.choice(VARIABLES), rng.choice(["x", "y"])],
            "statistics": lambda: ["op", {"do": "statistics"}],
            "op": lambda: ["op", self.op(depth + 1)],
            "block": lambda: ["block", rng.choice([0.001, 0.005, 0.2, 1.5])],
            "suspend": lambda: ["suspend", rng.randint(1, 3)],
            "sleep": lambda: ["sleep", self.delay()],
            "catch": lambda: ["catch", rng.choice([0.5, 5.0]), rng.choice(["swallow", "again", "other", "uncancel"])],
            "await": lambda: ["await", self.one(self.tasks)],
            "timeout": lambda: ["timeout", rng.choice([0.0, 0.25])],
            "task": lambda: ["task"],
        }[what]()  # fmt: skip

    def one(self, names: list[str]) -> str:
        """Draw one of the names; often the last, since its task has most likely not ended yet."""
        return "none" if not names else names[-1] if self.rng.random() < 0.5 else self.rng.choice(names)

    def context(self) -> dict[str, Any]:
        """Draw the option to run in a given context, which few tasks have."""
        return {"context": self.rng.choice(["given", "other"])} if self.rng.random() < 0.1 else {}

    def options(self) -> dict[str, Any]:
        """Draw the options of a task; most tasks have few of them or none."""
        rng = self.rng
        given: dict[str, Any] = self.context()
        for name, chance, values in (
            ("priority", 0.3, [1, -1, 5, 0.5]),
            ("expires", 0.15, [0.0, 0.25, 1.5, None]),
            ("run_timeout", 0.1, [0.25, 1.0]),
            ("label", 0.1, ["a name"]),
            ("key", 0.15, ["k", "l", 7]),
        ):
            if rng.random() < chance:
                given[name] = rng.choice(values)
        return given

    def call_later(self, depth: int) -> Op:
        name, call = self.name("c"), self.call(depth)
        self.calls.append(name)
        return {
            "name": name,
            "call": call,
            "delay": self.rng.choice([self.delay(), self.delay(), -1.0, 3]),
            **self.context(),
        }

    def call_at(self, depth: int) -> Op:
        name, call = self.name("c"), self.call(depth)
        self.calls.append(name)
        return {"name": name, "call": call, "when": self.delay(), **self.context()}

    def call_soon(self, depth: int) -> Op:
        name, call = self.name("c"), self.call(depth)
        self.calls.append(name)
        return {"name": name, "call": call, **self.context()}

    def schedule(self, depth: int) -> Op:
        name, call = self.name("t"), self.call(depth)
        self.tasks.append(name)
        time = self.rng.choice([{"delay": self.delay()}] * 4 + [{"at": self.delay()}, {}])
        return {"name": name, "call": call, **time, **self.options()}

    def submit(self, depth: int) -> Op:
        name, call = self.name("t"), self.call(depth)
        self.tasks.append(name)
        return {"name": name, "call": call, **self.options()}

    def execute(self, depth: int) -> Op:
        return {"call": self.call(depth)}

    def many(self, depth: int) -> Op:
        rng, count = self.rng, self.rng.randint(0, 8)
        name, call = self.name("b"), self.call(min(depth + 1, 2))
        call.pop("args", None)
        self.batches.append(name)
        form = rng.choice(["now", "delay", "delays", "delays", "over", "at"])
        times: dict[str, Any] = {
            "now": {},
            "delay": {"delay": self.delay()},
            "delays": {"delays": [self.delay() for _ in range(count)]},
            "over": {"over": self.delay()},
            "at": {"at": self.delay()},
        }[form]
        given = {key: value for key, value in self.options().items() if key not in ("run_timeout", "key")}
        source = rng.choice(
            ["list", "list", "tuple", "range", "set"] + ["iterator", "async"] * (form in ("now", "delay"))
        )
        return {
            "name": name,
            "call": call,
            "count": count,
            **times,
            **given,
            "results": rng.random() < 0.5,
            "source": source,
        }

    def permit(self, depth: int) -> Op:
        name = self.name("p")
        self.waiters.append(name)
        return {
            "name": name,
            "hold": self.rng.choice([0.0, 0.5]),
            **({"priority": 1} if self.rng.random() < 0.2 else {}),
        }

    def repeat(self, depth: int) -> Op:
        name, call = self.name("r"), self.call(2)
        self.batches.append(name)
        return {
            "name": name,
            "call": call,
            "period": self.rng.choice([0.1, 0.5, 1.0]),
            "max_runs": self.rng.randint(1, 5),
        }

    def cancel(self, depth: int) -> Op:
        names = self.rng.choice([self.tasks, self.tasks, self.calls, self.calls, self.batches, self.waiters])
        return {
            "of": self.one(names),
            **({"message": "why"} if names is self.tasks and self.rng.random() < 0.5 else {}),
        }

    def reschedule(self, depth: int) -> Op:
        return {"of": self.one(self.calls), "delay": self.rng.choice([self.delay(), self.delay(), -1.0])}

    def callback(self, depth: int) -> Op:
        name, of = self.name("d"), self.one(self.tasks)
        self.callbacks.append((name, of))
        steps = [self.step(min(depth + 1, 2), is_async=False) for _ in range(self.rng.choice([0, 0, 1, 2]))]
        if self.rng.random() < 0.1:
            steps.append(self.failure())
        return {"name": name, "of": of, "steps": steps, **self.context()}

    def uncallback(self, depth: int) -> Op:
        name, of = self.rng.choice(self.callbacks) if self.callbacks else ("none", "none")
        return {"name": name, "of": of}

    def wait(self, depth: int) -> Op:
        name = self.name("w")
        self.waiters.append(name)
        of = self.one(self.rng.choice([self.tasks, self.tasks, self.batches]))
        return {
            "name": name,
            "of": of,
            "how": self.rng.choice(["plain", "plain", "shield", "wait_for", "gather", "wait"]),
        }

    def look(self, depth: int) -> Op:
        return {"of": self.one(self.rng.choice([self.tasks, self.tasks, self.calls, self.batches]))}

    def forget(self, depth: int) -> Op:
        return {"of": self.one(self.rng.choice([self.tasks, self.calls]))}

    def rate(self, depth: int) -> Op:
        return {"rate": self.rng.choice([*RATES, "0/s", "0/s"])}

    def setting(self, depth: int) -> Op:
        what, values = self.rng.choice(
            [
                ("pacing", ["SPREAD", "ON_TIME"]),
                ("max_concurrency", [None, 1, 3]),
                ("order", ["default", "latest", "failing"]),
                ("expires", [None, 1.0]),
            ]
        )
        return {"what": what, "to": self.rng.choice(values)}

    def nothing_more(self, depth: int) -> Op:
        return {}

    pause = resume = statistics = waiting = nothing_more

    def shutdown(self, depth: int) -> Op:
        return {"cancel": self.rng.random() < 0.5}

    def bad(self, depth: int) -> Op:
        return {"what": self.rng.choice(sorted(BAD_CALLS))}

    # Very many.

    def flood(self) -> Op:
        """Draw a large bucket: more than 512 tasks, more than 4,096 or more than 16,384.

        With more than 4,096 in a millisecond each kernel merges in steps of its own, so that an operation during the
        merge falls between other starts; the tests of the order of due times cover that.
        """
        rng = self.rng
        name = self.name("f")
        self.floods.append(name)
        count = rng.choice([100, 600, 600, 600, 1500, 1500, 5000] if rng.random() < 0.95 else [17_000])
        spread, steps = rng.choice([0.0, 0.0005, 0.3, 1.0, 5.0]), rng.choice([1, 7, 1000])
        if spread < 0.1 or steps < 1000:
            count = min(count, 4000)
        return {
            "do": "flood", "name": name, "face": rng.choice(["call_later", "call_later", "call_at", "schedule", "execute", "delays"]),
            "count": count, "delay": rng.choice([0.0, *self.dues]), "spread": spread,
            "steps": steps, "stride": rng.choice([1, -1, 7919]), "vars": {"u": "flood"} if rng.random() < 0.3 else {},
            "vary": rng.random() < 0.2,
        }  # fmt: skip

    def on_flood(self) -> Op:
        """Draw an operation on some tasks of a flood."""
        rng = self.rng
        return {
            "do": rng.choice(["thin", "thin", "move"]), "of": rng.choice(self.floods), "begin": rng.randint(0, 3),
            "kept": rng.choice([0, 2, 3, 10]), "stride": rng.choice([1, -1]), "delay": self.delay(),
        }  # fmt: skip


WEIGHTS: tuple[list[str], list[int]] = tuple(  # type: ignore[assignment]
    zip(
        *{
            "call_later": 10, "call_at": 3, "call_soon": 5, "schedule": 12, "submit": 7, "execute": 4, "many": 6, "permit": 2, "repeat": 1,
            "cancel": 10, "reschedule": 4, "callback": 14, "uncallback": 1, "wait": 6, "look": 4, "forget": 2, "rate": 3, "setting": 2,
            "pause": 1, "resume": 2, "statistics": 4, "waiting": 1, "shutdown": 1, "bad": 4,
        }.items(), strict=True,
    )
)  # fmt: skip

draw: Callable[[int], Program] = lambda seed: Draw(seed).program()  # noqa: E731
