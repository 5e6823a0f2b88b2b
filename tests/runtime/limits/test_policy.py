"""The laws of ``Window``, ``Burst``, ``Paced``, quotas, resources and costs, audited over random histories."""

import asyncio
import bisect
import itertools
from datetime import datetime, timedelta
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor import (
    Burst,
    ExecutorManager,
    Paced,
    Pacing,
    Rate,
    RateLimitedExecutor,
    RetryLater,
    Window,
)
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._runtime.limits.plan import PolicyPlan
from ratelimited_executor._runtime.limits.policy import RULES, Policy, Rule
from ratelimited_executor.insight import Hold
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.policies import Quota, Strictness
from ratelimited_executor.testing import audit, run_virtual, worst_window

from ...helpers import check_accounting, examples, now
from ...kinds import LATE, POLICIES, at_once, check_law, each_policy
from ...peers.ticket_group import Server

HEAVY_THEN_LIGHT = [("submit", 2, 4), ("submit", 1, 1)]
LATE_HEAVY_THEN_LIGHT = [("sleep", 1.0, 1), ("submit", 1, 4), ("submit", 5, 1), ("block", 0.4, 1), ("sleep", 1.0, 1)]

LATE_AFTER_PENALTIES = [
    ("wall", 1, 1),
    ("batch by item", 22, 4),
    ("sleep", 1.6875, 1),
    ("sleep", 1.65625, 1),
    ("penalize", 0.05, 1),
    ("sleep", 1.2578125, 1),
    ("penalize", 0.05, 1),
]


def steps(*, rates, extra=()):
    """Draw a history: the tasks scheduled, the settings changed, and the disturbances of the loop."""
    costs = st.integers(1, 8)
    return st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.integers(1, 30), costs),
            st.tuples(st.just("coroutine"), st.integers(1, 20), costs),
            st.tuples(st.just("later"), st.integers(1, 20), costs),
            st.tuples(st.just("wall"), st.integers(1, 5), costs),
            st.tuples(st.just("batch"), st.integers(1, 40), costs),
            st.tuples(st.just("batch by item"), st.integers(1, 40), costs),
            st.tuples(st.just("call"), st.integers(1, 20), st.just(1)),
            st.tuples(st.just("permit"), st.integers(1, 5), costs),
            st.tuples(st.just("fail"), st.integers(1, 5), costs),
            st.tuples(st.just("rate"), rates, st.just(1)),
            st.tuples(st.just("pause"), st.booleans(), st.just(1)),
            st.tuples(st.just("penalize"), st.sampled_from([0.05, 0.5, 2.0]), st.just(1)),
            st.tuples(st.just("block"), st.sampled_from([0.003, 0.03, 0.4, 2.0]), st.just(1)),
            st.tuples(st.just("step"), st.sampled_from([-3600, 3600, 0.4]), st.just(1)),
            st.tuples(st.just("sleep"), st.floats(0.001, 3), st.just(1)),
            *extra,
        ),
        max_size=20,
    )


