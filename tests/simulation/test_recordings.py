"""Logs are read as written, in the order of arrival; unreadable lines are counted, and too many refused."""

import gzip
import math
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.cli.run.results import result_row
from ratelimited_executor.simulation import Recorded, Scenario, simulate
from ratelimited_executor.simulation.recordings import (
    Recording,
    read_access_log,
    read_csv,
    read_recording,
    read_results,
)

DATA = Path(__file__).parents[2] / "examples" / "data"
NOON = int(datetime(2024, 1, 31, 12, tzinfo=UTC).timestamp())
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def stamp(moment: datetime) -> str:
    """Format a time as servers do, by other code than the reader's."""
    return f"{moment.day:02}/{MONTHS[moment.month - 1]}/{moment.year:04}:{moment:%H:%M:%S %z}"


def line(second: float = 0, *, host: str = "192.0.2.1", user: str = "-", rest: str = "") -> str:
    """Return a line of the common log format, ``second`` seconds after noon."""
    when = stamp(datetime.fromtimestamp(NOON + second, UTC))
    return f'{host} - {user} [{when}] "GET /a HTTP/1.1" 200 12{rest}'


def write(path: Path, lines: list[str], *, end: str = "\n") -> Path:
    path.write_bytes("".join(each + end for each in lines).encode())
    return path


