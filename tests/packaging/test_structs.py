"""The C structs of the kernel are made of the list of fields in Python."""

import runpy
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".packaging" / "structs.py"
FIELDS = '''
from __future__ import annotations

BigInt: TypeAlias = int


class ShelfFields:
    """Fields of a shelf."""

    __weakref__: Any
    _label: str
    books: list[Any]
    count: int
    first: BookFields
    guests: list[Any] | None
    is_full: bool
    number: BigInt
    titles: dict[int, Any]
    width: float
    widths: array[float]

    __slots__ = tuple(__annotations__)


class BookFields:
    """Fields of a book."""

    _page: Any
    count: int

    __slots__ = tuple(__annotations__)
'''
MORE = """# What else there is.

cdef class BookFields:
    cdef int page  # as of now

    @property
    def _page(self):
        return self.page
"""
STRUCTS = """cdef class ShelfFields
cdef class BookFields


cdef class ShelfFields:
    cdef object __weakref__
    cdef public BookFields first
    cdef public bint is_full
    cdef public carray.array widths
    cdef public dict titles
    cdef public double width
    cdef public list books
    cdef public long long count
    cdef public object _label, guests, number


cdef class BookFields:
    cdef public long long count
    cdef int page  # as of now

    @property
    def _page(self):
        return self.page
"""


def structs(folder, more):
    """Return the structs made of the sources above, written to a folder."""
    (folder / "fields.py").write_text(FIELDS, encoding="utf-8")
    (folder / "_structs.pxi").write_text(more, encoding="utf-8")
    return runpy.run_path(str(PROGRAM))["structs"](folder)


def test_annotations_say_what_a_struct_has(tmp_path):
    """A struct has the fields of its class by their annotations, and what else C has; a property there is no field."""
    assert STRUCTS == structs(tmp_path, MORE)


def test_what_c_has_must_belong_to_a_class(tmp_path):
    """What C has for a class that the list does not have, as after a renaming, ends the build."""
    with pytest.raises(LookupError, match=r"_structs.pxi has BoxFields, which fields.py does not have"):
        structs(tmp_path, MORE.replace("BookFields", "BoxFields"))