class History:
    """Runs the steps on an executor, and records time and cost of each start in its task."""

    def __init__(self, executor) -> None:
        self.executor = executor
        self.starts: list[tuple[float, int]] = []
        self.walls: list[tuple[float, int]] = []
        self.rates: list[tuple[float, Rate]] = []
        self.rates_beyond_pauses: list[tuple[float, Rate]] = []
        self.waiters: list[asyncio.Task] = []
        self.errors: list[dict] = []
        asyncio.get_running_loop().set_exception_handler(self.report)
        self.note_rate()

    def report(self, loop, context) -> None:
        """Record what reaches the loop's handler."""
        self.errors.append(context)

    def note_rate(self) -> None:
        """Record the rate that is in force from now on."""
        self.rates.append((now(), Rate(0) if self.executor.is_paused else self.executor.rate))
        self.rates_beyond_pauses.append((now(), self.executor.rate))

    def note(self, cost) -> None:
        """Record a start."""
        self.starts.append((now(), cost))
        self.walls.append((asyncio.get_running_loop().clock.wall(), cost))

    async def run(self, history, needs_of=lambda cost: cost) -> None:
        """Take the steps one after the other, and wait for a while."""
        loop = asyncio.get_running_loop()
        executor = self.executor

        async def coroutine(cost):
            self.note(cost)
            await asyncio.sleep(0.01)

        async def hold(cost):
            async with executor.permit(cost=needs_of(cost)):
                self.note(cost)

        def fail(cost):
            self.note(cost)
            raise RetryLater(after=0.1)

        def seen(handle):
            if not handle.cancelled():
                handle.exception()

        for action, value, cost in history:
            needs = needs_of(cost)
            if action == "submit":
                for _ in range(value):
                    executor.submit(self.note, cost, cost=needs)
            elif action == "coroutine":
                for _ in range(value):
                    executor.submit(coroutine, cost, cost=needs)
            elif action == "later":
                for index in range(value):
                    executor.schedule(self.note, cost, delay=0.1 * index, cost=needs)
            elif action == "wall":
                for index in range(value):
                    executor.schedule(self.note, cost, at=loop.clock.wall() + index, cost=needs)
            elif action == "batch":
                executor.schedule_many(self.note, [cost] * value, over=1.5, cost=needs)
            elif action == "batch by item":
                executor.schedule_many(
                    self.note, [1 + index % cost for index in range(value)], cost=needs_of, key=lambda item: item % 2
                )
            elif action == "call":
                for index in range(value):
                    executor.call_later(0.05 * index, self.note, 1)
            elif action == "permit":
                self.waiters += [asyncio.create_task(hold(cost)) for _ in range(value)]
            elif action == "fail":
                for _ in range(value):
                    executor.submit(fail, cost, cost=needs).add_done_callback(seen)
            elif action == "rate":
                executor.rate = value
                self.note_rate()
                await asyncio.sleep(1e-6)
            elif action == "pause":
                executor.pause() if value else executor.resume()
                self.note_rate()
                await asyncio.sleep(1e-6)
            elif action == "penalize":
                executor.penalize(value)
            elif action == "block":
                loop.block_for(value)
            elif action == "step":
                loop.clock.step_wall(value)
            else:
                await asyncio.sleep(value)
        await asyncio.sleep(3)
        for waiter in self.waiters:
            waiter.cancel()
        await asyncio.gather(*self.waiters, return_exceptions=True)

    @property
    def times(self) -> list[float]:
        """The times of the starts."""
        return [time for time, _ in self.starts]

    @property
    def costs(self) -> list[int]:
        """The costs of the starts."""
        return [cost for _, cost in self.starts]


def play(history, *, interval=1.0, peers=None, needs_of=lambda cost: cost, settings_of=None, **options) -> History:
    """Run a history on an executor in virtual time."""

    async def main():
        async with ExecutorManager(interval=interval, **({} if peers is None else {"peers": peers})) as manager:
            executor = manager.executor("x", drain_timeout=0, **options)
            played = History(executor)
            await asyncio.sleep(1e-6)
            await played.run(history, needs_of)
            check_accounting(executor)
        assert [] == played.errors
        return played

    return run_virtual(main())


INTERVALS = st.sampled_from([0.05, 1.0, 3.0])
# A change of the number of permits and not of the window's length, so that one window holds the whole time.
WINDOW_RATES = st.sampled_from([Rate(permits, per=2) for permits in (8, 9, 20, 100)])


@example(rate=Rate(8, per=2), margin=0.005, pacing=Pacing.SPREAD, interval=1.0, history=HEAVY_THEN_LIGHT)
@given(
    rate=WINDOW_RATES,
    margin=st.sampled_from([0.005, 0.05, 0.3]),
    pacing=st.sampled_from(Pacing),
    interval=INTERVALS,
    history=steps(rates=WINDOW_RATES),
)
@examples(100)
def test_no_window_holds_more_than_its_permits(rate, margin, pacing, interval, history):
    """The costs of the starts in any window are within the permits of the largest rate in force in it."""
    played = play(history, rate=rate, policy=Window(margin=margin), pacing=pacing, interval=interval)
    changes = [time for time, _ in played.rates]
    for time, _ in played.starts:
        inside = [(at, cost) for at, cost in played.starts if time - 2 <= at <= time]
        first = max(0, bisect.bisect_right(changes, time - 2 - LATE) - 1)
        allowed = max(one.permits for at, one in played.rates[first:] if at <= time)
        assert sum(cost for _, cost in inside) <= allowed, (time, inside, played.rates)


