"""Annotated arguments arrive as what they were; wrong ones are refused at the put, and JSON stays as it is."""

import asyncio
import pickle
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, NewType, Optional
from uuid import UUID

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._core.durable.tasks import NewTask
from ratelimited_executor.durable import DurableState, DurableTasks, JSONCodec, MemoryStore
from ratelimited_executor.typing import DurationLike

NOON = datetime(2026, 3, 4, 12, tzinfo=timezone(timedelta(hours=2)))
ID = UUID(int=7)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Strange(Enum):
    PAIR = (1, 2)


@dataclass
class Line:
    """A class with fields."""

    price: Decimal
    count: int = 1


@dataclass(frozen=True)
class Order:
    """A class that contains others, and itself."""

    number: int
    lines: list[Line]
    when: "datetime | None" = None
    parts: "tuple[Order, ...]" = ()
    total: Decimal = field(init=False, default=Decimal(0))


Id = NewType("Id", UUID)


async def arrived(function_of, *args, **kwargs) -> list[Any]:
    """Put a call and run it; return the arguments that arrived."""
    tasks = DurableTasks(MemoryStore())
    ran: list[Any] = []
    function = tasks.task(name="f")(function_of(ran))
    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        await function.put(*args, **kwargs)
        await asyncio.sleep(1)
        assert [] == await tasks.rows()
    return ran


@pytest.mark.parametrize(("hint", "value"), [
    (datetime, NOON), (datetime, datetime(2026, 1, 2)), (date, date(2026, 1, 2)), (UUID, ID), (Id, ID),  # noqa: DTZ001  # naive
    (Decimal, Decimal("1.10")), (Colour, Colour.RED), (Level, Level.HIGH), (Annotated[UUID, "id"], ID),
    (Optional[date], None), (date | None, date(2026, 1, 2)), (set[int], {3, 1}), (frozenset[UUID], frozenset([ID])),
    (tuple[UUID, int], (ID, 1)), (tuple[date, ...], (date(2026, 1, 2),) * 3), (list[Colour], [Colour.RED]),
    (dict[str, set[Decimal]], {"a": {Decimal(1)}}), (Line, Line(Decimal("0.1"), 2)),
    (Order, Order(1, [Line(Decimal(2))], NOON, (Order(2, []),))), (set, {1, 2}), (tuple[tuple[UUID, str], ...], ((ID, "x"),)),
])  # fmt: skip
async def test_an_argument_arrives_as_it_was(virtual_clock, hint, value):
    """A value of a known type has the same type and value in the run, by position and by name, and among many."""

    def function_of(ran):
        def fn(first, second, *rest, **others):
            ran.extend([first, second, *rest, *others.values()])

        fn.__annotations__ = {"first": hint, "second": hint, "rest": hint, "others": hint}
        return fn

    ran = await arrived(function_of, value, value, value, value, name=value)
    assert [value] * 5 == ran
    assert [type(value)] * 5 == [*map(type, ran)]


def bodies(function, *args, **kwargs) -> bytes:
    """Return the encoded arguments."""
    return function.new(*args, **kwargs).body


def test_json_stays_byte_for_byte():
    """Arguments of JSON are written as before, whatever else the function takes; typed ones are marked."""
    tasks = DurableTasks(MemoryStore())

    @tasks.task
    def fn(
        a: int,
        b: list[str],
        c: tuple[int, ...] = (),
        d: dict[str, Any] | None = None,
        e: date | str = "",
        when: datetime | None = None,
    ): ...

    assert b'[[1,["x"],[2]],{"d":{"y":null},"e":"z"}]' == bodies(fn, 1, ["x"], (2,), d={"y": None}, e="z")
    assert b'[[1,[]],{"when":"2026-03-04T12:00:00+02:00"},["when"]]' == bodies(fn, 1, [], when=NOON)

    @tasks.task
    def of_sets(a: set[str]): ...

    assert b'[[["a","b","c","d"]],{},[0]]' == bodies(of_sets, {"d", "b", "a", "c"})


async def test_tasks_of_earlier_releases_run_as_they_did(virtual_clock):
    """A stored task without the mark is run with what was stored, although the annotations now name other types."""
    tasks = DurableTasks(MemoryStore())
    ran = []

    @tasks.task
    def fn(when: datetime, colour: Colour):
        ran.append((when, colour))

    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        await tasks.put(NewTask(id="a", name="fn", body=b'[["noon"],{"colour":"red"}]'))
        await asyncio.sleep(1)
    assert [("noon", "red")] == ran


