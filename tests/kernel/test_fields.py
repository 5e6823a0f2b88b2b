"""The fields of the hot classes are the same in both bodies of the kernel."""

import ast
import inspect

import pytest

from ratelimited_executor._kernel import fields
from ratelimited_executor._kernel.choice import compiled

CLASSES = [node for node in ast.parse(inspect.getsource(fields)).body if isinstance(node, ast.ClassDef)]


def slots_of(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class in pure Python, from its source: a compiled kernel does not use the class."""
    (slots,) = (one.value for one in node.body if isinstance(one, ast.Assign))
    return set(ast.literal_eval(slots))


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_both_bodies_have_the_same_fields(node):
    """Each slot of the pure body has a field in the compiled struct, and the reverse."""
    assert slots_of(node) - {"__weakref__"} == {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
    base = getattr(fields, node.name)
    assert compiled is None or base is getattr(compiled, node.name)
    assert slots_of(node) - {"__weakref__"} == {name for name in vars(base) if not name.startswith("__")}


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_no_field_lies_twice(node):
    """No class repeats a field of its base as a slot: the compiled body would read the other one."""
    base = getattr(fields, node.name)
    for cls in base.__subclasses__():
        for lower in [cls, *cls.__subclasses__()]:
            assert not slots_of(node) & set(vars(lower)), lower
