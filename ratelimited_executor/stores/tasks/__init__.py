"""Stores of durable tasks: one contract, :class:`~ratelimited_executor.abc.TaskStore`, one module for each backend.

===========  =============================  =====================================================
module       shared by                      a put that has returned outlasts
===========  =============================  =====================================================
``memory``   the tasks of one event loop    nothing: it is for tests
``sqlite``   processes on one machine       the loss of power
``postgres`` processes on many machines     what a commit of the server outlasts
``redis``    processes on many machines     the process; the server's last second may be lost
===========  =============================  =====================================================

The rules stand in ``_core/durable/table.py``. Stores that speak SQL share them once more, in ``moves.py``, as a program
that asks for statements by name; the statements are in ``.sql`` files. For Redis they are written once more, in Lua.
"""