@pytest.fixture
def log(tmp_path):
    """Return a function that writes a log of lines, and returns its path."""
    return lambda *lines, end="\n": write(tmp_path / "access.log", list(lines), end=end)


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a CSV file of lines, and returns its path."""
    return lambda *lines, end="\n": write(tmp_path / "arrivals.csv", list(lines), end=end)


# Access logs: what is read.


def test_rows_that_are_skipped_and_whole_durations_are_noted(tmp_path):
    """A run says so: a fiftieth less traffic, or a thousand times the work, is another service."""
    file = tmp_path / "calls.csv"
    file.write_text("at,took\n" + "".join(f"{'' if n % 150 == 0 else n},{1800 + n % 7}\n" for n in range(3000)))
    found = read_csv(file, time="at", duration="took")
    assert found.notes == ("20 of 3,000 rows skipped, as they have no time or cannot be read",)
    assert ("durations are whole numbers with a mean of 1,803 s" in found.duration_notes[0]) is True

    class Replay(Scenario):
        def setup(self, sim):
            sim.arrive(Recorded(found), sim.executor("api"), sim.job("call", "recorded"))

    first, second = simulate(Replay(), days=0.01, seed=1).summary.notes
    assert (f"the arrivals of call: {found.notes[0]}", True) == (first, second.endswith("divide them by 1,000"))
    assert () == read_csv(file, time="at").duration_notes


def test_common_log_format_is_read(log):
    """The common log format has times since the first arrival, hosts as keys, and no durations."""
    found = read_access_log(log(line(0, host="a"), line(3, host="b"), line(7, host="a")))
    assert found == Recording(found.times, ["a", "b", "a"], None, NOON, 0)
    assert [0, 3, 7] == list(found.times)
    assert repr(found) == "<Recording of 3 arrivals by 2 keys in 7 s, 0 lines skipped>"


@pytest.mark.parametrize(
    "rest",
    [
        "",
        ' "-" "-"',
        ' "https://example.org/?a=[b]" "Mozilla/5.0 (X11; Linux x86_64)"',
        r' "-" "says \"hello\" and \\"',
        r' "-" "nginx writes \x22 so"',
        ' "-" "agent" "203.0.113.7"',
        ' "-" "" 0.250',
        " 0.250",
        " 250000",
        ' "-" "agent" 250000',
    ],
)
def test_rest_of_a_line(log, rest):
    """Combined format, more quoted fields and escaped quotes are read, with durations or without."""
    found = read_access_log(log(line(0, rest=rest), line(5, rest=rest)))
    assert [0, 5] == list(found.times)
    assert ([0.25] * 2 if rest.endswith(("250", "250000")) else None) == (found.durations and list(found.durations))
    assert found.skipped == 0


@pytest.mark.parametrize("host", ["2001:db8::7", "::ffff:192.0.2.9", "client-17", "fe80::1%eth0"])
def test_hosts(log, host):
    """Hosts may be addresses of both kinds, or names."""
    assert [host] == read_access_log(log(line(host=host))).keys


def test_user_or_nobody_as_the_key(log):
    """A user may be the key, also with spaces; with ``key=None`` no keys are kept."""
    path = log(line(user="ann"), line(1, user="bob the third"), line(2))
    assert ["ann", "bob the third", "-"] == read_access_log(path, key="user").keys
    assert read_access_log(path, key=None).keys is None
    assert repr(read_access_log(path, key=None)) == "<Recording of 3 arrivals in 2 s, 0 lines skipped>"


def test_other_requests(log):
    """Lines without a request, status or size, and with binary requests, are read."""
    path = log(
        line().replace("200 12", "400 -"),
        line(1).replace("GET /a HTTP/1.1", r"\x16\x03\x01 \"\\"),
        line(2).replace('"GET /a HTTP/1.1" 200', '"-" -'),
    )
    assert [0, 1, 2] == list(read_access_log(path).times)


def test_order_of_the_file_is_not_that_of_arrival(log):
    """Arrivals are sorted by time, and equal ones stay in the order of the file."""
    path = log(*(line(second, host=host) for second, host in [(5, "a"), (1, "b"), (5, "c"), (0, "d"), (1, "e")]))
    found = read_access_log(path, smooth=False)
    assert [0, 1, 1, 5, 5] == list(found.times)
    assert ["d", "b", "e", "a", "c"] == found.keys
    assert found.begin == NOON


def test_arrivals_of_one_second_are_spread_over_it(log):
    """Arrivals within a second are spread over it in the order of the file."""
    path = log(
        *(line(second, host=host) for second, host in [(1, "a"), (0, "b"), (1, "c"), (1, "d"), (0, "e"), (1, "f")])
    )
    found = read_access_log(path)
    assert [0, 0.5, 1, 1.25, 1.5, 1.75] == list(found.times)
    assert list("beacdf") == found.keys


def test_seconds_are_subtracted_from_the_time_of_the_end(log):
    """Durations in seconds, as of nginx, are subtracted from the logged time, which is the end of a request."""
    path = log(line(4, host="short", rest=" 0.500"), line(6, host="long", rest=" 6.000"))
    found = read_access_log(path)
    assert ["long", "short"] == found.keys
    assert [0, 3.5] == list(found.times)
    assert [6, 0.5] == list(found.durations)
    assert found.begin == NOON
    assert [0, 2] == list(read_access_log(path, stamped="begin").times)


def test_microseconds_are_not_subtracted_from_the_time_of_arrival(log):
    """Durations in microseconds, as of Apache, are not subtracted: the logged time is the arrival."""
    path = log(line(4, host="short", rest=" 500000"), line(6, host="long", rest=" 6000000"))
    found = read_access_log(path)
    assert [0, 2] == list(found.times)
    assert [0.5, 6] == list(found.durations)
    assert ["long", "short"] == read_access_log(path, stamped="end").keys


def test_offsets_are_honoured(log):
    """Offsets from UTC are respected."""
    stamps = ["31/Jan/2024:14:00:00 +0200", "31/Jan/2024:06:30:01 -0530", "31/Jan/2024:12:00:02 -0000"]
    path = log(*(f'a - - [{each}] "GET / HTTP/1.1" 200 1' for each in stamps))
    found = read_access_log(path)
    assert [0, 1, 2] == list(found.times)
    assert found.begin == NOON


@pytest.mark.parametrize("day", [(2024, 3, 31), (2024, 10, 27)])
def test_change_to_and_from_summer_time(log, day):
    """Requests every ten minutes stay so across a change to and from summer time."""
    begin = datetime(*day, tzinfo=UTC).timestamp()
    zone = ZoneInfo("Europe/Berlin")
    moments = [datetime.fromtimestamp(begin + 600 * number, zone) for number in range(24)]
    found = read_access_log(log(*(f'a - - [{stamp(each)}] "GET / HTTP/1.1" 200 1' for each in moments)))
    assert len({each.utcoffset() for each in moments}) == 2
    assert [600 * number for number in range(24)] == list(found.times)
    assert found.begin == begin


def test_leap_second_and_leap_day(log):
    """Second 60 is read as the first of the next minute."""
    path = log(*(f'a - - [{each} +0000] "-" 200 1' for each in ["29/Feb/2016:23:59:59", "31/Dec/2016:23:59:60"]))
    found = read_access_log(path)
    assert found.begin == datetime(2016, 2, 29, 23, 59, 59, tzinfo=UTC).timestamp()
    assert found.begin + found.times[1] == datetime(2017, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ends_of_lines_and_blank_lines(log, end):
    """Windows line ends, blank lines and a last line without its end are not counted as skipped."""
    path = log(line(), line(1), "", "  ", end=end)
    with path.open("ab") as file:
        file.write(line(2).encode())
    found = read_access_log(path)
    assert [0, 1, 2] == list(found.times)
    assert found.skipped == 0


def test_bytes_that_are_no_text(log):
    """A log in another encoding than UTF-8 is read, and a byte order mark is not part of the first host."""
    path = log(line(), line(1))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"/a", b"/\xe4"))
    assert ["192.0.2.1"] * 2 == read_access_log(path).keys


# Access logs: what is refused.


@pytest.mark.parametrize(("good", "bad"), [(1, 10), (990, 10), (2000, 20), (1099, 11)])
def test_few_lines_that_cannot_be_read_are_counted(log, good, bad):
    """Up to ten unreadable lines, or one in a hundred, are skipped and counted."""
    assert read_access_log(log(*["rubbish"] * bad, *[line()] * good)).skipped == bad


@pytest.mark.parametrize(("good", "bad"), [(1, 11), (1000, 11), (1979, 21)])
def test_more_are_refused(log, good, bad):
    """More unreadable lines are refused with the first of them and the expected format."""
    with pytest.raises(
        ValueError, match=rf"access.log: path must .* got {bad} of {good + bad}: .* line 2, 'rubbish'; .* combined log"
    ):
        read_access_log(log(line(), *["rubbish"] * bad, *[line()] * (good - 1)))


@pytest.mark.parametrize(
    "bad",
    [
        "31/Foo/2024:12:00:00 +0000",
        "31/Feb/2024:12:00:00 +0000",
        "00/Jan/2024:12:00:00 +0000",
        "31/Jan/2024:24:00:00 +0000",
        "31/Jan/2024:12:60:00 +0000",
        "31/Jan/2024:12:00:61 +0000",
        "31/Jan/2024:12:00:00 +0060",
        "31/Jan/0000:12:00:00 +0000",
        "31/Jan/2024:12:00:00  0000",
    ],
)
def test_what_is_no_time_is_skipped(log, bad):
    """A line without a valid time is skipped, also the first one."""
    found = read_access_log(log(f'a - - [{bad}] "GET / HTTP/1.1" 200 1 17', line(0, rest=" 0.5"), line(0, rest=" 0.5")))
    assert found.skipped == 1
    assert [0.5, 0.5] == list(found.durations)


@pytest.mark.parametrize(("first", "other"), [(" 0.500", ""), ("", " 0.500"), (" 0.500", " 500"), (" 500", " 0.500")])
def test_lines_unlike_the_first_are_not_read(log, first, other):
    """Lines must all have durations in the same unit as the first, or none."""
    assert read_access_log(log(line(rest=first), line(rest=other))).skipped == 1
    with pytest.raises(ValueError, match="every line with how long the request took, or none"):
        read_access_log(log(line(rest=first), *[line(rest=other)] * 11))


@pytest.mark.parametrize("lines", [(), ("",), ("", " ")])
def test_empty_log_is_refused(log, lines):
    """A log without arrivals is refused."""
    with pytest.raises(ValueError, match=r"access.log: path must name a file with arrivals, .* give another"):
        read_access_log(log(*lines))


def test_log_without_a_readable_line_is_refused(log):
    """A log without a readable line is refused, also if it has only one."""
    with pytest.raises(ValueError, match=r"got 1 of 1: the first is line 2, 'x{160}';"):
        read_access_log(log("", "x" * 10_000))


def test_negative_duration_in_a_log_is_refused(log):
    """A negative duration is refused, as the sign of a broken clock or of another field."""
    with pytest.raises(
        ValueError, match=r"access.log: path must .* >= 0 and finite, in seconds, got -0.5 in line 2: corr"
    ):
        read_access_log(log(line(rest=" 0.500"), line(rest=" -0.500")))


@pytest.mark.parametrize("bad", [{"key": "path"}, {"stamped": "middle"}])
def test_unknown_choice_is_refused(log, bad):
    """An unknown choice is refused with the possible ones."""
    with pytest.raises(ValueError, match=rf"{next(iter(bad))} must be one of '.*', None, got"):
        read_access_log(log(line()), **bad)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["[", " [", ' "', '\\"', ' [31/Jan/2024:12:00:00 +0000] "', ' "a"', "a ", "9"])
def test_no_line_takes_long(log, piece):
    """No line takes long to read, even half a megabyte made to let a pattern backtrack."""
    assert read_access_log(log(line(), *[head + piece * (500_000 // len(piece)) for head in ("", line()[:-7])])).skipped


@given(
    st.lists(
        st.tuples(
            st.datetimes(datetime(1971, 1, 1), datetime(2099, 1, 1)),
            st.integers(-14 * 60, 14 * 60),
            st.sampled_from(["a", "b", "2001:db8::1"]),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
    st.booleans(),
)
def test_what_was_written_is_read_back_to_the_second(tmp_path_factory, requests, is_close, smooth):
    """Times are read back as written, to the second and sorted, each with its client."""
    if is_close:  # so that many fall into the same second
        requests = [
            (requests[0][0].replace(microsecond=0, second=moment.second % 3), *rest) for moment, *rest in requests
        ]
    aware = [(moment.replace(tzinfo=timezone(timedelta(minutes=offset))), host) for moment, offset, host in requests]
    lines = [f'{host} - - [{stamp(moment)}] "GET / HTTP/1.1" 200 1' for moment, host in aware]
    path = write(tmp_path_factory.mktemp("log") / "access.log", lines)

    found = read_access_log(path, smooth=smooth)

    times = [found.begin + each for each in found.times]
    expected = sorted((math.floor(moment.timestamp()), host) for moment, host in aware)
    assert expected == sorted((math.floor(each + 1e-6), host) for each, host in zip(times, found.keys, strict=True))
    assert list(found.times) == sorted(found.times)
    assert found.times[0] == 0


# CSV files.


@pytest.mark.parametrize(
    ("texts", "time_format"),
    [
        (["1706702400", "1706702401.5", "1706702402.25"], None),
        (["2024-01-31T12:00:00Z", "2024-01-31T14:00:01.5+02:00", "2024-01-31T12:00:02.250"], None),
        (["2024-01-31 12:00:00", "20240131T120001.5", "1706702402.25"], None),
        (["31.01.2024 12:00:00.0", "31.01.2024 12:00:01.5", "31.01.2024 12:00:02.25"], "%d.%m.%Y %H:%M:%S.%f"),
        (["12:00:00.0 +0000", "14:00:01.5 +0200", "07:00:02.25 -0500"], "%H:%M:%S.%f %z"),
    ],
)
def test_times_of_a_table(table, texts, time_format):
    """Times may be epoch seconds, ISO 8601 with a time zone or in UTC, or of a given format."""
    found = read_csv(table("when", *texts), time="when", time_format=time_format)
    assert [0, 1.5, 2.25] == pytest.approx(list(found.times))
    assert (found.keys, found.durations, found.skipped) == (None, None, 0)
    if time_format is None or "%Y" in time_format:
        assert found.begin == NOON


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_columns_of_a_table(table, end, mark):
    """Rows are sorted stably with keys and durations; byte order marks, quotes and blank lines are handled."""
    path = table(mark + "time, who ,took", '3,"a, ""b""",0.5', "1,c,2", "", "3,d,1e-3", ",,", end=end)
    found = read_csv(path, time="time", key="who", duration="took")
    assert [0, 2, 2] == list(found.times)
    assert ["c", 'a, "b"', "d"] == found.keys
    assert [2, 0.5, 1e-3] == list(found.durations)
    assert (found.begin, found.skipped) == (1, 0)


