"""Make the moving picture of the demo: ``python docs/demo_picture.py`` (extras ``cli`` and ``docs``; not on Windows).

The demo runs on a terminal that nobody sees, as long as it takes. What stands there is written down several times a second, and
every state becomes a frame of one SVG file, which any browser plays without a script.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import struct
import sys
import time
from fcntl import ioctl
from html import escape
from itertools import groupby
from pathlib import Path
from termios import TIOCSWINSZ
from typing import TYPE_CHECKING, NamedTuple

import pyte

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COLUMNS, ROWS = 84, 40
COMMAND = "ratelimited-executor demo --seconds 10s"
FRAMES_A_SECOND = 5
LAST_SECONDS = 8.0  # for which the end stays, before all begins again
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 14
COLORS = {
    "default": "#d8dce4", "black": "#5c6370", "red": "#ff8f86", "green": "#6fcf97", "brown": "#f0b95a", "blue": "#82b1f5",
    "magenta": "#d7a4f0", "cyan": "#74d3d8", "white": "#ffffff", "brightblack": "#8a919e",
}  # fmt: skip


class Piece(NamedTuple):
    """Characters of one line that look alike."""

    column: int
    text: str
    color: str
    is_bold: bool


Frame = tuple[tuple[Piece, ...], ...]  # its lines


def frame_of(screen: pyte.Screen) -> Frame:
    """Return what stands on a terminal."""
    lines = []
    for row in range(screen.lines):
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        pieces, column = [], 0
        for look, group in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            text = "".join(cell.data for cell in group)
            if text.strip():
                pieces.append(Piece(column, text.rstrip(), *look))
            column += len(text)
        lines.append(tuple(pieces))
    return tuple(lines)


def svg_of(frames: Sequence[tuple[float, Frame]], end: float) -> str:
    """Return frames as a picture that moves; it begins with the last one, which shows the outcome.

    Args:
        frames: each with the second at which it begins, ascending from 0; of two alike the second is left out.
        end: the second at which it begins anew.
    """
    shown = [
        each for each, before in zip(frames, [None, *frames], strict=False) if before is None or each[1] != before[1]
    ]
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, ROWS * CELL_HEIGHT + 2 * MARGIN
    rules, groups = [], []
    for number, (begin, frame) in enumerate(shown):
        until = shown[number + 1][0] if number + 1 < len(shown) else end
        first, last = 100 * begin / end, 100 * until / end
        is_last = number + 1 == len(shown)
        hidden = "" if is_last else f"{last:.3f}%{{visibility:hidden}}"
        before = "" if number == 0 else "0%{visibility:hidden}"
        rules.append(f"@keyframes f{number}{{{before}{first:.3f}%{{visibility:visible}}{hidden}}}")
        rules.append(f"#f{number}{{animation:f{number} {end:g}s step-end {-shown[-1][0]:g}s infinite}}")
        visibility = "visible" if is_last else "hidden"  # where nothing moves the end is seen
        groups.append(f'<g id="f{number}" visibility="{visibility}">{"".join(_lines(frame))}</g>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{COMMAND}">',
            f"<desc>Made by docs/demo_picture.py of: {COMMAND}</desc>",
            "<style>",
            "text{white-space:pre;font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}",
            *rules,
            "@media (prefers-reduced-motion:reduce){g{animation:none!important}}",
            "</style>",
            '<rect width="100%" height="100%" rx="8" fill="#1c1f26"/>',
            *groups,
            "</svg>\n",
        ]
    )


def _lines(frame: Frame) -> Iterator[str]:
    for row, pieces in enumerate(frame):
        for column, text, color, is_bold in pieces:
            x, y = MARGIN + column * CELL_WIDTH, MARGIN + (row + 0.75) * CELL_HEIGHT
            weight = ' font-weight="700"' if is_bold else ""
            fill = COLORS.get(color, COLORS["default"])
            length = len(text) * CELL_WIDTH  # whatever font there is
            yield f'<text x="{x:g}" y="{y:g}" textLength="{length:g}" fill="{fill}"{weight}>{escape(text)}</text>'


def record() -> tuple[list[tuple[float, Frame]], float]:
    """Run the demo; return its frames, and when it ended."""
    program, *arguments = COMMAND.split()
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execv(sys.executable, [sys.executable, "-m", program.replace("-", "_"), *arguments])  # noqa: S606  # of its own
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    frames: list[tuple[float, Frame]] = []
    begin: float | None = None  # when something is seen
    while True:
        if select.select([terminal], [], [], 1 / FRAMES_A_SECOND)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # as Linux tells the end
                data = b""
            if not data:
                break
            stream.feed(data)
        now = time.monotonic()
        frame = frame_of(screen)
        if begin is None and any(frame):
            begin = now
        if begin is not None and (not frames or now - begin - frames[-1][0] >= 1 / FRAMES_A_SECOND):
            frames.append((now - begin, frame))
    _, status = os.waitpid(process, 0)
    if status or begin is None:
        raise SystemExit(f"the demo failed: {screen.display}")
    frames.append((time.monotonic() - begin, frame_of(screen)))
    return frames, time.monotonic() - begin


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Make the moving picture of the demo.")
    parser.add_argument("path", type=Path, nargs="?", default=Path(__file__).parent / "demo.svg")
    path = parser.parse_args().path
    frames, end = record()
    path.write_text(svg_of(frames, end + LAST_SECONDS), encoding="utf-8")
    print(f"{path}: {len(frames)} frames, {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
