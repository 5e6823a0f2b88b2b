"""Parameters of scenario files: values that a run may set, written as ``"{name}"`` where they apply."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["with_parameters"]

_NAME: Final = re.compile(r"\{([^\W\d]\w*)\}")


def with_parameters(table: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file with the values of its parameters.

    Args:
        table: the content; its table ``parameters`` has the names and their usual values.
        given: other values, by name.

    Raises:
        TypeError: if the parameters are not a table of numbers, texts, true and false.
        ValueError: if there is no such parameter, or a name in braces is none.

    >>> with_parameters({"parameters": {"workers": 8}, "executors": {"api": {"max_concurrency": "{workers}"}}}, {"workers": 12})
    {'parameters': {'workers': 12}, 'executors': {'api': {'max_concurrency': 12}}}
    """
    usual = table.get("parameters", {})
    if not isinstance(usual, dict):
        raise TypeError(f"parameters must be a table such as [parameters], got {usual!r}")
    for name, value in usual.items():
        if not _NAME.fullmatch(f"{{{name}}}"):
            raise ValueError(f"[parameters] {name!r} must be a name of letters, digits and underscores")
        if not isinstance(value, (bool, int, float, str)):
            raise TypeError(f"[parameters] {name} must be a number, a text, true or false, got {value!r}")
    there = ", ".join(usual) or "none"
    for name in given:
        if name not in usual:
            raise ValueError(f"there is no parameter {name}: [parameters] has {there}")
    values = {**usual, **given}
    used: set[str] = set()

    def value_of(name: str) -> Any:
        if name not in values:
            raise ValueError(f"{{{name}}} must be a parameter: [parameters] has {there}")
        used.add(name)
        return values[name]

    def replaced(found: Any) -> Any:
        if isinstance(found, dict):
            return {key: replaced(value) for key, value in found.items()}
        if isinstance(found, list):
            return [replaced(value) for value in found]
        if not isinstance(found, str):
            return found
        if match := _NAME.fullmatch(found):
            return value_of(match[1])
        return _NAME.sub(lambda match: str(value_of(match[1])), found)

    if "parameters" not in table and not given:
        return dict(table)
    made = {key: replaced(value) for key, value in table.items() if key != "parameters"}
    if unused := sorted(set(usual) - used):
        raise ValueError(f'parameter {unused[0]} is used nowhere: write "{{{unused[0]}}}" where it applies')
    return {**({"parameters": values} if "parameters" in table else {}), **made}
