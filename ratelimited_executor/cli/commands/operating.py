"""The tools for operating a service: ``peers``, ``dashboard``, ``slots`` and ``tasks``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ratelimited_executor._core.escapes import shown
from ratelimited_executor.cli.commands.arguments import Duration, Moment, errors_as_usage

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["dashboard", "peers", "slots", "tasks"]

F = TypeVar("F", bound="Callable[..., object]")


def _group_options(command: F) -> F:
    """Add the options that name a group and its Redis."""
    redis = click.option(
        "--redis", "url", metavar="URL", required=True, envvar="REDIS_URL", show_envvar=True,
        help="redis://, rediss:// for TLS, unix://; any node of a cluster.",
    )  # fmt: skip
    group = click.option("--group", default="default", show_default=True, help="The group to show.")
    prefix = click.option("--prefix", default="rle", show_default=True, help="The prefix of the group's Redis keys.")
    return redis(group(prefix(command)))


@click.command()
@_group_options
@click.option("--once", is_flag=True, help="Show the group once and exit; the default in a pipe.")
@click.option("--interval", type=Duration(0.1), default="1s", show_default=True, help="The time between two updates.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, once.")
def peers(**options: Any) -> None:
    """Show a group's shared limits, how much of each is used, and which processes share them (extra redis). Read-only.

    Exit status: 0 shown; 1 the group shares no limits; 2 bad usage, or Redis cannot be read; 130 interrupted.
    """
    from ratelimited_executor.cli.operate.peers_command import PeersOptions, show_peers  # noqa: PLC0415  # other commands do without

    with errors_as_usage():
        status = show_peers(PeersOptions(**options))
    sys.exit(status)


@click.command()
@click.argument("url", metavar="REDIS_URL", envvar="REDIS_URL")
@click.option("--prefix", default="rle", show_default=True, help="The prefix of the groups' Redis keys.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; anyone who can reach it can read the page.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="The port to listen on; 0 for any."
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Serve the page under this name as well, beside localhost, 127.0.0.1, [::1] and --host; may be repeated.",
)
def dashboard(**options: Any) -> None:
    """Serve a live page of all groups in Redis: limits, peers, slots, plots (extras dashboard, redis). Read-only.

    REDIS_URL: redis://, rediss:// for TLS, unix://; any node of a cluster; $REDIS_URL by default.

    Exit status: 2 bad usage, or Redis cannot be read; 130 interrupted.
    """
    from ratelimited_executor.cli.operate.dashboard_command import DashboardOptions, serve  # noqa: PLC0415  # other commands do without

    with errors_as_usage():
        status = serve(DashboardOptions(**options))
    sys.exit(status)


def _limits(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Read POOL=LIMIT."""
    limits = []
    for text in texts:
        pool, _sign, limit = text.rpartition("=")
        if not pool or not (limit.isascii() and limit.isdecimal()) or len(limit) > 15:
            raise click.BadParameter(f"must look like gpu=4, with a limit >= 0, got {shown(text)}")
        limits.append((pool, int(limit)))
    return tuple(limits)


