"""Changes that readers of the page make: each is checked, carried out, logged and told to the program.

A form names the process that its page showed. If another process answers, as it may with several workers behind one
address, a change that would concern that process alone is refused. A change for a whole group is accepted by any of them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor._core.escapes import visible
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._runtime.limits.plan import read_rates
from ratelimited_executor._runtime.log import RateLimitedWarnings
from ratelimited_executor.dashboard.errors import PageError
from ratelimited_executor.dashboard.process import process_text
from ratelimited_executor.dashboard.texts import count_text, name_text
from ratelimited_executor.dashboard.views import batch_of, task_of
from ratelimited_executor.exceptions import RateLimitedExecutorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from starlette.requests import Request

    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor.dashboard.recording import RecordedHistory
    from ratelimited_executor.dashboard.requeueing import Requeueing
    from ratelimited_executor.dashboard.stores import Stores

__all__ = ["ACTIONS", "OF_EXECUTORS", "OF_STORES", "Changes", "PageChange"]

LOGGER: Final = logging.getLogger("ratelimited_executor.dashboard")

_OF_REPETITIONS: Final = {
    "pause-repetition": "paused",
    "resume-repetition": "resumed",
    "skip-repetition": "next occurrence skipped",
    "run-repetition": "run now",
    "remove-repetition": "removed",
}
OF_STORES: Final = ("requeue", "discard", *_OF_REPETITIONS)
"""Changes of a store of durable tasks."""
OF_EXECUTORS: Final = (
    "set-rate",
    "pause",
    "resume",
    "pause-group",
    "resume-group",
    "cancel-task",
    "cancel-batch",
)
"""Changes of an executor."""
ACTIONS: Final = (*OF_EXECUTORS, *OF_STORES)
"""All changes: of executors, then of stores."""
_KEPT_COUNT: Final = 20  # changes that a page shows
_FOR_ALL: Final = ("pause-group", "resume-group", *OF_STORES)  # and the rate of a group


class _Made(NamedTuple):
    what: str
    old: str
    new: str
    end: Awaitable[_Made] | None = None  # of a change that goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class PageChange:
    """A change that somebody has made on the page.

    Attributes:
        action: one of those that ``authorize`` is asked about, such as ``"set-rate"``.
        name: the executor, or the store of durable tasks.
        what: what has changed, such as ``"rate"`` or ``"task 17"``.
        old: what it was.
        new: what it is now.
        user: ``request.state.user``, if ``authorize`` has set it; else None.
        client: the address of the connection; None if it has none.
        at: epoch seconds.
    """

    action: str
    name: str
    what: str
    old: str
    new: str
    user: str | None
    client: str | None
    at: float


class Changes:
    """Carries out changes.

    Args:
        recorded_of: returns the executor that a form names; raises :class:`PageError` if there is none.
        stores: the stores of durable tasks.
        on_change: called with each change that was made; may return an awaitable. None calls nothing.
        clock: returns epoch seconds.

    Attributes:
        latest: the last changes, the newest first.
    """

    def __init__(
        self,
        recorded_of: Callable[[Mapping[str, str]], RecordedHistory],
        stores: Stores,
        on_change: Callable[[PageChange], object] | None,
        clock: Callable[[], float],
    ) -> None:
        self.latest: deque[PageChange] = deque(maxlen=_KEPT_COUNT)
        self._going_on: set[asyncio.Future[None]] = set()
        self._on_change = on_change
        self._warnings = RateLimitedWarnings(time.monotonic, LOGGER)
        self._clock = clock
        self._recorded_of = recorded_of
        self._stores = stores
        self._actions: dict[str, Callable[[Mapping[str, str]], Awaitable[_Made]]] = {
            "set-rate": self._set_rate,
            "pause": self._pause,
            "resume": self._resume,
            "pause-group": self._pause_group,
            "resume-group": self._resume_group,
            "cancel-task": self._cancel_task,
            "cancel-batch": self._cancel_batch,
            "requeue": self._requeue,
            "discard": self._discard,
            **dict.fromkeys(_OF_REPETITIONS, self._change_repetition),
        }

    def of(self, name: str, actions: Collection[str]) -> list[PageChange]:
        """Return the last changes of an executor or of a store, by the changes that there are of either: they may share a name."""
        return [each for each in self.latest if each.name == name and each.action in actions]

    def refuse(self, action: str, name: str, request: Request, reason: str) -> None:
        """Log that a change was refused; of one action once in ten seconds, with the number of those between.

        Args:
            action: what the form asks for, which may be no action.
            name: the executor or store that it names.
            request: the request.
            reason: why.
        """
        action = action if action in ACTIONS else "unknown"
        user, client = _author_of(request)
        texts = [visible(each) for each in (name_text(name), _author_text(user, client), reason)]
        self._warnings.warn(action, "live page: %s: " + action + " refused, by %s: %s", *texts)

    async def make(self, form: Mapping[str, str], request: Request) -> None:
        """Make the change that a form asks for.

        Raises:
            PageError: if it cannot be made; then nothing has changed.
        """
        action = form["action"]
        try:
            self._check_process(action, form)
            made = await self._actions[action](form)
        except (ValueError, TypeError, RateLimitedExecutorError) as error:
            raise PageError(409, str(error)) from error
        user, client = _author_of(request)
        change = PageChange(
            action=action,
            name=form.get("name", ""),
            what=made.what,
            old=made.old,
            new=made.new,
            user=user,
            client=client,
            at=self._clock(),
        )
        if made.end is not None:
            self._going_on.add(ending := asyncio.ensure_future(self._record_end(change, made.end)))
            ending.add_done_callback(self._going_on.discard)
        await self._record(change)

    async def _record_end(self, change: PageChange, end: Awaitable[_Made]) -> None:
        """Record the end of a change that has gone on, as one of who has begun it."""
        what, old, new, _ = await end
        await self._record(replace(change, what=what, old=old, new=new, at=self._clock()))

    async def _record(self, change: PageChange) -> None:
        self.latest.appendleft(change)
        _log(change)
        await self._tell(change)

    async def _tell(self, change: PageChange) -> None:
        """Tell the program of a change that was made, which no error of the program can undo."""
        if self._on_change is None:
            return
        try:
            answer = self._on_change(change)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001  # code of the user
            context = {"message": f"exception in on_change of the live page, with {change!r}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _check_process(self, action: str, form: Mapping[str, str]) -> None:
        """Refuse a change of this process by a page that showed another one."""
        shown, own = form.get("process") or process_text(), process_text()
        if shown == own or (action in _FOR_ALL and "stop" not in form):
            return
        if action == "set-rate" and self._recorded_of(form).group_rate() is not None:
            return
        raise PageError(
            409,
            f"Nothing was changed: the page showed {name_text(shown)}, but {own} has answered. Go back and try again.",
        )

    async def _set_rate(self, form: Mapping[str, str]) -> _Made:
        executor = self._recorded_of(form).executor
        old = executor.rate
        if len(executor.rates) > 1:
            raise PageError(409, f"{executor.name} has several rates, which can only be set together, by the program")
        try:
            rates = read_rates("rate", form.get("rate", ""))
            is_stop = any(isinstance(each, Rate) and each.is_zero for each in rates)
            if is_stop and not old.is_zero and "confirmed" not in form:
                raise _stop_question(executor)
            executor.rate = rates
        except (ValueError, TypeError) as error:
            raise PageError(409, str(error), field="rate") from error
        return _Made("rate", str(old), str(executor.rate))

    async def _pause(self, form: Mapping[str, str]) -> _Made:
        return _set_paused(self._recorded_of(form).executor, is_paused=True)

    async def _resume(self, form: Mapping[str, str]) -> _Made:
        return _set_paused(self._recorded_of(form).executor, is_paused=False)

    async def _pause_group(self, form: Mapping[str, str]) -> _Made:
        recorded = self._recorded_of(form)
        old = recorded.group_rate()
        if old is None:
            raise PageError(409, "This process does not know the rate of a group, so it cannot pause one.")
        recorded.executor.rate = 0
        return _Made("rate of the group", str(old), str(recorded.executor.rate))

    async def _resume_group(self, form: Mapping[str, str]) -> _Made:
        recorded = self._recorded_of(form)
        old, former = recorded.group_rate(), recorded.former_rate
        if old is None or former is None:
            raise PageError(409, "This process does not know the former rate of the group: set a rate instead.")
        if not old.is_zero:
            raise PageError(409, f"The group is not paused: its rate is {old}.")
        recorded.executor.rate = former
        return _Made("rate of the group", str(old), str(former))

    async def _cancel_task(self, form: Mapping[str, str]) -> _Made:
        task = task_of(self._recorded_of(form), form.get("id", ""))
        if task is None:
            raise PageError(409, "The task is no longer waiting, so it was not cancelled.")
        task.cancel("by the dashboard")
        return _Made(f"task {name_text(task.name)}", "waiting", "cancelled")

    async def _cancel_batch(self, form: Mapping[str, str]) -> _Made:
        batch = batch_of(self._recorded_of(form).executor, form.get("id", ""))
        if batch is None:
            raise PageError(409, "The batch has no waiting tasks left, so nothing was cancelled.")
        open_count = batch.open_count
        batch.cancel()
        return _Made(f"batch {name_text(batch.name)}", f"{count_text(open_count)} open", "cancelled")

    async def _requeue(self, form: Mapping[str, str]) -> _Made:
        task_id, kind = form.get("id", ""), form.get("error")
        if "stop" in form:
            stopped = self._stores.stop_requeueing(form.get("name", ""))
            return _Made(f"requeueing of tasks with {name_text(stopped.kind)}", "running", "stopped")
        if kind is not None:
            return await self._requeue_all(form.get("name", ""), kind)
        if await self._stores.requeue(form.get("name", ""), task_id) is not DurableState.DEAD:
            raise PageError(409, "The task is no longer a dead letter.")
        return _Made(f"task {name_text(task_id)}", "dead", "ready")

    async def _requeue_all(self, name: str, kind: str) -> _Made:
        requeueing = await self._stores.requeue_all(name, kind)
        if requeueing.is_running:
            return _Made(f"all tasks with {name_text(kind)}", "dead", "being requeued", _end_of(requeueing))
        if requeueing.count:
            return _Made(requeueing.what, "dead", requeueing.outcome)
        if requeueing.problem:
            raise PageError(503, requeueing.problem)
        raise PageError(409, f"There are no dead letters with {name_text(kind)} any more.")

    async def _discard(self, form: Mapping[str, str]) -> _Made:
        task_id = form.get("id", "")
        if await self._stores.discard(form.get("name", ""), task_id) is not DurableState.DEAD:
            raise PageError(409, "The task is no longer a dead letter.")
        return _Made(f"task {name_text(task_id)}", "dead", "discarded")

    async def _change_repetition(self, form: Mapping[str, str]) -> _Made:
        action, name = form["action"], form.get("id", "")
        if not await self._stores.change_repetition(action, form.get("name", ""), name):
            raise PageError(409, "Nothing was changed: the page showed an older state of the repetition.")
        return _Made(f"repetition {name_text(name)}", "as shown", _OF_REPETITIONS[action])


async def _end_of(requeueing: Requeueing) -> _Made:
    await requeueing.ended()
    return _Made(requeueing.what, "dead", requeueing.outcome)


def _stop_question(executor: RateLimitedExecutor) -> PageError:
    """Ask whether a rate of 0 is meant, which one key too few is enough to type."""
    message = f"With a rate of 0, {name_text(executor.name)} starts nothing until another rate is set"
    return PageError(409, message, field="rate", question="Stop it all the same")


def _set_paused(executor: RateLimitedExecutor, *, is_paused: bool) -> _Made:
    old = executor.is_paused
    (executor.pause if is_paused else executor.resume)()
    before, after = ("paused" if each else "open" for each in (old, is_paused))
    return _Made("state", before, after)


def _author_of(request: Request) -> tuple[str | None, str | None]:
    """Return the user of a request, if the program has set one, and its address."""
    user, client = getattr(request.state, "user", None), request.client
    return None if user is None else name_text(user), None if client is None else client.host


def _author_text(user: str | None, client: str | None) -> str:
    return f"{user or 'an unknown user'} at {client or 'an unknown address'}"


def _log(change: PageChange) -> None:
    """Log a change: who, where, what, from which value to which."""
    who = _author_text(change.user, change.client)
    texts = [visible(each) for each in (name_text(change.name), change.what, change.old, change.new, who)]
    parts: dict[str, Any] = {each.name: getattr(change, each.name) for each in fields(change) if each.name != "at"}
    LOGGER.info("live page: %s: %s: %s -> %s, by %s", *texts, extra={"change": parts})
