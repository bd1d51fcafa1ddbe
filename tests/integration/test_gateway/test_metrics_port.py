"""Metrics on a port of their own, without a key."""

import httpx
import pytest
from processes import free_port


def test_the_port_answers_metrics_and_nothing_else_until_the_server_stops(start_server, scripted):
    port = free_port()
    flags = ("--worker-urls", scripted[0].url, "--metrics-port", str(port))
    server = start_server(*flags)
    url = f"http://127.0.0.1:{port}"
    answer = httpx.get(f"{url}/metrics")
    assert answer.status_code == 200
    assert 'fairserve_worker_state{state="ready",worker="w0"} 1.0' in answer.text
    same = server.admin("GET", "/metrics").text
    assert "fairserve_build_info" in same
    for path in ("/admin/cluster", "/v1/models", "/livez", "/"):
        assert httpx.get(url + path).status_code == 404
    assert httpx.post(f"{url}/metrics").status_code == 405
    assert server.http.get("/metrics").status_code == 401
    assert server.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/metrics")
