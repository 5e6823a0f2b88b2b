"""What runs again: repeating tasks and their schedules, cycles through a population, and retries."""
