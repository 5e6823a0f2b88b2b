"""Ready queues for the tests of several modules."""

from ratelimited_executor._core.order.ready_heap import ReadyHeap


class Column:
    """A source: positions with due times, of which some are cancelled."""

    key = needs = None

    def __init__(self) -> None:
        self.dues: list[float] = []
        self.gone: set[int] = set()

    def add(self, due: float) -> int:
        self.dues.append(due)
        return len(self.dues) - 1

    @property
    def live(self) -> int:
        return len(self.dues) - len(self.gone)

    def is_waiting(self, position: int) -> bool:
        return position not in self.gone

    def due_of(self, position: int) -> float:
        return self.dues[position]

    def name_of(self, position: int) -> str:
        return f"position {position}"

    def cost_of(self, position: int) -> int:
        return 1


def heap(calendar, order, report=None) -> ReadyHeap:
    """Return a heap on a scale on which loop time is epoch time."""
    return ReadyHeap(calendar, order, to_epoch=float, report=report or (lambda error: None))


def pop(queue, *, earliest=False) -> tuple | None:
    """Take the first task as the engine does, or the one due first."""
    if (queue.earliest() if earliest else queue.head()) is None:
        return None
    run = queue.pop_earliest() if earliest else queue.pop()
    item = run.take()
    return (run.source, item)


def due_of(task) -> float:
    """Return the due time of a task from :func:`pop`."""
    source, item = task
    return item._due if source is None else source.due_of(item)
