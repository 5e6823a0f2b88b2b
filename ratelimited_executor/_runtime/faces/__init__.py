"""The faces of an executor: groups of its public methods, one module each.

Every face checks its arguments and hands work to the engine; none keeps state of its own.
"""
