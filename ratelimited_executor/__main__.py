"""``python -m ratelimited_executor``: the command line."""

from __future__ import annotations

from ratelimited_executor.cli.main import main

if __name__ == "__main__":
    main()
