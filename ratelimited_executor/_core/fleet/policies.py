"""The guarantees of a group of peers, and a peer's behaviour without an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from ratelimited_executor._core.permits.strictness import Strictness as Strictness

__all__ = ["Outage", "Strictness"]


@dataclass(frozen=True, slots=True, repr=False)
class Outage:
    """A peer's behaviour while the authority is away, once the permits that it holds are used up.

    ``Outage.STOP`` starts nothing until the authority answers again: the rate is always kept. ``Outage.LOCAL`` uses the
    whole rate in each peer that is cut off: up to the number of peers times the rate. :meth:`static` lies between.

    Attributes:
        kind: ``stop``, ``static`` or ``local``.
        peers_max: with ``static``, the largest number of peers.
    """

    kind: str
    peers_max: int = 1

    STOP: ClassVar[Self]
    LOCAL: ClassVar[Self]

    def __post_init__(self) -> None:
        if self.kind not in ("stop", "static", "local"):
            raise ValueError(f"kind must be stop, static or local, got {self.kind!r}")
        if self.peers_max < 1:
            raise ValueError(f"peers_max must be >= 1, got {self.peers_max}")

    @classmethod
    def static(cls, peers_max: int) -> Self:
        """Use one part in ``peers_max`` of each limit.

        While all peers are cut off, their parts add up to the limits, if there are no more than ``peers_max``. While only
        ``c`` of them are, and the others share the whole limits, the group may exceed these by ``c / peers_max``.

        Raises:
            TypeError: if ``peers_max`` is not an integer.
            ValueError: if ``peers_max`` is less than 1.
        """
        if isinstance(peers_max, bool) or not isinstance(peers_max, int):
            raise TypeError(f"peers_max must be an integer, got {peers_max!r}")
        return cls("static", peers_max)

    def __repr__(self) -> str:
        return f"Outage.static({self.peers_max})" if self.kind == "static" else f"Outage.{self.kind.upper()}"

    def __str__(self) -> str:
        return f"static({self.peers_max})" if self.kind == "static" else self.kind


Outage.STOP = Outage("stop")
Outage.LOCAL = Outage("local")
