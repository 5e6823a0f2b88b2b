-- What SQLite says in its own way. Lists are JSON, and so are the rows of what may concern many tasks, as one row: the driver
-- takes Python's lock for each row, which a busy event loop gives up every few milliseconds only. Of $rows all are bound at once.

-- name: last_number
select coalesce((select seq from sqlite_sequence where name = 'durable_tasks'), 0)

-- name: put
-- the last number before; the ids of those that are new
insert into durable_tasks (
    id, queue, name, version, state, put_us, due_us, span_us, expires_us, was_due, place_us, priority, lane, is_blocking,
    "key", cost, is_named, body
) values $rows
on conflict (id) do nothing;
select json_group_array(id) from durable_tasks where number > $1

-- name: lanes_of_numbers
select distinct lane from durable_tasks
where lane is not null and number in (select value ->> 0 from json_each($1))

-- name: end
-- a list of [number, token]; those of them that were in force, as [number, token, id, is named, is cancelled]
select json_group_array(json_array(number, token, id, is_named, is_cancelled)) from durable_tasks
where state = 3 and (number, token) in (select value ->> 0, value ->> 1 from json_each($1));
delete from durable_tasks
where state = 3 and (number, token) in (select value ->> 0, value ->> 1 from json_each($1))

-- name: save
with given (number, token, saved) as (values $rows)
update durable_tasks set saved = given.saved from given
where durable_tasks.number = given.number and durable_tasks.token = given.token and state = 3

-- name: keep
insert or replace into durable_history (
    id, queue, name, version, ending, attempt_count, run_us, ended_us, until_us, result, error
) values $rows

-- name: hand_over
-- to an owner, from another, a list of [number, token]
update durable_tasks set owner = $1
where state = 3 and owner = $2 and (number, token) in (select value ->> 0, value ->> 1 from json_each($3))

-- name: remember
-- a list of ids, for longer by some time
insert into durable_ended (id, ended_us)
select value, (select vouched_us from durable_clock) + $2 from json_each($1) where true
on conflict (id) do nothing

-- name: claim
-- above a priority, or at it and before a time; without some keys, a list, and some functions, a list of [name, version]; as many as
-- fit into a size, and how many more there are: these get negative numbers, of which there are no tasks. CASE, because most fit.
delete from temp.durable_claiming;
insert into temp.durable_claiming
select number, length(body) + coalesce(length(saved), 0) from durable_tasks
where queue = $2 and state = 1 and priority >= $3 and (priority > $3 or due_us < $8) and (expires_us is null or expires_us > $4)
    and ("key" is null or "key" not in (select value from json_each($5)))
    and not exists (
        select 1 from json_each($6) as unknown
        where unknown.value ->> 0 = durable_tasks.name and unknown.value ->> 1 = durable_tasks.version
    )
order by priority desc, due_us, number limit $7;
update temp.durable_claiming set number = -number
where case when (select sum(size) from temp.durable_claiming) > $9 then number in (
    select number from (
        select number, row_number() over turns as place, sum(size) over turns as total
        from temp.durable_claiming join durable_tasks using (number)
        window turns as (order by priority desc, due_us, number)
    )
    where place > 1 and total > $9
) end;
update durable_tasks set state = 3, token = token + 1, owner = $1 where number in (select number from temp.durable_claiming);
select json_group_array(
    json_array(
        number, token, id, name, version, hex(body), due_us - $4, expires_us - $4, priority, lane, "key", cost, attempt_count, lost_count,
        hex(saved)
    )
    order by durable_tasks.priority desc, due_us, number
), (select count(*) from temp.durable_claiming where number < 0)
from durable_tasks where number in (select number from temp.durable_claiming)

-- name: turn_keys
-- as many keys of a priority as asked for, after one: from each to the next by the index, however many tasks each has
with recursive keys (name, place) as (
    select (
        select coalesce("key", ' ') from durable_tasks
        where queue = $1 and state = 1 and priority = $2 and coalesce("key", ' ') > $3 order by coalesce("key", ' ') limit 1
    ), 1
    union all
    select (
        select coalesce("key", ' ') from durable_tasks
        where queue = $1 and state = 1 and priority = $2 and coalesce("key", ' ') > keys.name order by coalesce("key", ' ') limit 1
    ), place + 1
    from keys where name is not null and place < $4
)
select json_group_array(name order by place) from keys where name is not null

