"""Two authorities behind one face, so that one suite of tests holds for both: values in memory, and the script on a server.

For the script the time and the run of the server are arguments, in place of what the server would say. The rest of its
text is what runs in production.
"""

import itertools
from collections.abc import Iterator
from typing import Protocol

import redis

from ratelimited_executor._core.fleet.authority import Authority
from ratelimited_executor._core.fleet.protocol import Reply, Request
from ratelimited_executor.peers.redis.script import SCRIPT, arguments_of, keys_of, reply_of

# What the server says, and where the test says it instead: behind the arguments of the request.
REPLACED = {
    "redis.call('TIME')": "{ARGV[#ARGV - 2], ARGV[#ARGV - 1]}",
    "string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')": "ARGV[#ARGV]",
}

_numbers = itertools.count(1)


class Subject(Protocol):
    """An authority whose server's clock and life are in the hands of the test."""

    def call(self, now_us: int, request: Request) -> Reply:
        """Answer one call at a time of the server's clock."""
        ...

    def wipe(self) -> None:
        """Start the server anew, with an empty memory."""
        ...

    def fail_over(self) -> None:
        """Let another server go on with all that this one knew."""
        ...

    def keys(self) -> dict[str, int]:
        """Return in how many milliseconds each key expires that there is; -1 if never."""
        ...

    def cleanup(self) -> None:
        """Leave nothing behind."""
        ...


class InMemory:
    """The authority over plain values."""

    def __init__(self) -> None:
        self._runs = _run_ids()
        self.authority = Authority(next(self._runs))

    def call(self, now_us: int, request: Request) -> Reply:
        """Answer one call."""
        return self.authority.call(now_us, request)

    def wipe(self) -> None:
        """Forget everything."""
        self.authority.wipe(next(self._runs))

    def fail_over(self) -> None:
        """Forget nothing, and have another name."""
        self.authority.run = next(self._runs)

    def keys(self) -> dict[str, int]:
        """Return nothing: there are no keys."""
        return {}

    def cleanup(self) -> None:
        """Do nothing: there is nothing but values."""


class LuaOnRedis:
    """The script on a real server, under keys of its own."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._script = client.register_script(script_with_arguments())
        self._runs = _run_ids()
        self._run = next(self._runs)
        self.names = keys_of("test", "group", f"rate-{next(_numbers)}")

    def call(self, now_us: int, request: Request) -> Reply:
        """Run the script once."""
        seconds, microseconds = divmod(now_us, 1_000_000)
        arguments = [*arguments_of(request), str(seconds), str(microseconds), self._run]
        return reply_of(self._script(keys=self.names, args=arguments))

    def wipe(self) -> None:
        """Delete the keys, and have another name."""
        self.cleanup()
        self._run = next(self._runs)

    def fail_over(self) -> None:
        """Keep the keys, and have another name."""
        self._run = next(self._runs)

    def keys(self) -> dict[str, int]:
        """Return what is left of the life of each key."""
        lives = {name: int(self._client.pttl(name)) for name in self.names}
        return {name: left for name, left in lives.items() if left != -2}  # -2: there is no such key

    def cleanup(self) -> None:
        """Delete the keys."""
        self._client.delete(*self.names)


def script_with_arguments() -> str:
    """Return the script with the time and the server's run as arguments: seconds, microseconds, run."""
    text = SCRIPT
    for old, new in REPLACED.items():
        assert text.count(old) == 1, f"the script says {old} {text.count(old)} times: see REPLACED"
        text = text.replace(old, new)
    for word in ("TIME", "INFO"):
        assert f"'{word}'" not in text, f"the script asks for {word} in another way, too: see REPLACED"
    return text


def _run_ids() -> Iterator[str]:
    """Name the runs of one subject; two subjects have the same names, so that their replies can be compared whole."""
    return (f"{number:040x}" for number in itertools.count(1))
