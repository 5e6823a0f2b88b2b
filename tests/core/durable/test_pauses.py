"""What a pause covers, and when it ends; random programs with pauses are in ``stores/tasks``."""

from ratelimited_executor._core.durable.pauses import ENDED, KEPT_US, Pause, Pauses, pause_of, pause_rows
from ratelimited_executor._core.durable.table import TaskTable

NOW = 10**15


def test_pause_covers_what_has_all_that_it_names():
    """A pause covers the tasks that have all that it names, and a lane or key that is not there is not covered."""
    task = ("f", "mail", "l", '"k"')
    for pause in (Pause("f"), Pause("f", "mail"), Pause(lane="l"), Pause("f", "mail", "l", '"k"')):
        assert pause.covers(*task)
        assert pause == Pause(*pause_of(pause_rows([(pause.text, NOW, None)], NOW)[0]))
    for pause in (Pause("g"), Pause("f", "other"), Pause(lane="m", key='"k"'), Pause(key="7")):
        assert not pause.covers(*task)
    assert not Pause(lane="l").covers("f", "mail", None, None)


def test_pause_is_over_at_its_end_and_known_for_a_while():
    """A pause is in force before its end, and is known for a minute after that, or after it was ended, whatever the clock."""
    text = Pause("f").text
    for since_us, until_us, now_us, ended in (
        (NOW, None, NOW + 10**12, []),
        (NOW, NOW + 1, NOW, []),
        (NOW, NOW + 1, NOW + 1, [(text, False)]),
        (NOW, NOW + 1, NOW + 1 + KEPT_US, [(text, True)]),
        (NOW, ENDED, NOW - 10**12, [(text, False)]),
        (NOW, ENDED, NOW + KEPT_US - 1, [(text, False)]),
        (NOW, ENDED, NOW + KEPT_US, [(text, True)]),
    ):
        pauses = Pauses([(text, since_us, until_us)], now_us)
        assert ended == pauses.ended
        assert ("" if ended else text) == pauses.holding("f", "mail", None, None)
        assert (not ended) == bool(pause_rows([(text, since_us, until_us)], now_us))


def test_resume_of_what_is_not_paused_leaves_nothing():
    """A resume without a pause keeps no row, however many there are."""
    table = TaskTable()
    assert not table.resume(0, Pause(function="f"))
    table.pause(0, Pause(lane="l"), 5)
    assert table.resume(4, Pause(lane="l"))
    assert not table.resume(4, Pause(lane="l"))
    assert [Pause(lane="l").text] == list(table._pauses)


def test_only_a_pause_of_a_whole_queue_stops_it():
    """A queue is stopped by a pause that names it alone."""
    rows = [(pause.text, NOW, None) for pause in (Pause(queue="a"), Pause("f", "b"), Pause(lane="l"))]
    pauses = Pauses(rows, NOW)
    assert [True, False, False] == [pauses.stops(queue) for queue in ("a", "b", "c")]
    assert Pause("f", "b").text == pauses.holding("f", "b", "l", None)  # of two, always the same
