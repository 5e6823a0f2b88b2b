"""The check common to all stores of the progress of cycles."""

from __future__ import annotations

__all__ = ["check_shape"]


def check_shape(name: str, known: str, shape: str) -> None:
    """Check that the stored progress of a cycle has the same shape as the cycle.

    Raises:
        ValueError: if the cycle was divided differently when the progress was recorded.
    """
    if known != shape:
        raise ValueError(
            f"name must differ, or the progress of {name!r} must be deleted: it was recorded for {known}, not {shape}"
        )