@example(history=[("submit", 3, 3), ("submit", 2, 1)], margin=0.005)
@given(history=steps(rates=st.just("10/2s")), margin=st.sampled_from([0.0, 0.005, 1.0]))
@examples(60)
def test_window_of_one_rate_is_exact(history, margin):
    """The worst window holds no more than its permits; a margin of 0 suffices for plain functions.

    Plain functions start as they are decided. With a margin of 0 times are exact to the nanosecond of their rounding.
    """
    if margin == 0:
        history = [step for step in history if step[0] not in ("coroutine", "permit")]
    played = play(history, rate="10/2s", policy=Window(margin=margin))
    width = 2 if margin else 2 - 2e-9
    assert worst_window(played.times, width, costs=played.costs)[0] <= 10


def test_window_without_a_margin_holds_with_both_its_ends():
    """Two starts that each fill a window are more than its length apart."""
    played = play([("sleep", 1.0, 1), ("submit", 2, 6)], rate="10/2s", policy=Window(margin=0))
    assert (6, played.times[0]) == worst_window(played.times, 2, costs=played.costs)


@example(
    depth=8,
    rate=1,
    interval=0.05,
    history=[("submit", 1, 5), ("penalize", 0.05, 1), ("submit", 1, 4), ("rate", 3.5, 1), ("rate", 1, 1)],
)
@example(depth=8, rate=1, interval=1.0, history=HEAVY_THEN_LIGHT)
@given(
    depth=st.sampled_from([8, 10, 40]),
    rate=st.sampled_from([0, 1, "7/3s", 10, 100]),
    interval=INTERVALS,
    history=steps(rates=st.sampled_from([0, 1, 3.5, 10, "90/9s"])),
)
@examples(100)
def test_bursts_stay_within_the_depth_and_the_rate(depth, rate, interval, history):
    """The costs in any w seconds are within the depth plus the permits of w seconds."""
    played = play(history, rate=rate, policy=Burst(depth), interval=interval)
    # The bucket goes on filling while nothing may start.
    report = audit(played.times, played.rates_beyond_pauses, slack=LATE, burst=depth, costs=played.costs)
    assert report.ok, str(report)


@example(rate=100, slack=0.5, pacing=Pacing.SPREAD, interval=1.0, history=LATE_HEAVY_THEN_LIGHT)
@given(
    rate=st.sampled_from([0, 1, "7/3s", 10, 100, 1000]),
    slack=st.sampled_from([0.001, 0.02, 0.5]),
    pacing=st.sampled_from(Pacing),
    interval=INTERVALS,
    history=steps(rates=st.sampled_from([0, 1, 3.5, 10, 100, float("inf")])),
)
@examples(100)
def test_paced_starts_keep_the_law_with_costs(rate, slack, pacing, interval, history):
    """The costs in any window are within the permits of window and slack, plus the last one's cost."""
    played = play(history, rate=rate, policy=Paced(slack=slack), pacing=pacing, interval=interval)
    report = audit(played.times, played.rates, slack=slack, costs=played.costs)
    assert report.ok, str(report)


LONG_SLEEP = st.tuples(st.just("sleep"), st.sampled_from([20.0, 59.99, 60.0]), st.just(1))
STEP_BACK = st.tuples(st.just("step"), st.sampled_from([-60, -30.0, 59.9]), st.just(1))