def test_durations_from_ends(table):
    """A column of ends gives the durations, infinite where it is empty, in the format of the times."""
    path = table("from,to", "2024-01-31T12:00:00Z,2024-01-31T12:00:02.5Z", "2024-01-31T12:00:01Z,")
    found = read_csv(path, time="from", end="to")
    assert ([0, 1], [2.5, math.inf]) == (list(found.times), list(found.durations))
    assert list(found.durations) == list(read_recording(path, time="from", end="to").durations)
    with pytest.raises(ValueError, match="end must not be given beside duration, got 'to' and 'to': leave out one"):
        read_csv(path, time="from", end="to", duration="to")
    with pytest.raises(ValueError, match="end must name a column, one of 'from', 'to', got 'until'"):
        read_csv(path, time="from", end="until")


@pytest.mark.parametrize(
    ("end", "message"), [("4", "end must give durations >= 0 .* got -1.0 in line 2"), ("nan", "got nan")]
)
def test_end_before_the_begin_is_refused(table, end, message):
    """An end that is earlier than its time, or none, is refused."""
    with pytest.raises(ValueError, match=message):
        read_csv(table("from,to", f"5,{end}"), time="from", end="to")


def test_semicolons_are_read_if_the_sniffer_is_sure(table):
    """Semicolons are recognised only if they give the named column."""
    found = read_csv(table("time;who", "1;a,b", "2;c"), time="time", key="who")
    assert ["a,b", "c"] == found.keys
    with pytest.raises(ValueError, match=r"time must name a column, one of 'time;who', got 'when'"):
        read_csv(table("time;who", "1;a", "2;b"), time="when")


