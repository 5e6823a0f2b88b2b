"""The slots of a group: carries this process's claims to the authority, and keeps their leases.

::

    any thread, any event loop                     a thread of its own, with an event loop of its own
    slots.hold() ── GroupSlots ── post ──▶ SlotPeer ── SlotTransport ──▶ the authority
                         ▲                     │                             │
                         └──── told ───────────┴──────── woken ◀─────────────┘

- :class:`~ratelimited_executor._core.fleet.slot_peer.SlotPeer` decides when to call and what to report. Only the thread
  touches it.
- The thread renews the leases while the event loop of a holder is busy, so that a blocked loop loses no slot. It does
  so only if that loop has turned within ``hang_timeout``; otherwise a process that hangs would hold its slots forever.
- A client that cannot be copied (one of a cluster or of a Sentinel, passed by the user) is used on the manager's event
  loop. That loop then renews the leases, and must turn three times in a lease. The same applies in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakMethod

from ratelimited_executor._core.fleet.policies import Outage
from ratelimited_executor._core.fleet.slot_peer import EntryState, SlotClaim, SlotPeer
from ratelimited_executor._core.fleet.slots import PoolState
from ratelimited_executor._core.slots.keeping import SlotHolder, SlotStatistics, manager_of
from ratelimited_executor.exceptions import ExecutorNotStartedError, ExecutorStoppedError, TaskExpiredError
from ratelimited_executor.peers.slot_grants import Grant, Owner, note_all, refuse_waker
from ratelimited_executor.peers.transport import LOGGER, REPEAT_SECONDS, SeldomLog, is_refusal, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ratelimited_executor._core.fleet.slot_peer import SlotSettings
    from ratelimited_executor._core.fleet.slots import SlotCall, SlotReply
    from ratelimited_executor._core.slots.keeping import SlotRequest
    from ratelimited_executor.abc import Clock

__all__ = ["GroupSlots", "SlotTransport"]

_NS: Final = 1_000_000_000
_AWAY_COUNT: Final = 3  # calls in a row without an answer, after which the server counts as away
_POLL_NS: Final = 100_000_000  # between two calls of a waiter that is not notified of hand-overs
_LISTEN_SECONDS: Final = 1.0  # before the next attempt to listen
_SHORT_PART: Final = 3  # a lease with less than this part left (a third) is renewed before its holder begins
_GOODBYE_SECONDS: Final = 0.25
_RETURN_PART: Final = 4  # of a lease (a quarter), in which all processes will notice that the server is back


class SlotTransport(Protocol):
    """Carries calls to the authority of slots."""

    async def call_slots(self, call: SlotCall) -> SlotReply:
        """Make one call.

        Raises:
            RefusedError: if the authority answers and refuses.
        """
        ...

    async def listen(self, peer: str, listening: Callable[[], None], woken: Callable[[str], None]) -> None:
        """Listen for this peer's notifications until that fails; ``listening`` is called once it works."""
        ...

    async def aclose(self) -> None:
        """Release the opened resources."""
        ...


class _GroupRequest:
    """A request for slots without waiting; used on one event loop."""

    __slots__ = ("_grant", "_is_started", "_keeper", "_told", "fence", "lost")

    def __init__(self, keeper: GroupSlots, told: Callable[[SlotRequest], None]) -> None:
        self._keeper = keeper
        self._told = told
        self._grant: Any = None
        self._is_started = False
        self.fence = 0
        self.lost: Callable[[], None] = _nothing

    def begin(self, grant: Grant, answered: Callable[[SlotRequest], None] | None) -> None:
        """Start to process the grant's result."""
        self._grant = grant
        grant.waker.add_done_callback(self._note)
        if answered is not None:
            grant.answered = lambda: answered(self)

    @property
    def is_coming(self) -> bool:
        """True if the slots are being handed over."""
        claim: SlotClaim = self._grant.claim
        return claim.is_coming

    def is_fresh(self) -> bool:
        """True if enough of the lease is left for a holder to begin."""
        return self._keeper._is_fresh(self._grant.claim)  # noqa: SLF001  # of this package

    def start(self) -> None:
        """Count the slots as handed over; they are held from now on."""
        self._is_started = True
        claim: SlotClaim = self._grant.claim
        if claim.limit < 0:  # pools by key are not counted: there may be any number of them
            self._keeper._handed.update(claim.pools)  # noqa: SLF001  # of this package
        self._keeper._holders.add(self._grant)  # noqa: SLF001  # of this package

    def release(self) -> None:
        """Give the slots back, or stop waiting for them."""
        self._grant.waker.cancel()
        self._keeper.release(self._grant)

    def _note(self, waker: asyncio.Future[None]) -> None:
        if waker.cancelled() or waker.exception() is not None:
            return  # given back, or the manager has closed
        self.fence = self._grant.claim.fence
        self._told(self)

    def _note_lost(self) -> None:
        if self._is_started:
            self.lost()
        else:
            self._told(self)


