"""One call on a memory in a database: what to read, and what to write after the decision.

The database locks the group for the time of a call, so calls happen one after the other. It has *heads*, one text for
each name (with the version, for slots), and *records*, each with a name, a place, a number and a text:

========  ==========  =====================  =======================================================================
of        name        place                  number
========  ==========  =====================  =======================================================================
tickets   ``t`` +     of a key's limit,      the time from which on it may be forgotten
          executor    penalty or queue
slots     ``s``       the token of a claim   the *version* of its last change; a text of None: it is gone
========  ==========  =====================  =======================================================================

For tickets, a call reads the records of its own keys, and a few that are due. For slots, a process keeps a copy of all
claims, and a call reads what others have changed since its last one: so what a call costs depends on neither the number
of keys nor that of holders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ratelimited_executor._core.fleet.memory import StateRecord, TicketMemory, VersionError
from ratelimited_executor._core.fleet.slots import SlotAuthority, SlotCall, SlotReply
from ratelimited_executor._core.fleet.tickets import TicketAuthority, places_of, swept_count
from ratelimited_executor.peers.transport import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimited_executor._core.fleet.ticket_calls import TicketCall, TicketReply

__all__ = [
    "GONE_KEPT",
    "QUIET_US",
    "SLOTS",
    "Answer",
    "Change",
    "SlotAnswer",
    "SlotCopy",
    "answer",
    "bytes_of",
    "due_count",
    "name_of",
    "places",
    "quiet_us",
]

SLOTS: Final = b"s"
"""The name of the head and the records of slots."""

GONE_KEPT: Final = 8192
"""Records of claims that are gone are kept for this many versions; a copy that is older reads all claims anew."""

QUIET_US: Final = 3_000_000
"""After this time, the tickets of another run have lapsed, and their starts left any window of a second."""

_UPDATE: Final = "update this process, or stop those of the newer release"

Change: TypeAlias = tuple[str, int | None, str | None]
"""A place, with its number and text to be written; without a number the record is deleted."""


class Answer(NamedTuple):
    """What a call for tickets leads to.

    Attributes:
        reply: the reply to the peer.
        head: the head to be written.
        changes: the changes to records, to be written.
    """

    reply: TicketReply
    head: str
    changes: list[Change]


class SlotAnswer(NamedTuple):
    """What a call for slots leads to.

    Attributes:
        reply: the reply to the peer.
        version: the version of the head.
        head: the head to be written.
        changes: the changes to records, to be written.
        woken: tokens of other peers that are to be notified.
        is_anew: True if all records are to be deleted first.
    """

    reply: SlotReply
    version: int
    head: str
    changes: list[Change]
    woken: list[str]
    is_anew: bool


def name_of(executor: str) -> bytes:
    """Return the name of the head and the records of an executor's tickets."""
    return b"t" + bytes_of(executor)


def bytes_of(text: str) -> bytes:
    """Return a text as bytes, in which even a half of a surrogate pair and a zero can be kept and compared."""
    return text.encode("utf-8", "surrogatepass")


def text_of(place: bytes) -> str:
    """Return the text of bytes."""
    return bytes(place).decode("utf-8", "surrogatepass")


def quiet_us(call: SlotCall) -> int:
    """Return after what time the claims of another run have ended."""
    return 2 * call.lease_us + call.difference_us


def places(call: TicketCall) -> list[bytes]:
    """Return the places whose records a call needs."""
    return [bytes_of(place) for place in places_of(call)]


def due_count(call: TicketCall) -> int:
    """Return how many of the records with the least numbers a call needs, of those that are not in the future.

    It forgets the first ones; those of its own places may no longer be due afterwards.
    """
    return swept_count(call) + len(places_of(call))


def answer(
    now_us: int,
    run: str,
    call: TicketCall,
    head: str | None,
    records: Iterable[tuple[bytes, int, str]],
    *,
    is_new: bool = False,
) -> Answer:
    """Decide on a call.

    Args:
        now_us: the time.
        run: identifies what would have to go on for the memory to be complete.
        call: the call.
        head: as read; None if there is none.
        records: as read, of :func:`places` and of the first :func:`due_count`.
        is_new: True if a missing head proves that there has been no call before.

    Raises:
        RefusedError: if another release has written the memory.
    """
    found = {text_of(place): StateRecord(number, text) for place, number, text in records}
    memory, is_damaged = None, False
    try:
        if head is not None:
            memory = TicketMemory.read(head, found.items())
        elif is_new:
            memory = TicketMemory.new(run, now_us)
    except VersionError as error:
        raise RefusedError(str(error), _UPDATE) from error
    except ValueError:
        is_damaged = True
    authority = TicketAuthority(memory)
    reply = authority.call(now_us, run, call)
    memory = authority.memory
    if is_damaged:
        reply = replace(reply, flaw="state")
    left = memory.records()
    changes: list[Change] = [
        (place, *(left.get(place) or (None, None)))
        for place in found.keys() | left.keys()
        if left.get(place) != found.get(place)
    ]
    return Answer(reply, memory.head(), changes)


class SlotCopy:
    """This process's copy of the claims of a group.

    Args:
        is_clock_steady: True if the clock passes without steps while nobody looks at it.

    Attributes:
        version: the version of the latest call that it knows; 0 if it knows none.
    """

    __slots__ = ("_authority", "_is_clock_steady", "version")

    def __init__(self, *, is_clock_steady: bool = False) -> None:
        self._is_clock_steady = is_clock_steady
        self.forget()

    def forget(self) -> None:
        """Forget everything, after what was decided may not have been written."""
        self._authority = SlotAuthority(is_clock_steady=self._is_clock_steady)
        self.version = 0

    def since(self, version: int) -> int:
        """Return after which version changes are to be read, if a call had a version last; 0 for all records."""
        if not self.version <= version <= self.version + GONE_KEPT:
            self.forget()
        return self.version

    def answer(
        self,
        now_us: int,
        run: str,
        call: SlotCall,
        head: tuple[int, str] | None,
        records: Iterable[tuple[bytes, str | None]],
        *,
        is_new: bool = False,
    ) -> SlotAnswer:
        """Decide on a call.

        Args:
            now_us: the time.
            run: identifies what would have to go on for the memory to be complete.
            call: the call.
            head: the version of the latest call, and its text; None if there is none.
            records: those with a number above :meth:`since`.
            is_new: True if a missing head proves that there has been no call before.

        Raises:
            RefusedError: if another release has written the memory.
        """
        version, text = head or (0, "")
        is_damaged = False
        try:
            if head is not None and version != self.version:
                self._authority.read(text, [(text_of(token), each) for token, each in records])
            elif head is None:
                self.forget()
                if is_new:
                    self._authority.begin(run, now_us)
        except VersionError as error:
            raise RefusedError(str(error), _UPDATE) from error
        except ValueError:
            is_damaged = True
            self.forget()
            version += GONE_KEPT + 1  # so that all other copies are made anew
        authority = self._authority
        reply = authority.call(now_us, run, call)
        if is_damaged:
            reply = replace(reply, flaw="state")
        self.version = version + 1
        changes: list[Change] = [(token, self.version, each) for token, each in authority.changes().items()]
        woken, authority.woken = authority.woken, []
        return SlotAnswer(reply, self.version, authority.head(), changes, woken, is_damaged or head is None)
