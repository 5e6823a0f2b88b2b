"""Small changes that would bring back a flaw or break a law, and the tests that must fail with them.

A mutant replaces one piece of text in one module by another. The piece must occur exactly once, so that whoever
rewrites that place notices, and renews or deletes the mutant.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        name: the flaw that it brings back, or the law that it breaks.
        module: the file in the package.
        old: text that occurs there exactly once.
        new: the text that replaces it.
        tests: ids below ``tests`` that fail on the changed package; of a parametrized test one case suffices.
    """

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]


FLAWS = "flaws/test_{}.py::test_{}"
LAWS = "mutants/test_laws.py::test_{}"


def _flaw(file: str, test: str) -> str:
    return FLAWS.format(file, test)


def _law(test: str) -> str:
    return LAWS.format(test)


MUTANTS = (
    # Stopping.
    Mutant(
        "F1: closing one executor disarms all",
        "_runtime/life/closing.py",
        "self.parts.runner.disarm(self.parts.engine)",
        "[self.parts.runner.disarm(entry[2]) for entry in list(self.parts.runner._heap)]",
        (_flaw("stopping", "closing_one_executor_does_not_stop_the_others"),),
    ),
    Mutant(
        "F8: what is cut short is forgotten, and not ended",
        "_runtime/life/closing.py",
        "parts.pending.cancel(record, None)",
        "parts.queue.cancel(record)",
        (_flaw("stopping", "cutting_short_does_not_leave_a_future_pending"),),
    ),
    Mutant(
        "F8: cancelled items of a batch are not counted",
        "_runtime/task/accounts.py",
        "        self.counts[TaskState.CANCELLED] += count\n",
        "",
        (
            _flaw("stopping", "cutting_short_does_not_miscount_what_was_cancelled"),
            _law("accounting_closes_at_every_step"),
        ),
    ),
    Mutant(
        "F18: terminated while tasks run",
        "_runtime/life/closing.py",
        "parts.accounts.waiting_count() == 0 and parts.accounts.running_count() == 0",
        "parts.accounts.waiting_count() == 0",
        (_flaw("stopping", "termination_is_not_reported_while_a_task_waits_or_runs"),),
    ),
    Mutant(
        "F20: the manager closes without its executors",
        "_runtime/life/manager.py",
        "await close_all([executor",
        "await close_all([] and [executor",
        (_flaw("stopping", "closing_the_manager_does_not_leave_executors_accepting"),),
    ),
    Mutant(
        "F40: leaving normally cancels, leaving by an exception drains",
        "_runtime/faces/base.py",
        "if error is not None:\n            self._closing.abort()",
        "if error is None:\n            self._closing.abort()",
        (
            _flaw("contract", "tasks_of_a_closed_executor_do_not_belie_the_manual"),
            _law("drain_runs_what_was_accepted_at_its_due_time"),
        ),
    ),
    Mutant(
        "a drain that cannot progress waits",
        "_runtime/life/closing.py",
        "return parts.controls.is_stopped or is_asleep",
        "return False",
        (_law("drain_that_cannot_progress_ends"),),
    ),
    # Intervals and spread.
    Mutant(
        "F4: the width of an interval overflows 32 bits",
        "_kernel/pacing.py",
        "        self.end = end\n",
        "        self.end = start + ((round((end - start) * 1e9) + 2**31) % 2**32 - 2**31) / 1e9\n",
        (_flaw("intervals", "wide_interval_does_not_squeeze_or_lose_its_tasks"),),
    ),
    Mutant(
        "F5: intervals begin with the manager",
        "_kernel/timeline.py",
        "self.offset_ns = math.floor(Fraction(wall) * NS) - math.floor(Fraction(monotonic) * NS)",
        "self.offset_ns = 0 - math.floor(monotonic * NS)",
        (_flaw("intervals", "starting_in_mid_interval_does_not_shift_the_intervals"),),
    ),
    Mutant(
        "F6: the spread divides by one too many",
        "_kernel/pacing.py",
        "/ (left + 1)",
        "/ (left + 2)",
        (
            _flaw("pacing", "few_tasks_are_not_started_at_the_same_instant"),
            _flaw("intervals", "wide_interval_does_not_squeeze_or_lose_its_tasks"),
        ),
    ),
    Mutant(
        "F24: anywhere in the interval of the due time",
        "_kernel/queue.py",
        "self.spread.pull(self.interval_end if self.early else now - self.phase_seconds, steps)",
        "self.spread.pull(self.interval_end, steps)",
        (_flaw("intervals", "no_task_starts_early_by_default"),),
    ),
    Mutant(
        "F24: an immediate task is spread",
        "_kernel/intervals.py",
        "self.on_time.add_ready(record)",
        "self.spread.add_ready(record)",
        (_flaw("intervals", "submission_does_not_wait_for_the_next_interval"),),
    ),
    # Nothing is lost.
    Mutant(
        "F7: an order that raises loses its task",
        "_core/order/ready_heap.py",
        "            self._report(error)\n            key = None\n",
        "            self._report(error)\n            return\n",
        (
            _flaw("losing", "order_that_raises_does_not_lose_a_task"),
            _flaw("losing", "order_that_raises_does_not_stop_other_executors"),
        ),
    ),
    Mutant(
        "F7: an order is asked again at each comparison",
        "_core/order/ready_heap.py",
        "key: Any = (self._order(view),)",
        "key: Any = (self._order(view), self._order(view))",
        (_flaw("losing", "order_that_reads_a_clock_does_not_contradict_itself"),),
    ),
    Mutant(
        "F9: a task factory that refuses ends the run",
        "_runtime/task/coroutines.py",
        "        except BaseException as error:\n            if number not in",
        "        except (KeyboardInterrupt, SystemExit) as error:\n            if number not in",
        (_flaw("losing", "loop_that_refuses_a_task_does_not_lose_the_rest"),),
    ),
    Mutant(
        "F11: an interval that was stalled over is never opened",
        "_kernel/calendar.py",
        "while self.numbers and self.numbers[0] <= number:\n            self._open(",
        "while self.numbers and self.numbers[0] <= number:\n            (self._open if self.numbers[0] == number else int)(",
        (_flaw("losing", "task_that_arrives_after_a_stall_is_not_lost"),),
    ),
    # Cancelling.
    Mutant(
        "F13: what was cancelled once it was due runs",
        "_kernel/runs.py",
        "            if record._place is self:\n                return record._due\n",
        "            if record is not None:\n                return record._due\n",
        (_flaw("cancelling", "cancelled_tasks_do_not_use_permits"),),
    ),
    Mutant(
        "F13: what was cancelled while a stretch starts runs",
        "_kernel/stretch.py",
        "            if record._place is not run:\n",
        "            if record is None:\n",
        ("kernel/test_stretch.py::test_records_that_have_gone_are_passed_over",),
    ),
    Mutant(
        "F33: what is cancelled stays until its interval comes",
        "_runtime/life/engine.py",
        "queue.chores.on_added = self.wake",
        "queue.chores.on_added = None",
        (_flaw("cancelling", "cancelled_tasks_do_not_stay_in_memory"),),
    ),
    # The wall clock.
    Mutant(
        "F21: delays follow the wall clock",
        "_runtime/faces/tasks.py",
        "        if at is not None:\n            if delay is not None:",
        "        if at is None and delay:\n            at, delay = self._started().moments.wall() + delay, None\n        if at is not None:\n            if delay is not None:",
        (_flaw("wall_clock", "clock_step_does_not_delay_or_hasten_a_delay"),),
    ),
    Mutant(
        "F21: a time of the day is a delay",
        "_runtime/faces/tasks.py",
        "if due >= engine.queue.interval_end:",
        "if False:",
        (_flaw("wall_clock", "time_of_the_day_is_not_missed_after_a_clock_step"),),
    ),
    # Repeating.
    Mutant(
        "F14: a fixed delay of nothing",
        "_runtime/repeat/schedules.py",
        "due = run.ended + delay",
        "due = run.ended",
        (_flaw("repeating", "fixed_delay_is_not_skipped_at_the_end_of_a_run"),),
    ),
    Mutant(
        "F37: runs overlap",
        "_runtime/repeat/repeating.py",
        "if self._may_overlap and not self._is_over:",
        "if not self._is_over:",
        (_flaw("repeating", "runs_of_a_fixed_rate_do_not_overlap"),),
    ),
    Mutant(
        "F39: frequent runs are spread over the interval",
        "_runtime/faces/repeating.py",
        "made.on_time = on_time",
        "made.on_time = False",
        (_flaw("repeating", "period_is_not_bound_by_the_interval"),),
    ),
    Mutant(
        "F39: a missed tick is made up once more",
        "_core/repeat/repeating.py",
        "number = newest if is_exact else newest + 1",
        "number = newest",
        (_flaw("repeating", "missed_ticks_are_not_always_made_up"),),
    ),
    # Expiry.
    Mutant(
        "F23: the deadline is held against the end of the interval",
        "_kernel/queue.py",
        "if now > options.deadline:",
        "if self.interval_end > options.deadline:",
        (_flaw("expiry", "task_that_is_not_late_does_not_expire"),),
    ),
    Mutant(
        "F23: a task starts after its deadline",
        "_kernel/queue.py",
        "if now > options.deadline:",
        "if False:",
        (_flaw("expiry", "task_does_not_start_after_its_deadline"),),
    ),
    Mutant(
        "F32: callbacks run inside the executor",
        "_runtime/task/handles.py",
        "            if context is None:\n                callback(self)\n",
        "            if callback is not None:\n                callback(self)\n",
        (_flaw("expiry", "callback_of_an_expired_task_does_not_block_the_executor"),),
    ),
    # The rate.
    Mutant(
        "F25: peers round in phase",
        "_core/permits/permits.py",
        "(self.rank - number) % self.peers",
        "(0 - number) % self.peers",
        (_flaw("rate", "peers_do_not_start_in_phase"),),
    ),
    Mutant(
        "F27: what a stall has left over is made up",
        "_core/permits/permits.py",
        "        if fresh > first:\n",
        "        fresh = 0\n        if fresh > first:\n",
        (
            _flaw("rate", "stall_does_not_break_the_limit"),
            _law("law_of_paced_is_not_broken_by_stalls_and_changes_of_the_rate"),
        ),
    ),
    Mutant(
        "a late start voids nothing",
        "_core/permits/permits.py",
        "self._next = self._first - self.peers + 1 if self._void_to is None else self._void_to",
        "self._next = self._first - self.peers + 1",
        (
            _law("late_start_voids_the_permits_that_it_overtakes"),
            _law("law_of_paced_is_not_broken_by_stalls_and_changes_of_the_rate"),
        ),
    ),
    Mutant(
        "the newest permit does not stay",
        "_core/permits/permits.py",
        "        if peers == 1:  #",
        "        if peers == 0:  #",
        (_flaw("intervals", "submission_does_not_wait_for_the_next_interval"),),
    ),
    Mutant(
        "there is no slack",
        "_core/permits/permits.py",
        "self.slack_ns = max(slack_ns, 1)",
        "self.slack_ns = 1",
        (_law("full_rate_is_reached_although_timers_are_late"),),
    ),
    Mutant(
        "F28: permits are reckoned in floating point",
        "_core/permits/permits.py",
        "return (self.base + (time_ns - self.start) * self.step) // self.unit",
        "return int((self.base + (time_ns - self.start) * self.step) * 1.0 / self.unit)",
        (_flaw("rate", "permits_far_from_the_epoch_are_not_miscounted"),),
    ),
    # Order and load.
    Mutant(
        "F29: what joins the interval passes by the order",
        "_kernel/queue.py",
        "(first is not None and not second < first)",
        "first is not None",
        (_flaw("rate", "submission_does_not_pass_by_the_order"),),
    ),
    Mutant(
        "F29: ranks are kept in order of arrival",
        "_kernel/ready.py",
        "            heapq.heappush(self.active, rank)\n",
        "            self.active.append(rank)\n",
        (
            _law("priorities_are_kept_in_the_overflow"),
            _flaw("repeating", "repeating_task_does_not_wait_for_ever_behind_others"),
        ),
    ),
    Mutant(
        "equal due times come in any order",
        "_kernel/due_order.py",
        "insort_right(self._open, position, lo=self._cursor, key=self._dues.__getitem__)",
        "self._open.insert(self._cursor, position)",
        (_law("equal_due_times_keep_the_order_of_the_calls"),),
    ),
    Mutant(
        "F31: each start sorts the overflow",
        "_kernel/queue.py",
        "        first = on_time.ready.head() if on_time.ready.active else None\n",
        "        first = on_time.ready.head() if on_time.ready.active else None\n        sorted(on_time.ready.keyed())\n",
        (_flaw("load", "long_overflow_does_not_cost_anything_per_tick"),),
    ),
    Mutant(
        "F34: max_pending is forgotten",
        "_runtime/limits/backlog.py",
        "if self._max_pending is not None and (waiting + count > self._max_pending or is_kept):",
        "if False:",
        (_flaw("load", "pending_tasks_are_not_unbounded"),),
    ),
    Mutant(
        "F34: max_concurrency counts held permits only",
        "_runtime/task/accounts.py",
        "len(self.running) + len(self.holding) < self.max_concurrency",
        "len(self.holding) < self.max_concurrency",
        (_flaw("load", "running_tasks_are_not_unbounded"),),
    ),
    Mutant(
        "F35: an idle executor wakes at each interval",
        "_kernel/queue.py",
        "        if self.wall.is_pending:\n",
        "        if not self.is_halted:\n",
        (_flaw("load", "idle_executor_does_not_wake_the_loop"),),
    ),
    Mutant(
        "F36: one start for each turn of the loop",
        "_runtime/life/engine.py",
        "                now = self._start(taken, now, stop)\n",
        "                now = self._start(taken, now, stop := -math.inf)\n",
        (_flaw("load", "start_does_not_take_a_timer_each"),),
    ),
    # Contract and contexts.
    Mutant(
        "F17: the backlog counts one too many",
        "_runtime/insight/insight.py",
        "    count = parts.queue.ready_count()\n",
        "    count = parts.queue.ready_count() + 1\n",
        (_flaw("contract", "backlog_is_not_reckoned_in_whole_intervals"),),
    ),
    Mutant(
        "F19: any thread may call",
        "_runtime/faces/base.py",
        "if asyncio._get_running_loop() is not engine.loop:",
        "if False:",
        (_flaw("contract", "state_is_not_shared_between_threads"),),
    ),
    Mutant(
        "F37: a result of None is a failure",
        "_runtime/faces/bulk.py",
        "if handle.state is TaskState.DONE:",
        "if handle.state is TaskState.DONE and handle.result() is not None:",
        (_flaw("contract", "invoke_any_does_not_take_none_for_a_failure"),),
    ),
    Mutant(
        "equal values of two requests are taken for one",
        "_runtime/task/contexts.py",
        "variable.get(self) is not value",
        "variable.get(self) != value",
        (_law("equal_values_of_two_contexts_are_not_shared"),),
    ),
    Mutant(
        "tasks run in the context they share",
        "_runtime/task/starting.py",
        "context[0] if type(context) is tuple else context.copy()",
        "context[0] if type(context) is tuple else context",
        (_law("tasks_do_not_see_each_other_s_changes"),),
    ),
    Mutant(
        "an unseen failure waits for the garbage collector",
        "_runtime/task/starting.py",
        "        del owner  # else a traceback keeps this frame, which",
        "        # else a traceback keeps this frame, which",
        (_law("failure_that_nobody_sees_is_reported_once"),),
    ),
    # Found by the search for faults.
    Mutant(
        "a permit is lost if its waiter is cancelled at the moment at which it is granted",
        "_runtime/task/permit.py",
        "            if record.state is TaskState.RUNNING:\n                DeferredStart(",
        "            if False:\n                DeferredStart(",
        (_law("no_permit_is_lost_to_a_cancellation"),),
    ),
)