def test_commas_come_first(table):
    """A table whose column is found with commas is read with commas."""
    found = read_csv(table("time,a;b", "1,x;y", "2,x;y"), time="time", key="a;b")
    assert ["x;y"] * 2 == found.keys


@pytest.mark.parametrize(
    ("argument", "columns"),
    [("time", {"time": "no"}), ("key", {"time": "a", "key": "no"}), ("duration", {"time": "a", "duration": "no"})],
)
def test_unknown_column_is_refused(table, argument, columns):
    """An unknown column is refused with the existing ones."""
    with pytest.raises(ValueError, match=rf"arrivals.csv: {argument} must name a column, one of 'a', 'b', got 'no'"):
        read_csv(table("a,b", "1,2"), **columns)


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "1e400", "1706702400000"])
def test_time_that_is_none_is_refused(table, bad):
    """A time that is not finite, or in milliseconds, is refused."""
    with pytest.raises(
        ValueError, match=rf"arrivals.csv: time must .* finite times, .* got '{bad}' in line 3: divide mi"
    ):
        read_csv(table("time", "1", bad), time="time")


@pytest.mark.parametrize("bad", ["nan", "inf", "-0.001"])
def test_duration_that_is_none_is_refused(table, bad):
    """A duration that is negative or not finite is refused."""
    with pytest.raises(
        ValueError, match=rf"arrivals.csv: duration must .* >= 0 and finite, .* got {bad} in line 3: corr"
    ):
        read_csv(table("time,took", "1,0", f"2,{bad}"), time="time", duration="took")


