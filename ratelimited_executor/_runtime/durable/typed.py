"""Arguments that JSON lacks, by the annotations of a durable function: written as JSON at the put, and read back for the run.

``[args, kwargs]`` stays as it is if no argument is of such a type. Otherwise a third item lists the typed arguments, by
position or name, and only these are read back: so tasks of earlier releases run as they did, whatever the annotations
say now.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import sys
import types
import typing
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NewType, TypeAlias
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["TypedArguments"]

Write: TypeAlias = "Callable[[Any], Any]"
_TEXTS: Final[dict[type, tuple[Write, Write]]] = {
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    UUID: (str, UUID),
    Decimal: (str, lambda plain: Decimal(_no_float(plain))),
}


def _no_float(plain: Any) -> Any:
    """Refuse a number that has lost digits already."""
    if isinstance(plain, float):
        raise TypeError(f"a decimal must be a string in JSON, such as '1.10', got the number {plain!r}")
    return plain


class TypedArguments:
    """The parameters of a function whose arguments are converted.

    Args:
        fn: the function.
        signature: its signature.
    """

    def __init__(self, fn: Callable[..., Any], signature: inspect.Signature) -> None:
        self._fn = fn
        self._signature = signature

    @cached_property
    def is_needed(self) -> bool:
        """True if some argument may be converted."""
        return any(converter is not None for converter in self._by_name.values())

    @cached_property
    def stored_signature(self) -> inspect.Signature:
        """The signature, with defaults as they are stored if they are passed."""
        parameters = dict(self._signature.parameters)
        for name, each in self._signature.parameters.items():
            converter = self._by_name[name]
            if converter is not None and each.default is not each.empty:
                with contextlib.suppress(TypeError, ValueError):  # another class than the annotation says
                    parameters[name] = each.replace(default=converter.write(name, each.default))
        return self._signature.replace(parameters=list(parameters.values()))

    @property
    def remedy(self) -> str:
        """The end of the message of an argument that cannot be encoded: annotations that name what cannot be found."""
        names = [name for name, hint in self._hints.items() if isinstance(hint, str)]
        return f"; the annotation of {', '.join(names)} names what cannot be found" if names else ""

    def wrong(self, args: Sequence[Any], kwargs: Mapping[str, Any], encode: Write) -> str:
        """The beginning of the message of an argument that cannot be encoded: its name; empty if that is not known."""
        for at, value in _given(args, kwargs):
            try:
                encode([[value], {}])
            except (TypeError, ValueError):
                return f"{self._name(at)}: "
        return ""

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return what a codec is given: ``[args, kwargs]``, and a list of the converted ones if there are any.

        Raises:
            TypeError: if an argument is not of its annotated type, or its type cannot be converted.
            ValueError: if its value cannot be converted.
        """
        plain_args, plain_kwargs, typed = list(args), dict(kwargs), list[int | str]()
        for at, value in _given(args, kwargs):
            converter = self._at(at)
            if converter is None:
                continue
            name = self._name(at)
            plain = converter.write(name, value)
            converter.read(json.loads(json.dumps(plain)))  # what cannot be read is an error here, and not in the run
            typed.append(at)
            if isinstance(at, int):
                plain_args[at] = plain
            else:
                plain_kwargs[at] = plain
        return [plain_args, plain_kwargs, typed] if typed else [args, kwargs]

    def read(
        self, args: list[Any], kwargs: dict[str, Any], typed: Sequence[int | str]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a run."""
        for at in typed:
            converter = self._at(at)
            if converter is None:
                raise TypeError(f"{self._name(at)} was put as an object, and its annotation says no type to read it as")
            found: Any = args if isinstance(at, int) else kwargs
            found[at] = converter.read(found[at])
        return args, kwargs

    def read_all(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a run that were put as values of JSON by somebody who did not know the function.

        Raises:
            TypeError: if the function does not take them.
        """
        self._signature.bind(*args, **kwargs)
        return self.read(args, kwargs, [at for at, _ in _given(args, kwargs) if self._at(at) is not None])

    def from_json(self, at: int | str, value: Any) -> Any:
        """Return the object that stands for a value of JSON, as an argument at a position or with a name."""
        converter = self._at(at)
        return value if converter is None else converter.read(value)

    def _name(self, at: int | str) -> str:
        return at if isinstance(at, str) else self._positional[min(at, len(self._positional) - 1)]

    def _at(self, at: int | str) -> _Converter | None:
        if isinstance(at, str) and at not in self._signature.parameters:
            at = self._rest
        return self._by_name.get(self._name(at))

    @cached_property
    def _positional(self) -> list[str]:
        keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        return [name for name, each in self._signature.parameters.items() if each.kind not in keyword] or [""]

    @cached_property
    def _rest(self) -> str:
        kind = inspect.Parameter.VAR_KEYWORD
        return next((name for name, each in self._signature.parameters.items() if each.kind is kind), "")

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return _hints_of(inspect.unwrap(self._fn), {n: p.annotation for n, p in self._signature.parameters.items()})

    @cached_property
    def _by_name(self) -> dict[str, _Converter | None]:
        """The converters; resolved at the first put or run, when the names in annotations have been defined."""
        found: dict[str, _Converter | None] = {}
        for name, hint in self._hints.items():
            converter = _converter_of(hint)
            if converter is not None and self._signature.parameters[name].default is None:
                converter = _optional(converter)
            found[name] = converter
        return found


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[int | str, Any]]:
    return [*enumerate(args), *kwargs.items()]


class _Converter(NamedTuple):
    """Writes a value as JSON, and reads it; ``write`` takes a name for errors, and the value."""

    write: Callable[[str, Any], Any]
    read: Callable[[Any], Any]


