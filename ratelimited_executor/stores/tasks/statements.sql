-- The statements that ``moves.py`` asks for. Arguments are $1, $2, ... in the order in which they first appear.

-- name: delete_ended_before
delete from durable_tasks where id = $1 and exists (select 1 from durable_ended where durable_ended.id = durable_tasks.id)
returning id

-- name: lock_lane
insert into durable_lanes (lane, last_place_us) values ($1, $2)
on conflict (lane) do update set last_place_us =
    case when excluded.last_place_us > durable_lanes.last_place_us
    then excluded.last_place_us else durable_lanes.last_place_us end
returning lane, last_place_us

-- name: lock_unique
insert into durable_unique ("key") values ($1) on conflict ("key") do update set "key" = excluded."key" returning "key"

-- name: holder
select durable_unique."key", durable_unique.id, until_us,
    case when exists (select 1 from durable_ended where durable_ended.id = durable_unique.id) then 1 else 0 end,
    number, state, lane, put_us, attempt_count, is_cancelled, expires_us
from durable_unique left join durable_tasks on durable_tasks.id = durable_unique.id
where durable_unique."key" = $1

-- name: set_unique
insert into durable_unique ("key", id, until_us) values ($1, $2, $3)
on conflict ("key") do update set id = excluded.id, until_us = excluded.until_us

-- name: change
update durable_tasks set body = $1, saved = null, cost = $2, priority = case when priority < $3 then $3 else priority end
where number = $4 and state in (0, 1, 2, 4) returning number

-- name: postpone
update durable_tasks set due_us = $1, expires_us = $1 + span_us, was_due = $2, place_us = $3, state = $4
where number = $5 and state in (0, 1, 2)

-- name: stale_unique
select "key", id from (select "key", id, until_us from durable_unique where "key" > $1 order by "key" limit $2) as sample
where until_us <= $3 and not exists (select 1 from durable_tasks where durable_tasks.id = sample.id)

-- name: forget_unique
delete from durable_unique
where "key" = $1 and id = $2 and not exists (select 1 from durable_tasks where durable_tasks.id = $2)

-- name: drop_lane
delete from durable_lanes where lane = $1

-- name: head
select lane, number, state, is_blocking, attempt_count, place_us from durable_tasks
where lane = $1 and lane is not null and state <> 2 and (state <> 5 or is_blocking = 1)

-- name: first_behind
select lane, number, due_us, was_due, place_us from durable_tasks
where lane = $1 and state = 2 order by place_us, number limit 1

-- name: move
update durable_tasks set state = $1 where number = $2 and state = $3 returning lane

-- name: join
insert into durable_owners (owner, lease_us, seen_us)
values ($1, $2, (select vouched_us from durable_clock))
on conflict (owner) do update set lease_us = excluded.lease_us, seen_us = excluded.seen_us

-- name: join_again
update durable_owners set lease_us = $1, seen_us = (select vouched_us from durable_clock) where owner = $2 returning owner

-- name: set_clock
update durable_clock set vouched_us = $1, beat_us = $2

-- name: renew
update durable_owners set seen_us = $1 where owner = $2 returning owner

-- name: drop_owner
delete from durable_owners where owner = $1 returning owner

-- name: forget_ended
delete from durable_ended where ended_us <= $1

-- name: cancelled_of
select number, token, lane from durable_tasks where state = 3 and is_cancelled = 1 and owner = $1 order by number

-- name: count_claimed
select count(*) from durable_tasks where state = 3 and owner = $1

-- name: give_back
-- 1 if they are lost; the first loss counts always, further ones if a start was recorded
update durable_tasks set
    state = 1, owner = null, lost_count = lost_count + case when lost_count = 0 or started_token = token then $1 else 0 end
where state = 3 and is_cancelled = 0 and owner = $2

-- name: expired
select number, id, lane, is_named from durable_tasks
where state = 1 and expires_us is not null and expires_us <= $1 order by expires_us limit $2

-- name: delete_expired
delete from durable_tasks where number = $1 and state = 1 and expires_us <= $2 returning number

-- name: next_due
select min(due_us) from durable_tasks where queue = $1 and state = 0 and lane is null and due_us >= $2

-- name: next_head_due
select min(due_us) from durable_tasks where queue = $1 and state = 0 and lane is not null and due_us >= $2

