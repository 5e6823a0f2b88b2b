"""A console script that asks a server every few seconds, and writes a summary now and then, until Ctrl-C.

pip install 'ratelimited-executor'
python examples/poll_script.py http://localhost:8000/ --period 5
"""

from __future__ import annotations

import argparse
import collections
import threading
import urllib.request

from ratelimited_executor.blocking import ScheduledExecutor


def main() -> None:
    """Poll until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Ask a server every few seconds.")
    parser.add_argument("url")
    parser.add_argument("--period", default="5s", help="from one request to the next, such as 500ms")
    parser.add_argument("--summary", default="1min", help="from one summary to the next")
    options = parser.parse_args()
    counts: collections.Counter[int] = collections.Counter()

    def poll() -> None:
        with urllib.request.urlopen(options.url, timeout=10) as answer:  # noqa: S310  # the user's own address
            counts[answer.status] += 1

    def summarize() -> None:
        print(dict(counts), flush=True)

    with ScheduledExecutor("poll") as executor:
        executor.schedule_at_fixed_rate(poll, period=options.period)  # a failure is logged, and the next run follows
        executor.schedule_at_fixed_rate(summarize, period=options.summary, initial_delay=options.summary)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("stopped")
    summarize()


if __name__ == "__main__":
    main()
