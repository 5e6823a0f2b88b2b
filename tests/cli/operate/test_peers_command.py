"""The command ``peers`` on a real server: what it shows, once and live, and how it ends without anything to show."""

from __future__ import annotations

import io
import gc
import json
import re
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

from ratelimited_executor.cli.commands import cli
from ratelimited_executor.cli.exits import ExitStatus
from ratelimited_executor.cli.operate.peers_command import PeersOptions, show_peers
from ratelimited_executor.cli.operate.peers_view import draw
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit
from ratelimited_executor.peers.redis.ticket_script import ticket_keys_of

from ...dashboard.pictures import limits, picture
from ...peers.group_keys import PACE, PLAN, PLAN_ID, SECOND, call, now_us, share, stay_active
from ...peers.servers import RedisServer, redis_cluster

pytestmark = pytest.mark.real_time("a real server")

KEYS = ticket_keys_of("rle", "default", "mail")


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


def peers(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(cli, ["peers", *arguments], env={"REDIS_URL": None})


def use(client: Any, count: int) -> None:
    """Share the limits anew, and use some permits."""
    client.flushall()
    share(client, count=count)


def shown(text: str) -> str:
    """Replace what depends on the moment by X, and longer gaps by two blanks."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", "X", text, flags=re.MULTILINE)
    text = re.sub(r"([\d.]+ m?s|(\d+[dhms])+)( ago)?$", "X", text, flags=re.MULTILINE)
    return re.sub(r" +$", "", re.sub(r" {2,}", "  ", text), flags=re.MULTILINE)


HEAD = f"mail: {PLAN_ID}; 2 active of 2 peers; last call"
PLAIN = f"""\
group default at X

{HEAD} X
limit  used  of  free in
permits/window/60  3  10  X
tokens/window/60  150  1,000  X
peer  last call
web-1:17:aa:0  X
web-2:18:bb:0  X
"""


@pytest.mark.parametrize("arguments", [[], ["--once"], ["--interval", "0.1"]])
def test_pipe_gets_the_group_once_and_plainly(server: RedisServer, arguments: list[str]) -> None:
    """In a pipe the group is printed once, a table for each rate, without colours."""
    with server.client() as client:
        share(client)
    result = peers("--redis", server.url, *arguments)
    assert (0, PLAIN, "") == (result.exit_code, shown(result.stdout), result.stderr)


def test_each_executor_has_its_block(server: RedisServer) -> None:
    """Limits are shown by the names of their executors: with their peers, or idle, or while nothing starts."""
    with server.client() as client:
        share(client, "sms", count=0, penalties=(("", 600 * SECOND),))
        call(client, name="mail", quarantine_us=600 * SECOND)
        stay_active(client, "mail")
        call(client, name="call", plan_id="100/s", plan=PACE)
        client.zadd(ticket_keys_of("rle", "default", "call")[3], {"web-1:17:aa:0": now_us(client) - 5 * SECOND})
    result = peers("--redis", server.url)
    seconds = r"[\d.]+ m?s"
    expected = [
        rf"call: 100/s; 0 active of 1 peers; last call {seconds} ago",
        rf"mail: {PLAN_ID}; 1 active of 1 peers; last call {seconds} ago; starts nothing for (10m|9m\d+s): "
        r"earlier permits may be in use",
        rf"sms: {PLAN_ID}; 2 active of 2 peers; last call {seconds} ago; penalty for (10m|9m\d+s)",
    ]
    heads = [line for line in result.stdout.splitlines() if "active of" in line]
    assert [] == [head for pattern, head in zip(expected, heads, strict=True) if not re.fullmatch(pattern, head)], heads
    assert re.findall(r"permits/\S+ +(\d+) +(\d+) +(\S+)$", result.stdout, re.MULTILINE) == [
        ("0", "100", "-"),
        ("0", "10", "-"),
        ("0", "10", "-"),
    ]


def test_long_ids_are_whole_in_a_pipe(server: RedisServer) -> None:
    """In a pipe long ids are not cut."""
    name = "h" * 200 + ":1:aa:0"
    with server.client() as client:
        share(client)
        call(client, peer=name)
    assert name in peers("--redis", server.url).stdout


def test_json_is_one_line(server: RedisServer) -> None:
    """JSON is printed on one line, with seconds and whole ids."""
    with server.client() as client:
        share(client)
        before = now_us(client)
    result = peers("--redis", server.url, "--json")
    assert (0, 1, "") == (result.exit_code, result.stdout.count("\n"), result.stderr)

    told = json.loads(result.stdout)
    assert {"group", "prefix", "time", "limits"} == set(told)
    assert ("default", "rle", True) == (told["group"], told["prefix"], before / 1e6 <= told["time"] < before / 1e6 + 60)
    (shared,) = told["limits"]
    assert 0 <= shared.pop("last_call") < 10
    limits, members = shared.pop("limits"), shared.pop("peers")
    assert {"name": "mail", "plan": PLAN_ID, "quarantine": None, "penalty": None, "active": 2} == shared
    assert [50 < limit.pop("free_in") < 61 for limit in limits] == [True, True]
    assert [
        {"name": "permits/window/60", "resource": "permits", "used": 3, "amount": 10},
        {"name": "tokens/window/60", "resource": "tokens", "used": 150, "amount": 1000},
    ] == limits
    assert [0 <= member.pop("last_call") < 10 for member in members] == [True, True]
    assert [{"id": "web-1:17:aa:0", "active": True}, {"id": "web-2:18:bb:0", "active": True}] == members


def test_group_and_prefix_are_taken_literally(server: RedisServer) -> None:
    """Special characters in a group's name are literal, and limits of other groups are not shown."""
    with server.client() as client:
        share(client, "one", group="a*")
        share(client, "two", group="ab")
    result = peers("--redis", server.url, "--group", "a*", "--json")
    assert ["one"] == [shared["name"] for shared in json.loads(result.stdout)["limits"]]


def test_redis_may_be_named_by_the_environment(server: RedisServer) -> None:
    """The URL may come from the environment, which hides a password better than the list of processes."""
    with server.client() as client:
        share(client)
    assert 0 == CliRunner().invoke(cli, ["peers"], env={"REDIS_URL": server.url}).exit_code


def test_command_only_reads(server: RedisServer) -> None:
    """A user without rights to write may run the command, which changes nothing."""
    rights = "on >secret ~{rle:default}:* +scan +time +info +hgetall +zrange"
    with server.client() as client:
        share(client)
        before = {key: client.dump(key) for key in client.scan_iter()}
        client.execute_command("ACL", "SETUSER", "reader", *rights.split())
        try:
            assert 0 == peers("--redis", server.url_of("reader", "secret")).exit_code
        finally:
            client.acl_deluser("reader")
        assert before == {key: client.dump(key) for key in client.scan_iter()}


# Without anything to show.


@pytest.mark.parametrize(
    ("groups", "hint"),
    [
        ([], "there is no group of this prefix"),
        (["sms", "mail"], "the groups of this prefix are: mail, sms"),
        ([f"g{number:02}" for number in range(12)],
         f"the groups of this prefix are: {', '.join(f'g{number:02}' for number in range(10))}, ..."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_group_without_limits_is_status_1(
    server: RedisServer, groups: list[str], hint: str, arguments: list[str]
) -> None:
    """An unknown group ends with status 1, and the existing groups are named in case of a misspelling."""
    with server.client() as client:
        for group in groups:
            share(client, group=group)
    result = peers("--redis", server.url, "--group", "mial", *arguments)
    assert (1, f"No limits in group 'mial' of prefix 'rle': {hint}\n", "") == (
        result.exit_code,
        result.stderr,
        result.stdout,
    )


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1", "--redis cannot be used: it must begin with redis://, rediss:// or unix://"),
        ("redis://127.0.0.1:port", "--redis cannot be used: .*port.*"),
        ("redis://127.0.0.1:1/mail", "--redis cannot be used: its database is no number: .*/0"),
        ("redis://127.0.0.1:1/?colour=red", "--redis cannot be used: .*'colour'"),
        ("redis://127.0.0.1:1", r"Redis cannot be read: .*127\.0\.0\.1:1.*refused.*"),
        ("unix:///no/such.sock", "Redis cannot be read: .*/no/such.sock.*"),
    ],
)  # fmt: skip
def test_url_that_leads_nowhere_is_status_2(url: str, reason: str) -> None:
    """A bad or unreachable URL ends with status 2 and the reason, without a traceback."""
    result = peers("--redis", url)
    assert (2, "") == (result.exit_code, result.stdout)
    line = result.stderr
    assert line == f"Error: {reason}\n" or re.fullmatch(f"Error: {reason}\n", line), line


@pytest.mark.parametrize("url", ["redis://user:sEcr3t/x@127.0.0.1:1", "redis://:sEcr3t#x@127.0.0.1:1"])
def test_password_that_is_not_encoded_is_not_printed(url: str) -> None:
    """No part of a password that was not encoded is printed, and the message says how to encode it."""
    result = peers("--redis", url)
    assert (2, "") == (result.exit_code, result.stdout)
    assert "--redis cannot be used" in result.stderr
    assert "percent-encoded" in result.stderr
    assert "Ecr" not in result.stderr + repr(result.exception) + repr(getattr(result.exception, "__context__", None))


def test_names_that_are_long_are_shown_in_full() -> None:
    """On a narrow terminal a long name takes several lines, so that hosts that begin alike can be told apart."""
    names = [f"workers-of-the-service-{number}.cluster.example:6288:dd1234567890abcdef:0" for number in (1, 2)]
    out = io.StringIO()
    shown = limits()
    peers_of_it = [replace(peer, id=name) for peer, name in zip(shown.peers, names, strict=True)]
    Console(file=out, width=80).print(draw(picture(shared=[replace(shown, peers=peers_of_it)])))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    first_column = "".join(line.split()[0] for line in lines if line.strip())
    assert all(name in first_column for name in names)


def test_escapes_of_a_terminal_are_shown_and_not_obeyed(server: RedisServer) -> None:
    """Escape sequences in names and errors are shown and not obeyed, since others may write to Redis."""
    with server.client() as client:
        plan = (PlanLimit("permits\x1b[1m", "permits", PLAN[0].settings),)
        names = {"name": "x\x1b[2Jy", "group": "mail"}
        call(client, peer="host\x1b]0;owned\x07:1:2", plan_id="10\x1b[5m", plan=plan, **names)
        client.set("{rle:gr\x1b[31m}:x:tickets", "x")
    shown = peers("--redis", server.url, "--group", "mail")
    assert r"x\x1b[2Jy" in shown.stdout
    assert r"host\x1b]0;owned\x07:1:2" in shown.stdout
    assert r"permits\x1b[1m" in shown.stdout
    assert r"10\x1b[5m" in shown.stdout
    hint = peers("--redis", server.url, "--group", "mial")
    assert r"gr\x1b[31m" in hint.stderr
    with server.client() as client:
        client.hset("{rle:mail}:x\x1b[2Jy:tickets", "l:wpermits\x1b[1m", "\x1b[2J;w2")
    error = peers("--redis", server.url, "--group", "mail")
    assert 2 == error.exit_code
    for result in (shown, hint, error):
        assert "\x1b" not in result.stdout + result.stderr
        assert "\x07" not in result.stdout + result.stderr


def test_password_that_is_refused_is_status_2(server: RedisServer) -> None:
    """A refused password ends with status 2, and is not printed."""
    result = peers("--redis", server.url_of("nobody", "secret"))
    assert (2, True, False) == (
        result.exit_code,
        result.stderr.startswith("Error: Redis cannot be read: "),
        "secret" in result.stderr,
    )


def test_keys_of_somebody_else_are_status_2(server: RedisServer) -> None:
    """A key that the script has not written ends with status 2, and is named."""
    with server.client() as client:
        share(client)
        client.hset(KEYS[0], "state", "soon")
        bad_field = peers("--redis", server.url)
        client.flushall()
        client.set(KEYS[0], "text")
        no_hash = peers("--redis", server.url)
    assert (2, 2) == (bad_field.exit_code, no_hash.exit_code)
    assert "ValueError" in bad_field.stderr
    assert "WRONGTYPE" in no_hash.stderr


@pytest.mark.parametrize("output", ["--once", "--json"])
@pytest.mark.parametrize(
    "number", [float("nan"), float("inf"), 1e300, -1.0], ids=["nan", "infinite", "too large", "negative"]
)
@pytest.mark.parametrize("place", [1, 3, 5], ids=["quarantine", "last call", "penalty"])
def test_numbers_that_nobody_can_show_are_status_2(server: RedisServer, place: int, number: float, output: str) -> None:
    """Values that are well-formed but impossible end with status 2 in one line, without a traceback."""
    with server.client() as client:
        share(client)
        numbers = [*struct.unpack("<9d", client.hget(KEYS[0], "state"))]
        numbers[place] = number
        client.hset(KEYS[0], "state", struct.pack("<9d", *numbers))
        result = peers("--redis", server.url, output)
    assert (2, 1) == (result.exit_code, result.stderr.count("\n")), result.output
    assert result.stderr.startswith("Error: Redis cannot be read: ")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the client of Redis the command names the extra to install."""
    monkeypatch.setitem(sys.modules, "redis", None)
    result = peers("--redis", "redis://127.0.0.1")
    assert (2, "Error: peers needs the package redis: pip install 'ratelimited-executor[redis]'\n") == (
        result.exit_code,
        result.stderr,
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Error: Missing option '--redis' (env var: 'REDIS_URL')."),
        (
            ["--redis", "redis://127.0.0.1", "--interval", "0.05"],
            "Error: Invalid value for '--interval': must be at least 0.1 s, got '0.05'",
        ),
    ],
)
def test_bad_usage_is_status_2(arguments: list[str], reason: str) -> None:
    """Bad usage ends with status 2 and the reason."""
    result = peers(*arguments)
    assert (2, reason) == (result.exit_code, result.stderr.splitlines()[-1])


# Live.


def terminal() -> Console:
    """Return a terminal that records what is drawn."""
    return Console(file=io.StringIO(), force_terminal=True, width=110, height=40, color_system=None)


def watch(server: RedisServer, console: Console, *steps: Callable[[], object]) -> None:
    """Watch a group, with a step between readings, and Ctrl-C after the last step."""
    waiting = iter(steps)

    def sleep(seconds: float) -> None:
        assert 2.5 == seconds
        step = next(waiting, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    with pytest.raises(KeyboardInterrupt):
        show_peers(PeersOptions(url=server.url, interval=2.5), console=console, sleep=sleep)


def drawn(console: Console) -> str:
    """Return all that was sent to a terminal."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_terminal_is_drawn_anew_after_each_interval(server: RedisServer) -> None:
    """A terminal is redrawn after each interval until it is interrupted; then the former handler of SIGTERM is back."""
    before = signal.getsignal(signal.SIGTERM)
    console = terminal()
    with server.client() as client:
        share(client)
        watch(server, console, lambda: use(client, 5), lambda: client.flushall(), lambda: use(client, 7))
    text = drawn(console)
    used = {match[1]: match.start() for match in re.finditer(r"permits/window/60 +(\d) +10 ", text)}
    assert list(used) == ["3", "5", "7"]
    assert 0 <= text.find(HEAD) < used["3"] < used["5"] < text.find("no limits any more") < used["7"]
    assert before is signal.getsignal(signal.SIGTERM)


def test_terminal_keeps_the_last_picture_while_redis_is_away() -> None:
    """While Redis is down a terminal keeps the last picture with the reason, and later shows the group again."""
    console = terminal()
    seen: list[int] = []

    def restart() -> None:
        seen.append(drawn(console).count("Redis cannot be read"))
        server.start()
        with server.client() as client:
            use(client, 7)

    with RedisServer() as server:
        with server.client() as client:
            share(client)
        watch(server, console, server.kill, restart)
    assert seen[0] >= 1
    assert drawn(console).count(HEAD) >= 2
    used = [match.start() for match in re.finditer(r"permits/window/60 +7 +10 ", drawn(console))]
    assert used[-1] > drawn(console).rindex("Redis cannot be read")


def test_termination_ends_the_live_view(server: RedisServer) -> None:
    """SIGTERM ends the live view as Ctrl-C does, and restores the terminal."""
    with server.client() as client:
        share(client)
    reached: list[int] = []
    watch(server, terminal(), lambda: signal.raise_signal(signal.SIGTERM), lambda: reached.append(1))
    assert [] == reached


def test_terminal_is_drawn_once_if_asked_for(server: RedisServer) -> None:
    """With ``--once`` a terminal is drawn once."""
    console = terminal()
    with server.client() as client:
        share(client)
    assert ExitStatus.DONE is show_peers(PeersOptions(url=server.url, once=True), console=console)
    assert 1 == drawn(console).count(HEAD)


# A cluster.


@pytest.mark.slow
def test_any_node_of_a_cluster_will_do() -> None:
    """Through any node of a cluster the group is found on its own one."""
    with redis_cluster() as cluster:
        for group in ("a", "b", "c", "d"):
            with cluster.master_of(ticket_keys_of("rle", group, "mail")[0]).client() as client:
                share(client, group=group)
        for master in cluster.masters:
            for group in ("a", "b", "c", "d"):
                result = peers("--redis", master.url, "--group", group)
                assert (0, PLAIN.replace("default", group)) == (result.exit_code, shown(result.stdout)), result.stderr
        nothing = peers("--redis", cluster.url, "--group", "e")
        gc.collect()  # a connection that was left open would be reported here
    assert (1, True) == (nothing.exit_code, nothing.stderr.endswith("the groups of this prefix are: a, b, c, d\n"))
