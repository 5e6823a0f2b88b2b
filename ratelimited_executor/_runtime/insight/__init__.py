"""What an executor shows of itself: counts and reasons, lists of tasks, observers, and samples."""
