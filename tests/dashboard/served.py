"""A server of pages on an event loop in a thread of its own, for a browser in this thread."""

import asyncio
import threading

import uvicorn


class Served:
    """A context manager; whoever inherits it makes the pages in ``_main``, which ends with ``_serve``.

    Attributes:
        loop: the event loop, once the thread runs.
        url: the address of the server.
    """

    def __init__(self):
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._main(),))

    def __enter__(self):
        self._thread.start()
        assert self._is_ready.wait(60)
        return self

    def __exit__(self, *exception):
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _main(self):
        raise NotImplementedError

    async def _serve(self, app, path="/", **options):
        """Serve an application until the end of the block."""
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", **options))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}{path}"
        self._is_ready.set()
        await self._stop.wait()
        server.should_exit = True
        await serving
