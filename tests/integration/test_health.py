"""Health checks by the names that orchestrators and clients use, without a key."""

import pytest
from whole_server import WholeServer

LIVENESS = ("/health", "/healthz", "/livez", "/health/liveliness")
READINESS = ("/readyz", "/health/readiness")


def statuses(client, paths):
    return {client.get(path).status_code for path in paths}


def test_a_server_without_workers_lives_and_is_not_ready(management):
    assert statuses(management.client, LIVENESS) == {200}
    assert statuses(management.client, READINESS) == {503}
    assert management.client.get("/readyz").json()["status"] == "starting"


def test_a_server_with_a_worker_is_ready_until_it_drains(tmp_path):
    with WholeServer(tmp_path) as server:
        assert statuses(server.client, (*LIVENESS, *READINESS)) == {200}
        server.client.portal.call(server.platform.drain)
        assert statuses(server.client, LIVENESS) == {200}
        assert server.client.get("/readyz").json()["status"] == "draining"


@pytest.mark.parametrize("path", [*LIVENESS, *READINESS])
def test_a_health_check_changes_nothing(management, path):
    assert management.client.post(path).status_code == 405
