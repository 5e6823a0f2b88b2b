"""``bench``: measures a service with an open load, searches for the highest rate that it holds, and compares results."""