def _converter_of(hint: Any) -> _Converter | None:
    """Return a converter; None for types of JSON, which stay as they are, and for all others that are not known."""
    while (inner := _inside(hint)) is not None:
        hint = inner
    origin = typing.get_origin(hint) or hint
    parts = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        others = [part for part in parts if part is not type(None)]
        member = _converter_of(others[0]) if len(others) == 1 else None
        return None if member is None else _optional(member)
    if not isinstance(origin, type):
        return None
    if origin in (set, frozenset, list, tuple, dict):
        return _container(origin, parts)
    if origin in _TEXTS:
        return _text(origin)
    if issubclass(origin, Enum):
        return _Converter(lambda name, value: _exact(name, value, origin, isinstance(value, origin)).value, origin)
    return _structure(origin)


def _inside(hint: Any) -> Any:
    """Return the type that a new type, an alias or an annotated one stands for; None for all others."""
    if isinstance(hint, NewType):
        return hint.__supertype__
    if type(hint).__name__ == "TypeAliasType":  # since Python 3.12
        return hint.__value__
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else None


def _structure(kind: type) -> _Converter | None:
    """Return the converter of a class with fields."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    model: Any = kind
    if hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json"):
        return _Converter(
            lambda name, value: _exact(name, value, kind).model_dump(
                mode="json", by_alias=True, round_trip=True, warnings=False
            ),
            lambda plain: model.model_validate_json(json.dumps(plain)),
        )
    if hasattr(kind, "__struct_fields__") and (msgspec := sys.modules.get("msgspec")) is not None:
        return _Converter(
            lambda name, value: msgspec.to_builtins(_exact(name, value, kind), str_keys=True),
            lambda plain: msgspec.convert(plain, kind, str_keys=True),
        )
    return None


def _text(kind: type) -> _Converter:
    write, read = _TEXTS[kind]
    return _Converter(lambda name, value: write(_exact(name, value, kind)), read)


def _optional(inner: _Converter) -> _Converter:
    return _Converter(
        lambda name, value: None if value is None else inner.write(name, value),
        lambda plain: None if plain is None else inner.read(plain),
    )


def _container(kind: Any, parts: Sequence[Any]) -> _Converter | None:
    """Return the converter of a container; None for lists, tuples and dicts of what JSON has."""
    if kind is dict:
        inner = _converter_of(parts[1]) if parts and parts[0] is str else None
        return None if inner is None else _Converter(
            lambda name, value: {key: inner.write(name, each) for key, each in _exact(name, value, dict).items()},
            lambda plain: {key: inner.read(each) for key, each in plain.items()},
        )  # fmt: skip
    is_fixed = kind is tuple and Ellipsis not in parts
    inners = [_converter_of(part) or _PLAIN for part in parts if part is not Ellipsis]
    if kind in (list, tuple) and all(inner is _PLAIN for inner in inners):
        return None
    first = inners[0] if inners else _PLAIN

    def write(name: str, value: Any) -> list[Any]:
        items = _exact(name, value, kind)
        if is_fixed and len(items) != len(inners):
            raise TypeError(f"{name} must have {len(inners)} items, got {len(items)}: {value!r}")
        pairs = zip(inners, items, strict=True) if is_fixed else ((first, item) for item in items)
        plain = [inner.write(name, item) for inner, item in pairs]
        return sorted(plain, key=json.dumps) if kind in (set, frozenset) else plain  # the same at each put

    def read(plain: Any) -> Any:
        pairs = zip(inners, plain, strict=True) if is_fixed else ((first, each) for each in plain)
        return kind(inner.read(each) for inner, each in pairs)

    return _Converter(write, read)


def _dataclass(kind: Any) -> _Converter:
    fields: dict[str, _Converter] = {}

    def known() -> dict[str, _Converter]:  # at the first use: a class may contain itself
        if not fields:
            hints = _hints_of(kind, {each.name: each.type for each in dataclasses.fields(kind) if each.init})
            fields.update((name, _converter_of(hint) or _PLAIN) for name, hint in hints.items())
        return fields

    def write(name: str, value: Any) -> dict[str, Any]:
        _exact(name, value, kind)
        return {field: inner.write(f"{name}.{field}", getattr(value, field)) for field, inner in known().items()}

    def read(plain: Any) -> Any:
        return kind(**{field: inner.read(plain[field]) for field, inner in known().items() if field in plain})

    return _Converter(write, read)


_PLAIN: Final = _Converter(lambda _, value: value, lambda plain: plain)


def _exact(name: str, value: Any, kind: type, is_fit: bool | None = None) -> Any:
    """Return a value; refuse one of another class, also of a subclass: it would be read back as another one."""
    if not (type(value) is kind if is_fit is None else is_fit):
        raise TypeError(f"{name} must be of the class {kind.__name__}, as it is annotated, got {value!r}")
    return value


def _hints_of(owner: Any, annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations, evaluated one by one; one that names what cannot be found stays a text."""
    module = sys.modules.get(getattr(owner, "__module__", ""))
    scope = {**({} if module is None else vars(module)), **getattr(owner, "__globals__", {})}
    if isinstance(owner, type):
        scope[owner.__name__] = owner
    elif inspect.isfunction(owner):
        for name, cell in zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it has no value yet
                scope[name] = cell.cell_contents
    hints = {}
    for name, annotation in annotations.items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints[name] = typing.get_type_hints(holder, scope, scope, include_extras=True)[name]
        except Exception:  # noqa: BLE001  # of an annotation, which is user code
            hints[name] = annotation if isinstance(annotation, str) else Any
    return hints
