"""Makes the C structs of the kernel's classes from their list in Python, ``fields.py``; run as a program, prints them.

What a struct has in C only is in a class of the same name in ``_structs.pxi``, whose lines come after the fields. A field
that is a property there lies nowhere else.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

FIELDS = "fields.py"
MORE = "_structs.pxi"
MADE = "_fields.pxi"  # included by _compiled.pyx; never beside it

# By the annotation, or by what it is of, as list[int] of list. A class of fields.py is its own; all else is an object.
C_TYPES = {
    "array": "carray.array",
    "bool": "bint",
    "dict": "dict",
    "float": "double",
    "int": "long long",
    "list": "list",
}


def structs(folder: Path) -> str:
    """Return the text of ``_fields.pxi`` for the sources in a folder."""
    tree = ast.parse((folder / FIELDS).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    c_types = C_TYPES | {node.name: node.name for node in classes}
    _, *pieces = re.split(r"^cdef class (\w+):\n", (folder / MORE).read_text(encoding="utf-8"), flags=re.MULTILINE)
    more = dict(zip(pieces[::2], pieces[1::2], strict=True))
    if unknown := more.keys() - c_types.keys():
        raise LookupError(f"{MORE} has {', '.join(unknown)}, which {FIELDS} does not have")
    forward = "".join(f"cdef class {node.name}\n" for node in classes)  # a struct may refer to a later one
    return forward + "".join(f"\n\n{_struct(node, c_types, more.get(node.name, ''))}" for node in classes)


def _struct(node: ast.ClassDef, c_types: dict[str, str], more: str) -> str:
    """Return the struct of a class, its fields by type: so there are no gaps between them."""
    names: dict[str, list[str]] = {}
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            name, annotation = field.target.id, field.annotation
            kind = annotation.value if isinstance(annotation, ast.Subscript) else annotation
            if name == "__weakref__":  # Cython knows it by its name
                names["object"] = [name]
            elif f" def {name}(" not in more:
                c_type = c_types.get(kind.id, "object") if isinstance(kind, ast.Name) else "object"
                names.setdefault(f"public {c_type}", []).append(name)
    fields = "".join(f"    cdef {kind} {', '.join(of_kind)}\n" for kind, of_kind in sorted(names.items()))
    return f"cdef class {node.name}:\n{fields}{more}".rstrip() + "\n"


if __name__ == "__main__":
    print(structs(Path(__file__).resolve().parent.parent / "ratelimited_executor/_kernel"), end="")
