"""In debug mode an error of a callback is reported with the place where it was scheduled."""

import asyncio

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._runtime.task.call_site import SitedCall, with_call_site
from ratelimited_executor.testing import run_virtual


@pytest.mark.parametrize("face", ["call_later", "call_at", "call_soon", "call_soon_threadsafe", "execute"])
def test_in_debug_mode_the_report_says_where_the_call_was_scheduled(face):
    """In debug mode the report shows where the call was scheduled, under the key that asyncio's handler prints."""
    contexts = []

    def fail():
        raise ValueError

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        loop.set_exception_handler(lambda _, context: contexts.append(context))
        async with RateLimitedExecutor("mail") as executor:
            call = getattr(executor, face)
            given = {"call_later": (1.0,), "call_at": (loop.time() + 1,)}.get(face, ())
            call(*given, fail)  # here
            await asyncio.sleep(2)

    run_virtual(main())
    [context] = contexts
    assert context["message"] == f"exception in the callback {fail.__qualname__} of the executor mail"
    assert context["handle"]._callback is fail
    assert context["source_traceback"][-1].line == "call(*given, fail)  # here"


@pytest.mark.parametrize("is_debug", [False, True])
def test_only_a_callback_in_debug_mode_knows_its_call_site(is_debug):
    """Callbacks keep their call site only in debug mode, and only once; what is not callable is left for its own check."""

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_debug(is_debug)
        found = with_call_site(loop, print)
        assert isinstance(found, SitedCall) is is_debug
        assert found is print or found.func is print
        assert with_call_site(loop, found) is found
        assert with_call_site(loop, 5) == 5

    run_virtual(main())