@pytest.mark.parametrize(("hint", "value", "error"), [
    (datetime, "noon", "a must be of the class datetime, as it is annotated, got 'noon'"),
    (datetime, None, "a must be of the class datetime"),
    (date, NOON, "a must be of the class date"),
    (Decimal, 1.5, "a must be of the class Decimal"),
    (Colour, "red", "a must be of the class Colour"),
    (Line, {"price": "1"}, "a must be of the class Line"),
    (Line, Line("1"), r"a.price must be of the class Decimal"),
    (list[Line], [Line(Decimal(1)), 2], "a must be of the class Line"),
    (tuple[UUID, UUID], (ID,), "a must have 2 items, got 1"),
    (set[int], [1], "a must be of the class set"),
    (set[object], {object()}, "object"),
    (dict[str, UUID], [1], "a must be of the class dict"),
    (Strange, Strange.PAIR, "not a valid Strange"),
    (date | str, date(2026, 1, 2), "date"),
    ("Missing", NOON, "the annotation of a names what cannot be found"),
])  # fmt: skip
def test_a_wrong_argument_is_refused_at_the_put(hint, value, error):
    """What is not of its type, or could not be read again, is an error of the put that names the argument."""

    def fn(a): ...

    fn.__annotations__ = {"a": hint}
    function = DurableTasks(MemoryStore()).task(fn)
    with pytest.raises((TypeError, ValueError), match=f"the arguments of fn cannot be encoded: .*{error}"):
        function.new(value)


def test_an_argument_that_cannot_be_encoded_is_named():
    """The error of an argument that is not of JSON names its parameter, also beside typed ones, in a list and by position."""

    def fn(when: datetime, wait: DurationLike = 1, *rest, **others): ...

    function = DurableTasks(MemoryStore()).task(fn)
    for args, kwargs, name in (
        ((NOON, 1, {2}), {}, "rest"),
        ((NOON,), {"more": {1: 2}}, "more"),
        ((NOON, timedelta(1)), {}, "wait"),
    ):
        with pytest.raises(TypeError, match=f"the arguments of fn cannot be encoded: {name}: ") as caught:
            function.new(*args, **kwargs)
        assert "annotation" not in str(caught.value)


def test_none_is_taken_where_it_is_the_default():
    """A parameter whose default is None may be None."""

    def fn(a: datetime = None): ...  # type: ignore[assignment]  # the old way to write it

    assert b"[[null],{},[0]]" == DurableTasks(MemoryStore()).task(fn).new(None).body


async def test_a_local_class_is_found_where_the_function_uses_it(virtual_clock):
    """An annotation in quotes may name a class of the function around, which the function uses."""

    @dataclass
    class Local:
        a: int

    def function_of(ran):
        def fn(x: "Local"):
            ran.append(type(x) is Local)

        return fn

    assert [True] == await arrived(function_of, Local(1))


def test_a_variable_around_may_have_no_value_yet():
    """A function that uses a variable of the function around, to which nothing has been assigned, takes typed arguments."""

    def fn(a: datetime):
        return later(a)

    function = DurableTasks(MemoryStore()).task(fn)
    assert b'[["2026-03-04T12:00:00+02:00"],{},[0]]' == function.new(NOON).body
    later = str
    assert str(NOON) == function(NOON)


async def test_another_codec_has_its_say(virtual_clock):
    """A codec that is not of JSON gets the arguments as they are; a subclass of JSONCodec gets converted ones."""
    given = []

    class Pickle:
        def dumps(self, arguments):
            given.append(arguments)
            return pickle.dumps(arguments)

        loads = staticmethod(pickle.loads)

    class Reversed(JSONCodec):
        def dumps(self, arguments):
            return super().dumps(arguments)[::-1]

        def loads(self, body):
            return super().loads(body[::-1])

    for codec in (Pickle(), Reversed()):
        tasks = DurableTasks(MemoryStore(), codec=codec)
        ran: list[Any] = []
        function = tasks.task(name="f")(_noting(ran))
        async with RateLimitedExecutor("x") as executor, tasks.running(executor):
            await function.put(NOON)
            await asyncio.sleep(1)
        assert [NOON] == ran
    assert [[(NOON,), {}]] == given


