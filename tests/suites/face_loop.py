"""An event loop whose callbacks and timers go through an executor: asyncio itself then runs on the asyncio face."""

import asyncio
import functools

from ratelimited_executor import RateLimitedExecutor


def is_of_the_library(callback) -> bool:
    """Return True for callbacks by which the executor itself is woken: these must reach the real loop."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    owner = callback if owner is None else owner
    return str(getattr(owner, "__module__", "")).startswith("ratelimited_executor")


class FaceLoop(asyncio.SelectorEventLoop):
    """Opens an executor when it is created, and closes it when it closes.

    Before, after and between its runs, callbacks wait in the loop itself, as the face needs a running loop.
    """

    _face: RateLimitedExecutor | None = None
    _is_bare = False
    taken = 0  # callbacks that went through the face of any loop

    def _takes(self, callback) -> bool:
        is_ready = self._face is not None and not self._is_bare and self.is_running()
        takes = is_ready and not is_of_the_library(callback)
        FaceLoop.taken += takes
        return takes

    def call_soon(self, callback, *args, context=None):
        if self._takes(callback):
            return self._face.call_soon(callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)

    def call_later(self, delay, callback, *args, context=None):
        if self._takes(callback):
            return self._face.call_later(delay, callback, *args, context=context)
        return super().call_later(delay, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        if self._takes(callback):
            return self._face.call_at(when, callback, *args, context=context)
        return super().call_at(when, callback, *args, context=context)

    def call_soon_threadsafe(self, callback, *args, context=None):
        if self._takes(callback):
            return self._face.call_soon_threadsafe(callback, *args, context=context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if asyncio._get_running_loop() is None:  # else nothing can be awaited here, and the loop stays a plain one
            self._is_bare = True
            self._face = self.run_until_complete(RateLimitedExecutor("face", drain_timeout=0).__aenter__())
            self._is_bare = False

    async def _end(self):
        await self._face.shutdown(cancel_pending=True)

    def close(self):
        if self._face is not None and not self.is_closed() and not self.is_running():
            self._is_bare = True
            self._ready.clear()  # as the loop itself does, but before it runs once more
            self._scheduled.clear()
            self.run_until_complete(self._end())
            self._face = None
        super().close()


def install() -> None:
    """Make every event loop that asyncio creates one of these."""
    asyncio.SelectorEventLoop = FaceLoop
    asyncio.DefaultEventLoopPolicy._loop_factory = FaceLoop
