"""The reference model: what an executor that is given a program must do, as far as it can be observed.

It is written from the contract and the user documentation, not from the code, and is as plain as possible: one list of
tasks that is searched from end to end at each instant, whole nanoseconds, and fractions where these are too coarse.
Comments in quotation marks are sentences of the contract; those marked "reading" say what was chosen where it is
silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, lcm, sqrt
from zlib import crc32

from .programs import LENGTH_NS, TICK_NS, Op, Program

SECOND = 1_000_000_000
EPOCH = 1_704_067_200 * SECOND  # the time at which virtual time begins

SLACK = (
    SECOND // 50 - SECOND // 200
)  # "A quarter of it, 5 ms at most, is kept for the way from the decision to the first line."

NAME = "x"  # of the executor
SHIFT_MAX = SECOND // 10

WAITING, RUNNING = "waiting", "running"
DONE, FAILED, CANCELLED, EXPIRED = "done", "failed", "cancelled", "expired"

REPEATING, IMMEDIATE, OTHER = 0, 1, 2


def phase_of(program: Program) -> Fraction:
    """Return the phase of the executor: "multiples of the golden ratio modulo 1", or "a hash of the name" with peers."""
    if program.peers[0] > 1:
        return Fraction(crc32(NAME.encode()), 2**32)
    return Fraction(int(program.siblings * (sqrt(5) - 1) / 2 % 1 * 2**32), 2**32)


def parse_rate(text: str) -> Fraction | None:
    """Return the permits per nanosecond of a text such as ``"7/3s"``; None if there is no limit."""
    permits, per = text.removesuffix("s").split("/")
    return None if permits == "inf" else Fraction(int(permits), int(per or 1) * SECOND)


class Permits:
    """The law of a rate: permits numbered on a grid, of which some are taken.

    Phases are whole numbers, of which ``unit`` make a permit; it is chosen so that the phase of each of ``rates``
    advances by a whole number in each nanosecond.
    """

    def __init__(
        self, rate: str, now: int, rates: set[str], *, exact: bool, peers: int, rank: int, phase: Fraction
    ) -> None:
        self.exact, self.peers, self.rank = exact, peers, rank
        self.slack = SLACK
        paces = [self.pace(text) for text in rates if parse_rate(text) is not None]
        self.unit = lcm(phase.denominator, *(pace.denominator for pace in paces))
        # "Permits come up later by a part of the gap between two."
        self.base = -int(phase * self.unit) % self.unit
        self.starts: list[tuple[int, int]] = []  # when permits were taken, and how many
        self.memory = SECOND  # how long a start is remembered: the width of the last window
        self.is_paused = False
        # "Phase Phi(t) is the integral of the rate since the epoch (while the rate never changed: t x rate)":
        # a list of lines: the time from which each holds, the phase then, the slope, and whether there is no limit.
        self.set(rate)
        self.lines = [(0, self.base, self.slope, self.is_unlimited)]
        # Permits below this number are taken or void. Reading: of those before its time an executor has the newest.
        self.first_free = self.last(now)

    def set(self, rate: str) -> None:
        """Set the rate in force, and its slope: the parts of a permit that come up per nanosecond."""
        self.rate, per_ns = rate, self.pace(rate)
        self.is_unlimited = per_ns is None and not self.is_paused
        self.slope = 0 if per_ns is None or self.is_paused else int(per_ns * self.unit)
        self.is_stopped = self.slope == 0 and not self.is_unlimited  # "rate 0 pauses"

    def pace(self, text: str) -> Fraction | None:
        """Return how many permits come up per nanosecond."""
        per_ns = parse_rate(text)
        if not self.exact or self.peers == 1 or not per_ns:
            return per_ns
        # "Each of several StaticPeers keeps its own permits to within a hundredth of per, and permits are up to 1 % further
        # apart for that." W (1 + g) / N apart, and used within g W, which is the slack if that is less.
        width = int(text.split("/")[0]) / per_ns
        late = min(Fraction(SECOND, 50), width / 100)
        self.slack = int(late - min(late / 4, Fraction(SECOND, 200)))
        return per_ns / (1 + late / width)

    @property
    def has_window(self) -> bool:
        """Whether a window of starts is kept: peers keep it by the distance of their permits."""
        return self.exact and self.peers == 1

    def change(self, now: int, *, rate: str | None = None, is_paused: bool | None = None) -> None:
        """Change the rate, or pause or resume, which is a rate of 0 for a time: "a change of rate keeps the phase"."""
        self.is_paused = self.is_paused if is_paused is None else is_paused
        if self.slope and not self.is_unlimited:
            self.memory = self.window()[1]
        # "One with a longer per counts what the old one remembers."
        self.starts = [(start, cost) for start, cost in self.starts if start > now - self.memory]
        self.set(self.rate if rate is None else rate)
        if self.lines[-1][0] == now:  # a rate that was in force for no time at all does not count
            del self.lines[-1]
        phase, was_unlimited = self.phase(now), self.lines[-1][3]
        if was_unlimited or self.peers > 1:
            # Reading: after an infinite rate there is no phase to keep; nor do peers have one in common, as they change
            # their rates at different times; the grid is that of a rate that never changed.
            ahead = len(range(self.own(self.last(now) + 1), self.first_free, self.peers))
            self.lines, phase = [(0, self.base, self.slope, self.is_unlimited)], self.base + now * self.slope
            # Reading: peers cannot know which of them has used its newest permit.
            self.first_free = self.last(now) + (not was_unlimited)
            if not was_unlimited and ahead:  # "what follows waits until it is paid for"
                self.first_free = self.own(self.first_free) + ahead * self.peers
        self.lines.append((now, phase, self.slope, self.is_unlimited))

    def phase(self, time: int) -> int:
        """Return Phi(time), in parts of a permit."""
        since, phase, slope, _ = self.lines[-1]
        if since > time:
            since, phase, slope, _ = next((line for line in reversed(self.lines) if line[0] <= time), self.lines[0])
        return phase + slope * (time - since)

    def last(self, time: int) -> int:
        """Return the number of the last permit that has come up by then: "permit p comes up when Phi = p"."""
        return self.phase(time) // self.unit

    def first(self, time: int) -> int:
        """Return the number of the first permit that comes up at this time or later."""
        return -(-self.phase(time) // self.unit)

    def time_of(self, permit: int) -> int:
        """Return when a permit comes up; it must not have come up yet."""
        since, phase, slope, _ = self.lines[-1]
        return since - (phase - permit * self.unit) // slope

    def own(self, permit: int) -> int:
        """Return the first of our own permits from this one on: "rank modulo n"."""
        return permit + (self.rank - permit) % self.peers

    def takeable(self, now: int) -> int | None:
        """Return the permit that a start would take at this time but for the window: the oldest that may be taken."""
        if self.is_stopped:
            return None
        # "A permit may be taken until slack after its time": its number is Phi(now - slack) or more.
        permit, newest = self.own(max(self.first_free, self.first(now - self.slack))), self.last(now)
        if permit <= newest:
            return permit
        # "The newest permit stays until the next comes up." Reading: with peers it does not; what it voids would be theirs.
        return newest if newest >= self.first_free and self.peers == 1 else None

    def is_edge(self, now: int) -> bool:
        """Return whether a microsecond decides which permit of a peer may be taken."""
        return self.peers > 1 and self.first(now - self.slack - 1000) != self.first(now - self.slack + 1000)

    def following(self, now: int, number: int = 0) -> int:
        """Return when the next of our permits comes up, or the one that is ``number`` permits after it."""
        return self.time_of(self.own(max(self.first_free, self.last(now) + 1)) + number * self.peers)

    def when(self, now: int) -> int | None:
        """Return the first time from now on at which a start may be; None if that takes a change of the rate."""
        if self.is_unlimited:
            return now
        if self.is_stopped:
            return None
        permit = self.takeable(now)
        if permit is None:
            return self.following(now)
        return self.slipped(permit, now) if self.has_window else now

    def slipped(self, permit: int, time: int) -> int:
        """Return when the window lets this permit be taken, and if that is later than its time, let the grid slip to there.

        "A start at time t is allowed only if fewer than N permits were taken by starts in (t - W, t]; N = ceil(permits
        of the rate), W = N / rate."
        """
        most, width = self.window()
        allowed = time
        for start, _ in self.starts:  # the starts leave the window one after the other
            if sum(cost for other, cost in self.starts if allowed - width < other) < most:
                break
            allowed = max(allowed, start + width)
        if allowed > time:
            # "When that window delays the earliest usable permit from t to w, the grid slips: that permit's time becomes
            # w and those after it follow evenly at the rate's distance from w."
            self.slip(permit, allowed)
        return allowed

    def window(self) -> tuple[int, int]:
        """Return N and W: how many starts a window may have, and how wide it is."""
        most = int(self.rate.split("/")[0])
        return most, -(-most * self.unit // self.slope)

    def slip(self, permit: int, when: int) -> None:
        """Move the grid so that a permit comes up at a given time; permits before it are void."""
        self.lines = [(when, permit * self.unit, self.slope, False)]
        self.first_free = max(self.first_free, permit)

    def begin(self, now: int) -> None:
        """Let the grid begin anew: "the first start of a backlog moves the grid in the same way"."""
        if self.has_window and self.slope and self.last(now) >= self.first_free:
            self.slip(self.last(now), now)

    def take(self, now: int, cost: int) -> None:
        """Take the permits of a task that starts."""
        if self.is_unlimited:
            return
        self.starts.append((now, cost))
        permit, fresh = self.takeable(now), self.first(now - self.slack)
        # "A task of cost c takes c permits when it starts", and "what follows waits until it is paid for".
        self.first_free = permit + cost * self.peers
        if permit < fresh and self.has_window:
            # "A start that takes the newest permit late, after a pause, moves the grid in the same way: the next permit
            # comes up 1 / rate after it, and voiding is not needed."
            self.slip(permit, now)
        elif permit < fresh:
            # "A start more than slack after its permit's time also voids the permits with Phi < Phi(start - slack) + 1";
            # with costs the law has the cost in place of the 1.
            self.first_free = fresh + cost

    def left(self, now: int, end: int) -> int:
        """Count our permits of [now, end) that may still be taken: "ceil(Phi(start)) ... ceil(Phi(end)) - 1"."""
        lowest, fresh = self.takeable(now), self.first(now - self.slack)
        if lowest is None:
            lowest = max(self.first_free, self.last(now) + 1)
        elif lowest < fresh and self.has_window:  # it can be taken, and the grid goes on from there
            return 1 + max(0, end - 1 - now) * self.slope // self.unit
        elif lowest < fresh:  # it can be taken, and voids what follows
            return 1 + len(range(max(fresh + 1, self.last(now) + 1), self.first(end)))
        return len(range(self.own(lowest), self.first(end), self.peers))


@dataclass
class Task:
    """A task, and what happens to it."""

    name: str
    due: int
    rank: int  # REPEATING, IMMEDIATE or OTHER
    call: int  # rises with the calls
    is_spreadable: bool
    priority: float = 0
    deadline: float = inf
    cost: int = 1
    key: str | None = None
    length: int = 0
    fails: bool = False
    planned: bool = False
    state: str = WAITING
    start: int | None = None
    end: int | None = None
    allowed: tuple[str, ...] = ()  # states in which the executor may leave it, if there are several


# "Default order: priority, then repeating, immediate, others; the earliest due first; then arrival." Arrival "rises with
# each task that becomes due"; of those that become due together, with the calls.
KEYS = {
    "default": lambda task: (-task.priority, task.rank, task.due),
    "earliest": lambda task: task.due,
    "latest": lambda task: -task.due,
    "unimportant": lambda task: (task.priority, task.due),
}


@dataclass
class Outcome:
    """What is observed when a program runs."""

    starts: list[tuple[int, str]] = field(default_factory=list)  # nanoseconds from the begin, in order
    states: dict[str, str] = field(default_factory=dict)
    counts: list[tuple[int, dict[str, int]]] = field(default_factory=list)  # before each operation, and at the end
    rates: list[tuple[float, str]] = field(default_factory=list)  # in force from a time on, in seconds; pauses as 0/s
    dues: dict[str, int] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)  # what happened that the comparison must know
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)  # where several states are right: which

    def allowed(self, name: str) -> tuple[str, ...]:
        """Return the states in which a task may be found at the end."""
        return self.others.get(name) or (self.states.get(name, "unknown"),)


class Model:
    """An executor as the contract describes it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        peers, rank = program.peers
        self.begin = EPOCH + program.begin * TICK_NS
        self.width = program.interval * TICK_NS
        rates = {program.rate, *(given["rate"] for _, what, _, given in program.ops if what == "rate")}
        exact = program.strictness == "EXACT"
        self.phase = phase_of(program)
        self.permits = Permits(program.rate, self.begin, rates, exact=exact, peers=peers, rank=rank, phase=self.phase)
        self.pacing, self.order = program.pacing, program.order
        self.tasks: list[Task] = []
        self.outcome = Outcome()
        # "Interval [start, end)": intervals are numbered from the epoch.
        self.start = self.begin // self.width * self.width
        self.end = self.start + self.width
        self.plan_end = self.end
        self.planned_instant = self.start
        self.has_ready = False  # whether a task was ready at the last instant
        if program.early:
            self.outcome.notes.add("early")

    def run(self) -> Outcome:
        """Run the program from one instant to the next until its end."""
        ops = list(self.program.ops)
        last = self.begin + self.program.until * TICK_NS
        now = self.begin
        while now < last:
            if now >= self.end:
                self.begin_interval(now)
            for task in self.tasks:
                if task.state == RUNNING and task.end <= now:
                    task.state = FAILED if task.fails else DONE
            if ops and self.time(ops[0]) == now:
                self.count(now)
            while ops and self.time(ops[0]) == now:
                getattr(self, "do_" + ops[0][1])(now, ops[0][2], **ops[0][3])
                ops.pop(0)
            self.begin_backlog(now)
            while task := self.choose(now):
                self.begin_task(task, now)
            self.has_ready = any(self.is_due(task, now) for task in self.waiting(now))
            latest = self.time(ops[0]) if ops else last
            now = self.next_instant(now, latest)
        self.count(last)
        for task in self.tasks:
            # "Every accepted task ends in exactly one state"; what waits or runs is looked at before the closing.
            self.outcome.states[task.name] = task.state
            self.outcome.dues[task.name] = task.due - self.begin
            if task.state == EXPIRED and task.deadline + self.width >= last:
                task.allowed = (*task.allowed, WAITING, EXPIRED)
            self.outcome.others[task.name] = task.allowed
        return self.outcome

    def time(self, op: Op) -> int:
        """Return the time of an operation."""
        return self.begin + op[0] * TICK_NS

    def next_instant(self, now: int, latest: int) -> int:
        """Return the next time at which anything can happen."""
        all_waiting = self.waiting(now)
        waiting = [task for task in all_waiting if self.key_allows(task)]
        times = [self.end] if all_waiting else []
        times += [self.due_of(task) for task in waiting]
        times += [task.end for task in self.tasks if task.state == RUNNING]
        if any(task.planned for task in waiting):
            times.append(self.planned_instant)
        if any(self.is_due(task, now) for task in waiting):
            times += self.permit_times(now)
        later = [time for time in times if time > now]
        if any(abs(time - latest) <= 1000 for time in later):
            self.outcome.notes.add("coincides")
        return min([latest, *later])

    def permit_times(self, now: int) -> list[int]:
        """Return when permits may change what starts: one comes up, or fewer are left than tasks are held."""
        if self.permits.is_unlimited or self.permits.is_stopped:
            return []
        spare = self.permits.left(now, self.end) - len(self.held(now))
        return [self.permits.when(now), self.permits.following(now, max(0, spare))]

    # Intervals, and what starts in them.

    def waiting(self, now: int) -> list[Task]:
        """Return the tasks that wait; "expiry is measured from the due time to the start"."""
        found = []
        for task in self.tasks:
            if task.state == WAITING:
                if task.deadline >= now:
                    found.append(task)
                    continue
                task.state = EXPIRED
                if task.due < self.end and self.pacing == "SPREAD" and not self.permits.is_unlimited:
                    self.outcome.notes.add("expired")
        return found

    def is_due(self, task: Task, now: int) -> bool:
        """Return whether a task may start: "at or after its due time", or with ``early`` "anywhere in the interval"."""
        return self.due_of(task) <= now or (self.program.early and task.planned)

    def due_of(self, task: Task) -> int:
        """Return when a task may start: "what is to be spread starts later by the shift of its executor"."""
        return task.due + self.shift() if task.planned else task.due

    def shift(self) -> int:
        """Return "that part of the gap between two permits, which counts as an interval or 0.1 s at most"."""
        rate = parse_rate(self.permits.rate)
        gap = 1 / rate if rate and not self.permits.is_paused else 0
        return round(self.phase * min(gap, self.width, SHIFT_MAX))

    def note_shift(self) -> None:
        """Note that the shift may change while tasks wait for it."""
        if self.phase and any(task.state == WAITING and task.is_spreadable for task in self.tasks):
            self.outcome.notes.add("shifted anew")

    def begin_backlog(self, now: int) -> None:
        """Begin the pace anew if a backlog begins: "when nothing was due, and more is than there are permits for"."""
        due = [task for task in self.waiting(now) if self.is_due(task, now)]
        is_spread = any(task.planned for task in self.waiting(now))
        is_joined = any(task.rank == IMMEDIATE for task in due)
        if due and is_spread and not is_joined and not self.has_ready and self.is_dense(now):
            self.permits.begin(now)

    def begin_interval(self, now: int) -> None:
        """Begin the interval of this time: "SPREAD concerns the tasks that lay in bucket and overflow"."""
        overflow = [task for task in self.waiting(now) if task.planned and task.due < self.end]
        if overflow and (len(overflow) == 1 or not self.is_dense(now)):
            self.outcome.notes.add("left over")
        self.start = now // self.width * self.width
        self.end = self.start + self.width
        # "The first planned instant is the interval's start", shifted by the phase of the executor.
        self.planned_instant, self.plan_end = self.start + self.shift(), self.end + self.shift()
        for task in self.waiting(now):
            task.planned = self.pacing == "SPREAD" and task.is_spreadable and task.due < self.end

    def held(self, now: int) -> list[Task]:
        """Return the tasks that the running interval holds."""
        return [task for task in self.waiting(now) if task.due < self.end]

    def is_dense(self, now: int) -> bool:
        """Return True if "the interval holds more than its permits", from now on."""
        if self.permits.is_unlimited:
            return False
        return len(self.held(now)) > self.permits.left(now, self.end) or self.is_pressed(now)

    def is_pressed(self, now: int) -> bool:
        """Return True "while a task that an earlier interval has left over would expire before this one ends"."""
        return any(task.planned and task.due < self.start and task.deadline < self.end for task in self.waiting(now))

    def choose(self, now: int) -> Task | None:
        """Return the task that starts at this instant; None if it is not a start instant."""
        waiting = self.waiting(now)
        ready = [task for task in waiting if self.is_due(task, now) and self.key_allows(task)]
        if ready and self.permits.is_edge(now):
            self.outcome.notes.add("coincides")
        if not ready or self.permits.when(now) != now:
            return None
        joined = [task for task in ready if not task.planned]
        if self.permits.is_unlimited:
            if joined:  # "A task that joins a running interval takes the first permit at or after its due time"
                return min(joined, key=self.importance)
        else:
            # "A start instant is a permit when tasks have joined or the interval holds more than its permits."
            if joined or self.is_dense(now):
                # "At each, the most important task whose due time has come starts; what remains is the overflow."
                return min(ready, key=self.importance)
        # "Else a planned instant." "The planned instants go by due time: importance decides only where more is due than
        # may start."
        if now >= self.planned_instant:
            if (
                self.program.key_concurrency is not None
            ):  # "with limits of keys [...] it decides at planned instants as well"
                return min(ready, key=self.importance)
            return min(ready, key=lambda task: (task.due, task.call))
        return None

    def begin_task(self, task: Task, now: int) -> None:
        """Start a task: "each start takes one permit whose time has come"."""
        self.permits.take(now, task.cost)
        task.start, task.end = now, now + task.length
        task.state = RUNNING if task.length else FAILED if task.fails else DONE
        self.outcome.starts.append((now - self.begin, task.name))
        if task.planned:
            # "After a start at last with k of them unstarted the next is last + (end - last) / (k + 1), never before the
            # earliest due time among them, never before a permit."
            unstarted = sum(1 for other in self.waiting(now) if other.planned)
            # "last is the planned instant and not the moment of the start, so that a timer's lateness does not add up";
            # "after a disturbance what is left closes up evenly". Reading: more than slack is a disturbance.
            second = self.planned_instant + (self.plan_end - self.planned_instant) // (unstarted + 2)
            if second <= now <= self.planned_instant + SLACK:
                self.outcome.notes.add("within slack")
            last = max(self.planned_instant, self.start if self.program.early else self.due_of(task))
            if abs(now - last - SLACK) <= 1000:
                self.outcome.notes.add("coincides")  # in floats of seconds, either may be the later one
            last = now if now > last + SLACK else last
            self.planned_instant = last + max(0, self.plan_end - last) // (unstarted + 1)

    def importance(self, task: Task) -> tuple:
        """Return the sort key of a task: the key of the order; among equals, the due time and then the call."""
        return KEYS[self.order](task), task.due, task.call

    def key_allows(self, task: Task) -> bool:
        """Return whether the key of a task permits a start: "so many tasks of a key run at once"."""
        most = self.program.key_concurrency
        if task.key is None or most is None:
            return True
        return sum(1 for other in self.tasks if other.state == RUNNING and other.key == task.key) < most

    # What programs do.

    def add(
        self, now: int, name: str, due: int | None, *, expires: int | None = None, spread: bool = True, **rest
    ) -> None:
        """Accept a task; without a due time it is due now."""
        rank, due = (IMMEDIATE, now) if due is None else (OTHER, max(due, now))
        rest["length"] = rest["length"] * TICK_NS + LENGTH_NS if rest.get("length") else 0
        self.tasks.append(
            Task(
                name=name,
                due=due,
                rank=rank,
                call=len(self.tasks),
                # "Some tasks must not wait for a planned instant: those that joined the running interval, those of the asyncio
                # face, those whose expires is shorter than the interval."
                is_spreadable=spread and due >= self.end and (expires is None or expires >= self.program.interval),
                deadline=inf if expires is None else due + expires * TICK_NS,
                **rest,
            )
        )
        if now < due < self.end and not self.permits.is_unlimited and any(each.planned for each in self.waiting(now)):
            self.outcome.notes.add("dense by what joins later")

    def do_schedule(self, now: int, name: str, *, delay: int | None = None, at: int | None = None, **rest) -> None:
        """Schedule a task: ``delay`` is in ticks from now, ``at`` in ticks from the beginning of the program."""
        self.add(now, name, self.due(now, delay, at), **rest)

    do_submit = do_schedule
    do_execute = do_schedule

    def due(self, now: int, delay: int | None, at: int | None) -> int | None:
        """Return the due time that the arguments say; None for now."""
        if delay is not None:
            return now + delay * TICK_NS
        return None if at is None else self.begin + at * TICK_NS

    def do_many(
        self,
        now: int,
        name: str,
        *,
        count: int,
        delay: int | None = None,
        at: int | None = None,
        delays: list[int] | None = None,
        over: int | None = None,
        results: bool = False,
        **rest,
    ) -> None:
        """A batch: "all now", "all so long from now", "each so long from now", "all then", "evenly over this time"."""
        for index in range(count):
            due = self.due(now, delay, at)
            if delays is not None:
                due = now + delays[index] * TICK_NS
            elif over is not None:
                due = now + over * TICK_NS * index // count
            self.add(now, f"{name}.{index}", due, **rest)

    def do_call_later(self, now: int, name: str, *, delay: int) -> None:
        """ "The asyncio face: always on time, never spread"."""
        self.add(now, name, now + delay * TICK_NS, spread=False)

    def do_call_at(self, now: int, name: str, *, when: int) -> None:
        """Schedule a call at a loop time; ``when`` is in ticks from the beginning of the program."""
        self.add(now, name, self.begin + when * TICK_NS, spread=False)

    def do_call_soon(self, now: int, name: str) -> None:
        """Schedule a call that is due now."""
        self.add(now, name, None, spread=False)

    def do_permit(self, now: int, name: str, **rest) -> None:
        """Add a task that waits for a permit of the limiter face, and runs while it holds the permit."""
        self.add(now, name, None, spread=False, **rest)

    def do_cancel(self, now: int, _: str, *, of: str) -> None:
        """Cancel a task that waits or runs, or all tasks of a batch that wait; "those that run go on".

        "Deadlines are kept within one interval": one that has passed for less may be found expired or cancelled.
        """
        self.waiting(now)
        for task in self.tasks:
            if task.name == of or task.name.startswith(of + "."):
                if task.state == WAITING or (task.state == RUNNING and task.name == of):
                    task.state = CANCELLED
                elif task.state == EXPIRED and not task.allowed and task.deadline + self.width >= now:
                    task.allowed = (EXPIRED, CANCELLED)

    def do_rate(self, now: int, _: str, *, rate: str) -> None:
        """Change the rate."""
        self.note_shift()
        self.permits.change(now, rate=rate)

    def do_pause(self, now: int, _: str) -> None:
        """ "Starts nothing until resume()"."""
        self.note_shift()
        self.permits.change(now, is_paused=True)

    def do_resume(self, now: int, _: str) -> None:
        """Let tasks start again."""
        self.note_shift()
        self.permits.change(now, is_paused=False)

    def do_pacing(self, now: int, _: str, *, pacing: str) -> None:
        """Change the pacing. Reading: ``ON_TIME`` is in force at once, ``SPREAD`` from the next interval on."""
        self.pacing = pacing
        for task in self.tasks:
            task.planned = task.planned and pacing == "SPREAD"

    def do_order(self, now: int, _: str, *, order: str) -> None:
        """Change the order: "what is due is put into the new order"."""
        self.order = order

    def count(self, now: int) -> None:
        """Write down the counts before anything happens at this time."""
        self.waiting(now)
        counts = {state: 0 for state in (WAITING, RUNNING, DONE, FAILED, CANCELLED, EXPIRED)}
        counts["accepted"] = len(self.tasks)
        # Tasks that may be counted in another way: "within one interval" of their deadline, or cancelled in that time.
        counts["lately"] = counts["either"] = 0
        for task in self.tasks:
            counts[task.state] += 1
            if task.state == EXPIRED:
                counts["either"] += bool(task.allowed)
                counts["lately"] += not task.allowed and task.deadline + self.width >= now
        self.outcome.counts.append((now - self.begin, counts))
