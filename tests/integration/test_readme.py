"""The program in the README runs unchanged against a server, any number of times."""

import re
from pathlib import Path

import httpx
from torch_worker import torch_server

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_program_of_the_readme_runs(tmp_path):
    program = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    with torch_server(tmp_path / "data", "demo") as server:
        program = program.replace("http://127.0.0.1:8000", server.url)
        assert '"sk-fs-a-..."' in program
        program = program.replace("sk-fs-a-...", server.admin_key)
        for runs in (1, 2):
            names = {}
            exec(compile(program, "README.md", "exec"), names)
            names["client"].close()
            (answer,) = names["text"].choices
            assert answer.finish_reason == "stop"
            assert "Plan a report on tides." in answer.message.content
            usage = server.wait_for_usage(calls=2 * runs, complete_runs=runs)
            assert usage["completed"] == 2 * runs
            assert usage["interactions"]["complete"] == runs
        assert (
            len(server.call(server.admin_key, "GET", "/admin/apps", name="research")["items"]) == 1
        )
        answer = httpx.get(
            f"{server.url}/v1/usage",
            headers={"Authorization": f"Bearer {names['tenant']['api_key']}"},
            timeout=60,
        )
        assert answer.status_code == 200
