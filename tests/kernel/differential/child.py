"""One side of a comparison: a process that runs programs on its kernel until its input ends.

Each program and each answer is one line of JSON. ``python -m tests.kernel.differential.child [BROKEN]`` starts it;
``BROKEN`` names a deliberate flaw of :mod:`.broken`.
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
    """Run each program, and answer with its events."""
    faulthandler.enable()
    warnings.simplefilter("ignore")  # programs do on purpose what causes warnings
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if len(sys.argv) > 1:
        BROKEN[sys.argv[1]].patch()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that printed text does not get between the answers
    gc.collect()
    gc.freeze()  # the objects of now stay, and the collection after each program need not visit them
    print(json.dumps({"kernel": str(kernel), "is_compiled": kernel.is_compiled}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
