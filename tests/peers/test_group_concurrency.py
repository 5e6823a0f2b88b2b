"""``key_concurrency`` over a group: several managers in virtual time, with running tasks counted over all of them."""

import asyncio
import itertools
import logging
import re
from collections import Counter
from unittest import mock

import pytest

from ratelimited_executor import ExecutorManager
from ratelimited_executor.insight import Hold
from ratelimited_executor.orders import Fair
from ratelimited_executor.peers import Outage
from tests.peers.ticket_group import LEASE_US, Server, SlotLink

pytestmark = pytest.mark.virtual_time

LEASE = LEASE_US / 1e6
QUARANTINE = LEASE * 21 / 20 + 1  # of a new group's state: clocks of servers differ by up to a second
LATER = 0.1  # for the messages
TRIP_MAX = 0.0021  # to the server and back


class Group:
    """Processes with an executor of the same name; running tasks are counted by key over all of them."""

    def __init__(self) -> None:
        self.server = Server()
        self.managers: list[ExecutorManager] = []
        self.executors = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.starts: list[tuple[float, str]] = []

    async def __aenter__(self) -> "Group":
        return self

    async def __aexit__(self, *_: object) -> None:
        for executor, manager in zip(self.executors, self.managers, strict=False):
            await executor.shutdown(cancel_pending=True)
            await manager.aclose()

    async def join(self, *, peers=None, **settings):
        """Start a process; return its executor."""
        manager = ExecutorManager(peers=self.server.peers(len(self.executors), **(peers or {})))
        await manager.start()
        self.managers.append(manager)
        self.executors.append(manager.executor("x", **settings))
        return self.executors[-1]

    async def work(self, key: str, seconds: float = 0.05) -> None:
        """Count a task of a key while it runs."""
        self.starts.append((self.now(), key))
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running[key] -= 1

    def now(self) -> float:
        """Return the time."""
        return asyncio.get_running_loop().time()

    def load(self, count: int, *, keys: int, seconds: float = 0.05, **options) -> list:
        """Schedule ``count`` tasks in each process, with ``keys`` keys in turn."""
        return [
            executor.schedule(self.work, f"k{each % keys}", seconds, key=f"k{each % keys}", **options)
            for executor in self.executors
            for each in range(count)
        ]

    async def ended(self, seconds: float) -> bool:
        """Return True if all tasks have run within ``seconds``."""
        end = self.now() + seconds
        while any(now.waiting or now.running for now in (executor.statistics() for executor in self.executors)):
            if self.now() > end:
                return False
            await asyncio.sleep(0.01)
        return True


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"order": Fair()},
        {"rate": "400/s"},
        {"rate": "400/s, 10000/min"},
        {"key_rate": "50/s"},
        {"max_concurrency": 3},
    ],
    ids=["free", "fair", "one pace", "several limits", "rate of keys", "few at once"],
)
async def test_as_many_of_a_key_run_over_all_processes(settings) -> None:
    """In three processes together no more tasks of a key run than ``key_concurrency``, and all of them run."""
    async with Group() as group:
        for _ in range(3):
            await group.join(key_concurrency=2, **settings)
        group.load(40, keys=4)
        assert await group.ended(QUARANTINE + 20)

        assert dict.fromkeys(["k0", "k1", "k2", "k3"], 2) == dict(group.most)
        begin, end = group.starts[0][0], group.starts[-1][0]
        assert (
            end - begin < 30 / 2 * 0.05 * 2
        )  # 30 tasks of each key, two at a time, with as much again for the messages
        assert not any(group.running.values())


@pytest.mark.parametrize("settings", [{}, {"rate": "400/s"}], ids=["alone", "with a rate"])
async def test_first_task_of_a_key_waits_for_one_quarantine(settings) -> None:
    """The quarantine of slots begins with the executor, not when its first task comes or may start by the rate."""
    async with Group() as group:
        await group.join(key_concurrency=2, **settings)
        await asyncio.sleep(1)
        group.load(1, keys=1)
        assert await group.ended(QUARANTINE - 1 + LATER)


