"""Stores of the progress of cycles, one module for each backend; each imports its driver on first use."""
