"""When something runs again: the next occurrence, the next attempt, the next turn of a cycle."""
