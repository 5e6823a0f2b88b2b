"""Stores of durable tasks, one module for each backend.

The contract is :class:`~ratelimited_executor.abc.TaskStore`.

===========  =============================  =====================================================
module       shared by                      a put that has returned survives
===========  =============================  =====================================================
``memory``   the tasks of one event loop    nothing: it is for tests
``sqlite``   processes on one machine       a loss of power
``postgres`` processes on many machines     everything that a commit of the server survives
``redis``    processes on many machines     the process; the server's last second may be lost
===========  =============================  =====================================================

The rules are defined in ``_core/durable/table.py``. The SQL stores share an implementation in ``moves.py``, as programs
that request statements by name; the statements are in ``.sql`` files. For Redis the rules are written in Lua.
"""
