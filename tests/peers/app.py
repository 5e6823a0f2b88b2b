"""A web service of which every worker is a peer of its own: its lifespan opens and closes a manager.

``test_uvicorn_workers.py`` runs it as ``uvicorn tests.peers.app:app --workers 3``; settings are JSON in ``PEERS_APP``.
Each start is reported to a counter by datagram, with its time and process.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request

from ratelimited_executor import ExecutorManager, Pacing
from ratelimited_executor.peers import FilePeers, RedisPeers

VARIABLE = "PEERS_APP"
MESSAGE = "!id"  # process id, and its monotonic time, which all processes of a machine share
GROUP, NAME = "web", "limit"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Take part in the rate while the worker serves, with more tasks than may start."""
    settings = json.loads(os.environ[VARIABLE])
    peers = FilePeers(settings["file"]) if "file" in settings else RedisPeers(settings["url"], GROUP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", settings["counter"]))

        def work() -> None:
            sender.send(struct.pack(MESSAGE, os.getpid(), time.monotonic()))

        async with ExecutorManager(peers=peers) as manager:
            executor = manager.executor(NAME, rate=settings["rate"], pacing=Pacing.ON_TIME, drain_timeout=0)
            for _ in range(settings["load"]):
                executor.execute(work)
            app.state.executor, app.state.peers = executor, peers
            yield


app = FastAPI(lifespan=lifespan)


@app.get("/fleet")
async def fleet(request: Request) -> dict[str, Any]:
    """Return the process, id and statistics of the worker that answers."""
    state = request.app.state
    statistics = state.executor.statistics().fleet
    return {
        "pid": os.getpid(),
        "id": state.peers.id,
        "state": statistics.state,
        "peers": statistics.peers,
    }
