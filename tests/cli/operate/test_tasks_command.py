"""The command ``tasks``: what it shows of a store, and what it changes, for people and scripts."""

import asyncio
import dataclasses
import io
import json
import re
import signal
import sys

import apsw
import pytest
from click.testing import CliRunner
from rich.console import Console

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._core.durable.tasks import (
    Claim,
    DurableState,
    End,
    EndedRow,
    KeptTask,
    NewTask,
    TaskOutcome,
    TaskRow,
)
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.cli.commands import cli
from ratelimited_executor.cli.operate.tasks_command import TasksOptions, show_tasks
from ratelimited_executor.cli.operate.tasks_view import StorePicture, draw_tasks, tasks_fields
from ratelimited_executor.durable import DurableTasks, PostgresStore, RedisStore, SQLiteStore
from ratelimited_executor.stores.tasks import postgres, sqlite


@pytest.fixture
def path(tmp_path):
    """A store with tasks in most states: scheduled, ready, behind, dead and unknown."""
    file = tmp_path / "tasks.db"

    async def fill():
        store = SQLiteStore(file)
        await store.open(SystemClock())
        await store.put([NewTask(id="dead", name="mail"), NewTask(id="lost", name="new", version=3)])
        await store.join("a", 60_000_000)
        dead, lost = (await store.claim(Claim(owner="a", count=2))).tasks
        await store.finish(
            [
                TaskOutcome(dead.ref, End.DEAD, error="Traceback (most recent call last):\nValueError: \x1b[2Jboom"),
                TaskOutcome(lost.ref, End.UNKNOWN),
            ]
        )
        await store.put([
            NewTask(id="later", name="mail", delay_us=3_600_000_000), NewTask(id="due", name="mail", lane="l", body=b"[[1],{}]"),
            NewTask(id="behind", name="mail", lane="l", key='"k"'),
        ])  # fmt: skip
        await store.aclose()

    asyncio.run(fill())
    return str(file)


def run(*arguments):
    """Run the command; return its exit status, standard output and standard error."""
    result = CliRunner().invoke(cli, ["tasks", *arguments])
    return result.exit_code, result.stdout, result.stderr


def counts(path):
    """Return the number of tasks in each state."""
    return json.loads(run(path, "--json")[1])["counts"]


def test_states_are_counted(path):
    """Tasks are counted by state, with an explanation of each."""
    status, out, _ = run(path)
    assert 0 == status
    assert {"scheduled": 1, "ready": 1, "behind": 1, "claimed": 0, "unknown": 1, "dead": 1, "paused": 0} == counts(path)
    assert "dead           1  dead letters" in out


def test_age_of_what_is_ready_is_shown(path):
    """The age of the oldest due task is shown, or none if no due task waits."""
    fields = json.loads(run(path, "--json")[1])
    assert 0 <= fields["ready_seconds"] < 600
    assert re.search(r"ready +1  due, not claimed yet; the oldest was due \d.* ago", run(path)[1])
    run(path, "--cancel", "due", "--cancel", "behind")
    assert json.loads(run(path, "--json")[1])["ready_seconds"] is None
    assert "due, not claimed yet\n" in re.sub(" +\n", "\n", run(path)[1])


