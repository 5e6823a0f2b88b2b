"""What the parts inside offer to each other: checked by ``mypy --strict``, never run."""

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._runtime.hooks import LoopHooks, VirtualTime
from ratelimited_executor._runtime.observing import Observable, Observed, Observer
from ratelimited_executor.simulation.loop import SimulationLoop
from ratelimited_executor.simulation.observer import ExecutorObserver
from ratelimited_executor.testing import VirtualEventLoop


def loops(virtual: VirtualEventLoop, simulated: SimulationLoop) -> None:
    time: VirtualTime = virtual
    time = simulated
    hooks: LoopHooks = simulated
    hooks = virtual  # type: ignore[assignment]  # it neither wakes executors nor runs their coroutines
    time.clock = simulated.clock  # type: ignore[misc]  # it is the loop's own
    time.timers  # type: ignore[attr-defined]  # nothing else may be asked for
    hooks.timers  # type: ignore[attr-defined]  # as above


class Incomplete:
    def started(self, lateness: int) -> None: ...


def observers(executor: RateLimitedExecutor, simulated: ExecutorObserver, observed: Observed) -> None:
    observable: Observable = executor
    observer: Observer = simulated
    observer = Incomplete()  # type: ignore[assignment]  # it is told of starts alone, and of floats
    observable._engine  # type: ignore[attr-defined]  # what is inside is not asked for
    observed.queue  # type: ignore[attr-defined]  # as above
    observer.started("late")  # type: ignore[arg-type]
