"""Choices: drawn from a seed or given, counted by point, and written as a text that repeats them."""

import pytest
from hypothesis import given, strategies

from ratelimited_executor.testing.choices import (
    ChoiceKind,
    Choices,
    Deviation,
    DrawnPicks,
    GivenPicks,
    format_replay,
    parse_replay,
)

from ..helpers import examples

OPTIONS = ("none", "refused", "lost")


def _choose(choices: Choices, count: int = 50, kind: ChoiceKind = ChoiceKind.FAULT) -> list[int]:
    return [choices.choose(kind, point, OPTIONS) for _ in range(count) for point in ("bank", "mail")]


@given(seed=strategies.integers(0, 10**9))
@examples(50)
def test_a_seed_gives_the_same_choices_each_time(seed: int) -> None:
    """Equal seeds make equal choices, and giving the deviations of a run makes the choices of that run."""
    drawn = Choices(DrawnPicks(seed))
    made = _choose(drawn)
    given_again = Choices(GivenPicks(drawn.deviations))

    assert made == _choose(Choices(DrawnPicks(seed)))
    assert made == _choose(given_again)
    assert drawn.deviations == given_again.deviations


def test_a_deviation_is_found_by_its_point_and_number() -> None:
    """A deviation that is left out does not move the others."""
    choices = Choices(GivenPicks([Deviation("mail", 3, "lost")]))

    _choose(choices, 5)

    assert [Deviation("mail", 3, "lost")] == choices.deviations
    assert ("none", "refused") == choices.deviations[0].simpler


def test_an_option_that_is_not_there_is_not_taken() -> None:
    """A given value that is no option here is the ordinary one, and no deviation."""
    choices = Choices(GivenPicks([Deviation("mail", 1, "exploded")]))

    assert [0, 0] == _choose(choices, 1)
    assert [] == choices.deviations


def test_faults_are_rare_and_inputs_are_not() -> None:
    """Over many seeds, most choices of a fault are ordinary, each fault happens, and inputs are even."""
    faults, inputs = [0, 0, 0], [0, 0, 0]
    for seed in range(300):
        for index in _choose(Choices(DrawnPicks(seed)), 10):
            faults[index] += 1
        for index in _choose(Choices(DrawnPicks(seed)), 10, ChoiceKind.INPUT):
            inputs[index] += 1

    assert faults[0] > 0.8 * sum(faults)
    assert min(faults) > 100
    assert min(inputs) > 0.3 * sum(inputs)


def test_some_runs_have_no_fault_and_some_have_many() -> None:
    """The number of faults differs widely between runs, from none to a quarter of all choices."""
    counts = [len([index for index in _choose(Choices(DrawnPicks(seed))) if index]) for seed in range(200)]

    assert counts.count(0) > 20
    assert sum(1 for count in counts if 1 <= count <= 3) > 20
    assert max(counts) > 25


def test_ordinary_choices_deviate_no_more() -> None:
    """After the end of a run, every choice takes its first option, and none is counted."""
    choices = Choices(GivenPicks([Deviation("mail", number, "lost") for number in range(1, 9)]))
    choices.choose(ChoiceKind.FAULT, "mail", OPTIONS)
    choices.is_ordinary = True

    assert 0 == choices.choose(ChoiceKind.FAULT, "mail", OPTIONS)
    assert {"none": 0, "refused": 0, "lost": 1} == choices.counts[ChoiceKind.FAULT, "mail"]


def test_one_option_is_no_choice() -> None:
    """A choice with a single option is not counted, so that the numbers of others stay."""
    choices = Choices(DrawnPicks(1))

    assert 0 == choices.choose(ChoiceKind.INPUT, "only", ["this"])
    assert {} == choices.counts


def test_replay_is_read_as_it_was_written() -> None:
    """A text names the seed and each deviation; reading it gives them back."""
    deviations = [Deviation("bank.charge", 2, "reply lost"), Deviation("cancel a: b #1", 12, "as it goes on")]
    text = format_replay(7, deviations)

    assert "seed 7; bank.charge #2: reply lost; cancel a: b #1 #12: as it goes on" == text
    assert (7, deviations) == parse_replay(text)
    assert (0, []) == parse_replay("seed 0")
    assert (-3, [Deviation("input", 1, "'issue #2: broken'")]) == parse_replay("seed -3; input #1: 'issue #2: broken'")


@pytest.mark.parametrize("text", ["", "7", "seed x", "seed 1; bank", "seed 1; bank #0: lost", "seed 1;"])
def test_replay_of_another_form_is_refused(text: str) -> None:
    """A text that is no replay is an error that shows the form."""
    with pytest.raises(ValueError, match="replay must look like 'seed 7; "):
        parse_replay(text)
