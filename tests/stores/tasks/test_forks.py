"""Stores in a fork of the process that has opened them: a call is refused, and the parent goes on."""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import asyncio, logging, os, sys, warnings
    from ratelimited_executor.cycles import RedisProgress, SQLiteProgress
    from ratelimited_executor.durable import DurableTasks, PostgresStore, RedisStore, SQLiteStore

    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: that is the point
    logging.getLogger("ratelimited_executor").setLevel("ERROR")
    kind, target = globals()[sys.argv[1]], sys.argv[2]

    def in_child(calls):
        asyncio._set_running_loop(None)
        for call in calls:
            async def attempt():
                async with asyncio.timeout(20):
                    return await call()
            try:
                print("child:", asyncio.run(attempt()), flush=True)
            except RuntimeError as error:
                print("child:", str(error).replace(str(os.getppid()), "PARENT").replace(target, "TARGET"), flush=True)
        os._exit(0)

    async def forked(*calls):
        child = os.fork()
        if not child:
            in_child(calls)
        assert os.waitpid(child, 0)[1] == 0

    async def of_tasks():
        tasks = DurableTasks(kind(target))

        @tasks.task
        def work(n): ...

        async with tasks:
            await tasks.put_many([work.new(1)])
            putting = asyncio.ensure_future(work.put(2))
            await asyncio.sleep(0)
            await forked(lambda: work.put(3), tasks.counts, lambda: tasks.put_many([work.new(4)]), tasks.__aenter__)
            await putting
            print("parent:", sum((await tasks.counts()).values()))

    async def of_progress():
        progress = kind(target)
        await progress.begin("sync", "8 h", 5)
        await forked(lambda: progress.begin("other", "8 h", 5))
        print("parent:", await progress.begin("sync", "8 h", 6))
        await progress.aclose()

    asyncio.run(of_tasks() if "Store" in sys.argv[1] else of_progress())
"""
REFUSED = "was started in process PARENT, and this process is a fork of it, without its threads"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("kind", ["SQLiteStore", "PostgresStore", "RedisStore", "SQLiteProgress", "RedisProgress"])
def test_fork_of_a_process_with_an_open_store_is_refused(kind, request, tmp_path):
    """Each call of a fork on an open store raises at once, and the parent's store works on."""
    target = str(tmp_path / "tasks.db")
    if kind == "PostgresStore":
        target = request.getfixturevalue("database").url
    elif kind.startswith("Redis"):
        target = request.getfixturevalue("redis_server").url
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), kind, target]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "" == run.stderr
    if kind.endswith("Progress"):
        expected = [REFUSED, "parent: 5"]
    else:
        expected = [*[REFUSED] * 4, "parent: 2"]
    lines = run.stdout.splitlines()
    assert [True] * len(expected) == [words in line for words, line in zip(expected, lines, strict=True)], lines
