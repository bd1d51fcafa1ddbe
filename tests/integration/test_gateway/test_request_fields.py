"""Request fields reach only workers that honour them, on whole servers, scripted and real workers."""

import json

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker
from sse import data_of
from torch_worker import shared_worker

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME as MODEL

PATH = "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CHOSEN = {
    "vllm": {"top_k": 7, "min_p": 0.1, "thinking_token_budget": 9, "stop_token_ids": [5]},
    "openai": {"verbosity": "low"},
}
"""Fields that only workers of this kind honour."""
NEUTRAL = {"top_k": -1, "repetition_penalty": 1, "best_of": 1, "store": False, "logit_bias": None}


@pytest.fixture(scope="module")
def mixed(start_fleet):
    """Yield a server with a worker of each foreign kind for one model; ``workers`` by kind."""
    workers = {"vllm": ScriptedWorker(), "openai": ScriptedWorker()}
    fleet = [
        {"id": kind, "url": worker.url, "kind": kind, "model": "scripted"}
        for kind, worker in workers.items()
    ]
    server = start_fleet(fleet)
    server.workers = workers
    eventually(lambda: all(worker["ready"] for worker in server.cluster()["workers"]))
    yield server
    for worker in workers.values():
        worker.close()


@pytest.fixture(scope="module")
def beside(start_server):
    """Yield a server with the embedded engine and a scripted vLLM for one model."""
    worker = ScriptedWorker(model=MODEL)
    server = start_server("--worker-urls", f"{shared_worker().url},{worker.url}")
    server.worker = worker
    eventually(lambda: all(each["ready"] for each in server.cluster()["workers"]))
    yield server
    worker.close()


def call(server, text="ok", *, model="scripted", **more):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 9}
    return server.post(PATH, body | more)


def bodies(worker, text):
    return [body for body in worker.bodies if text in str(body["messages"])]


def rejection(answer):
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["message"].startswith(error["param"])
    return error["param"], error["code"]


@pytest.mark.parametrize("kind", CHOSEN)
def test_only_workers_that_honour_a_field_are_candidates(mixed, kind):
    for number in range(4):
        text = f"ok for {kind} {number}"
        assert call(mixed, text, **CHOSEN[kind]).headers["x-fairserve-worker"] == kind
        (body,) = bodies(mixed.workers[kind], text)
        assert {name: body[name] for name in CHOSEN[kind]} == CHOSEN[kind]


def request(path, **more):
    """Return a small request of a protocol that chat calls answer."""
    said = (
        {"input": "ok"} if path == RESPONSES else {"messages": [{"role": "user", "content": "ok"}]}
    )
    return {"model": "scripted", **said, **({"max_tokens": 9} if path == MESSAGES else {}), **more}


@pytest.mark.parametrize(
    ("path", "field"), [(PATH, "top_k"), (RESPONSES, "top_k"), (MESSAGES, "top_k"), (PATH, "min_p")]
)
def test_a_rejection_names_the_field_the_model_and_its_workers_with_their_kinds(plain, path, field):
    value = {"top_k": 7, "min_p": 0.5}[field]
    answer = plain.post(path, request(path, **{field: value}))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"] == (
        f"{field}: the workers of 'scripted' (w: openai) cannot honour it together with the other"
        " fields of this call; leave it out, or choose another model"
    )


SAMPLING = {
    "seed": 3,
    "stop": ["x"],
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "top_k": 7,
    "min_p": 0.1,
    "min_tokens": 2,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "stop_token_ids": [5],
    "allowed_token_ids": [5, 6],
    "bad_words": ["x"],
    "ignore_eos": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "structured_outputs": {"choice": ["a", "b"]},
}


@pytest.mark.parametrize("path", [PATH, RESPONSES])
@pytest.mark.parametrize("field", SAMPLING)
def test_sampling_fields_reach_workers_of_vllm_from_chat_and_responses(mixed, path, field):
    answer = mixed.post(path, request(path, **{"top_k": 9, field: SAMPLING[field]}))
    assert answer.headers["x-fairserve-worker"] == "vllm", answer.text
    assert mixed.workers["vllm"].bodies[-1][field] == SAMPLING[field]


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", -2), ("min_p", 1.5), ("structured_outputs", {"regex": "x"}), ("bad_words", [""])],
)
def test_sampling_fields_have_the_same_bounds_in_chat_and_responses(mixed, field, value):
    params = {
        rejection(mixed.post(each, request(each, **{field: value})))[0]
        for each in (PATH, RESPONSES)
    }
    (param,) = params
    assert param.startswith(field)


