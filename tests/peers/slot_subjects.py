"""Two authorities of slots behind one interface: values in memory, and the script on a server; see ``ticket_subjects.py``."""

import itertools
from typing import Any, Protocol

import redis

from ratelimited_executor._core.fleet.slots import SlotAuthority, SlotCall, SlotReply
from ratelimited_executor.peers.redis.slot_script import (
    SLOT_SCRIPT,
    SLOT_VERSION,
    slot_arguments_of,
    slot_keys_of,
    slot_reply_of,
)

from .ticket_subjects import REPLACED

KEYS = ("slots", "held", "line", "ends")

_numbers = itertools.count(1)


class SlotSubject(Protocol):
    """An authority whose server's clock and memory the test controls."""

    run: str

    def call(self, now_us: int, call: SlotCall) -> SlotReply:
        """Answer one call at a time of the server's clock."""
        ...

    def woken(self) -> list[str]:
        """Return the tokens of which other peers were notified since the last call of this."""
        ...

    def wipe(self) -> None:
        """Forget everything."""
        ...

    def cleanup(self) -> None:
        """Delete what is left."""
        ...


class SlotsInMemory:
    """The authority over plain values."""

    def __init__(self) -> None:
        self.run = "a" * 40
        self.authority = SlotAuthority()

    def call(self, now_us: int, call: SlotCall) -> SlotReply:
        """Answer one call."""
        return self.authority.call(now_us, self.run, call)

    def woken(self) -> list[str]:
        """Empty the list."""
        woken, self.authority.woken = self.authority.woken, []
        return woken

    def wipe(self) -> None:
        """Start again with a new authority; messages are on their way already."""
        woken, self.authority = self.authority.woken, SlotAuthority()
        self.authority.woken = woken

    def cleanup(self) -> None:
        """Do nothing: there are only values."""


class SlotsOnRedis:
    """The script on a real server, with its own keys."""

    def __init__(self, client: redis.Redis) -> None:
        self.run = "a" * 40
        self._client = client
        self._script = client.register_script(script_with_arguments())
        self.names = slot_keys_of("test", f"slots-{next(_numbers)}")
        self._messages = client.pubsub(ignore_subscribe_messages=True)
        self._messages.psubscribe(f"{self.names[0]}:*")
        self._messages.get_message(timeout=1)

    def call(self, now_us: int, call: SlotCall) -> SlotReply:
        """Run the script once."""
        seconds, microseconds = divmod(now_us, 1_000_000)
        arguments = [*slot_arguments_of(call), str(seconds), str(microseconds), self.run]
        return slot_reply_of(self._script(keys=self.names, args=arguments))

    def woken(self) -> list[str]:
        """Return the tokens of the messages received."""
        self._client.publish(f"{self.names[0]}:end", "end")
        tokens = []
        while (message := self._messages.get_message(timeout=5)) is None or message["data"] != b"end":
            if message is not None:
                token = message["data"].decode()
                assert message["channel"].decode() == f"{self.names[0]}:{token.rpartition(':')[0]}"
                tokens.append(token)
        return tokens

    def wipe(self) -> None:
        """Delete the keys."""
        self._client.delete(*self.names)

    def lose(self, key: str) -> None:
        """Delete one of :data:`KEYS`."""
        self._client.delete(self.names[KEYS.index(key)])

    def write(self, field: str, value: Any) -> None:
        """Set a field of the state."""
        self._client.hset(self.names[0], field, value)

    def left(self) -> dict[str, int]:
        """Count what each key holds, without the mark of the state and what is always there."""
        fields = self._client.hkeys(self.names[0])
        counts = {"slots": sum(field.startswith(b"t:") for field in fields)}
        return counts | {key: self._client.zcard(self.names[KEYS.index(key)]) - 1 for key in KEYS[1:]}

    def lives(self) -> list[int]:
        """Return the remaining milliseconds of each key."""
        return [int(self._client.pttl(name)) for name in self.names]

    def speak(self, version: int) -> None:
        """Continue with the script of another protocol version."""
        self._script = self._client.register_script(script_with_arguments(version))

    def cleanup(self) -> None:
        """Delete the keys, and stop listening."""
        self.wipe()
        self._messages.close()


def script_with_arguments(version: int = SLOT_VERSION) -> str:
    """Return the script with the time and the server's run as arguments."""
    text = SLOT_SCRIPT.replace(f"VERSION = {SLOT_VERSION}\n", f"VERSION = {version}\n", 1)
    for old, new in REPLACED.items():
        assert text.count(old) == 1, f"the script says {old} {text.count(old)} times: see REPLACED"
        text = text.replace(old, new)
    return text
