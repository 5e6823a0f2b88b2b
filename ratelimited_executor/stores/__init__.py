"""Stores: keep the state that must outlast an executor, one module for each backend.

``progress`` keeps the progress of cycles, ``tasks`` keeps durable tasks.

A store implements a contract of :mod:`ratelimited_executor.abc`, whose docstrings apply to every store and are not
repeated. Its own docstring adds the rest: which processes may share it, how durable it is, and which clock it uses.

A module imports its driver on first use, so nothing is imported here.
"""
