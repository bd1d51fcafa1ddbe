"""``serve --model DIR``: a checkpoint of one's own, from the folder to the client."""

import httpx
import pytest
from checkpoints import write_checkpoint
from live_server import LiveServer

MESSAGES = [{"role": "user", "content": "Tell me about tides."}]


def greedy(folder, tokens):
    """transformers' own answer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tides-llama")
    write_checkpoint(folder, "llama")
    with LiveServer(tmp_path_factory.mktemp("server"), workers=1, model=folder) as server:
        yield server, folder


def test_a_checkpoint_is_served_as_transformers_would(served):
    server, folder = served
    client = server.openai(server.new_app()["api_key"])
    assert [model.id for model in client.models.list()] == [folder.name]
    for name in (folder.name, str(folder)):
        answer = client.chat.completions.create(
            model=name, messages=MESSAGES, max_tokens=16, temperature=0
        )
        assert answer.choices[0].message.content == greedy(folder, 16)
    client.close()


def test_an_idle_run_whose_last_call_never_came_expires_with_its_tokens_wasted(served):
    server, folder = served
    profile = {
        "stages": [{"input_tokens": 30, "system_tokens": 0, "output_tokens": 8}],
        "calls_per_interaction": 2,
        "idle_timeout_s": 0.5,
    }
    key = server.new_app(name="forgetful", profile=profile)["api_key"]
    headers = {"Authorization": f"Bearer {key}", "X-Interaction-Id": "left"}
    opened = {"id": "left", "sink": "report"}
    answer = httpx.post(f"{server.url}/v1/interactions", headers=headers, json=opened, timeout=60)
    assert answer.status_code == 201, answer.text
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        headers=headers,
        json={"model": str(folder), "messages": MESSAGES, "max_tokens": 8},
        timeout=60,
    )
    assert answer.status_code == 200
    used = answer.json()["usage"]["total_tokens"]
    run = server.wait_for("/v1/interactions/left", key, lambda run: run["state"] == "expired")
    assert (run["tokens"], run["wasted_tokens"], run["waste_cause"]) == (used, used, "expired")
