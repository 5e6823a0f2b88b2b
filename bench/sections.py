"""The sections by name, in the order in which they run; ``bench/harness.py`` describes such a module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from bench.harness import has_module

if TYPE_CHECKING:
    from bench.harness import Options, Table

__all__ = ["MODULES", "Section", "load", "names"]

MODULES = {
    "throughput": "bench.throughput",
    "memory": "bench.memory",
    "pacing": "bench.pacing",
    "growth": "bench.growth",
    "coroutines": "bench.coroutines",
    "watching": "bench.watching",
    "overflow": "bench.overflow",
    "overload": "bench.overload",
    "fleet": "bench.fleet",
    "guest": "bench.guest",
    "soak": "bench.soak",
    "simulation": "bench.simulation",
    "peers": "bench.peers",
    "java": "bench.java",
    "durable": "bench.durable",
    "load": "bench.load",
    "shared": "bench.shared",
}


class Section(Protocol):
    """What the module of a section has."""

    NAME: str
    DESCRIPTION: str

    def run(self, options: Options) -> list[Table]:
        """Measure, and return the tables."""
        ...


def names() -> list[str]:
    """Return the names of the sections whose modules exist."""
    return [name for name, module in MODULES.items() if has_module(module)]


def load(name: str) -> Section:
    """Import a section."""
    module: Section = importlib.import_module(MODULES[name])
    return module
