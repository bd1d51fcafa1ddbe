"""A real vLLM server with a pooling model runs behind the platform: part of ``make test-vllm``.

The model is a small BERT with random weights. vLLM describes the paths that it serves, and does
its calls in the order of arrival, so that the platform queues them in front of it.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys

import httpx
import numpy as np
import openai
import pytest
import vllm_world  # noqa: F401, skips where vLLM is missing
from embedding_server import CONTEXT, Embedder, write_model
from gateway_server import ChildServer
from processes import eventually, free_port

if importlib.util.find_spec("vllm._C") is None:
    pytest.skip("this build of vLLM has no kernels for CPUs", allow_module_level=True)

MODEL = "bert"
TEXTS = ["a small cat", "b", "the quick brown fox"]
SERVER = ("-m", "vllm.entrypoints.openai.api_server")
READY_S = 240


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def vllm(checkpoint, tmp_path_factory):
    """Yield the URL of vLLM's API server."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    path = tmp_path_factory.mktemp("server") / "log"
    flags = {"model": checkpoint, "served-model-name": MODEL, "runner": "pooling"}
    flags |= {"dtype": "float32", "host": "127.0.0.1", "port": str(port)}
    arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *SERVER, *arguments, "--enforce-eager"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its engine process must end with it
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        )

    def ready():
        assert process.poll() is None, path.read_text(errors="replace")[-4000:]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/health", timeout=5).status_code == 200

    try:
        eventually(ready, lambda: path.read_text(errors="replace")[-4000:], deadline_s=READY_S)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def platform(vllm, tmp_path_factory):
    with ChildServer(tmp_path_factory.mktemp("platform") / "data", worker_urls=vllm) as platform:
        platform.wait_for(
            "/admin/cluster",
            platform.admin_key,
            lambda cluster: [worker["ready"] for worker in cluster["workers"]] == [True],
        )
        yield platform


@pytest.fixture(scope="module")
def client(platform):
    return platform.openai(platform.new_app()["api_key"])


def test_the_task_is_recognised(platform):
    cluster = platform.call(platform.admin_key, "GET", "/admin/cluster")
    (worker,), (model,) = cluster["workers"], cluster["models"]
    assert worker["kind"] == "vllm"
    assert worker["tasks"] == model["tasks"] == ["embed", "rerank"]
    assert worker["local_queue"] == {"waiting": 0, "sent": 0, "concurrency": 16, "paused_s": 0.0}
    assert worker["kv_capacity_tokens"] > CONTEXT, (
        "vLLM reports a cache of one block, which it lacks"
    )
    assert (model["context_tokens"], model["exact_tokens"]) == (CONTEXT, True)


def test_vectors_are_those_of_the_server(vllm, client, checkpoint):
    body = {"model": MODEL, "input": TEXTS}
    direct = httpx.post(f"{vllm}/v1/embeddings", json=body, timeout=60).json()["data"]
    raw = client.embeddings.with_raw_response.create(**body)
    answer = raw.parse()
    for each, expected in zip(answer.data, direct, strict=True):
        assert np.allclose(each.embedding, expected["embedding"], atol=1e-6)
    embedder = Embedder(checkpoint)
    assert answer.usage.prompt_tokens == sum(len(embedder.ids(text)) for text in TEXTS)
    assert raw.headers["x-fairserve-worker"] == "w0"
    fields = {"truncate_prompt_tokens": 4, "cache_salt": "own"}
    short = client.embeddings.create(model=MODEL, input="the quick fox", extra_body=fields)
    assert short.usage.prompt_tokens == 4


def test_documents_are_ranked(vllm, client):
    body = {"model": MODEL, "query": "the fox", "documents": TEXTS, "top_n": 2}
    direct = httpx.post(f"{vllm}/v1/rerank", json=body, timeout=60).json()
    answer = client.post("/rerank", cast_to=dict, body={**body, "return_documents": False})
    assert answer["usage"] == direct["usage"]
    for each, expected in zip(answer["results"], direct["results"], strict=True):
        assert each["index"] == expected["index"]
        assert each["relevance_score"] == pytest.approx(expected["relevance_score"], abs=1e-5)
        assert "document" not in each


def test_what_the_server_cannot_do_is_named(client):
    with pytest.raises(openai.BadRequestError, match=r"worker w0: .*Matryoshka") as raised:
        client.embeddings.create(model=MODEL, input="a", dimensions=8)
    assert raised.value.param == "dimensions"
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(openai.BadRequestError, match="does not generate") as raised:
        client.chat.completions.create(model=MODEL, messages=messages)
    assert raised.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="input has at least") as raised:
        client.embeddings.create(model=MODEL, input="x " * CONTEXT)
    assert raised.value.param == "input"
