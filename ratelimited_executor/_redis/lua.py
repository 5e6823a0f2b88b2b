"""Lua scripts: a file beside the Python that runs it, and one declaration of its keys and arguments.

The keys of a script are declared by their names, its arguments by a dataclass. The declaration alone determines the
order of both: Python writes texts in that order, and a *preamble* before the text of the file lets the script read them
by name. For keys ``complete`` and ``claims``, and the arguments of a claim::

    local keys = {complete = KEYS[1], claims = KEYS[2]}
    local args = {turn = tonumber(ARGV[1]), owner = ARGV[2], lease_ms = tonumber(ARGV[3])}

So a script uses ``keys.claims`` and ``args.owner``, the names that Redis passes to its functions, and never ``KEYS`` or
``ARGV``. An undeclared name is nil in Lua; a test searches the files for such names.
"""

from __future__ import annotations

import json
from dataclasses import fields
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from _typeshed import DataclassInstance

__all__ = ["LuaScript"]

A = TypeVar("A", bound="DataclassInstance")

# For each type of an argument: the Lua expression that reads it, and the Python function that writes it.
_FORMS: Final[dict[type, tuple[str, Callable[[Any], str | bytes]]]] = {
    str: ("ARGV[{}]", str),
    bytes: ("ARGV[{}]", bytes),
    int: ("tonumber(ARGV[{}])", str),  # exact below 2**53, as all numbers of Lua
    bool: ("ARGV[{}] == '1'", lambda value: "1" if value else "0"),
    # Text, because the script may store it: Lua writes only 14 digits of a number, Python all of them.
    float: ("ARGV[{}]", lambda value: repr(float(value))),
    tuple: (
        "ARGV[{0}] == '[]' and {{}} or cjson.decode(ARGV[{0}])",
        lambda value: json.dumps(value, separators=(",", ":")),
    ),
}


class LuaScript(Generic[A]):
    """One script and its declaration.

    Args:
        package: the package that contains its file.
        file: its name; or several names: files with local functions, and last the one with the main text.
        keys: the names of its keys.
        texts: fields with tuples that the script decodes by itself, because it may store their text.
        arguments: a dataclass, whose fields are its arguments: texts, bytes, integers, floats, bools, and tuples of these or of tuples.
        constants: numbers shared by Python and the script; their names are upper case.

    Raises:
        TypeError: if a field has another type.
    """

    __slots__ = ("_writers", "keys", "text")

    def __init__(
        self,
        package: str,
        file: str | Sequence[str],
        *,
        keys: Iterable[str],
        arguments: type[A],
        texts: Collection[str] = (),
        **constants: int,
    ) -> None:
        self.keys = tuple(keys)
        kinds = {name: get_origin(kind) or kind for name, kind in get_type_hints(arguments).items()}
        names = [field.name for field in fields(arguments)]
        for name in names:
            if kinds[name] not in _FORMS:
                raise TypeError(
                    f"{arguments.__name__}.{name} must be a str, bytes, int, float, bool or tuple, it is {kinds[name]}"
                )
        self._writers = [(name, _FORMS[kinds[name]][1]) for name in names]
        preamble = [
            *(f"local {name} = {value}" for name, value in constants.items()),
            _table("keys", ((name, f"KEYS[{place}]") for place, name in enumerate(self.keys, start=1))),
            _table(
                "args",
                (
                    (name, _FORMS[str if name in texts else kinds[name]][0].format(place))
                    for place, name in enumerate(names, start=1)
                ),
            ),
        ]
        paths = [files(package).joinpath(each) for each in ([file] if isinstance(file, str) else file)]
        self.text = "\n".join([*preamble, *(each.read_text(encoding="utf-8") for each in paths)])

    def write(self, arguments: A) -> list[Any]:
        """Write the arguments of a call, in the script's order."""
        return [write(getattr(arguments, name)) for name, write in self._writers]


def _table(name: str, entries: Iterable[tuple[str, str]]) -> str:
    return f"local {name} = {{{', '.join(f'{key} = {value}' for key, value in entries)}}}"
