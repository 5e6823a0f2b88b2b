"""Thresholds, the tool as the limit, and comparisons of measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratelimited_executor.load.comparison import compare, noise_of
from ratelimited_executor.load.verdicts import Thresholds, interval_of_share, judge, judge_trial, why_tool_was_limit
from tests.load.models import figures_of, figures_of_classes, measurement_of


@pytest.mark.parametrize(
    ("thresholds", "broken", "is_clear"),
    [
        (Thresholds(), 0, True),
        (Thresholds(p99=0.2), 0, True),
        (Thresholds(p99=0.05), 1, True),
        (Thresholds(errors=0.1), 0, True),
        (Thresholds(errors=0.001), 1, True),
        (Thresholds(errors=0.02), 0, False),
        (Thresholds(errors=0), 1, True),
        (Thresholds(p99=0.05, errors=0), 2, True),
    ],
)
def test_thresholds_are_kept_or_not_and_clearly_or_not(thresholds, broken, is_clear) -> None:
    """The verdict on 1,000 requests of 100 ms, 20 of which failed, names the broken thresholds and is clear or not."""
    verdict = judge(figures_of([0.1] * 1000, errors=20), thresholds)

    assert (broken, is_clear, broken == 0) == (len(verdict.broken), verdict.is_clear, verdict.is_kept)


def test_p99_near_its_threshold_is_unclear() -> None:
    """Of 1,000 requests, 9 above the threshold keep it and 11 break it, and neither verdict is clear."""
    for slow, is_kept in ((9, True), (11, False)):
        verdict = judge(figures_of([0.1] * (1000 - slow) + [1.0] * slow), Thresholds(p99=0.2))
        assert (is_kept, False) == (verdict.is_kept, verdict.is_clear)


def test_one_threshold_that_is_clearly_broken_makes_the_verdict_clear() -> None:
    """One clear break settles the verdict even if other thresholds or classes are unclear."""
    few = figures_of([0.1] * 100)
    classes = figures_of_classes(ordinary=[0.1] * 20, urgent=[0.5] * 100)

    assert judge(few, Thresholds(p99=0.05, errors=0.01)).is_clear
    assert not judge(few, Thresholds(p99=0.2, errors=0.01)).is_clear
    assert judge(classes, Thresholds(p99=0.2)).is_clear
    assert not judge(classes, Thresholds(p99=0.6)).is_clear


def test_threshold_that_is_kept_but_not_clearly_is_named_with_its_counts() -> None:
    """Also that of a class; a clear one is not."""
    few = figures_of([0.1] * 100)
    classes = figures_of_classes(ordinary=[0.1] * 20, urgent=[0.5] * 1000)

    assert ("errors (0 of 100 requests failed)",) == judge(few, Thresholds(p99=0.05, errors=0.01)).doubts
    assert ("p99 (0 of 100 requests above 200 ms)",) == judge(few, Thresholds(p99=0.2, errors=0.5)).doubts
    assert ("ordinary: p99 (0 of 20 requests above 600 ms)",) == judge(classes, Thresholds(p99=0.6)).doubts


def test_nothing_sent_keeps_nothing() -> None:
    """A run too short to send a request keeps no threshold, and the reason says so."""
    assert ("no request was sent",) == judge(figures_of([]), Thresholds(p99=1)).broken


def test_growing_queue_does_not_hold_in_a_trial() -> None:
    """A trial whose durations keep growing does not hold, and is unclear; steady ones and ones that recover hold."""
    growing = figures_of([0.02 + number / 1000 for number in range(100)])
    steady = figures_of([0.02, 0.03] * 50)
    up_and_down = figures_of([0.02] * 40 + [0.2] * 30 + [0.02] * 30)

    assert (False, False) == (
        judge_trial(growing, Thresholds(p99=1)).is_kept,
        judge_trial(growing, Thresholds(p99=1)).is_clear,
    )
    assert judge(growing, Thresholds(p99=1)).is_kept
    for figures in (steady, up_and_down, figures_of([0.02, 0.4])):
        assert judge_trial(figures, Thresholds(p99=1)).is_kept


def test_interval_holds_the_share_and_stays_within_its_ends() -> None:
    """The interval of a share lies within 0 and 1 and holds the share, even if none or all were counted."""
    assert (0.0, 1.0) == interval_of_share(0, 0)
    for part, total in ((0, 10), (10, 10), (3, 1000)):
        low, high = interval_of_share(part, total)
        assert 0 <= low <= part / total <= high <= 1


def test_tool_is_the_limit_where_its_lateness_or_cpu_is_a_large_part() -> None:
    """The tool is the limit if its lateness or CPU is a large part, but not if the service takes much longer."""
    assert why_tool_was_limit(figures_of([1.0] * 100, lateness=0.02)) is None
    assert why_tool_was_limit(figures_of([0.001] * 100, lateness=0.0005)) is None
    assert "late itself, by 50 ms at p99, when they took 100 ms" in why_tool_was_limit(
        figures_of([0.1] * 100, lateness=0.05)
    )
    assert "95 % of a core, so responses waited to be read" in why_tool_was_limit(
        figures_of([0.1] * 100, cpu_share=0.95)
    )
    assert "95 % of a core, so responses waited to be read" in why_tool_was_limit(
        figures_of([0.1] * 100, cpu_share=0.95, errors=99)
    )
    assert why_tool_was_limit(figures_of([0.1] * 100, lateness=0.05, cpu_share=0.95, errors=100)) is None


def test_comparison_says_better_worse_or_unclear() -> None:
    """The comparison is better, worse or unclear by the share of requests above the other's quantile."""
    slow = [0.1 + number / 10_000 for number in range(1000)]
    before = measurement_of(figures_of(slow))
    faster = measurement_of(figures_of([duration / 2 for duration in slow]))
    failing = measurement_of(figures_of(slow, errors=100))

    def directions(one, other):
        return {change.name: change.direction for change in compare(one, other)}

    assert "better" == directions(before, faster)["p99 response time"]
    assert "worse" == directions(faster, before)["p50 response time"]
    assert "unclear" == directions(before, before)["p99 response time"]
    assert ("worse", "better") == (directions(before, failing)["errors"], directions(failing, before)["errors"])
    assert directions(before, faster)["answered"] is None