class GroupSlots:
    """Keeps the slots of a manager, which shares them with a group.

    Args:
        settings: shared by its slots.
        transport: makes the transport that carries the calls.
        new_id: makes an id for this incarnation of the process; called on start, as the process may be forked before.
        timeout: seconds after which a call counts as lost.
        hang_timeout: seconds for which an event loop may be blocked before its leases are no longer renewed.
        outage: the behaviour of limits by key while the server is away. Pools of slots hand over nothing then.
        is_threaded: True if the calls are made in a thread of their own.

    Attributes:
        parts: into how many parts limits by key are split, one for each process; None while only slots count.
    """

    __slots__ = (
        "_again",
        "_called_ns",
        "_clock",
        "_handed",
        "_hang_timeout",
        "_holders",
        "_home",
        "_is_closing",
        "_is_threaded",
        "_is_woken",
        "_kicked",
        "_log",
        "_new_id",
        "_new_pools",
        "_new_transport",
        "_outage",
        "_own_limits",
        "_owners",
        "_peer",
        "_posted",
        "_process",
        "_reasons",
        "_return",
        "_task",
        "_thread",
        "_timeout",
        "_told_limits",
        "_transport",
        "_waiting_told",
        "_watchers",
        "parts",
    )

    def __init__(
        self,
        settings: SlotSettings,
        transport: Callable[[], SlotTransport],
        *,
        new_id: Callable[[], str],
        timeout: float,
        hang_timeout: float,
        outage: Outage = Outage.STOP,
        is_threaded: bool = True,
    ) -> None:
        self._peer = SlotPeer(settings, may_renew=self._may_renew)
        self._peer.poll_ns = _POLL_NS
        self._again: list[Grant] = []  # their leases are renewed before their holders begin
        self._called_ns = -settings.lease_us * 1000  # time of the latest call
        self._own_limits: dict[str, int] = {}  # as last set by this process
        self._told_limits: dict[str, int] = {}  # as last reported by the authority
        self._new_pools: dict[str, PoolState] = {}  # the initial state, until the peer knows the pool
        self._new_transport = transport
        self._new_id = new_id
        self._timeout = timeout
        self._hang_timeout = hang_timeout
        self._is_threaded = is_threaded
        self._clock: Callable[[], float] = _no_time
        self._home: asyncio.AbstractEventLoop | None = None
        self._kicked = asyncio.Event()
        self._owners: dict[asyncio.AbstractEventLoop, Owner] = {}
        self._holders: set[Grant] = set()
        self._handed: Counter[str] = Counter()
        self._transport: SlotTransport | None = None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()  # for the thread
        self._is_woken = False  # the thread has been notified of posted work
        self._process = 0  # the id of the process that opened it
        self._reasons: set[str] = set()  # why the server counts as away, as logged; empty while it answers
        self._waiting_told = -math.inf  # when a quarantine was logged last
        self._log = SeldomLog(_no_time)
        self._return: asyncio.TimerHandle | None = None  # ends the time in which limits by key are split
        self._outage = outage
        self._watchers: list[tuple[asyncio.AbstractEventLoop, WeakMethod[Callable[[], None]]]] = []
        self.parts: int | None = None

    # For the manager.

    def open(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        """Start to make calls."""
        monotonic, suspended = clock.monotonic, getattr(clock, "suspended", _no_time)
        self._clock = lambda: monotonic() + suspended()  # a lease ends while the machine is suspended
        self._log = SeldomLog(self._clock)
        self._process = os.getpid()
        self._peer.settings = replace(self._peer.settings, id=self._new_id())
        if self._is_threaded:
            self._home = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run_thread, name="slots", daemon=True)
            self._thread.start()
        else:
            self._home = loop
            self._task = loop.create_task(self._run(), name="slots")

    def close(self) -> None:
        """Refuse waiters and new requests; holders keep their slots, and their leases are renewed."""
        self._is_closing = True
        self._post(self._refuse_all)

    async def aclose(self) -> None:
        """Wait until releases have been sent, unless slots are still held."""
        if self._holders:  # not the peer's: the thread may not have processed the releases yet
            return
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _GOODBYE_SECONDS)
        elif self._task is not None:
            await asyncio.wait([self._task], timeout=_GOODBYE_SECONDS)

    def declare(self, pool: str, limit: int | None) -> None:
        """Register a pool, and the limit with which this process was started."""
        self._new_pools.setdefault(pool, PoolState(limit or 0, 0, 0, 0))
        if limit is not None:
            self._own_limits[pool] = limit
        self._post(self._peer.declare, pool, limit)

    def watch(self, told: Callable[[], None]) -> None:
        """Call a method on this event loop when ``parts`` may have changed, while its object exists."""
        self._watchers = [each for each in self._watchers if each[1]() is not None]
        self._watchers.append((asyncio.get_running_loop(), WeakMethod(told)))

    # For holders and waiters.

    @property
    def is_away(self) -> bool:
        """True while the server does not answer and only parts limit keys."""
        return self.parts is not None and bool(self._reasons)

    @property
    def quarantine(self) -> float:
        """Seconds for which no slot is handed over, because holders may have been forgotten; 0 if none."""
        return max(0, self._peer.quarantine_ns - self._now_ns()) / _NS if self._peer.quarantine_ns else 0.0

    def limit_of(self, pool: str) -> int | None:
        """Return how many slots may be held, as set here or reported last; None before the first report."""
        return self._state_of(pool).limit if pool in self._own_limits or self._peer.has_read(pool) else None

    def set_limit(self, pool: str, limit: int) -> None:
        """Put a limit in force for the group."""
        pools = self._peer.pools if pool in self._peer.pools else self._new_pools
        pools[pool] = pools[pool]._replace(limit=limit)
        self._own_limits[pool] = limit
        self._post(self._peer.set_limit, pool, limit)

    def statistics(self, pool: str) -> SlotStatistics:
        """Return the known state of a pool, and the holders in this process."""
        peer, now_ns = self._peer, self._now_ns()
        state = self._state_of(pool)
        held = [claim for claim in peer.claims if pool in claim.pools]
        return SlotStatistics(
            name=pool,
            limit=self.limit_of(pool),
            held=max(0, state.held - peer.untold_count(pool)),
            waiting=state.waiting,
            handed=self._handed[pool],
            holders=tuple(
                SlotHolder(name=claim.note, fence=claim.fence, age=(now_ns - claim.since_ns) / _NS) for claim in held
            ),
            quarantine=self.quarantine,
        )

    async def acquire(
        self,
        pools: tuple[str, ...],
        *,
        name: str,
        priority: float,
        expires: float | None,
        lost: Callable[[], None],
    ) -> tuple[Any, int]:
        """Wait for a slot of each pool; return the object to release, and the fence."""
        if self._is_closing:
            raise ExecutorStoppedError(manager_of(pools[0]))
        if self._home is None or self._process != os.getpid():  # a forked process has no thread
            raise ExecutorNotStartedError(manager_of(pools[0]))
        loop = asyncio.get_running_loop()
        owner = self._owner_on(loop)
        grant = Grant(SlotClaim(pools, priority, _sound(name)), owner, loop.create_future(), lost)
        grant.claim.owner = grant
        self._post(self._ask, grant)
        try:
            async with asyncio.timeout(expires):
                await grant.waker
                while not self._is_fresh(grant.claim):  # this process was stopped since the notification
                    grant.waker = loop.create_future()
                    self._post(self._ask_again, grant)
                    await grant.waker
        except TimeoutError:
            self.release(grant)
            raise TaskExpiredError(name, expires=expires or 0.0) from None
        except BaseException:
            self.release(grant)
            raise
        self._handed.update(pools)
        self._holders.add(grant)
        return grant, grant.claim.fence

    def request(
        self,
        pools: tuple[str, ...],
        *,
        name: str,
        priority: float,
        told: Callable[[SlotRequest], None],
        limit: int = -1,
        answered: Callable[[SlotRequest], None] | None = None,
    ) -> SlotRequest:
        """Ask for a slot of each pool, without waiting."""
        loop = asyncio.get_running_loop()
        owner = self._owner_on(loop)
        request = _GroupRequest(self, told)
        claim = SlotClaim(pools, priority, _sound(name), limit=limit)
        grant = claim.owner = Grant(claim, owner, loop.create_future(), request._note_lost)  # noqa: SLF001  # of this package
        request.begin(grant, answered)
        self._post(self._ask, grant)
        return request

    def _owner_on(self, loop: asyncio.AbstractEventLoop) -> Owner:
        """Return what asks on an event loop, which may be that of any thread; closed loops are forgotten."""
        if loop not in self._owners:
            for closed in [each for each in list(self._owners) if each.is_closed()]:
                self._owners.pop(closed, None)
        return self._owners.setdefault(loop, Owner(loop))

    def release(self, grant: Any) -> None:
        """Give slots back."""
        self._holders.discard(grant)
        self._post(self._release, grant)

    def _state_of(self, pool: str) -> PoolState:
        return self._peer.pools.get(pool) or self._new_pools[pool]

    def _is_fresh(self, claim: SlotClaim) -> bool:
        """True if enough of a lease is left for its holder to begin."""
        return claim.state is EntryState.HELD and claim.end_ns - self._now_ns() >= self._peer.lease_ns // _SHORT_PART

    # In the thread.

    def _post(self, do: Callable[..., object], *arguments: Any) -> None:
        """Post work to the thread, which then checks what is due; does nothing in a forked process."""
        home = self._home
        if home is None:
            do(*arguments)  # the thread has not started yet
            return
        if self._process != os.getpid():
            return
        if not self._is_threaded and home is asyncio._get_running_loop():
            self._do(do, arguments)
            return
        if home.is_closed():  # there are no holders or waiters left, except for this new one
            self._refuse_posted(do, arguments)
            return
        self._posted.append((do, arguments))
        if self._is_woken:  # the thread will do it together with earlier posts
            return
        self._is_woken = True
        try:
            home.call_soon_threadsafe(self._do_posted)
        except RuntimeError:  # closed in between
            self._refuse_posted(do, arguments)

    def _refuse_posted(self, do: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if do in (self._ask, self._ask_again):
            self._refuse(arguments[0].claim)

    def _do_posted(self) -> None:
        """Do the posted work in order, including work that is posted meanwhile."""
        self._is_woken = False
        while self._posted:
            do, arguments = self._posted.popleft()
            do(*arguments)
        self._kicked.set()

    def _do(self, do: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        do(*arguments)
        self._kicked.set()

    def _ask(self, grant: Grant) -> None:
        if self._is_closing:
            self._refuse(grant.claim)
        elif grant.claim.state is EntryState.WAITING:
            self._peer.ask(grant.claim, self._now_ns())
            if not grant.claim.is_told:  # too many waiters are before it: it waits in any case
                grant.claim.is_answered = True
                self._tell([grant.claim])

    def _ask_again(self, grant: Grant) -> None:
        """Renew a lease with little time left; if it is lost, ask again."""
        old = grant.claim
        if old.state is EntryState.LOST:
            grant.claim = SlotClaim(old.pools, old.priority, old.note, grant, limit=old.limit)
            self._ask(grant)
        else:
            self._peer.renew(old)
            self._again.append(grant)

    def _release(self, grant: Grant) -> None:
        self._tell(self._peer.release(grant.claim))
        if self._is_closing:
            self._peer.hurry()

    def _refuse_all(self) -> None:
        self._peer.hurry()
        for claim in self._peer.waiting():
            self._refuse(claim)

    def _refuse(self, claim: SlotClaim) -> None:
        self._peer.release(claim)
        grant: Grant = claim.owner
        error = ExecutorStoppedError(manager_of(claim.pools[0]))
        with contextlib.suppress(RuntimeError):
            grant.owner.loop.call_soon_threadsafe(refuse_waker, grant, error)

    def _may_renew(self, grant: Grant) -> bool:
        return grant.owner.is_well(self._clock(), self._hang_timeout)

    def _now_ns(self) -> int:
        return int(self._clock() * _NS)

    def _tell(self, claims: Iterable[SlotClaim]) -> None:
        """Notify each event loop of the states of its claims."""
        told: dict[asyncio.AbstractEventLoop, list[tuple[Grant, EntryState]]] = {}
        for claim in claims:
            grant: Grant = claim.owner
            if claim.state is not EntryState.WAITING or grant.answered is not None:
                told.setdefault(grant.owner.loop, []).append((grant, claim.state))
        for loop, states in told.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(note_all, states)

    def _run_thread(self) -> None:
        home = self._home
        assert home is not None
        with asyncio.Runner(loop_factory=lambda: home) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        try:
            await self._serve()
        finally:
            self._end()  # later posts run while the loop is closing, or find it closed

    async def _serve(self) -> None:
        transport = self._transport = self._new_transport()
        listener = asyncio.ensure_future(self._listen(transport))
        try:
            while not (self._is_closing and self._is_done()):
                try:
                    await self._go_round(transport)
                except Exception:  # noqa: BLE001  # nothing ends this task
                    self._log.exception("slots: internal error; continuing")
                    await asyncio.sleep(_LISTEN_SECONDS)
        finally:
            listener.cancel()
            await asyncio.wait([listener])
            with contextlib.suppress(Exception):
                await transport.aclose()

    def _end(self) -> None:
        """Refuse waiters and new requests, and notify holders that their slots are lost."""
        self._is_closing = True
        self._refuse_all()
        for claim in self._peer.claims:
            claim.state = EntryState.LOST
            self._tell([claim])

    def _is_done(self) -> bool:
        """True if there are no holders or waiters, and all is sent or the server is away."""
        return self._peer.is_idle or (self._peer.is_free and self._peer.failed_count >= _AWAY_COUNT)

    async def _go_round(self, transport: SlotTransport) -> None:
        """Make the call that is due, or sleep until one is."""
        peer = self._peer
        self._kicked.clear()
        now_ns = self._now_ns()
        self._tell(peer.look(now_ns))
        due = peer.next_call(now_ns)
        if due is None and self._reasons and not self._is_closing:
            due = self._called_ns + peer.lease_ns // 6  # nothing to report, but the server may be back
        elif due is None and (peer.pools or not peer.era) and not self._is_closing:
            # Nothing to report, but a limit may have been set elsewhere; the first call may begin a quarantine.
            due = self._called_ns + peer.lease_ns
        if due is not None and due <= now_ns:
            await self._call(transport)
            return
        times = [when for when in (due, peer.next_end()) if when is not None]
        seconds = min((max(0, min(times) - now_ns) / _NS if times else 3600.0), self._peer.lease_ns / 6 / _NS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds if times else None):
                await self._kicked.wait()

    async def _call(self, transport: SlotTransport) -> None:
        peer, sent_ns = self._peer, self._now_ns()
        call = peer.request(sent_ns)
        self._called_ns = sent_ns
        try:
            async with asyncio.timeout(self._timeout):
                reply = await transport.call_slots(call)
        except Exception as error:  # noqa: BLE001  # any error of a client: no answer came
            self._tell(peer.note_failure(call, self._now_ns()))
            self._note_failure(error)
            return
        if self._reasons:
            LOGGER.warning("slots: the server answers again")
            self._reasons.clear()
            if self.parts is not None and self._home is not None:
                # Until then both count; each process reports tasks without slots once it notices the server's return.
                self._return = self._home.call_later(self._peer.lease_ns / _RETURN_PART / _NS, self._go_by_parts, None)
        era, is_free = peer.era, peer.quarantine_ns <= self._now_ns()
        changed = peer.take_in(call, reply, sent_ns, self._now_ns())
        self._tell_of_limits(call, reply)
        self._tell(changed)
        again, self._again = self._again, []
        self._tell(grant.claim for grant in again)
        is_told = not is_free and self._clock() - self._waiting_told < REPEAT_SECONDS  # and now it only lasts longer
        if reply.quarantine_us and reply.era != era and not is_told:
            self._waiting_told = self._clock()
            LOGGER.warning(
                "slots: no slot is handed over for %.1f s: the group is new to the server, or the server has restarted, and an "
                "earlier holder may still be at work until its lease has ended; a shorter lease= of the peers shortens this",
                reply.quarantine_us / 1e6,
            )

    def _tell_of_limits(self, call: SlotCall, reply: SlotReply) -> None:
        """Log limits set elsewhere for pools whose limit this process has set."""
        for pool, state in zip(call.watched, reply.pools, strict=True):
            own = self._own_limits.get(pool)
            if own is None or self._peer.has_limit_to_tell(pool):
                continue
            told, self._told_limits[pool] = self._told_limits.get(pool, own), state.limit
            if state.limit not in (own, told):
                halts = ", which halts it" if not state.limit else ""
                LOGGER.warning(
                    "slots: the limit of %r is %d%s, set by another process; this process has set limit=%d",
                    pool,
                    state.limit,
                    halts,
                    own,
                )

    def _note_failure(self, error: Exception) -> None:
        reason = reason_of(error)
        if isinstance(error, TimeoutError):
            reason = f"TimeoutError: none within {self._timeout:g} s"
        if self._peer.failed_count >= _AWAY_COUNT and reason not in self._reasons:
            self._reasons.add(reason)
            what = "the server refuses all calls" if is_refusal(error) else "no answer"
            LOGGER.warning("slots: %s (%s); no slot is handed over, and held slots end with their leases", what, reason)
            if self._return is not None:
                self._return.cancel()
            if self._outage.kind != "stop":
                self._go_by_parts(self._outage.peers_max if self._outage.kind == "static" else 1)

    def _go_by_parts(self, parts: int | None) -> None:
        """Split the limits by key into parts; with None, use slots only."""
        self.parts = parts
        for loop, told in self._watchers:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_call_if_there, told)

    async def _listen(self, transport: SlotTransport) -> None:
        """Receive notifications of hand-overs; while that fails, poll."""
        peer = self._peer

        def listening() -> None:
            peer.poll_ns = None

        def woken(token: str) -> None:
            self._tell(peer.note_woken(token))
            self._kicked.set()

        while True:
            try:
                await transport.listen(peer.settings.id, listening, woken)
            except Exception as error:  # noqa: BLE001  # any error of a client: waiters poll meanwhile
                peer.poll_ns = _POLL_NS
                LOGGER.debug("slots: no notifications of hand-overs: %s", reason_of(error))
            peer.poll_ns = _POLL_NS
            self._kicked.set()
            await asyncio.sleep(_LISTEN_SECONDS)


def _call_if_there(told: WeakMethod[Callable[[], None]]) -> None:
    method = told()
    if method is not None:
        method()


def _nothing() -> None:
    """Do nothing."""


def _no_time() -> float:
    return 0.0


def _sound(name: str) -> str:
    """Return a name with half of a surrogate pair replaced: servers refuse a call with one."""
    return name.encode(errors="replace").decode()