@pytest.mark.parametrize("width", [80, 200])
def test_passwords_in_urls_are_hidden(width):
    """An error, a saved state and a result are shown with the URLs in them, without the passwords of these."""
    text = "ConnectionError: no answer from https://ann:letmein@bank.example/pay"
    row = TaskRow(
        number=1, id="d", queue="default", name="pay", version=1, body=b"", state=DurableState.DEAD, put_us=0, due_us=0,
        priority=0, lane=None, key=None, attempt_count=5, lost_count=0, owner="", is_cancelled=False, error=f"Traceback (most recent call last):\n{text}\n",
        saved=text.encode(),
    )  # fmt: skip
    row = dataclasses.replace(row, body=json.dumps([[f'"{text}?key=letmein"'], {}]).encode())
    ends = [
        EndedRow(
            number=number, id="e", queue="default", name="pay", version=1, end="done", attempt_count=0,
            ended_us=0, run_us=0, result=result, error=error,
        )
        for number, result, error in [(1, text.encode(), ""), (2, None, text)]
    ]  # fmt: skip
    picture = StorePicture(counts={}, latencies={}, rows=[row], lanes=[], ended=ends)
    out = io.StringIO()
    Console(file=out, width=width).print(draw_tasks(picture, 1000.0))
    fields = tasks_fields(picture)
    assert (out.getvalue().count("letmein"), out.getvalue().count("***@bank")) == (0, 4)
    assert "https://***@bank.example/pay" in fields["tasks"][0]["error"]
    assert "https://***@bank.example/pay" in fields["ended"][1]["error"]
    assert "letmein" not in json.dumps(fields)
    assert [['"ConnectionError: no answer from https://***@bank.example/pay?key=***"'], {}] == json.loads(
        fields["tasks"][0]["body"]
    )


@pytest.mark.parametrize("repair", ["--requeue-dead", "--cancel-all --state dead"])
def test_dry_run_shows_no_passwords_and_tells_the_count(path, repair):
    """Examples of a dry run are shown as lists are; in JSON it has the number of the tasks that it would change."""

    async def fail():
        store = SQLiteStore(path)
        await store.open(SystemClock())
        await store.put([NewTask(id="secret", name="pay")])
        await store.join("a", 60_000_000)
        tasks = (await store.claim(Claim(owner="a", count=9))).tasks
        [ref] = [task.ref for task in tasks if task.id == "secret"]
        error = "OSError: https://ann:letmein@bank.example/pay?api_key=letmein timed out"
        await store.finish([TaskOutcome(ref, End.DEAD, error=error)])
        await store.aclose()

    asyncio.run(fail())
    status, out, err = run(path, *repair.split(), "--error", "OSError", "--dry-run", "--json")
    verb = repair[2:].partition("-")[0]
    assert (0, {"tasks": 1, "dry_run": True}) == (status, json.loads(out)[verb])
    assert "https://***@bank.example/pay?api_key=*** timed out" in err
    assert "letmein" not in out + err
    _, out, _ = run(path, *repair.split(), "--error", "OSError", "--json")
    assert {"tasks": 1, "dry_run": False} == json.loads(out)[verb]


@pytest.mark.parametrize("width", [80, 200])
def test_nothing_is_cut_on_a_narrow_terminal(width):
    """In 80 columns each task has lines of its own, on which nothing is broken; on a wide screen it is a row of a table."""
    error = "ConnectionError: the provider of payments answered 503"
    row = TaskRow(
        number=1, id="0192f0c1-charge", queue="default", name="payments.charge", version=1, body=b"",
        state=DurableState.DEAD, put_us=0, due_us=0, priority=0, lane="customer-17", key=None, attempt_count=5, lost_count=1,
        owner="workers-7.example:1234:ab12", is_cancelled=False, error=f"Traceback (most recent call last):\n{error}\n",
        saved=b"page 7",
    )  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=width).print(
        draw_tasks(StorePicture(counts={}, latencies={}, rows=[row], lanes=[]), 1000.0)
    )
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    narrow = [
        "0192f0c1-charge  dead  payments.charge", "  due 16m40s ago, failed attempts 5 + 1 lost", "  lane customer-17",
        "  owner workers-7.example:1234:ab12", f"  {error}", "  saved page 7",
    ]  # fmt: skip
    if width == 80:
        assert lines[-len(narrow) :] == narrow
    else:
        table = (
            "0192f0c1-charge +dead +payments.charge +customer-17 +16m40s ago +5 \\+ 1 lost +workers-7.example:1234:ab12"
        )
        assert re.search(table, out.getvalue())
        assert re.search(f"0192f0c1-charge +{error}", out.getvalue())


