"""The command ``peers`` on a real server: what it shows, once and live, and how it ends without anything to show.

A grant interval of these tests takes an hour, so that all permits belong to the interval in which they are read.
"""

from __future__ import annotations

import io
import gc
import json
import re
import signal
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
from ratelimited_executor.cli.peers_command import PeersOptions, show_peers
from ratelimited_executor.cli.peers_view import draw
from ratelimited_executor._core.fleet.limit_settings import WindowSettings
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketCall, TicketRun
from ratelimited_executor.peers.redis.script import keys_of
from ratelimited_executor.peers.redis.ticket_script import TICKET_SCRIPT, ticket_arguments_of, ticket_keys_of

from ..dashboard.pictures import picture, rate
from ..peers.servers import RedisServer, redis_cluster

pytestmark = pytest.mark.real_time("a real server")

T_US = 3_600_000_000
RUN = "fedcba9876543210" * 2 + "01234567"


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


def write(client: Any, name: str = "mail", group: str = "default", **state: Any) -> None:
    """Write a rate with two active peers and a stale one, as the script would."""
    seconds, _ = client.time()
    now_us, number = seconds * 1_000_000, seconds * 1_000_000 // T_US
    grid = f"{T_US},100,1,0,{number - 5}"
    keys = keys_of("rle", group, name)
    head = {"run": RUN, "epoch": 3, "safe": number - 1, "last": now_us, "grid": grid, "next": ""}
    client.hset(keys[0], mapping=head | state)
    client.hset(
        keys[1],
        mapping={
            "web-1:17:aa": f"1.0,5000,{now_us},0",
            "web-2:18:bb": f"2.5,0,{now_us - 61_000_000},1",
            "[red]:9:cc": f"0.5,12,{now_us - 5 * T_US},2",
        },
    )
    plans = [
        {"number": each, "count": 100, "stride": 61, "grid": grid, "peers": 2, "free": ""}
        for each in (number, number + 1)
    ]
    client.hset(keys[2 + number % 2], mapping=plans[0] | {"g:web-1:17:aa": "0-40,", "a:web-1:17:aa": "4;50-52,"})
    client.hset(keys[2 + (number + 1) % 2], mapping=plans[1] | {"g:web-1:17:aa": "0-70,", "r:web-2:18:bb": "70-100,"})


