"""The command ``slots`` on a real server: what it shows, what it changes, and what it refuses."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console, Group

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

from ratelimited_executor._core.fleet.slots import SlotCall, SlotEntry, SlotReply
from ratelimited_executor.cli.commands import cli
from ratelimited_executor.cli.operate.slots_view import draw_slots
from ratelimited_executor.peers.redis.slot_inspection import ClaimView, PoolView, SlotsView
from ratelimited_executor.peers.redis.slot_script import SLOT_SCRIPT, slot_arguments_of, slot_keys_of, slot_reply_of

from ...peers.servers import RedisServer

pytestmark = pytest.mark.real_time("a real server")

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    """The server process behind ``server``."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A server without keys."""
    shared_server.flush()
    return shared_server


def call(server: RedisServer, peer: str = "web-1:17:aa", **fields: Any) -> SlotReply:
    """Make one call as a peer."""
    keys = slot_keys_of("rle", "default")
    asked = SlotCall(peer=peer, lease_us=HOUR_US, difference_us=0, **fields)
    with server.client() as client:
        return slot_reply_of(client.eval(SLOT_SCRIPT, len(keys), *keys, *slot_arguments_of(asked)))


def begin(server: RedisServer) -> list[int]:
    """Hold two slots of gpu, one of them with a licence, and wait for a third; return the fences."""
    call(server, limits=(("gpu", 2), ("licence", 1), ("idle", 0)))
    with server.client() as client:
        client.hset(slot_keys_of("rle", "default")[0], "safe", 0)  # no quarantine
    entries = (
        SlotEntry("web-1:17:aa:1", ("gpu",), 0.0, 0, 0, "render"),
        SlotEntry("web-1:17:aa:2", ("licence", "gpu"), 0.0, 0, 0, "[red]"),
        SlotEntry("web-1:17:aa:3", ("gpu",), 1.0, 0, 0, "preview"),
    )
    return list(call(server, entries=entries).fences)


def slots(server: RedisServer, *arguments: str, answer: str | None = None) -> Result:
    """Run the command in this process."""
    arguments = ("slots", "--redis", server.url, *arguments)
    return CliRunner().invoke(cli, arguments, input=answer, env={"REDIS_URL": None})


def shown(text: str) -> str:
    """Replace fences by X, and times by T."""
    text = re.sub(r"\d{16}", "X", text)
    text = re.sub(r"(?<=\s)([\d.]+ m?s|(\d+[dhms])+)(?=\s)", "T", text)
    return re.sub(r" +$", "", re.sub(r" {2,}", "  ", text), flags=re.MULTILINE)


PLAIN = """\
gpu: 2 of 2 slots held; 1 wait
holder  node  fence  age  lease left
render  web-1:17  X  T  T
[red]  web-1:17  X  T  T
preview  web-1:17  waits  T  T

idle: 0 of 0 slots held, halted

licence: 1 of 1 slots held
holder  node  fence  age  lease left
[red]  web-1:17  X  T  T
"""


def test_pools_are_shown_with_holders_and_who_waits(server: RedisServer) -> None:
    """Pools are shown with their holders and waiters: who, where, since when, and the end of the lease."""
    begin(server)
    result = slots(server)
    assert (0, PLAIN) == (result.exit_code, shown(result.stdout))


def test_peers_show_the_slots_of_their_group(server: RedisServer) -> None:
    """``peers`` also shows the slots of the group, beside its limits."""
    begin(server)
    result = CliRunner().invoke(cli, ["peers", "--redis", server.url])
    assert 0 == result.exit_code
    assert PLAIN in shown(result.stdout)
    (line,) = CliRunner().invoke(cli, ["peers", "--redis", server.url, "--json"]).stdout.splitlines()
    assert ["gpu", "idle", "licence"] == [pool["name"] for pool in json.loads(line)["slots"]["pools"]]


def test_limits_are_set_for_the_group(server: RedisServer) -> None:
    """``--set`` sets limits for the group, and slots that come free are handed over."""
    begin(server)
    result = slots(server, "--set", "gpu=3", "--set", "idle=7", "--json")
    pools = {pool["name"]: pool for pool in json.loads(result.stdout)["pools"]}
    assert (3, 3, 0) == (pools["gpu"]["limit"], len(pools["gpu"]["holders"]), len(pools["gpu"]["waiting"]))
    assert 7 == pools["idle"]["limit"]


def test_slots_of_keys_are_shown_and_have_no_limit_to_be_set(server: RedisServer) -> None:
    """Slots of keys are shown, and ``--set`` is refused: their limit is that of each executor."""
    begin(server)
    asked = [SlotEntry(f"web-1:17:aa:{each}", ("mail: key 'ann'",), 0.0, 0, 0, "mail", 1) for each in (8, 9)]
    call(server, entries=tuple(asked))
    assert "mail: key 'ann': 1 of 1 slots held; 1 wait\n" in shown(slots(server).stdout)
    result = slots(server, "--set", "mail: key 'ann'=3")
    assert 2 == result.exit_code
    assert "is key_concurrency of its executor" in result.stderr


@pytest.mark.parametrize(
    ("answer", "arguments", "status", "left"), [("y\n", [], 0, 2), ("n\n", [], 1, 3), (None, ["--yes"], 0, 2)]
)
def test_slot_of_a_dead_holder_is_released_after_asking(
    server: RedisServer, answer: str | None, arguments: list[str], status: int, left: int
) -> None:
    """``--release`` asks first, with the holder and the risk if it is alive, unless ``--yes`` is given."""
    fences = begin(server)
    result = slots(server, "--release", str(fences[1]), *arguments, answer=answer)
    assert status == result.exit_code
    assert ("two will be at work in one slot" in result.stderr) == (answer is not None)
    assert left == sum(call(server, watched=("gpu", "licence")).pools[index].held for index in (0, 1))


