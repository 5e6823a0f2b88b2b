"""Slots: the rules of their pools, and how tasks ask for them and hold them."""
