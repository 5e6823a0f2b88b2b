"""The ways into an executor from other threads: futures, and blocking calls to a loop in a thread of its own."""
