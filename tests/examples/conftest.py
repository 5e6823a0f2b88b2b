"""The examples, imported from their files, and a real server for them."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example() -> Callable[[str], ModuleType]:
    """Return a function that imports an example by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look up their module
        spec.loader.exec_module(module)
        return module

    return load


@dataclass
class Site:
    """A real HTTP server that counts the requests of guests; it answers a GET or POST of any path.

    Attributes:
        url: the address.
        arrivals: the times of the requests.
        bodies: the contents of the requests, from JSON.
        most: the largest number of requests at a time.
        seconds: the time that an answer takes.
        answer: the content of each answer, to be written as JSON.
        refusals: the number of next requests to answer with 429, and with Retry-After of one second.
        status: the status of all other answers.
    """

    url: str = ""
    arrivals: list[float] = field(default_factory=list)
    bodies: list[object] = field(default_factory=list)
    most: int = 0
    seconds: float = 0.0
    answer: object = None
    refusals: int = 0
    status: int = 200
    _present: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def visited(self, body: object) -> Iterator[bool]:
        """Count one request, and yield True if it is refused."""
        with self._lock:
            self.arrivals.append(time.monotonic())
            self.bodies.append(body)
            self._present += 1
            self.most = max(self.most, self._present)
            self.refusals -= 1
            is_refused = self.refusals >= 0
        try:
            yield is_refused
        finally:
            with self._lock:
                self._present -= 1


@pytest.fixture
def site() -> Iterator[Site]:
    """Return a server for one test."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            with site.visited(json.loads(self.rfile.read(size)) if size else None) as is_refused:
                time.sleep(site.seconds)
                content = json.dumps(site.answer).encode()
            self.send_response(429 if is_refused else site.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if is_refused:
                self.send_header("Retry-After", "1")
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_port}/"
        yield site
        server.shutdown()
        thread.join()
