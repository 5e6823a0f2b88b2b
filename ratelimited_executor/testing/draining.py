"""The part of durable tasks that belongs to the test kit."""

from ratelimited_executor._runtime.durable.draining import drain

__all__ = ["drain"]
