"""Test ``fairserve serve --model DIR`` and its console: a process of its own, with the torch engine."""

import json

import httpx
import pytest
from checkpoints import write_checkpoint
from gateway_server import ChildServer

from fairserve.platform.console.sign_in.limit import MAX_WRONG

STREAM = "/console/overview/stream"
MESSAGES = [{"role": "user", "content": "Tell me about tides."}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return the folder of a checkpoint of the operator."""
    return write_checkpoint(tmp_path_factory.mktemp("tides-llama"), "llama")


@pytest.fixture(scope="module")
def own(tmp_path_factory, checkpoint):
    """Return a server that started without data, with an embedded worker."""
    data_dir = tmp_path_factory.mktemp("server") / "data"
    flags = {"workers": 1, "model": checkpoint, "log_level": "warning"}
    with ChildServer(data_dir, empty=True, **flags) as running:
        yield running


@pytest.fixture
def server(own):
    """Return the server, which a test may stop."""
    if not own.runs():
        own.start()
    return own


@pytest.fixture(scope="module")
def session(own):
    """Return a session of an operator who signed in before the wrong keys."""
    with httpx.Client(base_url=own.url, timeout=60) as client:
        client.post("/console/sign-in", data={"key": own.admin_key}, timeout=60)
        yield client


def greedy(folder, tokens):
    """Return the greedy output of transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_a_checkpoint_is_served_with_the_output_of_transformers(server, checkpoint):
    expected = greedy(checkpoint, 16)
    client = server.openai(server.new_app()["api_key"])
    assert [model.id for model in client.models.list()] == [checkpoint.name]
    for name in (checkpoint.name, str(checkpoint)):
        answer = client.chat.completions.create(
            model=name, messages=MESSAGES, max_tokens=16, temperature=0
        )
        assert answer.choices[0].message.content == expected


def test_calls_are_shown_while_they_run(browser, server, checkpoint, session):
    app = server.new_app(name="real")
    (cookie,) = session.cookies.jar
    with browser.visit(server.url) as visit:
        visit.context.add_cookies(
            [{"name": cookie.name, "value": cookie.value, "url": f"{server.url}/console"}]
        )
        visit.open("/console/overview")
        visit.page.locator(".live.on").wait_for()
        server.openai(app["api_key"]).chat.completions.create(
            model=checkpoint.name, messages=MESSAGES, user="eve", max_tokens=5
        )
        visit.page.locator("[data-chart=calls][aria-label*='accepted 0.']").wait_for()
        assert not visit.faults()
        assert visit.open("/console/cluster") == 200
        worker = visit.page.locator("#worker-w0")
        worker.get_by_text("serving").wait_for()
        data = json.loads(visit.page.locator("#chart-data").inner_text())
        assert data["kv"]["series"][0]["label"] == "w0"


def test_wrong_keys_are_counted_and_reveal_nothing(server, session):
    for _ in range(MAX_WRONG):
        answer = httpx.post(
            f"{server.url}/console/sign-in", data={"key": "sk-fs-a-guess"}, timeout=60
        )
        assert answer.status_code == 401
        assert "unknown or revoked" in answer.text
        assert "guess" not in answer.text
    answer = httpx.post(f"{server.url}/console/sign-in", data={"key": server.admin_key}, timeout=60)
    assert answer.status_code == 429, "the right one, too: who guesses learns nothing"
    assert 200 < int(answer.headers["retry-after"]) <= 301
    assert "guess" not in server.log()
    assert server.admin_key not in server.log()


def test_live_pages_do_not_delay_a_stop(server, session):
    first = session.send(session.build_request("GET", STREAM), stream=True)
    assert next(first.iter_lines()) == "retry: 3000"
    assert server.stop() == 0
    first.close()