@pytest.mark.parametrize("ready", [0, 7])
def test_latency_is_that_of_the_oldest_queue(ready):
    """The oldest due task is named, and each queue if there are several; also if none is ready, as no process makes it so."""
    picture = StorePicture(
        counts={DurableState.SCHEDULED: 1, DurableState.READY: ready},
        latencies={"default": 5.0, "mail": 130.0},
        rows=[],
        lanes=[],
    )
    fields = tasks_fields(picture)
    assert (130.0, {"default": 5.0, "mail": 130.0}) == (fields["ready_seconds"], fields["latency"])
    out = io.StringIO()
    Console(file=out, width=120).print(draw_tasks(picture, 1000.0))
    [line] = [line.rstrip() for line in out.getvalue().splitlines() if "oldest" in line]
    assert line.startswith("ready" if ready else "scheduled")
    assert line.endswith("; the oldest was due 2m10s ago (default 5 s, mail 2m10s)")


def test_tasks_of_a_state_are_listed(path):
    """Tasks of a state are listed, with escape sequences shown literally."""
    _, out, _ = run(path, "--state", "dead")
    assert re.search(r"^dead +dead +mail ", out, re.MULTILINE)
    assert re.search(r"^dead +ValueError: \\x1b\[2Jboom$", out, re.MULTILINE)
    assert "new, version 3" in run(path, "--state", "unknown")[1]
    assert re.search(r"later +scheduled +mail +in (59m\d+s|1h)", run(path, "--state", "scheduled")[1])


def test_lanes_in_which_tasks_wait_are_listed(path):
    """Lanes with waiting tasks are listed with their heads."""
    assert ["l", "1", "due", "ready"] in [line.split() for line in run(path, "--lanes")[1].splitlines()]
    assert [{"lane": "l", "behind": 1, "head": "due", "state": "ready"}] == json.loads(
        run(path, "--json", "--lanes")[1]
    )["lanes"]


def test_json_has_it_all(path):
    """``--json`` has all figures for programs."""
    [row] = json.loads(run(path, "--json", "--state", "behind")[1])["tasks"]
    assert ("behind", "l", "k", 0) == (row["id"], row["lane"], row["key"], row["attempts"])
    [row] = json.loads(run(path, "--json", "--state", "ready")[1])["tasks"]
    assert "[[1],{}]" == row["body"]


def test_ended_tasks_and_saved_states_are_listed(path):
    """``--ended`` lists what is kept, the last end first, also of one function; rows have the state that was saved."""

    async def fill():
        store = SQLiteStore(path)
        await store.open(SystemClock())
        kept = [
            KeptTask("e1", "default", "mail", 1, 2, 1_500_000, 10**12, b'["\x1b[2J"]'),
            KeptTask("e2", "default", "new", 3, 0, 0, 10**12, error="the result is too large"),
        ]
        await store.put([NewTask(id=each.id, name=each.name, priority=1.0) for each in kept])
        claimed = (await store.claim(Claim(owner="a", count=3))).tasks
        await store.save([(claimed[2].ref, b"[7]")])
        await store.finish(
            [TaskOutcome(task.ref, End.DONE, kept=each) for task, each in zip(claimed, kept, strict=False)]
        )
        await store.aclose()

    asyncio.run(fill())
    assert (1, "--requeue: 'e1' has ended\n") == run(path, "--requeue", "e1")[::2]
    out = run(path, "--ended", "--state", "claimed")[1]
    assert re.search(r"^ended +function +how +failed attempts +ran +when +result *$", out, re.MULTILINE)
    assert re.search(r"^e2 +new, version 3 +done +0 +0 ms +\d.* ago +the result is too large$", out, re.MULTILINE)
    assert re.search(r'^e1 +mail +done +2 +1.5 s +\d.* ago +\["\\x1b\[2J"\] *$', out, re.MULTILINE)
    assert re.search(r"^id +saved *\ndue +\[7\] *$", out, re.MULTILINE)
    [row] = json.loads(run(path, "--json", "--ended", "--function", "mail")[1])["ended"]
    assert ("e1", "done", 2, 1.5, None) == (row["id"], row["end"], row["attempts"], row["seconds"], row["error"])
    assert ["e2"] == [row["id"] for row in json.loads(run(path, "--json", "--ended", "--limit", "1")[1])["ended"]]
    assert [] == json.loads(run(path, "--json")[1])["ended"]
    assert "[7]" == json.loads(run(path, "--json", "--state", "claimed")[1])["tasks"][0]["saved"]


