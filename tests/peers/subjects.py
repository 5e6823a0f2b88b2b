"""Two authorities behind one interface for a common suite: values in memory, and the script on a server.

The script gets the server's time and run as arguments, instead of asking the server. The rest of its text is that of
production.
"""

import copy
import itertools
from collections.abc import Collection, Iterator
from typing import Any, Protocol

import redis

from ratelimited_executor._core.fleet.authority import Authority
from ratelimited_executor._core.fleet.grid import FleetGrid
from ratelimited_executor._core.fleet.protocol import Reply, Request
from ratelimited_executor.peers.redis.script import SCRIPT, VERSION, arguments_of, keys_of, reply_of

# What the script asks the server, and the arguments that replace it, after those of the request.
REPLACED = {
    "redis.call('TIME')": "{ARGV[#ARGV - 2], ARGV[#ARGV - 1]}",
    "redis.call('INFO', 'server')": "'run_id:' .. ARGV[#ARGV]",
}

KEYS = ("state", "members", "plan0", "plan1")
# What the keys hold, as attributes of the authority in memory.
HELD = {
    "state": ("_known_run", "_epoch", "_safe", "_last_us", "_calls", "_grid", "_next_grid", "_planned"),
    "members": ("_members",),
    "plan0": ("_plans", 0),
    "plan1": ("_plans", 1),
}
# Impossible fields of the state, on Redis and in memory. The grid has intervals of a quarter of a second.
FLAWS: dict[str, tuple[str, str, str, Any]] = {
    "no epoch": ("epoch", "many", "_epoch", -1),
    "safe in a million years": ("safe", "126144000000000", "_safe", 126144000000000),
    "negative safe": ("safe", "-1", "_safe", -1),
    "no last call": ("last", "", "_last_us", -1),
    "no calls": ("calls", "nan", "_calls", -1),
    "no grid": ("grid", "garbage", "_grid", FleetGrid(0, 0, 0, 0, 0)),
    "grid without a unit": ("grid", "g250000,25,0,0,0", "_grid", FleetGrid(250_000, 25, 0, 0, 0)),
    "grid of long ago": ("grid", "g250000,25,1,0,0", "_grid", FleetGrid(250_000, 25, 1, 0, 0)),
    "no next grid": ("next", "g1,2", "_next_grid", FleetGrid(250_000, 25, 0, 0, 0)),
    "next grid in a million years": (
        "next",
        "g250000,25,1,0,6816270000",
        "_next_grid",
        FleetGrid(250_000, 25, 1, 0, 6816270000),
    ),
    "planned for ever": ("planned0", "6816270000,1", "_planned", [(6816270000, 1), (-1, 0)]),
}

_numbers = itertools.count(1)


class Subject(Protocol):
    """An authority whose server's clock and memory the test controls."""

    def call(self, now_us: int, request: Request) -> Reply:
        """Answer one call at a time of the server's clock."""
        ...

    def wipe(self) -> None:
        """Restart the server with an empty memory."""
        ...

    def fail_over(self) -> None:
        """Let another server take over with all that this one knew."""
        ...

    def lose(self, key: str) -> None:
        """Lose one of :data:`KEYS`."""
        ...

    def save(self) -> None:
        """Save what the keys hold."""
        ...

    def set_back(self, keys: Collection[str]) -> None:
        """Restore keys to what was saved last."""
        ...

    def spoil(self, flaw: str) -> None:
        """Write one of :data:`FLAWS` into the state."""
        ...

    def keys(self) -> dict[str, int]:
        """Return the remaining milliseconds of each existing key; -1 if it never expires."""
        ...

    def cleanup(self) -> None:
        """Delete what is left."""
        ...


class InMemory:
    """The authority over plain values."""

    def __init__(self) -> None:
        self._runs = _run_ids()
        self.authority = Authority(next(self._runs))
        self._saved: Authority | None = None

    def call(self, now_us: int, request: Request) -> Reply:
        """Answer one call."""
        return self.authority.call(now_us, request)

    def wipe(self) -> None:
        """Forget everything."""
        self.authority.wipe(next(self._runs))

    def fail_over(self) -> None:
        """Forget nothing, and have another run id."""
        self.authority.run = next(self._runs)

    def lose(self, key: str) -> None:
        """Replace it by that of a new authority."""
        take(self.authority, Authority(self.authority.run), key)

    def save(self) -> None:
        """Save all of it."""
        self._saved = copy.deepcopy(self.authority)

    def set_back(self, keys: Collection[str]) -> None:
        """Restore what was saved."""
        for key in keys if self._saved is not None else ():
            take(self.authority, copy.deepcopy(self._saved), key)

    def spoil(self, flaw: str) -> None:
        """Set the attribute."""
        spoil(self.authority, flaw)

    def keys(self) -> dict[str, int]:
        """Return nothing: there are no keys."""
        return {}

    def cleanup(self) -> None:
        """Do nothing: there are only values."""


