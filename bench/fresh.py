"""``python -m bench.fresh module:function '{"argument": 1}'``: call a function, print its result as a line of JSON."""

from __future__ import annotations

import importlib
import json
import logging
import sys


def main() -> None:
    """Call the function that the command line names."""
    logging.getLogger("ratelimited_executor").setLevel(logging.ERROR)  # filling a queue in one go blocks the loop
    module, _, name = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
