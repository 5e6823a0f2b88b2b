"""Two authorities of tickets behind one interface for a common suite: values in memory, and the script on a server.

The script gets the server's time and run as arguments, instead of asking the server. The rest of its text is that of
production.
"""

import itertools
from typing import Any, Protocol

import redis

from ratelimited_executor._core.fleet.tickets import TicketAuthority
from ratelimited_executor._core.fleet.ticket_calls import TicketCall, TicketReply
from ratelimited_executor.peers.redis.ticket_script import (
    TICKET_SCRIPT,
    TICKET_VERSION,
    ticket_arguments_of,
    ticket_keys_of,
    ticket_reply_of,
)

# What a script asks the server, and the arguments that replace it, after those of the call.
REPLACED = {
    "redis.call('TIME')": "{ARGV[#ARGV - 2], ARGV[#ARGV - 1]}",
    "redis.call('INFO', 'server')": "'run_id:' .. ARGV[#ARGV]",
}

KEYS = ("tickets", "keys", "rest", "seen")

_numbers = itertools.count(1)


class TicketSubject(Protocol):
    """An authority whose server's clock and memory the test controls."""

    run: str

    def call(self, now_us: int, call: TicketCall) -> TicketReply:
        """Answer one call at a time of the server's clock."""
        ...

    def wipe(self) -> None:
        """Forget everything."""
        ...

    def left(self, kinds: str = "kpq") -> int:
        """Count what is stored of users' keys: limits (k), penalties (p) and queues (q)."""
        ...

    def cleanup(self) -> None:
        """Delete what is left."""
        ...


class TicketsInMemory:
    """The authority over plain values."""

    def __init__(self) -> None:
        self.run = "a" * 40
        self.authority = TicketAuthority()

    def call(self, now_us: int, call: TicketCall) -> TicketReply:
        """Answer one call."""
        return self.authority.call(now_us, self.run, call)

    def wipe(self) -> None:
        """Start again with a new authority."""
        self.authority = TicketAuthority()

    def left(self, kinds: str = "kpq") -> int:
        """Count what is stored of keys."""
        state = self.authority._state
        keys = {*state.key_penalties, *(place for place in state.limits if place[0] == "k")}
        assert keys == {place for place in state.rest_us if place[0] != "q"}
        return sum(place[0] in kinds for place in state.rest_us)

    def cleanup(self) -> None:
        """Do nothing: there are only values."""


class TicketsOnRedis:
    """The script on a real server, with its own keys."""

    def __init__(self, client: redis.Redis) -> None:
        self.run = "a" * 40
        self._client = client
        self._script = client.register_script(script_with_arguments())
        self.names = ticket_keys_of("test", f"tickets-{next(_numbers)}", "mail")

    def call(self, now_us: int, call: TicketCall) -> TicketReply:
        """Run the script once."""
        seconds, microseconds = divmod(now_us, 1_000_000)
        arguments = [*ticket_arguments_of(call), str(seconds), str(microseconds), self.run]
        return ticket_reply_of(self._script(keys=self.names, args=arguments))

    def wipe(self) -> None:
        """Delete the keys."""
        self._client.delete(*self.names)

    def lose(self, key: str) -> None:
        """Delete one of :data:`KEYS`."""
        self._client.delete(self.name(key))

    def name(self, key: str) -> str:
        """Return the full name of one of :data:`KEYS`."""
        return self.names[KEYS.index(key)]

    def read(self, key: str) -> dict[str, str]:
        """Return a hash."""
        return {
            field.decode(): value.decode("latin-1") for field, value in self._client.hgetall(self.name(key)).items()
        }

    def write(self, key: str, field: str, value: Any) -> None:
        """Set a field of a hash."""
        self._client.hset(self.name(key), field, value)

    def left(self, kinds: str = "kpq") -> int:
        """Count what is stored of keys, without the mark."""
        fields = {field.decode() for field in self._client.hkeys(self.name("keys"))} - {"!"}
        rest = {place.decode() for place in self._client.zrange(self.name("rest"), 0, -1)}
        assert fields == {place for place in rest if place[0] != "!"}
        return sum(place[0] in kinds for place in fields)

    def save(self) -> list[Any]:
        """Return a snapshot of all keys."""
        return [self._client.dump(name) for name in self.names]

    def restore(self, saved: list[Any]) -> None:
        """Set all keys back to a snapshot."""
        self.wipe()
        for name, dump in zip(self.names, saved, strict=True):
            if dump is not None:
                self._client.restore(name, 0, dump)

    def lives(self) -> list[int]:
        """Return the remaining milliseconds of each key."""
        return [int(self._client.pttl(self.name(key))) for key in KEYS]

    def speak(self, version: int) -> None:
        """Continue with the script of another protocol version."""
        self._script = self._client.register_script(script_with_arguments(version))

    def cleanup(self) -> None:
        """Delete the keys."""
        self.wipe()


def script_with_arguments(version: int = TICKET_VERSION) -> str:
    """Return the script with the time and the server's run as arguments."""
    text = TICKET_SCRIPT.replace(f"VERSION = {TICKET_VERSION}\n", f"VERSION = {version}\n", 1)
    for old, new in REPLACED.items():
        assert text.count(old) == 1, f"the script says {old} {text.count(old)} times: see REPLACED"
        text = text.replace(old, new)
    for word in ("TIME", "INFO"):
        assert f"'{word}'" not in text, f"the script asks for {word} in another way, too: see REPLACED"
    return text