def test_fence_that_nobody_holds_is_refused(server: RedisServer) -> None:
    """A fence without a holder is refused, and nothing is changed."""
    begin(server)
    result = slots(server, "--release", "7", "--set", "gpu=9")
    assert 2 == result.exit_code
    assert "no holder has a slot with fence 7" in result.stderr
    assert 2 == call(server, watched=("gpu",)).pools[0].limit


def test_group_without_slots_is_said(server: RedisServer) -> None:
    """A group without slots ends with status 1, and the existing groups are named, as in ``peers``."""
    nothing = "in group 'other' of prefix 'rle': there is no group of this prefix\n"
    result = slots(server, "--group", "other")
    assert (1, f"No slots {nothing}") == (result.exit_code, result.stderr)
    begin(server)
    result = slots(server, "--group", "other")
    named = "in group 'other' of prefix 'rle': the groups of this prefix are: default\n"
    assert (1, f"No slots {named}") == (result.exit_code, result.stderr)
    result = CliRunner().invoke(cli, ["peers", "--redis", server.url, "--group", "other"])
    assert (1, f"No limits {named}") == (result.exit_code, result.stderr)


def test_first_pool_of_a_group_is_created(server: RedisServer) -> None:
    """``--set`` creates the first pool of a group, with a warning that names the other groups; ``--release`` does not."""
    begin(server)
    nothing = "No slots in group 'models' of prefix 'rle': the groups of this prefix are: default\n"
    result = slots(server, "--group", "models", "--set", "gpu=2", "--release", "7")
    assert (1, nothing) == (result.exit_code, result.stderr)
    result = slots(server, "--group", "models", "--set", "gpu=2")
    warning = "Warning: --set: 'gpu' is a new pool of this group\n"
    assert (0, f"Warning: {nothing}{warning}") == (result.exit_code, result.stderr)
    assert "gpu: 0 of 2 slots held\n" in result.stdout


def test_limit_of_a_pool_that_was_not_there_is_warned_of(server: RedisServer) -> None:
    """Setting the limit of a new pool is done with a warning, since a misspelt halt would halt nothing."""
    begin(server)
    result = slots(server, "--set", "gqu=0", "--set", "idle=1")
    warning = "Warning: --set: 'gqu' is a new pool of this group; there were: gpu, idle, licence\n"
    assert (0, warning) == (result.exit_code, result.stderr)
    assert "gqu: 0 of 0 slots held, halted\n" in result.stdout
    assert not slots(server, "--set", "gqu=2").stderr


def test_slots_of_those_who_are_long_gone_are_shown_as_that(server: RedisServer) -> None:
    """If no peer has called for long, leases are shown as of then, and the output says so."""
    fences = begin(server)
    key = slot_keys_of("rle", "default")[0]
    with server.client() as client:
        last = int(client.hget(key, "last"))
        client.hset(key, "last", last - 2 * HOUR_US)
    words = "nobody has called for 2h"
    assert f"slots: {words}" in slots(server).stdout
    assert 7200 <= json.loads(slots(server, "--json").stdout)["last_call"] < 7300
    assert words.capitalize().removeprefix("Nobody") in slots(server, "--release", str(fences[0]), answer="n\n").stderr
    with server.client() as client:
        client.hset(key, "last", last)
    assert "nobody has called" not in slots(server).stdout


@pytest.mark.parametrize("text", ["gpu", "=3", "gpu=-1", "gpu=many", "gpu=1e3", "gpu=\u0663", "gpu=" + "9" * 16])
def test_limit_that_is_none_is_refused(server: RedisServer, text: str) -> None:
    """A bad limit is refused with an example."""
    result = slots(server, "--set", text)
    assert 2 == result.exit_code
    assert "gpu=4" in result.stderr


@pytest.mark.parametrize(("field", "value"), [("t:web-1:17:aa:1", "garbage"), ("clock", "x")])
def test_garbage_in_the_state_is_said(server: RedisServer, field: str, value: str) -> None:
    """A damaged state is reported without a traceback."""
    begin(server)
    with server.client() as client:
        client.hset(slot_keys_of("rle", "default")[0], field, value)
    result = slots(server)
    assert 2 == result.exit_code
    assert "Redis cannot be read" in result.stderr


def test_server_that_is_away_is_said() -> None:
    """An unreachable server is reported with status 2."""
    result = CliRunner().invoke(cli, ["slots", "--redis", "redis://127.0.0.1:1"])
    assert 2 == result.exit_code
    assert "Redis cannot be read" in result.stderr


@pytest.mark.parametrize("width", [80, 120])
def test_no_host_is_cut_on_a_narrow_terminal(width: int) -> None:
    """In 80 columns a holder has lines of its own, on which the name of its host is whole; on a wide screen it is a row."""
    node = "webhooks-7d9f8b6c5-x2x4q.production.svc"
    claims = [
        ClaimView(token=f"{n}", pools=("gpu",), name="a rather long training", node=node, fence=n, age=3.0, left=9.0)
        for n in range(2)
    ]
    pool = PoolView(name="gpu", limit=1, holders=claims[:1], waiting=claims[1:] * 12, is_by_key=False)
    out = io.StringIO()
    slots = SlotsView(pools=[pool], quarantine=None, lease=15.0, difference=0.5)
    Console(file=out, width=width).print(Group(*draw_slots(slots)))
    assert out.getvalue().count(node) == 11
    assert re.search(r"^2 more wait", out.getvalue(), re.MULTILINE)
    if width == 80:
        assert f"a rather long training\n  {node}\n  fence 0, age 3 s, lease left 9 s" in re.sub(
            " +\n", "\n", out.getvalue()
        )
