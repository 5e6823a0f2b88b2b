"""An open load in virtual time: a request starts when it is due, whatever the service does."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import pairwise

import pytest

from ratelimited_executor.cli.bench.open_load import FiguresLostError, OpenLoad
from ratelimited_executor.cli.bench.senders import CoroutineSender, kind_of
from ratelimited_executor.cli.stopping import Stop, StopReason
from ratelimited_executor.load.arrivals import Arrival, Phase, Schedule
from ratelimited_executor.load.figures import Figures
from ratelimited_executor.load.merging import merge
from ratelimited_executor.load.recording import NOT_STARTED, LoadOutcome
from ratelimited_executor.load.verdicts import why_tool_was_limit


def load(send, *phases: Phase, draws=None, rank: int = 0, participants: int = 1, **more) -> OpenLoad:
    schedule = Schedule(classes={"": phases}, draws=draws, rank=rank, participants=participants)
    return load_of(schedule, send, **more)


def load_of(schedule: Schedule, send, *, connections: int = 100, timeout: float = 30, drain: float = 30) -> OpenLoad:
    sender = CoroutineSender(send, timeout=timeout)
    return OpenLoad(schedule, sender, kind_of=kind_of, connections=connections, drain=drain)


def constant(rate: float, seconds: float, **more) -> Phase:
    return Phase(first=rate, last=rate, seconds=seconds, **more)


class Service:
    """A service that answers after a fixed time, but not while it is frozen; it notes when requests arrive.

    Attributes:
        starts: (number, seconds since the first request).
    """

    def __init__(self, takes: float = 0.005, *, freezes: tuple[float, float] = (0, 0)) -> None:
        self._takes, self._freezes = takes, freezes
        self._begin: float | None = None
        self.starts: list[tuple[int, float]] = []

    async def __call__(self, arrival: Arrival) -> LoadOutcome:
        loop = asyncio.get_running_loop()
        if self._begin is None:
            self._begin = loop.time()
        now = loop.time() - self._begin
        self.starts.append((arrival.number, now))
        begin, end = self._freezes
        await asyncio.sleep(self._takes + (end - now if begin <= now < end else 0.0))
        return LoadOutcome(status=200, received=10)


async def test_requests_start_exactly_when_they_are_due(virtual_loop) -> None:
    """Each request starts at its own time, however long earlier ones take."""
    service = Service(takes=5)
    figures = await load(service, constant(50, 4), connections=300).play(Stop())

    assert pytest.approx([number / 50 for number in range(200)], abs=1e-6) == [at for _, at in service.starts]
    assert [*range(200)] == [number for number, _ in service.starts]
    assert (200, 0, 2000, 50) == (figures.count, figures.error_count, figures.received, figures.asked_rate)
    assert pytest.approx(5, rel=1e-2) == figures.response_times.quantile(0.99)
    assert figures.lateness.most < 1e-5


async def test_frozen_service_shows_from_the_intended_start_alone(virtual_loop) -> None:
    """The service is frozen for 2 s: four requests hang, and two hundred others get no connection in time."""
    service = Service(freezes=(2, 4))
    figures = await load(service, constant(100, 10), connections=4).play(Stop())

    assert 1000 == figures.count
    assert figures.response_times.quantile(0.99) > 1.8
    assert figures.service_times.quantile(0.99) < 0.006
    assert figures.lateness.most < 1e-5  # waiting for a connection is not lateness of the tool
    assert 2 <= figures.full_seconds < 2.5
    worst = max(figures.timeline, key=lambda each: each.p50)
    assert 2 == worst.second


async def test_busy_loop_is_our_own_lateness(virtual_loop, virtual_clock) -> None:
    """A delay in the tool itself counts as its lateness, and not as the service's."""
    service = Service()

    async def send(arrival: Arrival) -> LoadOutcome:
        if arrival.number == 10:
            virtual_clock.block(0.5)
        return await service(arrival)

    figures = await load(send, constant(10, 4)).play(Stop())

    assert pytest.approx(0.4, abs=0.02) == figures.lateness.most


@pytest.mark.parametrize("connections", [2, 100])
async def test_pause_of_the_tool_is_its_lateness_however_few_connections(
    virtual_loop, virtual_clock, connections
) -> None:
    """Requests that were due in the pause would have had a connection, and wait for one only since its end."""
    service = Service()

    async def send(arrival: Arrival) -> LoadOutcome:
        if arrival.number == 100:
            virtual_clock.block(1)
        return await service(arrival)

    figures = await load(send, constant(100, 4), connections=connections).play(Stop())

    assert pytest.approx(1, abs=0.02) == figures.lateness.most
    assert 90 <= figures.lateness.count_above(0.005) <= 101
    assert why_tool_was_limit(figures) is not None


