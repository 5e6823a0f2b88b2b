"""What all stores of the progress of cycles have in common."""

from __future__ import annotations

__all__ = ["check_shape"]


def check_shape(name: str, known: str, shape: str) -> None:
    """Refuse to continue with the progress of a cycle that was cut in another way.

    Raises:
        ValueError: if it was.
    """
    if known != shape:
        raise ValueError(
            f"name must differ, or the progress of {name!r} must be deleted: it was recorded for {known}, not {shape}"
        )
