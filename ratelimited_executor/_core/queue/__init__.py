"""The queue for special tasks, its records, and its indexes of deadlines, of tasks to drop and of the wall clock."""