async def test_warm_up_is_sent_and_not_recorded(virtual_loop) -> None:
    """Requests of the warm-up are sent and not recorded, and the measured ones follow without a gap."""
    service = Service()
    figures = await load(service, constant(10, 2, is_measured=False), constant(20, 3)).play(Stop())

    assert (80, 60) == (len(service.starts), figures.count)
    assert (3, 20) == (figures.seconds, figures.asked_rate)
    assert 0 == figures.timeline[0].second


async def test_time_out_is_from_the_actual_start_and_ends_the_request(virtual_loop) -> None:
    """The duration of a request that times out is the time-out, counted from the time of sending."""
    figures = await load(Service(takes=60), constant(10, 1), timeout=2).play(Stop())

    assert {"timeout": 10} == figures.errors
    assert pytest.approx(2, rel=1e-2) == figures.service_times.most


async def test_request_that_never_gets_a_connection_is_an_error_with_its_wait(virtual_loop) -> None:
    """With one connection and requests of 1 s, 10 a second, those that never start are errors, with their full wait."""
    figures = await load(Service(takes=1), constant(10, 5), connections=1, drain=3).play(Stop())

    assert 50 == figures.count
    assert 9 >= figures.service_times.count >= 8
    assert figures.errors == {NOT_STARTED: 50 - figures.service_times.count}
    assert figures.response_times.quantile(0.5) > 5


class UnprintableError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise BufferError


@pytest.mark.parametrize(
    ("error", "kind", "samples"),
    [
        (ValueError("x\n y"), "ValueError", {"ValueError": "x y"}),
        (ValueError("x" * 10_000), "ValueError", {"ValueError": "x" * 300 + "…"}),
        (TimeoutError(), "timeout", {}),
        (SystemExit(3), "SystemExit", {"SystemExit": "3"}),
        (UnprintableError(), "UnprintableError", {}),
    ],
)
async def test_error_is_counted_by_its_kind(virtual_loop, error, kind, samples) -> None:
    """An error is counted by its kind, the text of the first is kept, shortened, and the load goes on."""

    async def send(arrival: Arrival) -> LoadOutcome:
        raise error

    figures = await load(send, constant(10, 1)).play(Stop())

    assert ({kind: 10}, samples) == (figures.errors, figures.samples)


async def test_stop_ends_the_load_and_lets_requests_finish(virtual_loop) -> None:
    """Requests that have started may finish after a stop, and those that are not due yet are no requests."""
    stop = Stop()
    virtual_loop.call_later(2.25 + 0.01, stop.order, StopReason.SIGNAL)
    figures = await load(Service(takes=1), constant(10, 60)).play(stop)

    assert (21, 0) == (figures.count, figures.error_count)
    assert pytest.approx(2.01, abs=0.01) == figures.seconds


async def test_second_signal_gives_up_what_is_under_way(virtual_loop) -> None:
    """The second signal ends the requests that are under way at once; they count as timed out."""
    stop = Stop()
    for at in (1.0, 1.5):
        virtual_loop.call_later(at, stop.on_signal)
    begin = virtual_loop.time()
    figures = await load(Service(takes=1000), constant(10, 60), timeout=3600).play(stop)

    assert {"timeout": figures.count} == figures.errors
    assert virtual_loop.time() - begin < 2


async def test_turns_of_the_loop_are_short_however_much_is_due(virtual_loop) -> None:
    """Of half a million requests that no connection was there for, none is held, and a turn records a few hundred."""
    played = load(Service(takes=1000), constant(50_000, 60), connections=1, timeout=1)
    stop, recorded = Stop(), []
    virtual_loop.call_later(10.25, stop.order, StopReason.SIGNAL)

    def note() -> None:
        recorded.append(played.live().ended)
        if recorded[-1] < 500_000:
            virtual_loop.call_soon(note)

    virtual_loop.call_later(10.25, note)
    figures = await played.play(stop)

    assert pytest.approx(500_000, abs=2) == figures.count
    assert max(after - before for before, after in pairwise(recorded)) <= 501


async def test_second_signal_ends_the_summing_up(virtual_loop, virtual_clock) -> None:
    """A second after the second signal the figures are given up, if they are not there."""
    played = load(Service(takes=1000), constant(50_000, 60), connections=1, timeout=1)
    stop = Stop()
    virtual_loop.call_later(3.25, stop.on_signal)

    def dawdle(left: int) -> None:
        virtual_clock.block(0.6)
        if left:
            virtual_loop.call_soon(dawdle, left - 1)

    for act in (stop.on_signal, partial(dawdle, 20)):
        virtual_loop.call_later(3.25, act)
    with pytest.raises(FiguresLostError):
        await played.play(stop)

    assert played.live().ended < 20_000