@pytest.mark.parametrize("bad", ["soon,1,a", "1,,a", "1,long,a", "1", "1,2", "2024-13-01,1,a"])
def test_rows_that_cannot_be_read_are_counted_and_too_many_refused(table, bad):
    """Unreadable rows are counted, and refused if they are too many, as in logs."""
    good = ["1,0.5,a"] * 20
    columns = {"time": "time", "duration": "took", "key": "who"}
    found = read_csv(table("time,took,who", *good, *[bad] * 10), **columns)
    assert (len(found.times), found.skipped) == (20, 10)
    with pytest.raises(
        ValueError, match=rf"got 11 of 31: the first is line 22, '{bad}'; expected is a time in column 't"
    ):
        read_csv(table("time,took,who", *good, *[bad] * 11), **columns)


def test_numbers_of_lines_count_the_lines_of_the_file(table):
    """Line numbers count the lines of the file, including blank ones and those within a field."""
    with pytest.raises(ValueError, match="in line 6:"):
        read_csv(table("time,who", '1,"a', 'b"', "", "1,c", "nan,d"), time="time")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "first line names its columns, but it does not"),
        (("", "1"), "first line names its columns, but it does not"),
        (("time",), "with arrivals, but it has none"),
        (("time", "", ""), "with arrivals, but it has none"),
        (("time", "soon"), "got 1 of 1: the first is line 2, 'soon'"),
        (("x" * 200_000, "1"), "first line names its columns, but it does not"),
        (("time", "x" * 200_000), "field larger than field limit"),
    ],
)
def test_table_without_arrivals_is_refused(table, lines, message):
    """A table without readable rows is refused."""
    with pytest.raises(ValueError, match=rf"arrivals.csv: path must name .*{message}"):
        read_csv(table(*lines), time="time")