def test_change_that_good_and_bad_seconds_explain_is_unclear() -> None:
    """20 ms more are a change of a steady service, and none of one whose seconds differ by up to 180 ms."""

    def load_of(milliseconds):
        each = [second / 1000 + number / 10_000 for second in milliseconds for number in range(10)]
        return measurement_of(figures_of(each))

    def change(one, other):
        return next(each for each in compare(one, other) if each.name == "p50 response time")

    uneven = [100 + 20 * (second % 10) for second in range(40)]
    steady = change(load_of([100] * 40), load_of([120] * 40))
    spells = change(load_of(uneven), load_of([each + 20 for each in uneven]))

    assert ("worse", (0, 0)) == (steady.direction, pytest.approx(steady.noise, abs=1e-6))
    assert ("unclear", 0.02) == (spells.direction, pytest.approx(spells.after - spells.before, rel=0.01))
    # Twice the deviation of ten equidistant steps of 20 ms, by the root of 40 seconds.
    assert pytest.approx([1.96 * 0.0582 / 40**0.5] * 2, rel=0.01) == list(spells.noise)


def test_quantile_without_noise_of_its_own_has_that_of_its_neighbours() -> None:
    """Seconds that explain a change of p50 and p99 explain it of p90, too, though not of a steady service."""

    def p90(one, other):
        return next(each.direction for each in compare(one, other) if each.name == "p90 response time")

    def load_of(milliseconds):
        return measurement_of(figures_of([each / 1000 for each in milliseconds for _ in range(10)]))

    uneven = [100 + 20 * (second % 10) for second in range(40)]

    assert "unclear" == p90(load_of(uneven), load_of([each + 15 for each in uneven]))
    assert "worse" == p90(load_of([100] * 40), load_of([120] * 40))


def test_noise_of_a_short_load_is_not_known() -> None:
    """Four seconds say too little of a fifth, and requests of parts of them nothing."""
    assert noise_of(figures_of([0.1] * 40), "p50") is None
    assert noise_of(figures_of([0.1] * 41), "p50") == 0
    assert noise_of(figures_of([]), "p99") is None


def test_comparison_with_nothing_says_nothing() -> None:
    """Comparing measurements without requests gives neither ratios nor directions."""
    nothing = measurement_of(figures_of([]))
    changes = compare(nothing, nothing)

    assert {None} == {change.ratio for change in changes} == {change.direction for change in changes}


def test_each_class_keeps_the_thresholds_by_itself() -> None:
    """A few slow requests of one class break its threshold, although many fast ones of another class outnumber them."""
    figures = figures_of_classes(ordinary=[0.1] * 1000, urgent=[0.5] * 5)

    assert ("urgent: p99 500 ms is above 200 ms",) == judge(figures, Thresholds(p99=0.2)).broken
    assert judge(figures, Thresholds(p99=0.6)).is_kept


