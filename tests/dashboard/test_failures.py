"""The latest failures of an executor: texts of bounded length, alike ones counted, without what they refer to."""

import asyncio
import gc
import weakref

import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor
from ratelimited_executor.dashboard.failures import FAILURE_COUNT, FailureRing, Failures, failure_texts
from ratelimited_executor.dashboard.recording import HistoryRecorder


class Reader:
    """Stands for the application that reads the failures."""


READER = Reader()


@pytest.fixture(autouse=True)
def _virtual(handler):
    """Run in virtual time, and keep the reports of failures."""


async def fail(text):
    """Raise an error; tests schedule it."""
    raise ValueError(text)


class Nameless(Exception):
    """An error whose message cannot be had."""

    def __str__(self):
        raise BufferError


class Text(str):
    """A text that breaks whatever is done with it."""

    __slots__ = ()

    def __len__(self):
        raise BufferError

    def __getitem__(self, _):
        raise BufferError

    def __html__(self):
        return self


class Told(Exception):
    """An error whose message is no mere str."""

    def __str__(self):
        return Text("<b>")


class Causeless(Exception):
    """An error whose cause cannot be had."""

    @property
    def __cause__(self):
        raise BufferError


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "texts"),
    [
        (ValueError("no money"), ("ValueError", "no money", "")),
        (Nameless(), (f"<class '{__name__}.Nameless'>", "its message cannot be written", "")),
        (ValueError("x" * 10**6), ("ValueError", "x" * 500 + "…", "")),
        (
            OSError("cannot reach 'redis://ann:secret@host/0?api_key=secret'"),
            ("OSError", "cannot reach 'redis://***@host/0?api_key=***'", ""),
        ),
        (ValueError("http://user:" + "secret" * 400 + "@host"), ("ValueError", "http://***", "")),
        (ValueError("a" * 1994 + " x://y"), ("ValueError", "a" * 500 + "…", "")),
        (ValueError("y" * 490 + " http://user:secret@host"), ("ValueError", "y" * 490 + " http://**…", "")),
        (raised(ValueError("outer"), KeyError("inner")), ("ValueError", "outer", "KeyError: 'inner'")),
        (raised(ValueError("outer"), KeyError()), ("ValueError", "outer", "KeyError")),
    ],
)
def test_texts_of_an_exception(error, texts):
    """An exception is its class, a message of at most 500 characters without secrets of URLs, and its cause."""
    assert failure_texts(error) == texts


async def fail_too(text):
    """Raise the same error in another place; tests schedule it."""
    raise ValueError(text)


async def test_failures_alike_are_counted():
    """Failures of one class and place are one entry, the latest first; the last one gives name, message and time."""
    async with RateLimitedExecutor("mail", rate=1) as executor:
        recorder = HistoryRecorder(executor, READER)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        executor.schedule_many(fail_too, ["same", "same"], name="other")
        executor.schedule_many(fail, ["message 1372", "message 1368", "message 1364"], name="letter")
        await asyncio.sleep(10)
        latest = recorder.recorded["mail"].failures.ring.latest()
        assert [(each.name, each.message, each.count, each.is_varied) for each in latest] == [
            ("letter[2]", "message 1364", 3, True),
            ("other[1]", "same", 2, False),
        ]
        assert latest[0].at - latest[1].at == pytest.approx(3)
        assert [frame.partition(":")[0] for frame in latest[0].frames] == ["fail (test_failures.py"]
        assert recorder.failures.latest() == latest


def test_ring_keeps_the_last_ones():
    """A ring has at most 50 entries; one that comes again is the latest, and the one that is oldest makes room."""
    ring = FailureRing()
    for number in range(FAILURE_COUNT):
        ring.add((str(number),), number)
    assert ring.again(("0",)) == 0
    assert ring.again(("none",)) is None
    ring.add(("new",), "new")
    assert (len(ring), ring.latest()[:2]) == (FAILURE_COUNT, ["new", 0])
    assert 1 not in ring.latest()


async def test_storm_of_failures_is_not_written_down_one_by_one():
    """Within a second at most 100 failures of an executor are looked at, whatever their messages cost."""
    looked_at = []

    class Costly(Exception):
        def __str__(self):
            looked_at.append(1)
            return "costly"

    async def fail(_):
        raise Costly

    async with RateLimitedExecutor("mail") as executor:
        recorder = HistoryRecorder(executor, READER)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        executor.schedule_many(fail, range(5000))
        await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert executor.statistics().failed == 5000
        assert len(looked_at) <= 201
        assert recorder.failures.latest()[0].count >= 100


@pytest.mark.parametrize(
    ("error", "message"),
    [(Nameless(), "its message cannot be written"), (Told(), "<b>"), (Causeless(), "its message cannot be written")],
)
async def test_a_task_ends_whatever_its_exception_is(error, message):
    """An exception of which nothing can be told ends its task like any other."""

    async def fail():
        raise error

    async with RateLimitedExecutor("mail") as executor:
        recorder = HistoryRecorder(executor, READER)
        with pytest.raises(type(error)):
            await asyncio.wait_for(executor.schedule(fail), 30)
        (found,) = recorder.failures.latest()
        assert (found.message, type(found.message)) == (message, str)


async def test_no_exception_is_kept():
    """Neither an exception nor what its traceback refers to outlives the task."""

    class Heavy:
        pass

    kept = []

    async def fail():
        heavy = Heavy()
        kept.append(weakref.ref(heavy))
        raise ValueError

    async with RateLimitedExecutor("mail") as executor:
        recorder = HistoryRecorder(executor, READER)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        executor.execute(fail)
        await asyncio.sleep(1)
        gc.collect()
        assert len(recorder.failures.latest()) == 1
        assert kept[0]() is None


async def test_executor_without_a_page_is_not_listened_to():
    """The hook of failures is set only while a page reads them."""
    async with ExecutorManager() as manager:
        executor = manager.executor("mail")
        assert executor._engine.accounts.on_failed is None
        reader = Reader()
        recorder = HistoryRecorder(manager, reader)
        assert executor._engine.accounts.on_failed is not None
        assert executor._engine.accounts.on_task_end is None
        del reader
        await asyncio.sleep(10)
        assert executor._engine.accounts.on_failed is None
        assert recorder.recorded == {}


def test_failures_of_a_successor_go_on():
    """An executor of the same name adds to the entries of the one before."""
    failures = Failures("mail", FailureRing())
    for begin in (0.0, 10.0):
        failures.open(lambda begin=begin: begin)
        failures.note(None, ValueError("x"), None)
    [entry] = failures.ring.latest()
    assert (entry.count, entry.at, entry.name) == (2, 10.0, "a call")


def test_failures_are_recent_for_15_minutes():
    """As many count as recent as have failed within 15 minutes before the last count."""
    failures = Failures("mail", FailureRing())
    seen = []
    for now, count in ((5, 30), (10, 0), (600, 2), (904, 0), (905, 1), (1499, 0), (1500, 0), (9000, 0)):
        failures.count(now, count)
        seen.append(failures.lately)
    assert seen == [30, 30, 32, 32, 3, 3, 1, 0]
