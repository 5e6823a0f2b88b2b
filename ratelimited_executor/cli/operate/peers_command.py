"""``peers`` from its options to its exit status: reads a group's keys in Redis, and shows them, once or live."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.live import Live

from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.operate.peers_view import Picture, draw, to_json
from ratelimited_executor.cli.operate.redis_reader import GARBLED, SCAN_COUNT, RedisReader, RedisReadError
from ratelimited_executor.cli.screen import console_of, print_line, warn
from ratelimited_executor.cli.stopping import termination_interrupts
from ratelimited_executor.peers.redis.ticket_inspection import limits_of, names_of, pattern_of
from ratelimited_executor.peers.redis.ticket_script import ticket_keys_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from ratelimited_executor.cli.operate.redis_reader import GroupOptions

__all__ = ["GroupReader", "PeersOptions", "show_peers"]

_SEARCH_SECONDS: Final = 10.0  # between two searches for limits, as each scans all keys of the server


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersOptions:
    """The command line of ``peers``, each option valid by itself; ``interval`` in seconds."""

    url: str
    group: str = "default"
    prefix: str = "rle"
    once: bool = False
    interval: float = 1.0
    as_json: bool = False


def show_peers(
    options: PeersOptions, *, console: Console | None = None, sleep: Callable[[float], None] = time.sleep
) -> ExitStatus:
    """Show a group: on a terminal until interrupted, otherwise once.

    Args:
        options: the command line.
        console: the output; standard output by default.
        sleep: waits for a number of seconds.

    Returns:
        DONE if there were limits to show, else FAILED.

    Raises:
        CommandError: if Redis cannot be read.
    """
    console = console_of(console)
    with GroupReader(options) as reader:
        try:
            picture = reader.read()
            reason = None if picture.limits or picture.slots else reader.why_nothing("limits")
        except RedisReadError as error:
            raise CommandError(str(error)) from error
        if reason is not None:
            warn(reason)
            return ExitStatus.FAILED
        if options.as_json:
            print_line(console, to_json(picture))
        elif options.once or not console.is_terminal:
            console.print(draw(picture))
        else:
            _watch(console, reader, picture, lambda: sleep(options.interval))
    return ExitStatus.DONE


def _watch(console: Console, reader: GroupReader, picture: Picture, wait: Callable[[], None]) -> None:
    """Show the group until interrupted; while Redis does not respond, the last picture stays."""
    with termination_interrupts(), Live(draw(picture), console=console, auto_refresh=False) as live:
        live.refresh()
        while True:
            wait()
            error = None
            try:
                picture = reader.read()
            except RedisReadError as failure:
                error = str(failure)
            live.update(draw(picture, error), refresh=True)


class GroupReader(RedisReader):
    """Reads the limits of one group.

    Args:
        options: the group and its server.
        command: the command that reads it, for messages.
        argument: the argument with the URL, for messages.

    Raises:
        CommandError: if the extra is missing, the URL cannot be used, or no server responds there.
    """

    def __init__(self, options: GroupOptions, *, command: str = "peers", argument: str = "--redis") -> None:
        super().__init__(options, command=command, argument=argument)
        self._names: list[str] = []
        self._searched: float | None = None

    def read(self, names: Sequence[str] | None = None) -> Picture:
        """Read all limits of the group.

        Args:
            names: the names of its executors; None to search for them.

        Raises:
            RedisReadError: if Redis cannot be read.
        """
        try:
            node = self._node()
            if names is None:
                self._search(node)
                names = self._names
            seconds, microseconds = self._client.time(**node)
            now_us = seconds * 1_000_000 + microseconds
            with self._client.pipeline(transaction=False) as pipeline:
                for name in names:
                    tickets, _, _, seen = ticket_keys_of(self._prefix, self._group, name)
                    pipeline.execute_command("HGETALL", tickets, NEVER_DECODE=True)  # a part is binary
                    pipeline.zrange(seen, 0, -1, withscores=True)
                answers = iter(pipeline.execute())
            limits = [limits_of(name, now_us, next(answers), dict(next(answers))) for name in names]
        except (*self._errors, *GARBLED) as error:
            raise RedisReadError(self._why(error)) from error
        return Picture(
            prefix=self._prefix,
            group=self._group,
            now_us=now_us,
            limits=[each for each in limits if each is not None],
            slots=self.read_slots(),
        )

    def _search(self, node: dict[str, Any]) -> None:
        """Find the names of the group's executors, at most once per ``_SEARCH_SECONDS``."""
        now = time.monotonic()
        if self._names and self._searched is not None and now - self._searched < _SEARCH_SECONDS:
            return
        keys = self._client.scan_iter(match=pattern_of(self._prefix, self._group), count=SCAN_COUNT, **node)
        self._names = names_of(keys, self._prefix, self._group)
        self._searched = now
