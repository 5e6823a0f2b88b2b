"""Run tests of CPython's own suite, as installed, on the library; print the outcome of each as a line of JSON.

``python -m tests.suites.child SUITE MODULE [CLASS ...]``: the suites are in :data:`SUITES`.
"""

import asyncio
import concurrent.futures
import importlib
import json
import os
import sys
import threading
import unittest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.blocking import BlockingManager, ScheduledExecutor

from . import face_loop
from .deviations import deviation_of


class Outcomes(unittest.TestResult):
    """Prints the outcome of each test: ``passed``, ``skipped``, or the last line of its traceback."""

    def __init__(self):
        super().__init__()
        self._reported = set()

    def stopTest(self, test):
        super().stopTest(test)
        self._report(test, "passed")

    def _report(self, test, outcome):
        if test.id() not in self._reported:
            self._reported.add(test.id())
            print(json.dumps([test.id().removeprefix("test."), outcome]), file=sys.__stdout__, flush=True)

    def addFailure(self, test, err):
        self._report(test, self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._report(test, self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        self._report(test, "skipped")

    def addExpectedFailure(self, test, err):
        self._report(test, "skipped")


def on_the_asyncio_face(module):
    """Tests of asyncio on an event loop whose callbacks and timers go through an executor."""
    face_loop.install()
    return unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))


def of_thread_pools(module, make):
    """Return the tests of a module that use a pool of threads, with another pool, whose calls are counted."""
    found = unittest.TestSuite()
    for each in vars(importlib.import_module(module)).values():
        if isinstance(each, type) and issubclass(each, unittest.TestCase):
            if getattr(each, "executor_type", None) is concurrent.futures.ThreadPoolExecutor:
                each.executor_type = staticmethod(make)
                found.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(each))
    return found


def on_the_futures_face(module):
    """Tests of pools of threads on faces of one executor, whose loop runs in another thread."""
    opened = concurrent.futures.Future()

    async def main():
        async with RateLimitedExecutor("futures", drain_timeout=0) as executor:
            opened.set_result((asyncio.get_running_loop(), executor))
            await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
    loop, executor = opened.result()

    def make(max_workers=None):
        async def face():
            count_call()
            return executor.as_futures_executor(max_workers)

        return asyncio.run_coroutine_threadsafe(face(), loop).result()

    return of_thread_pools(module, make)


def on_the_blocking_face(module):
    """Tests of pools of threads on a pool whose calls each take a permit of the blocking face."""
    manager = BlockingManager()
    limiter = manager.limiter("pool", rate="1000/s")

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            return super().submit(self.run, fn, *args, **kwargs)

        @staticmethod
        def run(fn, /, *args, **kwargs):
            with limiter.permit():
                count_call()
                return fn(*args, **kwargs)

    return of_thread_pools(module, Pool)


def on_the_scheduled_executor(module):
    """Tests of pools of threads on scheduled executors, each with a loop in a thread of its own."""

    class Pool(ScheduledExecutor):
        def __init__(self, max_workers=None):
            super().__init__("pool", max_threads=max_workers)

        def submit(self, fn, /, *args, **kwargs):
            count_call()
            return super().submit(fn, *args, **kwargs)

    return of_thread_pools(module, Pool)


def count_call():
    face_loop.FaceLoop.taken += 1


SUITES = {
    "asyncio face": on_the_asyncio_face,
    "futures face": on_the_futures_face,
    "blocking face": on_the_blocking_face,
    "scheduled executor": on_the_scheduled_executor,
}


def chosen(tests, suite, classes):
    """Yield the single tests of some classes, or of all, without the deviations that are not run."""
    for each in tests:
        if isinstance(each, unittest.TestSuite):
            yield from chosen(each, suite, classes)
        elif not classes or type(each).__name__ in classes:
            known = deviation_of(suite, each.id())
            if known is None or known.is_run:
                yield each


if __name__ == "__main__":
    _, suite, module, *classes = sys.argv
    sys.stdout = sys.stderr  # some tests print
    unittest.TestSuite(chosen(SUITES[suite](module), suite, classes)).run(Outcomes())
    print(json.dumps(["calls through the face", face_loop.FaceLoop.taken]), file=sys.__stdout__, flush=True)
    os._exit(0)  # tests may leave threads for which the interpreter would wait
