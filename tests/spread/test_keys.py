"""A key's place on the circle is as specified, the same in every process, and free of the keys' patterns."""

import hashlib
import os
import subprocess
import sys
from datetime import timedelta
from fractions import Fraction
from uuid import UUID, uuid1, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.spread import CycleSlots, cycle_slot_of, key_bytes, key_hash, offset, offset_ns

NS = 1_000_000_000
EIGHT_HOURS_NS = 28_800 * NS

# (key, hash, offset in eight hours in nanoseconds, slot of 128): the same in every language, see docs/reference/spread.md.
VECTORS = [
    (0, 0xAF5570F5A1810B7A, 19725047423450, 87),
    (1, 0xCD2662154E6D76B2, 23079367589769, 102),
    (-1, 0x12A3AE445661CE5D, 2096930008409, 9),
    (2**63 - 1, 0xC624EEBF5B928243, 22291230149730, 99),
    (-(2**63), 0xB1B0BEE5378188F5, 19990171443634, 88),
    ("", 0xE3B0C44298FC1C14, 25615180652870, 113),
    ("a", 0xCA978112CA1BBDCA, 22791578991044, 101),
    ("é", 0x4A99557E4033C353, 8392383086872, 37),
    ("4711", 0xDE650D61F5BD166A, 25019407738476, 111),
    (b"\x00\xff", 0x06EB7D6A69EE19E5, 778486774656, 3),
    (UUID(int=0), 0x374708FFF7719DD5, 6218716621174, 27),
    (UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479"), 0xBDD1B21F92E6B423, 21354651472095, 94),
]
KEYS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.uuids(),
)


@pytest.mark.parametrize(("key", "hashed", "place_ns", "slot"), VECTORS)
def test_vectors(key, hashed, place_ns, slot):
    """The test vectors that are published for other languages hold here."""
    assert hashed == key_hash(key)
    assert place_ns == offset_ns(key, EIGHT_HOURS_NS)
    assert place_ns / NS == offset(key, "8h") == offset(key, 28_800) == offset(key, timedelta(hours=8))
    assert slot == cycle_slot_of(key, "8h") == cycle_slot_of(key, "8h", 256)


@pytest.mark.parametrize("length", range(130))
def test_keys_of_any_length(length):
    """The hash is that of hashlib, below and above what fills the first block of SHA-256 and the second."""
    for data in (bytes(length), b"\xff" * length, bytes(range(length))):
        assert int.from_bytes(hashlib.sha256(data).digest()[:8], "big") == key_hash(data)


@given(KEYS, st.integers(1, 10**18))
def test_specification(key, period_ns):
    """The place is as specified: SHA-256 of the key's bytes, a multiplication and a division, in whole numbers."""
    if isinstance(key, int):
        written = (key % 2**64).to_bytes(8, "big")
    else:
        written = key.encode() if isinstance(key, str) else key.bytes if isinstance(key, UUID) else key
    digest = hashlib.sha256(written).digest()
    assert written == key_bytes(key)
    assert int.from_bytes(digest[:8], "big") == key_hash(key)
    assert Fraction(key_hash(key), 2**64) * period_ns // 1 == offset_ns(key, period_ns)
    assert 0 <= offset(key, period_ns / NS) < period_ns / NS


@given(KEYS, st.integers(1, 10**6).map(lambda half: 2 * half), st.sampled_from([256, 65_536]))
def test_place_of_a_key_lies_in_its_slot(key, cycle, buckets):
    """The offset of a key lies in the turn of its slot, and its bucket belongs to that slot."""
    slots = CycleSlots(cycle, buckets)
    slot = slots.slot_of(key)
    place_ns = slots.offset_ns(key)
    assert slot * slots.slot_seconds * NS <= place_ns < (slot + 1) * slots.slot_seconds * NS
    bucket = int.from_bytes(hashlib.sha256(key_bytes(key)).digest()[: 1 if buckets == 256 else 2], "big")
    assert bucket in slots.buckets_of(slot)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_other_processes_agree(seed):
    """The place does not depend on the process, nor on the seed of Python's own hashes."""
    code = "from ratelimited_executor.spread import offset_ns; print([offset_ns(k, 10**18) for k in (1, 'a', b'b')])"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str([offset_ns(key, 10**18) for key in (1, "a", b"b")]) == run.stdout.strip()


