"""The outcome of an attempt of a durable task."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durable.tasks import SPAN_MAX, End, KeptTask, TaskOutcome
from ratelimited_executor._core.repeat.retries import Retry
from ratelimited_executor._runtime.durable.codec import encoded
from ratelimited_executor._runtime.durable.snooze import Snooze
from ratelimited_executor._runtime.log import LOGGER, Masked
from ratelimited_executor._runtime.repeat.retrying import pause_before_retry
from ratelimited_executor.exceptions import TaskDroppedError, TaskExpiredError

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import Claimed
    from ratelimited_executor._runtime.durable.functions import DurableFunction
    from ratelimited_executor._runtime.task.handles import TaskHandle
    from ratelimited_executor._runtime.time.hooks import RandomNumbers

__all__ = ["LeaseOverError", "failure_of", "kept_of", "outcome_of"]

_US: Final = 1_000_000
_ERROR_MAX: Final = 4000  # characters kept of a traceback: its end ...
_SUMMARY_MAX: Final = 500  # ... and before it, of the first line of the exception
_RESULT_MAX: Final = 4096  # bytes of a result that is kept


class LeaseOverError(Exception):
    """A task was not started, because the lease may have ended: another process may have claimed the task."""

    def __init__(self) -> None:
        super().__init__(
            "the task was not started, and waits in the store: its claim may have ended, because the store did not answer, "
            "or this process was blocked"
        )


def outcome_of(
    claimed: Claimed,
    handle: TaskHandle[Any],
    *,
    retry: Any,
    is_unwanted: bool,
    is_given_up: bool,
    now: float,
    wall: float,
    numbers: RandomNumbers,
) -> TaskOutcome:
    """Decide how a claim ends.

    Args:
        claimed: the task.
        handle: the handle of its attempt, which has ended.
        retry: the retry policy of its function; None for no retries.
        is_unwanted: True if the task was cancelled in the store.
        is_given_up: True if this process cancelled the attempt, to release its task.
        now: the loop time.
        wall: the time by the wall clock.
        numbers: the source of jitter.
    """
    ref = claimed.ref
    error = RuntimeError("the attempt was cancelled") if handle.cancelled() else handle.exception()
    if error is None or is_unwanted:
        return TaskOutcome(ref, End.DONE if error is None else End.CANCELLED)
    if handle.cancelled() and is_given_up:
        return TaskOutcome(ref, End.RELEASED)
    if isinstance(error, Snooze):
        return TaskOutcome(ref, End.SNOOZED, delay_us=round(error.seconds(wall) * _US))
    is_unstarted = handle.started_at is None
    if isinstance(error, LeaseOverError) or (is_unstarted and isinstance(error, TaskDroppedError)):
        return TaskOutcome(ref, End.RELEASED)
    if is_unstarted and isinstance(error, TaskExpiredError):
        return TaskOutcome(ref, End.EXPIRED)
    return _failed(claimed, error, retry=retry, now=now, numbers=numbers)


def kept_of(
    outcome: TaskOutcome,
    claimed: Claimed,
    handle: TaskHandle[Any],
    function: DurableFunction[Any, Any],
    *,
    queue: str,
    now: float,
) -> KeptTask | None:
    """Return what is kept of a task if the end of its claim is that of the task; None for nothing.

    Args:
        outcome: how the claim ends.
        claimed: the task.
        handle: the handle of its attempt, which has ended.
        function: its function.
        queue: its queue.
        now: the loop time.
    """
    if function.keep_us is None:
        return None
    result, error = None, ""
    if outcome.end is End.DONE and function.keep_result:
        try:
            result = encoded("the result", handle.result(), function.codec, _RESULT_MAX)
        except Exception as raised:  # noqa: BLE001  # the codec is user code; the task is done all the same
            error = _storable((str(raised) or type(raised).__name__)[:_SUMMARY_MAX])
    run_us = 0 if handle._started is None else max(0, round((now - handle._started) * _US))
    attempt_count = claimed.attempt_count + (outcome.end in (End.RETRY, End.DEAD))
    return KeptTask(
        claimed.id, queue, claimed.name, claimed.version, attempt_count, run_us, function.keep_us, result, error
    )


def failure_of(error: BaseException) -> str:
    """Return an exception's traceback; of a long one the exception itself, and the end."""
    text = "".join(traceback.format_exception(error)).rstrip()
    if len(text) > _ERROR_MAX:
        summary = traceback.format_exception_only(error)[-1].partition("\n")[0][:_SUMMARY_MAX]
        text = f"{summary}\n...\n{text[len(summary) + 5 - _ERROR_MAX :]}"
    return _storable(text)


def _storable(text: str) -> str:
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _failed(claimed: Claimed, error: BaseException, *, retry: Any, now: float, numbers: RandomNumbers) -> TaskOutcome:
    count = claimed.attempt_count + 1
    told = f"{count} attempt{'s' if count > 1 else ''}"
    delay_us = None
    if retry is not None:
        try:
            pause = pause_before_retry(retry, count, error, first=None, now=now, numbers=numbers)
            delay_us = None if pause is None else round(min(pause, SPAN_MAX) * _US)
        except Exception as raised:  # noqa: BLE001  # a policy is user code: if it raises, the task has failed
            raised.__context__ = error
            error = raised  # so that the dead letter shows both errors
        else:
            if isinstance(retry, Retry) and count < retry.attempts:
                told += f" of {retry.attempts}, as on= of its Retry does not name this error"
    if delay_us is None:
        LOGGER.error(
            "durable tasks: %r (%r) is a dead letter after %s: %r", claimed.name, claimed.id, told, Masked(error)
        )
        return TaskOutcome(claimed.ref, End.DEAD, error=failure_of(error))
    return TaskOutcome(claimed.ref, End.RETRY, delay_us=delay_us, error=failure_of(error))
