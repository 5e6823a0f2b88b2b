"""Lua scripts: the names of their keys and arguments, the values that arrive in Lua, and their packaging."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, make_dataclass
from pathlib import Path

import pytest

import ratelimited_executor
from ratelimited_executor._redis.lua import LuaScript
from ratelimited_executor.peers.redis import slot_script, ticket_script
from ratelimited_executor.stores.progress import redis as store
from ratelimited_executor.stores.tasks import redis_layout

PACKAGE = Path(ratelimited_executor.__file__).parent
ROOT = PACKAGE.parent
SCRIPTS = {
    "peers/redis/slots.lua": slot_script._SLOTS,
    "peers/redis/tickets.lua": ticket_script._TICKETS,
    "stores/progress/claim_turn.lua": store._CLAIM,
    "stores/progress/complete_turn.lua": store._COMPLETE,
}
TASK_SCRIPTS = {f"stores/tasks/redis_{name}.lua": script for name, script in redis_layout.SCRIPTS.items()}
TASK_RULES = "stores/tasks/redis_rules.lua"  # put before each of these; describes the keys of all of them
LIBRARIES = {"peers/redis/laws.lua"}  # put before the main text of a script
WORDS = re.compile(r"\b(keys|args)\.(\w+)")


@dataclass
class Order:
    """Arguments of each kind."""

    owner: str
    count: int
    is_last: bool
    weight: float


@pytest.fixture
def make_script(tmp_path, monkeypatch):
    """Return a function that makes a script of a text, in a package of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(text, arguments=Order, **constants):
        package = f"scripts_of_{tmp_path.name}"
        (tmp_path / package).mkdir()
        (tmp_path / package / "one.lua").write_text(text, encoding="utf-8")
        return LuaScript(package, "one.lua", keys=("stock", "log"), arguments=arguments, **constants)

    return make


def test_preamble_names_keys_and_arguments_in_the_order_of_their_declaration(make_script):
    """The preamble has constants, then keys and arguments in the order of their declaration, then the file."""
    made = make_script("return args.count\n", VERSION=3)
    assert made.text == (
        "local VERSION = 3\n"
        "local keys = {stock = KEYS[1], log = KEYS[2]}\n"
        "local args = {owner = ARGV[1], count = tonumber(ARGV[2]), is_last = ARGV[3] == '1', weight = ARGV[4]}\n"
        "return args.count\n"
    )
    assert ("stock", "log") == made.keys
    assert ["a b", "7", "1", "0.1"] == made.write(Order("a b", 7, True, 0.1))
    assert ["", "0", "0", "2.0"] == made.write(Order("", 0, False, 2))


def test_files_of_functions_stand_before_the_main_text(make_script, tmp_path):
    """Files of functions come before the main text, in the order given."""
    package = make_script("return two(args.count)").text and f"scripts_of_{tmp_path.name}"
    (tmp_path / package / "two.lua").write_text("local function two(x) return x end", encoding="utf-8")
    made = LuaScript(package, ("two.lua", "one.lua"), keys=(), arguments=Order)
    assert made.text.endswith("\nlocal function two(x) return x end\nreturn two(args.count)")


def test_argument_of_another_type_is_refused(make_script):
    """An argument of an unsupported type is refused by name when the script is declared."""
    wrong = make_dataclass("Wrong", [("owner", str), ("names", list)])
    with pytest.raises(
        TypeError, match=r"Wrong\.names must be a str, bytes, int, float, bool or tuple, it is <class 'list'>"
    ):
        make_script("return 1", wrong)


@pytest.mark.parametrize(
    "order",
    [
        Order("a", 1, True, 1.0),
        Order("", 0, False, 0.1 + 0.2),
        Order("ä\n'\"\\ ]] --", 2**53 - 1, True, 1e-300),
        Order("0", -(2**40), False, 123456789.123456789),
    ],
    ids=str,
)
def test_lua_reads_what_python_writes(make_script, redis_server, order):
    """Lua on a real server reads what Python writes, under the declared names."""
    made = make_script(
        "return {keys.stock, keys.log, args.owner, string.format('%.0f', args.count), tostring(args.is_last), args.weight}"
    )
    with redis_server.client() as client:
        answer = client.register_script(made.text)(keys=["x", "y"], args=made.write(order))
    expected = ["x", "y", order.owner, str(order.count), str(order.is_last).lower(), repr(order.weight)]
    assert expected == [each.decode() for each in answer]


def test_every_script_of_the_package_is_known_here():
    """All scripts of the package are listed here, so that the tests below cover them."""
    assert {*SCRIPTS, *TASK_SCRIPTS, TASK_RULES, *LIBRARIES} == {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.lua")
    }


@pytest.mark.parametrize("file", SCRIPTS)
def test_script_uses_what_is_declared_and_declares_what_it_uses(file):
    """A script uses all declared names and no others, which would be nil in Lua without an error."""
    text, declared = (PACKAGE / file).read_text(encoding="utf-8"), SCRIPTS[file]
    code = re.sub(r"--.*", "", text)
    used = {table: {name for each, name in WORDS.findall(code) if each == table} for table in ("keys", "args")}
    assert set(declared.keys) == used["keys"]
    assert {name for name, _ in declared._writers} == used["args"]
    assert not re.search(r"\b(KEYS|ARGV)\b", code)


