"""The long form of the comparison: very many random programs on both kernels, or a program of a file.

``python -m tests.kernel.differential --programs 10000 --first 1000000`` runs programs by seed and ends at the first
one that differs, which is made small, printed and kept in a file.

``python -m tests.kernel.differential replay FILE`` runs the program in a file on both kernels; ``-`` is the standard
input. ``--kernel pure`` or ``--kernel compiled`` prints the events of that kernel instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from .broken import BROKEN
from .compare import Sides, difference
from .corners import CORNERS
from .sides import Side

_TOLD_SECONDS = 10.0  # between two lines that report the progress


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return 1 if the kernels differ."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kernel.differential", description="Random programs on both kernels."
    )
    parser.add_argument("--programs", type=int, default=1000, help="how many (%(default)s)")
    parser.add_argument(
        "--first", type=int, default=1_000_000, help="seed of the first (%(default)s); the tests begin with 0"
    )
    parser.add_argument("--broken", choices=BROKEN, help="in place of the compiled kernel, the pure one with this flaw")
    commands = parser.add_subparsers(dest="command")
    again = commands.add_parser("replay", help="run a program again")
    again.add_argument("file", help="a file with a program, or - for the standard input, or the name of a corner")
    again.add_argument("--kernel", choices=["both", "pure", "compiled"], default="both", help="where (%(default)s)")
    given = parser.parse_args(arguments)
    with Side(is_pure=True) as pure, Side(is_pure=given.broken is not None, broken=given.broken) as other:
        if not (other.kernel["is_compiled"] or given.broken or getattr(given, "kernel", "") == "pure"):
            print(f"there is no compiled kernel: {other.kernel['kernel']}", file=sys.stderr)
            return 2
        if given.command == "replay":
            return _replay(given.file, given.kernel, pure, other)
        return _run(Sides(pure, other), range(given.first, given.first + given.programs))


def _replay(file: str, kernel: str, pure: Side, other: Side) -> int:
    text = (
        json.dumps(CORNERS[file])
        if file in CORNERS
        else sys.stdin.read()
        if file == "-"
        else Path(file).read_text(encoding="utf-8")
    )
    program = json.loads(text)
    if kernel == "both":
        one, another = Sides(pure, other).run(program)
        print("\n".join(difference(one, another, pure.kernel["kernel"], other.kernel["kernel"])))
        return int(one != another)
    for event in (pure if kernel == "pure" else other).run(program):
        print(json.dumps(event))
    return 0


def _run(sides: Sides, seeds: range) -> int:
    begin = told = time.monotonic()
    for count, seed in enumerate(seeds):
        if time.monotonic() - told > _TOLD_SECONDS:
            told = time.monotonic()
            print(f"{count} of {len(seeds)} programs, {count / (told - begin):.0f} a second", flush=True)
        found = sides.first_difference([seed])
        if found is not None:
            path = Path(f"differential-{seed}.json")
            path.write_text(json.dumps(found[1], indent=1), encoding="utf-8")
            print(f"{sides.report(*found)}\n\nkept in {path}")
            return 1
    print(f"{len(seeds)} programs, from seed {seeds.start} on: no difference ({time.monotonic() - begin:.0f} s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
