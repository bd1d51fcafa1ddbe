"""The real Envoy as a gateway, with a configuration like that of llm-d's standalone chart.

Its cluster of workers sends each request to the address in ``x-gateway-destination-endpoint``, and its
filter asks the picker in full-duplex mode.
"""

import contextlib
import http.client
import json
import signal
import subprocess

import httpx
from installed_envoy import envoy_binary
from processes import eventually, free_port

_TYPES = "type.googleapis.com/envoy.extensions"
_HTTP = f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions"


class EnvoyGateway:
    """Envoy in front of a picker at this port of the loopback."""

    def __init__(self, folder, picker_port, *, tls=True, mode="FULL_DUPLEX_STREAMED", **more):
        self.port, self.admin_port = free_port(), free_port()
        self.log_path = folder / "envoy.log"
        path = folder / "envoy.json"
        path.write_text(json.dumps(self._configuration(picker_port, tls, mode, **more), indent=1))
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(envoy_binary(), "-c", str(path), "-l", "warn"),
                    *("--concurrency", "1", "--disable-hot-restart"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        eventually(self._ready, lambda: f"Envoy is not ready\n{self.log()}")

    def _ready(self):
        assert self.process.poll() is None, self.log()
        try:
            url = f"http://127.0.0.1:{self.admin_port}/clusters"
            healthy = "ext_proc::127" in (text := httpx.get(url).text)
            return healthy and "failed_active_hc" not in text
        except httpx.TransportError:
            return False

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:]

    def close(self):
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def post(self, path, body, **headers):
        return self.http.post(path, json=body, headers=headers)

    @contextlib.contextmanager
    def asking(self, path, body, **headers):
        """Send a request, and disconnect without its answer at the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            plain = {"content-type": "application/json", **headers}
            connection.request("POST", path, json.dumps(body), plain)
            yield connection

    def _configuration(self, picker_port, tls, mode, trailers=True):
        send = "SEND" if trailers else "SKIP"
        processor = {
            "@type": f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {
                "envoy_grpc": {"cluster_name": "ext_proc", "authority": "localhost:9002"},
                "timeout": "10s",
            },
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": mode,
                "response_body_mode": mode,
                "request_trailer_mode": send,
                "response_trailer_mode": send,
            },
            "message_timeout": "1000s",
        }
        router = {
            "@type": f"{_TYPES}.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
        }
        route = {
            "match": {"prefix": "/"},
            "route": {
                "cluster": "original_destination_cluster",
                "timeout": "86400s",
                "idle_timeout": "86400s",
            },
        }
        manager = {
            "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "http",
            "route_config": {
                "virtual_hosts": [{"name": "vllm", "domains": ["*"], "routes": [route]}]
            },
            "http_filters": [
                {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
                {"name": "envoy.filters.http.router", "typed_config": router},
            ],
            "use_remote_address": True,
            "normalize_path": True,
            "merge_slashes": True,
            "server_header_transformation": "PASS_THROUGH",
        }
        picker = {
            "name": "ext_proc",
            "type": "STATIC",
            "connect_timeout": "10s",
            "lb_policy": "LEAST_REQUEST",
            "health_checks": [
                {
                    "timeout": "2s",
                    "interval": "10s",
                    "no_traffic_interval": "1s",
                    "unhealthy_threshold": 3,
                    "healthy_threshold": 2,
                    "reuse_connection": True,
                    "grpc_health_check": {
                        "service_name": "envoy.service.ext_proc.v3.ExternalProcessor"
                    },
                    "tls_options": {"alpn_protocols": ["h2"]},
                }
            ],
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": _HTTP,
                    "explicit_http_config": {
                        "http2_protocol_options": {
                            "initial_stream_window_size": 65536,
                            "initial_connection_window_size": 1048576,
                        }
                    },
                }
            },
            "load_assignment": _endpoint("ext_proc", picker_port),
        }
        if tls:
            picker["transport_socket"] = {
                "name": "envoy.transport_sockets.tls",
                "typed_config": {
                    "@type": f"{_TYPES}.transport_sockets.tls.v3.UpstreamTlsContext",
                    "common_tls_context": {"validation_context": {}},
                },
            }
        workers = {
            "name": "original_destination_cluster",
            "type": "ORIGINAL_DST",
            "connect_timeout": "10s",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {
                "use_http_header": True,
                "http_header_name": "x-gateway-destination-endpoint",
            },
        }
        listener = {
            "name": "vllm",
            "address": _address(self.port),
            "per_connection_buffer_limit_bytes": 32768,
            "filter_chains": [
                {
                    "filters": [
                        {
                            "name": "envoy.filters.network.http_connection_manager",
                            "typed_config": manager,
                        }
                    ]
                }
            ],
        }
        return {
            "admin": {"address": _address(self.admin_port)},
            "static_resources": {"listeners": [listener], "clusters": [workers, picker]},
        }


def _address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _endpoint(name, port):
    endpoint = {"endpoint": {"address": _address(port)}}
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
