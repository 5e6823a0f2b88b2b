"""What a plain task passes, from being scheduled to being taken to start: columns, due order, what is ready, and take()."""