# Files of any kind.


@pytest.mark.parametrize(
    ("name", "is_log"),
    [
        ("a.log", True), ("a.LOG.gz", True), ("access.log.1", True), ("access.log.2.gz", True), ("access", True),
        ("a.csv", False), ("a.csv.gz", False), ("table.txt", False), ("table", False), ("a.b.gz", False),
    ],
)  # fmt: skip
def test_kind_of_a_file(tmp_path, name, is_log):
    """The kind of a file is known by its suffix or its first line, compressed or not."""
    text = "\n".join([line(), line(1)] if is_log else ["when,who", "5,192.0.2.1", "6,192.0.2.1", ""])
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    columns = {} if is_log else {"time": "when", "key": "who"}
    found = read_recording(tmp_path / name, **columns, duration=None)
    assert [0, 1] == list(found.times)
    assert ["192.0.2.1"] * 2 == found.keys
    assert list(read_recording(str(tmp_path / name), **columns).times) == list(found.times)


def test_columns_must_fit_the_kind(log, table):
    """A table needs a column of times, and a log must not have one."""
    with pytest.raises(ValueError, match=r"arrivals.csv: time must name .* one of 'a', 'b'"):
        read_recording(table("a,b", "1,2"), key="b")
    with pytest.raises(ValueError, match=r"one of none, as its first line is blank"):
        read_recording(table())
    with pytest.raises(ValueError, match=r"access.log: key, time must not be given, .* use read_csv"):
        read_recording(log(line()), time="a", key="b")
    with pytest.raises(TypeError, match="columns must be time, key, duration, end or time_format, got who"):
        read_recording(log(line()), who="a")


