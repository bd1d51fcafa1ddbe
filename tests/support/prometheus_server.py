"""Prometheus itself, scraping one target, where it is installed."""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager

import httpx
import pytest
from processes import eventually, free_port

CONFIG = """\
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: fairserve
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """A running Prometheus at ``url``."""

    def __init__(self, url):
        self.url = url

    def query(self, text):
        """Return the labels and the value of each series of an instant query."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": text})
        assert answer.status_code == 200, answer.text
        result = json.loads(answer.text)["data"]["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]


@contextmanager
def prometheus(folder, target):
    """Yield Prometheus, ready to answer. Skips where it is missing, and fails under CI=true."""
    binary = shutil.which("prometheus")
    if binary is None:
        reason = "prometheus is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    config = folder / "prometheus.yaml"
    config.write_text(CONFIG.format(target=target))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"

    def ready():
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        try:
            return httpx.get(f"{url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    try:
        eventually(ready, "prometheus is not ready")
        yield Prometheus(url)
    finally:
        process.kill()
        process.wait()
