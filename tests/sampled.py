"""Which cases of costly tests run by default; ``ALL_CASES=1`` runs all.

These tests have many cases of one kind: seeds, random programs, broken rules, faults. Any of them may find a flaw, and a
change is tried with all; but each costs as much as hundreds of other tests. A case that is named on the command line runs.
"""

from zlib import crc32

import pytest

from .helpers import ALL_CASES

EVERY = {
    "bench/test_bench.py::test_quick_run_loses_nothing_and_starts_nothing_early": 3,
    "cli/bench/test_http_client.py::test_errors_are_classified": 2,
    "cli/bench/test_http_client.py::test_response_is_read_to_its_end": 2,
    "core/limits/test_limit.py::test_without_permits_nothing_is_ever_admitted": 2,
    "dashboard/test_in_browser.py::test_pages_fit_a_phone_and_can_be_read": 2,
    "kernel/differential/test_differential.py::test_flaw_is_found": 4,
    "model/test_random_programs.py::test_random_programs_do_what_the_model_says": 4,
    "peers/test_adaptive_fleet.py::test_a_fall_of_one_is_one_of_all_and_ends": 2,
    "peers/test_adaptive_fleet.py::test_many_raise_a_rate_as_fast_as_one": 2,
    "peers/test_adaptive_fleet.py::test_one_busy_process_has_the_whole_rate_however_it_was_raised": 2,
    "peers/test_battery.py::test_limits_hold_through_a_fault": 2,
    "peers/test_delivery.py::test_delivery": 2,
    "peers/test_group_limits.py::test_limit_of_a_key_is_used_as_by_one_process_alone": 2,
    "peers/test_group_limits.py::test_keys_that_are_refused_do_not_hold_up_others": 2,
    "peers/test_group_limits.py::test_step_of_the_servers_clock_is_told_to_all_executors_of_a_process": 3,
    "peers/test_group_limits.py::test_what_is_left_of_tickets_goes_back_when_a_process_ends": 3,
    "peers/test_laws.py::test_limit_is_used": 3,
    "peers/test_lowered_rates.py::test_group_that_comes_back_with_a_lower_rate_starts_no_more_than_that": 4,
    "peers/test_lowered_rates.py::test_lowered_rate_holds_at_once_for_the_process_that_sets_it": 4,
    "peers/test_redis_peers.py::test_each_process_has_an_id_of_its_own": 2,
    "peers/test_simulation.py::test_outage_policies_keep_their_bounds": 2,
    "peers/test_simulation.py::test_server_s_clock_that_is_slewed": 3,
    "peers/test_simulation.py::test_slow_rate_is_kept_over_eras": 4,
    "peers/test_slot_simulation.py::test_rule_that_is_broken_on_purpose_is_found": 3,
    "peers/test_starts_take_effect.py::test_calls_that_waited_for_a_thread_hold_the_limit": 3,
    "peers/test_stored_authority.py::test_replies_for_slots_are_those_of_the_authority_in_memory": 4,
    "peers/test_stored_authority.py::test_replies_for_tickets_are_those_of_the_authority_in_memory": 4,
    "peers/test_stored_processes.py::test_processes_share_a_limit_whoever_is_killed": 2,
    "peers/test_stored_processes.py::test_slots_are_handed_over_between_processes": 2,
    "peers/test_ticket_authority.py::test_both_say_the_same_of_a_pace_that_is_used_up": 3,
    "peers/test_ticket_simulation.py::test_broken_rule_is_found": 3,
    "runtime/durable/test_crashes.py::test_broken_rule_is_found": 2,
    "runtime/durable/test_crashes.py::test_whatever_a_process_was_at_when_it_ended_another_goes_on": 2,
    "runtime/durable/test_fairness.py::test_claims_in_turn_are_few": 4,
    "runtime/durable/test_histories.py::test_broken_rule_is_found": 4,
    "runtime/durable/test_http_calls.py::test_temporary_failure_is_retried": 4,
    "runtime/durable/test_repetition_histories.py::test_broken_law_is_found": 4,
    "runtime/life/test_closing_programs.py::test_a_random_executor_closes_whole": 2,
    "runtime/repeat/test_cron.py::test_runs_are_due_as_the_policy_says": 3,
    "runtime/repeat/test_cycle.py::test_nodes_with_one_store_share_the_turns": 2,
    "runtime/repeat/test_cycle.py::test_restart_goes_on_where_the_last_process_was": 2,
    "runtime/task/test_accounts.py::test_accounting_closes_after_every_step": 2,
    "runtime/test_all_together.py::test_account_closes_whatever_is_combined": 3,
    "simulation/test_both_kernels.py::test_random_simulations_write_the_same": 3,
    "simulation/shortcut/test_run.py::test_many_random_scenarios_have_equal_figures": 2,
    "simulation/test_strategies.py::test_another_cycle_is_kept": 3,
    "spread/test_keys.py::test_every_pattern_of_keys_is_spread_evenly": 3,
    "stores/tasks/test_every_store.py::test_answers_are_those_of_the_rules_own_table": 2,
    "stores/tasks/test_lanes.py::test_lanes_keep_their_order_whoever_is_killed": 2,
    "stores/tasks/test_moves.py::test_a_rule_that_is_broken_is_found": 4,
    "stores/tasks/test_moves.py::test_moves_answer_as_the_table": 4,
    "stores/tasks/test_postgres_outages.py::test_after_a_fault_it_goes_on": 2,
    "stores/tasks/test_redis.py::test_a_rule_that_is_broken_is_found": 4,
    "testing/test_searching.py::test_mended_program_passes": 3,
}
"""Of each test the number n: its first case runs, and of the others one in n, whichever others there are."""


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases that do not run by default."""
    seen: set[str] = set()
    found = set()
    for item in [] if ALL_CASES else items:
        test = item.nodeid.partition("[")[0].removeprefix("tests/")
        if test in EVERY:
            if test in seen and crc32(item.nodeid.encode()) % EVERY[test]:
                found.add(item)
            seen.add(test)
    return found