def test_repetitions_are_listed_and_removed(path):
    """Repetitions are listed with those that no running process declares, and removed by name, once."""

    async def fill():
        tasks = DurableTasks(SQLiteStore(path))

        @tasks.task
        async def mail(): ...

        tasks.repeat(mail, cron="0 9 * * *", tz="Europe/London", name="daily")
        async with RateLimitedExecutor("x") as executor, tasks.running(executor):
            await asyncio.sleep(0)

    asyncio.run(fill())
    _, out, _ = run(path, "--repetitions")
    assert re.search(r"daily +mail +0 9 \* \* \* \(Europe/London\) +in .* no running process declares it", out)
    [found] = json.loads(run(path, "--repetitions", "--json")[1])["repetitions"]
    assert ("daily", "default", "mail", False) == tuple(
        found[name] for name in ("name", "queue", "function", "declared")
    )
    assert 2 == counts(path)["scheduled"]
    assert 0 == run(path, "--remove-repetition", "daily")[0]
    assert 1 == counts(path)["scheduled"]
    status, _, error = run(path, "--remove-repetition", "daily")
    assert (1, "--remove-repetition: 'daily' does not exist\n") == (status, error)


def test_repetitions_are_saved_and_operated(path):
    """A repetition is saved, changed, paused, resumed, run, skipped and removed by name, whatever code runs."""
    save = ("--save-repetition", "mine", "--function", "mail", "--lane", "l", "--queue", "mails", "--repetitions")
    times = ("--cron", "0 9 * * *", "--tz", "Europe/London", "--overlap", "allow", "--version", "2", "--priority", "3")
    status, out, err = run(path, *save, *times, "--arguments", '["a", 1]')
    assert (0, "") == (status, err)
    row = r"mine +mail +0 9 \* \* \* \(Europe/London\) +saved; overlap: allow; no running process knows its function"
    assert re.search(row, out)

    def found():
        [each] = json.loads(run(path, "--repetitions", "--json")[1])["repetitions"]
        return each

    assert ("mails", True, False, None) == tuple(found()[name] for name in ("queue", "saved", "declared", "next"))
    definition = found()["definition"]
    assert ('[["a",1],{},true]', 2, 3.0, "l") == tuple(
        definition[name] for name in ("body", "version", "priority", "lane")
    )
    assert 0 == run(path, *save, "--period", "1h", "--arguments", '{"to": "b"}', "--expires", "5m")[0]
    assert ('[[],{"to":"b"},true]', "every 1h") == (found()["definition"]["body"], found()["times"])
    status, out, _ = run(path, "--pause-repetition", "mine", "--until", "2999-01-31T18:00+01:00")
    assert status == 0
    assert "paused, ends in" in out
    assert (True, "2999-01-31T17:00:00+00:00") == (found()["paused"], found()["until"])
    assert (0, 1) == (run(path, "--resume-repetition", "mine")[0], run(path, "--resume-repetition", "mine")[0])
    before = counts(path)["behind"]
    assert 0 == run(path, "--run-repetition", "mine")[0]
    assert before + 1 == counts(path)["behind"]
    assert (1, "--skip-repetition: no occurrence of 'mine' waits\n") == run(path, "--skip-repetition", "mine")[::2]
    assert (0, "") == run(path, "--remove-repetition", "mine")[::2]
    for verb in ("pause", "resume", "skip", "run"):
        assert (1, f"--{verb}-repetition: 'mine' does not exist\n") == run(path, f"--{verb}-repetition", "mine")[::2]


@pytest.mark.real_time("the command runs in a thread, beside a process that declares the repetition")
async def test_removing_a_repetition_that_is_declared_is_told(path):
    """A repetition that a running process declares is removed, with a notice that the process puts it back."""
    tasks = DurableTasks(SQLiteStore(path))

    @tasks.task
    async def mail(): ...

    tasks.repeat(mail, cron="0 9 * * *", name="daily")
    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        await asyncio.sleep(0)
        while not await tasks.repetitions():
            await asyncio.sleep(0.01)
        status, _, error = await asyncio.to_thread(run, path, "--remove-repetition", "daily")
    assert (0, "--remove-repetition: a running process declares 'daily', and will put it back\n") == (status, error)


