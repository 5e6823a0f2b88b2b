"""What a start costs is charged by the executor, drawn once for each job, and shown beside the limits."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.policies import Window
from ratelimited_executor.simulation import (
    Constant,
    Exponential,
    Percentiles,
    Poisson,
    Regular,
    Scenario,
    load_toml,
    simulate,
)
from ratelimited_executor.simulation.costs import JobCost
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError, Survey

TOML = """
days = 0.02
[executors.api]
rate = "20/s"
resources = {tokens = "60_000/min", cents = "300/min"}
[jobs.ask]
duration = 2
cost = {tokens = {mean = 900, p90 = 1600}, cents = 2}
[[arrivals]]
executor = "api"
job = "ask"
rate = "80/min"
"""


@dataclass
class Asking(Scenario):
    """Questions to a model with a limit of tokens."""

    cost: object = None
    tokens: object = "6_000/min"
    is_batch: bool = False
    is_offered: bool = False
    max_pending: int | None = None

    def setup(self, sim):
        resources = {"tokens": self.tokens, "cents": "1_000_000/min"}
        self.api = sim.executor("api", rate="100/s", policy=Window(), resources=resources, max_pending=self.max_pending)
        self.job = sim.job("ask", 1, cost=self.cost)
        if self.is_batch:
            sim.schedule_many(self.api, self.job, range(50))
        elif self.is_offered:
            sim.every(2, lambda: sim.offer(self.api, self.job, "who"), first=1)
        else:
            sim.arrive(Poisson(0.5), self.api, self.job)


def use_of(scenario, minutes=10, **options):
    summary = simulate(scenario, days=minutes / 1440, **options).summary
    return summary.executors["api"]


@pytest.mark.parametrize("way", [{}, {"is_batch": True}, {"is_offered": True}, {"max_pending": 1000}])
def test_each_start_is_charged(way):
    """However jobs arrive, what is used is the number of starts times the cost, within the limit."""
    found = use_of(Asking(cost={"tokens": 300, "cents": 2}, **way))
    assert 50 == found.started if way.get("is_batch") else found.started > 190
    assert (300 * found.started, 2 * found.started) == tuple(each.used for each in found.resources.values())
    assert found.resources["tokens"].admitted == pytest.approx(60_000)
    assert found.resources["tokens"].part == pytest.approx(300 * found.started / 60_000)


def test_limit_of_a_resource_holds_jobs_back():
    """Where tokens are short, as many jobs start as there are tokens for, and the others wait."""
    found = use_of(Asking(cost={"tokens": 1000}))
    assert 6000 * 10 == found.resources["tokens"].used
    assert 60 == found.started
    assert found.pending > 200


def test_cost_in_permits():
    """A number is a cost in permits, as of executors."""

    @dataclass
    class Heavy(Scenario):
        def setup(self, sim):
            sim.schedule_many(sim.executor("api", rate="60/min"), sim.job("ask", 0, cost=4), range(1000))

    assert 150 == pytest.approx(use_of(Heavy()).started, abs=4)


def test_costs_take_no_random_numbers():
    """Arrivals, durations and failures are those of the scenario without costs, and a seed has the same costs."""
    drawn = {"tokens": Exponential(200), "cents": Percentiles({0: 1, 100: 9})}
    plain, costly, again = (use_of(Asking(cost=cost, tokens="1_000_000/s"), seed=3) for cost in (None, drawn, drawn))
    assert plain.start_delay == costly.start_delay
    assert (plain.enqueued, plain.started, plain.done) == (costly.enqueued, costly.started, costly.done)
    assert costly.resources == again.resources
    assert 200 == pytest.approx(costly.resources["tokens"].used / costly.started, rel=0.2)
    assert costly.resources["cents"].used / costly.started == pytest.approx(5, rel=0.2)


def test_amount_of_one_resource_does_not_depend_on_another():
    """A resource more leaves the amounts of the others as they are."""
    one, two = JobCost({"a": Exponential(100)}), JobCost({"b": Exponential(100), "a": Exponential(100), "c": 3})
    parts = [number / 1000 for number in range(1000)]
    assert [one.of(part)["a"] for part in parts] == [two.of(part)["a"] for part in parts]
    assert [one.of(part)["a"] for part in parts] != [two.of(part)["b"] for part in parts]
    assert 100 == pytest.approx(sum(one.of(part)["a"] for part in parts) / 1000, rel=0.1)


def test_drawn_permits_are_one_at_least():
    """A start takes a permit whatever is drawn."""
    assert {"permits": 1, "tokens": 0} == JobCost({"permits": Constant(0), "tokens": Constant(0)}).of(0.5)


def test_arrivals_may_have_costs_of_their_own():
    """A cost of the arrivals takes the place of that of the kind, and is a function of the key of a job."""

    class Own(Scenario):
        def setup(self, sim):
            api = sim.executor("api", resources={"tokens": "1_000_000/s"})
            ask = sim.job("ask", 1, cost={"tokens": 5})
            sim.arrive(Regular(1), api, ask, keys=[7], cost=lambda key: {"tokens": key})

    found = use_of(Own(), minutes=1)
    assert 7 * found.started == found.resources["tokens"].used > 0


def test_retries_and_corrections_count():
    """Each attempt uses its cost again, and what a job settles is what it has used."""

    class Settling(Scenario):
        def setup(self, sim):
            api = sim.executor("api", resources={"tokens": "1_000_000/s"})

            async def ask():
                async with api.permit(cost={"tokens": 100}) as permit:
                    permit.settle({"tokens": 30})

            sim.spawn(ask())

    assert 30 == use_of(Settling(), minutes=1).resources["tokens"].used


@pytest.mark.parametrize("policy", [None, Window()])
def test_nodes_of_a_fleet_share_the_limits(policy):
    """Each node may use its part, and uses all of it where there are jobs enough."""

    class Fleet(Scenario):
        def setup(self, sim):
            options = {} if policy is None else {"policy": policy}
            nodes = sim.fleet("api", 2, rate="100/s", resources={"tokens": "600/min"}, **options)
            sim.arrive(Poisson(50), nodes, sim.job("ask", 0, cost={"tokens": 1}))

    for executor in simulate(Fleet(), days=600 / 86_400).summary.executors.values():
        assert 3000 == executor.resources["tokens"].admitted
        assert 0.98 < executor.resources["tokens"].part <= 1


def test_limits_may_change():
    """What the limits admit is summed up step by step."""

    class Changing(Scenario):
        def setup(self, sim):
            self.api = sim.executor("api", resources={"tokens": ["60/min", "600 per hour UTC"]})
            sim.at(300, lambda: setattr(self.api, "resources", {"tokens": "1/s"}))

    assert 50 + 300 + 10 * 1 == pytest.approx(use_of(Changing()).resources["tokens"].admitted, abs=61)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ({}, "cost must name a resource, such as {'tokens': 900}, got none"),
        (
            {"dollars": 0.02},
            "cost of 'dollars' must be a whole number, got 0.02: count it in a smaller unit, such as cents",
        ),
        ({"tokens": -1}, "cost of 'tokens' must be >= 0"),
        (0, "cost of 'permits' must be >= 1"),
    ],
)
def test_cost_that_is_none_is_refused(cost, message):
    """A cost that no start can have is refused by its name."""
    with pytest.raises(ValueError, match=message):
        JobCost(cost)


def test_next_cost_of_a_key_is_that_of_its_next_start():
    """A cycle charges a drawn cost by key, and a job without one says so."""

    class Cycle(Scenario):
        def setup(self, sim):
            api = sim.executor("api", resources={"tokens": "1_000_000/s"})
            keys = sim.population("keys", 64, period=60)
            job = sim.job("ask", 0.1, population=keys, cost={"tokens": Exponential(100)})
            for key in keys:
                api.schedule(job, key, cost=job.cost_of_next(key))
            with pytest.raises(ValueError, match="other must have a cost and a population"):
                sim.job("other", 1).cost_of_next(1)

    assert 6400 == pytest.approx(use_of(Cycle(), minutes=1).resources["tokens"].used, rel=0.4)


# In TOML, in the database, by the shortcut.


def test_scenario_file(tmp_path):
    """A file gives the limits and the costs; the database has what was used in each step, and the limits."""
    (tmp_path / "ask.toml").write_text(TOML)
    found = simulate(load_toml(tmp_path / "ask.toml"), database=tmp_path / "ask.sqlite3").summary.executors["api"]
    tokens, cents = found.resources["tokens"], found.resources["cents"]
    assert 2 * found.started == cents.used
    assert 0.95 < tokens.part <= 1
    with closing(sqlite3.connect(tmp_path / "ask.sqlite3")) as connection:
        used = dict(connection.execute("SELECT metric, sum(value) FROM counter GROUP BY metric"))
        limits = connection.execute("SELECT metric, value FROM gauge ORDER BY metric").fetchall()
    assert {"used tokens": tokens.used, "used cents": cents.used} == used
    assert [("limit of cents", 5.0), ("limit of tokens", 1000.0)] == limits


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("resources = {", "resources = 5 # {", r"\[executors.api\] resources must be a table such as {tokens"),
        ("cents = 2", "euros = 2", r"\[\[arrivals\]\] number 1: cost of ask names 'euros', which the executor api does not limit"),
        ("cents = 2", "cents = 0.2", r"\[jobs.ask\]: cost of 'cents' must be a whole number, got 0.2: count it in a smaller"),
        ("{mean = 900, p90 = 1600}", "{median = 5}", r"\[jobs.ask\]: cost of 'tokens' must be a whole number, {mean = 4, p90"),
        ("{mean = 900, p90 = 1600}", "{mean = 900, p90 = 9}", r"cost of 'tokens' mean, p90: p90 must be more than the mean"),
        ('"60_000/min"', '"many"', r"\[executors.api\]: "),
    ],
)  # fmt: skip
def test_scenario_file_that_is_refused(tmp_path, old, new, message):
    """What is wrong is named with its place, before anything runs."""
    assert 1 == TOML.count(old)
    (tmp_path / "ask.toml").write_text(TOML.replace(old, new))
    with pytest.raises((TypeError, ValueError), match=message):
        simulate(load_toml(tmp_path / "ask.toml"), days=1e-9)


def test_cost_of_what_follows_is_checked(tmp_path):
    """A job that follows another costs its executor, which must limit that; it is refused before anything starts."""
    follow = 'then = {job = "after", executor = "EXECUTOR"}\n[jobs.after]\nduration = 1\ncost = {tokens = 7}\n'
    text = TOML.replace("[jobs.ask]", "[executors.plain]\n[jobs.ask]").replace(
        "[[arrivals]]", follow + "[[arrivals]]", 1
    )
    (tmp_path / "ask.toml").write_text(text.replace("EXECUTOR", "api"))
    assert simulate(load_toml(tmp_path / "ask.toml")).summary.jobs_by_kind["after"].wait.count
    (tmp_path / "ask.toml").write_text(text.replace("EXECUTOR", "plain"))
    with pytest.raises(
        ValueError,
        match=r"ask\.toml: \[jobs\.ask\]: cost of after names 'tokens', which the executor plain does not limit: give",
    ):
        simulate(load_toml(tmp_path / "ask.toml"), days=1e-9)


def test_cycle_of_a_scenario_file(tmp_path):
    """Jobs of a cycle cost as well, also where the amount is drawn."""
    (tmp_path / "ask.toml").write_text(
        TOML[: TOML.index("[[arrivals]]")].replace("duration = 2", 'duration = 2\npopulation = "users"')
        + '[populations.users]\ncount = 256\nperiod = "16m"\n'
        + '[[arrivals]]\nexecutor = "api"\njob = "ask"\ncycle = "16m"\nbuckets = 256\n'
    )
    found = simulate(load_toml(tmp_path / "ask.toml")).summary.executors["api"]
    assert 900 == pytest.approx(found.resources["tokens"].used / found.started, rel=0.15)


@pytest.mark.parametrize(
    ("cost", "reason"), [(None, "executor api limits resources"), ({"tokens": 1}, "api limits resources")]
)
def test_shortcut_says_why_it_does_not_apply(cost, reason):
    """Resources and costs are left to the executor."""
    survey = Survey(seed=0, interval=1)
    with pytest.raises(NoShortcutError, match=reason):
        survey.set_up(
            type("Limited", (Scenario,), {"setup": lambda self, sim: Asking.setup(Asking(cost=cost), _Plain(sim))})()
        )
    survey.close()


class _Plain:
    """A simulation whose executors have no policy of their own, which the shortcut would name first."""

    def __init__(self, sim):
        self._sim = sim

    def __getattr__(self, name):
        return getattr(self._sim, name)

    def executor(self, name, **options):
        return self._sim.executor(name, rate="100/s", resources=options["resources"])
