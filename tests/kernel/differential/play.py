"""Run a program on the kernel of this process, in virtual time, and write down everything that can be observed."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import struct
import zlib
from typing import Any

from ratelimited_executor import (
    BatchHandle,
    ExecutorManager,
    Paced,
    Pacing,
    TaskHandle,
    Window,
    default_order,
)
from ratelimited_executor.handles import CallHandle
from ratelimited_executor.orders import earliest_due_first, latest_due_first
from ratelimited_executor.policies import Strictness
from ratelimited_executor.testing import VirtualEventLoop, run_virtual

from .bad_input import BAD_CALLS
from .callables import callable_of, seen_variables, set_variables, value_of, Body
from .programs import Op, Program
from .texts import chain_of, masked, text_of

SECONDS_MAX = 100_000.0  # of virtual time
_FLOOD_PART = 256  # starts of a flood that are written down as one event

ORDERS = {
    "default": default_order,
    "earliest": earliest_due_first,
    "latest": latest_due_first,
    "unimportant": lambda task: (task.priority, task.due),
    "failing": lambda task: 1 / 0 if task.priority else (task.due,),
}


class Player:
    """Does what a program says, and writes down what happens."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.events: list[list[Any]] = []
        self.unseen: list[Any] = []  # failures that nobody looked at: the collector decides when they show
        self.handles: dict[str, Any] = {}
        self.callbacks: dict[str, Any] = {}
        self.floods: dict[str, Flood] = {}
        self.contexts = {name: contextvars.Context() for name in ("given", "other")}
        self.sink: list[Any] = []
        self.loop: VirtualEventLoop
        self.executors: list[Any] = []
        self.count = 0

    # Writing down.

    def note(self, what: str, *details: Any) -> None:
        """Write down an event with its time."""
        self.events.append([what, self.loop.time() - self.begin, *details])

    def reported(self, loop: Any, report: dict[str, Any]) -> None:
        """Write down what the event loop's exception handler is told."""
        error = report.get("exception")
        if "never retrieved" in report["message"]:
            self.unseen.append([masked(report["message"]), chain_of(error)])
        else:
            self.note("reported", masked(report["message"]), chain_of(error))

    # Playing.

    async def play(self) -> None:
        """Run the program to its end."""
        program, self.loop = self.program, asyncio.get_running_loop()  # type: ignore[assignment]
        await asyncio.sleep(program.get("begin", 0.0))
        self.begin = self.loop.time()
        self.wall = self.loop.clock.wall()
        self.loop.set_exception_handler(self.reported)
        async with ExecutorManager(**program.get("manager", {})) as manager:
            for number, given in enumerate(program["executors"]):
                self.executors.append(manager.executor(f"x{number}", **settings(given)))
            for at, op in program["ops"]:
                await self.sleep_until(at)
                self.do(op)
            await self.sleep_until(program["until"])
            self.look_at_all()
            if program.get("leave") != "drain":
                for executor in self.executors:
                    await executor.shutdown(cancel_pending=True)
        self.look_at_all()
        self.note(
            "end", text_of(self.sink), *([text_of(sorted(context_values(one))) for one in self.contexts.values()])
        )

    async def sleep_until(self, at: float) -> None:
        """Wait until a time, counted from the beginning; if it is in the past, for a turn of the loop."""
        future = self.loop.create_future()
        self.loop.call_at(self.begin + at, future.set_result, None)
        await future

    def do(self, op: Op) -> None:
        """Do an operation with context variables of its own."""
        contextvars.copy_context().run(self._do, op)

    def _do(self, op: Op) -> None:
        set_variables(op.get("vars", {}))
        executor = self.executors[op.get("on", 0) % len(self.executors)]
        try:
            made = getattr(self, "do_" + op["do"])(executor, op)
        except Exception as error:
            self.note("refused", op["do"], op.get("name", op.get("of")), chain_of(error))
            return
        if op.get("name") is not None and made is not None:
            self.handles[op["name"]] = made
            self.note("made", op["do"], op["name"], self.described(made))
        elif made is not None:
            self.note("answered", op["do"], text_of(made))

    def described(self, handle: Any) -> list[Any]:
        """Return everything that a handle reports."""
        if isinstance(handle, CallHandle):
            return [text_of(handle), handle.when() - self.begin, handle.cancelled()]
        if isinstance(handle, TaskHandle):
            outcome = None
            if handle.done() and not handle.cancelled():
                outcome = chain_of(handle.exception()) or text_of(handle.result())
            elif handle.done():
                outcome = self.raised_by(handle.result)
            seen = (
                handle.name,
                handle.state.value,
                handle.due,
                handle.started_at,
                handle.lateness,
                handle.attempts,
                handle.priority,
            )
            return [text_of(handle), *seen, handle.done(), handle.cancelled(), outcome]
        if isinstance(handle, BatchHandle):
            results = (
                sorted((index, text_of(one)) for index, one in handle.results.items())
                if handle.done() and self.keeps(handle)
                else None
            )
            return [text_of(handle), handle.total, handle.open_count, handle.done(), handle.cancelled(), results]
        return [text_of(handle)]

    @staticmethod
    def keeps(handle: BatchHandle[Any]) -> bool:
        """True if a batch keeps its results."""
        try:
            return handle.results is not None
        except ValueError:
            return False

    @staticmethod
    def raised_by(method: Any) -> Any:
        """Return the text of what a method returns, or the exception that it raises."""
        try:
            return text_of(method())
        except BaseException as error:
            return chain_of(error)

    def look_at_all(self) -> None:
        """Write down what all handles and executors report."""
        for name, handle in self.handles.items():
            if not isinstance(handle, (asyncio.Task, asyncio.Future)):
                self.note("is", name, self.described(handle))
        for executor in self.executors:
            self.note("counts", text_of(executor.statistics()), text_of(executor))
        for name, flood in self.floods.items():
            flood.flush()
            self.note(
                "flood",
                name,
                flood.count,
                flood.state,
                sum(1 for handle in flood.handles if handle is not None and handle.cancelled()),
            )

    # Operations.

    def context_of(self, op: Op) -> dict[str, Any]:
        """Return the context that an operation passes on, as keyword arguments."""
        return {"context": self.contexts[op["context"]]} if "context" in op else {}

    def options_of(self, op: Op) -> dict[str, Any]:
        """Return the options of a task, as keyword arguments."""
        given = {
            name: op[name]
            for name in ("delay", "priority", "expires", "run_timeout", "key", "over", "delays")
            if name in op
        }
        given |= {"name": op["label"]} if "label" in op else {}
        given |= {"at": self.wall + op["at"]} if "at" in op else {}
        return {**given, **self.context_of(op)}

    def call_of(self, op: Op) -> tuple[Any, list[Any]]:
        """Return the callable of an operation and its arguments."""
        self.count += 1
        call = op["call"]
        return callable_of(self, op.get("name", f"e{self.count}"), call), [
            value_of(one) for one in call.get("args", [])
        ]

    def do_call_later(self, executor: Any, op: Op) -> Any:
        call, args = self.call_of(op)
        return executor.call_later(op["delay"], call, *args, **self.context_of(op))

    def do_call_at(self, executor: Any, op: Op) -> Any:
        call, args = self.call_of(op)
        return executor.call_at(self.begin + op["when"], call, *args, **self.context_of(op))

    def do_call_soon(self, executor: Any, op: Op) -> Any:
        call, args = self.call_of(op)
        return executor.call_soon(call, *args, **self.context_of(op))

    def do_schedule(self, executor: Any, op: Op) -> Any:
        call, args = self.call_of(op)
        return executor.schedule(call, *args, **self.options_of(op))

    def do_submit(self, executor: Any, op: Op) -> Any:
        call, args = self.call_of(op)
        return executor.submit(call, *args, **self.options_of(op))

    def do_execute(self, executor: Any, op: Op) -> None:
        call, args = self.call_of(op)
        executor.execute(call, *args)

    def do_many(self, executor: Any, op: Op) -> Any:
        call, _ = self.call_of(op)
        count = op["count"]
        items: Any = {
            "list": lambda: [
                value_of([None, {"tuple": [1]}, 7][index % 3] if index > 4 else index) for index in range(count)
            ],
            "tuple": lambda: tuple(range(count)),
            "range": lambda: range(count),
            "set": lambda: set(range(count)),
            "iterator": lambda: iter(range(count)),
            "async": lambda: self.drawn(count),
        }[op.get("source", "list")]()
        return executor.schedule_many(call, items, results=op.get("results", False), **self.options_of(op))

    async def drawn(self, count: int) -> Any:
        """Yield items, with a turn of the loop before every other one."""
        for index in range(count):
            if index % 2:
                await asyncio.sleep(0)
            self.note("drawn", index, *seen_variables())
            yield index

    def do_permit(self, executor: Any, op: Op) -> Any:
        async def hold() -> None:
            try:
                async with executor.permit(priority=op.get("priority", 0)):
                    self.note("holds", op["name"])
                    await asyncio.sleep(op["hold"])
            except BaseException as error:
                self.note("gave up", op["name"], chain_of(error))
            else:
                self.note("released", op["name"])

        return self.loop.create_task(hold())

    def do_repeat(self, executor: Any, op: Op) -> Any:
        call, args = self.call_of(op)
        return executor.schedule_at_fixed_rate(call, *args, period=op["period"], max_runs=op["max_runs"])

    def do_cancel(self, executor: Any, op: Op) -> Any:
        handle = self.handles.get(op["of"])
        if handle is None:
            return None
        answer = handle.cancel(op["message"]) if "message" in op and isinstance(handle, TaskHandle) else handle.cancel()
        return [op["of"], answer, "" if isinstance(handle, asyncio.Task) else self.described(handle)]

    def do_reschedule(self, executor: Any, op: Op) -> Any:
        handle = self.handles.get(op["of"])
        if not isinstance(handle, CallHandle):
            return None
        return [op["of"], handle.reschedule(op["delay"]), self.described(handle)]

    def do_callback(self, executor: Any, op: Op) -> None:
        handle = self.handles.get(op["of"])
        if isinstance(handle, TaskHandle):
            body = Body(self, op["name"], op)

            def callback(handle: TaskHandle[Any]) -> None:
                self.note("told", op["name"], self.described(handle))
                body.plain()

            self.callbacks[op["name"]] = callback
            handle.add_done_callback(callback, **self.context_of(op))

    def do_uncallback(self, executor: Any, op: Op) -> Any:
        handle = self.handles.get(op["of"])
        return handle.remove_done_callback(self.callbacks.get(op["name"])) if isinstance(handle, TaskHandle) else None

    def do_wait(self, executor: Any, op: Op) -> Any:
        handle = self.handles.get(op["of"])
        if not hasattr(handle, "__await__"):
            return None
        how = op["how"] if isinstance(handle, TaskHandle) else "plain"

        async def wait() -> None:
            try:
                if how == "shield":
                    result = await asyncio.shield(handle)
                elif how == "wait_for":
                    result = await asyncio.wait_for(handle, 1.25)
                elif how == "gather":
                    result = await asyncio.gather(handle, asyncio.sleep(0.1, "other"), return_exceptions=True)
                elif how == "wait":
                    done, left = await asyncio.wait([handle], timeout=1.25)
                    result = len(done), len(left)
                else:
                    result = await handle
            except BaseException as error:
                self.note("waited in vain", op["name"], chain_of(error))
            else:
                self.note("has waited", op["name"], text_of(result))

        return self.loop.create_task(wait())

    def do_look(self, executor: Any, op: Op) -> Any:
        handle = self.handles.get(op["of"])
        if handle is None:
            return None
        return [
            op["of"],
            self.described(handle),
            text_of(executor.explain(handle)) if isinstance(handle, TaskHandle) else "",
        ]

    def do_forget(self, executor: Any, op: Op) -> None:
        self.handles.pop(op["of"], None)

    def do_rate(self, executor: Any, op: Op) -> Any:
        executor.rate = op["rate"]
        return executor.rate

    def do_setting(self, executor: Any, op: Op) -> Any:
        to = op["to"]
        to = Pacing[to] if op["what"] == "pacing" else ORDERS[to] if op["what"] == "order" else to
        setattr(executor, op["what"], to)

    def do_pause(self, executor: Any, op: Op) -> None:
        executor.pause()

    def do_resume(self, executor: Any, op: Op) -> None:
        executor.resume()

    def do_statistics(self, executor: Any, op: Op) -> Any:
        return [text_of(executor.statistics()), executor.backlog_seconds()]

    def do_waiting(self, executor: Any, op: Op) -> Any:
        return executor.waiting_tasks()

    def do_shutdown(self, executor: Any, op: Op) -> None:
        async def shut_down() -> None:
            unstarted = await executor.shutdown(cancel_pending=op["cancel"], timeout=5.0)
            self.note("shut down", executor.name, text_of(unstarted), text_of(executor.statistics()))

        self.loop.create_task(shut_down())

    def do_bad(self, executor: Any, op: Op) -> Any:
        return [op["what"], text_of(BAD_CALLS[op["what"]](executor))]

    def do_flood(self, executor: Any, op: Op) -> Any:
        flood = self.floods[op["name"]] = Flood(self, op["name"])
        count, steps, delay = op["count"], op["steps"], op["delay"]
        delays = [delay + op["spread"] * (index * op["stride"] % steps) / steps for index in range(count)]
        face = op["face"]
        if face == "delays":
            return executor.schedule_many(flood.started, range(count), delays=delays)
        for index, delay in enumerate(delays):
            if op.get("vary") and index % 100 == 0:
                set_variables({"w": str(index % 3)})
            if face == "call_later":
                made = executor.call_later(delay, flood.started, index)
            elif face == "call_at":
                made = executor.call_at(self.loop.time() + delay, flood.started, index)
            elif face == "schedule":
                made = executor.schedule(flood.started, index, delay=delay)
            else:
                made = executor.execute(flood.started, index)
            flood.handles.append(made)
        return None

    def do_thin(self, executor: Any, op: Op) -> None:
        """Cancel many tasks of a flood: all but one in so many."""
        for index in self.chosen(op):
            self.floods[op["of"]].handles[index].cancel()
        self.note("counts", text_of(executor.statistics()))

    def do_move(self, executor: Any, op: Op) -> None:
        """Reschedule many calls of a flood: all but one in so many."""
        moved = 0
        for index in self.chosen(op):
            handle = self.floods[op["of"]].handles[index]
            if isinstance(handle, CallHandle):
                moved += handle.reschedule(op["delay"])
        self.note("moved", moved, text_of(executor.statistics()))

    def chosen(self, op: Op) -> list[int]:
        """Return the handles of a flood that an operation concerns."""
        flood = self.floods.get(op["of"])
        if flood is None:
            return []
        chosen = [index for index in range(op["begin"], len(flood.handles)) if not op["kept"] or index % op["kept"]]
        return [index for index in chosen[:: op["stride"]] if flood.handles[index] is not None]


