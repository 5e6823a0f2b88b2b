"""A synchronous Django view that schedules work for later, under a rate, in one file.

The view returns at once. The work is done in a worker thread of the same process, which closes its database connections
at the end, as Django does after a request. The callback runs in a thread, too, where it may use the database.

    pip install django 'ratelimited-executor'
    python examples/django_view.py runserver
    curl 'localhost:8000/remind?name=Ada&delay=2'; curl localhost:8000/reminded
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from ratelimited_executor.blocking import ScheduledExecutor

if TYPE_CHECKING:
    from concurrent.futures import Future

if not settings.configured:
    settings.configure(
        DEBUG=True,
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )

executor = ScheduledExecutor("reminders", rate="10/s", drain_timeout="10 s")
reminded: list[str] = []


def remind(name: str) -> str:
    """Write a reminder, in a worker thread."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT upper(%s)", [name])
            return str(cursor.fetchone()[0])
    finally:
        connections.close_all()


def note(future: Future[str]) -> None:
    """Keep what has come of a reminder."""
    reminded.append(future.result())


def schedule(request: HttpRequest) -> HttpResponse:
    """Schedule a reminder."""
    future = executor.schedule(remind, request.GET["name"], delay=float(request.GET.get("delay", "0")))
    future.add_done_callback(note)
    return HttpResponse(status=202)


def show(request: HttpRequest) -> JsonResponse:  # noqa: ARG001  # the signature of a view
    """Show the reminders so far."""
    return JsonResponse({"reminded": reminded})


urlpatterns = [path("remind", schedule), path("reminded", show)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
