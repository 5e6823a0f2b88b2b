"""Durable tasks: calls that are kept in a store until they have run.

::

    tasks = DurableTasks(SQLiteStore("tasks.db"))


    @tasks.task(retry=Retry(5, on=OSError), run_timeout=30)
    async def send_mail(to: str, *, subject: str): ...


    async with RateLimitedExecutor("mail", rate="100/s") as executor, tasks.running(executor):
        await send_mail.put("a@example.org", subject="hi", delay=60, id="welcome-7")
"""

from __future__ import annotations

from ratelimited_executor._core.durable.pauses import PauseRow
from ratelimited_executor._core.durable.tasks import (
    BacklogRow,
    Durability,
    DurableState,
    EndedRow,
    LaneRow,
    OnDuplicate,
    RepetitionRow,
    TaskRow,
)
from ratelimited_executor._runtime.durable.codec import JSONCodec
from ratelimited_executor._runtime.durable.counting import DurableStatistics
from ratelimited_executor._runtime.durable.current import CurrentTask, current_task
from ratelimited_executor._runtime.durable.functions import DurableFunction, DurableRef, LaneFail
from ratelimited_executor._runtime.durable.http_calls import http_function
from ratelimited_executor._runtime.durable.repairs import RepairSummary
from ratelimited_executor._runtime.durable.running import DurableRunner
from ratelimited_executor._runtime.durable.snooze import Snooze
from ratelimited_executor._runtime.durable.tasks import DurableTasks, PutSummary
from ratelimited_executor._runtime.durable.unique import Unique
from ratelimited_executor.stores.tasks.memory import MemoryStore
from ratelimited_executor.stores.tasks.postgres import PostgresStore
from ratelimited_executor.stores.tasks.redis import RedisStore
from ratelimited_executor.stores.tasks.sqlite import SQLiteStore

__all__ = [
    "BacklogRow",
    "CurrentTask",
    "Durability",
    "DurableFunction",
    "DurableRef",
    "DurableRunner",
    "DurableState",
    "DurableStatistics",
    "DurableTasks",
    "EndedRow",
    "JSONCodec",
    "LaneFail",
    "LaneRow",
    "MemoryStore",
    "OnDuplicate",
    "PauseRow",
    "PostgresStore",
    "PutSummary",
    "RedisStore",
    "RepairSummary",
    "RepetitionRow",
    "SQLiteStore",
    "Snooze",
    "TaskRow",
    "Unique",
    "current_task",
    "http_function",
]
