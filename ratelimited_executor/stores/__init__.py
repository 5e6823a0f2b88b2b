"""Stores: keep the state that must outlast an executor, one module for each backend.

A store implements a contract of :mod:`ratelimited_executor.abc`, whose docstrings apply to every store and are not
repeated. Its own docstring adds the rest: which processes may share it, how durable it is, and which clock it uses.

===========  ============================  ==========================================
module       shared by                     forgets
===========  ============================  ==========================================
``memory``   the tasks of one event loop   everything, with the process
``sqlite``   processes on one machine      perhaps the last change, if the power fails
``redis``    processes on many machines    everything that its server forgets
===========  ============================  ==========================================

``tasks`` has the stores of durable tasks, over the same backends.

A module imports its driver on first use, so nothing is imported here.
"""
