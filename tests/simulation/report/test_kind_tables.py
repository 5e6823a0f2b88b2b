"""The page has a table of waits, one of objectives, and one of costs."""

import re


def test_the_page_shows_waits_objectives_and_costs(ran):
    """Of each kind, each priority, and the key that waited longest."""
    _, result, lines = ran
    text = "\n".join(lines)
    assert "Waits, objectives and cost" in text
    assert re.search(r"\|charge\|+priority 7\|", text)
    assert re.search(r"\|+99 % within 1 s in each 10m\|+missed in \d+ of 5\|", text)
    workers, calls = result.summary.worker_cost, result.summary.jobs_by_kind["charge"].cost
    assert re.search(rf"\|workers\|+{workers:.2f}\|", text)
    assert re.search(rf"\|all\|+{workers + calls:.2f}\|", text)
    assert re.search(r"\|Warm-up\|+10m", text)
