"""A Parquet file is read as a CSV file with the same content: the same arrivals, the same rows refused."""

import csv
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.simulation import load_toml, parquet, read_csv, read_parquet, read_recording, simulate

DATA = Path(__file__).parents[2] / "examples" / "data"
NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def arrow():
    """The package pyarrow, which not every Python has wheels of."""
    return pytest.importorskip("pyarrow", reason="the extra parquet is not installed")


@pytest.fixture
def write(arrow, tmp_path):
    """Return a function that writes a Parquet file of columns, and returns its path."""
    from pyarrow import parquet as library

    def write(name="trace.parquet", *, group=None, **columns):
        path = tmp_path / name
        library.write_table(arrow.table(columns), path, row_group_size=group)
        return path

    return write


def refusal(path, **columns) -> str:
    """Return the message with which a file is refused."""
    with pytest.raises(ValueError, match=r"^") as caught:
        read_parquet(path, **columns)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


# What is read.


def test_shipped_table_is_the_same_in_both_formats(write, arrow):
    """A file with the content of a CSV file gives an equal recording, with keys and durations."""
    with (DATA / "arrivals.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    path = write(
        time=[float(row["time"]) for row in rows],
        client=arrow.array([row["client"] for row in rows]).dictionary_encode(),
        seconds=[float(row["seconds"]) for row in rows],
        group=100,
    )
    columns = {"time": "time", "key": "client", "duration": "seconds"}

    assert (
        read_csv(DATA / "arrivals.csv", **columns) == read_parquet(path, **columns) == read_recording(path, **columns)
    )


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "+05:30"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_and_zone(write, arrow, unit, zone):
    """A timestamp is an instant, whatever its unit and the zone in which it is shown; without a zone it is in UTC."""
    moments = [NOON + timedelta(seconds=second) for second in (5, 0, 2)]
    values = arrow.array([each.replace(tzinfo=None) for each in moments], arrow.timestamp(unit))
    found = read_parquet(write(at=values.cast(arrow.timestamp(unit, zone))), time="at")

    assert ([0, 2, 5], NOON.timestamp(), 0) == (list(found.times), found.begin, found.skipped)


@pytest.mark.parametrize(
    ("values", "times"),
    [
        ([3, 1, 2], [0, 1, 2]),
        ([3.5, 1.25, 2], [0, 0.75, 2.25]),
        ([Decimal("3.5"), Decimal("1.25")], [0, 2.25]),
        (["3.5", "1970-01-01T00:00:01Z"], [0, 2.5]),
        ([date(2024, 2, 1), date(2024, 1, 31)], [0, 86_400]),
    ],
)
def test_times_that_are_no_timestamps(write, values, times):
    """Times may be numbers of seconds, texts as in CSV files, or dates, which are midnights in UTC."""
    found = read_parquet(write(at=values), time="at")
    assert times == list(found.times)


def test_dates_in_milliseconds(write, arrow):
    """Dates that are kept in milliseconds are the same dates."""
    found = read_parquet(write(at=arrow.array([date(1970, 1, 3)], arrow.date64())), time="at")
    assert 2 * 86_400 == found.begin


def test_format_of_texts(write):
    """Texts may have a format, as in CSV files, and other types cannot."""
    path = write(at=["31.01.2024 12:00:03", "31.01.2024 12:00:00"], when=[1, 2])
    found = read_recording(path, time="at", time_format="%d.%m.%Y %H:%M:%S")
    assert ([0, 3], NOON.timestamp()) == (list(found.times), found.begin)
    assert "time_format must be given for columns of texts only: leave it out" == refusal(
        path, time="when", time_format="%Y"
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_with_a_unit(write, arrow, unit):
    """Durations of the type duration are seconds, whatever their unit."""
    took = arrow.array([timedelta(seconds=2), timedelta(seconds=90)], arrow.duration(unit))
    assert [2, 90] == list(read_parquet(write(at=[1, 2], took=took), time="at", duration="took").durations)


def test_durations_from_ends(write, arrow):
    """Ends may be timestamps as times may be, and are infinitely late where there is none."""
    path = write(begin=[NOON, NOON], end=[NOON + timedelta(seconds=7), None])
    assert [7, float("inf")] == list(read_parquet(path, time="begin", end="end").durations)


def test_keys_are_texts(write, arrow):
    """A key is taken as its text, and a missing one is empty, as in a CSV file."""
    path = write(at=[1, 2, 3], number=[7, None, 9], raw=[b"a\xff", b"b", None], text=["x", "", None])
    found = {name: read_parquet(path, time="at", key=name).keys for name in ("number", "raw", "text")}
    assert {"number": ["7", "", "9"], "raw": ["a\N{REPLACEMENT CHARACTER}", "b", ""], "text": ["x", "", ""]} == found


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("timestamp[ns]", [1_700_000_000_000_000_001, None], ["2023-11-14 22:13:20.000000001", ""]),
        ("timestamp[us]", [1_500_000], ["1970-01-01 00:00:01.500000"]),
        ("time64[ns]", [1], ["00:00:00.000000001"]),
        ("duration[ns]", [1_700_000_000_000_000_001], ["1700000000000000001"]),
        ("date32[day]", [1, None], ["1970-01-02", ""]),
    ],
)
def test_times_as_keys_are_texts(write, arrow, kind, values, texts):
    """A key that is a time is the text that pyarrow writes into a CSV file, to the nanosecond."""
    from pyarrow import csv as library

    column = arrow.array(values, kind)
    path = write(at=[1.0] * len(values), who=column)
    found = read_parquet(path, time="at", key="who").keys
    assert texts == found
    library.write_csv(arrow.table({"at": [1.0] * len(values), "who": column}), path.with_suffix(".csv"))
    assert found == read_csv(path.with_suffix(".csv"), time="at", key="who").keys


