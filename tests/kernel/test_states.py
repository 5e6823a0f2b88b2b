"""The states of a task: the table of transitions."""

from ratelimited_executor._kernel.states import FINAL_STATES, TRANSITIONS, TaskState


def test_every_state_has_its_transitions_and_final_ones_have_none():
    """All five final states can be reached, and have no transitions."""
    assert set(TaskState) == set(TRANSITIONS)
    assert 5 == len(FINAL_STATES)
    assert all(not TRANSITIONS[state] for state in FINAL_STATES)
    reached = set().union(*TRANSITIONS.values())
    assert reached == set(TaskState)  # also waiting, again, for another attempt
    assert "TaskState.DONE" == repr(TaskState.DONE)
