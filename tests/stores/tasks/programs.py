"""Random programs over stores of durable tasks: a store must answer the same calls as the rules' own table does."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from ratelimited_executor._core.durable.pauses import ENDED, Pause
from ratelimited_executor._core.durable.table import TaskTable
from ratelimited_executor._core.durable.tasks import (
    NO_KEY,
    REMEMBERED_US,
    SIZE_MAX,
    Beat,
    Claim,
    Claims,
    DurableState,
    End,
    KeptTask,
    NewTask,
    Occurrence,
    OnDuplicate,
    TaskOutcome,
    Ref,
    TaskRow,
    Turns,
    UniqueKey,
)

OWNERS = ("a", "a", "b", "c")
QUEUES = ("mail", "mail", "mail", "other")
PRIORITIES = (0.0, 1.0, -2.5)
KEYS = ('"k"', '"k "', "7")  # the order of bytes is not that of a language
LANES = (None, None, "one", "two")
FUNCTIONS = (("f", 1), ("f", 2), ("g", 1))
LEASES = {"a": 90, "b": 150, "c": 300}
HASTY_LEASE = 9
HOUR = 3_600_000
TIMED = (
    "put", "join", "beat", "leave", "claim", "finish", "cancel", "requeue", "place", "forget", "pause", "resume", "pauses",
    "repetitions", "latencies", "save_repetition", "pause_repetition", "skip_repetition",
)  # fmt: skip


@dataclass
class Held:
    """A claim as a program names it: the numbers of tasks differ from store to store."""

    id: str
    token: int


@dataclass
class Program:
    """Draws the calls of one program, and checks that a store answers as the table does.

    Asynchronous stores run it by an awaiting twin of :func:`run`.
    """

    seed: int
    is_hasty: bool = False  # leases are short, and end while tasks are claimed
    table: TaskTable = field(default_factory=TaskTable)
    now_us: int = 10 * HOUR
    held: list[Held] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)  # id -> token of its last claim
    ids: list[str] = field(default_factory=list)
    paused: list[Pause] = field(default_factory=list)
    table_numbers: dict[str, int] = field(default_factory=dict)
    store_numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.has_operators = self.seed % 5 == 0  # who save, pause and skip repetitions
        self.is_repeating = self.seed % 20 == 15  # most calls concern repetitions that overlap

    def steps(self, count: int):
        """Yield calls (method, arguments, options), receive the store's answers, and compare them with the table's."""
        has_pauses = self.seed % 5 in (2, 3)  # they hold back tasks by which flaws in other rules are found
        has_history = self.seed % 7 == 3
        for owner in OWNERS[1:3]:
            yield from self._both("join", owner, self._lease_of(owner))
        for step in range(count):
            kind = self.draw.choices(
                (
                    "put",
                    "claim",
                    "start",
                    "finish",
                    "beat",
                    "pass",
                    "cancel",
                    "requeue",
                    "join",
                    "leave",
                    "revive",
                    "place",
                    "forget",
                    "step",
                    "operate",
                    *(("pause", "resume") if has_pauses else ()),
                    *(("save",) if has_history else ()),
                ),
                (
                    *(
                        3,
                        8,
                        3,
                        7,
                        12 if self.is_hasty else 3,
                        6,
                        1,
                        1,
                        2,
                        0.5,
                        1,
                        20 if self.is_repeating else 3,
                        2 if self.is_repeating else 0.3,
                        0.2,
                        4 if self.has_operators else 0,
                    ),
                    *((0.8, 1.5) if has_pauses else ()),
                    *((4,) if has_history else ()),
                ),
            )[0]
            yield from getattr(self, f"_{kind}")()
            rows = yield from self._both("rows", None, after=0, limit=10_000)
            state = (None, *DurableState)[step % (1 + len(DurableState))]
            yield from self._both("rows", state, after=0, limit=3, newest_first=True, body_max=step % 9)
            yield from self._both("counts")
            yield from self._both("latencies")
            yield from self._both("lanes", limit=5)
            yield from self._both("repetitions")
            yield from self._both("changed_repetitions", "mail")
            yield from self._both("pauses")
            yield from self._both("cancelled", self.draw.choice(OWNERS))
            if has_history:
                ended = yield from self._both("history", before=None, limit=self.draw.choice((2, 100)))
                yield from self._both("history", before=ended[-1].number if ended else 1, limit=3)
                yield from self._both("ended", self._some_ids())
            check_lanes(rows)
            if step % 10 == 9:  # some calls of a store in Redis
                yield from self._both("backlog")

    def _lease_of(self, owner: str) -> int:
        return HASTY_LEASE if self.is_hasty else LEASES[owner]

    def _both(self, method, *args, **options):
        """Call the table and the store, check that their answers agree, and return the table's."""
        time = [self.now_us] if method in TIMED else []
        mine, others = self._in_numbers(options, self.table_numbers), self._in_numbers(options, self.store_numbers)
        expected = getattr(self.table, method)(*time, *self._with_refs(args, self.table_numbers), **mine)
        answer = yield (method, self._with_refs(args, self.store_numbers), others)
        self._learn(expected, self.table_numbers)
        self._learn(answer, self.store_numbers)
        wanted, found = by_id(expected, self.table_numbers), by_id(answer, self.store_numbers)
        assert wanted == found, (self.seed, method, args)
        return expected

    def _with_refs(self, args, numbers):
        return [
            [_with_ref(each, numbers) for each in arg]
            if isinstance(arg, list) and arg and (isinstance(arg[0], (TaskOutcome, Ref)) or isinstance(arg[0][0], Ref))
            else arg
            for arg in args
        ]

    def _in_numbers(self, options, numbers):
        """Return options with refs in the numbers of one side."""
        if "held" not in options:
            return options
        return options | {"held": [Ref(numbers.get(ref.number, -1), ref.token) for ref in options["held"]]}

    def _learn(self, answer, numbers) -> None:
        if isinstance(answer, Claims):
            numbers.update((task.id, task.ref.number) for task in answer.tasks)

    def _put(self):
        draw = self.draw
        tasks = []
        for _ in range(draw.choice((1, 1, 2, 4))):
            is_named = draw.random() < 0.4
            id = f"named-{draw.randrange(4)}" if is_named else f"task-{len(self.ids)}"
            self.ids.append(id)
            name, version = draw.choice(FUNCTIONS)
            tasks.append(
                NewTask(
                    id=id,
                    queue=draw.choice(QUEUES),
                    name=name,
                    version=version,
                    body=id.encode(),
                    due_us=draw.choice((None, None, None, self.now_us + draw.randrange(-50, 80))),
                    delay_us=draw.choice((0, 0, 0, 10, 40)),
                    expires_us=draw.choice((None, None, 5, 30)),
                    priority=draw.choice((0.0, *PRIORITIES)),
                    lane=draw.choice(LANES),
                    is_blocking=draw.random() < 0.6,
                    key=draw.choice((None, None, *KEYS)),
                    cost=draw.choice((None, "2")),
                    is_named=is_named,
                )
            )
        yield from self._both("put", self._some_unique(tasks) if draw.random() < 0.5 else tasks)

    def _some_unique(self, tasks: list[NewTask]) -> list[NewTask]:
        """Make some tasks unique. Of a debounced one there are several with one due time: the order in lanes is not defined."""
        draw, made = self.draw, []
        for task in tasks:
            how = draw.choice(list(OnDuplicate)[: 4 if self.seed % 3 else 2])
            is_debounced = how is OnDuplicate.DEBOUNCE
            period_us = draw.choice((0, 200, 200)) if how in (OnDuplicate.KEEP, OnDuplicate.REFUSE) else 0
            unique = UniqueKey(
                draw.choice(("u", "u", "u2", "ü")), period_us, draw.random() < 0.5, how, draw.choice((None, 25)) if is_debounced else None
            )  # fmt: skip
            id = f"unique-{len(self.ids)}"
            self.ids.append(id)
            one = task._replace(id=id, body=id.encode(), is_named=period_us > 0, unique=unique)
            if draw.random() < 0.3:  # most expire too soon to be changed, and claimed then
                one = one._replace(expires_us=100)
            if is_debounced:
                return [
                    one._replace(id=f"{id}-{n}", body=b"%d" % n, lane=one.lane if n == 0 else None)
                    for n in range(len(tasks))
                ]
            made.append(one if draw.random() < 0.8 else task)
        return made

    def _claim(self):
        draw = self.draw
        unknown = frozenset(draw.sample(FUNCTIONS, draw.choice((0, 0, 0, 0, 1, 2))))
        full = frozenset(draw.sample(KEYS, draw.choice((0, 0, 0, 0, 1, 2))))
        claim = Claim(
            owner=draw.choice(OWNERS),
            queue=draw.choice(QUEUES),
            count=draw.choice((1, 2, 3, 8)),
            ahead_us=draw.choice((0, 0, 15)),
            unknown=unknown,
            full_keys=full,
            above=draw.choice((float("-inf"),) * 4 + (-2.5, 0.0)),
            before_us=draw.choice((None, None, 0, 10, -10)),
            size=4 if self.now_us % 3 == 0 else SIZE_MAX,  # a body has two or three bytes
            turns=self._turns() if draw.random() < 0.5 else None,
        )
        claims = yield from self._both("claim", claim)
        if claims is not None:
            self.held += [Held(task.id, task.ref.token) for task in claims.tasks]
            self.tokens.update((task.id, task.ref.token) for task in claims.tasks)

    def _turns(self) -> Turns:
        draw, keys = self.draw, (NO_KEY, *KEYS)
        places = [(priority, key) for priority in PRIORITIES for key in keys]
        return Turns(
            each=draw.choice((1, 1, 2, 8)),
            others={place: draw.choice((0, 0, 1, 3)) for place in draw.sample(places, draw.choice((0, 0, 3)))},
            after={priority: draw.choice(keys) for priority in draw.sample(PRIORITIES, draw.choice((0, 1, 2)))},
        )

    def _finish(self):
        draw = self.draw
        outcomes = []
        stale = [held for held in self.held if held.token < self.tokens[held.id]]
        known = stale if stale and draw.random() < 0.4 else self.held[-8:]
        for held in draw.sample(known, min(len(known), draw.choice((1, 1, 2, 4)))):
            if draw.random() < 0.5:  # the others are ended once more, later
                self.held.remove(held)
            end = draw.choices(list(End), (4, 4, 2, 3, 1, 1, 1, 2))[0]
            # The id stands for the number until the numbers of each side are known.
            outcomes.append(
                TaskOutcome(Ref(held.id, held.token), end, draw.choice((0, 0, 20)), f"error {draw.random()}")
            )
        if self.seed % 7 == 3:
            outcomes = [each._replace(kept=self._kept(each.ref.number)) for each in outcomes]
        yield from self._both("finish", outcomes)

    def _kept(self, id: str) -> KeptTask | None:
        draw = self.draw
        kept = KeptTask(
            id, "mail", draw.choice("fgü"), 2, draw.randrange(3), draw.randrange(9), draw.choice((5, 50, HOUR))
        )
        return draw.choice((None, kept, kept._replace(result=b"\0" * draw.randrange(3)), kept._replace(error="ü")))

    def _save(self):
        stale = [held for held in self.held if held.token < self.tokens[held.id]]
        known = stale if stale and self.draw.random() < 0.4 else self.held
        held = self.draw.sample(known, min(len(known), self.draw.choice((1, 1, 2))))
        yield from self._both(
            "save", [(Ref(each.id, each.token), b"state %d" % self.draw.randrange(9)) for each in held]
        )

    def _start(self):
        held = self.draw.sample(self.held, min(len(self.held), self.draw.choice((1, 1, 2))))
        yield from self._both("start", [Ref(each.id, each.token) for each in held])

    def _beat(self):
        yield from self._both("beat", self.draw.choice(OWNERS))

    def _pass(self):
        self.now_us += self.draw.choice((1, 5, 20, 60))
        return iter(())

    def _step(self):
        self.now_us += self.draw.choice((-1, 1)) * self.draw.choice((100, HOUR))
        return iter(())

    def _cancel(self):
        yield from self._both("cancel", self._some_ids())

    def _requeue(self):
        yield from self._both("requeue", self._some_ids())

    def _join(self):
        owner = self.draw.choice(OWNERS)
        options = {}
        if self.draw.random() < 0.7:
            stale = [held for held in self.held if held.token < self.tokens[held.id]]
            older = [Held(each.id, each.token - 1) for each in self.held]
            held = self.draw.choice((self.held, stale, older, self.held[::2]))
            options = {"former": self.draw.choice(OWNERS), "held": [Ref(each.id, each.token) for each in held]}
        yield from self._both("join", owner, self._lease_of(owner), **options)

    def _leave(self):
        yield from self._both("leave", self.draw.choice(OWNERS))

    def _revive(self):
        yield from self._both("revive", self.draw.choice(QUEUES), self.draw.sample(FUNCTIONS, 2))

    def _place(self):
        draw = self.draw
        occurrences = []
        for name in sorted(draw.sample(("nightly", "hourly"), draw.choice((1, 2)))):
            spec = draw.choice(("as it was",) * (9 if self.is_repeating else 2) + ("otherwise",))
            due_us = (self.now_us // 20 + draw.choice((1, 1, 1, 0, 2))) * 20
            if draw.random() < 0.1:
                due_us -= REMEMBERED_US
            id = occurrence_id(name, due_us)
            self.ids.append(id)
            task = NewTask(
                id=id, name="f", queue="mail" if spec == "as it was" else "other", body=spec.encode(), due_us=due_us, is_named=True,
                lane=draw.choice(LANES), is_blocking=draw.random() < 0.6,
            )  # fmt: skip
            since_us = draw.choice((0, 5, self.now_us))
            is_saved = self.has_operators and draw.random() < 0.4
            definition = spec if is_saved else f"declared {spec}"
            occurrences.append(
                Occurrence(
                    name,
                    task,
                    f"times {spec}",
                    spec,
                    since_us,
                    draw.random() < (0.9 if self.is_repeating else 0.3),
                    definition,
                    is_saved,
                )
            )
        yield from self._both("place", draw.choice(OWNERS), occurrences)

    def _operate(self):
        draw = self.draw
        name = draw.choice(("nightly", "hourly", "nightly", "hourly", "unknown"))
        kind = draw.choice(("save", "save", "pause", "resume", "skip"))
        if kind == "save" and name != "unknown":
            facts = {"queue": draw.choice(QUEUES), "function": "f", "schedule": "saved"}
            yield from self._both("save_repetition", name, definition=draw.choice(("as it was", "otherwise")), **facts)
        elif kind == "skip":
            yield from self._both("skip_repetition", name)
        else:
            until_us = draw.choice((None, self.now_us + 30, self.now_us + 5, self.now_us - 10))
            yield from self._both("pause_repetition", name, until_us if kind == "pause" else ENDED)

    def _forget(self):
        yield from self._both("forget", self.draw.choice((["nightly"], ["hourly", "nightly"], ["unknown"])))

    def _pause(self):
        draw = self.draw
        pause = draw.choice((
            Pause(function=draw.choice("fg")), Pause(queue="mail"), Pause(lane="one"), Pause(key=draw.choice(KEYS)),
            Pause(function="f", key=draw.choice(KEYS)), Pause(function="f", queue="mail"), Pause(queue="other", lane="one"),
        ))  # fmt: skip
        self.paused.append(pause)
        yield from self._both("pause", pause, draw.choice((None, None, self.now_us + 60, self.now_us - 10)))

    def _resume(self):
        yield from self._both("resume", self.draw.choice((*self.paused, Pause(lane="two"))))

    def _some_ids(self) -> list[str]:
        known = list(dict.fromkeys([*self.ids[-8:], "unknown"]))
        return self.draw.sample(known, self.draw.randrange(1, min(4, len(known) + 1)))


def occurrence_id(name: str, due_us: int) -> str:
    """Return the id of an occurrence of a repetition."""
    due = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=due_us)
    return f"{name}@{due:%Y-%m-%dT%H:%M:%S.%fZ}"


