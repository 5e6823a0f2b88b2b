"""Scenarios as TOML files: what a file says happens, and bad input is refused with its place."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from ratelimited_executor.simulation import TomlScenario, load_toml, loop, read_recording, simulate
from ratelimited_executor.simulation.jobs import Job

DATA = Path(__file__).parents[2] / "examples" / "data"
LOG, CSV = DATA / "access.log.gz", DATA / "arrivals.csv"
HOUR = 3600.0

HEAD = """
days = 0.05
[executors.api]
pacing = "on time"
[populations.users]
count = 10
period = "1h"
groups = 2
[jobs.call]
duration = 2
[jobs.sync]
duration = 2
population = "users"
"""
CALL = '[[arrivals]]\nexecutor = "api"\njob = "call"\n'
SYNC = CALL.replace("call", "sync")
OUTAGE = '[[outages]]\npopulation = "users"\ngroup = "users 0"\n'


@pytest.fixture
def write(tmp_path):
    """Write a file, and return its path."""

    def write(text: str | bytes, name: str = "load.toml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def play(write, tmp_path):
    """Simulate a file; return the result, and the time, key and duration of each job that has started."""

    def play(text: str, **options):
        database = tmp_path / "run.sqlite3"
        database.unlink(missing_ok=True)
        result = simulate(load_toml(write(text)), database=database, samples=True, **options)
        with closing(sqlite3.connect(database)) as connection:
            rows = connection.execute(
                "SELECT name, time, key, sample.value FROM sample JOIN source ON source = id "
                "WHERE metric = 'execution_time' ORDER BY sample.rowid"
            ).fetchall()
        return result, rows

    return play


# What a file says.


def test_full_file_does_all_that_it_says(write, tmp_path):
    """A file with every table and option does all that it says."""
    path = write(
        f"""
        name = "everything"
        days = 0.25
        interval = 30

        [executors.api]
        rate = "20/s"
        max_concurrency = 50
        pacing = "spread"
        max_pending = 1_000_000

        [executors.node]
        nodes = 3
        rate = "30/s"
        pacing = "on time"

        [populations.accounts]
        count = 200
        period = "1h"
        groups = 4

        [jobs.fixed]
        duration = 0.5
        [jobs.text]
        duration = "250ms"
        [jobs.skewed]
        duration = {{mean = 4, p90 = 8}}
        [jobs.gaps]
        duration = {{mean = 1}}
        failures = 0.5
        [jobs.known]
        duration = {{percentiles = {{0 = 0.1, 50 = 1, 100 = 5}}}}
        [jobs.measured]
        duration = {{sample = [1, 2, 3]}}
        [jobs.logged]
        duration = {{sample = "{LOG}"}}
        [jobs.sync]
        duration = 1
        population = "accounts"
        then = {{job = "sort", executor = "node", delay = "10s"}}
        [jobs.sort]
        duration = 0.1
        population = "accounts"
        is_sync = false

        [[arrivals]]
        executor = "api"
        job = "fixed"
        count = 100
        at = "1h"
        over = "10m"
        priority = 3
        [[arrivals]]
        executor = "api"
        job = "text"
        rate = "1/s"
        pattern = "regular"
        [[arrivals]]
        executor = "api"
        job = "skewed"
        rate = "6/min"
        pattern = "poisson"
        expires = "1m"
        [[arrivals]]
        executor = "node"
        job = "gaps"
        daily = {{0 = "1/s", 2 = 0}}
        [[arrivals]]
        executor = "node"
        job = "known"
        log = "{LOG}"
        speed = 2
        every = "3h"
        [[arrivals]]
        executor = "api"
        job = "measured"
        log = "{CSV}"
        time = "time"
        key = "client"
        [[arrivals]]
        executor = "api"
        job = "logged"
        count = 20
        population = "accounts"
        [[arrivals]]
        executor = "api"
        job = "sync"
        cycle = "1h"
        phase = "1/2"
        buckets = 256

        [[outages]]
        population = "accounts"
        group = "accounts 1"
        begin = "2h"
        end = "3h"
        """
    )
    scenario = load_toml(path)
    assert ("everything", 0.25, 30.0) == (scenario.name, scenario.days, scenario.interval)
    assert scenario.parameters()["executors"]["node"] == {"nodes": 3, "rate": "30/s", "pacing": "on time"}
    result = simulate(scenario, database=tmp_path / "run.sqlite3")
    assert ("finished", "everything", 0.25 * 86_400) == (result.status, result.scenario, result.summary.seconds)
    summary = result.summary
    assert {"api", "node/0", "node/1", "node/2"} == set(summary.executors)
    accounts = summary.populations["accounts"]
    assert (200, 0) == (accounts.keys, accounts.never_synced)
    assert accounts.outage_failures > 0
    with closing(sqlite3.connect(tmp_path / "run.sqlite3")) as connection:
        counts = dict(
            connection.execute(
                "SELECT name, sum(count) FROM quantiles JOIN source ON source = id "
                "WHERE metric = 'execution_time' GROUP BY name"
            )
        )
        events = connection.execute("SELECT time, name FROM event ORDER BY time").fetchall()
    assert (100, 500, 20) == (counts["fixed"], counts["measured"], counts["logged"])
    assert 6 * HOUR == pytest.approx(counts["text"], abs=30)
    assert 36 * 60 == pytest.approx(counts["skewed"], abs=5 * 46)
    assert 2 * HOUR == pytest.approx(counts["gaps"], abs=5 * 85)
    assert counts["known"] in (2 * 3953, 2 * 3953 + 1)  # the next recording begins at the end of one
    assert counts["sync"] >= 200 * 5
    assert counts["sort"] == pytest.approx(counts["sync"] - accounts.outage_failures, abs=10)
    assert [(2 * HOUR, "accounts 1 is out"), (3 * HOUR, "accounts 1 is back")] == events


def test_name_is_that_of_the_file_unless_it_says_so(write):
    """The name is that of the file unless given; days and interval have the usual defaults."""
    scenario = load_toml(write(HEAD.replace("days = 0.05", "") + CALL + "count = 1\n", "my load.toml"))
    assert ("my load", 7.0, 1.0) == (scenario.name, scenario.days, scenario.interval)
    assert isinstance(scenario, TomlScenario)


def test_count_comes_at_a_time_and_evenly_over_a_span(play):
    """A count of arrivals comes at a time, or evenly over a span from its begin."""
    _, rows = play(HEAD + CALL + 'count = 6\nat = "1m"\nover = 60\n')
    assert [("call", 60.0 + 10 * n, n, 2.0) for n in range(6)] == rows
    _, rows = play(HEAD + CALL + "count = 3\n")
    assert [("call", 0.0, n, 2.0) for n in range(3)] == rows


def test_count_goes_round_a_population(play):
    """Arrivals take the keys of their population, or of their job's, in turn, and again if there are more."""
    _, rows = play(HEAD + SYNC + "count = 23\n")
    assert [n % 10 for n in range(23)] == [key for _, _, key, _ in rows]
    _, rows = play(HEAD + CALL + 'count = 4\npopulation = "users"\n')
    assert [0, 1, 2, 3] == [key for _, _, key, _ in rows]


