"""Percentiles in bounded memory."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.histogram import DurationHistogram


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_quantiles_are_within_two_percent(scale: float) -> None:
    """A percentile is never too short and at most 2 % too long, whatever the durations."""
    source = random.Random(3)
    values = sorted(source.expovariate(1) * scale + 1e-6 for _ in range(10_000))
    histogram = DurationHistogram()
    for value in values:
        histogram.add(value)
    for share in (0.5, 0.9, 0.99, 1.0):
        exact = values[int(share * 10_000) - 1]
        assert exact * 0.999999 <= histogram.quantile(share) <= exact * 1.021, share
    assert (values[-1], 10_000) == (histogram.max, histogram.total)


@given(st.lists(st.floats(0, 1e9)))
def test_many_are_counted_as_one_by_one(values: list[float]) -> None:
    """Sorted values added together give the same histogram as one by one, except on bounds of buckets."""
    single, many = DurationHistogram(), DurationHistogram()
    for value in values:
        single.add(value)
    many.add_sorted(sorted(values))
    many.add_sorted([])
    assert (single.total, single.max) == (many.total, many.max)
    assert len(values) == sum(count for *_, count in many.buckets())
    for share in (0.01, 0.5, 1.0):
        assert single.quantile(share) == pytest.approx(many.quantile(share), rel=0.0201)
    for low, high, count in many.buckets():
        assert count == sum(low < max(value, 5e-7) * 1.000001 and value * 0.999999 <= high for value in values) or any(
            math.isclose(value, bound, rel_tol=1e-5) for value in values for bound in (low, high)
        )


@given(st.lists(st.lists(st.floats(0, 1e9)), max_size=4))
def test_merged_histograms_are_one(parts: list[list[float]]) -> None:
    """A merged histogram has all values, and leaves the others unchanged."""
    merged, whole = DurationHistogram(), DurationHistogram()
    for part in parts:
        one = DurationHistogram()
        one.add_sorted(sorted(part))
        before = list(one.buckets())
        merged.merge(one)
        assert before == list(one.buckets())
    whole.add_sorted(sorted(value for part in parts for value in part))
    assert list(merged.buckets()) == list(whole.buckets())
    assert (merged.total, merged.max, merged.mean) == (whole.total, whole.max, pytest.approx(whole.mean))
    assert [merged.quantile(share) for share in (0.1, 0.5, 1.0)] == [whole.quantile(share) for share in (0.1, 0.5, 1.0)]


def test_an_empty_histogram_is_all_zero() -> None:
    """An empty histogram shows 0 for every percentile."""
    assert (0.0, 0.0) == (DurationHistogram().quantile(0.5), DurationHistogram().max)


def test_memory_is_bounded() -> None:
    """Nanoseconds to thirty years fit into fewer than two thousand buckets."""
    histogram = DurationHistogram()
    value = 0.0
    while value < 1e9:
        histogram.add(value)
        value = value * 1.01 + 1e-9
    assert len(histogram._counts) < 2_000