class Flood:
    """Very many tasks, whose starts are written down several hundred at a time."""

    def __init__(self, player: Player, name: str) -> None:
        self.player = player
        self.name = name
        self.handles: list[Any] = []
        self.count = 0
        self.state = 0  # a checksum of the starts in order, with their times and what they saw
        self.last = -1

    def started(self, index: int) -> None:
        """Add a start to the checksum."""
        self.count += 1
        self.last = index
        seen = "".join(seen_variables()).encode()
        self.state = zlib.crc32(struct.pack("<qd", index, self.player.loop.time()) + seen, self.state)
        if self.count % _FLOOD_PART == 0:
            self.flush()

    def flush(self) -> None:
        """Write down the starts that were added since the last time."""
        self.player.note("flooded", self.name, self.count, self.last, self.state)


def context_values(context: contextvars.Context) -> list[tuple[str, Any]]:
    """Return the names and values of a context."""
    return [(variable.name, text_of(value)) for variable, value in context.items()]


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an executor that a program describes."""
    found = {**given, "drain_timeout": given.get("drain_timeout", 1000.0)}
    if "pacing" in found:
        found["pacing"] = Pacing[found["pacing"]]
    if "order" in found:
        found["order"] = ORDERS[found["order"]]
    policy = found.pop("policy", None)
    if policy == "Window":
        found["policy"] = Window()
    elif policy is not None:
        found["policy"] = Paced(strictness=Strictness[policy])
    return found


class _Warnings(logging.Handler):
    """Writes down what the library logs."""

    def __init__(self, player: Player) -> None:
        super().__init__(logging.INFO)
        self._player = player

    def emit(self, record: logging.LogRecord) -> None:
        self._player.events.append(["logged", record.name, record.levelname, masked(record.getMessage())])


def play(program: Program) -> list[list[Any]]:
    """Run a program and return its events; the garbage collector is off, so that no event depends on when it runs."""
    player = Player(program)
    warnings = _Warnings(player)
    logger = logging.getLogger("ratelimited_executor")
    logger.addHandler(warnings)
    logger.propagate = False
    gc.disable()
    try:
        run_virtual(player.play(), limit=SECONDS_MAX, debug=program.get("debug", False))
    except BaseException as error:
        player.events.append(["left by", chain_of(error)])
    finally:
        events, unseen = player.events, player.unseen
        player.handles.clear()
        player.floods.clear()
        del player
        gc.enable()
        gc.collect()
        logger.removeHandler(warnings)
    return [*events, ["nobody looked at", sorted(unseen, key=repr)]]
