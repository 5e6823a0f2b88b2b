"""The pairs of pure and compiled bodies, with a checksum of each: ``python -m tests.kernel.twins`` writes it down anew.

A pure body that has a compiled twin does not run where the extension does: an edit of it alone changes nothing there, and
the tests still pass. So ``twins.json`` keeps what both were when somebody last held them side by side.
"""

import ast
import json
import re
from pathlib import Path
from zlib import crc32

import ratelimited_executor

PACKAGE = Path(ratelimited_executor.__file__).parent
WRITTEN = Path(__file__).with_name("twins.json")


def pure_bodies() -> dict[str, tuple[str, int]]:
    """Return the file and the checksum of each pure body that has a twin, by qualified name; comments do not count."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        for parent in ast.walk(ast.parse(text)) if "@two_bodies" in text else ():
            for node in getattr(parent, "body", ()) if isinstance(parent, (ast.Module, ast.ClassDef)) else ():
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and _has_twin(node):
                    name = f"{parent.name}.{node.name}" if isinstance(parent, ast.ClassDef) else node.name
                    assert name not in found, f"{name} has two pure bodies"
                    block = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
                    found[name] = path.relative_to(PACKAGE).as_posix(), _checksum(block)
    return found


def _checksum(block: str) -> int:
    """Return the checksum of lines of code, without comments and docstrings."""
    code = re.sub(r"\s*#[^\n]*|\n\s*(?=\n)", "", re.sub(r'""".*?"""', "", block, flags=re.DOTALL))
    return crc32(code.strip().encode())


def _has_twin(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "two_bodies" for each in node.decorator_list)


def compiled_bodies() -> dict[str, tuple[str, int]]:
    """Return the same for the compiled bodies, as the table in ``_compiled.pyx`` names them."""
    blocks: dict[str, tuple[str, int]] = {}
    for path in sorted((PACKAGE / "_kernel").glob("*.p[yx][ix]")):
        for block in re.split(r"\n(?=\S)", path.read_text()):
            head = re.match(r"(?:def|cpdef|cdef class|class) +(\w+)", block)
            if head is not None:
                blocks[head[1]] = path.name, _checksum(block)
    table = re.search(
        r"^bodies = {\n(.*?)^}", (PACKAGE / "_kernel/_compiled.pyx").read_text(), re.DOTALL | re.MULTILINE
    )
    assert table is not None
    return {name: blocks[function] for name, function in re.findall(r'"([\w.]+)": (\w+),', table[1])}


def checksums() -> dict[str, list[int]]:
    """Return the checksums of both bodies by qualified name."""
    compiled = compiled_bodies()
    return {name: [pure, compiled[name][1]] for name, (_, pure) in sorted(pure_bodies().items())}


if __name__ == "__main__":
    lines = ",\n".join(f'  "{name}": {numbers}' for name, numbers in checksums().items())
    WRITTEN.write_text(f"{{\n{lines}\n}}\n")