@click.command()
@_group_options
@click.option(
    "--set",
    "limits",
    multiple=True,
    metavar="POOL=LIMIT",
    callback=_limits,
    help="Set the limit of a pool; 0 halts it.",
)
@click.option("--release", type=click.IntRange(min=1), metavar="FENCE", help="Release the slot of a dead holder.")
@click.option("--yes", "is_sure", is_flag=True, help="Release without asking for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def slots(**options: Any) -> None:
    """Show who holds the slots of a group, and who waits; set limits, release slots (extra redis).

    Exit status: 0 done; 1 the group has no slots, or a release was not confirmed; 2 bad usage, or Redis cannot be read.
    """
    from ratelimited_executor.cli.operate.slots_command import SlotsOptions, show_slots  # noqa: PLC0415  # other commands do without

    with errors_as_usage():
        status = show_slots(SlotsOptions(**options), confirm=lambda question: click.confirm(question, err=True))
    sys.exit(status)


def _arguments(_: click.Context, __: click.Parameter, text: str | None) -> tuple[list[Any], dict[str, Any]] | None:
    """Read arguments: those without names, and those with names."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"must be JSON, got {shown(text)}: {error}") from error
    if not isinstance(value, (list, dict)):
        raise click.BadParameter(f"must be a list or an object, got {shown(text)}")
    return (value, {}) if isinstance(value, list) else ([], value)


@click.command()
@click.argument("store", envvar="DURABLE_STORE", metavar="STORE")
@click.option(
    "--state",
    type=click.Choice(["scheduled", "ready", "behind", "claimed", "unknown", "dead", "paused"]),
    help="List the tasks in this state.",
)
@click.option("--lanes", "has_lanes", is_flag=True, help="List the lanes with the most waiting tasks.")
@click.option(
    "--repetitions",
    "has_repetitions",
    is_flag=True,
    help="List the repetitions, and what should be known about them, as after each change of one.",
)
@click.option("--ended", "has_ended", is_flag=True, help="List the tasks that ended last, of functions with keep=.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The maximum number of rows to list."
)
@click.option(
    "--newest-first", is_flag=True, help="List the tasks of --state that were put last first, whenever they failed."
)
@click.option(
    "--requeue", multiple=True, metavar="ID", help="Put a dead letter back in the queue, with its attempts reset."
)
@click.option("--requeue-dead", is_flag=True, help="Put all dead letters back in the queue, or those selected below.")
@click.option("--cancel", multiple=True, metavar="ID", help="Cancel a task, or remove a dead letter.")
@click.option("--cancel-all", is_flag=True, help="Cancel all tasks in --state, or those of them selected below.")
@click.option("--dry-run", is_flag=True, help="Only count what would be requeued or cancelled, and show examples.")
@click.option("--pause", is_flag=True, help="Pause the tasks selected below: no process claims them.")
@click.option("--until", type=Moment(), help="When a pause ends by itself, such as 2030-01-31T18:00+01:00.")
@click.option("--resume", is_flag=True, help="End the pause of the tasks selected below.")
@click.option("--function", metavar="NAME", help="Select the tasks of a function ...")
@click.option("--queue", metavar="NAME", help="... of a queue ...")
@click.option("--lane", metavar="NAME", help="... of a lane ...")
@click.option(
    "--key",
    metavar="KEY",
    help="... with a key; one that consists of digits is an integer, unless in double quotes ...",
)
@click.option("--since", type=Moment(), help="... that are or were due at this time or later ...")
@click.option("--error", metavar="TEXT", help="... whose last error contains this text.")
@click.option(
    "--save-repetition", metavar="NAME", help="Create or change a repetition of --function, by the options below."
)
@click.option("--period", type=Duration(), help="The time between two occurrences, such as 10m ...")
@click.option("--cron", metavar="TEXT", help="... or a cron expression (extra cron) ...")
@click.option("--tz", metavar="NAME", help="... in this time zone; UTC by default.")
@click.option(
    "--overlap", type=click.Choice(["skip", "queue", "allow"]), help="While the previous one runs; skip by default."
)
@click.option(
    "--arguments",
    metavar="JSON",
    callback=_arguments,
    help="The arguments of the function: a list, or an object of those with names.",
)
@click.option("--version", type=click.IntRange(min=0), help="The version of the function; 1 by default.")
@click.option("--priority", type=float, help="The priority of the occurrences.")
@click.option("--expires", type=Duration(), help="How long after their due time occurrences may start.")
@click.option(
    "--pause-repetition", multiple=True, metavar="NAME", help="Let a repetition place nothing, until --until if given."
)
@click.option("--resume-repetition", multiple=True, metavar="NAME", help="End the pause of a repetition.")
@click.option("--skip-repetition", multiple=True, metavar="NAME", help="Drop the next occurrence of a repetition.")
@click.option("--run-repetition", multiple=True, metavar="NAME", help="Run a repetition now, besides its occurrences.")
@click.option(
    "--remove-repetition",
    multiple=True,
    metavar="NAME",
    help="Remove a repetition that running code no longer declares, or that was saved.",
)
@click.option("--prefix", default="durable", show_default=True, help="The prefix of the Redis keys.")
@click.option("--watch", "is_watched", is_flag=True, help="On a terminal, update live until Ctrl-C.")
@click.option(
    "--check", "is_check", is_flag=True, help="Exit with status 1 if there are dead letters or unknown functions."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@click.option("--migrate", is_flag=True, help="First create what the store lacks for this release.")
@click.option("--wait", type=Duration(), help="With --migrate, how long to wait for a store that is not available.")
@click.option(
    "--sql",
    "as_sql",
    is_flag=True,
    help="Only print what --migrate would do, as SQL; STORE may be postgresql or sqlite, for the whole schema.",
)
def tasks(**options: Any) -> None:
    """Show a store of durable tasks: the number in each state, and lists of tasks (extra sqlite, postgres or redis).

    STORE is the file of a SQLiteStore, or the URL of a PostgresStore (postgresql://...) or of a RedisStore (redis://...);
    $DURABLE_STORE by default.

    Exit status: 0 done; 1 a task or repetition that you named does not exist, a task to requeue is not a dead
    letter, nothing was paused that is to be resumed, no occurrence waits that is to be skipped, or --check found dead
    letters or tasks that were set aside; 2 bad usage, or the store cannot be used.
    """
    from ratelimited_executor.cli.operate.tasks_command import TasksOptions, show_tasks  # noqa: PLC0415  # other commands do without

    with errors_as_usage():
        status = show_tasks(TasksOptions(**options))
    sys.exit(status)
