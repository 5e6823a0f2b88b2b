-- version: 1, for processes that know 1 or later
-- Durable tasks in PostgreSQL. Times are microseconds; booleans are 0 and 1, as everywhere.
-- States: 0 scheduled, 1 ready, 2 behind, 3 claimed, 4 unknown, 5 dead.

create table durable_tasks (
    number bigserial primary key,              -- a number is never used twice, or an old claim would fit a new task
    id text not null unique,
    queue text not null,
    name text not null,
    version integer not null,
    state smallint not null,
    put_us bigint not null,
    due_us bigint not null,
    span_us bigint,                            -- from each time at which it is due until it expires
    expires_us bigint,
    was_due smallint not null,                 -- when it was put
    place_us bigint not null,                  -- in its lane
    priority double precision not null,
    lane text,
    is_blocking smallint not null,
    "key" text,
    cost text,
    is_named smallint not null,
    token bigint not null default 0,
    attempt_count integer not null default 0,
    lost_count integer not null default 0,
    owner text,
    is_cancelled smallint not null default 0,
    error text not null default '',
    body bytea not null
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1);

create index durable_scheduled on durable_tasks (queue, due_us, number) where state = 0 and lane is null;
create index durable_scheduled_heads on durable_tasks (queue, due_us, number) where state = 0 and lane is not null;
create index durable_ready on durable_tasks (queue, priority desc, due_us, number) where state = 1;
create index durable_expiring on durable_tasks (expires_us) where state = 1 and expires_us is not null;
create index durable_behind on durable_tasks (lane, place_us, number) where state = 2;
create index durable_claimed on durable_tasks (owner) where state = 3;
create index durable_cancelled on durable_tasks (owner) where state = 3 and is_cancelled = 1;
create index durable_unknown on durable_tasks (queue, name, version, number) where state = 4;
create index durable_dead on durable_tasks (number) where state = 5;
-- At most one of a lane's tasks is not behind; a dead letter that does not block has left its place.
create unique index durable_heads on durable_tasks (lane)
    where lane is not null and state <> 2 and (state <> 5 or is_blocking = 1);

create table durable_lanes (
    lane text primary key,
    last_place_us bigint not null
);

create table durable_owners (
    owner text primary key,
    lease_us bigint not null,
    seen_us bigint not null                    -- vouched time
);

create table durable_ended (     -- ids that were chosen by users, of tasks that have ended
    id text primary key,
    ended_us bigint not null                   -- vouched time
);
create index durable_ended_first on durable_ended (ended_us);

create table durable_clock (     -- one row
    one integer primary key check (one = 1),
    vouched_us bigint not null,
    beat_us bigint                             -- the last beat of any owner, by the clock
);
insert into durable_clock (one, vouched_us) values (1, 0) on conflict (one) do nothing;

create or replace function durable_now() returns bigint language sql volatile as
    'select (extract(epoch from clock_timestamp()) * 1000000)::bigint';

-- version: 2, for processes that know 1 or later
alter table durable_tasks add column started_token bigint not null default 0;  -- of the last claim of which a start was recorded

create table durable_repetitions (
    name text primary key,
    owner text not null default '',            -- the process that declared it last, and since when it has
    since_us bigint not null default 0,
    spec text not null default '',             -- what it has declared
    queue text not null default '',
    function text not null default '',
    schedule text not null default '',
    last_spec text not null default '',        -- by which the last occurrence was placed
    last_id text not null default '',
    last_due_us bigint not null default 0,
    placed_us bigint not null default 0            -- when it was placed
);

-- version: 3, for processes that know 1 or later
-- For claims in turn by key, in the order of their bytes; a task without a key has ' ', which no key is.
create index durable_turns on durable_tasks (queue, priority, (coalesce("key", ' ') collate "C"), due_us, number) where state = 1;

-- version: 4, for processes that know 1 or later
create table durable_unique (
    "key" text primary key,
    id text not null default '',               -- of the task that was put last; it may have ended
    until_us bigint not null default 0       -- end of its period; 0 if it has none
);

-- version: 5, for processes that know 1 or later
-- A paused task is set aside (4), with a negative version, -1 minus its own, and with its pause as its owner.
create index durable_paused on durable_tasks (owner, number) where state = 4 and version < 0;

create table durable_pauses (
    what text primary key,                     -- a list in JSON: function, queue, lane, key; null for any
    since_us bigint not null,
    until_us bigint                           -- 0 if it was ended
);

-- version: 6, for processes that know 1 or later
alter table durable_repetitions add column definition text not null default '';  -- what it puts, as JSON
alter table durable_repetitions add column is_saved smallint not null default 0;  -- 0 if code declares it
alter table durable_repetitions add column until_us bigint default 0;  -- the end of its pause; 0 if there is none, null if it has no end
alter table durable_repetitions add column changed_us bigint not null default 0;  -- when users saved, paused, resumed or skipped it last
create index durable_changed on durable_repetitions (changed_us) where changed_us > 0;

-- version: 7, for processes that know 1 or later
alter table durable_tasks add column saved bytea;  -- the state that an attempt has saved

create table durable_history (   -- tasks that have ended: the last one of each id
    number bigserial primary key,
    id text not null unique,
    queue text not null,
    name text not null,
    version integer not null,
    ending text not null,                      -- done, cancelled, expired
    attempt_count integer not null,
    run_us bigint not null,
    ended_us bigint not null,
    until_us bigint not null,
    result bytea,
    error text not null                        -- why a result is not kept that was to be
);
create index durable_history_until on durable_history (until_us, number);
