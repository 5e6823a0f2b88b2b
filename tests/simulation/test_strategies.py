"""Each strategy has its known properties: who is synced in time, waits, is forgotten or conflicts."""

import sqlite3
from contextlib import closing
from dataclasses import fields

import pytest

from ratelimited_executor.simulation import STRATEGIES, Summary, simulate

CYCLE = 8 * 3600.0
DAY = 86_400.0
SLOTTED = ["slots", "weighted-slots"]
# No job fails, no account is locked out, and no bank has an outage.
WELL = {"failures": 0.0, "locked_out": 0.0, "outage_day": 0}
# The bank of half of the accounts is out for the whole day, with the usual number of workers per account.
OUT = {"accounts": 1000, "workers": 1, "failures": 0.0, "locked_out": 0.0, "outage_day": 1}


class Run:
    """The result of a strategy.

    Attributes:
        summary: the summary of the run.
        executor: the workers.
        population: the accounts.
        keys: bank, weight, syncs, failures, and longest time without a sync in seconds, by account.
        pending: waiting jobs, including those due later, at the end of each step with events.
    """

    def __init__(self, summary: Summary, connection: sqlite3.Connection) -> None:
        self.summary = summary
        self.executor = summary.executors["workers"]
        self.population = summary.populations["accounts"]
        rows = connection.execute(
            "SELECT key, group_name, weight, syncs, failures, longest_interval FROM key_summary"
        ).fetchall()
        self.keys = {key: rest for key, *rest in rows}
        self.pending = [pending for (pending,) in connection.execute("SELECT pending_jobs FROM step ORDER BY time")]
        self.slots = connection.execute("SELECT name, slot, begin, keys, weight FROM slot").fetchall()
        self.events = connection.execute("SELECT time, name FROM event").fetchall()

    def longest(self, *, is_out: bool) -> float:
        """Return the longest time without a sync, of accounts of the failed bank or of the others."""
        return max(key[4] for key in self.keys.values() if (key[0] == "bank 0") == is_out)


@pytest.fixture(scope="module")
def runs():
    """Results by settings: several tests use the same run."""
    return {}


@pytest.fixture
def run(runs, tmp_path):
    """Return a function that simulates a strategy, or returns an earlier result."""

    def run(name: str, *, days: float = 1.0, seed: int = 0, **options) -> Run:
        key = (name, days, seed, tuple(sorted(options.items())))
        if key not in runs:
            path = tmp_path / f"{len(runs)}.sqlite3"
            result = simulate(STRATEGIES[name](**options), days=days, seed=seed, database=path)
            with closing(sqlite3.connect(path)) as connection:
                runs[key] = Run(result.summary, connection)
        return runs[key]

    return run


# Who is synced when.


@pytest.mark.parametrize("name", SLOTTED)
def test_slots_sync_each_account_once_in_each_cycle(run, name):
    """With slots each account is synced once in each cycle, a cycle after the previous sync."""
    found = run(name, days=2, accounts=300, **WELL)
    assert {6} == {syncs for _, _, syncs, _, _ in found.keys.values()}
    most = found.population.sync_interval.most
    assert CYCLE < most < CYCLE + 120  # that account has ten times the work
    assert CYCLE + 120 > max(longest for *_, longest in found.keys.values())
    assert found.population.sync_delay.most < 120


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_syncs_everyone_while_all_is_well(run, name):
    """Without faults every strategy syncs all accounts three times a day, except that the last may still run."""
    found = run(name, accounts=300, **WELL)
    assert 0 == found.population.never_synced == found.executor.failed
    assert 2 <= min(syncs for _, _, syncs, _, _ in found.keys.values())
    assert 4 >= max(syncs for _, _, syncs, _, _ in found.keys.values())


def test_random_spread_may_need_two_cycles(run):
    """Random spread may sync early in one cycle and late in the next, nearly a cycle late."""
    found = run("random-spread", accounts=300, **WELL)
    assert 1.8 * CYCLE < found.population.sync_interval.most < 2 * CYCLE + 120
    assert found.population.sync_delay.most > 100 * run("slots", accounts=300, **WELL).population.sync_delay.p90


