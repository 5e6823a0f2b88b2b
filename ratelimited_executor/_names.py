"""What to say about a name that a module does not have: where it is, or which name may have been meant."""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from functools import cache
from opcode import opmap
from pathlib import Path
from typing import Any, Final

__all__ = ["PUBLIC", "unknown_name"]

_PACKAGE: Final = "ratelimited_executor"
PUBLIC: Final = (
    "policies", "orders", "handles", "cycles", "peers", "retries", "insight", "exceptions", "abc", "typing", "slots",
    "blocking", "durable", "front", "dashboard", "metrics", "tracing", "spread", "simulation", "testing",
)  # fmt: skip
"""The public modules below the package, as ``docs/reference/modules.md`` lists them."""


def unknown_name(module: str, name: str) -> Exception:
    """Return the error for a name that a module does not have, for its ``__getattr__`` to raise.

    ``from ... import`` would replace an AttributeError by an ImportError without the hint, so it gets one with the hint.
    """
    frame: Any = sys._getframe(2)  # noqa: SLF001  # of the caller of ``__getattr__``
    if frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
        return ImportError(f"cannot import name {name!r} from {module!r}{_hint(module, name)}", name=module)
    # Without ``name`` the traceback would add a hint of its own.
    return AttributeError(f"module {module!r} has no attribute {name!r}{_hint(module, name)}", name=name)


def _hint(module: str, name: str) -> str:
    """Return where a name is, or the nearest public name."""
    if name.startswith("_"):  # tools ask for these
        return ""
    homes = {each: home for home, names in _names().items() for each in names}
    homes |= dict.fromkeys(_names().get(module, ()), module)  # of several homes, the one that was asked
    if name in homes:
        return f": write 'from {homes[name]} import {name}'"
    for near in get_close_matches(name, [*homes, *PUBLIC], n=1, cutoff=0.75):
        if near in PUBLIC:
            return f": did you mean the module {_PACKAGE}.{near}?"
        return f": did you mean {near}{'' if homes[near] == module else f', of {homes[near]}'}?"
    return "; docs/reference/modules.md has all names"


@cache
def _names() -> dict[str, list[str]]:
    """Return the names that each public module exports, from its source: some modules cannot be loaded without an extra."""
    here = Path(__file__).parent
    found = {}
    for module in (*PUBLIC, ""):
        file = here / f"{module}.py"
        try:
            source = (file if module and file.exists() else here / module / "__init__.py").read_text(encoding="utf-8")
        except OSError:  # no folder, but an archive, say
            continue
        exported = re.search(r"^__all__ = \[(.*?)\]", source, re.MULTILINE | re.DOTALL)
        found[f"{_PACKAGE}.{module}".rstrip(".")] = re.findall(r'"(\w+)"', exported[1]) if exported else []
    return found