@pytest.mark.real_time("the command runs in a thread, beside a process that runs tasks")
async def test_running_process_places_what_the_command_saves(path):
    """A process whose next look is an hour away places a saved repetition, drops it in a pause and places it again at once."""
    tasks = DurableTasks(SQLiteStore(path), lease=3600)

    @tasks.task
    async def report(): ...

    async def until(is_waiting):
        async with asyncio.timeout(60):
            while [is_waiting] != [row.next_us is not None for row in await tasks.repetitions()]:
                await asyncio.sleep(0.01)

    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        save = ("--save-repetition", "mine", "--function", "report", "--cron", "0 9 1 1 *")
        for options, is_waiting in (
            (save, True),
            (("--pause-repetition", "mine"), False),
            (("--resume-repetition", "mine"), True),
        ):
            assert 0 == (await asyncio.to_thread(run, path, *options))[0]
            await until(is_waiting)


def test_dead_letters_are_put_back_and_tasks_cancelled(path):
    """Dead letters are requeued and tasks cancelled; unknown ids and other states are reported."""
    status, _, err = run(path, "--requeue", "dead", "--requeue", "due", "--requeue", "none", "--cancel", "later")
    assert 1 == status
    assert ["--requeue: 'due' is ready", "--requeue: 'none' does not exist"] == err.splitlines()
    assert {"scheduled": 0, "ready": 2, "behind": 1, "claimed": 0, "unknown": 1, "dead": 0, "paused": 0} == counts(path)
    assert 0 == run(path, "--cancel", "dead")[0]
    assert (1, "--cancel: 'dead' does not exist") == (lambda status, _, err: (status, err.strip()))(
        *run(path, "--cancel", "dead")
    )


def test_newest_tasks_are_listed_first(path):
    """With --newest-first the list begins with the task that was put last, also of a selection."""
    assert 0 == run(path, "--requeue-dead", "--cancel", "later")[0]
    for selection in ((), ("--function", "mail")):
        for order, expected in (((), "dead due"), (("--newest-first",), "due dead")):
            fields = json.loads(run(path, "--state", "ready", "--json", *selection, *order)[1])
            assert expected.split() == [each["id"] for each in fields["tasks"]]
    status, _, error = run(path, "--newest-first")
    assert (2, True) == (status, "--newest-first needs --state" in error)


def test_all_dead_letters_are_put_back(path):
    """All dead letters are requeued, however many there are."""
    assert 0 == run(path, "--requeue-dead")[0]
    assert 0 == counts(path)["dead"]


def test_dead_letters_are_put_back_once_though_they_fail_again_at_once(path, monkeypatch):
    """Requeued dead letters that fail again at once are requeued only once."""
    calls = []

    async def requeue(store, ids):
        calls.append(list(ids))
        assert len(calls) < 5
        return [DurableState.DEAD for _ in ids]

    monkeypatch.setattr(SQLiteStore, "requeue", requeue)
    assert 0 == run(path, "--requeue-dead")[0]
    assert [[], ["dead"]] == calls


def test_tasks_are_paused_and_resumed(path):
    """Tasks are paused and resumed by function, queue, lane or key; pauses are shown while they are in force."""
    assert [] == json.loads(run(path, "--json")[1])["pauses"]
    assert 0 == run(path, "--pause", "--function", "mail", "--key", "17", "--until", "2999-01-31T18:00+01:00")[0]
    status, out, _ = run(path, "--pause", "--lane", "\x1b[2J")
    assert 0 == status
    assert re.search(r"paused function +queue +lane +key +since +until", out)
    assert re.search(r"^mail +17 +\d.* ago +in \d", out, re.MULTILINE)
    assert "\\x1b[2J" in out
    pauses = json.loads(run(path, "--json")[1])["pauses"]
    assert [("mail", None, 17, "2999-01-31T17:00:00+00:00"), (None, "\x1b[2J", None, None)] == sorted(
        ((each["function"], each["lane"], each["key"], each["until"]) for each in pauses), key=str
    )
    assert (1, "--resume: nothing is paused by exactly these options\n") == run(path, "--resume", "--function", "mail")[
        ::2
    ]
    assert 0 == run(path, "--resume", "--function", "mail", "--key", "17")[0]
    assert 1 == len(json.loads(run(path, "--json")[1])["pauses"])
    assert "must have 1 to 255" in run(path, "--pause", "--function", "")[2]


