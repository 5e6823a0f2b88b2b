"""Keys of tasks, and which of them may start a task now."""