@pytest.mark.parametrize(
    "key_of",
    [
        lambda number: number,
        lambda number: number * 256,
        lambda number: number * 2**32,
        lambda number: number - 50_000,
        str,
        lambda number: f"customer-{number:08}",
        lambda number: uuid5(UUID(int=0), str(number)),
        lambda number: UUID(int=number << 64),
        lambda _: uuid1(node=1, clock_seq=1),
    ],
    ids=["in a row", "every 256th", "every 2**32th", "around zero", "digits", "names", "random UUIDs", "counted UUIDs", "UUIDs by time"],
)  # fmt: skip
def test_every_pattern_of_keys_is_spread_evenly(key_of):
    """In 128 slots, 100,000 keys have Pearson's statistic as by chance: 127 on average, with a deviation of 16."""
    keys = [key_of(number) for number in range(100_000)]
    slots, counts = CycleSlots("8h"), [0] * 128
    for key in keys:
        counts[slots.slot_of(key)] += 1
    expected = len(keys) / 128
    statistic = sum((count - expected) ** 2 / expected for count in counts)
    assert 127 - 6 * 16 < statistic < 127 + 6 * 16
    assert abs(sum(offset_ns(key, NS) for key in keys) / NS / len(keys) - 0.5) < 6 * (1 / 12 / len(keys)) ** 0.5


class Id(str):
    """A subclass of str, as a user may define it."""


class Number(int):
    """A subclass of int, as a user may define it."""


def test_kinds_of_ones_own_are_what_they_derive_from():
    """A subclass of str or int has the place of its base type, as it has in a database."""
    assert key_hash("a") == key_hash(Id("a"))
    assert key_hash(5) == key_hash(Number(5))


@pytest.mark.parametrize("key", [True, False, None, 1.0, (1,), [], bytearray(b"a"), ...], ids=repr)
def test_what_is_no_key_is_refused(key):
    """What is not a key is refused; databases would not agree on the bytes of a float or a bool."""
    for call in (key_bytes, key_hash, lambda key: offset(key, 1), lambda key: cycle_slot_of(key, "8h")):
        with pytest.raises(TypeError, match="key must be an int, a str, bytes or a UUID"):
            call(key)


@pytest.mark.parametrize(
    ("key", "remedy"), [(2**63, "convert it to a str"), (-(2**63) - 1, "convert it to a str"), ("\ud800", "UTF-8")]
)
def test_what_has_no_bytes_is_refused(key, remedy):
    """A key without a byte representation is refused, and the message says what to do."""
    with pytest.raises(ValueError, match=remedy):
        key_hash(key)


@pytest.mark.parametrize(
    "period", [0, -1, float("nan"), float("inf"), "", "8 parsecs", "0s", timedelta(0), timedelta(-1)]
)
def test_period_out_of_range_is_refused(period):
    """A period must be a positive, finite duration."""
    with pytest.raises(ValueError, match="period"):
        offset(1, period)


@pytest.mark.parametrize("period", [None, True, b"8h", [], {}])
def test_period_of_a_wrong_type_is_refused(period):
    """The message names the argument and the types that it accepts."""
    with pytest.raises(TypeError, match="period must be a number of seconds, a timedelta or a str"):
        offset(1, period)


@pytest.mark.parametrize("period_ns", [0, -1])
def test_nanoseconds_out_of_range_are_refused(period_ns):
    """A period in nanoseconds is an integer of at least 1."""
    with pytest.raises(ValueError, match="period_ns must be >= 1"):
        offset_ns(1, period_ns)
    for wrong in (1.0, True, "1"):
        with pytest.raises(TypeError, match="period_ns must be an integer"):
            offset_ns(1, wrong)


def test_smallest_period_has_one_place():
    """A nanosecond cannot be divided, so that a period of one nanosecond or less has a single place."""
    assert 0 == offset("a", 1e-9) == offset("a", 1e-12)
