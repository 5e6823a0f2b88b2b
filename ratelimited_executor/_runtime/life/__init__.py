"""The life of an executor: how its parts are assembled, run by the engine, changed, and closed."""