def test_columns_of_unusual_names(write, arrow):
    """A name with a dot is that of a column, and not of a part of one; one column may serve twice."""
    path = write(**{"a": [{"b": 1}] * 2, "a.b": [5, 6]})
    found = read_parquet(path, time="a.b", key="a.b", duration="a.b")
    assert ([0, 1], ["5", "6"], [5, 6]) == (list(found.times), found.keys, list(found.durations))


@pytest.mark.parametrize("name", ["trace.PARQUET", "trace.pq", "trace"])
def test_file_is_known_by_its_suffix_or_how_it_begins(write, name):
    """Any file that begins as a Parquet file is one, unless its suffix says something else."""
    assert [0, 1] == list(read_recording(write(name, at=[4, 5]), time="at").times)


instants = st.datetimes(
    datetime(1970, 1, 2), datetime(2199, 1, 1), timezones=st.integers(-840, 840).map(lambda n: timezone(timedelta(minutes=n)))
)  # fmt: skip
rows = st.tuples(st.none() | instants, st.none() | st.floats(0, 1e6), st.none() | st.sampled_from(["a", "b,c", 'd"']))


@given(st.lists(rows, min_size=11, max_size=60))
def test_same_rows_as_in_a_csv_file(arrow, tmp_path_factory, rows):
    """Of random rows, some of them incomplete, both formats read the same arrivals, to the last bit, or none."""
    from pyarrow import parquet as library

    place = tmp_path_factory.mktemp("both")
    times, took, keys = zip(*rows, strict=True)
    schema = arrow.schema([("at", arrow.timestamp("us", "UTC")), ("took", arrow.float64()), ("who", arrow.string())])
    library.write_table(arrow.table({"at": times, "took": took, "who": keys}, schema=schema), place / "t.parquet")
    with (place / "t.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["at", "took", "who", "row"])  # so that no line is blank, as no row of the other one is
        write.writerows([[at and at.isoformat(), *rest, number] for number, (at, *rest) in enumerate(rows)])

    def outcome(path):
        try:
            return read_recording(path, time="at", duration="took", key="who")
        except ValueError as error:
            return str(error).removeprefix(f"{path}: ")[:60]

    assert outcome(place / "t.csv").__class__ is outcome(place / "t.parquet").__class__
    if not isinstance(outcome(place / "t.csv"), str):
        assert outcome(place / "t.csv") == outcome(place / "t.parquet")


def test_scenario_of_a_parquet_file(write, tmp_path):
    """In a scenario file, arrivals and a sample of durations may come from a Parquet file."""
    write(at=[0.0, 10.0, 20.0], client=["a", "b", "a"], took=[1.0, 2.0, 3.0])
    (tmp_path / "replay.toml").write_text(
        "days = 0.001\n[executors.api]\nrate = 10\n[jobs.call]\nduration = 'recorded'\n"
        "[jobs.other]\nduration = {sample = 'trace.parquet', time = 'at', duration = 'took'}\n"
        "[[arrivals]]\nexecutor = 'api'\njob = 'call'\nlog = 'trace.parquet'\ntime = 'at'\nkey = 'client'\nduration = 'took'\n"
        "[[arrivals]]\nexecutor = 'api'\njob = 'other'\ncount = 5\n"
    )
    kinds = simulate(load_toml(tmp_path / "replay.toml")).summary.jobs_by_kind

    assert (3, 2.0, 3.0) == (kinds["call"].execution_time.count, kinds["call"].execution_time.mean, 3.0)
    assert {"a", "b"} == set(kinds["call"].wait_by_key)
    assert 5 == kinds["other"].execution_time.count


# What is refused.


def test_what_to_install_is_said(tmp_path, monkeypatch):
    """Without pyarrow the error names the file and the extra."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(parquet.PARQUET_MAGIC)
    with pytest.raises(ModuleNotFoundError, match=r"a\.parquet is a .* pip install 'ratelimited-executor\[parquet\]'"):
        read_recording(tmp_path / "a.parquet", time="at")


def test_unknown_column_is_refused(write):
    """An unknown column is refused with the existing ones, and so is a missing name."""
    path = write(a=[1], b=[2])
    assert "key must name a column, one of 'a', 'b', got 'no'" == refusal(path, time="a", key="no")
    with pytest.raises(ValueError, match=r"time must name the column of the times, .* one of 'a', 'b'"):
        read_recording(path, key="b")


@pytest.mark.parametrize(
    ("argument", "values", "message"),
    [
        ("time", [[1]], "time must name a column of timestamps, dates, numbers or texts, and 'x' is of the type list"),
        ("time", [True], "time must .* of the type bool: give another column"),
        ("time", [timedelta(1)], "time must .* of the type duration"),
        ("duration", [NOON], "duration must name a column of durations, numbers or texts, .* of the type timestamp"),
        ("key", [{"a": 1}], "key must name a column of single values, and 'x' is of the type struct"),
    ],
)
def test_column_of_another_type_is_refused(write, argument, values, message):
    """A type that an argument cannot have is refused by its name."""
    path = write(at=[1], x=values)
    with pytest.raises(ValueError, match=message):
        read_parquet(path, **({"time": "at"} | {argument: "x"}))


@pytest.mark.parametrize(
    ("times", "took", "message"),
    [
        ([1.0, float("nan")], [0, 0], "time must name a column of finite times, .* got nan in row 2: divide"),
        ([1, 1_706_702_400_000], [0, 0], "got 1706702400000 in row 2: divide milliseconds by 1000, remove the row"),
        ([1, 2], [0, -1], "duration must give durations >= 0 .* got -1.0 in row 2: correct the row or remove it"),
        (["soon"] * 11, [0] * 11, "1 % of the rows .* got 11 of 11: the first is row 1, 'soon,0'; expected .* remove the rows"),
    ],
)  # fmt: skip
def test_rows_that_are_refused(write, times, took, message):
    """What is refused in a CSV file is refused here, with the number of the row."""
    with pytest.raises(ValueError, match=message):
        read_parquet(write(at=times, took=took), time="at", duration="took")


def test_table_without_arrivals_is_refused(write, arrow):
    """A table without rows, or whose rows all have no time, has no arrivals."""
    path = write(at=arrow.array([], arrow.float64()))
    assert "path must name a file with arrivals, but it has none: give another file" == refusal(path, time="at")
    path = write(at=arrow.array([None, None], arrow.float64()))
    assert "got 2 of 2: the first is row 1, ''; expected is a time in column 'at'" in refusal(path, time="at")


def test_missing_values_are_counted(write):
    """Rows without a time or a duration are unreadable, also where nothing else of them is read."""
    path = write(at=[1, None, 3, None], took=[1.0, 1.0, None, None])
    found = read_parquet(path, time="at", duration="took")
    assert ([0], 3) == (list(found.times), found.skipped)
    assert 2 == read_parquet(path, time="at").skipped


def test_many_rows_without_a_time_are_refused(write):
    """Half of the arrivals is not the load: the error counts the rows whose only column that is read is empty."""
    path = write(at=[*range(50), *[None] * 50], who=["a"] * 100)
    assert "got 50 of 100: the first is row 51, ''" in refusal(path, time="at")
    assert "got 50 of 100: the first is row 51, ',a'" in refusal(path, time="at", key="who")


@pytest.mark.parametrize("cut", [slice(4), slice(-30), slice(4, None)])
def test_damaged_file_is_refused(write, cut):
    """A file that is cut, or is none, is refused."""
    path = write(at=[1.5] * 1000)
    path.write_bytes(path.read_bytes()[cut])
    assert refusal(path, time="at").startswith("path must name a whole Parquet file, but reading it failed (")


def test_damaged_pages_are_refused(write):
    """What is damaged in the midst of a file is found when it is read."""
    path = write(at=[str(number) for number in range(5000)])
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * 400 + whole[500:])
    assert "path must name a whole Parquet file" in refusal(path, time="at")


def test_too_many_rows_are_refused_before_they_are_read(write, monkeypatch):
    """The limit of recordings holds, and the message names it."""
    monkeypatch.setattr(parquet, "RECORDED_MAX", 3)
    assert [0, 0, 0] == list(read_parquet(write(at=[1, 1, 1]), time="at").times)
    assert "path must name a file of at most 3 rows, it has 4: cut it" == refusal(write(at=[1] * 4), time="at")


def test_directory_and_missing_file(arrow, tmp_path):
    """They raise the errors of files."""
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "none.parquet", time="at")
    with pytest.raises(IsADirectoryError if sys.platform != "win32" else PermissionError):
        read_parquet(tmp_path, time="at")
