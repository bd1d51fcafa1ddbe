"""A tokenizer of the model hub is downloaded once, without the model, and is then on this host."""

import json
import os
import subprocess
import sys
import threading
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fairserve.engine.torch.builtin_model import ensure_builtin_model
from fairserve.platform.fleet.prompts.reader import load_counter

REVISION = "0" * 40
MODEL = "org/model"
LOAD = f"""
import sys
from fairserve.platform.fleet.prompts.reader import load_counter
counter = load_counter("{MODEL}", fetch=sys.argv[1] == "fetch")
print(counter.chat([{{"role": "user", "content": "hello"}}], None).token_ids.tolist())
"""


class HubRequest(BaseHTTPRequestHandler):
    """Answers what the hub's library asks for, with the files of the built-in model."""

    def _answer(self):
        path = self.path.partition("?")[0]
        self.server.paths.append(path)
        files = {file.name: file.read_bytes() for file in ensure_builtin_model().iterdir()}
        name = path.rpartition("/")[2]
        headers, content = {}, None
        if path == f"/api/models/{MODEL}/revision/main":
            siblings = [{"rfilename": name} for name in files]
            content = json.dumps({"id": MODEL, "sha": REVISION, "siblings": siblings}).encode()
        elif path.startswith(f"/api/models/{MODEL}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(each), "oid": name}
                for name, each in files.items()
            ]
            content = json.dumps(tree).encode()
        elif path.startswith(f"/{MODEL}/resolve/") and name in files:
            content = files[name]
            headers = {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": REVISION}
        self.send_response(404 if content is None else 200)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_GET = do_HEAD = _answer  # noqa: N815

    def log_message(self, *arguments):
        """Write nothing."""


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubRequest)
    server.paths = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_tokenizer_of_the_hub_is_downloaded_once_and_without_the_model(hub, tmp_path):
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HUB_CACHE": str(tmp_path),
        "HF_HUB_OFFLINE": "0",
    }

    def load(how):
        command = [sys.executable, "-c", LOAD, how]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    missing = load("here")
    assert "neither a folder nor in the hub's cache" in missing.stderr
    assert hub.paths == []
    want = load_counter(ensure_builtin_model()).chat([{"role": "user", "content": "hello"}], None)
    assert load("fetch").stdout == f"{want.token_ids.tolist()}\n"
    asked = {path.rpartition("/")[2] for path in hub.paths if "/resolve/" in path}
    assert asked == {"config.json", "tokenizer.json", "tokenizer_config.json"}
    hub.paths.clear()
    assert load("here").stdout == f"{want.token_ids.tolist()}\n"
    assert hub.paths == []
