"""Permits of a rate: when each may be taken, how strictly, and how the rate adapts."""
