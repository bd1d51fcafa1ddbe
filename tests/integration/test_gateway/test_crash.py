"""After a server is killed, the next one knows the spending and continues declared programs.

Calls under load, embedded workers and drains are in ``test_processes.py``.
"""

from processes import eventually
from scripted_worker import ScriptedWorker

from .test_limits import BUDGET, COST, CROWDED, Client, priced, remaining
from .test_programs.asking import rows
from .test_programs.interrupted import INTERRUPTED, assert_continues, interrupted


def test_a_crash_loses_no_spending_and_no_program(start_process):
    worker = ScriptedWorker()
    try:
        server = priced(start_process("--worker-urls", worker.url))
        client = Client(server, "spender", contract={**CROWDED, "max_budget": float(5 * COST)})
        while client.call().status_code == 200:
            pass
        before = interrupted(server, worker)
        eventually(lambda: client.spent() > 0)
        left = remaining(client.call())

        server.kill()
        assert rows(server, "programs", id=INTERRUPTED)[0]["state"] == "running"
        server.start()
        again = client.call()
        assert again.json()["error"]["code"] == "insufficient_quota"
        assert remaining(again) == left
        client.change(contract={"max_budget": float(BUDGET)})
        answer = client.call()
        assert answer.status_code == 200
        expected = left + BUDGET - 6 * COST
        assert remaining(server.request("GET", "/v1/models", client.key)) == expected
        assert_continues(server, worker, before)
    finally:
        worker.close()
