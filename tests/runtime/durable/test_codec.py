"""Arguments as JSON: values that JSON cannot hold, or would change silently, are refused."""

import pickle

import pytest

from ratelimited_executor._runtime.durable.codec import check_codec
from ratelimited_executor.durable import DurableTasks, JSONCodec, MemoryStore

from .conftest import Process


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "ü\u2028", [1, [2]], {"a": {"b": []}}])
def test_json_comes_back_as_it_was(value):
    """Any value that JSON can hold is read back unchanged."""
    codec = JSONCodec()
    assert [[value], {"k": value}] == codec.loads(codec.dumps([[value], {"k": value}]))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"x", "bytes is not JSON serializable"),
        (float("nan"), "Out of range float values"),
        ({1: 2}, "must have strings as keys, got 1"),
        ([{"a": [{None: 1}]}], "must have strings as keys, got None"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_what_json_cannot_say_is_refused_at_the_put(store, value, words):
    """The put raises an error that names the function and the reason."""
    process = Process(store)
    with pytest.raises((TypeError, ValueError), match=f"(?s)arguments of note cannot be encoded: .*{words}"):
        process.note.new(value)


async def test_other_codecs_may_be_handed_in(virtual_clock):
    """A module with ``dumps`` and ``loads``, such as pickle, may be the codec."""
    process = Process(MemoryStore())
    process.tasks.codec = check_codec(pickle)
    async with process.tasks:
        await process.note.put((1, {2}))
    await process.run(1)
    assert [(1, {2})] == process.names


def test_what_is_no_codec_is_refused():
    """A codec without the functions ``dumps`` and ``loads`` is refused."""
    with pytest.raises(TypeError, match="codec must have the functions dumps and loads"):
        DurableTasks(MemoryStore(), codec=object())


async def test_arguments_that_cannot_be_read_make_a_dead_letter(store):
    """Arguments that another codec has written make a dead letter, so that the task is not lost."""
    writer, reader = Process(store), Process(store)
    writer.tasks.codec = pickle
    async with writer.tasks:
        ref = await writer.note.put("a")
        await reader.run(1)
        assert "its arguments cannot be read" in (await ref.row()).error
