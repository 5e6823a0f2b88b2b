"""The tasks of batches, as they start and end; their handles are in ``batches.py``, which only programs with batches load."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._kernel.choice import used_there
from ratelimited_executor._kernel.states import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratelimited_executor._kernel.batches import BatchSource

__all__ = ["INERT_TYPES", "BatchItem", "Items", "call_with_item"]

Items: TypeAlias = "Sequence[Any] | Mapping[int, Any]"  # by their index in the batch

_DONE: Final = TaskState.DONE  # enum members are slow to look up
INERT_TYPES: Final = frozenset((list, tuple, range, array))  # types of items whose look-up runs no user code


@used_there
class BatchItem:
    """The owner of one task of a batch that has started, or ended without a start.

    Args:
        source: its source.
        index: its index in the batch.
        items: the items of its source, for a retry.
        key: the key under whose limits it started; None without such limits.
        started_at: loop time of its start; None if it has not started, or observers have not marked it.
    """

    __slots__ = ("batch", "index", "items", "key", "source", "started_at")

    def __init__(
        self, source: BatchSource, index: int, items: Any = None, key: Any = None, started_at: float | None = None
    ) -> None:
        self.batch: Any = source.owner  # its handle
        self.source = source
        self.index = index
        self.items = items
        self.key = key
        self.started_at = started_at

    def _end_done(self, result: Any) -> None:
        """Record that the task returned."""
        self.batch._item_ended(self.index, _DONE, result)

    def _end(self, state: TaskState, outcome: Any) -> None:
        """Record any other end."""
        self.batch._item_ended(self.index, state, outcome)


def call_with_item(call: Callable[[Any], Any], items: Items, index: int) -> Any:
    """Call a function with one of many items."""
    return call(items[index])