@pytest.mark.parametrize("name", STRATEGIES)
def test_who_is_locked_out_is_reported_as_never_synced(run, name):
    """A locked-out account is reported as never synced, by every strategy."""
    found = run(name, accounts=300, locked_out=0.1, failures=0.0, outage_day=0)
    tried = {key for key, (_, _, syncs, failures, _) in found.keys.items() if failures}
    assert 15 < len(tried) < 45 or name == "central"
    assert all(not found.keys[key][2] for key in tried)
    assert found.population.never_synced == sum(not syncs for _, _, syncs, _, _ in found.keys.values())
    assert found.population.never_synced >= len(tried) > 0
    assert found.population.overdue >= len(tried)
    assert pytest.approx(DAY) == found.population.oldest


def test_who_is_locked_out_is_the_same_for_every_seed_and_strategy(run):
    """Locked-out accounts are drawn from the key, so that they are the same for all seeds and strategies."""
    locked = [
        {key for key, (_, _, _, failures, _) in found.keys.items() if failures}
        for found in (
            run("slots", accounts=300, locked_out=0.1, failures=0.0, outage_day=0),
            run("random-spread", accounts=300, locked_out=0.1, failures=0.0, outage_day=0),
            run("slots", accounts=300, locked_out=0.1, failures=0.0, outage_day=0, seed=7, days=0.4),
        )
    ]
    assert locked[0] == locked[1] == locked[2]


# Self-rescheduling.


def test_self_rescheduling_loses_some_for_ever(run):
    """With self-rescheduling, accounts whose next job is lost are never synced again, more with each cycle."""
    options = {"accounts": 300, "losses": 0.05, **WELL}
    two, three = run("self-rescheduling", days=2, **options), run("self-rescheduling", days=3, **options)
    assert 30 < two.population.overdue < three.population.overdue
    assert two.population.overdue == sum(syncs < 6 for _, _, syncs, _, _ in two.keys.values())
    assert two.population.oldest > 1.5 * DAY
    assert {3} == {syncs for _, _, syncs, _, _ in run("slots", accounts=300, **WELL).keys.values()}


def test_self_rescheduling_loses_nobody_without_losses(run):
    """Without losses self-rescheduling loses no account, also if jobs fail."""
    options = {"accounts": 300, "losses": 0.0, "locked_out": 0.0, "outage_day": 0}
    assert 0 == run("self-rescheduling", days=2, **options, failures=0.0).population.overdue
    found = run("self-rescheduling", days=2, **options, failures=0.2)
    assert {6} == {syncs + failures for _, _, syncs, failures, _ in found.keys.values()}


def test_self_rescheduling_stays_bunched(run):
    """With self-rescheduling all jobs stay bunched, and throughput is maximally uneven."""
    bunched, even = run("self-rescheduling", accounts=300, **WELL), run("weighted-slots", accounts=300, **WELL)
    assert bunched.executor.queue_depth_most > 100 > 10 > even.executor.queue_depth_most
    assert bunched.executor.evenness < 0.2 < 0.8 < even.executor.evenness


# Central.


def test_central_clogs_under_an_outage(run):
    """In an outage the central strategy enqueues the failing accounts again and again, and its queue grows."""
    central, slots = run("central", **OUT), run("slots", **OUT)
    assert central.executor.queue_depth_most > 10 * slots.executor.queue_depth_most
    assert central.executor.queue_depth_mean > 10 * slots.executor.queue_depth_mean
    central, slots = (run(name, days=2, **OUT) for name in ("central", "slots"))
    delays = [found.population.sync_delay.p99 for found in (central, slots)]
    assert delays[0] > 600 > 60 > delays[1]


def test_central_starves_the_healthy_under_an_outage(run):
    """In an outage the central strategy delays healthy accounts by more than two cycles, and slots do not."""
    assert run("central", **OUT).longest(is_out=False) > 2 * CYCLE
    for name in SLOTTED:
        found = run(name, **OUT)
        assert found.longest(is_out=False) < CYCLE + 300
        assert pytest.approx(DAY) == found.longest(is_out=True)