def test_class_has_thresholds_of_its_own() -> None:
    """A class's own threshold replaces the general one of the same kind only; the other kinds still apply to it."""
    figures = figures_of_classes(ordinary=[0.1] * 1000, urgent=[0.06] * 1000)

    def broken(**thresholds) -> tuple[str, ...]:
        return judge(figures, Thresholds(**thresholds)).broken

    tighter, looser, none = Thresholds(p99=0.05), Thresholds(p99=0.2), Thresholds(errors=0.001)
    assert ("urgent: p99 60 ms is above 50 ms",) == broken(p99=0.2, classes={"urgent": tighter})
    assert () == broken(p99=0.08, classes={"ordinary": looser})
    assert ("ordinary: p99 100 ms is above 80 ms",) == broken(p99=0.08, classes={"ordinary": none})
    assert () == broken(classes={"ordinary": looser})
    assert ("urgent: p99 60 ms is above 50 ms",) == broken(classes={"urgent": tighter})


def test_class_has_its_own_part_of_errors() -> None:
    """Of two classes with 2 % errors each, only the one with the stricter threshold breaks it."""
    recorded = figures_of_classes(ordinary=[0.1] * 1000, urgent=[0.1] * 1000)
    figures = replace(recorded, classes=[replace(each, error_count=20) for each in recorded.classes])
    thresholds = Thresholds(errors=0.05, p99=1, classes={"urgent": Thresholds(errors=0.001)})

    assert ("urgent: errors 2 % are above 0.1 %",) == judge(figures, thresholds).broken


def test_thresholds_are_empty_if_those_of_the_classes_are() -> None:
    """Thresholds are empty if those of each class are empty as well."""
    assert Thresholds(classes={"urgent": Thresholds()}).is_empty
    assert not Thresholds(classes={"urgent": Thresholds(errors=0)}).is_empty


def test_comparison_has_rows_of_the_classes_of_both() -> None:
    """Classes that both measurements have are compared by name, and a class that only one has is left out."""
    before = measurement_of(figures_of_classes(ordinary=[0.1] * 1000, urgent=[0.01] * 500, gone=[1.0]))
    after = measurement_of(figures_of_classes(urgent=[0.05] * 500, ordinary=[0.1] * 1000))
    rows = {change.name: change.direction for change in compare(before, after)}

    assert ("worse", "unclear") == tuple(rows[f"{name}: p99 response time"] for name in ("urgent", "ordinary"))
    assert "unclear" == rows["urgent: errors"]
    assert [] == [name for name in rows if name.startswith("gone")]


@pytest.mark.parametrize("closed", ["before", "after", "both"])
def test_comparison_has_nothing_that_a_load_of_users_has_not(closed) -> None:
    """A closed load has no target rate, and no service time beside the response time, not in its classes either."""
    figures = figures_of_classes(buy=[0.1] * 100)
    open_load, of_users = measurement_of(figures), measurement_of(figures, settings={"users": "5"})
    before = open_load if closed == "after" else of_users
    names = [change.name for change in compare(before, open_load if closed == "before" else of_users)]

    assert "buy: p99 response time" in names
    assert [] == [name for name in names if "service time" in name or "target" in name]
    assert "target rate" in [change.name for change in compare(open_load, open_load)]


def test_rate_that_was_not_sent_breaks_a_threshold_of_its_own() -> None:
    """Counted over all classes, and clear whatever the number of requests."""
    reached = figures_of([0.1] * 10)
    missed = replace(reached, sent_count=9)

    assert judge(reached, Thresholds(), reach=1.0).is_kept
    assert judge(missed, Thresholds(), reach=0.9).is_kept
    verdict = judge(missed, Thresholds(), reach=0.99)
    assert (("sent 9.0/s, 90 % of 10.0/s, is below 99 %",), True) == (verdict.broken, verdict.is_clear)


def test_tool_that_waits_for_a_core_is_the_limit_as_well() -> None:
    """A busy machine keeps it from reading responses as its own work would, and only the sum of both says so."""
    figures = replace(figures_of([0.1] * 100), cpu_share=0.4)

    assert why_tool_was_limit(figures) is None
    assert why_tool_was_limit(replace(figures, cpu_wait_share=0.45)) is None
    assert (
        "it used 40 % of a core and waited for one 55% of the time, so responses waited to be read"
        == why_tool_was_limit(replace(figures, cpu_wait_share=0.55))
    )
