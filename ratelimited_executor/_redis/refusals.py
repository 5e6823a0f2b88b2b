"""The refusals of a Redis server, with remedies."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["is_permanent", "remedy_of"]

_REFUSALS: Final = {
    "ResponseError",
    "AuthenticationError",
    "BusyLoadingError",
}  # by name: other clients have their own classes
# By words in the error's class and text; the first match counts. These last until somebody changes something ...
_LASTING: Final = (
    (("NoPermissionError", "NOPERM", "ACL failure", "can't run this command", "can't access"),
     "grant its user the rights that the how-to lists: ACL SETUSER"),
    (("AuthenticationError", "NOAUTH", "WRONGPASS", "AuthenticationWrongNumberOfArgsError"),
     "set the server's user name and password in the URL: redis://user:password@host:port"),
    (("WRONGTYPE",), "a key of this name is of another type: delete it, or choose another group or prefix"),
    (("DB index", "SELECT is not allowed"), "choose a database that the server has: redis://host:port/0"),
    (("MovedError", "MOVED"), "this server is part of a cluster: hand in a client of redis.asyncio.RedisCluster"),
)  # fmt: skip
# ... and these may end by themselves.
_PASSING: Final = (
    (("ReadOnlyError", "READONLY"), "this server is a replica: connect to its master, as a Sentinel client of redis-py does"),
    (("BusyLoadingError", "LOADING"), "the server is still reading its data; it answers when that is done"),
    (("OutOfMemoryError", "OOM"), "the server is full: raise its maxmemory"),
    (("NOREPLICAS",), "the server has fewer replicas than its min-replicas-to-write"),
)  # fmt: skip


# A missing right, as servers word it: Valkey and Redis 7.2 name the command. In a script, Redis 6.2 to 7.0 name the script
# and the line of the call instead.
_COMMAND: Final = re.compile(r"permissions to run the '([^']+)' command")
_SCRIPT: Final = re.compile(r"\b(?:f_)?([0-9a-f]{40})\b")
_SCRIPT_LINE: Final = re.compile(r"@user_script: ?(\d+)")
_CALL: Final = re.compile(r"redis\.p?call\('([^']+)'")


def remedy_of(error: BaseException, scripts: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return the server's message and a remedy, which may be empty; None for a lost connection.

    Args:
        error: an error of a client.
        scripts: texts of those that may have run, to name a command for which the user lacks the right.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds.isdisjoint(_REFUSALS):
        return None
    reason = f"{type(error).__name__}: {error}"
    remedy = next((remedy for words, remedy in (*_LASTING, *_PASSING) if any(word in reason for word in words)), "")
    commands = _commands_without_right(str(error), scripts)
    return reason, f"{remedy} (missing: {commands})" if commands else remedy


def is_permanent(error: BaseException) -> bool:
    """True if a server refuses what it will refuse again, until somebody changes it."""
    refusal = remedy_of(error)
    return refusal is not None and any(word in refusal[0] for words, _ in _LASTING for word in words)


def _commands_without_right(text: str, scripts: Iterable[str]) -> str:
    """Return the command that the user may not run, as ACL SETUSER takes it; empty if the server's words do not tell."""
    if named := _COMMAND.search(text):
        return f"+{named[1]}"
    script, line = _SCRIPT.search(text), _SCRIPT_LINE.search(text)
    if "can't run this command" not in text or script is None or line is None:
        return ""
    for each in scripts:
        if hashlib.sha1(each.encode(), usedforsecurity=False).hexdigest() == script[1]:  # as servers identify scripts
            return " or ".join(f"+{name.lower()}" for name in _CALL.findall(each.split("\n")[int(line[1]) - 1]))
    return ""
