"""``slots`` from its options to its exit status: shows the pools of a group, sets a limit, releases a slot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.escapes import visible
from ratelimited_executor._core.fleet.slots import SlotCall
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.operate.redis_reader import RedisReader, RedisReadError
from ratelimited_executor.cli.operate.slots_view import draw_slots, slots_fields
from ratelimited_executor.cli.screen import console_of, print_line, warn
from ratelimited_executor.peers.redis.slot_inspection import SlotsView
from ratelimited_executor.peers.redis.slot_script import (
    SLOT_SCRIPT,
    slot_arguments_of,
    slot_keys_of,
    slot_reply_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console

    from ratelimited_executor.peers.redis.slot_inspection import ClaimView

__all__ = ["SlotsOptions", "show_slots"]

_NO_SLOTS = SlotsView(pools=(), quarantine=None, lease=10.0, difference=1.0)  # as of `RedisPeers` by default


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsOptions:
    """The command line of ``slots``, each option valid by itself."""

    url: str
    group: str = "default"
    prefix: str = "rle"
    limits: tuple[tuple[str, int], ...] = ()
    release: int | None = None
    is_sure: bool = False
    as_json: bool = False


def show_slots(options: SlotsOptions, *, confirm: Callable[[str], bool], console: Console | None = None) -> ExitStatus:
    """Carry out the requested changes, and show the pools afterwards.

    Args:
        options: the command line.
        confirm: asks a question.
        console: the output; standard output by default.

    Returns:
        DONE if the changes were made and the pools shown, else FAILED.

    Raises:
        CommandError: if Redis cannot be read or written, or there is no such slot.
    """
    console = console_of(console)
    with SlotsEditor(options, command="slots") as editor:
        try:
            slots = editor.read_slots()
            if slots is None:
                nothing = editor.why_nothing("slots")
                if not options.limits or options.release is not None:
                    warn(nothing)
                    return ExitStatus.FAILED
                warn(f"Warning: {nothing}")  # the name of the group may be misspelt
                slots = _NO_SLOTS
            _check_limits(slots, options.limits)
            if options.release is not None:
                claim = _holder_of(slots, options.release)
                if not options.is_sure and not confirm(_question(slots, claim)):
                    return ExitStatus.FAILED
                editor.change(slots, releases=(claim.token,))
            if options.limits:
                editor.change(slots, limits=options.limits)
                _tell_of_new_pools(slots, options.limits)
            if options.limits or options.release is not None:
                slots = editor.read_slots() or slots
        except RedisReadError as error:
            raise CommandError(str(error)) from error
    if options.as_json:
        print_line(console, json.dumps(slots_fields(slots)))
    else:
        console.print(Group(*draw_slots(slots)[1:]))
    return ExitStatus.DONE


def _check_limits(slots: SlotsView, limits: Iterable[tuple[str, int]]) -> None:
    """Refuse to set a limit of a key.

    Raises:
        CommandError: if a limit is for a key.
    """
    by_key = {pool.name for pool in slots.pools if pool.is_by_key}
    for name, _ in limits:
        if name in by_key:
            raise CommandError(
                f"--set: the limit of {name!r} is key_concurrency of its executor in each process: change that"
            )


def _tell_of_new_pools(slots: SlotsView, limits: Iterable[tuple[str, int]]) -> None:
    """Report new pools on standard error, since a name may be misspelt."""
    known = [pool.name for pool in slots.pools if not pool.is_by_key]
    for name, _ in limits:
        if name not in known:
            others = f"; there were: {', '.join(map(visible, known))}" if known else ""
            warn(f"Warning: --set: {name!r} is a new pool of this group{others}")


def _holder_of(slots: SlotsView, fence: int) -> ClaimView:
    """Return the slot with a fence.

    Raises:
        CommandError: if there is no such slot.
    """
    for pool in slots.pools:
        for claim in pool.holders:
            if claim.fence == fence:
                return claim
    raise CommandError(f"--release: no holder has a slot with fence {fence}")


def _question(slots: SlotsView, claim: ClaimView) -> str:
    pools = " and ".join(map(visible, claim.pools))
    silence = f"Nobody in the group has called for {format_duration(slots.last_call)}. " if slots.is_stale else ""
    return (
        f"{visible(claim.name)} on {visible(claim.node)} has held a slot of {pools} for {format_duration(claim.age)}; its lease "
        f"ends in {format_duration(max(0.0, claim.left))} unless it is renewed, as one that is alive does in each quarter. "
        f"{silence}If it is still at work, two will be at work in one slot. Release it?"
    )


class SlotsEditor(RedisReader):
    """Reads the slots of a group, and changes them."""

    def change(self, slots: SlotsView, **fields: Any) -> None:
        """Change a slot or a limit by the script.

        Raises:
            RedisReadError: if the script fails.
        """
        call = SlotCall(
            peer="operator",
            lease_us=round(slots.lease * 1e6),
            difference_us=round(slots.difference * 1e6),
            **fields,
        )
        keys = slot_keys_of(self._prefix, self._group)
        try:
            slot_reply_of(self._client.eval(SLOT_SCRIPT, len(keys), *keys, *slot_arguments_of(call)))
        except self._errors as error:
            raise RedisReadError(self._why(error, "changed")) from error
