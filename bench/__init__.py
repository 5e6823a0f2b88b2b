"""Benchmarks: figures of several sides, measured alternately in one run."""
