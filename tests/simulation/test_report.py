"""The report of a run: what it reads, its plots and its page, and what it refuses."""

import hashlib
import json
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.simulation import Constant, Regular, Scenario, simulate
from ratelimited_executor.simulation.database import SCHEMA
from ratelimited_executor.simulation.report import write_report
from ratelimited_executor.simulation.report.overview import RUN_COUNT_MAX, draw_overview, save_overview
from ratelimited_executor.simulation.report.pieces import POINTS_MAX, Grid, Maxima, Sums
from ratelimited_executor.simulation.report.plots import HistogramPlot, RingPlot, TimePlot, _text_of_marks, make_plots
from ratelimited_executor.simulation.report.reading import Bin, _quantile, read_run, read_runs
from ratelimited_executor.simulation.report.units import duration, number, tick_distance, time_axis_unit, unit_for
from ratelimited_executor.simulation.strategies import Central

ALL_PLOTS = ["throughput", "queue_depth", "start_delay", "sync_interval", "slots", "executing_jobs"]
EVIL = "<script>alert(1)</script> & \"q\" 'a' $x_1$ %{y}"


class Page(HTMLParser):
    """The parts of a page that tests compare."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text, self.rows = [], [], "", {}
        self._key, self._in_cell, self._in_script = None, False, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attributes)))
        self._in_script = tag == "script"
        if tag == "tr":
            self._key = dict(attributes).get("data-key")
        self._in_cell = tag == "td"
        if self._in_cell and self._key:
            self.rows.setdefault(self._key, []).append("")

    def handle_endtag(self, tag):
        self._in_script = False
        if tag == "td":
            self._in_cell = False

    def handle_data(self, data):
        if not self._in_script:
            self.text += data
        if self._in_cell and self._key:
            self.rows[self._key][-1] += data


def page_of(tmp_path, *databases) -> Page:
    (page,) = write_report(databases, tmp_path / "report.html")
    return Page(page.read_text(encoding="utf-8"))


def plots_of(*databases) -> dict:
    return {plot.key: plot for plot in make_plots(read_runs(databases))}


def query(path, text):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(text).fetchall()


def change(path, *texts):
    with closing(sqlite3.connect(path)) as connection, connection:
        for text in texts:
            connection.execute(text)


@pytest.fixture(scope="module")
def run(make_run, tmp_path_factory) -> Path:
    """A run that no test changes."""
    return make_run(tmp_path_factory.mktemp("runs") / "run.sqlite")


def test_page_and_pictures_are_written(run, tmp_path):
    """Page and pictures are written, the page first, and directories are created."""
    written = write_report([run], tmp_path / "deep" / "report.html", pictures=tmp_path / "pictures")
    assert [tmp_path / "deep" / "report.html", *(tmp_path / "pictures" / f"{key}.png" for key in ALL_PLOTS)] == written
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n") for path in written[1:])


def test_notes_of_runs_are_shown(tmp_path):
    """The page says what the terminal does of figures that mislead; of several runs, which was the first to have a note."""

    class Idle(Scenario):
        workers: int = 0

        def setup(self, sim):
            executor = sim.executor("<api>", max_concurrency=self.workers)
            sim.arrive(Regular("1/min"), executor, sim.job("call", Constant(1)))

    idle, busy = tmp_path / "idle.sqlite", tmp_path / "busy.sqlite"
    (note,) = simulate(Idle(), days=0.01, database=idle).summary.notes
    scenario = Idle()
    scenario.workers = 1
    assert () == simulate(scenario, days=0.01, database=busy).summary.notes
    assert f"Note: {note}." in page_of(tmp_path, idle).text
    assert "Note" not in page_of(tmp_path, busy).text
    label = read_runs([busy, idle])[1].label
    assert f"Note: {note} (with {label})." in page_of(tmp_path, busy, idle).text


def test_compared_runs_are_drawn_beside_each_other(run, make_run, tmp_path):
    """The picture of all has a row for each run, with its own lines and highest value, on axes that the rows share."""
    other = make_run(tmp_path / "other.sqlite", seed=2)
    written = write_report([run, other], tmp_path / "report.html", pictures=tmp_path)
    assert "overview.png" == written[1].name and written[1].read_bytes().startswith(b"\x89PNG")

    plots, names = make_plots(read_runs([run, other])), [each.label for each in read_runs([run, other])]
    shown = [plot for plot in plots if plot.key in ("queue_depth", "throughput")]
    for plot in shown:
        plot.lines[1].y[0] += 1_000  # so that the runs differ
    figure = Figure()
    draw_overview(figure, shown, names)
    cells = figure.get_axes()
    assert names == [axes.get_ylabel() for axes in cells[::2]]
    for column in (0, 1):
        upper, lower = cells[column], cells[column + 2]
        assert upper.get_ylim() == lower.get_ylim()
        drawn = [axes.lines[0].get_ydata().tolist() for axes in (upper, lower)]
        assert [line.y for line in shown[column].lines[:2]] == drawn
        assert [f"at most {max(values):,.0f}" for values in drawn] == [
            axes.texts[0].get_text() for axes in (upper, lower)
        ]


def test_one_run_or_too_many_have_no_picture_of_all(run, tmp_path):
    """With one run there is nothing to compare, and with too many the rows could not be read."""
    plots = make_plots(read_runs([run]))
    assert save_overview(plots, ["one"], tmp_path) is None
    assert save_overview(plots, [f"run {number}" for number in range(RUN_COUNT_MAX + 1)], tmp_path) is None
    assert save_overview([], ["one", "two"], tmp_path) is None


def test_page_is_complete_and_asks_no_host(run, tmp_path):
    """The page has one copy of plotly, refers to no host, and has language, title and headings."""
    page = page_of(tmp_path, run)
    assert ("html", {"lang": "en"}) in page.attributes
    assert page.tags.count("title") == page.tags.count("h1") == 1
    assert "Run\n" in page.text and "StoredRun" not in page.text
    assert all({"scope"} <= set(attributes) for tag, attributes in page.attributes if tag == "th")
    assert [] == [found for found in page.attributes if re.match("(https?:)?//", found[1].get("src", ""))]
    assert {"icon"} == {attributes["rel"] for tag, attributes in page.attributes if tag == "link"}
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("plotly.js v") == 1
    assert text.count('class="plotly-graph-div"') == len(ALL_PLOTS)


def test_summary_tells_what_the_tables_hold(run, tmp_path):
    """Each number of the summary equals that of a query."""
    page = page_of(tmp_path, run)
    done, failed, expired = query(run, "SELECT sum(done_jobs), sum(failed_jobs), sum(expired_jobs) FROM step")[0]
    assert [[f"{done:,}"], [f"{failed:,}"], [f"{expired:,}"]] == [
        page.rows[key] for key in ("done_jobs", "failed_jobs", "expired_jobs")
    ]
    depths = [depth for (depth,) in query(run, "SELECT sum(queue_depth) FROM step GROUP BY time")]
    assert [f"{max(depths):,}"] == page.rows["queue_depth_max"]
    assert [number(sum(depths) / len(depths))] == page.rows["queue_depth_mean"]
    ((most,),) = query(run, "SELECT max(most) FROM quantiles WHERE metric = 'start_delay'")
    assert [format_duration(most)] == page.rows["start_delay_most"]
    assert {"start_delay_p50", "start_delay_p90", "start_delay_p99", "sync_delay_p99"} <= set(page.rows)
    assert ["12"] == page.rows["lock_conflicts"]
    assert ["4"] == page.rows["never_synced"]
    for text in ("Seed 1", "10h", "2,880 times real time", "max_concurrency", "2026-01-05 00:00:00 UTC", "finished"):
        assert text in page.text, text


def test_summary_has_the_figures_of_the_terminal(tmp_path):
    """The report shows the queue depth between steps, which the table of steps does not have."""

    class Rush(Scenario):
        def setup(self, sim):
            sim.executor("api", rate=10).schedule_many(sim.job("call", 0.1), range(3000))

    database = tmp_path / "run.sqlite"
    result = simulate(Rush(), days=0.02, step=600, database=database)
    total = result.summary.total
    ((at_ends,),) = query(database, "SELECT max(queue_depth) FROM step")
    rows = page_of(tmp_path, database).rows
    assert (at_ends, total.queue_depth_most > 2000) == (0, True)
    assert [f"{total.queue_depth_most:,}"] == rows["queue_depth_max"]
    assert [number(total.queue_depth_mean)] == rows["queue_depth_mean"]
    assert [format_duration(total.start_delay.p99)] == rows["start_delay_p99"]
    assert [format_duration(total.start_delay.most)] == rows["start_delay_most"]
    run = read_run(database)
    assert run.wall_seconds == result.wall_seconds


def test_sync_delays_are_those_of_the_terminal(tmp_path):
    """Sync delays in the report equal those on the terminal to the last digit."""
    database = tmp_path / "run.sqlite"
    result = simulate(Central(accounts=60), days=1.5, seed=1, database=database)
    (population,) = result.summary.populations.values()
    found, meant = read_run(database).sync_delay, population.sync_delay
    assert (found.p50, found.p90, found.p99, found.most) == (meant.p50, meant.p90, meant.p99, meant.most)


def test_figures_of_an_earlier_end_are_not_shown(make_run, tmp_path):
    """The summary of an unfinished run, or a damaged one, is not shown."""
    summary = json.dumps({"queue_depth_most": 123_456, "queue_depth_mean": 7.5, "start_delay": {"count": 1}})
    ended = read_run(make_run(tmp_path / "ended.sqlite", summary=summary))
    assert (ended.depth_max, ended.depth_mean) == (123_456, 7.5)
    assert ended.start_delay.p99 is not None
    for number_, properties in enumerate(
        ({"status": "running", "summary": summary}, {"summary": "{no json"}, {"summary": "[1]"})
    ):
        assert read_run(make_run(tmp_path / f"{number_}.sqlite", **properties)).depth_max < 123_456


def test_flat_plot_is_left_out_and_named(make_run, tmp_path):
    """A plot that is 0 everywhere is replaced by a sentence."""
    path = make_run(tmp_path / "run.sqlite")
    change(path, "UPDATE step SET queue_depth = 0")
    files = write_report([path], tmp_path / "page.html", pictures=tmp_path / "plots")
    assert "queue_depth.png" not in {file.name for file in files}
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "Not plotted, being 0 in every step: queue depth." in page.text


def test_text_of_users_is_never_markup(make_run, tmp_path):
    """Names given by users are never markup."""
    path = make_run(tmp_path / "evil.sqlite", scenario=EVIL, status=EVIL, version=EVIL, seed=3)
    quoted = EVIL.replace("'", "''")
    change(path, f"UPDATE source SET name = '{quoted}' || id", f"UPDATE event SET name = '{quoted}'",
           f"UPDATE slot SET name = '{quoted}'",
           f"UPDATE run SET value = json_object('{quoted}', '{quoted}') WHERE name = 'parameters'")  # fmt: skip
    plain = page_of(tmp_path, make_run(tmp_path / "plain.sqlite"))
    written = write_report([path], tmp_path / "evil.html", pictures=tmp_path)
    text = written[0].read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert text.count("</script>") == plain.tags.count("script")
    assert EVIL in Page(text).text
    assert len(written) == 1 + len(ALL_PLOTS)


def test_names_that_matplotlib_would_hide_or_lack_are_drawn(make_run, tmp_path):
    """Labels with a leading underscore, or letters that the font lacks, are drawn."""
    path = make_run(tmp_path / "run.sqlite")
    change(path, "UPDATE source SET name = '_' || name || ' 銀行'")
    assert len(write_report([path], tmp_path / "page.html", pictures=tmp_path)) == 7


@pytest.mark.parametrize(
    ("status", "words"),
    [("interrupted", "was interrupted"), ("failed", "failed"), ("running", "still goes on, or was killed")],
)
def test_run_that_did_not_finish_says_so(make_run, tmp_path, status, words):
    """A notice says what happened to an unfinished run, and how far it came."""
    path = make_run(tmp_path / "run.sqlite", status=status, days=1)
    page = page_of(tmp_path, path)
    assert any(attributes.get("role") == "alert" for _, attributes in page.attributes)
    assert words in page.text
    assert "10h of 1d (41.7 %)" in page.text


def test_killed_run_is_read_from_its_journal_and_left_as_it_is(make_run, tmp_path):
    """A killed run is read with its journal, and neither file changes."""
    path = make_run(tmp_path / "run.sqlite", status="running", wall_seconds=None)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE step SET done_jobs = 7")
        connection.commit()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", tmp_path / f"killed.sqlite{suffix}")
    killed = [tmp_path / "killed.sqlite", tmp_path / "killed.sqlite-wal"]
    before = [hashlib.sha256(file.read_bytes()).digest() for file in killed]
    assert read_run(killed[0]).ends["done"] == 7 * 1200
    assert before == [hashlib.sha256(file.read_bytes()).digest() for file in killed]


def test_reading_creates_nothing(make_run, tmp_path):
    """Reading creates no files, not even those of a journal."""
    (tmp_path / "runs").mkdir()
    path = make_run(tmp_path / "runs" / "a b#1?%.sqlite")
    change(path, "PRAGMA journal_mode = WAL")
    before = path.read_bytes(), path.stat().st_mtime_ns
    write_report([path], tmp_path / "report.html")
    assert [path] == list((tmp_path / "runs").iterdir())
    assert before == (path.read_bytes(), path.stat().st_mtime_ns)


def test_run_that_goes_on_is_read(make_run, tmp_path):
    """A run can be read while its writer has an open transaction, without its rows."""
    path = make_run(tmp_path / "run.sqlite", status="running")
    change(path, "PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(path)) as writer:
        before = writer.execute("SELECT sum(done_jobs) FROM step").fetchone()[0]
        writer.execute("UPDATE step SET done_jobs = 0")
        assert before == read_run(path).ends["done"]


def test_plots_without_data_are_left_out(make_run, tmp_path):
    """Plots without data are left out."""
    path = make_run(tmp_path / "run.sqlite", keys=0)
    assert ["throughput", "queue_depth", "start_delay", "executing_jobs"] == list(plots_of(path))
    page = page_of(tmp_path, path)
    assert not {"never_synced", "lock_conflicts", "sync_delay_p50"} & set(page.rows)
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as connection, connection:
        connection.executescript(SCHEMA)
        connection.execute("INSERT INTO run VALUES ('format', 1)")
    assert {} == plots_of(tmp_path / "empty.sqlite")
    assert page_of(tmp_path, tmp_path / "empty.sqlite").rows["done_jobs"] == ["0"]


def test_long_run_keeps_spikes_and_sums(make_run, tmp_path):
    """A long run has at most 2,000 points per line, and keeps spikes and sums."""
    path = make_run(tmp_path / "week.sqlite", steps=10_080, spike=1_000_000, keys=0)
    plots = plots_of(path)
    assert all(len(line.x) == 1680 for plot in plots.values() for line in plot.lines if plot.key != "start_delay")
    assert all(len(line.x) <= 1680 for line in plots["start_delay"].lines)
    everything, fetch, _ = plots["queue_depth"].lines
    assert max(fetch.y) == 1_000_000
    assert fetch.x[fetch.y.index(max(fetch.y))] == pytest.approx(1.00417)  # the spike is in the step after day 1
    assert max(everything.y) >= 1_000_000
    ((done,),) = query(path, "SELECT sum(done_jobs) FROM step")
    assert done == pytest.approx(6 * sum(plots["throughput"].lines[0].y), rel=1e-5)
    assert "Each point stands for 6m: the maximum at the ends of its steps" in plots["queue_depth"].caption
    assert max(query(path, "SELECT max(p99) / 60 FROM quantiles")[0]) == pytest.approx(
        max(y for line in plots["start_delay"].lines for y in line.y if y is not None), rel=1e-3
    )


def test_each_run_has_its_line_and_column(make_run, run, tmp_path):
    """A comparison has a line and a column for each run, with its differences marked."""
    other = make_run(tmp_path / "other.sqlite", seed=2, slots=12, outage=False)
    plots = plots_of(run, other)
    assert ALL_PLOTS == list(plots)
    lines = plots["throughput"].lines
    assert ["bank sync, seed 1", "bank sync, seed 2"] == [line.name for line in lines if line.is_shown]
    assert len(lines) == 6
    assert len({line.colour for line in lines}) == 6
    assert {"p99"} == {line.name.split()[0] for line in plots["start_delay"].lines if line.is_shown}
    assert [24, 12] == [len(ring.keys) for ring in plots["slots"].rings]
    texts = [mark.text for mark in plots["throughput"].marks]  # of the only run with events
    assert [True, True] == [text.startswith(f"outage {what} (bank") for text, what in zip(texts, ("begins", "ends"))]
    page = page_of(tmp_path, run, other)
    assert all(len(cells) == 2 for cells in page.rows.values())
    assert "Comparison of 2 simulations" in page.text
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search('class="differs"><th scope="row">Seed', text)
    assert not re.search('class="differs"><th scope="row">Scenario', text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["batch is out", "mail is out"], "batch, mail are out"),
        (["a is back", "note", "b is back"], "a, b are back, note"),
        (["payments of customers is out", "a mark of its own"], "payments of custom… and 1 more"),
    ],
)
def test_neighbouring_events_share_a_text(names, text):
    """Two outages of an hour are named both; if they are too long, it says that there are more."""
    found = _text_of_marks(names)
    assert (text, True) == (found, len(found) <= 30)


def test_many_executors_are_summed_up(make_run, tmp_path):
    """Many executors are summed up, and the caption says what is left out."""
    path = make_run(tmp_path / "run.sqlite", steps=5, keys=0, executors=30)
    plots = plots_of(path)
    assert ["all executors"] == [line.name for line in plots["queue_depth"].lines]
    assert "those of 30 executors are left out" in plots["queue_depth"].caption
    assert len(plots["start_delay"].lines) == 3 * 12
    assert "The 12 of 30 executors with the longest delays are shown." in plots["start_delay"].caption


def test_labels_of_runs_differ(make_run, tmp_path):
    """Labels of runs differ by as little as needed: scenario, seed, file or path."""
    (tmp_path / "again").mkdir()
    for name, values in {
        "a.sqlite": {}, "b.sqlite": {}, "c.sqlite": {"seed": 2}, "d.sqlite": {"scenario": "other"},
        "again/a.sqlite": {},
    }.items():  # fmt: skip
        make_run(tmp_path / name, steps=2, keys=0, **values)
    paths = [tmp_path / name for name in ("a.sqlite", "b.sqlite", "c.sqlite", "d.sqlite", "again/a.sqlite")]
    labels = [run.label for run in read_runs([*paths, paths[3], paths[3]])]
    assert len(set(labels)) == 7
    assert "bank sync, seed 2" == labels[2]
    assert "bank sync, seed 1, b.sqlite" == labels[1]
    assert ["other"] == [run.label for run in read_runs([paths[3]])]


def test_events_are_marked_and_crowded_texts_are_joined(make_run, tmp_path):
    """Each event is marked; close ones share a text, and too many have none."""
    path = make_run(tmp_path / "run.sqlite", outage=False)
    change(path, "INSERT INTO event VALUES (3600, 'a'), (3601, 'b'), (18000, 'c')")
    assert [(1, "a, b"), (5, "c")] == [
        (round(mark.x), mark.text) for mark in plots_of(path)["throughput"].marks if mark.text
    ]
    assert len(plots_of(path)["throughput"].marks) == 3
    change(path, *(f"INSERT INTO event VALUES ({1800 * n}, 'more')" for n in range(19)))
    assert {""} == {mark.text for mark in plots_of(path)["throughput"].marks}


def test_histogram_has_the_bins_and_tells_of_keys_never_synced(run):
    """The histogram has rising bars in a fitting unit, as parts of all, and names keys never synced."""
    plot = plots_of(run)["sync_interval"]
    assert isinstance(plot, HistogramPlot)
    assert plot.is_log
    (bars,) = plot.bars
    assert sum(bars.percents) == pytest.approx(100, rel=1e-4)
    assert bars.lows[0] == 1  # hour
    assert bars.highs[:-1] == pytest.approx(bars.lows[1:])
    assert 1 < plot.begin < 2
    assert [2, 5, 10, 20] == plot.log_ticks
    assert "Never synced in accounts: 4 of 200 keys (2 %)." in plot.caption


def test_fine_bins_are_joined(make_run, tmp_path):
    """Fine bins are joined into visible bars without losing an interval, and a rare one does not widen the axis."""
    path = make_run(tmp_path / "run.sqlite")
    change(path, "DELETE FROM histogram WHERE metric = 'sync_interval'")
    with closing(sqlite3.connect(path)) as connection, connection:
        bins = [(1e-6 * 1.02 ** (n - 1), 1e-6 * 1.02**n, n % 7 * 100) for n in range(1050, 1250)]
        connection.executemany(
            "INSERT INTO histogram VALUES (99, 'sync_interval', ?, ?, ?)",
            [(0, 1e-6, 1), *(each for each in bins if each[2])],
        )
    plot = plots_of(path)["sync_interval"]
    (bars,) = plot.bars
    assert 60 < len(bars.lows) < 82
    assert sum(bars.percents) == pytest.approx(100, rel=1e-3)
    assert bars.highs[1:-1] == pytest.approx(bars.lows[2:], rel=1e-4)
    counts = [int(text.rpartition(": ")[2].split()[0].replace(",", "")) for text in bars.texts]
    assert sum(counts) == 1 + sum(count for _, _, count in bins)
    unit = 3600 if "(hours" in plot.x_label else 60
    assert plot.begin == pytest.approx(bins[1][0] / unit, rel=0.05)


def test_line_is_broken_where_nothing_started(make_run, tmp_path):
    """A line is interrupted where nothing started, and a single point has a marker."""
    path = make_run(tmp_path / "run.sqlite", keys=0, executors=1, outage=False)
    change(path, "DELETE FROM quantiles WHERE time > 6000 AND time < 12000 OR time > 12000 AND time < 20000")
    line = plots_of(path)["start_delay"].lines[0]
    assert line.has_points
    gaps = [place for place, y in enumerate(line.y) if y is None]
    assert [100, 102] == gaps
    assert line.x == sorted(line.x)
    assert len(write_report([path], tmp_path / "page.html", pictures=tmp_path)) == 4  # no queue, no plot of it


@pytest.mark.parametrize(("low", "high"), [(0, 0.5), (0, float("inf"))])
def test_bins_at_the_ends_are_drawn(make_run, tmp_path, low, high):
    """A bin from 0, or without an end, has a place on a logarithmic axis."""
    path = make_run(tmp_path / "run.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO histogram VALUES (99, 'sync_interval', ?, ?, 5)", (low, high))
        connection.execute("INSERT INTO histogram VALUES (99, 'sync_interval', 1e6, 9e999, 5)")
    (bars,) = plots_of(path)["sync_interval"].bars
    assert all(0 < one < other < float("inf") for one, other in zip(bars.lows, bars.highs, strict=True))
    assert len(write_report([path], tmp_path / "page.html", pictures=tmp_path)) == 7


def test_rings_have_a_segment_for_each_slot(run):
    """A ring has a segment for each slot, as large as its number of keys."""
    plot = plots_of(run)["slots"]
    assert isinstance(plot, RingPlot)
    (ring,) = plot.rings
    assert [keys for (keys,) in query(run, "SELECT keys FROM slot ORDER BY slot")] == ring.keys
    assert ["24 slots", f"{sum(ring.keys):,} keys"] == ring.centre


@pytest.mark.parametrize("weights", ["1.0", "0.0"])
def test_slots_of_one_weight_and_without_keys_are_drawn(make_run, tmp_path, weights):
    """Slots of equal weight, and slots without keys, can be drawn."""
    path = make_run(tmp_path / "run.sqlite")
    change(path, f"UPDATE slot SET weight = {weights}, keys = 0")
    assert len(write_report([path], tmp_path / "page.html", pictures=tmp_path)) == 7


class TestPieces:
    """The grid that divides a span into pieces of steps."""

    @pytest.mark.parametrize(("span", "step"), [(604_800, 60), (600, 60), (1e7, 0.1), (0, 60), (59, 60), (119_999, 60)])
    def test_pieces_cover_the_span(self, span, step):
        """Pieces cover the span with no more points than allowed, and with rising ends."""
        grid = Grid.of(span, step)
        assert 1 <= grid.pieces <= POINTS_MAX
        assert len(grid.ends) == grid.pieces
        assert grid.ends == sorted(grid.ends)
        assert grid.ends[-1] == span
        assert grid.step_at(span) == grid.steps - 1

    def test_a_step_belongs_to_the_time_of_its_end(self):
        """A step belongs to the time of its end, in spite of rounding errors."""
        grid = Grid.of(100, 0.1)
        assert [0, 1, 2, 2, 3] == [grid.step_at(time) for time in (0.1, 0.2, 0.1 + 0.2, 0.25, 0.4)]

    def test_level_is_zero_in_steps_without_a_row(self):
        """A piece has the maximum of its steps, and the mean counts steps without a row as 0."""
        levels = Maxima(Grid.of(6000, 1))  # pieces of 3 steps
        levels.add(1, 5)
        levels.add(2, 3)
        levels.add(8, 2)
        assert [5, 0, 2, 0, 0] == levels.values[:5]
        assert levels.mean == pytest.approx((5 + 3 + 2) / 6000)
        assert levels.most == 5

    def test_rate_of_a_short_last_piece_is_of_its_own_length(self):
        """The rate of a short last piece is computed by its own length."""
        sums = Sums(Grid.of(90, 60))
        sums.add(0, 10)
        sums.add(1, 10)
        assert [10, 20] == sums.per_minute()


def test_quantiles_are_read_from_bins():
    """Quantiles are interpolated within a bin, and never exceed the greatest value."""
    bins = [Bin(0, 1, 50), Bin(1, 2, 40), Bin(2, float("inf"), 10)]
    assert [0.5, 1, 2, 3] == [pytest.approx(_quantile(bins, part, 4)) for part in (0.25, 0.5, 0.9, 0.95)]
    assert _quantile(bins, 0.95, None) == 2
    assert _quantile(bins, 0.5, 0.7) == 0.7


def test_numbers_and_times_are_readable():
    """Numbers and times are formatted in a fitting unit."""
    texts = ["0 s", "4.2 ms", "12.3 s", "1m", "3m20s", "1h", "5h12m", "1d", "7d3h", "-1 s"]
    seconds = [0, 0.0042, 12.34, 59.99, 200, 3600, 18720, 86399.9, 7 * 86400 + 10800, -1]
    assert texts == [duration(value) for value in seconds]
    assert ["1,234,567", "3.14", "inf"] == [number(value) for value in (1234567, 3.14159, float("inf"))]
    assert ["ms", "s", "min", "h", "d"] == [unit_for(value).sign for value in (0.5, 100, 3600, 86400, 864000)]
    assert ["min", "h", "d"] == [time_axis_unit(value).sign for value in (3600, 86400, 604800)]
    assert all(length / tick_distance(length) <= 14 for length in (0.1, 7, 14, 72, 180, 365, 3650))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda path: None, FileNotFoundError, "there is no file .*run.sqlite.*: give the path"),
        (lambda path: path.write_text("a text, and no database " * 100), ValueError, "run.sqlite.* is not a database"),
        (lambda path: path.write_bytes(b""), ValueError, "run.sqlite.* is not a database"),
        (lambda path: path.mkdir(), ValueError, "run.sqlite.* is not a database"),
        (
            lambda path: change(path, "CREATE TABLE other (a)"),
            ValueError,
            "run.sqlite.* is not a database of a simulation",
        ),
    ],
    ids=["missing", "text", "empty", "directory", "another database"],
)
def test_what_is_no_run_is_refused(tmp_path, make, error, words):
    """A file that is not a run is refused with its name and what to do, and nothing is written."""
    path = tmp_path / "run.sqlite"
    make(path)
    with pytest.raises(error, match=words):
        write_report([path], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == ([path] if path.exists() else [])


@pytest.mark.parametrize("found", ["2", "'x'", "NULL"])
def test_another_format_is_refused(make_run, tmp_path, found):
    """A run of another format is refused with the version that wrote it."""
    path = make_run(tmp_path / "run.sqlite", steps=2, version="9.8.7")
    change(path, f"UPDATE run SET value = {found} WHERE name = 'format'")
    with pytest.raises(
        ValueError, match=r"run\.sqlite.* has the format .*, and this version reads 1: .*9\.8\.7, or simulate"
    ):
        write_report([path], tmp_path / "page.html")


def test_damaged_run_is_refused(make_run, tmp_path):
    """A run without one of its tables is refused as damaged."""
    path = make_run(tmp_path / "run.sqlite", steps=2)
    change(path, "DROP TABLE slot")
    with pytest.raises(ValueError, match=r"run\.sqlite.*damaged \(no such table: slot\)"):
        write_report([path], tmp_path / "page.html")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE quantiles SET p50 = 9e999", r"quantiles\.p50 holds 'inf'"),
        ("UPDATE step SET done_jobs = 9223372036854775807", r"step\.done_jobs holds '9223372036854775807'"),
        ("UPDATE step SET queue_depth = -9223372036854775808", r"step\.queue_depth holds '-9223372036854775808'"),
        ("UPDATE step SET executing_jobs = 'noon'", r"step\.executing_jobs holds 'noon'"),
        ("UPDATE quantiles SET p99 = x'00'", r"quantiles\.p99 holds"),
        ("UPDATE histogram SET high = 'far'", "damaged"),
        ("UPDATE slot SET begin = -1e300", r"slot\.begin holds '-1e\+300'"),
    ],
)
def test_a_value_that_no_simulation_writes_is_refused(make_run, tmp_path, statement, words):
    """An impossible value is refused with the file and the column, and no page is written."""
    path = make_run(tmp_path / "run.sqlite", steps=2)
    change(path, statement)
    with pytest.raises(ValueError, match=rf"run\.sqlite.*{words}"):
        write_report([path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_one_path_is_no_sequence(run, tmp_path):
    """A single path, or none, is refused."""
    for path in (run, str(run)):
        with pytest.raises(TypeError, match="databases must be a sequence of paths"):
            write_report(path, tmp_path / "page.html")
    with pytest.raises(ValueError, match="one path at least"):
        write_report([], tmp_path / "page.html")


@pytest.mark.parametrize("module", ["plotly", "matplotlib"])
def test_missing_extra_is_named(run, tmp_path, monkeypatch, module):
    """A missing extra is reported before anything is written, and only if it is needed."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}.*pip install 'ratelimited-executor\[simulate\]'"):
        write_report([run], tmp_path / "page.html", pictures=tmp_path / "pictures")
    assert [] == list(tmp_path.iterdir())
    if module == "matplotlib":
        assert [tmp_path / "page.html"] == write_report([run], tmp_path / "page.html")


def test_details_that_are_no_json_are_shown_as_they_are(make_run, tmp_path):
    """Bad details are shown as they are."""
    path = make_run(tmp_path / "run.sqlite", parameters="no {json", start=1e300, days="x", wall_seconds=0)
    change(path, "UPDATE run SET value = '?' WHERE name = 'step'")
    page = page_of(tmp_path, path)
    assert "no {json" in page.text
    assert "1e+300 s after 1970" in page.text


def test_time_axis_fits_the_span(make_run, tmp_path):
    """The time axis is in minutes, hours or days, as its label says."""
    labels = []
    for name, step in (("a", 1), ("b", 60), ("c", 3600)):
        plot = plots_of(make_run(tmp_path / name, steps=600, step=step, keys=0))["throughput"]
        assert isinstance(plot, TimePlot)
        labels.append(plot.x_label)
    assert [f"simulated time ({unit})" for unit in ("minutes", "hours", "days")] == labels