def test_selected_tasks_are_repaired(path):
    """A dry run counts and shows examples; then the selected tasks are requeued or cancelled, with the progress."""
    assert "dead" not in run(path, "--state", "dead", "--error", "another")[1].splitlines()[-1]
    assert re.search(r"^dead +dead +mail ", run(path, "--state", "dead", "--function", "mail")[1], re.MULTILINE)
    status, _, err = run(path, "--requeue-dead", "--error", "boom", "--since", "2001-01-01", "--dry-run")
    assert (
        0,
        "requeue: 1 tasks, not done because of --dry-run, such as:\n  dead  mail  ValueError: \\x1b[2Jboom\n",
    ) == (status, err)
    assert (0, "requeue: 0 tasks\n") == run(path, "--requeue-dead", "--since", "2999-01-01T00:00")[::2]
    assert (0, "cancel: 0 tasks\n") == run(path, "--cancel-all", "--state", "ready", "--key", '"k"')[::2]
    assert 1 == counts(path)["dead"]
    assert (0, "requeue: 1 of 1 tasks\n") == run(path, "--requeue-dead", "--queue", "default")[::2]
    assert (0, "cancel: 2 of 2 tasks\n") == run(path, "--cancel-all", "--state", "ready", "--function", "mail")[::2]
    assert {"scheduled": 1, "ready": 1, "behind": 0, "claimed": 0, "unknown": 1, "dead": 0, "paused": 0} == counts(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--cancel-all", "needs --state"), ("--pause --resume --lane l", "exclude each other"), ("--pause", "need --function"),
        ("--dry-run", "needs --requeue-dead"), ("--until 2999-01-01", "needs --pause"), ("--function f", "a selection of tasks needs"),
        ("--pause --lane l --until tomorrow", "must be a time such as"), ("--save-repetition r --period 1h", "needs --function"),
        ("--save-repetition r --function f", "--period or --cron"), ("--overlap skip", "need --save-repetition"),
        ("--save-repetition r --function f --period 1h --arguments x", "must be JSON"),
        ("--save-repetition r --function f --period 1h --arguments " + "[" * 100_000, "must be JSON"),
        ("--save-repetition r --function f --period 1h --arguments 1", "must be a list or an object"),
        ("--save-repetition r --function f --cron x", "must be a cron expression"), ("--until 2999-01-01", "--pause-repetition"),
        ("--save-repetition r --function f --period 1h --overlap queue --lane l", "takes no lane="),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(path, options, words):
    """Options that have no effect, or would have too large a one, are refused, and nothing is changed."""
    before = counts(path)
    status, _, err = run(path, *options.split())
    assert 2 == status
    assert words in err
    assert before == counts(path)


def watched(path, *steps):
    """Watch a store on a terminal, with a step after each picture and Ctrl-C after the last; return what was drawn."""
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=40, color_system=None)
    waiting = iter(steps)

    async def sleep(seconds):
        step = next(waiting, None)
        if step is None:
            raise KeyboardInterrupt
        await asyncio.to_thread(step)

    with pytest.raises(KeyboardInterrupt):
        show_tasks(TasksOptions(store=path, is_watched=True), console=console, sleep=sleep)
    return console.file.getvalue()


def test_terminal_shows_each_change(path):
    """A terminal is drawn anew until it is interrupted; then the former handler of SIGTERM is back."""
    before = signal.getsignal(signal.SIGTERM)
    text = watched(path, lambda: run(path, "--cancel", "dead"))
    assert ["1", "0", "0"] == re.findall(r"dead +(\d) +dead letters", text)  # the last picture again at the end
    assert before is signal.getsignal(signal.SIGTERM)


