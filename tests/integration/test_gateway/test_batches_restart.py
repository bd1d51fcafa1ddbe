"""A batch continues after its server is killed: no line ends twice, and none is lost."""

import pytest
from processes import eventually

from .test_batches import chat, create, ended, lines, results


@pytest.fixture(scope="module")
def killed(start_process, scripted):
    return start_process(
        *("--worker-urls", scripted[0].url, "--batch-parallel-calls", "3"),
    )


def test_a_killed_server_continues_its_batch(killed, scripted):
    worker = scripted[0]
    client = killed.openai()
    texts = [*(f"say before {n}" for n in range(6)), *(f"hold after {n}" for n in range(6))]
    batch = create(client, lines(*(chat(text, max_tokens=50) for text in texts)))
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed == 6)
    eventually(lambda: len(worker.holding) == 3)
    killed.kill()
    killed.start()

    def rest():
        worker.release()
        found = client.batches.retrieve(batch.id)
        return found if found.status == "completed" else None

    batch = eventually(rest)
    assert batch.request_counts.to_dict() == {"total": 12, "completed": 12, "failed": 0}
    answers = results(client, batch.output_file_id)
    assert list(answers) == [f"line-{number}" for number in range(12)]
    said = [
        each["response"]["body"]["choices"][0]["message"]["content"] for each in answers.values()
    ]
    assert said[:6] == [f"before {number}" for number in range(6)]
    called = [body["messages"][-1]["content"] for body in worker.bodies]
    assert all(called.count(text) == 1 for text in texts[:6]), "ended lines are not called again"
    assert all(called.count(text) in (1, 2) for text in texts[6:])
    assert sum(called.count(text) for text in texts[6:]) == 9, "three were running when it died"


def test_a_stopped_server_releases_its_batch(start_server, scripted):
    server = start_server("--worker-urls", scripted[0].url, "--drain-timeout-s", "0")
    batch = create(server.openai(), lines(*(chat(f"hold s{number}") for number in range(4))))
    eventually(lambda: any("s0" in text for text in scripted[0].holding))
    server.stop()
    (row,) = server.rows("batches", id=batch.id)
    assert (row["state"], row["lease_until"]) == ("in_progress", None)
    assert not server.rows("batch_results", batch_id=batch.id), "a stop is no result"
    server.start()
    client = server.openai()
    client.batches.cancel(batch.id)
    assert ended(client, batch.id).status == "cancelled"
