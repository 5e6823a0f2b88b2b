"""Stores of the progress of cycles, one module for each backend.

The contract is :class:`~ratelimited_executor.abc.Progress`.

===========  ============================  ==========================================
module       shared by                     forgets
===========  ============================  ==========================================
``memory``   the tasks of one event loop   everything, with the process
``sqlite``   processes on one machine      perhaps the last change, if the power fails
``redis``    processes on many machines    everything that its server forgets
===========  ============================  ==========================================
"""
