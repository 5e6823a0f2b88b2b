"""The pages of groups and the history behind them, without a server; in virtual time."""

import asyncio
import dataclasses
import logging
import math
import re

import httpx
import pytest

from ratelimited_executor.dashboard.errors import PageError
from ratelimited_executor.dashboard.group_history import GROUP_COUNT_MAX, SERIES_COUNT_MAX, GroupRecorder
from ratelimited_executor.dashboard.history import STEP_SECONDS

from .pictures import Redis, limits, picture, pool

LIMIT = ("limit", "llm", "permits/window/60")
PEERS = ("peers", "llm")
POOL = ("pool", "gpu")


@pytest.fixture(autouse=True)
def _virtual(virtual_clock):
    """Let the recording take its steps in virtual time."""


def client(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


def columns(recorder, name, *fields, group="team"):
    history = recorder._recorded[group][name]
    return [history.column(field) for field in fields]


def lines_of(plot):
    """Return the paths of the line and the dots of each line in a plot."""
    return re.findall(r'<path class="line \w+" d="([^"]*)"/><path class="dots \w+" d="([^"]*)"/>', plot.svg)


async def test_each_series_of_a_group_has_its_points():
    """Limits, pools and counts of peers have points and plots; pools of keys have none."""
    redis = Redis(team=picture(shared=[limits()], pools=[pool(), pool("k", is_by_key=True)]))
    recorder = redis.recorder()
    await recorder.take()
    await asyncio.sleep(5)
    redis.pictures["team"] = picture(shared=[limits(used=50, active=2)], pools=[pool(held=4, waiting=6)])
    await recorder.take()
    assert columns(recorder, LIMIT, "used", "limit") == [[3, 50], [100, 100]]
    assert columns(recorder, POOL, "held", "limit", "waiting") == [[2, 4], [4, 4], [1, 6]]
    assert columns(recorder, PEERS, "active") == [[1, 2]]
    assert [[plot.title for plot in drawn] for drawn in recorder.plots("team").values()] == [
        ["permits/window/60, in use"],
        ["gpu, held slots", "gpu, waiting for a slot"],
        ["llm, active peers"],
    ]
    assert recorder.plots("nobody") == {}


async def test_outage_is_a_gap():
    """An outage is a gap in each plot, and recording continues after it."""
    redis = Redis(team=picture(shared=[limits()]))
    recorder = redis.recorder()
    running = asyncio.create_task(recorder.run())
    await asyncio.sleep(4 * STEP_SECONDS + 1)
    redis.is_away = True
    await asyncio.sleep(4 * STEP_SECONDS)
    redis.is_away = False
    await asyncio.sleep(3 * STEP_SECONDS)
    ((line, dots), *_) = lines_of(recorder.plots("team")[LIMIT][0])
    assert (line.count("M"), line.count("L"), dots) == (2, 6, "")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_error_of_its_own_does_not_end_the_recording(caplog):
    """An internal error is logged with its traceback, and recording continues with the next step."""
    redis = Redis(team=object())
    recorder = redis.recorder()
    running = asyncio.create_task(recorder.run())
    await asyncio.sleep(1)
    redis.pictures["team"] = picture(shared=[limits()])
    await asyncio.sleep(STEP_SECONDS)
    running.cancel()
    assert len(recorder._recorded["team"][LIMIT]) == 1
    logged = [each for each in caplog.records if each.name == GroupRecorder.__module__]  # others may log meanwhile
    assert [(each.levelno, each.exc_info is not None) for each in logged] == [(logging.ERROR, True)]


async def test_server_that_hangs_is_not_asked_for_every_group_in_turn():
    """A round of recording ends with its step, even if few of the groups have been read by then."""
    redis = Redis(**{f"g{number}": picture() for number in range(40)})
    redis.hangs = 2.0
    recorder = redis.recorder()
    before = asyncio.get_running_loop().time()
    await recorder.take()
    assert asyncio.get_running_loop().time() - before == 6
    assert len(redis.reads) == 3


async def test_group_that_cannot_be_read_holds_up_no_other():
    """If a group cannot be read, as its keys belong to something else, the others are recorded all the same."""
    redis = Redis(bad=picture(), team=picture(shared=[limits()]))
    read = redis.read

    async def fail(name):
        if name == "bad":
            raise PageError(503, "not a group")
        return await read(name)

    redis.read = fail
    recorder = redis.recorder()
    await recorder.take()
    assert len(recorder._recorded["team"][LIMIT]) == 1


async def test_groups_are_searched_for_rarely_while_nobody_looks():
    """The recorder searches for groups at most every 30 s, as a search scans all keys."""
    redis = Redis()
    await redis.recorder().take()
    assert redis.searches == [30.0]


async def test_number_of_groups_and_series_is_limited():
    """Beyond the maximum, a new group or series is recorded only in place of one that no longer exists."""
    redis = Redis(**{f"g{number:03}": picture() for number in range(GROUP_COUNT_MAX + 5)})
    recorder = redis.recorder()
    await recorder.take()
    assert list(recorder._recorded) == [f"g{number:03}" for number in range(GROUP_COUNT_MAX)]
    assert len(redis.reads) == GROUP_COUNT_MAX
    del redis.pictures["g007"]
    await recorder.take()
    assert {f"g{GROUP_COUNT_MAX:03}"} == set(recorder._recorded) - {
        f"g{number:03}" for number in range(GROUP_COUNT_MAX)
    }
    assert not recorder.is_recorded("g007")

    redis.pictures["g000"] = picture(
        shared=[limits(f"r{number}") for number in range(SERIES_COUNT_MAX - 1)], pools=[pool("a"), pool("b")]
    )
    await recorder.take()
    assert len(recorder._recorded["g000"]) == SERIES_COUNT_MAX
    assert ("pool", "b") not in recorder._recorded["g000"]
    redis.pictures["g000"] = picture(pools=[pool("b")])
    await recorder.take()
    assert len(recorder._recorded["g000"]) == SERIES_COUNT_MAX
    assert ("pool", "b") in recorder._recorded["g000"]


async def test_group_that_comes_back_goes_on_in_its_history():
    """A group that comes back, as after its server has lost its keys, continues its history."""
    redis = Redis(team=picture(shared=[limits()]))
    recorder = redis.recorder()
    await recorder.take()
    team = redis.pictures.pop("team")
    await recorder.take()
    redis.pictures["team"] = team
    await recorder.take()
    assert len(recorder._recorded["team"][LIMIT]) == 2


async def test_points_older_than_the_axis_count_for_nothing():
    """Points from before a long outage influence neither the scale of the plot nor its summary."""
    redis = Redis(team=picture(shared=[limits(used=10**6)]))
    recorder = redis.recorder()
    await recorder.take()
    await asyncio.sleep(7200)
    redis.pictures["team"] = picture(shared=[limits(used=3)])
    await recorder.take()
    plot = recorder.plots("team")[LIMIT][0]
    assert 'aria-label="permits/window/60, in use: used 3 now, 3 to 3; limit 100 now, 100 to 100"' in plot.svg
    assert "1 M" not in plot.svg
    await asyncio.sleep(3601)
    assert recorder.plots("team") == {}


# The page.


async def test_page_of_a_group_has_plots_while_the_application_runs():
    """A group is recorded while the application runs, even if nobody looks; each plot is beside its figures."""
    redis = Redis(team=picture(shared=[limits()], pools=[pool(), pool("k", is_by_key=True)]))
    app = redis.app()
    async with client(app) as web:
        page = await web.get("/group?name=team")
        assert (page.text.count("<svg"), "No history yet" in page.text) == (0, True)
        async with app.router.lifespan_context(app):
            await asyncio.sleep(11)
            page = await web.get("/group?name=team")
            assert page.text.count("<svg") == 4
            assert "in the memory of this command: a restart clears the history" in page.text
            assert f"At most {SERIES_COUNT_MAX} limits, pools and counts of peers per group" in page.text
            assert re.search(r'id="limits-1".*in use.*active peers.*id="slots".*held slots', page.text, re.S)
        count = len(redis.reads)
        await asyncio.sleep(60)
        assert len(redis.reads) == count


async def test_page_of_a_group_leads_with_trouble():
    """The limits in trouble come first, in words; executors without one have a sentence, and those that rest no warning."""
    resting = dataclasses.replace(limits("a-idle", active=0), plan="Paced(slack=0.02) permits inf/s", limits=[])
    shared = [resting, limits("b-active"), limits("c-full", used=100), limits("d-held", quarantine=2.0)]
    redis = Redis(team=picture(shared=shared))
    app = redis.app()
    await app.state.recorder.take()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as web:
        page = (await web.get("/group?name=team")).text
    assert re.findall(r'<h2 id="limits-\d"><bdi>([^<]+)', page) == ["d-held", "c-full", "b-active", "a-idle"]
    assert "permits without a limit, paced; 0 active" in page
    assert page.count("These executors have no limit that they share.") == 1
    assert '<span class="badge wait">idle' not in page
    first = page[page.index("b-active") : page.index("a-idle")]
    assert first.count('<div class="plots">') == 1
    assert first.count("<figure>") == 2


async def test_page_of_a_group_shows_its_history_while_redis_is_away():
    """While Redis is away, the page has the error and the recorded plots, or the error alone without history."""
    redis = Redis(**{"a<b": picture(shared=[limits("m&m")], pools=[pool()])})
    app = redis.app()
    async with client(app) as web:
        await app.state.recorder.take()
        await asyncio.sleep(5)
        redis.is_away = True
        page = await web.get("/group", params={"name": "a<b"})
        assert page.status_code == 503
        assert '<p role="alert">Redis cannot be read: away</p>' in page.text
        assert re.findall("<h2[^>]*>([^<]*)</h2>", page.text) == ["m&amp;m", "Slots"]
        assert page.text.count("<svg") == 4
        other = await web.get("/group?name=other")
        assert (other.status_code, other.text.count("<svg")) == (503, 0)
        redis.is_away = False
        assert (await web.get("/group", params={"name": "a<b"})).status_code == 200
        assert (await web.get("/group?name=other")).status_code == 404


def test_points_take_little_memory():
    """A point takes eight bytes for its time and four for each other field."""
    recorder = Redis().recorder()
    recorder._recorded["team"] = {}
    recorder._clock = lambda: math.pi
    recorder._add("team", picture(shared=[limits()]))
    sizes = [column.itemsize for column in recorder._recorded["team"][LIMIT]._columns.values()]
    assert sizes == [8, 4, 4]
