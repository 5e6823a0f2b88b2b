"""Peers with permits granted by an authority, which one task calls for all executors of a process.

Parts
=====

::

    executor "mail" ── FleetMember ── Peer ─┐                              ┌─ rate "mail"
    executor "sms" ─── FleetMember ── Peer ─┼─ FleetPeers ── Transport ────┼─ rate "sms"
    executor "push" ── FleetMember ── Peer ─┘                              └─ rate "push"
                       this process                                        the authority, one for all processes

- :class:`~ratelimited_executor._core.fleet.peer.Peer` decides for one rate: when to call, what to ask for, what to do
  without an answer. It never blocks; its states are drawn in ``_core/fleet/peer_states.py``.
- :class:`FleetMember` connects a peer to the engine of its executor. It counts the tasks that could start, makes the
  peer's requests, and notifies the queue when permits arrive.
- :class:`FleetPeers` owns the task, and the state shared by all rates of a process: the authority's clock, the
  connection, an outage, a suspension of the machine.
- :class:`Transport` carries requests and replies. Another kind of authority only needs another transport.

When a member calls
===================

::

    ├────────── grant interval k ──────────┼────────── grant interval k + 1 ──────────┤
                 ▲        ▲                              ▲
                 │        └ at once: a task is due and   └ the next regular call
                 │          no permit is held for it
                 └ the regular call, at the phase of this process

The *regular* call of interval k fetches permits of k + 1, for the tasks that will be due by then. The phase is drawn
once, from 0.15 to 0.65 of an interval: so the calls of a group are spread, and answers arrive before k + 1 begins. A
call *at once* asks for unassigned permits of k: a few in a row, one in an interval in the long run. A member without
demand makes no call; a process without demand sleeps.

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
                                    use up their permits, and then follow the outage policy
one rate is refused, others not     an outage of that member alone; it pauses for an interval between its calls
all calls are refused               an outage; the log says what the authority refuses, and what to do about it
the answer contradicts the clock    it has stepped: earlier permits of all members are void, and their next calls report it
this machine was suspended          earlier permits are void, and the clock is unknown: each member is in SYNC again
the round trip is nearly ``late``   one warning, as permits come too late to be used
an internal error                   logged; the task continues after an interval
closing                             one last call, so that the others know at once; it may be lost
==================================  ====================================================================================

The rate does not depend on any of this. A permit is granted to one peer, and its time is read on a clock with a known
error bound: lost, late or repeated calls lose permits, but never double one. `docs/explanation/fleet.md` has the proof.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import random
import secrets
import socket
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.durations import duration_of
from ratelimited_executor._core.fixed import Fixed
from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.peer import Peer, PeerSettings
from ratelimited_executor._core.fleet.policies import Outage, Strictness
from ratelimited_executor._core.fleet.ticket_peer import TicketPeer, TicketSettings
from ratelimited_executor._core.phases import phase_of
from ratelimited_executor.peers.member import FleetMember
from ratelimited_executor.peers.ticket_member import TicketMember
from ratelimited_executor.peers.transport import RefusedError, Transport, is_refusal, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.fleet.protocol import Request
    from ratelimited_executor._core.fleet.tickets import TicketCall
    from ratelimited_executor.abc import Clock

__all__ = ["FleetMember", "FleetPeers", "RefusedError", "Transport", "new_peer_id"]

LOGGER: Final = logging.getLogger("ratelimited_executor")

_Member: TypeAlias = "FleetMember | TicketMember"

_RESERVE_US: Final = 500  # kept back from ``late``: a coroutine's first line runs in the next turn of the loop
_RATE_ERROR: Final = Fraction(5, 10_000)  # the largest drift between two clocks
_FAR_SECONDS: Final = 3600.0
_SLOW_COUNT: Final = 4  # slow answers in a row, after which a warning is logged
_GOODBYE_SECONDS: Final = 0.25  # for the last call, which only lets the others know at once
_CONNECT_SECONDS: Final = 1.0  # for a connection, which takes several messages; longer than any call may take
_RETRY_SECONDS: Final = 0.02  # on average, before the first calls after a lost one
_RETRY_COUNT: Final = 2
_REPEAT_SECONDS: Final = 60.0  # for which a warning is not repeated
_BREAK_SECONDS: Final = 0.001  # a larger difference between two clocks of this machine means that one stood still


class FleetPeers(Fixed):
    """Shares the rates of a manager's executors with a group, by permits that an authority grants.

    Args:
        transport: carries the calls.
        weight: this process's share, relative to others, while demand exceeds the rate, > 0.
        strictness: the law for the starts of the group.
        outage: the behaviour while the authority is away.
        interval: the length of a grant interval in seconds, 0.05 to 5.
        late: how many seconds after its time a permit may be used, 0.003 to 0.1; a larger value tolerates a busier
            event loop.
        clock_difference: the largest difference, in seconds, between the clocks of two servers of which one may take
            over from the other.
        timeout: seconds after which a call counts as lost.
        group: the name of the group; equal rates of different groups have their permits at different times.
        seed: of the phases and delays; random by default.
    """

    # Slots, so that setting a read-only or misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_clock",
        "_difference_us",
        "_group",
        "_is_away",
        "_is_closing",
        "_is_connected",
        "_kicked",
        "_late",
        "_leaving",
        "_lives",
        "_members",
        "_monotonic",
        "_random",
        "_seed",
        "_settings",
        "_slow_count",
        "_suspended",
        "_suspended_seconds",
        "_task",
        "_timeout",
        "_transport",
        "_warned",
    )

    def __init__(
        self,
        transport: Transport,
        *,
        weight: float = 1.0,
        strictness: Strictness = Strictness.EXACT,
        outage: Outage = Outage.STOP,
        interval: DurationLike = 0.25,
        late: DurationLike = 0.019,
        clock_difference: DurationLike = 1.0,
        timeout: DurationLike = 0.08,
        group: str = "",
        seed: int | None = None,
    ) -> None:
        interval, late = duration_of("interval", interval), duration_of("late", late)
        clock_difference, timeout = duration_of("clock_difference", clock_difference), duration_of("timeout", timeout)
        for name, value, least, most in (
            ("weight", weight, 1e-6, 1e6),
            ("interval", interval, 0.05, 5.0),
            ("late", late, 0.003, 0.1),
            ("clock_difference", clock_difference, 0.0, 60.0),
            ("timeout", timeout, 0.001, 60.0),
        ):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not least <= value <= most:
                raise ValueError(f"{name} must be from {least:g} to {most:g}, got {value!r}")
        if not isinstance(strictness, Strictness):
            raise TypeError(f"strictness must be Strictness.EXACT or Strictness.NOMINAL, got {strictness!r}")
        if not isinstance(outage, Outage):
            raise TypeError(f"outage must be Outage.STOP, Outage.static(n) or Outage.LOCAL, got {outage!r}")
        self._transport = transport
        self._timeout = timeout
        self._group = group
        self._late = late
        self._difference_us = round(clock_difference * 1e6)
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311  # phases and delays
        late_us = round(late * 1e6)
        self._settings = PeerSettings(
            id="",  # the id and the phase are drawn by start(): until then the process may be forked
            interval_us=round(interval * 1e6),
            late_us=late_us - min(late_us // 10, _RESERVE_US),
            stretch=Fraction(late_us, 1_000_000) + _RATE_ERROR if strictness is Strictness.EXACT else Fraction(0),
            quarantine=1 + math.ceil(clock_difference / interval),
            phase=0.0,
            weight=float(weight),
            outage=outage,
        )
        self._clock = ServerClock()
        self._members: dict[str, _Member] = {}
        self._leaving: list[tuple[str, Request | TicketCall]] = []
        self._lives = count()
        self._kicked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._monotonic: Callable[[], float] = _no_time
        self._suspended_seconds: Callable[[], float] = _no_time  # total time for which the machine was suspended
        self._suspended = 0.0  # that total at the last synchronization
        self._is_closing = False
        self._is_connected = False
        self._slow_count = 0  # answers in a row that took too long for any permit to be used
        self._is_away = False  # an outage has been logged
        self._warned: dict[
            str, tuple[float, int]
        ] = {}  # of frequent warnings: the time of the last, and how many since

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
        self._settings = replace(self._settings, id=name, phase=self._random.uniform(0.15, 0.65))
        self._monotonic = clock.monotonic
        self._suspended_seconds = getattr(clock, "suspended", _no_time)
        self._suspended = self._suspended_seconds()
        self._task = loop.create_task(self._run(), name="fleet")

    async def aclose(self) -> None:
        """Leave the group and close the connection."""
        self._is_closing = True
        self._kicked.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._leaving:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(min(self._timeout, _GOODBYE_SECONDS)):
                    await self._transport.call(self._leaving)
            self._leaving.clear()
        await self._transport.aclose()

    # For the executors.

    def join(self, owner: Any) -> Any:
        """Join the group's rate of an executor's name; return the member."""
        # Each executor object has an id of its own: a new one must not be granted the permits that its predecessor
        # used.
        settings = replace(self._settings, id=f"{self.id}:{next(self._lives)}")
        # Equal rates of different names would otherwise have all their permits at the same instants, and start late.
        phase = phase_of(f"{self._group}:{owner.name}")
        if not owner.is_one_pace:
            return self._join_limits(owner, settings)
        peer = Peer(
            settings,
            owner.rate,
            self._clock,
            grid_phase=phase,
            is_clock_whole=self._is_clock_whole,
            is_new_rate=not owner.is_adaptive,
        )
        member = self._members[owner.name] = FleetMember(
            owner, peer, kick=self._kicked.set, leave=self._leave, warn=self._warn_seldom
        )
        self._kicked.set()
        return member

    def _join_limits(self, owner: Any, settings: PeerSettings) -> TicketMember:
        """Join the group's limits of an executor that has more than one paced rate."""
        late_us = round(self._late * 1e6)
        ticket_settings = TicketSettings(
            id=settings.id,
            weight=max(1, round(settings.weight * 1000)),
            interval_us=settings.interval_us,
            late_us=settings.late_us,
            difference_us=self._difference_us,
            timeout_us=round(self._timeout * 1e6),
            outage=settings.outage,
        )
        member = TicketMember(
            owner,
            lambda plan_id, plan: TicketPeer(
                ticket_settings, plan_id, plan, self._clock, is_clock_whole=self._is_clock_whole
            ),
            valid_us=late_us,
            late_us=max(late_us, self._difference_us),
            is_exact=settings.stretch > 0,
            kick=self._kicked.set,
            leave=self._leave,
            warn=self._warn_seldom,
        )
        self._members[owner.name] = member
        self._kicked.set()
        return member

    def _leave(self, member: _Member) -> None:
        """Remove a member; its last call goes out with the next round."""
        if self._members.pop(member.owner.name, None) is member and (member.is_shared or member.peer.era is not None):
            self._leaving.append((member.owner.name, member.peer.leave()))
            self._kicked.set()
            if member.peer.era is not None:
                LOGGER.info("fleet: %s leaves its group", member.owner.name)

    def _is_clock_whole(self) -> bool:
        """True if our clock has run without a break since permits were placed last."""
        seconds: float = self._suspended_seconds() - self._suspended
        return -_BREAK_SECONDS < seconds < _BREAK_SECONDS

    # The task.

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._go_round()
            except Exception:
                LOGGER.exception("fleet: internal error; continuing")
                await asyncio.sleep(self._settings.interval_us / 1e6)

    async def _go_round(self) -> None:
        """Make the calls that are due, or sleep until one is."""
        self._kicked.clear()
        if not self._is_clock_whole():
            self._note_break()
        now = self._monotonic()
        wake = now + _FAR_SECONDS
        due: list[tuple[_Member, bool]] = []
        for member in self._members.values():
            when, is_regular = member.next_call(now)
            if when <= now:
                due.append((member, is_regular))
            else:
                wake = min(wake, when)
            wake = min(wake, member.look_ahead(now))
        if not due and not self._leaving:
            await self._sleep(wake - now)
        elif self._is_connected:  # requests are made only now, because they count as sent
            await self._call([(member, member.request(now, is_regular=is_regular)) for member, is_regular in due])
        else:
            await self._connect([member for member, _ in due])

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._kicked.wait()

    async def _connect(self, members: list[_Member]) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._transport.connect()
        except Exception as error:  # noqa: BLE001  # any error of a client: the authority is not reachable
            await self._fail(members, error)
        else:
            self._is_connected = True

    async def _call(self, calls: list[tuple[_Member, Request | TicketCall]]) -> None:
        leaving, self._leaving = self._leaving, []
        sent = self._monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                replies = await self._transport.call(
                    leaving + [(member.owner.name, request) for member, request in calls]
                )
        except asyncio.CancelledError:
            self._leaving = leaving + self._leaving
            raise
        except Exception as error:  # noqa: BLE001  # any error of a client: no answer came
            self._leaving = leaving + self._leaving
            await self._fail([member for member, _ in calls], error)
            return
        got = self._monotonic()
        answers: list[tuple[_Member, Any, Any]] = []  # a request and a reply, of the member's kind
        refused: dict[_Member, Exception] = {}
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
        if self._is_away:
            self._is_away = False
            LOGGER.warning("fleet: the authority answers again")
        if answers:
            timeline = answers[0][0].owner.timeline
            told_ns = answers[0][2].now_us * 1000
            is_step = not self._clock.measure(told_ns, timeline.to_ns(sent), timeline.to_ns(got))
            if is_step:
                self._warn_seldom(
                    "fleet: the authority's clock has stepped, or is slewed by more than 500 ppm; earlier permits are void"
                )
                for member in set(self._members.values()) - {answered for answered, _, _ in answers}:
                    member.note_step(answers[0][2].now_us)
            self._look_at_round_trip(got - sent)
            for member, request, reply in answers:
                member.receive(request, reply, is_step=is_step, now=got)
        self._refuse(refused, got)

    def _refuse(self, refused: dict[_Member, Exception], now: float) -> None:
        """Record refused calls while others are answered: only these members are in an outage."""
        interval = self._settings.interval_us / 1e6
        for member, error in refused.items():
            member.fail(now, error, pause=self._random.uniform(0.2, 1.8) * interval)
            if member.peer.failed_count == _RETRY_COUNT + 1:
                LOGGER.warning(
                    "fleet: the authority refuses the calls of %r (%s), and answers others; outage policy: %s",
                    member.owner.name,
                    reason_of(error),
                    self._settings.outage,
                )
                member.tell_of_rank()

    def _warn_seldom(self, text: str) -> None:
        """Log a warning, at most once a minute for the same text."""
        now = self._monotonic()
        when, count = self._warned.get(text, (-math.inf, 0))
        if now - when < _REPEAT_SECONDS:
            self._warned[text] = when, count + 1
            return
        self._warned[text] = now, 0
        LOGGER.warning("%s%s", text, f" ({count} times more since {now - when:.0f} s ago)" if count else "")

    def _look_at_round_trip(self, seconds: float) -> None:
        """Warn once if the round trip to the authority leaves no time to use a permit."""
        is_slow = 2 * self._clock.sampled_error_ns >= self._settings.late_us * 1000
        self._slow_count = self._slow_count + 1 if is_slow else 0
        if self._slow_count == _SLOW_COUNT:
            LOGGER.warning(
                "fleet: nothing can start: a round trip of %.0f ms uses up late=%g s; raise late=",
                seconds * 1000,
                self._late,
            )

    async def _fail(self, members: list[_Member], error: Exception) -> None:
        self._is_connected = False
        now = self._monotonic()
        for member in members:
            member.fail(now, error)
        failed_count = max((member.peer.failed_count for member in members), default=1)
        if failed_count > _RETRY_COUNT and not self._is_away:
            self._is_away = True
            reason = reason_of(error)
            if isinstance(error, TimeoutError):
                reason = (
                    f"TimeoutError: none within timeout={self._timeout:g} s, or {_CONNECT_SECONDS:g} s for a connection"
                )
            what = "the authority refuses all calls" if is_refusal(error) else "no answer from the authority"
            LOGGER.warning("fleet: %s (%s); outage policy: %s", what, reason, self._settings.outage)
            for member in members:
                member.tell_of_rank()
        interval = self._settings.interval_us / 1e6
        longest = _RETRY_SECONDS if failed_count <= _RETRY_COUNT else interval
        await asyncio.sleep(self._random.uniform(0.2, 1.8) * longest)

    def _note_break(self) -> None:
        """Start over after a suspension of the machine, during which the authority's clock continued."""
        LOGGER.warning("fleet: this machine was suspended; earlier permits are void")
        self._suspended = self._suspended_seconds()
        self._clock.forget()
        for member in self._members.values():
            member.resync()
            member.owner.queue.admission.forget()


def _no_time() -> float:
    return 0.0


def new_peer_id() -> str:
    """Return an id for this incarnation of the process: its host, its process id and a random token."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
