"""What every user of PostgreSQL needs: the driver, and a connection string that is safe to use."""

from __future__ import annotations

import re
from typing import Any, Final

from ratelimited_executor._core.urls import ENCODE
from ratelimited_executor.exceptions import StoreUnavailableError

__all__ = ["check_conninfo", "check_text", "driver_for", "is_permanent", "versions_of"]

_CREDENTIALS: Final = ("user", "password")  # parts of a conninfo that may contain any character
# Of a connection that lasting settings refuse; a server that starts or is full says something else, and so does one in another language.
_REFUSED: Final = re.compile(
    r'(?:database|role) ".*" does not exist|authentication failed|no password supplied|permission denied for database'
    r"|is not permitted to log in|no pg_hba\.conf entry|invalid (?:\w+ value|port number)"
)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REFUSED_STATES: Final = ("28", "3D", "3F", "42")  # a wrong login, database or schema; a missing right or table


def driver_for(user: str) -> Any:
    """Return the package psycopg.

    Raises:
        ModuleNotFoundError: if it is not installed; the message says what to install.
    """
    try:
        import psycopg  # noqa: PLC0415  # the extra `postgres`
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{user} needs the package psycopg: pip install 'ratelimited-executor[postgres]'", name=error.name
        ) from error
    return psycopg


def check_text(conninfo: Any) -> None:
    """Refuse what is no connection string.

    Raises:
        TypeError: if it is not a str.
        ValueError: if it is neither a URL of PostgreSQL nor ``name=value``; it is not shown, as it may hold a password.
    """
    if not isinstance(conninfo, str):
        raise TypeError(f"conninfo must be a str such as 'postgresql://host/database', got {type(conninfo).__name__}")
    scheme = _SCHEME.match(conninfo)
    if scheme is None and "=" not in conninfo:
        found = "neither" if conninfo else "an empty one"
    elif scheme is not None and scheme[1] not in ("postgresql", "postgres"):
        found = f"a URL of the scheme {scheme[1]!r}"
    else:
        return
    raise ValueError(
        f"conninfo must be a str such as 'postgresql://host/database' or 'host=... dbname=...', got {found}"
    )


def check_conninfo(user: str, driver: Any, conninfo: str) -> None:
    """Refuse text that libpq cannot read, or reads otherwise than it was meant: its messages would repeat a password.

    Raises:
        StoreUnavailableError: for such a text.
    """
    try:
        parts = driver.conninfo.conninfo_to_dict(conninfo.partition("\0")[0])
    except (driver.ProgrammingError, UnicodeError):
        parts = None
    if parts is None or "\0" in conninfo:
        reason = "it must be a URL such as 'postgresql://user@host/database', or name=value ..."
    elif "://" in conninfo and _is_cut(parts):
        reason = f"its user name or password ends too early; {ENCODE}"
    else:
        return
    raise StoreUnavailableError(user, f"conninfo cannot be read: {reason}", is_permanent=True)


def is_permanent(error: Any) -> bool:
    """True if the server refuses what it will refuse again, such as a password or a right; not while it starts.

    Args:
        error: an error of the driver; those of a connection have a text and no SQLSTATE.
    """
    state = getattr(error, "sqlstate", None)
    return _REFUSED.search(str(error)) is not None if state is None else state.startswith(_REFUSED_STATES)


async def versions_of(connection: Any, table: str) -> tuple[int, int] | None:
    """Return the versions of a schema by the table that has them; None if there is no such table."""
    found = await (await connection.execute(f"select to_regclass('{table}')")).fetchone()
    if found == (None,):
        return None
    return await (await connection.execute(f"select version, least from {table}")).fetchone() or (0, 0)  # noqa: S608  # of ours


def _is_cut(parts: dict[str, Any]) -> bool:
    """True if the rest of a password, which should have been encoded, has become a part of its own."""
    others = [str(value) for name, value in parts.items() if name not in _CREDENTIALS]
    ports = str(parts.get("port", "")).split(",")
    return any("@" in value for value in others) or any(port and not port.isdecimal() for port in ports)