def test_regular_rate_has_even_gaps(play):
    """A regular rate has even gaps from the start on, across hours."""
    _, rows = play(HEAD + CALL + 'rate = "6/min"\npattern = "regular"\n')
    assert [10.0 * n for n in range(433)] == pytest.approx([time for _, time, _, _ in rows])
    assert list(range(433)) == [key for _, _, key, _ in rows]


@pytest.mark.parametrize("pattern", ["", 'pattern = "poisson"\n'])
def test_rate_is_random_unless_it_is_said(play, pattern):
    """A rate is random by default, with its mean, and repeatable with the seed."""
    text = HEAD + CALL + "rate = 1\n" + pattern
    (_, rows), (_, again), (_, other) = play(text), play(text), play(text, seed=1)
    assert rows == again != other
    assert 0.05 * 86_400 == pytest.approx(len(rows), abs=5 * 66)
    assert len({round(time % 1, 6) for _, time, _, _ in rows}) > 1000


def test_daily_rates_hold_by_the_hour(play):
    """A daily rate holds until the next given hour, and before the first as after the last."""
    _, rows = play(HEAD + CALL + 'daily = {1 = "1/s", 2 = "0/s", 4 = 0.5}\n', days=0.25)
    counts = Counter(int(time // HOUR) for _, time, _, _ in rows)
    expected = {0: 1800, 1: 3600, 2: 0, 3: 0, 4: 1800, 5: 1800}
    for hour, count in expected.items():
        assert count == pytest.approx(counts[hour], abs=5 * count**0.5), hour


def test_log_is_played_as_it_was_recorded(play):
    """A log is played as recorded, each request at its time and with its client; ``speed`` compresses time."""
    recording = read_recording(LOG)
    result, rows = play(HEAD + CALL + f'log = "{LOG}"\n')
    assert len(recording.times) == len(rows) == result.summary.executors["api"].done
    assert list(recording.times) == pytest.approx([time for _, time, _, _ in rows])
    assert Counter(recording.keys) == Counter(key for _, _, key, _ in rows)
    _, fast = play(HEAD + CALL + f'log = "{LOG}"\nspeed = 2\n')
    assert [time / 2 for time in recording.times] == pytest.approx([time for _, time, _, _ in fast])


def test_job_cannot_last_as_long_as_what_has_not_ended(write, tmp_path):
    """A recorded job without an end is refused as such, and one that is too long by the limit."""
    text = HEAD.replace("duration = 2", 'duration = "recorded"', 1) + CALL + 'log = "ends.csv"\ntime = "t"\nend = "e"\n'
    path = write(text)
    (tmp_path / "ends.csv").write_text("t,e\n0,5\n1,\n")
    with pytest.raises(ValueError, match=r"number 1: duration of call must be finite, .*: remove what has not ended"):
        simulate(load_toml(path), days=1e-9)
    (tmp_path / "ends.csv").write_text("t,e\n0,5\n1,9e10\n")
    with pytest.raises(ValueError, match=r"number 1: duration must be at most"):
        simulate(load_toml(path), days=1e-9)


def test_recorded_durations_are_played_in_their_order(play):
    """With ``duration = "recorded"`` each request lasts as it did, in every run and also played again; a sample is drawn."""
    recording = read_recording(LOG)
    text = HEAD.replace("duration = 2", 'duration = "recorded"', 1) + CALL + f'log = "{LOG}"\n'
    _, rows = play(text)
    assert list(zip(recording.keys, recording.durations, strict=True)) == [row[2:] for row in rows]
    _, again = play(text + 'every = "10m"\n', days=1 / 48)
    assert [row[2:] for row in again[:3953]] == [row[2:] for row in again[3953:7906]] == [row[2:] for row in rows]
    _, drawn = play(text.replace('"recorded"', f'{{sample = "{LOG}"}}', 1))
    assert [row[3] for row in drawn] != [row[3] for row in rows]
    _, table = play(text.replace(f'"{LOG}"', f'"{CSV}"\ntime = "time"\nkey = "client"\nduration = "seconds"'))
    known = read_recording(CSV, time="time", key="client", duration="seconds")
    assert list(zip(known.keys, known.durations, strict=True)) == [row[2:] for row in table]


def test_log_is_played_again(play):
    """With ``every`` a log is played again from each multiple of it."""
    _, rows = play(HEAD + CALL + f'log = "{LOG}"\nevery = "10m"\n', days=1 / 48)
    last = read_recording(LOG).times[-1]
    assert 3 * 3953 <= len(rows) <= 3 * 3953 + 1
    assert [600.0, 600.0 + last] == pytest.approx([rows[3953][1], rows[2 * 3953 - 1][1]])


def test_log_lies_beside_the_file(write, tmp_path):
    """The path of a log is relative to the file."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "some.log.gz").write_bytes(LOG.read_bytes())
    text = HEAD.replace("duration = 2", 'duration = {sample = "some.log.gz"}') + CALL + 'log = "some.log.gz"\n'
    result = simulate(load_toml(write(text, "deep/load.toml")))
    assert 3953 == result.summary.executors["api"].done


def test_table_is_played_by_its_columns(play):
    """A CSV file is played by its named columns, of which times are required."""
    _, rows = play(HEAD + CALL + f'log = "{CSV}"\ntime = "time"\nkey = "client"\n')
    assert (500, "client-8") == (len(rows), rows[0][2])
    with pytest.raises(ValueError, match=r"arrivals\]\] number 1: .*time must name the column"):
        play(HEAD + CALL + f'log = "{CSV}"\n')


def test_keys_of_a_population_stand_for_those_of_a_log(play):
    """With a population its keys are drawn instead of the clients of a log."""
    _, rows = play(HEAD + SYNC + f'log = "{LOG}"\n')
    assert set(range(10)) == {key for _, _, key, _ in rows}


def test_cycle_has_each_key_once(play):
    """A cycle has each key once in every turn at the same offset, which a phase shifts."""
    _, rows = play(HEAD + SYNC + 'cycle = "20m"\n')
    cycles = [{key: time % 1200 for _, time, key, _ in rows if time // 1200 == turn} for turn in range(3)]
    assert all(set(range(10)) == set(cycle) for cycle in cycles)
    assert 30 <= len(rows) <= 40
    assert [cycles[0][key] for key in range(10)] == pytest.approx([cycles[2][key] for key in range(10)], abs=1e-3)
    _, later = play(HEAD + SYNC + 'cycle = "20m"\nphase = 0.25\n')
    first = min(time for _, time, key, _ in later if key == 3)
    assert (cycles[0][3] + 300) % 1200 == pytest.approx(first, abs=1e-3)


def test_cycle_has_the_slots_of_its_buckets(play, tmp_path):
    """A cycle has the slots that divide it into its buckets, and reports show them."""
    for buckets, count in ((65_536, 16), (256, 16)):
        play(HEAD + SYNC + f"cycle = 1200\nbuckets = {buckets}\n")
        with closing(sqlite3.connect(tmp_path / "run.sqlite3")) as connection:
            assert (count, 10) == connection.execute("SELECT count(*), sum(keys) FROM slot").fetchone()


def test_durations_have_the_shape_that_was_said(play):
    """Durations are drawn from the given shape."""
    shapes = {
        "1.5": lambda found: set(found) == {1.5},
        '"1m"': lambda found: set(found) == {60.0},
        "{mean = 4}": lambda found: 3.5 < sum(found) / len(found) < 4.5,
        "{mean = 4, p90 = 8}": lambda found: 0.85 < sum(each < 8 for each in found) / len(found) < 0.95,
        "{percentiles = {0 = 1, 50 = 2, 100 = 3}}": lambda found: 1 <= min(found) < 1.1 and 2.9 < max(found) <= 3,
        "{sample = [1, 2, 7]}": lambda found: set(found) == {1.0, 2.0, 7.0},
        f'{{sample = "{LOG}"}}': lambda found: 0.001 < min(found) and max(found) < 1,
    }
    for shape, is_right in shapes.items():
        _, rows = play(HEAD.replace("duration = 2", f"duration = {shape}", 1) + CALL + "count = 1000\n")
        assert is_right([seconds for _, _, _, seconds in rows]), shape


def test_failures_are_the_part_that_was_said(play):
    """The given part of the jobs fails, and is counted separately."""
    text = HEAD.replace("duration = 2", "duration = 2\nfailures = 0.25", 1) + CALL + "count = 2000\n"
    api = play(text)[0].summary.executors["api"]
    assert (2000, 500) == (api.done + api.failed, pytest.approx(api.failed, abs=5 * 20))


def test_rate_and_concurrency_hold(play):
    """Rate and concurrency hold: n calls at a rate start within n / rate."""
    text = HEAD.replace('pacing = "on time"', 'pacing = "on time"\nrate = "2/s"')
    _, rows = play(text + CALL + "count = 100\n")
    assert [n / 2 for n in range(100)] == pytest.approx([time for _, time, _, _ in rows], abs=1e-3)
    text = HEAD.replace('pacing = "on time"', 'pacing = "on time"\nmax_concurrency = 5')
    _, rows = play(text + CALL + "count = 100\n")
    assert [n // 5 * 2.0 for n in range(100)] == pytest.approx([time for _, time, _, _ in rows], abs=1e-3)


@pytest.mark.parametrize("pacing", ["spread", "on time"])
def test_either_pacing_does_all_jobs(play, pacing):
    """Jobs are spread over their interval, or start when due, by the pacing."""
    result, _ = play(HEAD.replace('"on time"', f'"{pacing}"\nrate = "1/s"') + CALL + "count = 500\n")
    assert 500 == result.summary.executors["api"].done


def test_nodes_share_the_jobs_and_the_rate(play):
    """Nodes get jobs in turn, and share the rate."""
    text = HEAD.replace('pacing = "on time"', 'nodes = 3\nrate = "3/s"\npacing = "on time"')
    result, rows = play(text + CALL + "count = 99\n")
    assert {f"api/{n}": 33 for n in range(3)} == {name: of.done for name, of in result.summary.executors.items()}
    assert 32 <= max(time for _, time, _, _ in rows) <= 34


def test_priority_goes_first(play):
    """Of due jobs those of higher priority start first."""
    text = HEAD.replace('pacing = "on time"', 'pacing = "on time"\nmax_concurrency = 1')
    _, rows = play(text + CALL + "count = 3\n" + SYNC + "count = 3\npriority = 5\n")
    assert ["sync"] * 3 + ["call"] * 3 == [name for name, _, _, _ in rows]


def test_what_expires_is_not_started(play):
    """Jobs that wait longer than ``expires`` after their due time are not started."""
    text = HEAD.replace('pacing = "on time"', 'pacing = "on time"\nmax_concurrency = 1')
    for expires in ('"5s"', "5"):
        api = play(text + CALL + f"count = 10\nexpires = {expires}\n")[0].summary.executors["api"]
        assert (3, 7) == (api.done, api.other)


def test_outage_fails_the_jobs_of_a_kind(play):
    """An outage fails all jobs of its kind that start in it, and no others."""
    text = HEAD + CALL + "count = 100\nover = 100\n" + SYNC + "count = 100\nover = 100\n"
    result, rows = play(text + '[[outages]]\njob = "call"\nbegin = 20\nend = "40s"\n')
    assert (20, 180) == (result.summary.total.failed, result.summary.total.done)
    assert 200 == len(rows)
    result, _ = play(
        text.replace("[jobs.call]", "[jobs.call]\nfailures = 1") + '[[outages]]\njob = "call"\nbegin = 20\nend = 40\n'
    )
    assert (100, 100) == (result.summary.total.failed, result.summary.total.done)


def test_outage_fails_a_part_of_the_jobs(play):
    """An outage with a fraction fails as many of its jobs, and the usual failures stay; the larger of both counts."""
    text = HEAD + CALL + "count = 2000\nover = 1000\n"
    outage = "[[outages]]\njob = 'call'\nbegin = 0\nend = 1000\nfailures = 0.25\n"
    assert 500 == pytest.approx(play(text + outage)[0].summary.total.failed, abs=80)
    often = text.replace("[jobs.call]", "[jobs.call]\nfailures = 0.5")
    assert 1000 == pytest.approx(play(often + outage)[0].summary.total.failed, abs=90)
    assert 0 == play(text + outage.replace("0.25", "0"))[0].summary.total.failed


def test_outage_follows_a_curve(play):
    """An outage may fade: the fraction of jobs that fail changes evenly between the times that are given."""
    text = HEAD + CALL + "count = 4000\nover = 4000\n"
    curve = 'failures = {"0s" = 1.0, "1000s" = 0.0, 2000 = 0.0, "2001s" = 1}'
    result, rows = play(text + f"[[outages]]\njob = 'call'\nbegin = 500\nend = 3000\n{curve}\n")

    assert 4000 == len(rows)
    # a triangle of 1000 s from 500 s on, and everything from 2501 s to 3000 s
    assert 500 + 499 == pytest.approx(result.summary.total.failed, abs=70)


def test_jobs_in_a_circle_need_time(write):
    """Jobs that follow each other in a circle must take time: else the run would never end."""
    text = HEAD.replace("duration = 2", "duration = 0")
    text = text.replace("[jobs.call]", '[jobs.call]\nthen = {job = "b", executor = "api"}')
    text += '[jobs.b]\nduration = 0\nthen = {job = "c", executor = "api"}\n'
    circle = '[jobs.c]\nduration = 0\nthen = {job = "call", executor = "api"}\n'
    with pytest.raises(ValueError, match=r"\[jobs\.call\]: then enqueues jobs in a circle without any time"):
        simulate(load_toml(write(text + circle + CALL + "count = 1\n")))
    assert simulate(load_toml(write(text + circle.replace("= 0", "= 10") + CALL + "count = 1\n"))).summary.jobs > 100


def test_a_delay_of_nothing_is_none(write):
    """A delay of zero is none, however it is written."""
    text = HEAD.replace("duration = 2", 'duration = 0\nthen = {job = "call", executor = "api", delay = "0s"}', 1)
    with pytest.raises(ValueError, match="then enqueues the same job without any time"):
        simulate(load_toml(write(text + CALL + "count = 1\n")))


def test_jobs_that_follow_keep_to_the_limits_of_keys_and_of_room(play):
    """Jobs that follow others keep the limits of keys and of waiting tasks, as arriving ones do."""
    text = HEAD.replace("[executors.api]", "[executors.api]\nkey_concurrency = 1\nmax_pending = 3\nmax_concurrency = 2")
    text = text.replace("[jobs.sync]", '[jobs.sync]\nthen = {job = "sort", executor = "api"}')
    text += '[jobs.sort]\nduration = 2\npopulation = "users"\nis_sync = false\n'
    result, _ = play(text + SYNC + 'rate = "2/s"\n')
    assert 0 == result.summary.populations["users"].lock_conflicts
    assert result.summary.total.refused > 1000


def test_durations_of_a_csv_are_those_of_its_column(play):
    """Durations of a CSV file are those of the named column."""
    text = HEAD.replace("duration = 2", f'duration = {{sample = "{CSV}", time = "time", duration = "seconds"}}', 1)
    _, rows = play(text + CALL + "count = 500\n")
    recorded = set(read_recording(CSV, time="time", duration="seconds").durations)
    assert {value for *_, value in rows} <= recorded


def test_failed_jobs_are_tried_again(play):
    """Failed jobs are retried up to ``attempts``, each drawn anew."""
    text = HEAD.replace("[executors.api]", "[executors.api]\nattempts = 3").replace(
        "[jobs.call]", "[jobs.call]\nfailures = 0.5"
    )
    result, rows = play(text + CALL + "count = 1000\n")
    total = result.summary.total
    assert 125 == pytest.approx(total.failed, abs=50)
    assert 1750 == pytest.approx(len(rows), abs=100)
    assert (1000, len(rows), len(rows) - 1000) == (total.done + total.failed, total.started, total.retried)


def test_pauses_between_attempts_are_those_of_the_file(play):
    """The pause before the first retry is drawn up to ``base``, and none is longer than ``cap``."""
    text = HEAD.replace(
        "[executors.api]", '[executors.api]\nretry = {attempts = 3, base = "10s", cap = "15s"}'
    ).replace("[jobs.call]", "[jobs.call]\nfailures = 1.0")
    result, rows = play(text + CALL + "count = 300\n")
    assert (300, 600) == (result.summary.total.failed, result.summary.total.retried)
    first, second, third = (sorted(time for _, time, *_ in rows)[part * 300 : (part + 1) * 300] for part in range(3))
    assert 0 == first[-1]
    assert 20 < third[-1] <= 2 * 2 + 10 + 15  # two attempts of 2 s each, and two pauses


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("retry = {attempts = 3}\nattempts = 3", "give retry, with attempts in it, or attempts alone"),
        ('retry = {pause = "5s"}', r"\[executors.api\] retry has pause, which is unknown"),
        ('retry = {attempts = 3, base = "5s", cap = "1s"}', "cap must be >= base"),
        ("retry = 3", r"\[executors.api\] retry must be a table"),
    ],
)
def test_retries_that_are_wrong_are_refused(play, line, words):
    """The error names the place."""
    with pytest.raises(ValueError, match=words):
        play(HEAD.replace("[executors.api]", f"[executors.api]\n{line}") + CALL + "count = 1\n")


def test_outage_fails_the_jobs_of_its_group(play):
    """An outage fails the jobs of its group from its begin to its end, and no others."""
    result, _ = play(HEAD + SYNC + "count = 100\nover = 100\n" + OUTAGE + "begin = 20\nend = 40\n")
    assert (10, 90, 10) == (
        result.summary.executors["api"].failed,
        result.summary.executors["api"].done,
        result.summary.populations["users"].outage_failures,
    )


def test_is_sync_tells_what_counts_as_a_sync(play):
    """With ``is_sync = false`` a job does not sync its keys."""
    text = HEAD.replace('population = "users"', 'population = "users"\nis_sync = false')
    assert 10 == play(text + SYNC + "count = 10\n")[0].summary.populations["users"].never_synced
    assert 0 == play(HEAD + SYNC + "count = 10\n")[0].summary.populations["users"].never_synced


# Jobs that enqueue jobs.


def _then(text: str, job: str = "call", executor: str = "api", more: str = "") -> str:
    """Let the first job of a file enqueue another."""
    follow = f'then = {{job = "{job}", executor = "{executor}"{more}}}'
    return text.replace("duration = 2", f"duration = 2\n{follow}", 1)


def test_job_follows_another(play):
    """A job follows another at its end, after a delay and with its key, even if it is defined later."""
    _, rows = play(_then(HEAD, "sync", more=', delay = "1m"') + CALL + "count = 3\n")
    assert [("call", 0.0)] * 3 + [("sync", 62.0)] * 3 == [(name, time) for name, time, _, _ in rows]
    assert [0, 1, 2] * 2 == [key for _, _, key, _ in rows]


def test_job_follows_on_nodes(play):
    """Jobs that follow others are assigned to nodes in turn."""
    text = _then(HEAD, "sync").replace('pacing = "on time"', "nodes = 3")
    executors = play(text + CALL + "count = 9\n")[0].summary.executors
    assert {"api/0": 6, "api/1": 6, "api/2": 6} == {name: of.done for name, of in executors.items()}


def test_what_fails_is_not_followed(play):
    """A failed job is not followed by another."""
    text = _then(HEAD, "sync").replace("duration = 2", "duration = 2\nfailures = 1", 1)
    _, rows = play(text + CALL + "count = 5\n")
    assert {"call"} == {name for name, _, _, _ in rows}


@pytest.mark.parametrize("more", ["", ", delay = 8"])
def test_chain_that_never_ends_ends_with_its_days(play, more):
    """A job that follows itself continues until the end of the days."""
    result, rows = play(_then(HEAD, more=more) + CALL + "count = 1\n", days=100 / 86_400)
    gap = 10 if more else 2
    assert [float(time) for time in range(0, 101, gap)] == pytest.approx([time for _, time, _, _ in rows])
    assert "finished" == result.status


def test_two_jobs_that_follow_each_other_end_too(play):
    """Two jobs that follow each other continue until the end of the days."""
    sync = HEAD.rindex("duration = 2")
    text = HEAD[:sync] + HEAD[sync:].replace("duration = 2", 'duration = 2\nthen = {job = "call", executor = "api"}')
    _, rows = play(_then(text, "sync") + CALL + "count = 1\n", days=99 / 86_400)
    assert ["call", "sync"] * 25 == [name for name, _, _, _ in rows]


@pytest.mark.parametrize("more", ["", ", delay = 0"])
def test_chain_that_takes_no_time_is_told(write, monkeypatch, more):
    """A chain of jobs without duration ends with an error after too many at one moment."""
    begin, count, most = Job.__call__, 0, 20_000

    def counted(self, key=None):
        nonlocal count
        count += 1
        if count > most:
            raise KeyboardInterrupt  # it would never end
        return begin(self, key)

    monkeypatch.setattr(Job, "__call__", counted)
    monkeypatch.setattr(loop, "_STILL_COUNT_MAX", 1000)
    text = _then(HEAD, more=more).replace("duration = 2", "duration = 0", 1)
    with pytest.raises(ValueError, match="without any time passing"):  # before it begins
        simulate(load_toml(write(text + CALL + "count = 1\n")))
    assert count <= 1001


def test_key_that_a_population_does_not_have_is_told(write):
    """A key that is not in the population of the following job is refused with the place."""
    with pytest.raises(ValueError, match=r"\[jobs\.call\]:? then.*users"):
        simulate(load_toml(write(_then(HEAD, "sync") + CALL + "count = 11\n")))


def test_arrivals_of_another_population_than_that_of_the_job_are_refused(write):
    """Arrivals of another population than their job's are refused."""
    text = HEAD.replace("[jobs.call]", '[populations.others]\ncount = 20\nperiod = "1h"\n[jobs.call]')
    with pytest.raises(ValueError, match=r"\[\[arrivals\]\]:? number 1.*others"):
        simulate(load_toml(write(text + SYNC + 'count = 20\npopulation = "others"\n')))


# Options without an effect, or with a wrong one.


@pytest.mark.parametrize("limit", ['key_rate = "1/min"', "key_concurrency = 1"])
def test_limits_by_key_hold(play, limit):
    """Limits of keys hold for starts and for concurrent jobs."""
    text = HEAD.replace('pacing = "on time"', f'pacing = "on time"\n{limit}').replace("count = 10", "count = 1")
    _, rows = play(text + SYNC + "count = 10\n")
    assert len({time for _, time, _, _ in rows}) == len(rows)


def test_bound_of_what_waits_counts_what_has_arrived(play):
    """``max_pending`` counts arrived jobs that wait, and not future ones."""
    text = HEAD.replace('pacing = "on time"', "max_pending = 100")
    result, _ = play(text + CALL + 'rate = "1/s"\npattern = "regular"\n')
    assert 0 == result.summary.executors["api"].other


@pytest.mark.parametrize("term", ['expires = "1s"'])
def test_terms_of_a_cycle_hold_or_are_refused(write, term):
    """Options of a cycle have an effect, or are refused."""
    with pytest.raises(ValueError, match=term.split()[0]):
        simulate(load_toml(write(HEAD + SYNC + f'cycle = "20m"\n{term}\n')))


def test_two_cycles_of_one_job(play):
    """Two cycles of one job, half a cycle apart, sync each key twice."""
    _, rows = play(HEAD + SYNC + 'cycle = "20m"\n' + SYNC + 'cycle = "20m"\nphase = "1/2"\n')
    assert 60 <= len(rows) <= 80


@pytest.mark.parametrize(
    "text", [CALL + 'count = 1\nat = "0s"\n', SYNC + "count = 1\n" + OUTAGE + 'begin = "0s"\nend = 5\n']
)
def test_times_may_be_zero_as_texts_too(write, text):
    """A time of "0s" begins at the start, as 0 does."""
    assert "finished" == simulate(load_toml(write(HEAD + text))).status


# Refused on loading.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"\[executors\]:? must have at least one executor"),
        ("a = = 5", r"is not TOML: .*line 1"),
        ("days = " + "9" * 9000, "an integer has too many digits"),
        (b"\xff\xfe", "utf-8"),
        ("days = 7\n" + CALL + "count = 1", r"\[executors\]:? must have at least one"),
        ("[executors]\n" + CALL + "count = 1", r"\[executors\]:? must have at least one"),
        (HEAD, r"\[\[arrivals\]\]:? must be given at least once"),
        ("arrivals = []\n" + HEAD, r"\[\[arrivals\]\]:? must be given at least once"),
        ("daze = 3\n" + HEAD + CALL + "count = 1", "the file has daze, which is unknown: it can have .*days"),
        ("[executors]\nrate = 5\n" + CALL + "count = 1", r"\[executors\.rate\]:? must be a table of .*rate, .*got 5"),
        (
            HEAD.replace("pacing", "pase") + CALL + "count = 1",
            r"\[executors\.api\]:? has pase, .* it can have .*pacing",
        ),
        (
            HEAD.replace("pacing", "max_concurency") + CALL + "count = 1",
            r"\[executors\.api\]:? has max_concurency, .* max_concurrency",
        ),
        (HEAD.replace("groups", "group") + CALL + "count = 1", r"\[populations\.users\]:? has group, .*groups"),
        (HEAD.replace("duration", "durations", 1) + CALL + "count = 1", r"\[jobs\.call\]:? has durations, .*duration"),
        ("jobs = {call = 5}\n[executors.api]\n" + CALL + "count = 1", r"\[jobs\.call\]:? must be a table of .*got 5"),
        (HEAD + CALL, r"\[\[arrivals\]\] number 1:? must have one of count, rate, daily, log, cycle, got none"),
        (HEAD + CALL + "count = 1\n" + CALL, r"\[\[arrivals\]\] number 2:? must have one of"),
        (HEAD + CALL + "count = 1\nrate = 5", r"number 1 must have one of .*, got count, rate"),
        (HEAD + CALL + "count = 1\novr = 5", r"number 1 has ovr, which is unknown: it can have .*over"),
        (HEAD + CALL + 'count = 1\npattern = "regular"', "number 1 has pattern, which is unknown"),
        (HEAD + CALL + "rate = 1\nover = 5", "number 1 has over, which is unknown: it can have .*pattern"),
        (HEAD + CALL + "daily = {0 = 1}\nspeed = 5", "number 1 has speed, which is unknown"),
        (HEAD + SYNC + "cycle = 3600\nevery = 5", "number 1 has every, which is unknown: it can have .*buckets"),
        (HEAD + CALL + "count = 1\n" + OUTAGE + "from = 5", r"\[\[outages\]\] number 1:? has from, .* begin, end"),
        (HEAD.replace("0.05", '"7"') + CALL + "count = 1", "days must be a number, got '7'"),
        (HEAD.replace("0.05", "true") + CALL + "count = 1", "days must be a number, got True"),
        (HEAD.replace("0.05", "nan") + CALL + "count = 1", "days must be finite"),
        ('interval = "0s"\n' + HEAD + CALL + "count = 1", "interval must be > 0 seconds, got '0s'"),
        (
            'interval = "month"\n' + HEAD + CALL + "count = 1",
            "interval: a duration looks like 90, 10m or 1h30m, got 'month'",
        ),
        ("outages = [5]\n" + HEAD + CALL + "count = 1", r"\[\[outages\]\] number 1:? must be a table"),
    ],
)
def test_what_cannot_be_is_refused_on_loading(write, text, words):
    """Bad input is refused on loading with the file, the place, and what is possible."""
    path = write(text)
    with pytest.raises(ValueError, match=words) as error:
        load_toml(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('executors = "api"\n' + CALL + "count = 1", "executors"),
        ("[[executors]]\nrate = 5\n" + CALL + "count = 1", "executors"),
        ("populations = 5\n[executors.api]\n" + CALL + "count = 1", "populations"),
        ("[executors.api]\n[[jobs]]\nduration = 1\n" + CALL + "count = 1", "jobs"),
        ("arrivals = 5\n" + HEAD, r"arrivals\]\] must"),
        ("arrivals = [5]\n" + HEAD, r"arrivals\]\] number 1"),
        (
            HEAD + CALL.replace("[[", "[").replace("]]", "]") + "count = 1",
            r"arrivals.*\[\[arrivals\]\], and not \[arrivals\]",
        ),
        ("outages = 5\n" + HEAD + CALL + "count = 1", r"outages\]\] must"),
        (
            HEAD + CALL + "count = 1\n" + OUTAGE.replace("[[", "[").replace("]]", "]"),
            r"\[\[outages\]\], and not \[outages\]",
        ),
    ],
)
def test_what_is_no_table_is_refused_on_loading(write, text, place):
    """A table with wrong brackets, the most common slip, is refused on loading."""
    path = write(text)
    with pytest.raises(ValueError, match=place) as error:
        load_toml(path)
    assert str(path) in str(error.value)