async def test_a_codec_that_encodes_anew_each_time_repeats(virtual_clock):
    """An encrypting codec writes the same arguments otherwise each time: occurrences still run once each, as declared."""

    class Salted(JSONCodec):
        count = 0

        def dumps(self, arguments):
            self.count += 1
            return f"{self.count:9}".encode() + super().dumps(arguments)

        def loads(self, body):
            return super().loads(body[9:])

    store, ran = MemoryStore(), list[Any]()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            tasks = DurableTasks(store, codec=Salted(), lease=6)
            tasks.repeat(tasks.task(name="f")(_noting(ran)), NOON, period=60)
            executor = await stack.enter_async_context(RateLimitedExecutor("x"))
            await stack.enter_async_context(tasks.running(executor))
        await asyncio.sleep(600)
    assert [NOON] * 10 == ran


def _noting(ran):
    def fn(when: datetime):
        ran.append(when)

    return fn


async def test_what_can_no_longer_be_read_is_a_dead_letter(virtual_clock):
    """A typed argument whose parameter has changed its type is reported, and the task is kept."""
    store = MemoryStore()
    old, new = DurableTasks(store), DurableTasks(store)

    @old.task(name="f")
    def before(a: datetime): ...

    @new.task(name="f")
    def after(a: int): ...

    async with RateLimitedExecutor("x") as executor, new.running(executor):
        async with old:
            await before.put(datetime.now(UTC))
        await asyncio.sleep(1)
        [row] = await new.rows(DurableState.DEAD)
    assert "its arguments cannot be read" in row.error
    assert "a was put as an object" in row.error


async def test_models_of_pydantic(virtual_clock):
    """A model is written by itself, with its aliases, and read again, also within other types."""
    pydantic = pytest.importorskip("pydantic")

    class Item(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        name: str = pydantic.Field(alias="itemName")
        when: datetime
        price: Decimal

    item = Item(itemName="a", when=NOON, price=Decimal("1.10"))

    def function_of(ran):
        def fn(one: Item, many: list[Item]):
            ran.extend([one, *many])

        return fn

    assert [item] * 3 == await arrived(function_of, item, [item, item])
    broken = Item.model_construct(name=7, when="noon")
    with pytest.raises((TypeError, ValueError), match="the arguments of fn cannot be encoded"):
        DurableTasks(MemoryStore()).task(function_of([])).new(broken, [])
    with pytest.raises(TypeError, match="one must be of the class Item"):
        DurableTasks(MemoryStore()).task(function_of([])).new({"itemName": "a"}, [])


def test_values_of_json_are_read_as_arguments():
    """``from_json`` reads what a put has written, by position or name, and leaves alone what JSON has."""

    def fn(when: datetime, *lines: Line, what: str = "", colour: Colour = Colour.RED, **rest: Decimal): ...

    fn = DurableTasks(MemoryStore()).task(fn)
    assert NOON == fn.from_json(0, NOON.isoformat()) == fn.from_json("when", NOON.isoformat())
    assert Line(Decimal("1.5"), 2) == fn.from_json(3, {"price": "1.5", "count": 2})
    assert ("x", Colour.RED, Decimal(1)) == (
        fn.from_json("what", "x"),
        fn.from_json("colour", "red"),
        fn.from_json("a", "1"),
    )
    assert [7] == DurableTasks(MemoryStore()).task(name="f")(lambda *, a: a).from_json(0, [7])
    with pytest.raises(ValueError, match="green"):
        fn.from_json("colour", "green")


async def test_structs_of_msgspec(virtual_clock):
    """A struct is written and read by msgspec."""
    msgspec = pytest.importorskip("msgspec")
    Item = msgspec.defstruct("Item", [("name", str), ("when", datetime), ("data", bytes)])  # noqa: N806  # a class
    item = Item("a", NOON, b"\0")

    def function_of(ran):
        def fn(one: Item, many: dict[str, Item]):
            ran.extend([one, *many.values()])

        return fn

    assert [item] * 2 == await arrived(function_of, item, {"a": item})
    with pytest.raises((TypeError, ValueError), match="the arguments of fn cannot be encoded"):
        DurableTasks(MemoryStore()).task(function_of([])).new(Item(7, NOON, b""), {})
