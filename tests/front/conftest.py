"""What tests of the front share: a client of it."""

import httpx
import pytest


@pytest.fixture
def client():
    """Return a function that makes a client of an application."""

    def make(app, **options):
        return httpx.AsyncClient(transport=httpx.ASGITransport(app, **options), base_url="http://service")

    return make