def test_missing_file_is_missing(tmp_path):
    """A missing file raises ``FileNotFoundError`` with its name."""
    with pytest.raises(FileNotFoundError, match=r"no\.toml"):
        load_toml(tmp_path / "no.toml")


# Refused by ``setup``.


def _executor(text: str) -> str:
    return HEAD.replace('pacing = "on time"', text) + CALL + "count = 1"


def _outage(failures):
    return HEAD + CALL + f"count = 1\n[[outages]]\njob = 'call'\nbegin = 0\nend = '1h'\nfailures = {failures}\n"


def _population(text: str, old: str = "count = 10") -> str:
    return HEAD.replace(old, text) + CALL + "count = 1"


def _job(text: str) -> str:
    return HEAD.replace("duration = 2", text, 1) + CALL + "count = 1"


# Errors that name their place already.
TOLD = {
    "pacing": (_executor('pacing = "slow"'), r"\[executors\.api\]:? pacing must be 'spread' or 'on time', got 'slow'"),
    "no count": (_population(""), r"\[populations\.users\]:? needs a count"),
    "no period": (_population("", 'period = "1h"'), r"\[populations\.users\]:? needs a period"),
    "negative duration": (_job("duration = -1"), r"\[jobs\.call\]:? duration must be >= 0"),
    "infinite duration": (_job("duration = inf"), r"\[jobs\.call\]:? duration must be finite"),
    "no duration": (_job(""), r"\[jobs\.call\]:? duration must be seconds, .*mean.*got None"),
    "duration is a list": (_job("duration = [1]"), r"\[jobs\.call\]:? duration must be seconds"),
    "duration has another key": (_job("duration = {mean = 4, p9 = 8}"), r"\[jobs\.call\]:? duration must be .*p90"),
    "p90 alone": (_job("duration = {p90 = 8}"), r"\[jobs\.call\]:? duration must be"),
    "bad text": (_job('duration = "soon"'), r"\[jobs\.call\]:? duration: a duration looks like 90"),
    "population of a job": (
        _job('duration = 1\npopulation = "user"'),
        r"\[jobs\.call\]:? population must be one that the file defines, users, got 'user'",
    ),
    "then of no job": (
        _job('duration = 1\nthen = {job = "sink", executor = "api"}'),
        r"\[jobs\.call\]:? job must be one that the file defines, call, sync, got 'sink'",
    ),
    "then without job": (_job('duration = 1\nthen = {executor = "api"}'), r"\[jobs\.call\]:? job must be one that the file defines"),
    "then on no executor": (
        _job('duration = 1\nthen = {job = "sync", executor = "apy"}'),
        r"\[jobs\.call\]:? executor must be one that the file defines, api, got 'apy'",
    ),
    "negative delay": (
        _job('duration = 1\nthen = {job = "sync", executor = "api", delay = -1}'),
        r"\[jobs\.call\]:? delay must be >= 0",
    ),
    "no executor": (HEAD + CALL.replace('"api"', '"apy"') + "count = 1", r"number 1.* executor .* api, got 'apy'"),
    "executor left out": (HEAD + '[[arrivals]]\njob = "call"\ncount = 1', r"number 1.* executor .* got None"),
    "no job": (HEAD + CALL.replace("call", "cal") + "count = 1", r"number 1.* job .* call, sync, got 'cal'"),
    "no population": (HEAD + CALL + 'count = 1\npopulation = "x"', r"number 1.* population .* users, got 'x'"),
    "count of zero": (HEAD + CALL + "count = 0", r"number 1: count must be >= 1"),
    "count is a text": (HEAD + CALL + 'count = "5"', r"number 1: count must be an integer"),
    "count is a boolean": (HEAD + CALL + "count = true", r"number 1: count must be an integer"),
    "negative over": (HEAD + CALL + "count = 1\nover = -1", r"number 1: over must be >= 0"),
    "at is noon": (HEAD + CALL + 'count = 1\nat = "noon"', r"number 1: at: a duration looks like"),
    "priority is a text": (HEAD + CALL + 'count = 1\npriority = "high"', r"number 1: priority must be"),
    "expires is negative": (HEAD + CALL + "count = 1\nexpires = -1", r"number 1: expires must be >= 0"),
    "pattern": (HEAD + CALL + 'rate = 1\npattern = "even"', r'number 1: pattern must be "poisson" or "regular", got'),
    "rate of zero": (HEAD + CALL + "rate = 0", r"number 1: rate must be > 0"),
    "negative rate": (HEAD + CALL + "rate = -1", r"number 1: rate must be"),
    "infinite rate": (HEAD + CALL + "rate = inf", r"number 1: rate must be finite"),
    "rate is no rate": (HEAD + CALL + 'rate = "fast"', r"number 1: rate must look like"),
    "hour 24": (HEAD + CALL + "daily = {24 = 1}", r"number 1: daily: rates must have hours of the day, 0 to 23"),
    "nothing all day": (HEAD + CALL + "daily = {0 = 0}", r"number 1: daily: rates must have at least one hour"),
    "no hour": (HEAD + CALL + "daily = {}", r"number 1: daily: rates must have hours of the day"),
    "negative hour": (HEAD + CALL + "daily = {0 = -1}", r"number 1: daily: rate must be"),
    "speed of zero": (HEAD + CALL + f'log = "{LOG}"\nspeed = 0', r"number 1: speed must be > 0"),
    "too often": (HEAD + CALL + f'log = "{LOG}"\nevery = "1m"', r"number 1: every must be longer than the recording"),
    "columns of a log": (HEAD + CALL + f'log = "{LOG}"\ntime = "time"', r"number 1: .*time must not be given"),
    "recorded durations of a rate": (
        HEAD.replace("duration = 2", 'duration = "recorded"', 1) + CALL + "rate = 1", r"number 1: duration 'recorded' is that of each recorded"
    ),
    "recorded durations of a count": (_job('duration = "recorded"'), r"number 1: duration 'recorded' is that of each recorded"),
    "recording without durations": (
        HEAD.replace("duration = 2", 'duration = "recorded"', 1) + CALL + f'log = "{CSV}"\ntime = "time"',
        r"number 1: duration 'recorded' .* a recording that has durations: give another duration",
    ),
    "recorded durations of what follows": (
        _job('duration = 1\nthen = {job = "sync", executor = "api"}').replace("[jobs.sync]\nduration = 2", '[jobs.sync]\nduration = "recorded"'),
        r"\[jobs\.call\]: then: duration 'recorded'",
    ),
    "no such column": (HEAD + CALL + f'log = "{CSV}"\ntime = "when"', r"number 1: .*'time', 'client', 'seconds', got"),
    "cycle of nobody": (HEAD + CALL + "cycle = 3600", r"number 1: cycle needs a population"),
    "cycle on nodes": (
        HEAD.replace('pacing = "on time"', "nodes = 2") + SYNC + "cycle = 3600",
        r"number 1: cycle needs an executor of one node",
    ),
    "odd cycle": (HEAD + SYNC + "cycle = 3601", r"number 1: cycle must have a divisor in common .* take 3602 s"),
    "half a second": (HEAD + SYNC + "cycle = 2.5", r"number 1: cycle must be a whole number of seconds"),
    "cycle of zero": (HEAD + SYNC + "cycle = 0", r"number 1: cycle must be > 0"),
    "negative cycle": (HEAD + SYNC + "cycle = -60", r"number 1: cycle must be > 0"),
    "buckets": (HEAD + SYNC + "cycle = 3600\nbuckets = 100", r"number 1: buckets must be 256 or 65536"),
    "phase of one": (HEAD + SYNC + "cycle = 3600\nphase = 1", r"number 1: phase must be >= 0 and < 1"),
    "outage of no population": (
        HEAD + CALL + "count = 1\n" + OUTAGE.replace('"users"', '"user"') + "begin = 0\nend = 5",
        r"\[\[outages\]\] number 1:? population must be one .* users, got 'user'",
    ),
    "outage before the start": (HEAD + CALL + "count = 1\n" + OUTAGE + "begin = -1\nend = 5", r"\[\[outages\]\] number 1:? begin must"),
}  # fmt: skip