def test_terminal_keeps_the_last_picture_while_the_store_is_away(path):
    """While the store cannot be read a terminal keeps the last picture with the reason, and later shows the store again."""

    def rename(old, new):
        connection = apsw.Connection(path)
        connection.execute(f"alter table {old} rename to {new}")
        connection.close()

    def back():
        rename("away", "durable_tasks")
        run(path, "--cancel", "dead")

    text = watched(path, lambda: rename("durable_tasks", "away"), back)
    assert ["1", "1", "0", "0"] == re.findall(r"dead +(\d) +dead letters", text)
    assert 1 == " ".join(text.split()).count("no such table")  # wherever the line is broken


def test_termination_restores_the_terminal(path):
    """SIGTERM ends the live view as Ctrl-C does, and the cursor is there again."""
    text = watched(path, lambda: signal.raise_signal(signal.SIGTERM), lambda: pytest.fail("it went on"))
    assert text.rindex("\x1b[?25l") < text.rindex("\x1b[?25h")


def test_check_is_for_monitors(path):
    """``--check`` fails for monitors if there are dead letters or tasks of unknown functions."""
    assert 1 == run(path, "--check")[0]
    run(path, "--cancel", "dead")
    assert 1 == run(path, "--check")[0]
    run(path, "--cancel", "lost")
    assert 0 == run(path, "--check")[0]


def test_stores_that_cannot_be_used(tmp_path, monkeypatch):
    """A store that cannot be used is refused, and no file is made."""
    status, _, err = run(str(tmp_path / "none.db"))
    assert 2 == status
    assert "there is no file" in err
    for options in ((), ("--migrate",), ("--sql",)):
        assert "there is no file" in run(str(tmp_path), *options)[2]
    assert [] == list(tmp_path.iterdir())
    assert "hunter2" not in run("postgresq://user:hunter2@host/db")[2]
    (tmp_path / "garbage").write_bytes(b"no database" * 100)
    status, _, err = run(str(tmp_path / "garbage"))
    assert 2 == status
    assert "name another file" in err
    monkeypatch.delenv("DURABLE_STORE", raising=False)
    assert 2 == run()[0]


def test_store_by_the_environment(path, monkeypatch):
    """The store may come from the environment, as for services."""
    monkeypatch.setenv("DURABLE_STORE", path)
    assert 0 == run()[0]


def test_store_of_redis(redis_server, monkeypatch):
    """A store in Redis is given by its URL, and the prefix of its keys."""

    async def fill():
        store = RedisStore(redis_server.url, prefix="mine")
        await store.open(SystemClock())
        await store.put([NewTask(id="due", name="mail", lane="l"), NewTask(id="behind", name="mail", lane="l")])
        await store.aclose()

    asyncio.run(fill())
    assert 0 == sum(counts(redis_server.url).values())
    status, out, _ = run(redis_server.url, "--prefix", "mine", "--json", "--lanes", "--state", "ready")
    assert 0 == status
    assert ["due"] == [task["id"] for task in json.loads(out)["tasks"]]
    assert ["l"] == [lane["lane"] for lane in json.loads(out)["lanes"]]
    assert 0 == run(redis_server.url, "--prefix", "mine", "--cancel", "due", "--cancel", "behind")[0]
    for store, words in (
        ("redis://localhost:port", "its host or port is none"),
        (redis_server.url.replace("/0", "/99"), "choose a database that the server has"),
        ("redis://:secret@127.0.0.1:1", "Connect"),
    ):
        status, _, err = run(store)
        assert 2 == status
        assert words in err
        assert "secret" not in err


def test_store_of_postgresql(postgresql):
    """A store in PostgreSQL is given by its URL; a database without durable tasks is left unchanged."""
    import psycopg

    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("drop database if exists empty with (force)")
        connection.execute("create database empty")
    postgresql = postgresql.replace("/postgres?", "/empty?")
    status, _, err = run(postgresql, "--json")
    assert 2 == status
    assert "has no durable tasks" in err

    async def make() -> None:
        async with DurableTasks(PostgresStore(postgresql)):
            pass

    asyncio.run(make())
    status, out, err = run(postgresql, "--json")
    assert (0, "") == (status, err)
    assert 0 == sum(json.loads(out)["counts"].values())


