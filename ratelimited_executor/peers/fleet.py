"""Peers with tickets admitted by an authority, which one task calls for all executors of a process.

Parts
=====

::

    executor "mail" ── TicketMember ── TicketPeer ─┐                              ┌─ limits "mail"
    executor "sms" ─── TicketMember ── TicketPeer ─┼─ FleetPeers ── Transport ────┼─ limits "sms"
    executor "push" ── TicketMember ── TicketPeer ─┘                              └─ limits "push"
                       this process                                               the authority, one for all processes

- :class:`~ratelimited_executor._core.fleet.ticket_peer.TicketPeer` decides for the limits of one executor: when to call,
  what to ask for, what to do without an answer. It never blocks; its states are drawn in ``_core/fleet/peer_states.py``.
- :class:`TicketMember` connects a peer to the engine of its executor. It counts the tasks that could start, makes the
  peer's requests, and notifies the queue when tickets arrive.
- :class:`FleetPeers` owns the task, and the state shared by all executors of a process: the authority's clock, the
  connection, an outage, a suspension of the machine.
- :class:`Transport` carries requests and replies. Another kind of authority only needs another transport.

A round of the task
===================

One round is one message, with a request for each member that is due, however high the rates::

    ┌─▶ is a call due? ── no ───▶ sleep until one is due or a member asks ──────────────────────────────┐
    │        │ yes                                                                                      │
    │   connected? ────── no ───▶ connect ── fails ──▶ note a failure for each member, pause ───────────┤
    │        │ yes                   └── done ──────────────────────────────────────────────────────────┤
    │   call, within timeout= ── no answer ──▶ likewise; the next round connects again ─────────────────┤
    │        │ answers                                                                                  │
    │   measure the clock by the first answer; each member takes its own, and wakes its executor ───────┤
    └───────────────────────────────────────────────────────────────────────────────────────────────────┘

Failures
========

==================================  ====================================================================================
no answer                           the call is repeated, twice after some 20 ms and then once in an interval; the members
                                    use up their tickets, and then follow the outage policy
one call is refused, others not     an outage of that member alone; it pauses for an interval between its calls
all calls are refused               an outage; the log says what the server refuses, and what to do about it
the answer contradicts the clock    it has stepped: earlier tickets of all members are void, and their next calls report it
this machine was suspended          earlier tickets are void, and the clock is unknown: each member is in SYNC again
a slow way                          the time for an answer grows with the latest answers, to a second at most
an internal error                   logged, at most once a minute; the task continues after an interval
closing                             a last call, so that the others know at once; it may be lost
==================================  ====================================================================================

The limits do not depend on any of this. A ticket is admitted for one peer, and its time is read on a clock with a known
error bound: lost, late or repeated calls lose tickets, but never double one. `docs/explanation/fleet.md` has the proof.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import duration_of
from ratelimited_executor._core.fixed import Fixed
from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.policies import Outage, Strictness
from ratelimited_executor._core.fleet.slot_peer import SlotSettings
from ratelimited_executor._core.fleet.ticket_calls import AHEAD_MAX_US
from ratelimited_executor._core.fleet.ticket_peer import TicketPeer, TicketSettings
from ratelimited_executor.peers.machine import machine_of
from ratelimited_executor.peers.slots import GroupSlots
from ratelimited_executor.peers.ticket_member import TicketMember
from ratelimited_executor.peers.transport import LOGGER, SeldomLog, Transport, is_refusal, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.fleet.ticket_calls import TicketCall, TicketReply
    from ratelimited_executor.abc import Clock
    from ratelimited_executor.peers.slots import SlotTransport

__all__ = ["FleetPeers", "new_peer_id"]

_AHEAD_US: Final = 100_000  # for which permits are reserved ahead, if no more is needed to share them evenly
_FAR_SECONDS: Final = 3600.0
_GOODBYE_SECONDS: Final = 0.25  # for the last call, which only lets the others know at once
_CONNECT_SECONDS: Final = 1.0  # for a connection, which takes several messages; longer than any call may take
_LONG_CONNECT_SECONDS: Final = 5.0  # for every fourth: on a very slow way, with TLS and a password, it takes a dozen
_LONG_CONNECT_EVERY: Final = 4
_PATIENCE_SECONDS: Final = 1.0  # for an answer, at most, where the way to the authority is slow
_TRIPS: Final = 4  # of the latest duration, for which an answer is waited
_RETRY_SECONDS: Final = 0.02  # on average, before the first calls after a lost one
_RETRY_COUNT: Final = 2
_BREAK_SECONDS: Final = 0.001  # a larger difference between two clocks of this machine means that one stood still


class FleetPeers(Fixed):
    """Shares the limits of a manager's executors with a group, by tickets that an authority admits.

    Args:
        transport: carries the calls.
        slot_transport: makes a transport for the calls of slots; None if the group has none.
        weight: this process's share, relative to others, while demand exceeds the limits, > 0.
        strictness: the law for the starts of the group.
        outage: the behaviour while the authority is away.
        interval: seconds, 0.05 to 5, between calls while the authority does not answer; also the most by which permits are
            reserved ahead.
        late: how many seconds after its time a permit of a calendar quota may be used, 0.003 to 0.1.
        clock_difference: the largest difference, in seconds, between the clocks of a server and of one that takes over
            from it.
        timeout: seconds after which a call counts as lost; longer while the connection is slower.
        lease: seconds, 0.5 to 600, for which a slot is held without renewal.
        hang_timeout: seconds, at least ``lease``, for which an event loop may be blocked before its slots are no longer
            renewed.
        is_threaded: True if slots may be renewed in a thread of their own.
        new_id: makes the ids of peers.
        seed: the seed of the delays and of the id; random by default.
    """

    # Slots, so that setting a read-only or misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_clock",
        "_connect_count",
        "_interval",
        "_is_closing",
        "_is_connected",
        "_is_exact",
        "_kicked",
        "_last_calls",
        "_late",
        "_leaving",
        "_lives",
        "_log",
        "_machine",
        "_members",
        "_monotonic",
        "_new_slots",
        "_patience",
        "_random",
        "_reasons",
        "_seed",
        "_settings",
        "_suspended",
        "_suspended_seconds",
        "_task",
        "_timeout",
        "_transport",
        "_wall",
    )

    def __init__(
        self,
        transport: Transport,
        slot_transport: Callable[[], SlotTransport] | None = None,
        *,
        weight: float = 1.0,
        strictness: Strictness = Strictness.EXACT,
        outage: Outage = Outage.STOP,
        interval: DurationLike = 0.25,
        late: DurationLike = 0.019,
        clock_difference: DurationLike = 1.0,
        timeout: DurationLike = 0.08,
        lease: DurationLike = 10.0,
        hang_timeout: DurationLike = 60.0,
        is_threaded: bool = True,
        new_id: Callable[[], str] | None = None,
        seed: int | None = None,
    ) -> None:
        interval, late = duration_of("interval", interval), duration_of("late", late)
        clock_difference, timeout = duration_of("clock_difference", clock_difference), duration_of("timeout", timeout)
        lease, hang_timeout = duration_of("lease", lease), duration_of("hang_timeout", hang_timeout)
        _check_number("weight", weight, 1e-6, 1e6)
        _check_number("interval", interval, 0.05, 5.0)
        _check_number("late", late, 0.003, 0.1)
        _check_number("clock_difference", clock_difference, 0.0, 60.0)
        _check_number("timeout", timeout, 0.001, 60.0)
        _check_number("lease", lease, 0.5, 600.0)
        _check_number("hang_timeout", hang_timeout, lease, 86_400.0)
        if not isinstance(strictness, Strictness):
            raise TypeError(f"strictness must be Strictness.EXACT or Strictness.NOMINAL, got {strictness!r}")
        if not isinstance(outage, Outage):
            raise TypeError(f"outage must be Outage.STOP, Outage.static(n) or Outage.LOCAL, got {outage!r}")
        self._transport = transport
        self._timeout = self._patience = timeout
        self._is_exact = strictness is Strictness.EXACT
        self._interval, self._late = interval, late
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311  # delays are no secret
        self._settings = TicketSettings(
            id="",  # drawn by start(): until then the process may be forked
            weight=max(1, round(weight * 1000)),
            ahead_us=min(_AHEAD_US, AHEAD_MAX_US, round(interval * 1e6)),
            difference_us=round(clock_difference * 1e6),
            outage=outage,
        )
        self._new_slots = slot_transport and partial(
            GroupSlots,
            SlotSettings(id="", lease_us=round(lease * 1e6), difference_us=self._settings.difference_us),
            slot_transport,
            new_id=new_id or new_peer_id,
            timeout=max(timeout, lease / 20),
            hang_timeout=hang_timeout,
            outage=outage,
            is_threaded=is_threaded,
        )
        self._clock = ServerClock()
        self._members: dict[str, TicketMember] = {}
        self._leaving: list[TicketMember] = []  # their last calls are made when no other is in flight
        self._last_calls: list[tuple[float, str, TicketCall]] = []  # to be sent, with the times at which they were made
        self._lives = count()
        self._kicked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._monotonic: Callable[[], float] = _no_time
        self._wall: Callable[[], float] = _no_time
        self._suspended_seconds: Callable[[], float] = _no_time  # total time for which the machine was suspended
        self._machine, self._suspended = "", 0.0  # what identifies its clock; that total at the last synchronization
        self._is_closing = False
        self._is_connected, self._connect_count = False, 0  # attempts since the latest success
        self._reasons: set[str] = set()  # of an outage, as logged; empty while the server answers
        self._log = SeldomLog(_no_time)

    @property
    def id(self) -> str:
        """The id of this incarnation of the process in its group; empty until the manager has started."""
        return self._settings.id

    # For the manager.

    def start(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        """Start to make calls; the authority need not be reachable yet.

        Raises:
            RuntimeError: if another manager uses these peers.
        """
        if self._task is not None:
            raise RuntimeError("peers serve one manager: create new ones for another manager")
        self._random.seed(self._seed)
        name = new_peer_id() if self._seed is None else f"peer:{self._seed}"
        self._settings = replace(self._settings, id=name)
        self._monotonic, self._wall = clock.monotonic, clock.wall
        self._log = SeldomLog(clock.monotonic)
        self._suspended_seconds = getattr(clock, "suspended", _no_time)
        self._suspended = self._suspended_seconds()
        self._machine = machine_of(clock)
        self._task = loop.create_task(self._run(), name="fleet")

    async def aclose(self) -> None:
        """Leave the group and close the connection, within a bounded time."""
        self._is_closing = True
        self._kicked.set()
        try:
            await self._say_goodbye(min(self._timeout, _GOODBYE_SECONDS))
        finally:  # also if this is cancelled
            await self._transport.aclose()

    async def _say_goodbye(self, patience: float) -> None:
        """End the calls, and give back what is held; each waits for so many seconds at most."""
        if self._task is not None:
            try:  # a call in flight may bring tickets that are to be given back
                await asyncio.wait([self._task], timeout=patience)
            finally:
                self._task.cancel()
                await asyncio.wait([self._task])
        self._make_last_calls()
        if self._last_calls:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(patience):
                    await self._transport.call(self._sent_last_calls())
            self._last_calls.clear()

    # For the executors.

    def join(self, owner: Any) -> Any:
        """Join the group's limits of an executor's name; return the member."""
        # Each executor object has an id of its own: a new one must not be given the tickets that its predecessor used.
        settings = replace(self._settings, id=f"{self.id}:{next(self._lives)}")
        late_us = round(self._late * 1e6)
        member = TicketMember(
            owner,
            lambda plan_id, plan: TicketPeer(
                settings,
                plan_id,
                plan,
                self._clock,
                is_adaptive=owner.is_adaptive,
                is_clock_whole=self._is_clock_whole,
                machine=lambda: (self._machine, owner.timeline.offset_ns - round(self._suspended * 1e9)),
                wall_us=lambda: round(self._wall() * 1e6),
            ),
            valid_us=late_us,
            late_us=max(late_us, settings.difference_us),
            is_exact=self._is_exact,
            kick=self._kicked.set,
            leave=self._leave,
            warn=self._log.warn,
        )
        self._members[owner.name] = member
        self._kicked.set()
        return member

    @property
    def _has_slots(self) -> bool:
        """True if the group shares slots."""
        return self._new_slots is not None

    def slots(self) -> GroupSlots:
        """Return the keeper of a manager's slots; only the manager calls it."""
        assert self._new_slots is not None, "peers without slots"
        return self._new_slots()

    def _leave(self, member: TicketMember) -> None:
        """Remove a member; its last calls go out with the next round."""
        if self._members.pop(member.owner.name, None) is member:
            member.peer.close()
            self._leaving.append(member)
            self._kicked.set()
            if member.peer.era is not None:
                LOGGER.info("fleet: %s leaves its group", member.owner.name)

    def _make_last_calls(self) -> None:
        now = self._monotonic()
        for member in self._leaving:
            calls = member.peer.leave(member.owner.timeline.to_ns(now))
            self._last_calls += [(now, member.owner.name, call) for call in calls]
        self._leaving.clear()

    def _sent_last_calls(self) -> list[tuple[str, TicketCall]]:
        """Return the last calls as they are sent now."""
        now = self._monotonic()
        return [(name, call.sent_later(round((now - made) * 1e6))) for made, name, call in self._last_calls]

    def _is_clock_whole(self) -> bool:
        """True if our clock has run without a break since permits were placed last."""
        seconds: float = self._suspended_seconds() - self._suspended
        return -_BREAK_SECONDS < seconds < _BREAK_SECONDS

    # The task.

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._go_round()
            except Exception:  # noqa: BLE001  # nothing ends this task
                self._log.exception("fleet: internal error; continuing")
                await asyncio.sleep(self._interval)

    async def _go_round(self) -> None:
        """Make the calls that are due, or sleep until one is."""
        self._kicked.clear()
        if not self._is_clock_whole():
            self._note_break()
        now = self._monotonic()
        wake = now + _FAR_SECONDS
        due: list[TicketMember] = []
        for member in self._members.values():
            when = member.next_call(now)
            if when <= now:
                due.append(member)
            else:
                wake = min(wake, when)
            wake = min(wake, member.look_ahead(now))
        self._make_last_calls()
        if not due and not self._last_calls:
            await self._sleep(wake - now)
        elif self._is_connected:  # requests are made only now, because they count as sent
            for member in due:
                member.peer.patience_us = round(self._patience * 1e6)
            await self._call([(member, member.request(now)) for member in due])
        else:
            await self._connect(due)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._kicked.wait()

    async def _connect(self, members: list[TicketMember]) -> None:
        begin = self._monotonic()
        self._connect_count += 1
        is_long = self._connect_count % _LONG_CONNECT_EVERY == 0
        try:
            async with asyncio.timeout(_LONG_CONNECT_SECONDS if is_long else _CONNECT_SECONDS):
                await self._transport.connect()
        except Exception as error:  # noqa: BLE001  # any error of a client: the authority is not reachable
            await self._fail(members, error)
        else:
            self._is_connected = True
            self._connect_count = self._connect_count - 1 if is_long else 0  # what it took once, it takes again
            # That took some messages: an answer to one takes no longer, and on a slow way the first is not lost.
            self._patience = max(self._patience, min(self._monotonic() - begin, _PATIENCE_SECONDS))

    async def _call(self, calls: list[tuple[TicketMember, TicketCall]]) -> None:
        leaving, sent = self._sent_last_calls(), self._monotonic()
        try:
            async with asyncio.timeout(self._patience):
                replies = await self._transport.call(
                    leaving + [(member.owner.name, request) for member, request in calls]
                )
        except Exception as error:  # noqa: BLE001  # any error of a client: no answer came
            await self._fail([member for member, _ in calls], error)
            return
        self._last_calls.clear()
        got = self._monotonic()
        self._patience = max(self._timeout, min(_TRIPS * (got - sent), _PATIENCE_SECONDS))
        answers: list[tuple[TicketMember, TicketCall, TicketReply]] = []
        refused: dict[TicketMember, Exception] = {}
        for (member, request), reply in zip(
            calls, replies[len(leaving) :], strict=True
        ):  # no reply matters to those leaving
            if isinstance(reply, Exception):
                refused[member] = reply
            else:
                answers.append((member, request, reply))
        others = set(self._members.values()) - set(refused)
        if refused and not answers and not any(member.is_served for member in others):
            await self._fail([*refused], next(iter(refused.values())))
            return
        if answers:
            if self._reasons:
                self._reasons.clear()
                LOGGER.warning("fleet: the server answers again")
            timeline = answers[0][0].owner.timeline
            told_ns = answers[0][2].now_us * 1000
            is_step = not self._clock.measure(told_ns, timeline.to_ns(sent), timeline.to_ns(got))
            if is_step:
                self._log.warn(
                    "fleet: the server's clock was set, or runs wrong by more than 0.05 %; permits handed out before are not used"
                )
                for member in set(self._members.values()) - {answered for answered, _, _ in answers}:
                    member.note_step(answers[0][2].now_us)
            for member, request, reply in answers:
                member.peer.trip_ns = timeline.to_ns(got) - timeline.to_ns(sent)
                member.receive(request, reply, is_step=is_step, now=got)
        self._refuse(refused, got)
        await asyncio.sleep(0)  # tasks start before the next call is made

    def _refuse(self, refused: dict[TicketMember, Exception], now: float) -> None:
        """Record refused calls while others are answered: only these members are in an outage."""
        for member, error in refused.items():
            member.fail(now, error, pause=self._random.uniform(0.2, 1.8) * self._interval)
            if member.peer.failed_count == _RETRY_COUNT + 1:
                LOGGER.warning(
                    "fleet: the server refuses the calls of %r (%s), and answers others; outage policy: %s",
                    member.owner.name,
                    reason_of(error),
                    _what_follows(self._settings.outage),
                )

    async def _fail(self, members: list[TicketMember], error: Exception) -> None:
        self._is_connected = False
        if isinstance(error, TimeoutError):  # the way may be slow
            self._patience = max(self._timeout, min(2 * self._patience, _PATIENCE_SECONDS))
        now = self._monotonic()
        for member in members:
            member.fail(now, error)
        failed_count = max((member.peer.failed_count for member in members), default=1)
        reason = reason_of(error)
        if isinstance(error, TimeoutError):
            reason = (
                f"TimeoutError: none within timeout={self._timeout:g} s, or {_CONNECT_SECONDS:g} s for a connection"
            )
        is_news = not self._reasons or (is_refusal(error) and reason not in self._reasons)
        if failed_count > _RETRY_COUNT and is_news:
            self._reasons.add(reason)
            what = "the server refuses all calls" if is_refusal(error) else "no answer from the server"
            LOGGER.warning("fleet: %s (%s); outage policy: %s", what, reason, _what_follows(self._settings.outage))
        longest = _RETRY_SECONDS if members and failed_count <= _RETRY_COUNT else self._interval
        await asyncio.sleep(self._random.uniform(0.2, 1.8) * longest)

    def _note_break(self) -> None:
        """Start over after a suspension of the machine, during which the authority's clock continued."""
        LOGGER.warning("fleet: this machine was suspended; earlier permits are void")
        self._suspended = self._suspended_seconds()
        self._clock.forget()
        for member in self._members.values():
            member.resync()
            member.owner.queue.admission.forget()


def _check_number(name: str, value: float, least: float, most: float) -> None:
    """Check a number of the user's.

    Raises:
        TypeError: if it is none.
        ValueError: if it is out of its range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least:g} to {most:g}, got {value!r}")


def _what_follows(outage: Outage) -> str:
    """Name an outage policy for the log; a user who has chosen none gets one under which the program waits."""
    return "stop, so nothing starts meanwhile" if outage == Outage.STOP else str(outage)


def _no_time() -> float:
    return 0.0


def new_peer_id() -> str:
    """Return an id for this incarnation of the process: its host, its process id and a random token."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