# Errors that do not.
PLACELESS = {
    "rate": (_executor('rate = "fast"'), r"rate must look like"),
    "negative rate": (_executor("rate = -1"), r"rate must be a number of permits"),
    "no nodes": (_executor("nodes = 0"), r"nodes must be >= 1"),
    "empty population": (_population("count = 0"), r"at least one, got 0"),
    "less than no keys": (_population("count = -1"), r"at least one, got -1"),
    "period of zero": (_population("period = 0", 'period = "1h"'), r"period must be > 0"),
    "negative period": (_population("period = -1", 'period = "1h"'), r"period must be > 0"),
    "period is no time": (_population('period = "soon"', 'period = "1h"'), r"period: a duration looks like"),
    "no groups": (_population("groups = 0", "groups = 2"), r"groups must be >= 1"),
    "p90 of no distribution": (
        _job("duration = {mean = 4, p90 = 120}"),
        r"p90 must be at most 10 times the mean, 40, .*limit of every distribution.* got 120",
    ),
    "p90 of no log-normal": (_job("duration = {mean = 4, p90 = 30}"), r"at most 2\.273 times the mean, 9\.09"),
    "p90 below the mean": (_job("duration = {mean = 4, p90 = 3}"), r"p90 must be more than the mean"),
    "mean of zero": (_job("duration = {mean = 0}"), r"mean must be > 0"),
    "percentiles without end": (_job("duration = {percentiles = {0 = 1, 50 = 2}}"), r"from 0 percent, .* to 100"),
    "percentiles fall": (_job("duration = {percentiles = {0 = 2, 100 = 1}}"), r"must not fall"),
    "empty sample": (_job("duration = {sample = []}"), r"at least one value"),
    "failures of 2": (_job("duration = 1\nfailures = 2"), r"failures must be a fraction of all jobs, from 0 to 1"),
    "no such group": (
        HEAD + CALL + "count = 1\n" + OUTAGE.replace("users 0", "users 9") + "begin = 0\nend = 5",
        r"group must be one of the population users, users 0, users 1, got 'users 9'",
    ),
    "outage that ends as it begins": (HEAD + CALL + "count = 1\n" + OUTAGE + "begin = 5\nend = 5", r"and end later"),
}  # fmt: skip

