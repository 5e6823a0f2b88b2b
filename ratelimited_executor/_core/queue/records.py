"""The rare options of a task beside its due time (priority, deadline, key, costs and so on), and records with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.keys.keys import given_key
from ratelimited_executor._kernel.choice import used_there
from ratelimited_executor._kernel.records import PERMITS, Record

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from ratelimited_executor._core.slots.lines import SlotLine

__all__ = ["PERMITS", "Charge", "KeyOptions", "Options", "StandIn", "TaskRecord", "TriedOnce"]


class TaskRecord(Record):
    """A record with the rare options of a task, as read by orders, limits and lists."""

    __slots__ = ()

    _options: Options | None

    @property
    def key(self) -> Hashable:
        """The key of the task, for fairness and limits; None if it has none."""
        return given_key(self._key)

    @property
    def _key(self) -> Hashable:
        """The key in its stored form; see ``_core/keys/keys.py``."""
        options = self._options
        return None if options is None else options.key if options.line is None else options.line

    @property
    def cost(self) -> int:
        """How many permits its start takes; 1 unless said otherwise."""
        needs = self.needs
        return 1 if needs is None else needs.get(PERMITS, 1)

    @property
    def needs(self) -> Mapping[str, int] | None:
        """How much of each resource its start takes; None for one permit."""
        return None if self._options is None or self._options.charge is None else self._options.charge.needs


class StandIn:
    """An internal call in place of a user's callable, which orders and lists show instead.

    Args:
        call: the function that is called.
        func: the user's callable, whose name this has as a partial has it; None if there is none.
        args: its arguments.
    """

    __slots__ = ("_stand_in", "args", "func")

    def __init__(self, call: Any, func: Any = None, args: tuple[Any, ...] = ()) -> None:
        self._stand_in = call
        self.func = func
        self.args = args

    def __call__(self) -> Any:
        """Call the internal function."""
        return self._stand_in()


class TriedOnce:
    """A call that is not retried here, whatever the executor's ``retry``: its owner handles retries."""

    __slots__ = ()


class Charge:
    """The cost of a task's start.

    Attributes:
        needs: the amount of each resource, including the executor's own permits; the actual amount once settled.
        reserved: the amounts reserved before the start, which another attempt takes again.
        receipts: the receipts of the limits, for settling the cost; None before the start.
        share: what a fair order has charged, for settling the cost.
    """

    __slots__ = ("needs", "receipts", "reserved", "share")

    def __init__(self, needs: Mapping[str, int]) -> None:
        self.needs = self.reserved = needs
        self.receipts: Any = None
        self.share: Any = None


class _Nothing:
    """The default values of the rare options, so that a task with one option need not store all of them.

    Attributes:
        priority: larger is more important.
        deadline: loop time after which the task must not start; None if it never expires.
        expires: the deadline in seconds after the due time, as passed by the caller.
        expiry_index: its place in the index of deadlines; None if it is not there.
        run_timeout: seconds that it may run; None if unlimited.
        in_thread: True if it runs in a worker thread.
        own_context: True if the caller passed its context, to be used itself instead of a copy.
        name: the name given by the caller.
        on_time: True if it is never spread.
        wall: epoch seconds at which it is due by the wall clock; None if its due time is on the timeline.
        key: its key for fairness and limits, in stored form; None if it has none.
        charge: the cost of its start; None for one permit.
        attempts: its attempts so far and their limits; None if it is not retried.
        entry: its entry in the index of tasks that may be dropped; None if it is not there.
        line: the line of tasks that need the same slots; None if it needs none. It replaces the key where tasks wait.
        resumed: what a lapsed start would have run, with its context: the next one runs it; None if the call is to be made.
    """

    __slots__ = ()

    priority: float = 0
    deadline: float | None = None
    expires: float | None = None
    expiry_index: int | None = None
    run_timeout: float | None = None
    in_thread: bool = False
    own_context: bool = False
    name: str | None = None
    on_time: bool = False
    wall: float | None = None
    key: Hashable = None
    charge: Charge | None = None
    attempts: Any = None
    entry: Any = None
    line: SlotLine | None = None
    resumed: Any = None


@used_there
class KeyOptions(_Nothing):
    """A key and no other option; tasks of the same key may share the object."""

    __slots__ = ("key",)

    def __init__(self, key: Hashable) -> None:
        self.key = key


class Options(_Nothing):
    """The rare options of a task; :class:`_Nothing` documents them."""

    __slots__ = (
        "attempts", "charge", "deadline", "entry", "expires", "expiry_index", "in_thread", "key", "line", "name", "on_time",
        "own_context", "priority", "resumed", "run_timeout", "wall",
    )  # fmt: skip

    def __init__(
        self,
        *,
        priority: float = 0,
        expires: float | None = None,
        run_timeout: float | None = None,
        in_thread: bool = False,
        own_context: bool = False,
        name: str | None = None,
        on_time: bool = False,
        wall: float | None = None,
        key: Hashable = None,
        charge: Charge | None = None,
        attempts: Any = None,
    ) -> None:
        self.priority = priority
        self.expires = expires
        self.deadline = None
        self.expiry_index = None
        self.run_timeout = run_timeout
        self.in_thread = in_thread
        self.own_context = own_context
        self.name = name
        self.on_time = on_time
        self.wall = wall
        self.key = key
        self.charge = charge
        self.attempts = attempts
        self.entry = None
        self.line = None
        self.resumed = None