async def test_slots_of_a_server_that_forgets_all_the_time_are_told_once_a_minute(caplog) -> None:
    """A quarantine that begins anew before it is over is logged once a minute, however often that happens."""
    async with Group() as group:
        executor = await group.join(key_concurrency=1)
        handle = executor.schedule(group.work, "k", key="k")
        for _ in range(180):
            group.server.forget()
            await asyncio.sleep(QUARANTINE / 4)
        told = [record.getMessage() for record in caplog.records]
        minutes = 180 * QUARANTINE / 4 / 60
        assert len([text for text in told if text.startswith("slots: no slot is handed over")]) == 1 + int(minutes)
        assert not handle.done()
        assert await group.ended(2 * QUARANTINE)


async def test_reasons_that_alternate_are_told_once_in_an_outage(caplog) -> None:
    """An outage in which calls fail for two reasons in turn is logged once for each."""
    async with Group() as group:
        executor = await group.join(key_concurrency=1)
        executor.schedule(group.work, "k", key="k")
        await asyncio.sleep(QUARANTINE + LATER)
        errors = itertools.cycle([ConnectionResetError("it is\n\tgone"), ConnectionRefusedError("it is away")])
        executor.schedule(group.work, "k", key="k")
        with mock.patch.object(SlotLink, "call_slots", side_effect=errors):
            await asyncio.sleep(20)
        told = [text for record in caplog.records if (text := record.getMessage()).startswith("slots: no answer")]
        assert sorted(text.split("(")[1].split(")")[0] for text in told) == [
            "ConnectionRefusedError: it is away",
            "ConnectionResetError: it is gone",
        ]


