-- What PostgreSQL says in its own way. Several transactions run at once: a task that another one has locked is skipped where any
-- will do, and what a statement changes it finds once more in the state that it is to leave. What is limited and locked stands in
-- a materialized part: a subquery might be run again for each row, and would lock others then.
--
-- While any transaction of the database stays open, tasks that have gone stay in every index. So tasks whose numbers are known are
-- looked up by the primary key, as an array, which has one entry for each; `state + 0` keeps the planner from an index of the state,
-- in which it would read all those that have gone.

-- name: now
select durable_now()

-- name: clock
select vouched_us, beat_us, (select min(lease_us) from durable_owners) from durable_clock for update

-- name: owner
select owner, (select coalesce(json_agg(json_build_array(what, since_us, until_us)), '[]')::text from durable_pauses)
from durable_owners where owner = $1 for key share

-- name: late_owners
select owner from durable_owners where seen_us + lease_us <= $1 order by owner for update skip locked

-- name: lock_free_lane
select lane from durable_lanes where lane = $1 for update skip locked

-- name: expired
-- a user's transaction may have changed a task, and holds it
select number, id, lane, is_named from durable_tasks
where state = 1 and expires_us is not null and expires_us <= $1 order by expires_us limit $2 for update skip locked

-- name: stale_unique
-- a row that another transaction has locked is about to count; it is deleted only with the id that it has here
select durable_unique."key", durable_unique.id
from (select "key" from durable_unique where "key" > $1 order by "key" limit $2) as sample join durable_unique using ("key")
where until_us <= $3 and not exists (select 1 from durable_tasks where durable_tasks.id = durable_unique.id)
for update of durable_unique skip locked

-- name: last_number
select 0

-- name: put
with fresh as (
    insert into durable_tasks (
        id, queue, name, version, state, put_us, due_us, span_us, expires_us, was_due, place_us, priority, lane, is_blocking,
        "key", cost, is_named, body
    )
    select
        value ->> 0, value ->> 1, value ->> 2, (value ->> 3)::integer, (value ->> 4)::smallint, (value ->> 5)::bigint,
        (value ->> 6)::bigint, (value ->> 7)::bigint, (value ->> 8)::bigint, (value ->> 9)::smallint, (value ->> 10)::bigint,
        (value ->> 11)::double precision, value ->> 12, (value ->> 13)::smallint, value ->> 14, value ->> 15,
        (value ->> 16)::smallint, decode(value ->> 17, 'hex')
    from jsonb_array_elements($1::text::jsonb) with ordinality as listed (value, position)  -- users' connections may encode jsonb
    where $2::bigint is not null
    order by position
    on conflict (id) do nothing
    returning id
)
select coalesce(json_agg(id), '[]')::text from fresh

-- name: lanes_of_numbers
select distinct lane from durable_tasks
where lane is not null and number = any(array(select (value ->> 0)::bigint from jsonb_array_elements($1::jsonb)))

-- name: end
with gone as (
    delete from durable_tasks
    where number = any(array(select (value ->> 0)::bigint from jsonb_array_elements($1::jsonb))) and state + 0 = 3
        and (number, token) in (select (value ->> 0)::bigint, (value ->> 1)::bigint from jsonb_array_elements($1::jsonb))
    returning number, token, id, is_named, is_cancelled
)
select coalesce(json_agg(json_build_array(number, token, id, is_named, is_cancelled)), '[]')::text from gone

-- name: save
update durable_tasks set saved = decode(value ->> 2, 'hex') from jsonb_array_elements($1::jsonb) as value
where number = (value ->> 0)::bigint and token = (value ->> 1)::bigint and state + 0 = 3

-- name: keep
insert into durable_history (id, queue, name, version, ending, attempt_count, run_us, ended_us, until_us, result, error)
select
    value ->> 0, value ->> 1, value ->> 2, (value ->> 3)::integer, value ->> 4, (value ->> 5)::integer, (value ->> 6)::bigint,
    (value ->> 7)::bigint, (value ->> 8)::bigint, decode(value ->> 9, 'hex'), value ->> 10
from jsonb_array_elements($1::jsonb) with ordinality as listed (value, position)
order by position
on conflict (id) do update set
    number = excluded.number, queue = excluded.queue, name = excluded.name, version = excluded.version, ending = excluded.ending,
    attempt_count = excluded.attempt_count, run_us = excluded.run_us, ended_us = excluded.ended_us, until_us = excluded.until_us,
    result = excluded.result, error = excluded.error

-- name: forget_history
delete from durable_history where number = any(array(
    select number from durable_history where until_us <= $1 order by until_us, number limit $2 for update skip locked
))

-- name: hand_over
update durable_tasks set owner = $1
where state = 3 and owner = $2 and (number, token) in (
    select (value ->> 0)::bigint, (value ->> 1)::bigint from jsonb_array_elements($3::jsonb)
)

-- name: remember
insert into durable_ended (id, ended_us)
select value, (select vouched_us from durable_clock) + $2::bigint from jsonb_array_elements_text($1::jsonb) as value
on conflict (id) do nothing