@pytest.mark.parametrize("cut", [-20, 30])
def test_damaged_compressed_file_is_refused(tmp_path, cut):
    """A damaged compressed file is refused."""
    whole = gzip.compress("".join(line(second) + "\n" for second in range(5000)).encode())
    (tmp_path / "a.log.gz").write_bytes(whole[:cut] if cut < 0 else whole[:cut] + b"\xff" * 50 + whole[cut + 50 :])
    with pytest.raises(ValueError, match=r"a.log.gz: path must name a file that is whole, .* copy it again"):
        read_access_log(tmp_path / "a.log.gz")


@pytest.mark.parametrize("read", [read_access_log, read_recording, lambda path: read_csv(path, time="time")])
def test_missing_file(tmp_path, read):
    """A missing file raises ``FileNotFoundError``."""
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


# The data set of the examples.


def test_log_that_is_shipped():
    """All lines of the shipped log are read, with the rate at which it was recorded."""
    found = read_recording(DATA / "access.log.gz")
    assert (len(found.times), found.skipped) == (3953, 0)
    assert 170 < found.times[-1] < 182
    assert all(0.004 < took < 2 for took in found.durations)
    assert 150 < len(set(found.keys)) <= 200


def test_table_that_is_shipped_is_the_beginning_of_the_log():
    """The shipped table has the first requests of the log, at times that differ by up to a second."""
    excerpt = read_csv(DATA / "arrivals.csv", time="time", key="client", duration="seconds")
    whole = read_recording(DATA / "access.log.gz")
    assert (len(excerpt.times), excerpt.skipped) == (500, 0)

    def by_request(recording: Recording) -> dict:
        """Return the times of the unique requests."""
        requests = list(zip(recording.keys, recording.durations, strict=True))
        counts = Counter(requests)
        times = zip(requests, recording.times, strict=True)
        return {request: recording.begin + when for request, when in times if counts[request] == 1}

    precise, rough = by_request(excerpt), by_request(whole)
    both = precise.keys() & rough.keys()
    assert len(both) > 200
    assert all(abs(precise[request] - rough[request]) < 1.01 for request in both)


# The results of a bulk run.


def test_results_of_a_run_are_its_due_times(tmp_path):
    """Each line arrived at its start minus its lateness, and lasted as long as it did."""
    path = tmp_path / "results.jsonl"
    path.write_text(
        '{"line": 2, "state": "done", "lateness": 0.5, "started": "2026-01-02T03:04:07.500000+00:00", "duration": 0.25, "result": 1}\n'
        '{"line": 1, "state": "failed", "lateness": 2.0, "started": "2026-01-02T03:04:07+00:00", "duration": 3.0, "error": "E"}\n'
        '{"line": 3, "state": "expired", "lateness": null, "error": "expired"}\n'
    )
    found = read_recording(path)
    assert ([0.0, 2.0], [3.0, 0.25], None, 1) == (list(found.times), list(found.durations), found.keys, found.skipped)
    assert datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp() == found.begin
    with pytest.raises(ValueError, match="time must not be given, since the file is the results of a run"):
        read_recording(path, time="started")


def test_results_written_by_a_run_are_read(tmp_path):
    """The rows are those that the command writes."""
    path = tmp_path / "results.jsonl"
    rows = [result_row(n, "done", 0.25, started=1_700_000_000.25 + n, ended=1_700_000_001 + n) for n in range(3)]
    path.write_bytes(b"".join(rows))
    found = read_results(path)
    assert ([0.0, 1.0, 2.0], [0.75] * 3) == (list(found.times), list(found.durations))


def test_line_that_is_nested_too_deeply_is_skipped(tmp_path):
    """It is none of a run, whatever it holds."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(result_row(1, "done", 0.0, started=5.0, ended=6.0) + b"[" * 100_000 + b"\n")
    assert (1, 1) == (len(read_results(path).times), read_results(path).skipped)


def test_results_that_are_none_are_refused(tmp_path):
    """The error shows the first line."""
    path = tmp_path / "results.jsonl"
    path.write_text("[]\n5\n")
    with pytest.raises(ValueError, match="the first is line 1"):
        read_results(path)
