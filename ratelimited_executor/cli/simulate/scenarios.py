"""Load a scenario by name: a strategy, a TOML file, or a class in a module or file."""

from __future__ import annotations

import inspect
import os
import re
import traceback
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

import ratelimited_executor
from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.targets import load_object
from ratelimited_executor.simulation import STRATEGIES, Scenario, load_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["describe_error", "load_scenario", "load_scenarios", "strategies_text"]

_LIBRARY_DIRECTORIES: Final = tuple(
    f"{Path(module.__file__ or '').parent}{os.sep}" for module in (ratelimited_executor, traceback)
)


def strategies_text() -> str:
    """Return a line for each built-in strategy."""
    width = max(map(len, STRATEGIES))
    lines = ((name, (inspect.getdoc(made) or "").partition("\n")[0]) for name, made in STRATEGIES.items())
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines)


def describe_error(error: BaseException) -> str:
    """Return an error as text, with its type and location if user code raised it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((*_LIBRARY_DIRECTORIES, "<"))]
    is_ours = not theirs or frames[-1].filename.startswith(_LIBRARY_DIRECTORIES[0])
    text = str(error) if is_ours and str(error) else f"{type(error).__name__}: {error}"
    return f"{text} ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else text


def load_scenarios(texts: Iterable[str], settings: Iterable[str]) -> list[Scenario]:
    """Return the named scenarios, ``strategies`` for all strategies, with some of their parameters set.

    Raises:
        CommandError: if there is no such scenario or parameter, or two have the same name.
    """
    names = [name for text in texts for name in (STRATEGIES if text == "strategies" else (text,))]
    values = list(settings)
    scenarios = [load_scenario(name, values) for name in names]
    seen = [scenario.name for scenario in scenarios]
    for name in seen:
        if seen.count(name) > 1:
            raise CommandError(
                f"two scenarios are called {name}: give one of them another name, or a parameter of its own as in slots[workers=10]"
            )
    return scenarios


def load_scenario(text: str, settings: Iterable[str] = ()) -> Scenario:
    """Return the named scenario; ``slots[workers=10]`` sets a parameter, and is then the name of the scenario.

    Raises:
        CommandError: if there is no such scenario, or it has no such parameter.
    """
    own = ""
    if match := re.fullmatch(r"(.+?)\[(.+)\]", text):
        text, own = match.groups()
    given = list(settings)
    settings = [*given, *own.split(",")] if own else given
    for twice in {each.partition("=")[0] for each in given} & {
        each.partition("=")[0] for each in own.split(",") if own
    }:
        raise CommandError(f"{twice} is given twice: by --set, and in the brackets of {text}[{own}]")
    if text.endswith(".toml"):
        try:
            usual = load_toml(text)
            if not settings:
                return usual
            kinds = {name: _kinds_of(value) for name, value in usual.parameters().get("parameters", {}).items()}
            name = f"{usual.name}[{own}]" if own else None
            return load_toml(text, _parse_settings(text, kinds, settings), name=name)
        except OSError as error:
            raise CommandError(f"{error.filename or text} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise CommandError(str(error)) from error
    made: Any = STRATEGIES.get(text)
    if made is None:
        if ":" not in text:
            known = ", ".join(STRATEGIES)
            raise CommandError(
                f"there is no scenario {text!r}: name one of {known}, strategies for all of them, a file such as "
                "load.toml, or a class such as my_module:MyScenario or load.py:MyScenario"
            )
        made = load_object(text, what="SCENARIO")
    if not isinstance(made, type) or not issubclass(made, Scenario):
        raise CommandError(f"{text} must be a subclass of ratelimited_executor.simulation.Scenario, it is {made!r}")
    if made.setup is Scenario.setup:
        raise CommandError(f"{text} must define setup(sim)")
    options = _parse_settings(text, _hints_of(made), settings)
    try:
        scenario: Scenario = made(**options)
        if own:
            scenario = type(made.__name__, (made,), {"name": f"{scenario.name}[{own}]"})(**options)
        return scenario
    except Exception as error:  # code of the user runs here
        raise CommandError(f"{text}: {describe_error(error)}") from error


def _kinds_of(value: Any) -> Any:
    """Return the types that a parameter of a file may have: a rate of 5 may become one of "10/min"."""
    return type(value) if isinstance(value, (bool, str)) else int | float | str


def _hints_of(made: type[Scenario]) -> dict[str, Any]:
    """Return the types of the parameters of a class."""
    known: dict[str, Any] = {field.name: field for field in fields(made)} if is_dataclass(made) else {}
    try:
        hints = get_type_hints(made)
    except Exception:  # noqa: BLE001  # a name imported only for type checkers, or not a type
        hints = {name: type(field.default) for name, field in known.items()}
    return {name: hints.get(name, str) for name in known}


def _parse_settings(text: str, known: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` by the types of the known parameters."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        there = ", ".join(known) or "none"
        if not equals:
            raise CommandError(
                f"--set must be name=value, with a parameter of {text} as the name ({there}), got {setting!r}"
            )
        if name not in known:
            raise CommandError(f"{text} has no parameter {name!r}: give one of its own ({there})")
        hint = known[name]
        try:
            options[name] = _parse_value(value, hint)
        except ValueError as error:
            raise CommandError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r}") from error
    return options


def _parse_value(text: str, hint: Any) -> Any:
    """Read a value of a type; of a union, the first type that can be read.

    Raises:
        ValueError: if the text is not such a value.
    """
    kinds = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    if type(None) in kinds and text.lower() == "none":
        return None
    for kind in (bool, int, float):
        if kind in kinds:
            try:
                return _parse_flag(text) if kind is bool else kind(text)
            except ValueError:
                pass
    if str in kinds or not set(kinds) & {bool, int, float}:
        return text
    raise ValueError(text)


def _parse_flag(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]
