"""The path of a plain task from scheduling to its start: columns, due order, ready queues, and ``poll()``."""
