"""Types for annotations in users' code."""

from ratelimited_executor._core.ordering import Order as Order
from ratelimited_executor._core.rates import RateLike as RateLike

__all__ = ["Order", "RateLike"]
