"""Record the arrivals at a real HTTP server, as an access log that a simulation can replay.

The program sends its own load to a server on the loopback address: requests arrive as a Poisson process whose rate rises
and falls as over a day, with a few bursts, and some clients send more requests than others. The server answers each
request after a random time, and writes an access log as nginx would: in the combined format, with the end time of each
request to the second, and with its duration in seconds at the end of the line (``$request_time``). In place of a client's
address, the log has the name that the client has sent.

Run ``python examples/record_arrivals.py --log access.log.gz --csv arrivals.csv`` for a recording of three minutes.
"""

import argparse
import asyncio
import csv
import gzip
import itertools
import math
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO, cast

from aiohttp import ClientSession, TCPConnector, web
from aiohttp.abc import AbstractAccessLogger

CLIENT_HEADER = "X-Client"
USER_AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "python-client/2.1")
PATHS = ("/", "/items/{}", "/items/{}/price", "/search?q={}")


@dataclass(frozen=True)
class Load:
    """The load that the clients send.

    Attributes:
        seconds: the length of the load, in seconds.
        low: requests per second at the quietest time.
        high: requests per second at the busiest time.
        waves: how often the rate rises and falls.
        bursts: how often many requests arrive within half a second, on top of the wave.
        burst_size: the number of requests in a burst.
        clients: the number of clients; the second sends half as many requests as the first, the third a third as many.
        seed: the seed of all random numbers.
    """

    seconds: float = 180.0
    low: float = 2.0
    high: float = 40.0
    waves: int = 2
    bursts: int = 4
    burst_size: int = 50
    clients: int = 200
    seed: int = 1

    def rate(self, when: float) -> float:
        """Return the requests per second, without bursts, at a time in seconds since the beginning."""
        height = (1 - math.cos(2 * math.pi * self.waves * when / self.seconds)) / 2
        return self.low + (self.high - self.low) * height


@dataclass(frozen=True, order=True)
class Arrival:
    """One request, as the server saw it.

    Attributes:
        time: its arrival, in seconds since the epoch.
        client: the name of the client.
        seconds: its duration, in seconds.
    """

    time: float
    client: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """The result of a recording.

    Attributes:
        sent: the number of requests that the clients sent, all of which were answered.
        arrivals: the requests that the server logged, by time of arrival.
    """

    sent: int
    arrivals: list[Arrival] = field(repr=False)


def make_requests(load: Load) -> list[tuple[float, int, str]]:
    """Return the requests to send, each as seconds since the beginning, number of the client, and path."""
    chance = random.Random(load.seed)
    times = [
        when for when in _poisson(chance, load.high, load.seconds) if chance.random() < load.rate(when) / load.high
    ]
    for _ in range(load.bursts):
        begin = chance.uniform(0, load.seconds - 0.5)
        times += [begin + chance.uniform(0, 0.5) for _ in range(load.burst_size)]
    weights = list(itertools.accumulate(1 / number for number in range(1, load.clients + 1)))
    numbers = chance.choices(range(1, load.clients + 1), cum_weights=weights, k=len(times))
    paths = [chance.choice(PATHS).format(chance.randint(1, 500)) for _ in times]
    return sorted(zip(times, numbers, paths, strict=True))


def _poisson(chance: random.Random, rate: float, seconds: float) -> Iterator[float]:
    when = chance.expovariate(rate)
    while when < seconds:
        yield when
        when += chance.expovariate(rate)


class Recorder:
    """Writes a line for each request that has ended, and records its arrival.

    Args:
        log: the file to write to.
    """

    def __init__(self, log: TextIO) -> None:
        self.arrivals: list[Arrival] = []
        self._log = log

    def note(self, request: web.BaseRequest, response: web.StreamResponse, seconds: float) -> None:
        """Write the line for a request that ends now."""
        ended = datetime.now(UTC).astimezone()  # with the offset of the local time zone, as servers write it
        client = request.headers.get(CLIENT_HEADER, request.remote or "-")
        agent = request.headers.get("User-Agent", "-")
        self._log.write(
            f"{client} - - [{ended:%d/%b/%Y:%H:%M:%S %z}] "
            f'"{request.method} {request.path_qs} HTTP/{request.version.major}.{request.version.minor}" '
            f'{response.status} {response.content_length or 0} "-" "{agent}" {seconds:.3f}\n'
        )
        self.arrivals.append(Arrival(ended.timestamp() - seconds, client, seconds))


@asynccontextmanager
async def serving(recorder: Recorder, *, seed: int) -> AsyncIterator[str]:
    """Serve on a free port of the loopback address, and record; yield the base URL.

    Args:
        recorder: records every request.
        seed: the seed of the response times, which are log-normal with a median of 40 ms, limited to 5 to 400 ms.
    """
    chance = random.Random(seed)

    class AccessLogger(AbstractAccessLogger):
        def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
            recorder.note(request, response, time)

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(min(max(chance.lognormvariate(math.log(0.04), 0.9), 0.005), 0.4))
        return web.Response(text=f"{request.path}\n" * chance.randint(1, 40))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log_class=AccessLogger)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield "http://{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


async def record(load: Load, log: TextIO) -> Report:
    """Run a server under a load until all requests are answered, and write its log.

    Args:
        load: the load that the clients send.
        log: the file for the lines of the access log, in the order in which requests end.
    """
    recorder, requests = Recorder(log), make_requests(load)
    async with (
        serving(recorder, seed=load.seed) as url,
        ClientSession(url, connector=TCPConnector(limit=0)) as session,  # the clients do not wait for each other
        asyncio.TaskGroup() as group,
    ):
        began = asyncio.get_running_loop().time()

        async def ask(number: int, path: str) -> None:
            headers = {CLIENT_HEADER: f"client-{number}", "User-Agent": USER_AGENTS[number % len(USER_AGENTS)]}
            async with session.get(path, headers=headers) as response:
                response.raise_for_status()
                await response.read()

        for when, number, path in requests:
            await asyncio.sleep(began + when - asyncio.get_running_loop().time())
            group.create_task(ask(number, path))
    return Report(len(requests), sorted(recorder.arrivals))


def write_csv(path: Path, arrivals: list[Arrival]) -> None:
    """Write arrivals with their times to the millisecond, which is more precise than the log."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["time", "client", "seconds"])
        writer.writerows((f"{each.time:.3f}", each.client, f"{each.seconds:.3f}") for each in arrivals)


def main() -> None:
    """Record, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, default=Path("access.log.gz"), help="where the log goes (.gz compresses)")
    parser.add_argument("--csv", type=Path, help="where the first arrivals go, with precise times")
    parser.add_argument("--csv-count", type=int, default=500, help="how many of them")
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--seed", type=int, default=Load.seed)
    options = parser.parse_args()
    with ExitStack() as stack:
        opener = gzip.open if options.log.suffix == ".gz" else open
        log = cast("TextIO", stack.enter_context(opener(options.log, "wt", encoding="utf-8", newline="\n")))
        report = asyncio.run(record(Load(seconds=options.seconds, seed=options.seed), log))
    if options.csv is not None:
        write_csv(options.csv, report.arrivals[: options.csv_count])
    lasted = report.arrivals[-1].time - report.arrivals[0].time
    clients = len({each.client for each in report.arrivals})
    print(f"{len(report.arrivals)} requests of {clients} clients in {lasted:.1f} s: {options.log}")


if __name__ == "__main__":
    main()
