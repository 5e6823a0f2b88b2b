"""The example with four processes keeps one rate together, and each of them gets a part."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "four_workers.py"

pytestmark = [pytest.mark.real_time("processes of their own"), pytest.mark.slow]


def test_four_workers_keep_one_rate():
    """No second has more starts than the rate admits, every worker starts some, and the rate is mostly used."""
    command = [sys.executable, str(EXAMPLE), "--rate", "40/s", "--seconds", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    # A machine that is busy with other tests may not give a process the CPU for a tenth of a second, which is logged.
    errors = [
        line for line in ended.stderr.splitlines() if "did not get the CPU" not in line and "was blocked" not in line
    ]
    assert (ended.returncode, errors) == (0, [])
    counts = [int(each) for each in re.findall(r"\d+", ended.stdout.splitlines()[0])]
    busiest = re.search(r"busiest second: (\d+), at a rate of 40/s", ended.stdout)
    assert len(counts) == 4
    assert min(counts) > 0
    assert sum(counts) > 80
    assert busiest is not None
    assert 20 < int(busiest[1]) <= 40
