"""What the loops of the package offer to executors: checked by ``mypy --strict``, never run."""

from ratelimited_executor._runtime.hooks import LoopHooks, VirtualTime
from ratelimited_executor.simulation.loop import SimulationLoop
from ratelimited_executor.testing import VirtualEventLoop


def loops(virtual: VirtualEventLoop, simulated: SimulationLoop) -> None:
    time: VirtualTime = virtual
    time = simulated
    hooks: LoopHooks = simulated
    hooks = virtual  # type: ignore[assignment]  # it neither wakes executors nor runs their coroutines
    time.clock = simulated.clock  # type: ignore[misc]  # it is the loop's own
    time.timers  # type: ignore[attr-defined]  # nothing else may be asked for
    hooks.timers  # type: ignore[attr-defined]  # as above