# Other errors than ValueError, or none.
OTHER = {
    "rate is a boolean": (_executor("rate = true"), r"executors\.api.*rate"),
    "pacing is a list": (_executor('pacing = ["spread"]'), r"executors\.api.*pacing"),
    "half a node": (_executor("nodes = 1.5"), r"executors\.api.*nodes"),
    "concurrency is a text": (_executor('max_concurrency = "5"'), r"executors\.api.*max_concurrency"),
    "count of keys is a text": (_population('count = "30"'), r"populations\.users.*count"),
    "count of keys is a text, no groups": (_population('count = "30"').replace("groups = 2", ""), r"populations\.users.*count"),
    "half a key": (_population("count = 1.5"), r"populations\.users.*count"),
    "groups is a text": (_population('groups = "2"', "groups = 2"), r"populations\.users.*groups"),
    "duration is a boolean": (_job("duration = true"), r"jobs\.call.*duration"),
    "mean is a text": (_job('duration = {mean = "soon"}'), r"jobs\.call.*mean"),
    "percentiles is a list": (_job("duration = {percentiles = [1, 2]}"), r"jobs\.call.*percent"),
    "percentile p50": (_job("duration = {percentiles = {p50 = 1}}"), r"jobs\.call.*percent.*p50"),
    "sample is a number": (_job("duration = {sample = 5}"), r"jobs\.call.*sample"),
    "sample is the path of no file": (_job('duration = {sample = "123"}'), r"jobs\.call.*123"),
    "missing log of durations": (_job('duration = {sample = "no.log"}'), r"jobs\.call.*no\.log"),
    "log of durations": (_job('duration = {log = "access.log"}'), r"jobs\.call.*recorded.*sample.*got"),
    "failures in percent": (_job('duration = 1\nfailures = "5%"'), r"jobs\.call.*failures"),
    "is_sync is a text": (_job('duration = 1\nis_sync = "false"'), r"jobs\.call.*is_sync"),
    "population is a list": (_job('duration = 1\npopulation = ["users"]'), r"jobs\.call.*population"),
    "then is a text": (_job('duration = 1\nthen = "sync"'), r"jobs\.call.*then"),
    "daily is a number": (HEAD + CALL + "daily = 5", r"number 1.*daily"),
    "hour is noon": (HEAD + CALL + "daily = {noon = 1}", r"number 1.*(hour|daily).*noon"),
    "missing log": (HEAD + CALL + 'log = "no.log"', r"number 1.*no\.log"),
    "log is a number": (HEAD + CALL + "log = 5", r"number 1.*log: must be the path"),
    "phase by zero": (HEAD + SYNC + 'cycle = 3600\nphase = "1/0"', r"number 1.*phase"),
    "phase is a word": (HEAD + SYNC + 'cycle = 3600\nphase = "half"', r"number 1.*phase"),
    "outage without begin": (HEAD + CALL + "count = 1\n" + OUTAGE + "end = 5", r"outages.*begin"),
    "outage without points": (_outage("{}"), r"outages.*failures must give fractions at rising times"),
    "outage of falling times": (_outage('{"20s" = 1, "10s" = 0}'), r"outages.*failures must give fractions at rising times"),
    "outage of equal times": (_outage('{"1m" = 1, "60s" = 0}'), r"outages.*failures must give fractions at rising times"),
    "outage beyond its end": (_outage('{"0s" = 1, "2h" = 0}'), r"outages.*failures must give fractions at rising times"),
    "outage of more than all": (_outage('{"0s" = 2}'), r"outages.*failures must be a fraction of all jobs"),
    "outage of a word": (_outage('"many"'), r"outages.*failures"),
    "curve of a group": (
        HEAD + CALL + "count = 1\n" + OUTAGE + "begin = 0\nend = 5\nfailures = 0.5", r"outages.*failures must be given with job"
    ),
    "more than may wait": (_executor("max_pending = 3") + "0", r"number 1.*max_pending"),
    "no days": (HEAD.replace("0.05", "0") + CALL + "count = 1", "days must be > 0 .*got 0"),
    "less than no days": (HEAD.replace("0.05", "-1") + CALL + "count = 1", "days must be > 0 .*got -1"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), (TOLD | PLACELESS).values(), ids=(TOLD | PLACELESS).keys())
