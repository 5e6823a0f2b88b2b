"""Values of durable tasks: states, keys and errors as people see them."""

import pytest

from ratelimited_executor._core.durable.table import TaskTable
from ratelimited_executor._core.durable.tasks import Claim, DurableState, End, NewTask, TaskOutcome
from ratelimited_executor._runtime.durable.outcomes import failure_of


def row_with(error="", key=None):
    """Return the row of a dead letter."""
    table = TaskTable()
    table.put(0, [NewTask(id="x", name="f", key=key)])
    table.join(0, "a", 1_000_000)
    [task] = table.claim(0, Claim(owner="a", count=1)).tasks
    table.finish(0, [TaskOutcome(task.ref, End.DEAD, error=error)])
    [row] = table.find(["x"])
    return row


def failure(raise_it):
    """Return the text that a dead letter keeps of an error."""
    try:
        raise_it()
    except Exception as error:
        return failure_of(error)


def raised(error):
    raise error


def chained():
    try:
        raised(KeyError("cause"))
    except KeyError:
        raise ValueError("of this kind\n  more: of it\nTypeError: quoted") from None


def deep(number=60):
    return deep(number - 1) if number else raised(LookupError("x" * 5000 + "\nsecond line"))


@pytest.mark.parametrize(
    ("raise_it", "line"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (chained, "ValueError: of this kind"),
        (lambda: raised(RuntimeError()), "RuntimeError"),
        (lambda: compile("a b", "x", "exec"), "SyntaxError: invalid syntax"),
        (lambda: raised(ExceptionGroup("several", [ValueError(1), KeyError(2)])), "ExceptionGroup: several (2 sub-exceptions)"),
        (deep, "LookupError: " + "x" * 487),
    ],
)  # fmt: skip
def test_error_line_is_type_and_first_line_of_the_message(raise_it, line):
    """The line that lists show has the exception's type and the first line of its message, also of a long traceback."""
    text = failure(raise_it)
    assert len(text) <= 4000
    assert line == row_with(text).error_line


def test_error_line_of_what_is_no_traceback():
    """An error in other words is shown by its first line; without an error there is none."""
    assert "6 processes were lost" == row_with("6 processes were lost\nreally").error_line
    assert "" == row_with().error_line


def test_long_traceback_keeps_its_end():
    """A long traceback keeps the exception and its end, whatever was cut in between."""

    def long():
        raise ValueError("start " + "x" * 10_000 + " end")

    text = failure(long)
    assert text.startswith("ValueError: start x")
    assert text.endswith("x end")


@pytest.mark.parametrize("state", DurableState)
def test_state_is_true_and_prints_as_its_name(state):
    """Every state is true, so that it cannot be taken for the None of a task that is gone, and prints as its name."""
    assert state
    assert f"DurableState.{state.name}" == str(state) == f"{state}" == f"{state!s}"
    assert state is DurableState(state.value)


@pytest.mark.parametrize(("text", "key"), [(None, None), ('"ann"', "ann"), ("7", 7)])
def test_row_has_the_key_as_it_was_given(text, key):
    """A row shows the key that the user gave, not its encoding."""
    assert key == row_with(key=text).key
