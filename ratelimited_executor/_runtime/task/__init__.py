"""One task, from its acceptance to its end: what users hold, how it is started, and where it is counted."""
