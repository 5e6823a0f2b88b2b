"""What the parts inside offer to each other: checked by ``mypy --strict``, never run."""

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._runtime.faces.parts import FaceParts
from ratelimited_executor._runtime.insight.insight import Insights
from ratelimited_executor._runtime.insight.observing import Listener, Observable, Observed
from ratelimited_executor._runtime.life.assembly import ExecutorParts
from ratelimited_executor._runtime.life.closing import Closable
from ratelimited_executor._runtime.life.engine import Engine
from ratelimited_executor._runtime.task.batches import BatchHost
from ratelimited_executor._runtime.task.handles import CallHost, TaskHost
from ratelimited_executor._runtime.task.intake import Intake
from ratelimited_executor._runtime.time.hooks import LoopHooks, VirtualTime
from ratelimited_executor._runtime.time.runner import Runnable
from ratelimited_executor.abc import Observer
from ratelimited_executor.insight import observe
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
    def started(self, lateness: float) -> None: ...


def observers(executor: RateLimitedExecutor, simulated: ExecutorObserver, observed: Observed, one: Observer) -> None:
    observable: Observable = executor
    simulated.observe(observable)
    observe(executor, one).close()
    observe(executor, Incomplete())  # type: ignore[arg-type]  # it is told of starts alone
    Listener(started=simulated.started, freed=simulated.ended, opened=simulated.opened)
    Listener(started=simulated.ended)  # type: ignore[arg-type]  # it is told when
    observable._engine  # type: ignore[attr-defined]  # what is inside is not asked for
    observed.queue  # type: ignore[attr-defined]  # as above


def asked_of_the_engine(engine: Engine) -> None:
    intake: Intake = engine
    runnable: Runnable = engine
    task, call, batch = intake, intake, intake
    task_host: TaskHost = task
    call_host: CallHost = call
    batch_host: BatchHost = batch
    intake.run(0.0)  # type: ignore[attr-defined]  # for its runner alone
    intake.starter  # type: ignore[attr-defined]  # nobody else calls functions of tasks
    runnable.queue  # type: ignore[attr-defined]  # a runner knows no tasks
    task_host.wake()  # type: ignore[attr-defined]  # a handle starts nothing
    call_host.limits  # type: ignore[attr-defined]  # a callback costs one permit
    batch_host.queue  # type: ignore[attr-defined]  # a batch is taken in by its face


def asked_of_an_executor(parts: ExecutorParts, executor: RateLimitedExecutor) -> None:
    closable: Closable = parts
    insights: Insights = parts
    faces: FaceParts = parts
    engine = executor._engine
    assert engine is not None
    engine.run(0.0, 0.0)  # type: ignore[attr-defined]  # a face sees an intake
    executor._started().engine.starter  # type: ignore[attr-defined]  # as above
    faces.pending  # type: ignore[attr-defined]  # that of the engine is for handles
    closable.limits  # type: ignore[attr-defined]  # what has been started ends, whatever it took
    closable.controls.set_paused(is_paused=True)  # type: ignore[attr-defined]  # it may halt it, and that is all
    closable.engine.add_immediate  # type: ignore[attr-defined]  # who closes takes nothing in
    insights.starter  # type: ignore[attr-defined]  # who looks starts nothing