@pytest.mark.parametrize("name", STRATEGIES)
def test_outage_fails_the_syncs_of_the_bank(run, name):
    """An outage fails all syncs of its bank and no others, and does not affect sorting."""
    found = run(name, **OUT)
    assert 500 == sum(bank == "bank 0" for bank, *_ in found.keys.values())
    for bank, _, syncs, failures, _ in found.keys.values():
        assert (0, True) == ((syncs, True) if bank == "bank 0" else (failures, True))
    assert 0 <= found.population.outage_failures - found.executor.failed <= 1  # one may not have ended yet
    assert found.executor.failed > 500
    assert [(0.0, "bank 0 is out"), (DAY, "bank 0 is back")] == found.events


@pytest.mark.parametrize("name", ["self-rescheduling", "random-spread", "slots"])
def test_who_was_out_is_synced_on_the_next_day(run, name):
    """After an outage the accounts of the bank are synced again."""
    found = run(name, days=2, **OUT, **({"losses": 0.0} if name == "self-rescheduling" else {}))
    assert {3, 4} >= {syncs for bank, _, syncs, _, _ in found.keys.values() if bank == "bank 0"}
    assert 0 == found.population.never_synced


# Random spread.


def test_random_spread_holds_the_whole_population(run):
    """Random spread has all jobs of a cycle pending at once, where slots load few at a time."""
    spread = run("random-spread", accounts=300, **WELL)
    assert 590 <= max(spread.pending) <= 600
    assert 200 < sum(spread.pending) / len(spread.pending) < 400
    for name in SLOTTED:
        assert max(run(name, accounts=300, **WELL).pending) < 30


# Slots.


def test_slots_have_conflicts_and_weighted_slots_have_none(run):
    """With slots both kinds of jobs of an account conflict; with weighted slots they are half a cycle apart."""
    assert run("slots", accounts=300, **WELL).population.lock_conflicts >= 300
    assert 0 == run("weighted-slots", accounts=300, **WELL).population.lock_conflicts


def test_weighted_slots_balance_the_work(run):
    """Weighted slots divide the work evenly, and slots by hash do not."""
    weights = {}
    for name in SLOTTED:
        found = run(name, days=0.1, accounts=300, jumbo=0.1, **WELL)
        assert {"sync", "sort"} == {name for name, *_ in found.slots}
        weights[name] = [weight for kind, *_, weight in found.slots if kind == "sync"]
        assert 300 == sum(keys for kind, _, _, keys, _ in found.slots if kind == "sync")
        assert sum(weights[name]) == pytest.approx(sum(weight for _, weight, *_ in found.keys.values()))
    assert max(weights["weighted-slots"]) <= 11 < 20 <= max(weights["slots"])


def test_kinds_of_weighted_slots_are_half_a_cycle_apart(run):
    """The slots of the two kinds of jobs are half a cycle apart."""
    begins = {(kind, slot): begin for kind, slot, begin, *_ in run("weighted-slots", accounts=300, **WELL).slots}
    for (kind, slot), begin in begins.items():
        if kind == "sync":
            assert (begin + CYCLE / 2) % CYCLE == begins["sort", slot]


# All of them.


@pytest.mark.parametrize("name", STRATEGIES)
def test_same_seed_makes_the_same(run, name):
    """The same seed gives the same result, and another one another."""
    options = {"accounts": 100, "failures": 0.1}
    made = [simulate(STRATEGIES[name](**options), days=0.4, seed=seed).summary for seed in (3, 3, 4)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("name", STRATEGIES)
def test_weights_and_banks_are_as_they_were_said(run, name):
    """Weights and banks of accounts are as requested."""
    found = run(name, days=0.1, accounts=300, jumbo=0.1, banks=4, **WELL)
    assert {1.0, 10.0} == {weight for _, weight, *_ in found.keys.values()}
    assert 15 < sum(weight == 10 for _, weight, *_ in found.keys.values()) < 45
    banks = [bank for bank, *_ in found.keys.values()]
    assert {"bank 0": 150, "bank 1": 50, "bank 2": 50, "bank 3": 50} == {bank: banks.count(bank) for bank in banks}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("cycle", "count"), [("1h", 12), ("4h", 3)])
