"""Objects whose settings are fixed at creation."""

from __future__ import annotations

from typing import Any

__all__ = ["Fixed", "refusal"]


class Fixed:
    """Rejects attributes that cannot be set, with an error that says how to pass its settings."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError as error:
            raise refusal(self, name) from error


def refusal(thing: object, name: str) -> AttributeError:
    """Return the error for setting an attribute that cannot be set."""
    kind = type(thing).__name__
    options = [option for option in type(thing).__init__.__annotations__ if option != "return"]
    if name in options:
        text = f"{name} of {kind} cannot be changed: pass {name}= to {kind}()"
    elif hasattr(type(thing), name):
        text = f"{name} of {kind} cannot be set"
    else:
        text = f"{kind} has no attribute {name!r}; {kind}() takes {', '.join(options)}"
    return AttributeError(text, name=name, obj=thing)
