"""The authorities with a memory in a database: replies as those of the authorities in memory, whatever is asked."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from ratelimited_executor._core.fleet.slots import peer_of

from .binaries import KINDS as SERVERS
from .servers import RedisServer
from .stored_programs import SlotProgram, TicketProgram
from .stored_subjects import InFile, InMemory, InPostgres, OnRedis, Subject, told_time

pytestmark = pytest.mark.real_time("files and a real server, on one side")

PROGRAMS = int(os.environ.get("STORED_PROGRAMS", "4"))
STEPS = 250


@pytest.fixture(params=["file", "postgres", *SERVERS])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, server_of: Callable[[str], RedisServer]
) -> Iterator[Subject]:
    """Each authority in turn."""
    with told_time(), contextlib.ExitStack() as stack:
        if request.param in SERVERS:
            made: Any = OnRedis(stack.enter_context(redis.Redis.from_url(server_of(request.param).url)))
        else:
            made = InFile(tmp_path) if request.param == "file" else InPostgres(request.getfixturevalue("postgresql"))
        yield made
        made.cleanup()


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_replies_for_tickets_are_those_of_the_authority_in_memory(subject, seed) -> None:
    """Each reply to a random program is equal, and so is what is remembered of keys, also after restarts."""
    program, model = TicketProgram(seed, is_odd=not isinstance(subject, OnRedis)), InMemory(subject)
    granted = 0
    for step, call in enumerate(program.steps(STEPS)):
        model.run = subject.run = program.run
        expected = model.tickets(program.now_us, call)
        assert expected == subject.tickets(program.now_us, call), f"step {step}: {call}"
        program.take_in(call, expected)
        granted += sum(len(outcome.tickets) for outcome in expected.outcomes)
        if program.draw.random() < 0.05:
            subject.restart()
        if step % 10 == 0 and not isinstance(subject, OnRedis):
            assert model.records() == subject.records(), f"step {step}"
    assert granted > 0


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_replies_for_slots_are_those_of_the_authority_in_memory(subject, seed) -> None:
    """Each reply to a random program is equal, and the same peers are notified, also after restarts."""
    program, model = SlotProgram(seed, is_odd=not isinstance(subject, OnRedis)), InMemory(subject)
    woken = 0
    for step in range(STEPS):
        call = program.step()
        model.run = subject.run = program.run
        expected = model.slots(program.now_us, call)
        assert expected == subject.slots(program.now_us, call), f"step {step}: {call}"
        told = sorted(map(peer_of, model.woken()))
        assert told == sorted(map(peer_of, subject.woken())), f"step {step}"
        woken += len(told)
        program.take_in(call, expected)
        if program.draw.random() < 0.05:
            subject.restart()
    assert woken
