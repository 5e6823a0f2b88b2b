"""Schedule and start n trivial calls: ours beside the event loop's own ``call_later``, in CPU time.

Both run in one process, on one loop, in turns (A B, B A). The CPU time of the process is measured, so that waiting for
due times does not count. A round schedules n calls in one go and lasts until the last of them has run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.throughput import bulk, calls, cancelling, results

if TYPE_CHECKING:
    from bench.harness import Options, Table

NAME = "throughput"
DESCRIPTION = "CPU time to schedule and start a million calls, beside loop.call_later"


def run(options: Options) -> list[Table]:
    """Measure call_later, results that are awaited, cancelling, and bulk."""
    with options.runner() as runner:
        return [part.table(options, runner) for part in (calls, results, cancelling, bulk)]
