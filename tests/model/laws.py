"""The laws, which need no model: nothing starts early or over the rate. The library's own starts are checked."""

from __future__ import annotations

from ratelimited_executor.testing import audit

from .model import Outcome
from .programs import TICK_NS, Program

ROUNDING_NS = 2  # for a due time that is not a whole number of nanoseconds


def broken_laws(
    program: Program, expected: Outcome, seen: Outcome, *, tolerance_ns: int = ROUNDING_NS, slack: float = 0.02
) -> list[str]:
    """Return the laws that the starts of a program break."""
    found = []
    is_virtual = tolerance_ns == ROUNDING_NS
    for at, name in seen.starts:
        due = expected.dues[name]
        if program.early:  # "anywhere in the interval of its due time"
            begin, width = program.begin * TICK_NS, program.interval * TICK_NS
            # In real time a program may begin anywhere in an interval.
            due = (begin + due) // width * width - begin if is_virtual else due - width
        if at < due - tolerance_ns:
            found.append(f"{name} started early: due at {due}, started at {at}")
    costs = {name: given["cost"] for _, _, name, given in program.ops if "cost" in given}
    taken = [costs.get(name.split(".")[0], 1) for _, name in seen.starts]
    if seen.starts:
        # For StaticPeers: "the sum is exact as long as no peer's rate changes".
        is_exact = program.strictness == "EXACT" and is_virtual
        is_exact = is_exact and (program.peers[0] == 1 or len(seen.rates) == 1)
        report = audit([at / 1e9 for at, _ in seen.starts], seen.rates, slack=None if is_exact else slack, costs=taken)
        # For peers: "each may start one task more than the law says" when the rate changes.
        changes = len(seen.rates) - 1 if program.peers[0] > 1 else 0
        found += [] if report.worst_excess <= changes else [str(report)]
    return found
