"""The time of an executor: the clock that it reads, and what wakes the event loop for it."""
