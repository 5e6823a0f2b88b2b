"""Stores: where an executor keeps what must outlast it, a module for each backend.

A store implements a contract of :mod:`ratelimited_executor.abc`, whose docstrings hold for every store and stand there
alone. Its own docstring says the rest: who may share the store, how durable it is, and by whose clock it goes.

===========  ============================  ==========================================
module       shared by                     forgets
===========  ============================  ==========================================
``memory``   the tasks of one event loop   everything, with the process
``sqlite``   processes on one machine      perhaps the last change, if the power fails
``redis``    processes on many machines    what its server forgets
===========  ============================  ==========================================

``tasks`` has the stores of durable tasks, over the same backends.

A module imports its driver on first use, and so nothing is imported here.
"""