@example(policy=Window(), permits=8, history=HEAVY_THEN_LIGHT)
@given(
    policy=st.sampled_from(each_policy(10)),
    permits=st.integers(8, 30),
    history=steps(rates=st.just(20), extra=(LONG_SLEEP, STEP_BACK)),
)
@examples(60)
def test_quota_holds_from_mark_to_mark_of_the_wall_clock(policy, permits, history):
    """The costs of the starts in a minute of the wall clock are within the quota, whatever its steps."""
    history = [(step[0], (10, Quota(permits, per="minute")), 1) if step[0] == "rate" else step for step in history]
    played = play(history, rate=(20, Quota(permits, per="minute")), policy=policy)
    by_minute: dict[int, int] = {}
    for wall, cost in played.walls:
        by_minute[int(wall // 60)] = by_minute.get(int(wall // 60), 0) + cost
    assert max(by_minute.values(), default=0) <= permits


@example(policy=Paced(), history=[("sleep", 1.0, 1), ("submit", 4, 8), ("block", 0.03, 1)])
@example(policy=Paced(), history=LATE_AFTER_PENALTIES)
@example(policy=Window(), history=[("submit", 2, 8), ("submit", 40, 1)])
@given(
    policy=st.sampled_from([*each_policy(20), Paced(strictness=Strictness.NOMINAL)]), history=steps(rates=st.just(20))
)
@examples(60)
def test_resources_keep_laws_of_their_own(policy, history):
    """The use of a resource keeps its rate by the same policy, while the permits keep theirs."""
    history = [step for step in history if step[0] not in ("call", "rate")]
    played = play(
        history, rate=20, policy=policy, resources={"tokens": "80/2s"}, needs_of=lambda cost: {"tokens": 5 * cost}
    )
    tokens = [5 * cost for cost in played.costs]
    check_law(policy, played.times, "80/2s", costs=tokens, is_resource=True)
    check_law(policy, played.times, 20)


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_starts_count_for_a_resource_from_when_they_take_effect(kind):
    """No window of a paced resource holds too many effects, although some come later after their decision than others."""

    async def main():
        loop, times = asyncio.get_running_loop(), []

        def function(index):
            loop.block_for((0.004, 0.0, 0.003, 0.001)[index % 4])
            times.append(now())

        async def coroutine(index):
            function(index)

        async with RateLimitedExecutor("x", rate=1000, resources={"tokens": "3/100ms"}) as executor:
            for index in range(40):
                executor.submit(function if kind == "function" else coroutine, index, cost={"tokens": 1})
        return times

    assert audit(run_virtual(main()), "3/100ms").ok


@example(policy=Burst(16), histories=(HEAVY_THEN_LIGHT, HEAVY_THEN_LIGHT))
@given(
    policy=st.sampled_from(each_policy(16)),
    histories=st.tuples(steps(rates=st.just(1)), steps(rates=st.just(1))),
)
@examples(40)
def test_two_peers_keep_the_law_together(policy, histories):
    """Two peers each take their part of the rate, and together keep its law."""
    rate = Rate(40, per=2)
    histories = [[step for step in history if step[0] not in ("pause", "rate")] for history in histories]
    if (
        at_once(policy, rate) is None
    ):  # each peer's last start may cost more than a permit: the law is one of single permits
        histories = [[(*step[:2], 1) for step in history] for history in histories]

    async def main():
        played = []
        async with (
            ExecutorManager(peers=StaticPeers(2, 0)) as first,
            ExecutorManager(peers=StaticPeers(2, 1)) as second,
        ):
            for manager in (first, second):
                executor = manager.executor("x", rate=rate, policy=policy, drain_timeout=0)
                played.append(History(executor))
            await asyncio.gather(*(one.run(history) for one, history in zip(played, histories, strict=True)))
        return played

    played = run_virtual(main())
    times = [time for one in played for time in one.times]
    costs = [cost for one in played for cost in one.costs]
    check_law(policy, times, rate, costs=costs)


@pytest.mark.parametrize("peers", [2, 3, 7])
@pytest.mark.parametrize("permits", [7, 20, 23])
def test_parts_of_all_peers_add_up_to_the_rate(peers, permits):
    """Rounding loses or doubles no permit of a window, a bucket or a quota among peers."""

    async def main():
        starts = 0
        for rank in range(peers):
            async with ExecutorManager(peers=StaticPeers(peers, rank)) as manager:
                executor = manager.executor("x", rate=Rate(permits, per=1000), policy=Window(), drain_timeout=0)
                executor.schedule_many(int, range(100))
                await asyncio.sleep(1)
                starts += executor.statistics().started
        return starts

    assert permits == run_virtual(main())


# Utilisation.


@pytest.mark.parametrize("policy", [Window(), Window(margin=0), Burst(1), Burst(50)], ids=repr)
@pytest.mark.parametrize("rate", ["10/s", "100/10s", "7/3s", "1000/s", "5000/s"])
@pytest.mark.parametrize("cost", [1, 3])
def test_constant_load_uses_the_rate(policy, rate, cost):
    """Under constant load 99 % of the permits are used; of a window, less its margin."""
    if isinstance(policy, Burst) and policy.permits < cost:
        return
    seconds = {"1000/s": 5, "5000/s": 3}.get(rate, 60)

    async def main():
        async with RateLimitedExecutor("x", rate=rate, policy=policy, drain_timeout=0) as executor:
            count = int(float(Rate.of(rate)) * seconds / cost) + 200
            executor.schedule_many(int, range(count), cost=cost)
            await asyncio.sleep(seconds)
            return executor.statistics().started * cost

    full = Rate.of(rate)
    margin = policy.margin if isinstance(policy, Window) else 0
    possible = float(full) * seconds * float(full.per) / (float(full.per) + margin)
    if isinstance(policy, Window) and full.permits % cost:
        possible *= float(full.permits // cost * cost / full.permits)  # what is left over fits nobody
    assert run_virtual(main()) >= 0.99 * possible - cost


# Changes of the rate, and what was started before.


def starts_around(change, *, policy, rate, count=200, **options) -> list[float]:
    """Start all that may, make a change after a second, and return the starts of twelve seconds."""

    async def main():
        starts = []
        async with RateLimitedExecutor("x", rate=rate, policy=policy, drain_timeout=0, **options) as executor:
            needs = {"tokens": 1} if "resources" in options else 1
            executor.schedule_many(lambda _: starts.append(now()), range(count), cost=needs)
            await asyncio.sleep(1)
            change(executor)
            await asyncio.sleep(11)
        return starts

    return run_virtual(main())


def lift_a_pause(executor):
    executor.pause()
    executor.resume()


def by_zero(executor):
    before = executor.rate
    executor.rate = 0
    executor.rate = before


def longer(executor):
    executor.rate = "10/12s"


@pytest.mark.parametrize(
    "change",
    [
        lift_a_pause,
        lambda executor: executor.penalize(1),
        by_zero,
        longer,
    ],
    ids=["pause", "penalty", "zero and back", "longer window"],
)
def test_window_remembers_what_was_started_before_a_change(change):
    """After any change, no ten seconds hold more than ten starts."""
    starts = starts_around(change, policy=Window(), rate="10/10s")
    assert (10, 0.0) == worst_window(starts, 10)


def test_bucket_of_a_resource_is_not_filled_by_a_change():
    """The use of a resource still counts after a change of its rate."""

    def change(executor):
        executor.resources = {"tokens": "11/10s"}

    starts = starts_around(change, policy=Burst(1000), rate=1000, resources={"tokens": "10/10s"})
    assert 10 + 1 + 11 * 1.1 >= len(starts)


def test_bucket_is_not_filled_by_a_change():
    """Permits used still count after a change of the rate."""

    def change(executor):
        for rate in (5, 0, 3, 1):
            executor.rate = rate

    starts = starts_around(change, policy=Burst(10), rate=1)
    assert 10 + 12 + 1 >= len(starts)


# Quotas of the calendar.


async def test_quota_follows_a_clock_that_steps_forward(virtual_clock):
    """A new period of a stepped wall clock takes effect within an interval."""
    starts = []
    async with RateLimitedExecutor("x", rate=Quota(3, per="hour"), drain_timeout=0) as executor:
        executor.schedule_many(lambda _: starts.append(now()), range(6))
        await asyncio.sleep(10)
        virtual_clock.step_wall(3600)
        await asyncio.sleep(5)
        assert 6 == len(starts)


async def test_quota_starts_again_at_the_mark(virtual_clock):
    """A daily quota renews at midnight in London: not a second before, nor 24 hours after the last one."""
    zone = ZoneInfo("Europe/London")
    virtual_clock.step_wall(datetime(2024, 3, 30, 23, 0, tzinfo=zone).timestamp() - virtual_clock.wall())
    starts = []
    async with ExecutorManager(interval=60) as manager:
        executor = manager.executor("x", rate="4 per day from 00:00 Europe/London", policy=Window(), drain_timeout=0)
        executor.schedule_many(lambda _: starts.append(virtual_clock.wall()), range(12))
        await asyncio.sleep(48 * 3600)
    days = [datetime.fromtimestamp(start, zone) for start in starts]
    assert [30] * 4 + [31] * 4 + [1] * 4 == [day.day for day in days]
    # The clocks go forward in the night of the 31st: that day has 23 hours.
    assert [3600 + 23 * 3600] * 4 == pytest.approx([start - starts[0] for start in starts[8:]], abs=0.05)


@given(
    time=st.floats(0, 4e9),
    per=st.sampled_from(["minute", "hour", "day", "week", "month"]),
    start=st.sampled_from(["00:00", "01:30", "02:15", "23:59"]),
    tz=st.sampled_from(
        [
            "UTC",
            "Europe/London",
            "America/New_York",
            "Australia/Lord_Howe",
            "Asia/Kathmandu",
            "Pacific/Apia",
            "America/Havana",
        ]
    ),
)
@examples(400)
def test_periods_of_a_quota_divide_the_time(time, per, start, tz):
    """Each time lies in one period, the next one begins at its end, and none is too long."""
    quota = Quota(1, per=per, tz=tz, start="00:00" if per in ("minute", "hour") else start)
    begin, end = quota.period(time)
    longest = {"minute": 60, "hour": 3600, "day": 49 * 3600, "week": 8 * 86400, "month": 33 * 86400}[per]
    assert begin <= time < end
    assert end - begin <= longest
    assert (begin, end) == quota.period(begin)
    assert end == quota.period(end)[0]
    assert begin == quota.period(begin - 1e-3)[1]


@pytest.mark.parametrize(
    "text",
    [
        "10000 per day from 00:00 Europe/London",
        "5 per minute UTC",
        "1_000 per hour",
        "7 per week from 08:30",
        "9 per month",
    ],
)
def test_quota_is_read_and_written(text):
    """A quota reads the text that it writes."""
    quota = Quota.parse(text)
    assert quota == Quota.parse(str(quota))
    assert hash(quota) == hash(Quota.parse(str(quota)))
    assert quota == eval(repr(quota), {"Quota": Quota})  # noqa: S307  # that is what a repr is for
    assert {quota} == {Quota.parse(text.upper().replace("EUROPE/LONDON", "Europe/London"))}


@pytest.mark.parametrize(
    ("text", "remedies"),
    [
        ("100 per minute", ["100/min", "100 per minute UTC"]),
        ("1_000 PER hour", ["1_000/h", "1_000 per hour UTC"]),
        ("100/day", ["100/24h", "100 per day"]),
        ("50 per second", ["50/s"]),
        ("50 per 15 minutes", ["50/15min"]),
        ("5 per min", ["5/min"]),
        ("10/s, 300 per minute", ["300/min", "300 per minute UTC"]),
    ],
)
def test_text_that_could_be_a_rate_or_a_quota_is_refused(text, remedies):
    """Text that mixes the forms of a rate and a quota is refused with the right form."""
    with pytest.raises(ValueError, match=r"^rate must ") as refusal:
        RateLimitedExecutor("x", rate=text)
    with pytest.raises(ValueError, match=r"^resources\['tokens'\]: "):
        RateLimitedExecutor("x", resources={"tokens": text})
    for remedy in remedies:
        assert repr(remedy) in str(refusal.value)
        assert RateLimitedExecutor("x", rate=remedy).rates


def test_several_rates_hold_together():
    """The executor paces by the shortest of several rates, and keeps the others as windows."""

    async def main():
        starts = []
        async with RateLimitedExecutor("x", rate="5/s, 12/10s, 30/60s", drain_timeout=0) as executor:
            assert [Rate(5), Rate(12, per=10), Rate(30, per=60)] == list(executor.rates)
            assert Rate(5) == executor.rate
            executor.schedule_many(lambda _: starts.append(now()), range(200))
            await asyncio.sleep(125)
        return starts

    starts = run_virtual(main())
    assert audit(starts, 5).ok
    assert (12, 30) == (worst_window(starts, 10)[0], worst_window(starts, 60)[0])
    assert 30 + 30 + 12 == len(starts)
    gaps = [late - early for early, late in itertools.pairwise(starts[:12])]
    assert max(gaps) == pytest.approx(0.2, abs=1e-6)
    assert timedelta(seconds=starts[12] - starts[0]) >= timedelta(seconds=10)


class Pairs:
    """A policy that the library does not know: two starts at once, and then as the rate allows."""


class PairsRule(Rule):
    kind = "pairs"
    example = "Pairs()"

    def depth(self, rate, resource):
        return 2

    def limit(self, rate, depth, now_ns):
        return WindowLimit(Rate(2, per=2 / rate.per_second) if rate.per_second else rate)

    def limit_of_key(self, rate, now_ns, *, spacing):
        return self.limit(rate, 2, now_ns)


def test_policy_is_its_rule_and_a_registration(monkeypatch):
    """A registered policy makes limits of rate, resources, keys and peers; another rate is a window."""
    monkeypatch.setitem(RULES, Pairs, PairsRule)

    async def main(**options):
        starts = []
        async with RateLimitedExecutor("x", policy=Pairs(), drain_timeout=0, **options) as executor:
            for _ in range(20):
                executor.submit(lambda: starts.append(now()), key="one")
            held = executor.submit(lambda: None, key="one")
            await asyncio.sleep(4.5)
            limits = executor.statistics().limits
            with pytest.raises(ValueError, match=r"cost must be <= 2\b"):
                executor.submit(print, cost=3, key="one")
            return (
                [round(start - starts[0]) for start in starts],
                [limit.kind for limit in limits],
                executor.explain(held),
            )

    pairs = [0, 0, 2, 2, 4, 4]
    starts, kinds, held = run_virtual(main(rate=1, resources={"tokens": 100}))
    assert (pairs, ["pairs", "pairs"], Hold.ORDER) == (starts, kinds, held.hold)
    starts, kinds, held = run_virtual(main(rate="1/s, 3/10s"))
    assert (pairs[:3], ["pairs", "window"]) == (starts, kinds)
    starts, kinds, held = run_virtual(main(key_rate=1))
    assert (pairs, []) == (starts, kinds)
    assert held.hold is Hold.KEY_RATE
    fleet = ExecutorManager(peers=StaticPeers(3, 0))
    with pytest.raises(ValueError, match=r"^rate must have at least one permit for each of the 3 peers, got Rate"):
        fleet.executor("x", policy=Pairs(), rate=1)


@pytest.mark.parametrize("options", [{"rate": 1}, {"key_rate": 1}, {}], ids=repr)
async def test_policy_that_a_group_cannot_share_is_refused_at_the_call(virtual_clock, monkeypatch, options):
    """A policy without a form for groups is refused by name, and nothing is registered."""
    monkeypatch.setitem(RULES, Pairs, PairsRule)
    async with ExecutorManager(peers=Server().peers(0)) as manager:
        with pytest.raises(TypeError, match=r"^policy must be one that processes can share, .*Pairs.* omit peers=$"):
            manager.executor("x", policy=Pairs(), **options)
        assert {} == manager.executors


@pytest.mark.parametrize("policy", [Pairs(), Pairs, object(), "paced", None, Rule])
def test_policy_that_nobody_knows_is_refused_at_the_call(policy):
    """An unknown policy is refused with the names of the known ones."""
    *most, last = (kind.__name__ for kind in RULES)
    with pytest.raises(TypeError, match=rf"^policy must be a {', '.join(most)} or {last}, got ") as refusal:
        RateLimitedExecutor("x", policy=policy)
    assert repr(policy) in str(refusal.value)
    with pytest.raises(TypeError, match=r"got the class Burst: write Burst\(n\), with its depth$"):
        RateLimitedExecutor("x", policy=Burst)


def test_every_policy_is_tested():
    """Every policy of the package has a rule, and is one of those with which the promises are tested."""
    assert set(RULES) == set(get_args(Policy)) == set(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_make_limits_of_the_kind_that_they_name(policy):
    """The first rate has a limit of the policy's kind, and the others are windows beside it."""
    plan = PolicyPlan(POLICIES[policy].make(5), [Rate(5), Rate(60, per=60)], {"tokens": [Rate(9)]})
    bounds = plan.permits(None, (), now_ns=0, time_ns=lambda: 0, wall_ns=lambda: 0)
    kinds = [(bound.resource, bound.kind) for bound in bounds.bounds]
    numbered = [] if plan.rule.is_numbered else [("permits", plan.rule.kind)]
    assert [*numbered, ("permits", "window"), ("tokens", plan.rule.kind)] == kinds
    assert plan.rule.is_numbered == (bounds.grid is not None)
