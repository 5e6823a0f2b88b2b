"""The tests of CPython's suites that are run, and all deviations, each with its reason.

A deviation that is run must fail: one that passes is out of date, and the test of its module says so.
"""

import sys
from typing import NamedTuple

FROM_312 = sys.version_info >= (3, 12)


class Deviation(NamedTuple):
    """A test with another outcome than in CPython's own.

    Attributes:
        reason: why.
        applies: False where this version of Python has not got the test, or it passes.
        is_run: False if the test makes no sense, or would hang.
    """

    reason: str
    applies: bool = True
    is_run: bool = True


class Module(NamedTuple):
    """A module of tests.

    Attributes:
        suite: a suite of ``child.py``: what the tests run on.
        name: the module.
        classes: the classes that are run; empty for all.
        applies: False if this version of Python has not got it.
    """

    suite: str
    name: str
    classes: tuple[str, ...] = ()
    applies: bool = True


# Without test_runners and test_pep492, which hardly reach a loop's callbacks.
_ASYNCIO = "base_events", "futures2", "locks", "queues", "sock_lowlevel", "streams", "taskgroups"
_POOLS = "as_completed", "shutdown", "thread_pool", "wait"
MODULES = [
    *(
        Module("asyncio face", f"test.test_asyncio.test_{name}")
        for name in (*_ASYNCIO, "threads", "timeouts", "waitfor")
    ),
    Module("asyncio face", "test.test_asyncio.test_eager_task_factory", applies=FROM_312),
    # Of the loops with other selectors, which are the same apart from them, those with epoll.
    Module("asyncio face", "test.test_asyncio.test_events", ("EPollEventLoopTests", "HandleTests", "TimerTests")),
    *(
        Module(suite, f"test.test_concurrent_futures.test_{name}", applies=FROM_312)
        for suite in ("futures face", "blocking face", "scheduled executor")
        for name in _POOLS
    ),
    *(
        Module(suite, "test.test_concurrent_futures", applies=not FROM_312)
        for suite in ("futures face", "blocking face", "scheduled executor")
    ),
]

_PROGRAM = Deviation("it starts another program, which imports the pool by name from concurrent.futures", is_run=False)
_PRIVATE = Deviation("it reads private attributes of ThreadPoolExecutor, and may leave threads that wait", is_run=False)
_OTHER_POOL = Deviation("it creates a ThreadPoolExecutor itself", is_run=False)
_PROGRAMS = {
    name: _PROGRAM
    for name in (
        "test_cancel_futures_wait_false",
        "test_hang_gh83386",
        "test_hang_issue39205",
        "test_interpreter_shutdown",
        "test_submit_after_interpreter_shutdown",
    )
}
_OTHERS = {
    name: _OTHER_POOL
    for name in (
        "test_context_manager_shutdown",
        "test_del_shutdown",
        "test_hang_global_shutdown_lock",
        "test_shutdown_no_wait",
        "test_thread_names_assigned",
        "test_thread_names_default",
    )
}
_NO_POOL = {
    **{
        name: _PRIVATE
        for name in (
            "test_default_workers",
            "test_idle_thread_reuse",
            "test_saturation",
            "test_threads_terminate",
        )
    },
    **{
        name: Deviation("there is no initializer=: the threads are the executor's, or those of a pool", is_run=False)
        for name in (
            "test_initializer",
            "test_initargs",
            "ThreadPoolInitializerTest",
            "ThreadPoolFailingInitializerTest",
        )
    },
}

DEVIATIONS: dict[str, dict[str, Deviation]] = {
    "asyncio face": {
        "HandleTests.test_handle_source_traceback": Deviation(
            "the traceback of a handle ends in the adapter of these tests, which makes the call"
        ),
    },
    "futures face": _PROGRAMS
    | _OTHERS
    | _NO_POOL
    | {
        "test_cancel_futures": Deviation(
            "a race: starts pass through the loop, so all 50 calls may be cancelled before the first", is_run=False
        ),
        "test_max_workers_negative": Deviation("the same error in other words: max_workers must be >= 1, got 0"),
    },
    "blocking face": _PROGRAMS | _OTHERS,
    "scheduled executor": _PROGRAMS
    | _OTHERS
    | _NO_POOL
    | {"test_max_workers_negative": Deviation("the same error in other words: max_threads must be >= 1, got 0")},
}


def deviation_of(suite: str, test: str) -> Deviation | None:
    """Return the deviation of a test, given by its id; None if it has none."""
    cls, name = test.split(".")[-2:]
    known = DEVIATIONS[suite]
    found = known.get(f"{cls}.{name}") or known.get(name) or known.get(cls)
    return found if found is not None and found.applies else None
