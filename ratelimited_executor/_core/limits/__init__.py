"""Limits on starts over time beside the grid of numbered permits: exact windows, token buckets, quotas."""