-- name: level
-- the next lower priority
select max(priority) from durable_tasks where queue = $1 and state = 1 and priority < $2

-- name: lanes_of_ids
select lane from durable_tasks where id = $1 and lane is not null

-- name: end_cancelled
delete from durable_tasks where number = $1 and token = $2 and state = 3 and is_cancelled = 1
returning number, token

-- name: start
update durable_tasks set started_token = token where number = $1 and token = $2 and state = 3
returning number, token

-- name: put_aside
update durable_tasks set state = $1, owner = null where number = $2 and token = $3 and state = 3
returning number, token

-- name: retry
update durable_tasks set
    attempt_count = attempt_count + 1, owner = null, was_due = 0,
    error = $1, due_us = $2, place_us = $2, expires_us = $2 + span_us,
    state = case when lane is not null and is_blocking = 0 then 2 when $2 <= $3 then 1 else 0 end
where number = $4 and token = $5 and state = 3
returning number, token

-- name: snooze
-- one that blocks keeps its lane
update durable_tasks set
    owner = null, was_due = 0, due_us = $1, expires_us = $1 + span_us,
    place_us = case when is_blocking = 1 then 0 else $1 end,
    state = case when lane is not null and is_blocking = 0 then 2 when $1 <= $2 then 1 else 0 end
where number = $3 and token = $4 and state = 3
returning number, token

-- name: bury
update durable_tasks set attempt_count = attempt_count + 1, owner = null, error = $1, state = 5
where number = $2 and token = $3 and state = 3
returning number, token

-- name: state_of
select id, state, lane, is_blocking, version, token, due_us from durable_tasks where id = $1

-- name: cancel_claimed
update durable_tasks set is_cancelled = 1 where id = $1 and state = 3 returning id

-- name: cancel
delete from durable_tasks where id = $1 and state = $2 and token = $3 returning id

-- name: ended
-- one that has not ended has a state, and neither a run nor an end
select number, id, queue, name, version, case when version < 0 then '6' else cast(state as text) end, attempt_count, null, null, null, null
from durable_tasks where id = $1
union all
select number, id, queue, name, version, ending, attempt_count, run_us, ended_us, result, error from durable_history
where id = $1 and not exists (select 1 from durable_tasks where durable_tasks.id = $1)

-- name: history
select number, id, queue, name, version, ending, attempt_count, run_us, ended_us, result, error from durable_history
where number < $1 order by number desc limit $2

-- name: forget_history
delete from durable_history where number in (
    select number from durable_history where until_us <= $1 order by until_us, number limit $2
)

-- name: requeue
update durable_tasks set
    attempt_count = 0, lost_count = 0, was_due = 1,
    due_us = $1, expires_us = $1 + span_us, place_us = $2, state = $3
where id = $4 and state = 5
returning id

-- name: revive
update durable_tasks set state = 1 where state = 4 and queue = $1 and name = $2 and version = $3 returning number

-- name: set_pause
insert into durable_pauses (what, since_us, until_us) values ($1, $2, $3)
on conflict (what) do update set since_us = excluded.since_us, until_us = excluded.until_us

-- name: pauses
select what, since_us, until_us from durable_pauses

-- name: forget_pause
delete from durable_pauses where what = $1 and until_us <= $2
    and not exists (select 1 from durable_tasks where state = 4 and version < 0 and owner = $1)

-- name: declare
update durable_repetitions set
    owner = $1, since_us = $2, spec = $3, queue = $4, function = $5, schedule = $6, last_spec = $7, last_id = $8, last_due_us = $9,
    placed_us = $10, definition = $11, is_saved = $12, until_us = $13, changed_us = $14
where name = $15

-- name: forget
delete from durable_repetitions where name = $1 returning name, last_id, last_due_us, definition

-- name: repetitions
select name,
    case when exists (select 1 from durable_owners where durable_owners.owner = durable_repetitions.owner) then 1 else 0 end,
    case when exists (
        select 1 from durable_tasks
        where durable_tasks.id = durable_repetitions.last_id and (token = 0 or (state = 4 and version >= 0))
    ) then 1 else 0 end,
    owner, since_us, spec, queue, function, schedule, last_spec, last_id, last_due_us, placed_us, definition, is_saved, until_us, changed_us
from durable_repetitions order by name

