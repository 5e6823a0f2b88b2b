"""The fields of the hot classes are the same in both bodies of the kernel."""

import ast
import copy
import inspect

import pytest

from ratelimited_executor._kernel import fields
from ratelimited_executor._kernel.choice import compiled

CLASSES = [node for node in ast.parse(inspect.getsource(fields)).body if isinstance(node, ast.ClassDef)]


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class, from the source: a compiled kernel does not use the class."""
    return {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_both_bodies_have_the_same_fields(node):
    """Each field in the list is a slot of the pure body and a field of the compiled struct, and the reverse."""
    base = getattr(fields, node.name)
    assert compiled is None or base is getattr(compiled, node.name)
    assert fields_of(node) == set(fields.FIELDS[node.name])
    assert fields_of(node) - {"__weakref__"} == {name for name in vars(base) if not name.startswith("__")}


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_no_body_can_be_copied(node):
    """A copy is refused, by both kernels alike, unless a class says how: others know the object by its identity."""
    kind = type("Body", (getattr(fields, node.name),), {"__slots__": ()})
    with pytest.raises(TypeError, match="^cannot pickle 'Body' object$"):
        copy.copy(kind.__new__(kind))


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_no_field_lies_twice(node):
    """No class repeats a field of its base as a slot: the compiled body would read the other one."""
    base = getattr(fields, node.name)
    for cls in base.__subclasses__():
        for lower in [cls, *cls.__subclasses__()]:
            assert not fields_of(node) & set(vars(lower)), lower