def take(authority: Authority, other: Authority | None, key: str) -> None:
    """Copy into an authority what another one holds in one of :data:`KEYS`."""
    name, *rest = HELD[key]
    if key.startswith("plan"):
        getattr(authority, name)[rest[0]] = getattr(other, name)[rest[0]]
    else:
        for each in (name, *rest):
            setattr(authority, each, getattr(other, each))


def spoil(authority: Authority, flaw: str) -> None:
    """Set one of :data:`FLAWS` in an authority."""
    setattr(authority, FLAWS[flaw][2], copy.deepcopy(FLAWS[flaw][3]))


class LuaOnRedis:
    """The script on a real server, with its own keys."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._script = client.register_script(script_with_arguments())
        self._runs = _run_ids()
        self._run = next(self._runs)
        self.names = keys_of("test", "group", f"rate-{next(_numbers)}")
        self._saved: dict[str, tuple[bytes | None, int]] = {}

    def call(self, now_us: int, request: Request) -> Reply:
        """Run the script once."""
        seconds, microseconds = divmod(now_us, 1_000_000)
        arguments = [*arguments_of(request), str(seconds), str(microseconds), self._run]
        return reply_of(self._script(keys=self.names, args=arguments))

    def wipe(self) -> None:
        """Delete the keys, and have another run id."""
        self.cleanup()
        self._run = next(self._runs)

    def fail_over(self) -> None:
        """Keep the keys, and have another run id."""
        self._run = next(self._runs)

    def lose(self, key: str) -> None:
        """Delete the key."""
        self._client.delete(self._name(key))

    def save(self) -> None:
        """Dump all keys."""
        names = {key: self._name(key) for key in KEYS}
        self._saved = {key: (self._client.dump(name), int(self._client.pttl(name))) for key, name in names.items()}

    def set_back(self, keys: Collection[str]) -> None:
        """Restore the keys."""
        for key in keys if self._saved else ():
            dump, left = self._saved[key]
            self.lose(key)
            if dump is not None:
                self._client.restore(self._name(key), max(1, left), dump)

    def spoil(self, flaw: str) -> None:
        """Set the field."""
        self._client.hset(self._name("state"), *FLAWS[flaw][:2])

    def write(self, key: str, field: str, value: str) -> None:
        """Set a field of one of :data:`KEYS`."""
        self._client.hset(self._name(key), field, value)

    def read(self, key: str, field: str) -> str:
        """Return a field of one of :data:`KEYS`."""
        return str(self._client.hget(self._name(key), field).decode())

    def remove(self, key: str, field: str) -> None:
        """Delete a field of one of :data:`KEYS`."""
        self._client.hdel(self._name(key), field)

    def speak(self, version: int) -> None:
        """Continue with the script of another protocol version."""
        self._script = self._client.register_script(script_with_arguments(version))

    def _name(self, key: str) -> str:
        return self.names[KEYS.index(key)]

    def keys(self) -> dict[str, int]:
        """Return the remaining milliseconds of each key."""
        lives = {name: int(self._client.pttl(name)) for name in self.names}
        return {name: left for name, left in lives.items() if left != -2}  # -2: there is no such key

    def cleanup(self) -> None:
        """Delete the keys."""
        self._client.delete(*self.names)


def script_with_arguments(version: int = VERSION) -> str:
    """Return the script with the time and the server's run as arguments: seconds, microseconds, run."""
    text = SCRIPT.replace(f"VERSION = {VERSION}\n", f"VERSION = {version}\n", 1)
    for old, new in REPLACED.items():
        assert text.count(old) == 1, f"the script says {old} {text.count(old)} times: see REPLACED"
        text = text.replace(old, new)
    for word in ("TIME", "INFO"):
        assert f"'{word}'" not in text, f"the script asks for {word} in another way, too: see REPLACED"
    return text


def _run_ids() -> Iterator[str]:
    """Yield names of runs; they are the same for each subject, so that replies can be compared whole."""
    return (f"{number:040x}" for number in itertools.count(1))
