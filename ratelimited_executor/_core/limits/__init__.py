"""What bounds starts in time beside the grid of numbered permits: exact windows, token buckets, quotas."""
