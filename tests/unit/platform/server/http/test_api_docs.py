"""The description of the API is written once, and no stream waits for that."""

import asyncio

from fastapi.testclient import TestClient

from fairserve.platform.server.app import create_app
from fairserve.platform.server.settings import Settings


def test_the_description_is_written_once_and_beside_the_event_loop():
    app = create_app(Settings(), None)
    plain, loops = app.openapi, []

    def described():
        loops.append(asyncio._get_running_loop())
        return plain()

    app.openapi = described
    client = TestClient(app)
    first, second = client.get("/openapi.json"), client.get("/openapi.json")
    assert first.headers["content-type"] == "application/json"
    assert first.json()["paths"]
    assert first.content == second.content
    assert loops == [None]
