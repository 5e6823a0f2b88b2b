"""The commands that run scenarios in virtual time: ``simulate`` and ``forecast``."""
