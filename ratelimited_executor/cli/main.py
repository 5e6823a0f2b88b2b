"""The entry point: checks that the extra ``cli`` is installed, then hands over to the parser.

The console script is installed with the package, but its libraries only with the extra. So this module imports only the
standard library before the check.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

__all__ = ["main"]

# Modules of the extra ``cli``. Only their absence is reported as a missing extra; any other ImportError is a bug.
_EXTRA_MODULES: Final = frozenset({"aiohttp", "click", "plotext", "rich"})


def main() -> NoReturn:
    """Run the command line on ``sys.argv`` and exit; status 2 if the extra ``cli`` is missing."""
    try:
        from ratelimited_executor.cli.commands import cli  # noqa: PLC0415  # its absence is reported below

        cli()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA_MODULES:
            raise
        print(  # noqa: T201  # there is no click yet
            f"The command line needs {missing}, which is not installed.\n"
            "Install the extra: pip install 'ratelimited-executor[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:  # while modules are loaded, before a command has begun
        sys.exit(130)
    raise AssertionError("click ends the process itself")
