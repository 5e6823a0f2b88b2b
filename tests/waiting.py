"""The waiting tasks of a queue, once by its counters and once by looking at each."""

from ratelimited_executor._kernel.buckets import RECORD


def live_count(queue) -> int:
    """Count the waiting tasks of a queue, by its counters."""
    return count_in_calendar(queue.on_time) + count_in_calendar(queue.spread) + count_on_wall(queue.wall)


def walk(queue):
    """Walk every waiting task of a queue, by looking at each: (source, position) or (None, record)."""
    yield from walk_calendar(queue.on_time)
    yield from walk_calendar(queue.spread)
    yield from walk_wall(queue.wall)
    for _, old in queue.rekeying:
        yield from (entry for entry in old.walk() if entry[0] is None)


def count_in_calendar(calendar) -> int:
    """Count the tasks waiting in a calendar, by the counters of its buckets."""
    buckets = sum(bucket.live for bucket in calendar.future.values())
    batches = sum(source.live - source.opened_live for source in calendar.batches)
    return calendar.opened_count + buckets + batches


def walk_calendar(calendar):
    """Walk every task waiting in a calendar."""
    for bucket in calendar.buckets():
        for position in bucket.positions():
            if bucket.args[position] is RECORD:
                yield None, bucket.calls[position]
            else:
                yield bucket, position
    yield from (entry for entry in calendar.ready.walk() if entry[0] is None)
    for source in calendar.batches:
        for _ in range(source.live):
            yield source, -1


def count_on_wall(wheel) -> int:
    """Count the tasks due by the wall clock, by the counters of their buckets and batches."""
    return sum(bucket.live for bucket in wheel.buckets()) + sum(source.live for source in wheel.batches())


def walk_wall(wheel):
    """Walk every task due by the wall clock."""
    for bucket in wheel.buckets():
        for position in bucket.positions():
            yield None, bucket.calls[position]
    for source in wheel.batches():
        for position in range(source.live):
            yield source, position
