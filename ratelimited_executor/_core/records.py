"""What few tasks have beside a due time: priority, deadline, key, costs and so on; and how records tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.keys import given_key
from ratelimited_executor._kernel.records import PERMITS, Record

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from ratelimited_executor._core.slot_lanes import SlotLane

__all__ = ["PERMITS", "Charge", "KeyOptions", "Options", "StandIn", "TaskRecord", "TriedOnce"]


class TaskRecord(Record):
    """A record with the rare options of a task, as orders, limits and lists read them."""

    __slots__ = ()

    _options: Options | None

    @property
    def key(self) -> Hashable:
        """The key of the task, for fairness and limits; None if it has none."""
        return given_key(self._key)

    @property
    def _key(self) -> Hashable:
        """The key in its stored form; see ``keys.py``."""
        options = self._options
        return None if options is None else options.key if options.lane is None else options.lane

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
    """A call of ours instead of one of the user, which is what orders and lists show.

    Args:
        call: what is called.
        fn: the callable of the user; None if there is none.
        args: its arguments.
    """

    __slots__ = ("_stand_in", "args", "fn")

    def __init__(self, call: Any, fn: Any = None, args: tuple[Any, ...] = ()) -> None:
        self._stand_in = call
        self.fn = fn
        self.args = args

    def __call__(self) -> Any:
        """Call what stands in."""
        return self._stand_in()


class TriedOnce:
    """A call that is not retried here, whatever the executor's ``retry``: whoever hands it in sees to that."""

    __slots__ = ()


class Charge:
    """What a task's start costs.

    Attributes:
        needs: how much of each resource, the executor's own permits among them; once settled, how much it was.
        reserved: the same as it was before the start: what another attempt takes.
        tickets: what the limits want to know when the cost is settled; None before the start.
        share: what a fair order wants to know then.
    """

    __slots__ = ("needs", "reserved", "share", "tickets")

    def __init__(self, needs: Mapping[str, int]) -> None:
        self.needs = self.reserved = needs
        self.tickets: Any = None
        self.share: Any = None


class _Nothing:
    """What few tasks have; here nothing of it, so that a task with one such thing need not carry all of them.

    Attributes:
        priority: larger is more important.
        deadline: loop time after which the task must not start; None if it never expires.
        expires: the same as seconds after the due time, as the caller gave it.
        expiry_index: its place in the index of deadlines; None if it is not there.
        run_timeout: seconds that it may run; None if unlimited.
        in_thread: True if it runs in a worker thread.
        own_context: True if its context was given by the caller, to be used itself and not a copy.
        name: what the caller calls it.
        on_time: True if it is never spread.
        wall: epoch seconds at which it is due by the wall clock; None if its due time is on the timeline.
        key: whose task it is, for fairness and limits, as it is held; None if it is nobody's.
        charge: what its start costs; None for one permit.
        attempts: how often it has been tried, and how often it may be; None if it is not retried.
        entry: its place in the index of what may be dropped; None if it is not there.
        lane: of the tasks that need the same slots; None if it needs none. It stands for the key where tasks wait.
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
    lane: SlotLane | None = None


class KeyOptions(_Nothing):
    """A key and nothing else; tasks of the same key may share it."""

    __slots__ = ("key",)

    def __init__(self, key: Hashable) -> None:
        self.key = key


class Options(_Nothing):
    """What few tasks have; :class:`_Nothing` says what that is."""

    __slots__ = (
        "attempts", "charge", "deadline", "entry", "expires", "expiry_index", "in_thread", "key", "lane", "name", "on_time",
        "own_context", "priority", "run_timeout", "wall",
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
        self.lane = None
