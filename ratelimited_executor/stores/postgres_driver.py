"""What every user of PostgreSQL needs: the driver, and a connection string that is safe to use."""

from __future__ import annotations

from typing import Any, Final

from ratelimited_executor._core.urls import ENCODE
from ratelimited_executor.exceptions import StoreUnavailableError

__all__ = ["check_conninfo", "check_text", "driver_for"]

_CREDENTIALS: Final = ("user", "password")  # parts of a conninfo that may contain any character


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
        ValueError: if it is empty.
    """
    if not isinstance(conninfo, str):
        raise TypeError(f"conninfo must be a str such as 'postgresql://host/database', got {type(conninfo).__name__}")
    if not conninfo:
        raise ValueError("conninfo must be a str such as 'postgresql://host/database', got an empty one")


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
    raise StoreUnavailableError(user, f"conninfo cannot be read: {reason}")


def _is_cut(parts: dict[str, Any]) -> bool:
    """True if the rest of a password, which should have been encoded, has become a part of its own."""
    others = [str(value) for name, value in parts.items() if name not in _CREDENTIALS]
    ports = str(parts.get("port", "")).split(",")
    return any("@" in value for value in others) or any(port and not port.isdecimal() for port in ports)