@pytest.mark.parametrize("file", TASK_SCRIPTS)
def test_scripts_of_tasks_use_the_keys_of_their_rules_and_their_own_arguments(file):
    """Scripts of tasks use declared keys and all of their arguments, and their heads describe both."""
    text, rules = ((PACKAGE / each).read_text(encoding="utf-8") for each in (file, TASK_RULES))
    code = re.sub(r"--.*", "", text)
    used = {table: {name for each, name in WORDS.findall(code) if each == table} for table in ("keys", "args")}
    arguments = {name for name, _ in TASK_SCRIPTS[file]._writers}
    assert arguments == used["args"]
    assert used["keys"] <= set(TASK_SCRIPTS[file].keys)
    assert not re.search(r"\b(KEYS|ARGV)\b", code)
    _, keys, args, reply = re.split(r"^-- (?:KEYS|ARGS|REPLY)\b", re.match(r"(--.*\n)+", text)[0], flags=re.MULTILINE)
    assert "redis_rules.lua" in keys
    assert reply
    assert [] == [name for name in arguments if not re.search(rf"\b{name}\b", args)]
    head = re.match(r"(--.*\n)+", rules)[0]
    assert [] == [name for name in TASK_SCRIPTS[file].keys if not re.search(rf"^--   {name}\b", head, re.MULTILINE)]


def test_rules_of_tasks_use_declared_keys_and_no_arguments():
    """The rules put before all scripts of tasks use declared keys, no arguments and no globals."""
    code = re.sub(r"--.*", "", (PACKAGE / TASK_RULES).read_text(encoding="utf-8"))
    assert {name for table, name in WORDS.findall(code) if table == "keys"} <= set(redis_layout.KEYS)
    assert not re.search(r"\b(KEYS|ARGV|args)\b", code)
    assert not re.search(r"^(?:function )?\w+ *=(?!=)", code, re.MULTILINE)  # globals
    for key in re.findall(
        r"'(\w+)'(?=, )", " ".join(re.findall(r"\b(?:place|first_in|owned_in|write_places)\('\w+', ", code))
    ):
        assert key in redis_layout.KEYS


@pytest.mark.parametrize("file", sorted(LIBRARIES))
def test_library_defines_local_functions_and_nothing_else(file):
    """A library has only local functions, without keys, arguments or globals, and few enough for Lua's limit."""
    code = re.sub(r"--.*", "", (PACKAGE / file).read_text(encoding="utf-8"))
    own = {
        name
        for names in re.findall(r"^local (?:function )?(\w+(?:, \w+)*)", code, re.MULTILINE)
        for name in names.split(", ")
    }
    assigned = {name for name in re.findall(r"^(?:function )?(\w+)[.\w]*(?: =|\()", code, re.MULTILINE)} - {"local"}
    assert assigned <= own
    assert not re.search(r"\b(KEYS|ARGV|keys|args|redis\.call)\b", code)
    assert len(own) <= 60  # of at most 200


@pytest.mark.parametrize("file", SCRIPTS)
def test_head_of_a_script_tells_its_keys_arguments_and_reply(file):
    """The head of a script describes its keys, arguments and reply, each in its own section."""
    head = re.match(r"(--.*\n)+", (PACKAGE / file).read_text(encoding="utf-8"))[0]
    _, keys, args, reply = re.split(r"^-- (?:KEYS|ARGS|REPLY)\b", head, flags=re.MULTILINE)
    assert reply
    for section, names in ((keys, SCRIPTS[file].keys), (args, [name for name, _ in SCRIPTS[file]._writers])):
        assert [] == [name for name in names if not re.search(rf"\b{name}\b", section)]


@pytest.mark.parametrize("file", [*SCRIPTS, *TASK_SCRIPTS])
def test_server_compiles_the_script(file, redis_server):
    """A real server compiles the whole script, so that syntax errors also show in lines that are never reached."""
    with redis_server.client() as client:
        assert 40 == len(client.script_load({**SCRIPTS, **TASK_SCRIPTS}[file].text))


BUILD = "import sys; from hatchling import build; print(build.build_wheel(sys.argv[1]), build.build_sdist(sys.argv[1]))"
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
from ratelimited_executor.peers.redis import slot_script, ticket_script
from ratelimited_executor.stores.progress import redis
from ratelimited_executor.stores.tasks import redis_layout
assert slot_script.__file__.startswith(sys.argv[1]), slot_script.__file__
peers = slot_script.SLOT_SCRIPT, ticket_script.TICKET_SCRIPT
print(*map(len, peers), len(redis._CLAIM.text), len(redis._COMPLETE.text), *(len(each.text) for each in redis_layout.SCRIPTS.values()))
"""


def test_wheel_and_sdist_hold_the_scripts(tmp_path):
    """Wheel and sdist contain the scripts, and Python loads them from the packed wheel."""
    build = [sys.executable, "-c", BUILD, str(tmp_path)]
    pure = {**os.environ, "RATELIMITED_EXECUTOR_PURE": "1"}  # compiling is left to tests/packaging
    wheel, sdist = subprocess.run(build, cwd=ROOT, env=pure, capture_output=True, text=True, check=True).stdout.split()
    files = {f"ratelimited_executor/{file}" for file in [*SCRIPTS, *TASK_SCRIPTS, TASK_RULES, *LIBRARIES]}
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        assert files <= set(archive.namelist())
    with tarfile.open(tmp_path / sdist) as archive:
        assert files <= {name.partition("/")[2] for name in archive.getnames()}

    load = [sys.executable, "-c", LOAD, str(tmp_path / wheel)]
    loaded = subprocess.run(load, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert [len(each.text) for each in [*SCRIPTS.values(), *TASK_SCRIPTS.values()]] == [int(each) for each in loaded]
