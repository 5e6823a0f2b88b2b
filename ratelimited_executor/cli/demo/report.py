"""The tables, plots and verdict of the demo, from the server's arrivals; the verdict also uses the starts."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import plotext  # type: ignore[import-untyped]  # ships no types
from rich.table import Table
from rich.text import Text

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.cli.demo.figures import ARRIVAL_SLACK_S, DemoVerdict, Half, mean_delays, per_bin
from ratelimited_executor.cli.demo.view import bar
from ratelimited_executor.cli.screen import block_for, print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ratelimited_executor.cli.demo.load import Delivery

__all__ = ["print_report", "print_verdict"]

PLOT_BIN_S: Final = 0.1
PLOT_WIDTH: Final = 80
PLOT_HEIGHT: Final = 11
DELAY: Final = format_duration(ARRIVAL_SLACK_S)
TABLE_BAR_WIDTH: Final = 24
# Rows of a table, to keep it readable; longer demos show their first seconds.
TABLE_SECONDS_MAX: Final = 40


def print_report(console: Console, executor: Half, plain: Half, load: Sequence[Delivery], *, rate: int) -> None:
    """Print deliveries per second, per 100 ms, and the delay by priority, both halves side by side."""
    console.print(_seconds_table(executor, plain, rate=rate, block=block_for(console)))
    end = math.ceil(max([0.0, *executor.times[-1:], *plain.times[-1:]]) + 0.001)
    if block_for(console) == "█":  # plots cannot be drawn in other encodings
        for half in (executor, plain):
            console.print(Text(_plot(half, end=end), style="cyan"), soft_wrap=True)
    console.print(_delay_table(executor, plain, load))


def print_verdict(console: Console, half: Half, verdict: DemoVerdict, *, rate: int, count: int) -> None:
    """Print whether a half kept the rate and delivered everything once, and why more may arrive in a second than start."""
    if verdict.most_started > rate:
        held = f"MORE than {rate:,} starts in a second: {verdict.most_started:,}"
    elif not verdict.is_held:
        held = (
            f"the server counted {verdict.most_arrived:,} in one second, more than delays of {DELAY} on the way explain"
        )
    else:
        held = f"never more than {rate:,} starts in any second"
    arrived = f"all {count:,} arrived once"
    if verdict.missing or half.failed:
        arrived = f"{verdict.missing:,} of {count:,} missing or doubled, {half.failed:,} refused"
    text = f"{half.name}: {held}; {arrived}"
    if verdict.is_held and verdict.most_arrived > rate:
        text += f"\n  (up to {verdict.most_arrived:,} arrivals in one second, as some take longer on the way)"
    print_line(console, text)


def _seconds_table(executor: Half, plain: Half, *, rate: int, block: str) -> Table:
    table = Table(title="Deliveries per second, as the server saw them", title_justify="left", box=None, pad_edge=False)
    table.add_column("second", justify="right")
    for half in (executor, plain):
        table.add_column(half.name, justify="right")
        table.add_column(f"(bar: {rate})", width=TABLE_BAR_WIDTH, no_wrap=True)
    columns = [_by_second(half) for half in (executor, plain)]
    for second, counts in enumerate(zip_longest(*columns)):
        if second == TABLE_SECONDS_MAX:
            table.add_row("...")
            break
        cells: list[str | Text] = []
        for count in counts:
            style = "red" if count is not None and count > rate * 1.05 else "green"
            drawn = "" if count is None else bar(count, scale=rate, width=TABLE_BAR_WIDTH, block=block)
            cells += ["" if count is None else str(count), Text(drawn, style=style)]
        table.add_row(str(second), *cells)
    return table


def _by_second(half: Half) -> list[int]:
    times = half.times
    return per_bin(times, width=1.0, end=math.ceil(times[-1] + 0.001)) if times else []


def _delay_table(executor: Half, plain: Half, load: Sequence[Delivery]) -> Table:
    table = Table(title="Mean delay from due to arrival", title_justify="left", box=None, pad_edge=False)
    table.add_column("priority (larger is more important)")
    halves = (executor, plain)
    for half in halves:
        table.add_column(half.name, justify="right")
    means = [mean_delays(half, load) for half in halves]
    for priority in sorted({key for mean in means for key in mean}, reverse=True):
        shown = [f"{mean[priority]:.3f} s" if priority in mean else "" for mean in means]
        event = next((delivery.event for delivery in load if delivery.priority == priority), "")
        table.add_row(f"{priority}  {event}", *shown)
    return table


def _plot(half: Half, *, end: int) -> str:
    """Draw arrivals per 100 ms over the whole time."""
    counts = per_bin(half.times, width=PLOT_BIN_S, end=end)
    figure = plotext.figure
    figure.clear()
    figure.plot_size(PLOT_WIDTH, PLOT_HEIGHT)
    figure.title(f"{half.name}: arrivals per 100 ms, at most {max(counts)}")
    places = [(index + 0.5) * PLOT_BIN_S for index in range(len(counts))]
    signal = figure.signal(places, counts, marker="hd")
    signal.lines(active=True)
    figure.draw(signal)
    figure.ruler("x").lim(0, end)
    figure.ruler("x").ticks(list(range(0, end + 1, max(1, end // 10))))
    top = max(*counts, 1)
    figure.ruler("y").lim(0, top * 1.1)
    figure.ruler("y").ticks([0, top // 2, top])
    drawn = str(figure.build().string(colorless=True))
    figure.clear()
    return "\n".join(line.rstrip() for line in drawn.splitlines())
