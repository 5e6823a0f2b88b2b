"""The command ``search``: a search for faults in an async function that is named on the command line."""

from __future__ import annotations

import itertools
import math
import shlex
from typing import TYPE_CHECKING

import click

from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.targets import load_object
from ratelimited_executor.testing import RealIOError, ScenarioFailedError, search_faults

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["run_search"]

_SEEDS = 1000


def run_search(
    *, target: str, seeds: int | None, first: int, seconds: float | None, replay: str | None, postpone: bool
) -> ExitStatus:
    """Search, and print the report or the history of the failure.

    Raises:
        CommandError: if the target cannot be loaded or is not a function, the replay does not fit it, or it uses sockets.
    """
    scenario = load_object(target, what="TARGET")
    if not callable(scenario):
        raise CommandError(f"TARGET {target!r} is not callable: it is {type(scenario).__name__}")
    tried: Iterable[int] = range(first, first + (_SEEDS if seeds is None else seeds))
    if seeds is None and seconds is not None:
        tried = itertools.count(first)
    limit = math.inf if seconds is None else seconds
    try:
        report = search_faults(scenario, seeds=tried, seconds=limit, replay=replay, postpone=postpone)
    except ScenarioFailedError as failure:
        text, again = str(failure).rpartition("\n")[0], shlex.join([target, "--replay", failure.replay])
        click.echo(f"{text}\nto run it again: ratelimited-executor search {again}")
        return ExitStatus.FAILED
    except KeyboardInterrupt as interrupt:
        click.echo("\n".join(["interrupted:", *getattr(interrupt, "__notes__", ())]))
        return ExitStatus.INTERRUPTED
    except (ValueError, TypeError, RealIOError) as error:
        raise CommandError(str(error)) from error
    click.echo(report)
    return ExitStatus.DONE