def run(program: Program, count: int, call) -> None:
    """Run a program on a store whose ``call(method, now_us, args, options)`` is synchronous."""
    steps = program.steps(count)
    try:
        step = next(steps)
        while True:
            step = steps.send(call(step[0], program.now_us, step[1], step[2]))
    except StopIteration:
        return


def _with_ref(each, numbers):
    """Return an outcome or a claim with the number of its task in place of its id."""
    if isinstance(each, TaskOutcome):
        return each._replace(ref=_with_ref(each.ref, numbers))
    if isinstance(each[0], Ref):
        return _with_ref(each[0], numbers), each[1]
    return Ref(numbers.get(each.number, -1), each.token)


def by_id(answer, numbers):
    """Return an answer with ids in place of the numbers of tasks."""
    ids = {number: id for id, number in numbers.items()}
    if isinstance(answer, Claims):
        return replace(answer, tasks=tuple(task._replace(ref=Ref(0, task.ref.token)) for task in answer.tasks))
    if isinstance(answer, Beat):
        return sorted((ids[ref.number], ref.token) for ref in answer.cancelled), answer.claimed_count
    if isinstance(answer, tuple):
        return sorted((ids[ref.number], ref.token) for ref in answer)
    if isinstance(answer, list) and answer and isinstance(answer[0], TaskRow):
        return [replace(row, number=0) for row in answer]
    return answer


def check_lanes(rows: list[TaskRow]) -> None:
    """Assert that each lane has at most one head, and that its followers wait."""
    heads: dict[str, int] = {}
    for row in rows:
        if row.lane is not None:
            heads.setdefault(row.lane, 0)
            heads[row.lane] += row.state not in (DurableState.BEHIND, DurableState.DEAD)
    assert all(count <= 1 for count in heads.values()), heads
