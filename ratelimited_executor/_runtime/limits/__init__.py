"""What limits an executor: policies and quotas over time, keys, slots, and room for waiting tasks."""