-- name: claim
with chosen as materialized (
    select number as chosen_number, priority as chosen_priority, due_us as chosen_due_us, octet_length(body) + coalesce(octet_length(saved), 0) as size
    from durable_tasks
    where queue = $2 and state = 1 and priority >= $3 and (priority > $3 or due_us < $8) and (expires_us is null or expires_us > $4)
        and ("key" is null or "key" not in (select jsonb_array_elements_text($5::jsonb)))
        and (name, version) not in (
            select value ->> 0, (value ->> 1)::integer from jsonb_array_elements($6::jsonb) as value
        )
    order by priority desc, due_us, number limit $7 for update skip locked
), fitting as (
    select chosen_number, row_number() over turns = 1 or sum(size) over turns <= $9::bigint as fits
    from chosen window turns as (order by chosen_priority desc, chosen_due_us, chosen_number)
), claimed as (
    update durable_tasks set state = 3, token = token + 1, owner = $1
    where number = any(array(select chosen_number from fitting where fits)) and state + 0 = 1
    returning number, token, id, name, version, body, due_us, expires_us, priority, lane, "key", cost, attempt_count, lost_count, saved
)
select coalesce(json_agg(
    json_build_array(
        number, token, id, name, version, encode(body, 'hex'), due_us - $4, expires_us - $4, priority, lane, "key", cost, attempt_count,
        lost_count, encode(saved, 'hex')
    )
    order by priority desc, due_us, number
), '[]')::text, (select count(*) from fitting where not fits),
    round(extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint  -- that it took
from claimed

-- name: turn_keys
with recursive keys (name, place) as (
    select (
        select coalesce("key", ' ') collate "C" from durable_tasks
        where queue = $1 and state = 1 and priority = $2 and coalesce("key", ' ') collate "C" > $3
        order by coalesce("key", ' ') collate "C" limit 1
    ), 1
    union all
    select (
        select coalesce("key", ' ') collate "C" from durable_tasks
        where queue = $1 and state = 1 and priority = $2 and coalesce("key", ' ') collate "C" > keys.name
        order by coalesce("key", ' ') collate "C" limit 1
    ), place + 1
    from keys where name is not null and place < $4
)
select coalesce(json_agg(name order by place), '[]')::text from keys where name is not null

-- name: turn_tasks
with chosen as materialized (
    select keys.name, first.due_us, first.number, first.size
    from jsonb_array_elements_text($3::jsonb) as keys (name) cross join lateral (
        select due_us, number, octet_length(body) + coalesce(octet_length(saved), 0) as size from durable_tasks
        where queue = $1 and state = 1 and priority = $2 and coalesce("key", ' ') collate "C" = keys.name
            and due_us > $4 and due_us <= $5 and (expires_us is null or expires_us > $6)
            and (durable_tasks.name, version) not in (
                select value ->> 0, (value ->> 1)::integer from jsonb_array_elements($7::jsonb) as value
            )
        order by due_us, number limit $8 for update skip locked
    ) as first
)
select coalesce(json_agg(json_build_array(name, due_us, number, size)), '[]')::text from chosen

-- name: take
with claimed as (
    update durable_tasks set state = 3, token = token + 1, owner = $1
    where number = any(array(select value::bigint from jsonb_array_elements_text($2::jsonb))) and state + 0 = 1
    returning number, token, id, name, version, body, due_us, expires_us, priority, lane, "key", cost, attempt_count, lost_count, saved
)
select coalesce(json_agg(
    json_build_array(
        number, token, id, name, version, encode(body, 'hex'), due_us - $3, expires_us - $3, priority, lane, "key", cost, attempt_count,
        lost_count, encode(saved, 'hex')
    )
), '[]')::text
from claimed

-- name: ready_first
select number, name, lane, "key" from durable_tasks where queue = $1 and state = 1 order by priority desc, due_us, number limit $2
for update skip locked

-- name: set_aside
update durable_tasks set state = 4, version = -1 - version, owner = $1
where state = $3 and number in (select value::bigint from jsonb_array_elements_text($2::jsonb))

-- name: put_back
with held as materialized (
    select number as held_number from durable_tasks where state = 4 and version < 0 and owner = $1
    order by number limit $2 for update skip locked
)
update durable_tasks set state = 1, version = -1 - version, owner = null from held
where number = held_number and state = 4 and version < 0
returning number

-- name: make_ready
with due as materialized (
    select number as due_number from durable_tasks where queue = $1 and state = 0 and lane is null and due_us <= $2 and due_us >= $4
    order by due_us, number limit $3 for update skip locked
)
update durable_tasks set state = 1 where number = any(array(select due_number from due)) and state + 0 = 0

-- name: make_heads_ready
with due as materialized (
    select number as due_number from durable_tasks where queue = $1 and state = 0 and lane is not null and due_us <= $2 and due_us >= $4
    order by due_us, number limit $3 for update skip locked
)
update durable_tasks set state = 1 where number = any(array(select due_number from due)) and state + 0 = 0

-- name: waiting
select id from durable_tasks
where left(id, length($1::text)) = $1::text and substr(id, length($1::text) + 1) like '@____-__-__T__:__:__.______Z'
    and (token = 0 or (state = 4 and version >= 0))

-- name: lock_repetition
insert into durable_repetitions (name) values ($1)
on conflict (name) do update set name = excluded.name
returning owner, since_us, spec, queue, function, schedule, last_spec, last_id, last_due_us, placed_us, definition, is_saved, until_us, changed_us
