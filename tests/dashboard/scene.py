"""A server of a few executors as they stand on a bad day, with an hour of history: for pictures, and for a real browser."""

import asyncio
import math
import time
from random import Random

from fastapi import FastAPI

from ratelimited_executor import ExecutorManager
from ratelimited_executor.dashboard import app as pages
from ratelimited_executor.dashboard.history import Point
from ratelimited_executor.durable import DurableTasks, MemoryStore
from ratelimited_executor.retries import Retry

from .pictures import Redis, limits, picture, pool
from .served import Served

NAMES = (
    "webhooks", "mail", "search-index", "payments", "reports-of-all-customers-in-europe", "sms", "thumbnails", "imports",
    "exports", "crm-sync", "billing", "push",
)  # fmt: skip


class PaymentError(Exception):
    """An error of the service's own."""


async def call(seconds):
    """Take some time, as a request does."""
    await asyncio.sleep(seconds)


async def send(message):
    """Fail as a request does."""
    await asyncio.sleep(0)
    if message % 3 == 0:
        raise TimeoutError(f"https://ann:secret@hooks.example.com/customers/{message % 7} did not answer within 10 s")
    if message % 3 == 1:
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except ConnectionResetError as error:
            raise PaymentError("the bank has closed the connection: card 4 of customer 1742 was not charged") from error
    return {}["reference"]


class Scene(Served):
    """The server; ``/executors/`` and ``/groups/`` are its pages.

    Attributes:
        url: its address.
    """

    async def _main(self):
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        store = MemoryStore()
        tasks = DurableTasks(store)

        @tasks.task(name="deliver_webhook")
        async def deliver(url: str, order: int) -> None:
            await send(order)

        async with tasks, ExecutorManager() as manager:
            page = pages.make_app(
                manager,
                stores={"webhooks": store},
                authorize=_is_ann,
                authorize_view=None,
                on_change=None,
                title="Executors",
            )
            executors = [manager.executor(name, rate="20/s", drain_timeout=0) for name in NAMES]
            webhooks, mail, index, payments, *others = executors
            webhooks.schedule_many(send, range(60), name="deliver", retry=Retry(2, base=60, on=TimeoutError))
            webhooks.schedule_many(send, range(1, 3600, 3), over=1200, name="late")
            for number in range(14):
                webhooks.submit(call, 300, name=f"upload {number}", key=f"tenant {number % 3}")
            webhooks.schedule_many(call, [0.01] * 100_000, name="newsletter", delay=3600)
            for number in range(30):
                webhooks.schedule(call, 1, delay=60 + number, name=f"reminder {number}", key=f"user {number}")
            mail.pause()
            mail.schedule_many(call, [0.01] * 5000, name="newsletter")
            index.penalize(3600)
            payments.schedule_many(send, range(1, 10_000, 3), name="charge")
            for each in others:
                each.schedule_many(call, [0.01] * 1000)
            for order in range(12):
                await deliver.put("https://hooks.example.com/customers/1742", order=order, lane=f"customer-{order % 4}")
            async with tasks.running(manager.executor("outbox", drain_timeout=0)):
                await asyncio.sleep(1.5)
            _fill(page.state.recorder)
            redis = Redis(**_groups())
            redis.clock = time.time
            groups = redis.app()
            recording = asyncio.create_task(groups.state.recorder.run())
            app = FastAPI()
            app.mount("/executors", page)
            app.mount("/groups", groups)
            await self._serve(app, "", lifespan="off")
            recording.cancel()


def _is_ann(request):
    request.state.user = "ann"
    return True


def _fill(recorder):
    """Write an hour of history down, as if it had been recorded."""
    random, now = Random(7), time.time()
    for number, (name, recorded) in enumerate(recorder.recorded.items()):
        is_bad = name in ("webhooks", "payments")
        for step in range(720):
            started = max(0.0, 12 + number + 6 * math.sin(step / 60 + number) + random.gauss(0, 1))
            recorded.history.add(
                Point(
                    at=now - 3600 + 5 * step,
                    rate=20.0,
                    started=0.0 if name == "mail" and step > 600 else min(20.0, started),
                    failed=random.random() * 3 if is_bad and step > 560 else 0.0,
                    waiting=100_000.0 - 100 * step if name == "webhooks" else 40 + 30 * math.sin(step / 90),
                    overdue=20.0 + step if is_bad else 3.0,
                    running=14.0 + random.randrange(3) if name == "webhooks" else float(random.randrange(4)),
                    lateness=0.004 + random.random() / 200 + (step / 3000 if is_bad else 0),
                )
            )


def _groups():
    """Return groups as they would be read from Redis."""
    return {
        "checkout": picture(shared=[limits("payments", used=100, active=4), limits("fraud", used=12)]),
        "models": picture(shared=[limits("llm", used=71, active=2)], pools=[pool("gpu", held=4)]),
        "new": picture(shared=[limits("llm", quarantine=1.4)]),
        **{
            f"tenant-{number:03}": picture(shared=[limits("api", used=number, active=number % 2)])
            for number in range(60)
        },
    }
