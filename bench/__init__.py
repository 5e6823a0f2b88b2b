"""Benchmarks: figures taken side by side in one run."""
