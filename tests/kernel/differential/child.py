"""One side: a process that runs programs on its kernel, one JSON document a line each way, until its input ends.

``python -m tests.kernel.differential.child [BROKEN]``; ``BROKEN`` names a deliberate flaw of :mod:`.broken`.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import sys
import warnings

from ratelimited_executor._kernel.choice import kernel

from .broken import BROKEN
from .play import play


def main() -> None:
    """Answer each program with its events."""
    faulthandler.enable()
    warnings.simplefilter("ignore")  # programs do what is worth a warning
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if len(sys.argv) > 1:
        BROKEN[sys.argv[1]].patch()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anybody prints does not mix with them
    gc.collect()
    gc.freeze()  # what is there stays: it need not be looked at after each program
    print(json.dumps({"kernel": str(kernel), "is_compiled": kernel.is_compiled}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