def test_time_after_the_last_year_is_shown_as_its_end(tmp_path):
    """A time after the last year of dates is shown as the last one: stores take times up to the year 30,000."""
    file = tmp_path / "tasks.db"

    async def fill():
        store = SQLiteStore(file)
        await store.open(SystemClock())
        await store.put([NewTask(id="x", name="f", delay_us=10**18)])
        await store.aclose()

    asyncio.run(fill())
    [row] = json.loads(run(str(file), "--json", "--state", "scheduled")[1])["tasks"]
    assert "9999-12-31T23:59:59+00:00" == row["due"]


def test_store_is_migrated_without_a_service(tmp_path, monkeypatch):
    """``--sql`` prints what is missing and changes nothing, ``--migrate`` does it; afterwards nothing is missing."""
    file = str(tmp_path / "tasks.db")
    for slip in ("postgres", "redis"):
        status, output, error = run(slip, "--sql")
        assert (2, "") == (status, output)
        assert "--sql prints the whole schema of" in error
    whole = run("sqlite", "--sql")[1]
    assert (0, whole) == run(file, "--sql")[:2]
    assert not (tmp_path / "tasks.db").exists()
    with monkeypatch.context() as older:
        older.setattr(sqlite, "_SCHEMA", sqlite._SCHEMA[:2])
        execute(file, run("sqlite", "--sql")[1])
    assert "start a process of this release" in run(file)[2]
    status, sql, _ = run(file, "--sql")
    assert (0, True, False) == (status, "durable_unique" in sql, "create table durable_tasks" in sql)
    execute(file, sql)
    assert "-- nothing is missing" == run(file, "--sql")[1].strip()
    assert (0, 0) == (run(file)[0], run(file, "--migrate")[0])
    for name, how in (("other.db", whole), ("new.db", None)):
        made = str(tmp_path / name)
        if how is not None:
            execute(made, how)
        assert (0, "-- nothing is missing\n") == (run(made, "--migrate")[0], run(made, "--sql")[1])


def execute(file, sql):
    """Execute statements on a file."""
    connection = apsw.Connection(file)
    connection.execute(sql).fetchall()
    connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no server to start")
def test_database_is_migrated_by_its_own_sql(postgresql, monkeypatch):
    """What ``--sql`` prints for PostgreSQL makes an older store and a new one fit for this release."""
    import psycopg

    def store(name):
        with psycopg.connect(postgresql, autocommit=True) as connection:
            connection.execute(f"drop database if exists {name} with (force)")
            connection.execute(f"create database {name}")
        return postgresql.replace("/postgres?", f"/{name}?")

    old, new = store("migrated"), store("made")
    with monkeypatch.context() as older:
        older.setattr(postgres, "_SCHEMA", postgres._SCHEMA[:2])
        part = run("postgresql", "--sql")[1]
    with psycopg.connect(old, autocommit=True) as connection:
        connection.execute(part)
    assert 2 == run(new)[0]
    assert run("postgresql", "--sql")[1] == run(new, "--sql")[1]
    assert "create table durable_tasks" not in run(old, "--sql")[1]
    for url in (old, new):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(run(url, "--sql")[1])
        assert (0, "-- nothing is missing") == (run(url)[0], run(url, "--sql")[1].strip())


def test_options_of_a_migration_fit_together():
    """``--wait`` needs ``--migrate``, stores without a schema have no SQL, and a store that stays away is an error."""
    assert "--wait needs --migrate" in run("tasks.db", "--wait", "1s")[2]
    assert "--sql needs a store in SQLite or PostgreSQL" in run("redis://localhost", "--sql")[2]
    status, _, error = run("postgresql://127.0.0.1:1/none?connect_timeout=1", "--migrate", "--wait", "50ms")
    assert (2, True) == (status, "trying again" in error or "PostgresStore" in error)