def peers(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(cli, ["peers", *arguments], env={"REDIS_URL": None})


def shown(text: str) -> str:
    """Replace what depends on the moment by X, and longer gaps by two blanks."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", "X", text, flags=re.MULTILINE)
    text = re.sub(r"([\d.]+ m?s|(\d+[dhms])+)$", "X", text, flags=re.MULTILINE)
    return re.sub(r" +$", "", re.sub(r" {2,}", "  ", text), flags=re.MULTILINE)


HEAD = "mail: 0.02778/s; era fedcba98:3; grant interval 1h; 2 active of 3 peers"
PLAIN = f"""\
group default at X

{HEAD}
peer  rank  weight  demand  running  next  share  seen
web-1:17:aa  0  1  5,000  42  70  42.0 %  X
web-2:18:bb  1  2.5  0  0  (30)  0.0 %  X
[red]:9:cc  2  0.5  12  0  0  0.0 %  stale, X
granted  42 of 100  70 of 100
"""


@pytest.mark.parametrize("arguments", [[], ["--once"], ["--interval", "0.1"]])
def test_pipe_gets_the_group_once_and_plainly(server: RedisServer, arguments: list[str]) -> None:
    """In a pipe the group is printed once, a table for each rate, without colours."""
    with server.client() as client:
        write(client)
    result = peers("--redis", server.url, *arguments)
    assert (0, PLAIN, "") == (result.exit_code, shown(result.stdout), result.stderr)


def test_each_rate_has_its_block(server: RedisServer) -> None:
    """Rates are shown by name, with a coming rate and its time, a quarantine, and idleness."""
    with server.client() as client:
        number = int(client.time()[0]) * 1_000_000 // T_US
        write(client, "sms", next=f"{T_US},7200,1,0,{number + 2}")
        write(client, "mail", safe=number + 1000, epoch=4)
        write(client, "call", grid=f"{T_US},0,1,0,{number}")
        client.delete(keys_of("rle", "default", "call")[1])
    result = peers("--redis", server.url)
    expected = [
        r"call: 0/s; era fedcba98:3; grant interval 1h; 0 active of 0 peers; last call \S+ m?s ago",
        r"mail: 0\.02778/s; era fedcba98:4; grant interval 1h; 2 active of 3 peers; quarantine for 41d1[56]h(\d+m)?",
        r"sms: 0\.02778/s, 2/s in 1h(\d+m)?(\d+s)?; era fedcba98:3; grant interval 1h; 2 active of 3 peers",
    ]
    heads = [line for line in result.stdout.splitlines() if "era" in line]
    assert [] == [head for pattern, head in zip(expected, heads, strict=True) if not re.fullmatch(pattern, head)]


def test_shared_limits_have_their_block(server: RedisServer) -> None:
    """Shared limits of an executor are shown with the use of each, also as JSON."""
    plan = (PlanLimit("permits/window/60", "permits", WindowSettings.of(10, 60_000_000).write()),)
    keys = ticket_keys_of("rle", "default", "model")
    with server.client() as client:
        for runs in ((), (TicketRun(3, (("permits", 1),)),)):
            asked = TicketCall(
                peer="p", since_us=1, latest_us=1 << 52, number=len(runs), ahead_us=100_000, difference_us=0, quarantine_us=1,
                plan_id="10/min", plan=plan, runs=runs,
            )  # fmt: skip
            client.eval(TICKET_SCRIPT, len(keys), *keys, *ticket_arguments_of(asked))
    result = peers("--redis", server.url)
    assert result.exit_code == 0, result.output
    assert re.search(r"model: 10/min; last call .* ago", result.output)
    assert re.search(r"permits/window/60 +3 +10 ", result.output)
    (shared,) = json.loads(peers("--redis", server.url, "--json").output)["limits"]
    assert ("model", 3, 10) == (shared["name"], shared["limits"][0]["used"], shared["limits"][0]["amount"])


def test_long_ids_are_whole_in_a_pipe(server: RedisServer) -> None:
    """In a pipe long ids are not cut."""
    name = "h" * 200 + ":1:aa"
    with server.client() as client:
        write(client)
        client.hset(keys_of("rle", "default", "mail")[1], name, f"1.0,0,{client.time()[0] * 1_000_000},3")
    assert name in peers("--redis", server.url).stdout


def test_json_is_one_line(server: RedisServer) -> None:
    """JSON is printed on one line, with seconds, permits a second and whole ids."""
    with server.client() as client:
        number = int(client.time()[0]) * 1_000_000 // T_US
        write(client, next=f"{T_US},7200,1,0,{number + 2}")
    result = peers("--redis", server.url, "--json")
    assert (0, 1, "") == (result.exit_code, result.stdout.count("\n"), result.stderr)

    told = json.loads(result.stdout)
    (rate,) = told.pop("rates")
    members = rate.pop("peers")
    assert {"group": "default", "prefix": "rle"} == {key: told[key] for key in ("group", "prefix")}
    assert 0 <= rate.pop("last_call") < 10
    assert {
        "name": "mail",
        "rate": 100 / 3600,
        "next_rate": {"rate": 2.0, "at": (number + 2) * 3600.0},
        "era": f"{RUN}:3",
        "interval": 3600.0,
        "quarantine": None,
        "active": 2,
        "running": {"number": number, "permits": 100, "granted": 42},
        "next": {"number": number + 1, "permits": 100, "granted": 70},
    } == rate
    assert [0, 60, 5 * 3600] == [member.pop("seen") // 10 * 10 for member in members]
    assert {
        "id": "web-1:17:aa",
        "rank": 0,
        "weight": 1.0,
        "demand": 5000,
        "running": 42,
        "next": 70,
        "planned": 0,
        "share": 0.42,
        "is_stale": False,
    } == members[0]


def test_group_and_prefix_are_taken_literally(server: RedisServer) -> None:
    """Special characters in a group's name are literal, and rates of other groups are not shown."""
    with server.client() as client:
        write(client, "one", group="a*")
        write(client, "two", group="ab")
    result = peers("--redis", server.url, "--group", "a*", "--json")
    assert ["one"] == [rate["name"] for rate in json.loads(result.stdout)["rates"]]


def test_redis_may_be_named_by_the_environment(server: RedisServer) -> None:
    """The URL may come from the environment, which hides a password better than the list of processes."""
    with server.client() as client:
        write(client)
    assert 0 == CliRunner().invoke(cli, ["peers"], env={"REDIS_URL": server.url}).exit_code


def test_command_only_reads(server: RedisServer) -> None:
    """A user without rights to write may run the command, which changes nothing."""
    rights = "on >secret ~{rle:default}:* +scan +time +info +hgetall"
    with server.client() as client:
        write(client)
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
def test_group_without_rates_is_status_1(
    server: RedisServer, groups: list[str], hint: str, arguments: list[str]
) -> None:
    """An unknown group ends with status 1, and the existing groups are named in case of a misspelling."""
    with server.client() as client:
        for group in groups:
            write(client, group=group)
    result = peers("--redis", server.url, "--group", "mial", *arguments)
    assert (1, f"No rates in group 'mial' of prefix 'rle': {hint}\n", "") == (
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
    names = [f"workers-of-the-service-{number}.cluster.example:6288:dd12345678" for number in (1, 2)]
    out = io.StringIO()
    shown = rate()
    peers_of_it = [replace(peer, id=name) for peer, name in zip(shown.peers, names, strict=True)]
    Console(file=out, width=80).print(draw(picture(rates=[replace(shown, peers=peers_of_it)])))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    first_column = "".join(line.split()[0] for line in lines if line.strip())
    assert all(name in first_column for name in names)


def test_escapes_of_a_terminal_are_shown_and_not_obeyed(server: RedisServer) -> None:
    """Escape sequences in names and errors are shown and not obeyed, since others may write to Redis."""
    with server.client() as client:
        write(client, name="x\x1b[2Jy", group="mail")
        client.hset("{rle:mail}:x\x1b[2Jy:members", "host\x1b]0;owned\x07:1:2", "1.0,0,1,7")
        client.set("{rle:gr\x1b[31m}:x:state", "x")
    shown = peers("--redis", server.url, "--group", "mail")
    assert r"x\x1b[2Jy" in shown.stdout
    assert r"host\x1b]0;owned\x07:1:2" in shown.stdout
    hint = peers("--redis", server.url, "--group", "mial")
    assert r"gr\x1b[31m" in hint.stderr
    with server.client() as client:
        client.hset("{rle:mail}:x\x1b[2Jy:members", "bad", "\x1b[2J,0,1,7")
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
        write(client, safe="soon")
        bad_field = peers("--redis", server.url)
        client.flushall()
        client.set(keys_of("rle", "default", "mail")[0], "text")
        no_hash = peers("--redis", server.url)
    assert (2, 2) == (bad_field.exit_code, no_hash.exit_code)
    assert "ValueError" in bad_field.stderr
    assert "WRONGTYPE" in no_hash.stderr


@pytest.mark.parametrize("output", ["--once", "--json"])
@pytest.mark.parametrize(
    "state",
    [
        {"last": "9" * 400},
        {"grid": "250000,25,1,0,0", "next": f"250000,25,1,0,{'9' * 400}"},
        {"grid": "250000,25"},
    ],
    ids=["last", "next", "grid"],
)
def test_numbers_that_nobody_can_show_are_status_2(server: RedisServer, state: dict[str, str], output: str) -> None:
    """Values that are well-formed but impossible end with status 2 in one line, without a traceback."""
    with server.client() as client:
        write(client, **state)
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
        write(client)
        watch(
            server, console, lambda: write(client, epoch=7), lambda: client.flushall(), lambda: write(client, epoch=8)
        )
    text = drawn(console)
    marks = [HEAD, "era fedcba98:7", "no rates any more", "era fedcba98:8"]
    assert [text.find(mark) for mark in marks] == sorted(text.find(mark) for mark in marks)
    assert text.find(HEAD) >= 0
    assert before is signal.getsignal(signal.SIGTERM)


def test_terminal_keeps_the_last_picture_while_redis_is_away() -> None:
    """While Redis is down a terminal keeps the last picture with the reason, and later shows the group again."""
    console = terminal()
    seen: list[int] = []

    def restart() -> None:
        seen.append(drawn(console).count("Redis cannot be read"))
        server.start()
        with server.client() as client:
            write(client, epoch=9)

    with RedisServer() as server:
        with server.client() as client:
            write(client)
        watch(server, console, server.kill, restart)
    assert seen[0] >= 1
    assert drawn(console).count(HEAD) >= 2
    assert drawn(console).rindex("era fedcba98:9") > drawn(console).rindex("Redis cannot be read")


def test_termination_ends_the_live_view(server: RedisServer) -> None:
    """SIGTERM ends the live view as Ctrl-C does, and restores the terminal."""
    with server.client() as client:
        write(client)
    reached: list[int] = []
    watch(server, terminal(), lambda: signal.raise_signal(signal.SIGTERM), lambda: reached.append(1))
    assert [] == reached


def test_terminal_is_drawn_once_if_asked_for(server: RedisServer) -> None:
    """With ``--once`` a terminal is drawn once."""
    console = terminal()
    with server.client() as client:
        write(client)
    assert ExitStatus.DONE is show_peers(PeersOptions(url=server.url, once=True), console=console)
    assert 1 == drawn(console).count(HEAD)


# A cluster.


@pytest.mark.slow
def test_any_node_of_a_cluster_will_do() -> None:
    """Through any node of a cluster the group is found on its own one."""
    with redis_cluster() as cluster:
        for group in ("a", "b", "c", "d"):
            with cluster.master_of(keys_of("rle", group, "mail")[0]).client() as client:
                write(client, group=group)
        for master in cluster.masters:
            for group in ("a", "b", "c", "d"):
                result = peers("--redis", master.url, "--group", group)
                assert (0, PLAIN.replace("default", group)) == (result.exit_code, shown(result.stdout)), result.stderr
        nothing = peers("--redis", cluster.url, "--group", "e")
        gc.collect()  # a connection that was left open would be reported here
    assert (1, True) == (nothing.exit_code, nothing.stderr.endswith("the groups of this prefix are: a, b, c, d\n"))
