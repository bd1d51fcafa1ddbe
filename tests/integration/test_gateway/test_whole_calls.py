"""Calls that are not streamed are not streamed by the worker, whose start is learned all the same."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from journal_files import entries
from processes import eventually
from scripted_worker import ScriptedWorker

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def late():
    """Return a worker that sends the header of a whole answer at its end, as vLLM does."""
    worker = ScriptedWorker(late_heads=True)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def gateway(start_server, late):
    return start_server("--worker-urls", late.url)


def body(text, **more):
    messages = [{"role": "user", "content": text}]
    return {"model": "scripted", "messages": messages, "max_tokens": 20, **more}


def progress_entries(gateway):
    """Return the number of progress entries in the journal; a whole call has one from its start on."""
    return sum(entry["kind"] == "progress" for entry in entries(gateway.data_dir))


def test_the_start_of_a_call_is_learned_from_the_number_of_waiting_calls(gateway, late):
    with gateway.asking(PATH, body("stall waits"), **{"X-Interaction-Id": "run-waits"}):
        eventually(lambda: late.waiting == 1, "the worker has the call")
        scraped = late.scrapes
        eventually(lambda: late.scrapes >= scraped + 4, "nobody reads the metrics")
    row = gateway.row(interaction_id="run-waits")
    assert (row["outcome"], row["estimated"]) == ("cancelled", 0)
    assert (row["input_tokens"], row["output_tokens"]) == (0, 0), "it waited"
    known = progress_entries(gateway)
    with gateway.asking(PATH, body("hold runs"), **{"X-Interaction-Id": "run-runs"}):
        eventually(lambda: progress_entries(gateway) > known, "its start was not reported")
    row = gateway.row(interaction_id="run-runs")
    assert (row["outcome"], row["estimated"]) == ("cancelled", 1)
    assert row["input_tokens"] > 0
    assert 0 < row["output_tokens"] <= 20


def test_a_stream_that_is_left_before_its_first_output_has_used_its_prompt(gateway, late):
    """vLLM sends nothing while it computes a prompt: who leaves then could have it for nothing."""
    asked = body("stall while the prompt is computed", stream=True)
    with gateway.asking(PATH, asked, **{"X-Interaction-Id": "run-prompt"}):
        eventually(lambda: late.waiting == 1, "the worker has the call")
    row = gateway.row(interaction_id="run-prompt")
    assert (row["outcome"], row["output_tokens"], row["estimated"]) == ("cancelled", 0, 0)
    assert row["input_tokens"] > 0


def test_a_waiting_call_is_retried_and_a_started_one_is_not(start_server, late):
    other = ScriptedWorker(late_heads=True)
    gateway = start_server("--worker-urls", f"{late.url},{other.url}")
    workers = late, other

    def sent(text):
        return sum(text in str(each["messages"]) for worker in workers for each in worker.bodies)

    def ask(text):
        return gateway.post(PATH, body(text), headers={"X-Interaction-Id": f"run-{text[:4]}"})

    with ThreadPoolExecutor() as pool:
        waits = pool.submit(ask, "stall a retry")
        eventually(lambda: any(worker.waiting for worker in workers))
        (first,) = (worker for worker in workers if worker.waiting)  # not both: one gets the retry
        first.drop()
        eventually(lambda: sent("stall a retry") == 2, "another worker did not get it")
        for worker in workers:
            worker.release()
        assert waits.result().status_code == 200
        known = progress_entries(gateway)
        runs = pool.submit(ask, "hold no retry")
        eventually(lambda: progress_entries(gateway) > known, "its start was not reported")
        for worker in workers:
            worker.drop()
        answer = runs.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_failed")
    assert sent("hold no retry") == 1
    row = gateway.row(interaction_id="run-hold")
    assert (row["outcome"], row["estimated"], row["wasted"]) == ("failed", 1, 1)
    other.close()


def test_a_whole_answer_keeps_the_fields_of_its_worker(gateway, late):
    answer = gateway.post(PATH, body("use f")).json()
    (choice,) = answer["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert choice["finish_reason"] == "tool_calls"
    assert answer["id"].startswith("chatcmpl-call_")
    assert (answer["model"], answer["object"]) == ("scripted", "chat.completion")
    assert answer["usage"]["prompt_tokens"] == 12
    assert late.bodies[-1]["stream"] is False
    assert "stream_options" not in late.bodies[-1]