-- name: turn_tasks
-- of each of some keys, a list, the first tasks, as [key, due, number, size]
select json_group_array(json_array(keys.value, due_us, number, length(body) + coalesce(length(saved), 0)))
from json_each($3) as keys cross join durable_tasks
where number in (
    select number from durable_tasks
    where queue = $1 and state = 1 and priority = $2 and coalesce("key", ' ') = keys.value
        and due_us > $4 and due_us <= $5 and (expires_us is null or expires_us > $6)
        and not exists (
            select 1 from json_each($7) as unknown
            where unknown.value ->> 0 = durable_tasks.name and unknown.value ->> 1 = durable_tasks.version
        )
    order by due_us, number limit $8
)

-- name: take
-- a list of numbers
update durable_tasks set state = 3, token = token + 1, owner = $1 where number in (select value from json_each($2));
select json_group_array(
    json_array(
        number, token, id, name, version, hex(body), due_us - $3, expires_us - $3, priority, lane, "key", cost, attempt_count, lost_count,
        hex(saved)
    )
)
from durable_tasks where number in (select value from json_each($2))

-- name: ready_first
select number, name, lane, "key" from durable_tasks where queue = $1 and state = 1 order by priority desc, due_us, number limit $2

-- name: set_aside
-- a list of numbers; a paused task is one that is set aside (4) with a negative version, and with its pause as its owner
update durable_tasks set state = 4, version = -1 - version, owner = $1
where state = $3 and number in (select value from json_each($2))

-- name: put_back
update durable_tasks set state = 1, version = -1 - version, owner = null where number in (
    select number from durable_tasks where state = 4 and version < 0 and owner = $1 order by number limit $2
)
returning number

-- name: make_ready
update durable_tasks set state = 1 where number in (
    select number from durable_tasks where queue = $1 and state = 0 and lane is null and due_us <= $2 and due_us >= $4 order by due_us, number limit $3
)

-- name: make_heads_ready
update durable_tasks set state = 1 where number in (
    select number from durable_tasks where queue = $1 and state = 0 and lane is not null and due_us <= $2 and due_us >= $4 order by due_us, number limit $3
)

-- name: clock
select vouched_us, beat_us, (select min(lease_us) from durable_owners) from durable_clock

-- name: owner
-- and the pauses of the store, a list of [what, since, until]
select owner, (select json_group_array(json_array(what, since_us, until_us)) from durable_pauses)
from durable_owners where owner = $1

-- name: late_owners
select owner from durable_owners where seen_us + lease_us <= $1 order by owner

-- name: lock_unique
-- the whole file is locked
select $1

-- name: lock_free_lane
select lane from durable_lanes where lane = $1

-- name: rows_claimed
-- by the index of the state: without statistics, SQLite would read the table until it has found enough
select $task from durable_tasks where number in (
    select number from durable_tasks indexed by durable_claimed where state = 3 and number > $1 order by number limit $3
) order by number

-- name: rows_behind
select $task from durable_tasks where number in (
    select number from durable_tasks indexed by durable_behind where state = 2 and number > $1 order by number limit $3
) order by number

-- name: rows_unknown
select $task from durable_tasks where number in (
    select number from durable_tasks indexed by durable_unknown where state = 4 and version >= 0 and number > $1 order by number limit $3
) order by number

-- name: rows_paused
select $task from durable_tasks where number in (
    select number from durable_tasks indexed by durable_paused where state = 4 and version < 0 and number > $1 order by number limit $3
) order by number

-- name: waiting
-- the occurrences of a repetition; 'A' follows '@'
select id from durable_tasks
where id > $1 || '@' and id < $1 || 'A' and substr(id, length($1) + 1) like '@____-__-__T__:__:__.______Z'
    and (token = 0 or (state = 4 and version >= 0))

-- name: lock_repetition
-- the whole file is locked; a row that is there is not written
insert into durable_repetitions (name) values ($1) on conflict (name) do nothing;
select owner, since_us, spec, queue, function, schedule, last_spec, last_id, last_due_us, placed_us, definition, is_saved, until_us, changed_us
from durable_repetitions where name = $1