async def test_live_figures_follow_the_load(virtual_loop) -> None:
    """Live figures have the rate, the total time, and the requests under way, waiting and ended."""
    played = load(Service(takes=10), constant(5, 2, is_measured=False), constant(10, 8), connections=30)
    playing = asyncio.ensure_future(played.play(Stop()))
    await asyncio.sleep(0.25 + 1)
    warm_up = played.live()
    await asyncio.sleep(5)
    later = played.live()
    await playing

    assert (True, 5, 0) == (warm_up.is_warm_up, warm_up.rate, warm_up.waiting)
    assert (False, 10, 30, 10) == (later.is_warm_up, later.rate, later.in_flight, later.total)
    assert later.waiting in (20, 21)
    assert (80, 0) == (played.live().ended, played.live().errors)


async def test_checkpoints_add_up_to_the_figures_and_delay_no_start(virtual_loop) -> None:
    """A checkpoint has the requests that ended since the last one; there is none during the warm-up."""
    service = Service(takes=0.2)
    played = load(service, constant(50, 2, is_measured=False), constant(400, 6), participants=2, rank=1)
    playing = asyncio.ensure_future(played.play(Stop()))
    await asyncio.sleep(0.25 + 1)
    assert await played.checkpoint() is None
    await asyncio.sleep(1)
    left = []
    for _ in range(3):
        await asyncio.sleep(2)
        left.append(Figures.from_json(await played.checkpoint()))
    figures = await playing

    assert [400, 400, 400] == pytest.approx([each.count for each in left], abs=45)
    assert (1200, 1200) == (figures.count, played.live().ended)
    merged = merge(left)
    assert merged.count < 1200
    assert pytest.approx(merged.seconds, abs=0.5) == 6
    assert figures.lateness.most < 1e-5


async def test_late_requests_start_in_stretches_between_which_responses_are_read(virtual_loop, virtual_clock) -> None:
    """A tool that is behind lets earlier requests end before it starts all that are late."""
    starts_before_first_end = []
    starts = []

    async def send(arrival: Arrival) -> LoadOutcome:
        starts.append(arrival.number)
        if arrival.number == 10:
            virtual_clock.block(1)
        await asyncio.sleep(0)
        starts_before_first_end.append(len(starts))
        return LoadOutcome()

    figures = await load(send, constant(1000, 2), connections=2000).play(Stop())

    assert (2000, [*range(2000)]) == (figures.count, starts)
    assert max(later - number for number, later in enumerate(starts_before_first_end)) < 200


async def test_share_without_a_request_ends_at_once(virtual_loop) -> None:
    """The second of two participants has nothing to send of a load of one request."""
    begin = virtual_loop.time()
    figures = await load(Service(), constant(1, 1), participants=2, rank=1).play(Stop())

    assert (0, 1) == (figures.count, figures.seconds)
    assert virtual_loop.time() - begin < 1


async def test_poisson_arrivals_start_when_drawn(virtual_loop) -> None:
    """Requests start at the drawn times, whose gaps all differ."""
    service = Service()
    figures = await load(service, constant(100, 10), draws=lambda name: random.Random(1).random).play(Stop())
    gaps = {round(after[1] - before[1], 6) for before, after in zip(service.starts, service.starts[1:], strict=False)}

    assert 900 < figures.count < 1100
    assert len(gaps) > 500
    assert figures.lateness.most < 1e-5


async def test_each_class_has_its_own_rate_and_its_own_row(virtual_loop) -> None:
    """Urgent requests are answered at once, and their figures have nothing of the wait of ordinary ones."""

    async def send(arrival: Arrival) -> LoadOutcome:
        await asyncio.sleep(1 if arrival.class_index == 0 else 0.01)
        return LoadOutcome(error="busy" if arrival.class_index == 0 and arrival.turn == 7 else None)

    schedule = Schedule(classes={"ordinary": [constant(40, 5)], "urgent": [constant(2, 5)]})
    figures = await load_of(schedule, send).play(Stop())
    ordinary, urgent = figures.classes

    assert (210, 42) == (figures.count, figures.asked_rate)
    assert [("ordinary", 200, 1), ("urgent", 10, 0)] == [
        (each.name, each.count, each.error_count) for each in (ordinary, urgent)
    ]
    assert pytest.approx([1, 0.01], rel=2e-3) == [each.response_times.quantile(0.5) for each in (ordinary, urgent)]
    assert ["40/s", "2/s"] == [each.rate for each in (ordinary, urgent)]


async def test_what_never_starts_counts_in_its_class(virtual_loop) -> None:
    """Requests that get no connection, as the first one keeps the only one, count as errors of their class."""
    schedule = Schedule(classes={"a": [constant(10, 1)], "b": [constant(5, 1)]})
    figures = await load_of(schedule, Service(takes=20), connections=1, drain=1).play(Stop())

    assert [("a", 10, 9), ("b", 5, 5)] == [(each.name, each.count, each.error_count) for each in figures.classes]
