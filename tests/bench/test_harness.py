"""The harness of the benchmarks: the order of runs, figures, targets, and how tables are written."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench/ is not part of the package

from bench.harness import Chart, Figure, Options, Series, Table, Target, fresh, ratio


def table() -> Table:
    """Return a table with one case that meets its target, and one that misses it."""
    made = Table("Costs", ["theirs", "ours", "ratio"], notes=["made up"])
    for case, ours in (("met", [1.0, 2.0, 1.0]), ("missed", [8.0, 8.0, 9.0])):
        theirs = [8.0, 8.0, 9.0]
        gain = ratio(theirs, ours, target=Target(">= 2 x", 2))
        made.add(case, {"theirs": Figure(theirs, "us"), "ours": Figure(ours, "us"), "ratio": gain})
    made.check("calls lost", 0)
    made.charts.append(Chart("Costs by size", "size", "us", [Series("ours", [1, 10], [1.0, 2.0])], log="x"))
    made.charts.append(Chart("Costs by case", "", "us", [Series("ours", ["met", "missed"], [1.0, 8.0])], kind="bar"))
    return made


def test_turns_alternate_their_order_and_the_warm_up_does_not_count() -> None:
    """Runs alternate as A B, B A, A B, so that no side always goes first, and the first round is dropped."""
    order: list[str] = []

    def side(name: str):
        return lambda: order.append(name) or len(order)

    results = Options().in_turns({"a": side("a"), "b": side("b")}, rounds=2)

    assert ["a", "b", "b", "a", "a", "b"] == order
    assert {"a": [4, 5], "b": [3, 6]} == results


def test_ratio_is_taken_pair_by_pair() -> None:
    """Ratios are taken of pairs and not of medians, as a disturbance affects both sides of a pair."""
    figure = ratio([10.0, 20.0, 30.0], [5.0, 10.0, 10.0])

    assert ([2.0, 2.0, 3.0], 2.0, 2.0, 3.0) == (figure.values, figure.median, figure.least, figure.greatest)


@pytest.mark.parametrize(
    ("value", "smaller_is_better", "met"),
    [(1.0, True, True), (1.1, True, False), (1.0, False, True), (0.9, False, False)],
)
def test_target_is_met_from_the_better_side(value: float, smaller_is_better: bool, met: bool) -> None:
    """A value equal to the target meets it."""
    assert met is Figure([value], "x", smaller_is_better, Target("1", 1.0)).met


def test_markdown_shows_medians_spreads_targets_and_verdicts() -> None:
    """Each case is one line, with medians, ranges and targets, and a missed target is an upper-case NO."""
    from bench.reporting.tables import markdown

    lines = markdown(table(), is_judged=True).splitlines()

    assert "| case | theirs | ours | ratio | target | met |" == lines[2]
    assert (
        "| met | 8.00 (8.00 to 9.00) us | 1.00 (1.00 to 2.00) us | 8.00 (4.00 to 9.00) x | >= 2 x | yes |" == lines[4]
    )
    assert lines[5].endswith("| >= 2 x | NO |")
    assert ["- made up", "- check, has to be 0: calls lost: 0"] == lines[7:9]


def test_quick_run_judges_nothing() -> None:
    """A quick run, whose sizes are too small to mean anything, neither meets nor misses targets."""
    from bench.reporting.documents import document
    from bench.reporting.tables import markdown

    options = Options(quick=True)
    results = document({}, options, {"section": [table()]})

    assert not options.is_judged
    assert "not judged" in markdown(table(), is_judged=False)
    assert {None} == {row["cells"]["ratio"]["met"] for row in results["sections"]["section"][0]["rows"]}


def test_json_holds_every_round() -> None:
    """The JSON file has the values of every round, so that others may compute the median."""
    from bench.reporting.documents import document

    results = json.loads(json.dumps(document({"cores": 2}, Options(), {"section": [table()]})))
    cell = results["sections"]["section"][0]["rows"][0]["cells"]["ours"]

    assert (1, 2) == (results["version"], results["environment"]["cores"])
    assert ([1.0, 2.0, 1.0], 1.0, "us") == (cell["values"], cell["median"], cell["unit"])


def test_charts_are_drawn_to_files_and_in_the_terminal(tmp_path: Path) -> None:
    """Charts of lines and charts of bars are written as PNG files and drawn in the terminal."""
    from bench.reporting.plots import save_png, terminal_chart

    for chart in table().charts:
        assert save_png(chart, tmp_path, section="section").read_bytes().startswith(b"\x89PNG")
        assert chart.title in terminal_chart(chart)


def test_fresh_process_returns_the_result_or_says_what_failed() -> None:
    """An error in the other process is raised here with its type."""
    assert "throughput" in fresh("bench.sections:names")
    with pytest.raises(RuntimeError, match="TypeError"):
        fresh("bench.sections:names", unknown=1)


def test_every_section_has_a_name_and_a_line_of_description(capsys: pytest.CaptureFixture[str]) -> None:
    """The list has each section with its name and a description of one line."""
    from bench.__main__ import main
    from bench.sections import load, names

    main(["--list"])

    listed = capsys.readouterr().out.splitlines()
    assert names() == [line.split()[0] for line in listed]
    assert names() == [load(name).NAME for name in names()]
    assert all(load(name).DESCRIPTION and "\n" not in load(name).DESCRIPTION for name in names())


def test_unknown_section_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the names of existing sections."""
    from bench.__main__ import main

    with pytest.raises(SystemExit):
        main(["speed"])

    assert "no section 'speed': there are throughput, memory" in capsys.readouterr().err
