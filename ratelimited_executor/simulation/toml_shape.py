"""The shape of a scenario file: which tables and names it may have, and which belong together.

An unknown name is an error that lists the known ones: a misspelt ``max_concurency`` must not go unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KINDS", "check_shape"]

_TOP: Final = frozenset(
    {"name", "days", "interval", "parameters", "executors", "populations", "jobs", "arrivals", "outages"}
)
_EXECUTOR: Final = frozenset(
    {
        "rate",
        "max_concurrency",
        "pacing",
        "nodes",
        "max_pending",
        "key_rate",
        "key_concurrency",
        "resources",
        "attempts",
        "retry",
        "worker_price",
    }
)
_POPULATION: Final = frozenset({"count", "period", "groups", "joins", "lifetime"})
_JOB: Final = frozenset({"duration", "failures", "population", "is_sync", "then", "objectives", "price", "cost"})
_OBJECTIVE: Final = frozenset({"within", "percent", "each"})
_THEN: Final = frozenset({"job", "executor", "delay"})
_ARRIVALS: Final = frozenset({"executor", "job", "population", "expires", "priority"})
KINDS: Final = {  # kinds of arrivals, and the further fields of each
    "count": {"at", "over", "scale"},
    "rate": {"pattern", "scale"},
    "daily": {"scale"},
    "log": {"speed", "every", "scale", "time", "key", "duration", "end"},
    "cycle": {"phase", "buckets"},
}
_OUTAGE: Final = frozenset({"population", "group", "job", "begin", "end", "failures"})
_JOINS: Final = KINDS["log"] | {"log"}
_RETRY: Final = frozenset({"attempts", "base", "cap"})


def check_shape(table: dict[str, Any]) -> None:
    """Refuse unknown names, and values that are not tables where tables are required."""
    _check_keys("the file", table, _TOP)
    for kind, known in (("executors", _EXECUTOR), ("populations", _POPULATION), ("jobs", _JOB)):
        tables = table.get(kind, {})
        if not isinstance(tables, dict):
            raise TypeError(f"{kind} must be tables such as [{kind}.name], got {tables!r}")
        for key, options in tables.items():
            _check_keys(f"[{kind}.{key}]", options, known)
            _check_parts(f"[{kind}.{key}]", options)
    if not table.get("executors"):
        raise ValueError("[executors] must have at least one executor, such as [executors.api]")
    for kind in ("arrivals", "outages"):
        if not isinstance(table.get(kind, []), list):
            raise TypeError(
                f"[[{kind}]] must be tables in two brackets, [[{kind}]], and not [{kind}], got {table[kind]!r}"
            )
    if not table.get("arrivals"):
        raise ValueError("[[arrivals]] must be given at least once")
    for number, options in enumerate(table["arrivals"], start=1):
        _check_arrivals(f"[[arrivals]] number {number}", options)
    for number, options in enumerate(table.get("outages", ()), start=1):
        _check_keys(f"[[outages]] number {number}", options, _OUTAGE)


def _check_parts(place: str, options: dict[str, Any]) -> None:
    """Check the tables within the table of an executor or a kind of job."""
    for part, names in (("retry", _RETRY), ("then", _THEN)):
        if part in options:
            _check_keys(f"{place} {part}", options[part], names)
    if not isinstance(options.get("resources", {}), dict):
        raise TypeError(
            f'{place} resources must be a table such as {{tokens = "90_000/min"}}, got {options["resources"]!r}'
        )
    if isinstance(options.get("joins"), dict) and "log" in options["joins"]:
        _check_keys(f"{place} joins", options["joins"], _JOINS)
    if not isinstance(options.get("objectives", []), list):
        raise TypeError(f'{place} objectives must be a list such as [{{within = "5s"}}], got {options["objectives"]!r}')
    for each in options.get("objectives", ()):
        _check_keys(f"{place} objectives", each, _OBJECTIVE)


def _check_arrivals(place: str, options: dict[str, Any]) -> None:
    kinds = [kind for kind in KINDS if isinstance(options, dict) and kind in options]
    if len(kinds) != 1:
        raise ValueError(f"{place} must have one of {', '.join(KINDS)}, got {', '.join(kinds) or 'none'}")
    shared = _ARRIVALS - {"expires"} if kinds[0] == "cycle" else _ARRIVALS
    _check_keys(place, options, shared | {kinds[0]} | KINDS[kinds[0]])


def _check_keys(place: str, table: Any, known: Iterable[str]) -> None:
    if not isinstance(table, dict):
        raise TypeError(f"{place} must be a table of {', '.join(sorted(known))}, got {table!r}")
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ValueError(f"{place} has {', '.join(unknown)}, which is unknown: it can have {', '.join(sorted(known))}")