def test_what_cannot_be_is_refused_when_it_is_set_up(write, text, words):
    """Bad input that only ``setup`` can find is refused with the reason."""
    scenario = load_toml(write(text))
    with pytest.raises(ValueError, match=words):
        simulate(scenario)


@pytest.mark.parametrize(("text", "words"), PLACELESS.values(), ids=PLACELESS.keys())
def test_refusal_names_its_place(write, text, words):
    """A refusal names its place in the file."""
    with pytest.raises(ValueError, match=rf"\[\[?(executors\.api|populations\.users|jobs\.call|outages)\]\]?.*{words}"):
        simulate(load_toml(write(text)))


@pytest.mark.parametrize("name", ["pacing", "no duration", "then of no job", "no executor", "count of zero"])
def test_refusal_names_its_file(write, name):
    """A refusal names its file, on loading and in ``setup``."""
    path = write(TOLD[name][0])
    with pytest.raises(ValueError, match=r"load\.toml") as error:
        simulate(load_toml(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("text", "words"), OTHER.values(), ids=OTHER.keys())
def test_wrong_type_is_refused_as_what_is_out_of_range(write, text, words):
    """A wrong type raises ``ValueError`` with its place, as bad values do."""
    with pytest.raises(ValueError, match=words):
        simulate(load_toml(write(text)))


def test_place_is_named_once(write):
    """The place is named once in a message."""
    with pytest.raises(ValueError, match="executor") as error:
        simulate(load_toml(write(HEAD + CALL.replace('"api"', '"apy"') + "count = 1")))
    assert 1 == str(error.value).count("number 1")


def test_rate_and_workers_follow_the_hours_of_the_day(play):
    """What an executor may do changes by the hour, and workers cost what they are."""
    text = """
days = 0.25
[executors.api]
max_concurrency = {0 = 1, 2 = 3, 4 = 2}
rate = {0 = 5, 4 = "6/min"}
worker_price = 1
[jobs.call]
duration = 30
[[arrivals]]
executor = "api"
job = "call"
count = 2000
"""
    result, rows = play(text)
    by_hour = Counter(int(time // HOUR) for _, time, *_ in rows)
    assert {0: 120, 1: 120, 2: 360, 3: 360, 4: 240, 5: 240} == pytest.approx(by_hour, abs=4)
    assert result.summary.worker_cost == pytest.approx(2 * 1 + 2 * 3 + 2 * 2, rel=0.01)
    slow = play(text.replace("duration = 30", "duration = 1").replace("2 = 3", "2 = 30"))[1]
    late = Counter(int(time // HOUR) for _, time, *_ in slow if time >= 4 * HOUR)
    assert sum(late.values()) == 0  # all had started: 2,000 in the first hour
    many = play(text.replace("duration = 30", "duration = 0.1").replace("count = 2000", "count = 75000"))[1]
    assert Counter(int(time // HOUR) for _, time, *_ in many)[5] == pytest.approx(360, abs=2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0 = 1,", "0 = 1, 24 = 5,", r"\[executors\.api\].* max_concurrency: must have hours of the day, 0 to 23"),
        ("0 = 1,", '0 = "few",', r"max_concurrency: .*must be an integer"),
        ("max_concurrency = {0 = 1}", "max_concurrency = {}", r"max_concurrency: must have hours"),
        ("0 = 1,", "noon = 1,", "must have hours of the day such as 8 and 20"),
    ],
)
def test_hours_that_cannot_be_are_refused(write, old, new, words):
    """Hours and values are checked before anything runs."""
    text = "[executors.api]\nmax_concurrency = {0 = 1, 2 = 3}\n[jobs.call]\nduration = 1\n" + CALL + "count = 1"
    if old not in text:
        text = text.replace("{0 = 1, 2 = 3}", "{0 = 1}")
    assert old in text
    with pytest.raises(ValueError, match=words):
        simulate(load_toml(write(text.replace(old, new))))


@pytest.mark.parametrize(
    ("kind", "count"), [("count = 100", 200), ('rate = "100/h"\npattern = "regular"', 200), ("daily = {0 = 0.05}", 360)]
)
def test_traffic_of_any_kind_is_scaled(play, kind, count):
    """``scale`` lets as much more arrive."""
    text = f"days = 0.0416\n[executors.api]\n[jobs.call]\nduration = 1\n{CALL}{kind}\nscale = 2"
    assert len(play(text)[1]) == pytest.approx(count, rel=0.02 if "daily" not in kind else 0.2)


def test_a_scale_of_nothing_is_refused(write):
    """Some traffic has to be left."""
    text = f"[executors.api]\n[jobs.call]\nduration = 1\n{CALL}count = 5\nscale = 0"
    with pytest.raises(ValueError, match=r"number 1: scale must be > 0 and finite, got 0"):
        simulate(load_toml(write(text)))
