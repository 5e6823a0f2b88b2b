"""The options of ``run`` as values, and the check of their combinations."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor import Rate
from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RunOptions", "check_options", "check_threads"]

UNLIMITED: Final = Rate(math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The command line of ``run``, each option valid by itself; times in seconds."""

    target: Any  # the callable, or a context manager whose value is the callable
    input: str = "-"
    jsonl: bool = False
    rate: Rate = UNLIMITED
    over: float | None = None
    count: int | None = None
    at_field: str | None = None
    priority_field: str | None = None
    look_ahead: int = 100_000
    on_time: bool = False
    key_field: str | None = None
    fair: bool = False
    key_rate: Rate | None = None
    key_concurrency: int | None = None
    cost_field: str | None = None
    retry: int | None = None
    expires: float | None = None
    concurrency: int = 10_000
    threads: int | None = None
    results: str | None = None
    append: bool = False
    remaining: str | None = None
    quiet: bool = False

    @property
    def is_ordered(self) -> bool:
        """True if lines have their own due times or priorities."""
        return self.at_field is not None or self.priority_field is not None


def check_options(options: RunOptions) -> None:
    """Refuse options that do not go together.

    Raises:
        CommandError: if there are such options; names them and the reason.
    """
    if not options.jsonl:
        fields = {
            "--at-field": options.at_field,
            "--priority-field": options.priority_field,
            "--key-field": options.key_field,
            "--cost-field": options.cost_field,
        }
        for name, value in fields.items():
            if value is not None:
                raise CommandError(f"{name} needs --jsonl: plain lines have no fields")
    if options.key_field is None:
        by_key = {"--fair": options.fair, "--key-rate": options.key_rate, "--key-concurrency": options.key_concurrency}
        for name, given in by_key.items():
            if given:
                raise CommandError(f"{name} needs --key-field, which identifies the tenant of a line")
    if options.key_rate is not None and options.key_rate.is_zero:
        raise CommandError("--key-rate 0 would never start a line")
    if options.over is not None and options.at_field is not None:
        raise CommandError("--over and --at-field exclude each other: both say when a line is due")
    if options.rate.is_zero:
        raise CommandError("--rate 0 would never start a line")
    if options.results is not None and options.results != "-" and options.results == options.remaining:
        raise CommandError("--results and --remaining must be different files")
    if options.remaining == "-":
        raise CommandError("--remaining must be a file")


def check_threads(threads: int | None, target: Callable[[Any], Any]) -> None:
    """Refuse threads for an async function.

    Raises:
        CommandError: if the target is async; names the option to use instead.
    """
    if threads is not None and inspect.iscoroutinefunction(target):
        raise CommandError("--threads is for plain functions; the target is async: use --concurrency")
