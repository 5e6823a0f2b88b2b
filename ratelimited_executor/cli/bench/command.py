"""``bench`` from its options to its exit status: measures, searches or compares, and reports."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import re
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._core.escapes import visible
from ratelimited_executor._core.urls import masked
from ratelimited_executor.cli.bench.contact import ExchangeError
from ratelimited_executor.cli.bench.inputs import (
    check_extras,
    check_output,
    read_measurement,
    refuse_http_options,
    templates_of,
    uses_uvloop,
    wires_of,
)
from ratelimited_executor.cli.bench.open_load import FiguresLostError, OpenLoad
from ratelimited_executor.cli.bench.options import (
    LOAD_SECONDS,
    classes_of,
    search_range_of,
    settings_of,
    settings_of_users,
    trial_classes,
)
from ratelimited_executor.cli.bench.processes import Orders, ShareProcesses
from ratelimited_executor.cli.bench.rendezvous import Rendezvous
from ratelimited_executor.cli.bench.search import SearchEndedError, SharedTrials, judged, search_json
from ratelimited_executor.cli.bench.senders import function_sender, is_in_threads, kind_of
from ratelimited_executor.cli.bench.view import (
    comparison_table,
    failure_text,
    found_text,
    incomplete_text,
    measurement_tables,
    sample_text,
    show_live,
    tool_limit_text,
    trial_text,
    verdict_text,
)
from ratelimited_executor.cli.commands.arguments import loop_factory
from ratelimited_executor.cli.contexts import entered
from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.screen import console_of, print_line, screen_of_stderr
from ratelimited_executor.cli.stopping import Signals, Stop, cancelled_by, signals_ignored
from ratelimited_executor.cli.targets import load_object, load_target
from ratelimited_executor.load.arrivals import Schedule
from ratelimited_executor.load.comparison import compare
from ratelimited_executor.load.csv_table import csv_of
from ratelimited_executor.load.figures import Figures, Measurement
from ratelimited_executor.load.merging import alone, whole_of
from ratelimited_executor.load.requests import describe_requests, in_turn
from ratelimited_executor.load.search import Found, decide, ended_early
from ratelimited_executor.load.verdicts import judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from multiprocessing.connection import Connection

    from ratelimited_executor.cli.bench.contact import Contact, Meeting
    from ratelimited_executor.cli.bench.open_load import Live, RequestSender
    from ratelimited_executor.cli.bench.options import BenchOptions
    from ratelimited_executor.cli.bench.otlp import ExportedLoad, LoadExport
    from ratelimited_executor.cli.bench.search import Played
    from ratelimited_executor.cli.bench.wire import Wire
    from ratelimited_executor.load.arrivals import Phase
    from ratelimited_executor.load.merging import Whole
    from ratelimited_executor.load.requests import RequestTemplate
    from ratelimited_executor.load.search import SearchRange

__all__ = ["compare_files", "run_bench"]

_CONNECTIONS: Final = 500  # for a URL or an async function; many systems let a process open 1,024 files
_THREADS: Final = 64  # for a plain function
_SETTLE_SECONDS_MIN: Final = 1.0  # for requests of a trial that wait for a connection when it ends


def run_bench(options: BenchOptions, runner: asyncio.Runner, *, console: Console | None = None) -> ExitStatus:
    """Measure a service, or find the highest rate that it holds.

    Args:
        options: the command line.
        runner: runs the event loop.
        console: the output for tables; standard output by default.

    Returns:
        DONE; FAILED if a threshold was not kept, no rate was held or no request succeeded; INTERRUPTED.

    Raises:
        CommandError: for an error that the user can correct.
    """
    console = console_of(console)
    bench = _Bench(options, console)
    with Signals(bench.stop) as signals:
        return runner.run(bench.run(signals))


def run_share(rank: int, pipe: Connection, options: BenchOptions) -> None:
    """Send a share of a load, as the process that has started this one says.

    Args:
        rank: the rank of this process.
        pipe: the pipe to the one that has started it.
        options: the command line, with the connections of this process.
    """
    signals_ignored()  # a terminal or a service manager sends them to all
    try:
        bench = _Bench(options, Console(quiet=True))
        with asyncio.Runner(loop_factory=loop_factory(uses_uvloop(options))) as runner:
            runner.run(bench.serve(rank, pipe))
    except CommandError as error:
        pipe.send(("refused", str(error)))
    except asyncio.CancelledError:  # after a second signal: that its figures are missing is noticed
        pass


def compare_files(before_path: str, after_path: str, *, console: Console | None = None) -> ExitStatus:
    """Show two measurements side by side.

    Args:
        before_path: a file that --json has written.
        after_path: another, or the same.
        console: the output; standard output by default.

    Raises:
        CommandError: if a file cannot be read, or holds no measurement.
    """
    console = console_of(console)
    before, after = read_measurement(before_path), read_measurement(after_path)
    console.print(comparison_table(before_path, after_path, compare(before, after)))
    for path, measurement in ((before_path, before), (after_path, after)):
        for warning in _warnings(measurement):
            console.print(f"{path}:", markup=False, highlight=False)
            console.print(warning, soft_wrap=True)
    if before.settings != after.settings or before.target != after.target:
        console.print("The two differ in settings or target:", highlight=False)
        for name in sorted(before.settings.keys() | after.settings.keys() | {"target"}):
            values = [{**each.settings, "target": each.target}.get(name, "none") for each in (before, after)]
            if values[0] != values[1]:
                print_line(console, "  " + visible(f"{name}: {values[0]}, then {values[1]}"))
    return ExitStatus.DONE


class _Bench:
    """One measurement or search."""

    def __init__(self, options: BenchOptions, console: Console) -> None:
        self._options, self._console = options, console
        self._screen = screen_of_stderr()
        self.stop = Stop()
        if options.users is not None and options.scenario is None:
            raise CommandError("--users needs --scenario: what a user does, such as --scenario shop.py:buyer")
        self._user_settings = None if options.scenario is None else settings_of_users(options)
        is_open = not options.find_max and options.scenario is None
        self._where: SearchRange | None = search_range_of(options) if options.find_max else None
        self._classes = classes_of(options) if is_open else {}
        self._target: Callable[..., Any] | None = None
        self._templates: list[list[RequestTemplate]] = []
        self._turns: list[list[RequestTemplate]] = []  # in the order in which they are sent
        self._wires: list[list[Wire]] | None = None  # if our own client can send them all
        if "://" in options.target:
            self._templates = templates_of(options)  # of --scenario the target alone, which is checked
            self._turns = [in_turn(each) for each in self._templates]
            self._wires = wires_of(self._turns)
        else:
            refuse_http_options(options)
            self._target = _load_function(options.target)
        blocks = self._target is not None and is_in_threads(self._target)
        self._connections = options.connections or (_THREADS if blocks else _CONNECTIONS)
        self._settings = self._user_settings or settings_of(
            options,
            connections=self._connections,
            requests=describe_requests(self._templates) if self._templates else None,
        )
        self._settings["loop"] = "uvloop" if uses_uvloop(options) else "asyncio"
        if self._templates and self._wires is None:
            self._settings["client"] = "aiohttp"
        if self._connections < options.processes:
            raise CommandError(f"--connections {self._connections} are too few for --processes {options.processes}")
        check_extras()
        for name, path in (("--json", options.json), ("--html", options.html), ("--csv", options.csv)):
            check_output(name, path)
        self._export = self._exporting()
        self._randoms: dict[str, random.Random] = {}  # by the name of the class
        self._begun = datetime.now(UTC).isoformat(timespec="seconds")

    def _exporting(self) -> LoadExport | None:
        """Return what exports the requests of this process; None if nobody has asked for it."""
        url = self._options.otlp
        if url is None:
            return None
        from ratelimited_executor.cli.bench import otlp  # noqa: PLC0415  # most loads are not exported

        is_of_users = self._options.scenario is not None  # who send what they like
        known = [
            otlp.attributes_of(each) | ({"http.request.method": "_OTHER"} if is_of_users else {})
            for each in self._templates
        ]
        return otlp.LoadExport(
            sender=otlp.sender_to(url),
            to=otlp.BY_ENVIRONMENT if url == otlp.BY_ENVIRONMENT else masked(url),
            of_class=known,
            has_rate=not is_of_users,
            period=otlp.period_of_environment(),
        )

    @asynccontextmanager
    async def _exported(self, load: ExportedLoad) -> AsyncIterator[None]:
        """Export a load while it is sent, if somebody has asked for it."""
        async with nullcontext() if self._export is None else self._export.of(load):
            yield

    async def _end_export(self) -> None:
        """Export the rest, and tell what was not."""
        if self._export is not None:
            await self._export.end()
            if text := self._export.failures_text():
                print_line(self._screen, visible(text))

    async def run(self, signals: Signals) -> ExitStatus:
        """Measure, report, and export the rest."""
        try:
            return await self._run(signals)
        except FiguresLostError:
            print_line(self._screen, "Interrupted again: the figures were not summed up yet, and are lost.")
            raise
        finally:
            await self._end_export()

    async def _run(self, signals: Signals) -> ExitStatus:
        """Set up, send, report. A signal during the set-up ends it; after the report, former handlers are restored."""
        signals.attach()
        if self._options.scenario is not None:
            return await self._conclude_users(self._options.scenario)
        if self._options.processes > 1:
            return await self._spread()
        with cancelled_by(self.stop):
            entered = self._sender()
            sender = await entered.__aenter__()
        try:
            if self._options.peers is not None:
                return await self._share(sender, self._options.peers)
            if self._where is not None:
                return await self._search(self._where, partial(self._play_trial, sender))
            load = self._load(self._schedule(), sender, drain=self._options.timeout)
            return self._conclude(await self._play(load, label="load"))
        finally:
            signals.close()
            await entered.__aexit__(None, None, None)

    async def _conclude_users(self, scenario: str) -> ExitStatus:
        """Play a load of users and report it; end the process here if some of them cannot be ended."""
        figures, has_stuck_users = await self._play_users(scenario)
        status = self._conclude(figures)
        if has_stuck_users:
            await self._end_export()
            print_line(
                self._screen, "Users went on though they were cancelled: let CancelledError pass in the scenario."
            )
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(status)
        return status

    async def _play_users(self, scenario: str) -> tuple[Figures, bool]:
        """Play a load of users, and say whether some go on; what a context manager yields is what they do."""
        from ratelimited_executor.cli.bench.users import UserLoad  # noqa: PLC0415  # aiohttp loads here

        options = self._options
        if self._target is not None:
            raise CommandError("--scenario needs a URL as TARGET: that of the service, such as http://localhost:8000/")
        async with AsyncExitStack() as stack:
            with cancelled_by(self.stop):
                loaded = load_object(scenario, what="--scenario")
                behaviour = await stack.enter_async_context(entered(loaded, what="--scenario"))
            if not inspect.iscoroutinefunction(behaviour):
                raise CommandError(f"--scenario {scenario}: it must be an async function that takes a client")
            load = UserLoad(
                behaviour,
                base_url=options.target,
                users=options.users or 1,
                seconds=options.duration or LOAD_SECONDS,
                warm_up=options.warm_up or 0.0,
                timeout=options.timeout,
                headers=dict(options.headers),
            )
            async with self._shown(load.live, "users"), self._exported(load):
                figures = await load.play(self.stop)
        return figures, load.has_stuck_users

    def _sender(self) -> AbstractAsyncContextManager[RequestSender]:
        timeout = self._options.timeout
        if self._wires is not None:
            from ratelimited_executor.cli.bench.http_client import http_sender  # noqa: PLC0415  # httptools loads here

            return http_sender(self._wires, timeout=timeout)
        if self._target is None:
            from ratelimited_executor.cli.bench.aiohttp_client import aiohttp_sender  # noqa: PLC0415  # aiohttp loads here

            return aiohttp_sender(self._turns, connections=self._connections, timeout=timeout)
        names = [name for name in self._options.rates if name]
        return function_sender(self._target, connections=self._connections, timeout=timeout, class_names=names)

    def _schedule(self, classes: Mapping[str, Sequence[Phase]] | None = None, **share: int) -> Schedule:
        draws = self._draws if self._options.arrivals == "poisson" else None
        return Schedule(classes=self._classes if classes is None else classes, draws=draws, **share)

    def _load(self, schedule: Schedule, sender: RequestSender, *, drain: float) -> OpenLoad:
        return OpenLoad(
            schedule,
            sender,
            kind_of=kind_of,
            connections=self._connections,
            drain=drain,
            clock=time.perf_counter,
        )

    async def _play(self, load: OpenLoad, *, label: str, begin: float | None = None) -> Figures:
        async with self._shown(load.live, label), self._exported(load):
            return await load.play(self.stop, begin=begin)

    def _draws(self, name: str) -> Callable[[], float]:
        """Return a source of random numbers for a class: reproducible by seed and name, and different in each trial."""
        if name not in self._randoms:
            seed = f"{self._options.seed} {name}" if name else self._options.seed
            self._randoms[name] = random.Random(seed)  # noqa: S311  # arrivals, no secrets
        return self._randoms[name].random

    @asynccontextmanager
    async def _shown(self, live: Callable[[], Live | None], label: str) -> AsyncIterator[None]:
        """Show a load while it is sent."""
        if self._options.quiet:
            yield
            return
        showing = asyncio.create_task(show_live(self._screen, live, label=label))
        try:
            yield
        finally:
            showing.cancel()
            await asyncio.wait({showing})

    # Sharing.

    async def _share(self, sender: RequestSender, url: str) -> ExitStatus:
        """Meet the other participants, and share a load or the trials of a search."""
        own = {"target": masked(self._options.target), "version": version("ratelimited-executor")}
        settings = self._settings | own
        for name in ("connections", "client", "loop"):  # each participant may have its own
            settings.pop(name, None)
        rendezvous = Rendezvous(
            url,
            group=self._options.group or "default",
            expect=self._options.expect or 1,
            settings=settings,
            clock=time.perf_counter,
        )
        try:
            with cancelled_by(self.stop):
                meeting = await rendezvous.meet(self._tell_who_is_there)
            contact = rendezvous.contact(meeting, seconds=self._seconds)
            async with contact.in_touch():
                if self._where is not None:
                    return await self._share_search(sender, self._where, contact, meeting)
                whole = await self._share_load(sender, contact, meeting)
        finally:
            await rendezvous.close()
        return self._conclude(whole.figures, whole)

    async def _share_load(self, sender: RequestSender, contact: Contact, meeting: Meeting) -> Whole:
        """Send a share, and return the figures of the whole load."""
        schedule = self._schedule(rank=meeting.rank, participants=len(meeting.names))
        load = self._load(schedule, sender, drain=self._options.timeout)
        label = f"share {meeting.rank + 1} of {len(meeting.names)}"
        async with contact.with_checkpoints(load.checkpoint):
            figures = await self._play(load, label=label, begin=meeting.begin)
        return await self._whole_of(figures, contact, meeting, schedule)

    async def _share_search(
        self, sender: RequestSender, where: SearchRange, contact: Contact, meeting: Meeting
    ) -> ExitStatus:
        trials = SharedTrials(
            contact,
            meeting,
            thresholds=self._options.thresholds,
            measurement_of=self._measurement,
            stop=self.stop,
        )

        async def play(number: int, rate: float) -> Played | None:
            schedule = self._schedule(
                trial_classes(self._options, rate), rank=meeting.rank, participants=len(meeting.names)
            )
            load = self._load(schedule, sender, drain=self._trial_drain)
            label = f"{_trial_label(number, rate)}, share {meeting.rank + 1} of {len(meeting.names)}"
            return await trials.play(number, rate, schedule, lambda begin: self._play(load, label=label, begin=begin))

        return await self._search(where, play)

    @property
    def _seconds(self) -> float:
        """The length of the load, or of each trial, in seconds."""
        classes = self._classes if self._where is None else trial_classes(self._options, self._where.first)
        return sum(phase.seconds for phase in Schedule(classes=classes).phases)

    def _tell_who_is_there(self, count: int) -> None:
        if not self._options.quiet:
            self._screen.print(f"{count} of {self._options.expect} participants have joined", highlight=False)

    async def _whole_of(self, figures: Figures, contact: Contact, meeting: Meeting, schedule: Schedule) -> Whole:
        """Return the figures of all participants; only our own if those of the others are unavailable."""
        own = self._measurement(figures).to_json()
        try:
            exchanged = await contact.exchange(own, is_stopped=lambda: self.stop.is_ordered)
            shares = {rank: Measurement.from_json(each).figures for rank, each in exchanged.results.items()}
            checkpoints = {rank: list(map(Figures.from_json, each)) for rank, each in exchanged.checkpoints.items()}
        except (ExchangeError, ValueError) as error:
            return alone(meeting.names[meeting.rank], figures, schedule, reason=str(error))
        return whole_of(meeting.names, shares, exchanged.heard, schedule, checkpoints)

    # Sharing among processes of this machine.

    async def _spread(self) -> ExitStatus:
        """Share a load or the trials of a search among processes that this one starts."""
        processes = ShareProcesses(
            run_share,
            self._options.processes,
            arguments=lambda rank: (self._options_of_share(rank),),
            stop=self.stop,
            clock=time.perf_counter,
        )
        try:
            with cancelled_by(self.stop):
                await processes.ready()
            if self._where is not None:
                return await self._search(self._where, partial(self._play_spread_trial, processes))
            whole, _ = await self._play_spread(processes, None, label="load")
        finally:
            for counts in await processes.close():
                assert self._export is not None, "they export if this process would"
                self._export.add(*counts)
        return self._conclude(whole.figures, whole)

    def _options_of_share(self, rank: int) -> BenchOptions:
        count = self._options.processes
        connections = self._connections // count + (rank < self._connections % count)
        return replace(self._options, connections=connections, json=None, html=None, csv=None, quiet=True)

    async def _play_spread(
        self, processes: ShareProcesses, rate: float | None, *, label: str
    ) -> tuple[Whole, dict[int, Figures]]:
        """Send a load, or a trial of a rate; return its figures, and those of each process by rank."""
        async with self._shown(processes.live, label):
            shares, heard = await processes.play(rate)
        if not shares and self.stop.insisted.is_set():
            raise FiguresLostError
        if not shares:
            raise CommandError("every process ended before it had figures")
        schedule = self._schedule(self._classes_of(rate), participants=len(processes.names))
        return whole_of(processes.names, shares, heard, schedule), shares

    async def _play_spread_trial(self, processes: ShareProcesses, number: int, rate: float) -> Played | None:
        whole, shares = await self._play_spread(processes, rate, label=_trial_label(number, rate))
        if self.stop.is_ordered:
            return None
        if whole.incomplete is not None:
            raise SearchEndedError(whole.incomplete)
        measurement = replace(self._measurement(whole.figures), participants=whole.participants)
        named = [(processes.names[rank], figures) for rank, figures in shares.items()]
        return judged(rate, measurement, self._options.thresholds, shares=named)

    async def serve(self, rank: int, pipe: Connection) -> None:
        """Send the share of a rank whenever the process at the other end of a pipe says so, until it says no more."""
        orders = Orders(pipe, self.stop)
        async with self._sender() as sender:
            orders.tell("ready")
            while (order := await orders.next()) is not None:
                rate, begin = order
                schedule = self._schedule(self._classes_of(rate), rank=rank, participants=self._options.processes)
                drain = self._options.timeout if rate is None else self._trial_drain
                load = self._load(schedule, sender, drain=drain)
                telling = asyncio.create_task(orders.tell_live(load.live))
                try:
                    async with self._exported(load):
                        figures = await load.play(self.stop, begin=begin)
                finally:
                    telling.cancel()
                    await asyncio.wait({telling})
                orders.tell("figures", figures.to_json())
        if self._export is not None:
            orders.tell("exported", await self._export.end())

    def _classes_of(self, rate: float | None) -> Mapping[str, Sequence[Phase]]:
        """Return the load of the command line, or of a trial of a rate."""
        return self._classes if rate is None else trial_classes(self._options, rate)

    # Measuring.

    def _conclude(self, figures: Figures, whole: Whole | None = None) -> ExitStatus:
        measurement = self._measurement(figures)
        if whole is not None:
            measurement = replace(measurement, participants=whole.participants, incomplete=whole.incomplete)
        if self.stop.is_ordered:
            reason = f"it was interrupted after {format_duration(figures.seconds)}"
            if self._options.peers is not None:  # others are not missing only because they had not ended by then
                reason += "; the other participants continue, unless interrupted as well, and report the whole load"
            measurement = replace(measurement, incomplete=reason)
            self._report(measurement, Text("Interrupted: the figures cover the time until then."))
            return ExitStatus.INTERRUPTED
        options = self._options
        verdict, failure = judge(figures, options.thresholds, reach=options.reach), failure_text(figures)
        outcome = [] if failure is None else [failure]
        if figures.count and not (options.thresholds.is_empty and options.reach is None):
            outcome.append(verdict_text(verdict))
        self._report(measurement, *outcome)
        if not verdict.is_kept or measurement.incomplete is not None or failure is not None:
            return ExitStatus.FAILED
        return ExitStatus.DONE

    def _measurement(self, figures: Figures) -> Measurement:
        return Measurement(
            target=masked(self._options.target),
            settings=self._settings,
            begun=self._begun,
            version=version("ratelimited-executor"),
            figures=figures,
        )

    def _report(self, measurement: Measurement, *outcome: Text) -> None:
        """Print a measurement and sentences about its outcome, and write the files that were asked for."""
        sample = sample_text(measurement.figures)
        outcome = outcome if sample is None else (sample, *outcome)
        settings = ", ".join(f"{name} {text}" for name, text in measurement.settings.items())
        heading = f"{visible(measurement.target)}: {settings}"
        print_line(self._console, heading)
        for table in measurement_tables(measurement):
            self._console.print(table)
        for text in (*_warnings(measurement), *outcome):
            self._console.print(text, soft_wrap=True)
        options = self._options
        try:
            if options.json is not None:
                options.json.write_text(json.dumps(measurement.to_json(), allow_nan=False) + "\n", encoding="utf-8")
            if options.csv is not None:
                options.csv.write_text(csv_of(measurement.figures), encoding="utf-8", newline="")
            if options.html is not None:
                from ratelimited_executor.cli.bench.page import render  # noqa: PLC0415  # most loads have no page

                options.html.write_text(render(measurement, [text.plain for text in outcome]), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"the report cannot be written: {error}") from error

    # Searching.

    @property
    def _trial_drain(self) -> float:
        """Seconds after a trial during which waiting requests may still start."""
        drain = self._options.timeout
        if (p99 := self._options.p99_most) is not None:  # a longer request has already broken the threshold
            drain = min(drain, max(_SETTLE_SECONDS_MIN, 2 * p99))
        return drain

    async def _play_trial(self, sender: RequestSender, number: int, rate: float) -> Played | None:
        """Play a trial alone; return None if it was interrupted."""
        load = self._load(self._schedule(trial_classes(self._options, rate)), sender, drain=self._trial_drain)
        figures = await self._play(load, label=_trial_label(number, rate))
        if self.stop.is_ordered:
            return None
        return judged(rate, self._measurement(figures), self._options.thresholds)

    async def _search(self, where: SearchRange, play: Callable[[int, float], Awaitable[Played | None]]) -> ExitStatus:
        """Search with trials that are played by number and rate; one that returns None was interrupted."""
        every: list[Played] = []
        of_rate: dict[float, Measurement] = {}
        while not isinstance(rate := decide(trials := [each.trial for each in every], where), Found):
            played = None
            try:
                played = await play(len(trials), rate)
            except SearchEndedError as error:
                if not self.stop.is_ordered:
                    self._report_search(ended_early(trials, str(error)), every, of_rate)
                    return ExitStatus.FAILED
            if played is None:
                if trials:
                    self._report_search(ended_early(trials, "it was interrupted"), every, of_rate)
                else:
                    self._console.print("Interrupted before the end of the first trial.", highlight=False)
                return ExitStatus.INTERRUPTED
            every.append(played)
            if played.trial.has_held or rate not in of_rate:  # for a rate that held, report a trial that held
                of_rate[rate] = played.measurement
            self._console.print(trial_text(played.trial, played.broken), soft_wrap=True)
        self._report_search(rate, every, of_rate)
        return ExitStatus.FAILED if rate.held is None else ExitStatus.DONE

    def _report_search(self, found: Found, played: Sequence[Played], of_rate: Mapping[float, Measurement]) -> None:
        if played:
            shown = of_rate[played[-1].trial.rate if found.held is None else found.held]
            self._report(replace(shown, search=search_json(found, played)), found_text(found))
        else:
            self._console.print(found_text(found), soft_wrap=True)


def _trial_label(number: int, rate: float) -> str:
    return f"trial {number + 1}, {rate:g}/s"


def _warnings(measurement: Measurement) -> list[Text]:
    """Return the warnings about the validity of the figures."""
    texts = (incomplete_text(measurement), tool_limit_text(measurement.figures))
    return [text for text in texts if text is not None]


def _load_function(target: str) -> Any:
    if re.search(r"^[^:]*$|:\d", target):  # an address: no function has such a name
        raise CommandError(
            f"TARGET must be a URL such as http://localhost:8000/, or look like module:function or file.py:function, got {masked(target)!r}"
        )
    return load_target(target)
