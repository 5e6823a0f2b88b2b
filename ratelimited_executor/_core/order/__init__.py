"""The order in which due tasks start: what users choose, and the ready queues that keep it."""
