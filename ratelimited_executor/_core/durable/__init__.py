"""Durable tasks: the rules that every store of them keeps, over plain values."""
