-- version: 1, for processes that know 1 or later
-- Unlogged: a limit is memory, not a record. A crash of the server empties these tables, and a standby has none of it:
-- then what peers remember counts, after a quarantine.
create unlogged table fleet_heads (
    fleet text not null,
    name bytea not null,
    number bigint,
    text text not null,
    primary key (fleet, name)
) with (fillfactor = 50);
-- In the row, whose old versions each call removes; beside it they would stay until a vacuum.
alter table fleet_heads alter column text set storage main;
create unlogged table fleet_records (
    fleet text not null,
    name bytea not null,
    place bytea not null,
    number bigint not null,
    text text,
    primary key (fleet, name, place)
) with (fillfactor = 70);
create index fleet_records_by_number on fleet_records (fleet, name, number, place);
-- Logged: that a name is not here proves that there was no call for it, unless a failover has lost the latest writes.
create table fleet_names (fleet text not null, name bytea not null, primary key (fleet, name));
create table fleet_run (run text not null, since_us bigint not null);