@pytest.mark.parametrize("settings", [{"key_concurrency": 2}, {}], ids=["of a key", "of a pool"])
async def test_first_slot_of_a_new_group_is_waited_for_aloud(settings, caplog) -> None:
    """Who waits for the first slot of a new group is told why, for how long, and what would shorten it, and then starts."""
    async with Group() as group:
        executor = await group.join(**settings)
        pool = None if settings else group.managers[0].slots("pool", limit=2)
        handle = executor.schedule(group.work, "k", key="k", slots=pool)
        await asyncio.sleep(1)

        explanation = executor.explain(handle)
        assert (Hold.KEY_CONCURRENCY if settings else Hold.SLOTS) is explanation.hold
        (seconds,) = re.findall(r"no slot is handed over for (\d+\.\d) s: .* lease=", explanation.detail)
        assert pytest.approx(QUARANTINE - 1, abs=0.1) == float(seconds)
        (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert told.startswith(f"slots: no slot is handed over for {QUARANTINE:.1f} s: the group is new to the server")
        if pool is not None:
            assert pytest.approx(float(seconds), abs=0.1) == pool.statistics().quarantine
        assert await group.ended(QUARANTINE)
        assert pytest.approx(QUARANTINE, abs=LATER) == group.starts[0][0]


@pytest.mark.parametrize("settings", [{"key_concurrency": 2}, {}], ids=["of a key", "of a pool"])
async def test_no_permit_lapses_while_tasks_wait_for_slots(settings) -> None:
    """Where slots are the narrower limit, permits are requested for tasks that have slots, so that none lapses."""
    async with Group() as group:
        for _ in range(3):
            executor = await group.join(rate="200/s, 1500/10s", **settings)
            options = {} if settings else {"slots": group.managers[-1].slots("pool", limit=2)}
            for _ in range(40):
                executor.schedule(group.work, "k", key="k" if settings else None, **options)
        assert await group.ended(QUARANTINE + 10)

        assert {"k": 2} == group.most
        begin, end = group.starts[0][0], group.starts[-1][0]
        assert end - begin < 120 / 2 * 0.05 * 1.2
        lapsed = sum(executor.statistics().fleet.lapsed for executor in group.executors)
        assert lapsed < 120 * 0.05


@pytest.mark.parametrize("settings", [{"key_concurrency": 2}, {}], ids=["of a key", "of a pool"])
@pytest.mark.parametrize(("pause", "wait_max"), [(0.3, TRIP_MAX), (0.5, 2 * TRIP_MAX + 0.0005)])
async def test_task_on_its_own_gets_permit_and_slot_at_the_same_time(settings, pause, wait_max) -> None:
    """A task that waits for nobody starts after one way to the server and back, with one permit and one slot.

    A task that comes just as a late release is under way, a quarter of a lease after the previous start, waits for that.
    """
    async with Group() as group:
        executor = await group.join(rate="200/s, 1500/10s", **settings)
        options = {} if settings else {"slots": group.managers[-1].slots("pool", limit=2)}
        begins = []
        for seconds in (QUARANTINE + LATER, *[pause] * 20):
            begins.append(group.now())
            executor.schedule(group.work, "k", key="k" if settings else None, **options)
            await asyncio.sleep(seconds)

        waits = [start - begin for begin, (start, _) in zip(begins, group.starts, strict=True)]
        assert max(waits[2:]) < wait_max  # the second one cannot know that it need not wait as the first did
        assert (21, 0) == (executor.statistics().fleet.granted, executor.statistics().fleet.lapsed)


@pytest.mark.parametrize("settings", [{"key_concurrency": 2}, {}], ids=["of a key", "of a pool"])
async def test_slot_that_was_given_back_late_is_there_for_whoever_waits(settings) -> None:
    """A slot whose release has not been told yet is handed over within milliseconds, as another process waits for it."""
    async with Group() as group:
        executors = [await group.join(**settings) for _ in range(2)]
        pools = [None if settings else manager.slots("pool", limit=2) for manager in group.managers]
        for _ in range(2):  # the first one waits for the end of the quarantine
            await executors[0].schedule(group.work, "k", 0.0, key="k", slots=pools[0])
        await asyncio.sleep(LATER)
        assert group.server.slots._pools._leases  # noqa: SLF001  # the authority's memory: it was not told yet
        assert pools[0] is None or 0 == pools[0].statistics().held

        begin = group.now()
        handles = [executors[1].schedule(group.work, "k", key="k", slots=pools[1]) for _ in range(2)]
        await asyncio.gather(*handles)
        assert 2 == group.most["k"]
        assert group.starts[-1][0] - begin < 0.02


async def test_closing_tells_of_late_releases_at_once() -> None:
    """A process that closes tells of all releases."""
    async with Group() as group:
        executor, _ = await group.join(key_concurrency=2), await group.join(key_concurrency=2)
        for _ in range(2):  # the first one waits for the end of the quarantine
            await executor.schedule(group.work, "k", 0.0, key="k")
        await asyncio.sleep(LATER)
        assert group.server.slots._pools._leases  # noqa: SLF001  # the authority's memory
        await group.managers[0].aclose()
        assert not group.server.slots._pools._leases  # noqa: SLF001  # the authority's memory


async def test_holder_that_outlasts_its_manager_tells_of_its_release_at_once() -> None:
    """A holder whose manager has closed gives its slot back at once, though nobody waits: no other call will follow."""
    async with Group() as group:
        await group.join()
        pool = group.managers[0].slots("pool", limit=2)
        async with pool.hold():
            pass  # after the quarantine
        async with pool.hold():
            await group.executors[0].shutdown()
            await group.managers[0].aclose()
            assert group.server.slots._pools._leases  # noqa: SLF001  # the authority's memory
        await asyncio.sleep(LATER)
        assert not group.server.slots._pools._leases  # noqa: SLF001  # the authority's memory


async def test_nothing_is_left_of_a_key_of_which_nothing_runs() -> None:
    """A key without running tasks leaves nothing behind at the authority or in a process."""
    async with Group() as group:
        one, other = await group.join(key_concurrency=1), await group.join(key_concurrency=1)
        group.load(300, keys=300, seconds=0.0)
        assert await group.ended(QUARANTINE + 10)
        await asyncio.sleep(5)

        pools = group.server.slots._pools  # noqa: SLF001  # the authority's memory
        assert not pools._pools  # noqa: SLF001  # the same
        assert [0, 0] == [one.statistics().keys, other.statistics().keys]


async def test_function_tells_how_many_of_each_key() -> None:
    """The limit may be a function of the key; None is no limit, and asks nobody."""
    async with Group() as group:
        for _ in range(2):
            await group.join(key_concurrency={"k0": 1, "k1": None, "k2": 3}.get)
        group.load(30, keys=3)
        await asyncio.sleep(LATER)
        assert group.most == {"k1": 20}  # in the quarantine
        assert await group.ended(QUARANTINE + 20)
        assert group.most == {"k0": 1, "k1": 20, "k2": 3}


async def test_key_that_waits_holds_back_no_other() -> None:
    """A key at its limit holds back neither less important keys nor keyless tasks; within a key priority decides."""
    async with Group() as group:
        first, second = await group.join(key_concurrency=1), await group.join(key_concurrency=1)
        first.schedule(group.work, "busy", 5, key="busy")
        await asyncio.sleep(QUARANTINE + LATER)
        group.starts.clear()
        second.schedule(group.work, "busy", key="busy", priority=8)
        second.schedule(group.work, "busy first", key="busy", priority=9)
        second.schedule(group.work, "other", key="other", priority=1)
        second.schedule(group.work, "keyless")
        await asyncio.sleep(LATER)
        assert ["other", "keyless"] == [name for _, name in sorted(group.starts)] or ["keyless", "other"] == [
            name for _, name in group.starts
        ]
        assert await group.ended(10)
        assert ["busy first", "busy"] == [name for _, name in group.starts][2:]


async def test_few_keys_are_asked_for_at_a_time_in_order() -> None:
    """Of thousands of ready keys only those that may start soon ask for slots, the most important first."""
    async with Group() as group:
        executor = await group.join(rate="100/s", key_concurrency=1)
        executor.schedule(group.work, "first", key="first")
        await asyncio.sleep(QUARANTINE + LATER)
        group.starts.clear()
        for number in range(2000):
            executor.schedule(group.work, f"{number}", key=f"{number}", priority=number)
        await asyncio.sleep(1)

        held = group.server.slots._pools._leases  # noqa: SLF001  # the authority's memory
        assert len(held) < 30
        started = [int(name) for _, name in group.starts]
        assert 95 <= len(started) <= 101
        assert set(started) >= set(range(1999, 1999 - len(started) + 10, -1))


@pytest.mark.parametrize("order", [{}, {"order": Fair()}], ids=["default", "fair"])
@pytest.mark.parametrize("rate", [{}, {"rate": "40/s"}], ids=["free", "one pace"])
async def test_more_keys_than_are_asked_for_at_a_time(rate, order) -> None:
    """More keys than may ask at a time get their slots soon, and start in turn."""
    async with Group() as group:
        executor = await group.join(key_concurrency=1, **rate, **order)
        executor.schedule(group.work, "first", key="first")
        await asyncio.sleep(QUARANTINE + 3)
        for number in range(200):
            executor.schedule(group.work, f"{number}", key=f"{number}")
        assert await group.ended(6 if rate else 1)
        assert 201 == len(group.starts)


async def test_key_that_is_more_important_goes_before_those_that_have_slots_already() -> None:
    """A more important key gets its slot though as many as may wait already have theirs."""
    async with Group() as group:
        executor = await group.join(rate="2/s", key_concurrency=1)
        executor.schedule(group.work, "first", key="first")
        await asyncio.sleep(QUARANTINE + 3.1)
        for number in range(20):
            executor.schedule(group.work, f"{number}", key=f"{number}")
        await asyncio.sleep(1.2)
        executor.schedule(group.work, "important", key="important", priority=9)
        group.starts.clear()
        await asyncio.sleep(2.1)
        assert "important" in [name for _, name in group.starts[:2]]
        assert await group.ended(12)


@pytest.mark.parametrize("order", [{}, {"order": Fair()}], ids=["default", "fair"])
async def test_task_that_waits_for_a_pool_holds_up_no_keys(order) -> None:
    """A task that waits for a pool does not hold up keys, even if more of them are ready than may ask at a time."""
    async with Group() as group:
        executor = await group.join(key_concurrency=1, **order)
        pool = group.managers[0].slots("pool", limit=1)
        async with pool.hold():
            for number in range(100):
                executor.schedule(group.work, f"{number}", key=f"{number}")
            await asyncio.sleep(0.0001)
            executor.schedule(group.work, "pool", slots=pool, priority=5)
            await asyncio.sleep(1)
            assert 100 == len(group.starts)


@pytest.mark.parametrize("order", [{}, {"order": Fair()}], ids=["default", "fair"])
async def test_keys_whose_tasks_wait_for_a_pool_hold_up_no_others(order) -> None:
    """Keys whose tasks wait for a pool keep no slots meanwhile, and do not hold up others."""
    async with Group() as group:
        executor = await group.join(key_concurrency=1, **order)
        pool = group.managers[0].slots("pool", limit=1)
        async with pool.hold():
            for number in range(300):
                executor.schedule(group.work, f"{number}", key=f"{number}", slots=pool, priority=5)
            await asyncio.sleep(0.2)
            begin = group.now()
            executor.schedule(group.work, "other", key="other")
            await asyncio.sleep(2)
            assert group.starts[0][0] - begin < 0.2


async def test_task_with_a_key_gets_a_slot_of_a_pool_in_its_turn() -> None:
    """A task with a key that has waited for a slot of a pool gets it in turn, and then asks for that of its key."""
    async with Group() as group:
        busy, other = await group.join(key_concurrency=1), await group.join(key_concurrency=1)
        pools = [manager.slots("pool", limit=1) for manager in group.managers]
        for _ in range(10):
            busy.schedule(group.work, "busy", 2, slots=pools[0])
        await asyncio.sleep(QUARANTINE + 3)
        other.schedule(group.work, "key", key="key", slots=pools[1])
        await asyncio.sleep(6)
        assert "key" in [name for _, name in group.starts]


@pytest.mark.parametrize("order", [{}, {"order": Fair()}], ids=["default", "fair"])
async def test_executor_that_is_closed_keeps_no_slots(order) -> None:
    """A closed executor of an open manager keeps no slots: neither those of ready tasks nor those it waited for."""
    async with Group() as group:
        executor, other = await group.join(rate="1/s", key_concurrency=1, **order), await group.join(key_concurrency=1)
        group.managers[0].executor("y")
        other.schedule(group.work, "busy", QUARANTINE + 10, key="busy")
        executor.schedule(group.work, "first", key="first")
        await asyncio.sleep(QUARANTINE + 3)
        for key in ("busy", "1", "2", "3"):
            executor.schedule(group.work, key, key=key)
        leases = group.server.slots._pools._leases  # noqa: SLF001  # the authority's memory
        while len(leases) < 3:
            await asyncio.sleep(0.01)
        await executor.shutdown(cancel_pending=True)
        await asyncio.sleep(0.1)
        assert 1 == len(leases)


async def test_limit_larger_than_a_server_counts() -> None:
    """A limit larger than a server can count is sent as a number that it can."""
    async with Group() as group:
        executor = await group.join(key_concurrency=2**60)
        executor.schedule(group.work, "k", QUARANTINE + 9, key="k")
        await asyncio.sleep(QUARANTINE + LATER)
        (lease,) = group.server.slots._pools._leases.values()  # noqa: SLF001  # the authority's memory
        assert 2**53 > lease.limit


@pytest.mark.parametrize("how", ["cancel", "expire"])
async def test_task_that_goes_passes_its_place_on(how) -> None:
    """A task that is cancelled or expires while it waits for a slot holds up nobody."""
    async with Group() as group:
        first, second = await group.join(key_concurrency=1), await group.join(key_concurrency=1)
        first.schedule(group.work, "k", QUARANTINE + 2, key="k")
        await asyncio.sleep(QUARANTINE + LATER)
        gone = second.schedule(group.work, "k", key="k", expires=0.5 if how == "expire" else None)
        await asyncio.sleep(LATER)
        first.schedule(group.work, "k", key="k")
        await asyncio.sleep(LATER)
        if how == "cancel":
            gone.cancel()
        begin = group.now()
        assert await group.ended(QUARANTINE + 5)
        assert 2 == len(group.starts)
        assert group.now() - begin < QUARANTINE + 2


async def test_process_that_disappears_holds_its_slots_for_a_lease() -> None:
    """The slots of a vanished process are free after its lease."""
    async with Group() as group:
        first, second = await group.join(key_concurrency=1), await group.join(key_concurrency=1)
        first.schedule(group.work, "k", 60, key="k")
        await asyncio.sleep(QUARANTINE + LATER)
        second.schedule(group.work, "k", key="k")
        await asyncio.sleep(10)
        assert 1 == len(group.starts)

        group.server.cut_off.add("node:0:x")
        cut = group.now()
        await asyncio.sleep(LEASE * 2)
        assert 2 == len(group.starts)
        assert LEASE * 0.5 <= group.starts[1][0] - cut <= LEASE * 21 / 20 + 0.1


async def test_loss_is_told(caplog) -> None:
    """A running task whose slot is lost continues, and the log says so."""
    async with Group() as group:
        first = await group.join(key_concurrency=1)
        first.schedule(group.work, "k", 20, key="k")
        await asyncio.sleep(QUARANTINE + LATER)
        group.server.cut_off.add("node:0:x")
        with caplog.at_level(logging.WARNING, "ratelimited_executor"):
            await asyncio.sleep(LEASE * 2)
        assert "a task of the key 'k' continues without its slot" in caplog.text
        assert 1 == group.running["k"]
        group.server.cut_off.clear()
        first.schedule(group.work, "k", 1, key="k")
        await asyncio.sleep(5)
        assert 1 == group.running["k"]  # a slot was requested again
        assert await group.ended(30)  # its end frees no slot of another
        assert not group.managers[0]._slot_keeper._holders  # noqa: SLF001  # a holder's end would be awaited


@pytest.mark.parametrize(
    ("outage", "limit", "most"),
    [(Outage.STOP, 2, 0), (Outage.LOCAL, 2, 4), (Outage.static(2), 2, 2), (Outage.static(2), 1, 0)],
    ids=str,
)
async def test_outage(outage, limit, most) -> None:
    """Without the server each process follows its outage policy, and afterwards the group again."""
    async with Group() as group:
        for _ in range(2):
            await group.join(key_concurrency=limit, peers={"outage": outage})
        group.load(1, keys=1)
        assert await group.ended(QUARANTINE + 1)
        group.most.clear()
        group.server.is_away = True
        group.load(20, keys=1, seconds=0.2)
        await asyncio.sleep(LEASE + 3)
        assert most == group.most["k0"]

        group.server.is_away = False
        await asyncio.sleep(LEASE)
        group.most.clear()
        assert await group.ended(QUARANTINE + 30)
        assert group.most["k0"] <= limit


async def test_static_outage_is_over() -> None:
    """Tasks started during an outage count towards the limit once the server is back."""
    async with Group() as group:
        for _ in range(2):
            await group.join(key_concurrency=2, peers={"outage": Outage.static(2)})
        group.load(1, keys=1)
        assert await group.ended(QUARANTINE + 1)
        group.server.is_away = True
        group.load(20, keys=1, seconds=5)
        await asyncio.sleep(LEASE + 3)
        assert 2 == group.most["k0"]

        group.server.is_away = False
        await asyncio.sleep(LEASE * 2)
        assert 2 == group.most["k0"]
        assert await group.ended(120)
        assert 2 == group.most["k0"]
        assert not group.managers[0]._slot_keeper._holders  # noqa: SLF001  # all that was asked for was given back


@pytest.mark.parametrize("later", [0.07, 0.2, 0.35])
async def test_process_that_finds_the_server_back_later_starts_no_more_than_may(later) -> None:
    """While one process still goes by its own part and the other by the group, they start no more than the limit."""
    async with Group() as group:
        first, second = [await group.join(key_concurrency=2, peers={"outage": Outage.static(2)}) for _ in range(2)]
        group.load(1, keys=1)
        assert await group.ended(QUARANTINE + 1)
        group.server.is_away = True
        await asyncio.sleep(LEASE * 2)
        first.schedule(group.work, "k", key="k")
        await asyncio.sleep(later)
        second.schedule(group.work, "k", key="k")
        await asyncio.sleep(LEASE)
        assert [2, 2] == [manager._slot_keeper.parts for manager in group.managers]  # noqa: SLF001  # by its own part

        group.server.is_away = False
        while group.managers[0]._slot_keeper.parts is not None:  # noqa: SLF001  # the same
            await asyncio.sleep(0.01)
        first.schedule(group.work, "k", 3, key="k")
        first.schedule(group.work, "k", 3, key="k")
        await asyncio.sleep(0.02)
        second.schedule(group.work, "k", key="k")
        assert await group.ended(30)
        assert 2 == group.most["k"]


async def test_tasks_of_an_outage_leave_nothing_to_be_said() -> None:
    """Tasks that came and went during an outage are not reported afterwards."""
    async with Group() as group:
        executor = await group.join(key_concurrency=2, peers={"outage": Outage.LOCAL})
        group.load(1, keys=1)
        assert await group.ended(QUARANTINE + 1)
        group.server.is_away = True
        await asyncio.sleep(LEASE + 1)
        for _ in range(60):
            for _ in range(50):
                executor.schedule(group.work, "k", 0.001, key="k")
            await asyncio.sleep(1)
        assert 3001 == len(group.starts)
        assert 200 > len(group.managers[0]._slot_keeper._peer._releases)  # noqa: SLF001  # what is to be told


async def test_local_outage_is_over() -> None:
    """After a local outage tasks over the limit continue, and no other starts until fewer run."""
    async with Group() as group:
        for _ in range(2):
            await group.join(key_concurrency=2, peers={"outage": Outage.LOCAL})
        group.load(1, keys=1)
        assert await group.ended(QUARANTINE + 1)
        group.server.is_away = True
        await asyncio.sleep(LEASE + 1)
        group.load(4, keys=1, seconds=10)
        await asyncio.sleep(1)
        assert 4 == group.running["k0"]

        group.server.is_away = False
        await asyncio.sleep(1 + LEASE / 4)
        group.load(8, keys=1, seconds=0.5)
        await asyncio.sleep(2)
        assert 4 == group.running["k0"]
        await asyncio.sleep(6)
        group.most.clear()
        assert await group.ended(30)
        assert 2 == group.most["k0"]


async def test_outage_that_comes_back_at_once() -> None:
    """After repeated outages local counting continues until the server has been back for a while."""
    async with Group() as group:
        for _ in range(2):
            await group.join(key_concurrency=2, peers={"outage": Outage.static(2)})
        group.load(1, keys=1)
        assert await group.ended(QUARANTINE + 1)
        group.load(40, keys=1, seconds=1)
        for _ in range(6):
            group.server.is_away = True
            await asyncio.sleep(LEASE + 1)
            group.server.is_away = False
            await asyncio.sleep(LEASE / 8)
        assert await group.ended(60)
        assert 2 == group.most["k0"]


async def test_tasks_that_ran_without_a_limit_count_once_there_is_one() -> None:
    """Tasks that started without a limit are reported to the group before others start under a new one."""
    async with Group() as group:
        first, second = await group.join(key_concurrency=9), await group.join(key_concurrency=9)
        group.load(1, keys=1)
        assert await group.ended(QUARANTINE + 1)
        first.key_concurrency = second.key_concurrency = None
        group.load(2, keys=1, seconds=5)
        await asyncio.sleep(LATER)
        assert 4 == group.running["k0"]
        first.key_concurrency = second.key_concurrency = 4
        await asyncio.sleep(LATER)
        group.load(4, keys=1, seconds=1)
        assert await group.ended(20)
        assert 4 == group.most["k0"]


async def test_another_limit_holds_from_the_next_start_on() -> None:
    """A new limit applies from the next start; each process applies its own, counting the tasks of all."""
    async with Group() as group:
        first, second = await group.join(key_concurrency=4), await group.join(key_concurrency=4)
        group.load(200, keys=1, seconds=0.5)
        await asyncio.sleep(QUARANTINE + 1)
        assert 4 == group.most["k0"]

        first.key_concurrency = second.key_concurrency = 1
        await asyncio.sleep(1)
        group.most.clear()
        await asyncio.sleep(3)
        assert 1 == group.most["k0"]

        second.key_concurrency = 6
        await asyncio.sleep(4)
        assert 6 >= group.most["k0"] > 1
        first.key_concurrency = second.key_concurrency = None
        await asyncio.sleep(LATER)
        assert group.most["k0"] > 100


async def test_limit_of_zero_starts_nothing_of_a_key_here_and_holds_up_nobody() -> None:
    """A key with limit 0 in one process does not start there, and runs in another."""
    async with Group() as group:
        await group.join(key_concurrency=0)
        await group.join(key_concurrency=2)
        group.load(10, keys=1)
        await asyncio.sleep(QUARANTINE + 3)
        assert 10 == len(group.starts)


async def test_every_way_in(caplog) -> None:
    """Batches, submitted calls, permits and results all use slots of keys."""
    async with Group() as group:
        first, second = [await group.join(key_concurrency=2) for _ in range(2)]
        batches = [executor.schedule_many(group.work, ["b"] * 20, key=lambda _: "b") for executor in (first, second)]
        submitted = [asyncio.ensure_future(executor.submit(group.work, "b", key="b")) for executor in (first, second)]

        async def permitted(executor) -> None:
            async with executor.permit(key="b"):
                await group.work("b")

        permits = [asyncio.ensure_future(permitted(executor)) for executor in (first, second) for _ in range(5)]
        await asyncio.gather(*submitted, *permits)
        for batch in batches:
            await batch
        assert 52 == len(group.starts)
        assert 2 == group.most["b"]
        told = [record.getMessage() for record in caplog.records]
        assert 2 == len(told) == sum(each.startswith("slots: no slot is handed over for ") for each in told)


async def test_explain_says_that_the_key_is_at_its_limit() -> None:
    """``explain`` names the limit of a key, wherever its tasks run."""
    async with Group() as group:
        first, second = await group.join(key_concurrency=1), await group.join(key_concurrency=1)
        first.schedule(group.work, "k", 60, key="k")
        await asyncio.sleep(QUARANTINE + LATER)
        waiting = second.schedule(group.work, "k", key="k")
        await asyncio.sleep(LATER)
        assert Hold.KEY_CONCURRENCY is second.explain(waiting).hold


async def _ready_group(group, **settings):
    """Return an executor whose quarantines are over."""
    executor = await group.join(rate="3/s, 100/min", key_concurrency=1, **settings)
    executor.schedule(group.work, "before", 0, key="before")
    assert await group.ended(QUARANTINE + 5)
    group.starts.clear()
    return executor


@pytest.mark.parametrize(
    ("settings", "delay", "priority", "dear"),
    [({}, 2, 1, 3), ({"order": Fair()}, 0, 0, 6)],
    ids=["more important ones were delayed", "fair"],
)
async def test_task_that_costs_more_and_is_first_gets_the_ticket_that_it_needs(settings, delay, priority, dear) -> None:
    """The first task gets a ticket of its own cost, instead of cheaper tickets that lapse one after the other."""
    async with Group() as group:
        executor = await _ready_group(group, **settings)
        for number in range(10):
            executor.schedule(group.work, f"cheap {number}", 0, key=f"cheap {number}", delay=delay, priority=priority)
        await asyncio.sleep(delay)
        for number in range(dear):
            executor.schedule(group.work, f"dear {number}", 0, key=f"dear {number}", cost=3)
        assert await group.ended((10 + 3 * dear) / 3 * 1.3)


async def test_slots_of_the_most_important_keys_are_asked_for_first() -> None:
    """Slots are requested first for the most important keys, also if their tasks come later."""
    async with Group() as group:
        executor = await _ready_group(group)
        for number in range(6):
            executor.schedule(group.work, "first", 0, key=f"first {number}", priority=1, delay=2)
        await asyncio.sleep(2)
        for number in range(6):
            executor.schedule(group.work, "later", 0, key=f"later {number}")
        assert await group.ended(10)
        assert ["first"] * 6 + ["later"] * 6 == [name for _, name in group.starts]
