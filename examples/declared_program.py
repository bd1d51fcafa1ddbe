"""A planner, a writer for each of its topics and an editor, submitted as one declared program.

It reads OPENAI_BASE_URL (http://127.0.0.1:8000/v1) and OPENAI_API_KEY, an app's key, and needs
httpx.
"""

import json
import os

import httpx

MODEL = os.environ.get("OPENAI_MODEL", "fairserve-demo")

PLAN = {
    "type": "array",
    "items": {"enum": ["causes", "forecasts", "power stations"]},
    "minItems": 3,
    "maxItems": 3,
}
PROGRAM = {
    "user": "ann",
    "model": MODEL,
    "nodes": [
        {
            "id": "planner",
            "messages": [{"role": "user", "content": "List the topics of a report on tides."}],
            "sampling": {
                "max_tokens": 60,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "topics", "schema": PLAN},
                },
            },
        },
        {
            "id": "writer",
            "map": {"over": "planner"},
            "messages": [{"role": "user", "content": "A paragraph on the {{item}} of tides."}],
            "sampling": {"max_tokens": 32},
        },
        {
            "id": "editor",
            "messages": [
                {"role": "user", "content": "Make one text of these: {{writer.output}}"},
            ],
            "sampling": {"max_tokens": 32},
            "expected_output_tokens": 32,
        },
    ],
    "result": "editor",
}


def main() -> None:
    """Submit the program, follow its events, and show its result."""
    base_url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with httpx.Client(base_url=base_url, headers=headers, timeout=60) as client:
        answer = client.post("/interactions", json=PROGRAM)
        answer.raise_for_status()
        run = answer.json()["id"]
        with client.stream("GET", f"/interactions/{run}/events") as events:
            kind = ""
            for line in events.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind == "node":
                    node = json.loads(value)
                    print(f"{node['id']}: {node['state']}")
        record = client.get(f"/interactions/{run}").json()
    print(f"result: {record['program']['result']!r}")
    print(f"run {record['id']}: {record['state']}, {record['calls']} calls")


if __name__ == "__main__":
    main()