-- name: changed_repetitions
select name, case when is_saved = 1 then definition else '' end, changed_us from durable_repetitions
where queue = $1 and changed_us > 0 order by name

-- name: find
select $task from durable_tasks where id = $1

-- name: rows
-- after a number; `newest_rows` and its like, derived from these, list those before a number from the last on
select $task from durable_tasks where number > $1 order by number limit $3

-- name: rows_in_state
select $task from durable_tasks where number > $1 and state = $4 order by number limit $3

-- name: rows_claimed
select $task from durable_tasks where state = 3 and number > $1 order by number limit $3

-- name: rows_behind
select $task from durable_tasks where state = 2 and number > $1 order by number limit $3

-- name: rows_unknown
select $task from durable_tasks where state = 4 and version >= 0 and number > $1 order by number limit $3

-- name: rows_paused
select $task from durable_tasks where state = 4 and version < 0 and number > $1 order by number limit $3

-- name: rows_dead
select $task from durable_tasks where state = 5 and number > $1 order by number limit $3

-- name: lanes
select behind.lane, count(*), min(head.id), min(case when head.version < 0 then 6 else head.state end)
from durable_tasks as behind
join durable_tasks as head
    on head.lane = behind.lane and head.lane is not null and head.state <> 2 and (head.state <> 5 or head.is_blocking = 1)
where behind.state = 2
group by behind.lane order by count(*) desc, behind.lane limit $1

-- name: count
-- each by the index of its state
select 0, (select count(*) from durable_tasks where state = 0 and lane is null)
    + (select count(*) from durable_tasks where state = 0 and lane is not null)
union all select 1, (select count(*) from durable_tasks where state = 1)
union all select 2, (select count(*) from durable_tasks where state = 2)
union all select 3, (select count(*) from durable_tasks where state = 3)
union all select 4, (select count(*) from durable_tasks where state = 4 and version >= 0)
union all select 5, (select count(*) from durable_tasks where state = 5)
union all select 6, (select count(*) from durable_tasks where state = 4 and version < 0)

-- name: backlog
-- each by the index of its state
select queue, name, 1, count(*), min(due_us) from durable_tasks where state = 1 group by queue, name
union all select queue, name, 2, count(*), min(due_us) from durable_tasks where state = 2 group by queue, name
union all select queue, name, 5, count(*), min(due_us) from durable_tasks where state = 5 group by queue, name
union all select queue, name, 6, count(*), min(due_us) from durable_tasks where state = 4 and version < 0 group by queue, name

-- name: latencies
-- the least due time of each queue that is past; from each queue and priority to the next by the indexes, however many tasks each has
with recursive ready (queue) as (
    select min(queue) from durable_tasks where state = 1
    union all
    select (select min(queue) from durable_tasks where state = 1 and queue > ready.queue) from ready where queue is not null
), scheduled (queue) as (
    select min(queue) from durable_tasks where state = 0 and lane is null
    union all
    select (select min(queue) from durable_tasks where state = 0 and lane is null and queue > scheduled.queue)
    from scheduled where queue is not null
), heads (queue) as (
    select min(queue) from durable_tasks where state = 0 and lane is not null
    union all
    select (select min(queue) from durable_tasks where state = 0 and lane is not null and queue > heads.queue)
    from heads where queue is not null
), levels (queue, priority, place) as (
    select queue, (select max(priority) from durable_tasks where durable_tasks.queue = ready.queue and state = 1), 1 from ready where queue is not null
    union all
    select queue, (
        select max(priority) from durable_tasks
        where durable_tasks.queue = levels.queue and state = 1 and durable_tasks.priority < levels.priority
    ), place + 1
    from levels where priority is not null and place < $2
), firsts (queue, due_us) as (
    select queue, (
        select min(due_us) from durable_tasks
        where durable_tasks.queue = levels.queue and state = 1 and durable_tasks.priority = levels.priority
    )
    from levels where priority is not null
    union all
    select queue, (select min(due_us) from durable_tasks where durable_tasks.queue = scheduled.queue and state = 0 and lane is null)
    from scheduled where queue is not null
    union all
    select queue, (select min(due_us) from durable_tasks where durable_tasks.queue = heads.queue and state = 0 and lane is not null)
    from heads where queue is not null
)
select queue, min(due_us) from firsts where due_us <= $1 group by queue order by queue
