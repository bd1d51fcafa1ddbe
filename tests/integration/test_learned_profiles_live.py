"""A real server learns the profile of an app from its calls, and control applies it."""

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import httpx
from processes import eventually
from torch_worker import torch_server

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.background.jobs import jobs

MODEL = "fairserve-tiny-random"
CALLS = 24
DECLARED = {"stages": [{"input_tokens": 5000, "output_tokens": 200}], "calls_per_interaction": 9}


def test_a_server_learns_the_usage_of_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "PROFILES_INTERVAL_S", 0.2)
    with torch_server(tmp_path / "data") as platform:
        app = platform.new_app(profile=DECLARED)
        client = platform.openai(app["api_key"])

        def call(number, max_tokens=7):
            return client.completions.create(
                model=MODEL,
                prompt=f"{number} " * 20,
                max_tokens=max_tokens,
                user=f"u{number}",
                extra_body={"ignore_eos": True},
            ).usage

        def get(path):
            headers = {"Authorization": f"Bearer {platform.admin_key}"}
            answer = httpx.get(f"{platform.url}{path}", headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text
            return answer.json()

        profile = f"/v1/apps/{app['id']}/profile?tenant={app['tenant_id']}"
        assert get(profile)["in_force"]["source"] == "declared"
        with ThreadPoolExecutor(4) as threads:
            usages = list(threads.map(call, range(CALLS)))
        assert {usage.completion_tokens for usage in usages} == {7}

        def learned():
            found = get(profile)
            held = found["in_force"]
            if held["source"] == "declared" or found["seen"]["calls"] < CALLS:
                return None
            stage = held["profile"]["stages"][0]
            # A few calls teach the prompt size first, the output share later.
            return stage if stage["output_tokens"] == 7 else None

        stage = eventually(learned, lambda: str(get(profile)))
        prompt = sum(usage.prompt_tokens for usage in usages) / CALLS
        apart = abs(stage["input_tokens"] + stage["system_tokens"] - prompt)
        assert apart <= LearningOptions().min_change * prompt  # It was learned from the first 20.
        assert get("/admin/jobs")["done_by"] == "here"

        def predicts_less():
            """Return whether control expects less than the declared usage of a call."""
            call(0, max_tokens=50)
            path = tmp_path / "data/fairserve.sqlite3"
            with contextlib.closing(sqlite3.connect(path)) as db:
                rows = db.execute("SELECT expected_output_tokens FROM ledger_calls").fetchall()
            return len(rows) > CALLS and any(expected < 50 for (expected,) in rows[CALLS:])

        eventually(predicts_less, platform.log)