def test_fields_that_no_single_worker_honours_are_rejected(mixed):
    assert rejection(call(mixed, verbosity="low", top_k=7)) == ("top_k", "unsupported_parameter")


def test_fields_without_effect_are_removed_for_plain_workers(plain):
    assert call(plain, "ok neutral", **NEUTRAL, user="ann").status_code == 200
    (body,) = bodies(plain.worker, "neutral")
    assert body.keys() == {"model", "messages", "max_tokens", "stream"}


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ({"kv_transfer_params": {"do_remote_decode": True}}, "invalid_value"),
        ({"extra_args": {}}, "invalid_value"),
        ({"vllm_xargs": {"client_id": "other"}}, "invalid_value"),
        ({"mm_processor_kwargs": {"num_crops": 10**6}}, "invalid_value"),
        ({"priority": -5}, "invalid_value"),
        ({"chat_template": "{{ x }}"}, "invalid_value"),
        ({"documents": [{"text": "long"}]}, "unknown_parameter"),
        ({"best_of": 8}, "unsupported_parameter"),
        ({"use_beam_search": True}, "unsupported_parameter"),
        ({"prompt_logprobs": 1}, "unsupported_parameter"),
        ({"echo": True}, "unsupported_parameter"),
        ({"service_tier": "priority"}, "unsupported_parameter"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_costly_or_privileged_fields_are_rejected(mixed, field, code):
    (name,) = field
    before = [len(worker.bodies) for worker in mixed.workers.values()]
    assert rejection(call(mixed, **field)) == (
        name,
        code,
    )
    assert [len(worker.bodies) for worker in mixed.workers.values()] == before


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"structured_outputs": {"regex": "(a{999}){999}"}}, "structured_outputs.regex"),
        (
            {"response_format": {"type": "structural_tag", "format": {}}},
            "response_format.type",
        ),
        (
            {"structured_outputs": {"json": {"pattern": "(a{99}){99}"}}},
            "structured_outputs.json",
        ),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
    ],
)
def test_field_values_are_bounded(mixed, more, param):
    assert rejection(call(mixed, **more))[0] == param


def test_unsupported_message_parts_are_rejected(mixed):
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    for message, param in (
        ({"role": "user", "content": "x", "audio": {"id": "a"}}, "messages[0].audio"),
        ({"role": "user", "content": [image]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "file"}]}, "messages[0].content[0].type"),
    ):
        assert rejection(call(mixed, messages=[message]))[0] == param


def test_bounded_structured_outputs_are_accepted(mixed):
    wanted = {"choice": ["yes", "no"]}
    answer = call(mixed, "ok structured", structured_outputs=wanted)
    assert answer.headers["x-fairserve-worker"] == "vllm"
    (body,) = bodies(mixed.workers["vllm"], "structured")
    assert body["structured_outputs"] == wanted


def test_a_stream_reports_continuous_usage(mixed):
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = call(mixed, "ok usage", stream=True, stream_options=options)
    *events, done = data_of(answer.text)
    tokens = [json.loads(event)["usage"]["completion_tokens"] for event in events]
    assert (done, tokens) == ("[DONE]", [0, 1, 2, 3, 3, 3])
    assert bodies(mixed.workers["vllm"], "ok usage")


def test_the_embedded_engine_is_no_candidate_for_vllm_fields(beside):
    for number in range(4):
        answer = call(beside, f"ok {number}", model=MODEL, thinking_token_budget=9)
        assert (answer.status_code, answer.headers["x-fairserve-worker"]) == (200, "w1")
    assert len(beside.worker.bodies) == 4


def test_the_embedded_engine_gets_its_fields(server):
    """The engine itself rejects unknown fields, so every accepted one was meant for it."""
    messages = [{"role": "user", "content": "x", "annotations": []}]
    extra = {"top_k": 5, "repetition_penalty": 1.1, "bad_words": ["x"], "tools": []}
    assert call(server, model=MODEL, messages=messages, **extra).status_code == 200
    answer = call(server, model=MODEL, thinking_token_budget=9)
    assert rejection(answer) == ("thinking_token_budget", "unsupported_parameter")