def test_another_cycle_is_kept(run, name, cycle, count):
    """Syncs are as frequent as another cycle requires."""
    found = run(name, days=0.5, accounts=50, cycle=cycle, **WELL)
    least = min(syncs for _, _, syncs, _, _ in found.keys.values())
    most = max(syncs for _, _, syncs, _, _ in found.keys.values())
    assert count <= least
    assert most <= (2 * count if name == "central" else count)  # it enqueues more than a cycle needs


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_worker_has_one_job_at_a_time(run, name):
    """One worker runs one job at a time, without conflicts."""
    found = run(name, days=0.5, accounts=300, workers=1, **WELL)
    assert (0, 0) == (found.population.lock_conflicts, found.population.never_synced)
    assert found.executor.executing <= 1
    assert found.executor.executing_mean < 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_outage_of_day_zero_is_none(run, name):
    """An outage on day 0, or on a day that does not come, has no effect."""
    for day in (0, 5):
        found = run(name, days=0.2, accounts=100, failures=0.0, locked_out=0.0, outage_day=day)
        assert (0, 0, []) == (found.executor.failed, found.population.outage_failures, found.events)


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_account_is_enough(run, name):
    """A single account is synced as one of many."""
    found = run(name, accounts=1, **WELL)
    assert 96 == found.keys[0][2] if name == "central" else 3 == found.keys[0][2]  # it looks every 15 minutes
    assert (1, 0) == (found.population.keys, found.population.never_synced)


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_account_is_enough_with_an_outage(run, name):
    """A single account may have the default outage."""
    assert run(name, accounts=1).population.keys == 1


def test_one_bank_has_all_accounts(run):
    """With one bank all accounts belong to it."""
    found = run("slots", days=0.1, accounts=100, banks=1, **WELL)
    assert {"bank 0"} == {bank for bank, *_ in found.keys.values()}


@pytest.mark.parametrize("name", ["failures", "locked_out", "jumbo", "losses"])
@pytest.mark.parametrize("value", [5.0, -0.5])
def test_parts_out_of_range_are_refused(name, value):
    """A part outside of 0 to 1 is refused by name."""
    with pytest.raises(ValueError, match=name):
        simulate(STRATEGIES["self-rescheduling"](accounts=10, outage_day=0, **{name: value}), days=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accounts": 0}, "accounts must be >= 1"),
        ({"accounts": -3}, "accounts must be >= 1"),
        ({"cycle": "soon"}, "a duration looks like"),
        ({"cycle": "0h"}, "must be > 0 seconds"),
        ({"workers": -1}, "workers must be >= 1"),
        ({"mean": 0.0}, "mean must be > 0"),
        ({"mean": 4.0, "p90": 120.0}, "at most 10 times the mean, 40"),
        ({"outage_day": -1}, "outage_day must be >= 0"),
    ],
)
@pytest.mark.parametrize("name", STRATEGIES)
def test_parameters_out_of_range_are_refused(name, options, words):
    """Bad parameters are refused with the reason."""
    with pytest.raises(ValueError, match=words):
        simulate(STRATEGIES[name](**{"accounts": 10, **options}), days=0.1)


@pytest.mark.parametrize("name", SLOTTED)
def test_cycle_that_cannot_be_cut_is_refused(name):
    """A cycle that cannot be divided into slots of whole seconds is refused with the next possible one."""
    with pytest.raises(ValueError, match="take 28802 s"):
        simulate(STRATEGIES[name](accounts=10, cycle="28801s"), days=0.1)
    assert 0 < simulate(STRATEGIES["random-spread"](accounts=10, cycle="28801s", outage_day=0), days=0.1).summary.jobs


def test_names_are_those_of_the_classes():
    """Strategies are named after their classes, in lower case and in order."""
    assert ["self-rescheduling", "central", "random-spread", "slots", "weighted-slots"] == list(STRATEGIES)
    assert list(STRATEGIES) == [made().name for made in STRATEGIES.values()]


@pytest.mark.parametrize("name", STRATEGIES)
def test_parameters_are_the_fields(name):
    """Parameters are the fields of a strategy, without days or other attributes of the class."""
    made = STRATEGIES[name]()
    assert {field.name for field in fields(made)} == set(made.parameters())
