"""``POST /admin/throttling/preview`` over HTTP, and on a running server with workers."""

import threading
import time
from dataclasses import replace

import openai
import pytest
from call_records import call_record
from databases import ON_POSTGRESQL
from preview_world import EPOCH, MODEL, History, traffic
from processes import eventually
from sqlalchemy import func, select
from torch_worker import torch_server

from fairserve.platform.base.errors import FairServeError, UnavailableError
from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.db.operations import AuditEntry, ThrottlingSetting
from fairserve.platform.reporting.traffic.segments import recording_folder
from fairserve.platform.tuning.preview import service as previewing
from fairserve.platform.tuning.preview.schemas import PreviewIn
from fairserve.platform.tuning.preview.service import gather
from fairserve.scheduling.events import WorkerDraining, WorkerJoined
from fairserve.scheduling.registry import SYSTEMS

PATH = "/admin/throttling"
PREVIEW = f"{PATH}/preview"
SECONDS = 300.0
FREE = {"system": "rpm-1000"}


def records(history):
    """Return rows as control would report them; the worker of the history served ``m``."""
    rows = [
        (
            row,
            {
                "outcome": row.outcome,
                "stage": row.stage,
                "input_tokens": row.input_tokens,
                "system_tokens": row.system_tokens,
                "cached_tokens": row.cached_tokens,
                "output_tokens": row.output_tokens,
                "queue_delay_s": row.queue_s,
                "ttft_s": row.ttft_s,
                "duration_s": row.duration_s,
            },
        )
        for row in history.served
    ]
    rows += [
        (
            row,
            {
                "outcome": "refused",
                "stage": 1,
                "refusal_reason": row.reason,
                "refusal_scope": "user",
                "mid_run": row.mid_run,
            },
        )
        for row in history.refused
    ]
    return [
        call_record(
            getattr(row, "call_id", f"refused-{number}"),
            tenant=row.tenant,
            app=row.app,
            user=row.user,
            model="an-alias",
            served_model=MODEL,
            interaction_id=row.run,
            accepted_at=row.at,
            ended_at=row.at + (more.get("duration_s") or 0.0),
            **more,
        )
        for number, (row, more) in enumerate(rows)
    ]


@pytest.fixture
def happened(management, monkeypatch):
    """Record five minutes of a flood that just ended, in the recording and in the ledger."""
    management.platform.traffic.close()  # it would delete recordings of that age
    folder = recording_folder(management.state.settings.db.data_dir)
    history = History(folder, traffic(150), system=SYSTEMS["rpm-20"])
    with management.state.session_factory.begin() as session:
        upsert_calls(session, records(history))
    monkeypatch.setattr(previewing, "utc_s", lambda: EPOCH + SECONDS)
    put = {"system": "rpm-20"}
    management.call(management.admin_key, "PUT", PATH, put)
    management.control.real.post(WorkerJoined("w0", 8000, MODEL))
    return history


def preview(management, body=FREE, *, status=200, key=None):
    return management.call(key or management.admin_key, "POST", PREVIEW, body, status=status)


def rows(management):
    with management.state.session_factory() as session:
        return [
            session.scalar(select(func.count()).select_from(table))
            for table in (AuditEntry, ThrottlingSetting)
        ]


def test_a_preview_compares_and_changes_nothing(management, happened):
    before = rows(management)
    found = preview(management)
    assert rows(management) == before
    assert management.control.applied[1:] == []
    assert found["window"]["runs"] == 150
    assert found["workers"]["model"] == MODEL
    assert found["fidelity"]["refused_calls"]["measured"] == len(happened.refused)
    assert found["fidelity"]["trust"] == "good"
    assert found["proposed"]["refused_calls"] == 0 < found["current"]["refused_calls"]
    assert found["users"][0]["user"] == "u0"
    assert found["sentences"][0].startswith("0 calls would have been rejected")
    assert preview(management) == found


def test_minutes_bound_the_window(management, happened):
    short = preview(management, {**FREE, "minutes": 2})["window"]
    assert 0 < short["runs"] < 100
    assert short["from"] == "2023-11-14T22:16:20Z"
    assert short["until"] == "2023-11-14T22:18:20Z"


WRONG_SETTINGS = [
    ({"system": "nothing"}, "system"),
    ({"system": "rpm-0"}, "system"),
    ({"system": "fairserve", "parameters": {"nothing": 1}}, "parameters"),
    ({"system": "fairserve", "parameters": {"throttle.user_limit": "x"}}, "parameters"),
    ({"system": "fairserve", "parameters": {"low_watermark": 9}}, "parameters"),
    ({"system": "fcfs", "parameters": {"feeder.x": ["a"]}}, "parameters.feeder.x"),
    ({"system": "fcfs", "parameters": {"feeder.x": "a" * 101}}, "parameters.feeder.x"),
    ({"system": "fairserve", "policy": "oit"}, "policy"),
    ({"parameters": {}}, "system"),
]


def test_a_preview_rejects_the_same_values_as_a_change(management):
    for body, param in WRONG_SETTINGS:
        answer = preview(management, body, status=400)
        assert answer["error"]["param"] == param, (body, answer)
        assert management.call(management.admin_key, "PUT", PATH, body, status=400) == answer


def test_fields_of_a_preview_are_checked(management):
    for field, value in (("minutes", 0), ("minutes", 61), ("expected_version", 0)):
        body = FREE | {field: value}
        management.rejected(management.admin_key, "POST", PREVIEW, body, param=field)


def test_without_traffic_the_error_names_the_cause(management):
    error = preview(management, status=409)["error"]
    assert error["code"] == "nothing_recorded"
    assert "no traffic is recorded yet" in error["message"]


def test_old_traffic_counts_as_no_traffic(management, happened, monkeypatch):
    monkeypatch.setattr(previewing, "utc_s", lambda: EPOCH + 86_400)
    error = preview(management, status=409)["error"]
    assert error["code"] == "nothing_recorded"
    assert "in the last 10 min" in error["message"]


def test_without_a_recording_the_error_names_the_next_step(management):
    management.state.preview = replace(management.state.preview, recording=None)
    error = preview(management, status=409)["error"]
    assert error["code"] == "nothing_recorded"
    assert "--trace-recording" in error["message"]


def test_without_a_worker_the_error_names_the_cause(management, happened):
    management.control.real.post(WorkerDraining("w0"))
    assert preview(management, status=409)["error"]["code"] == "no_worker"


def test_the_number_of_read_rows_is_bounded(management, happened, monkeypatch):
    monkeypatch.setattr(previewing, "MAX_SERVED_ROWS", 120)
    monkeypatch.setattr(previewing.preview_rows, "PAGE_ROWS", 50)
    window = preview(management)["window"]
    assert window["cut"]
    newest = sorted((row.at for row in happened.served), reverse=True)[119]
    assert window["from"] >= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(newest - 1))
    assert 0 < window["calls"] < 250


@ON_POSTGRESQL
def test_reading_in_pages_skips_no_row(management, happened, monkeypatch):
    monkeypatch.setattr(previewing.preview_rows, "PAGE_ROWS", 7)
    monkeypatch.setattr(previewing.preview_rows, "LOOKED_UP", 2)
    cluster = management.on_loop(management.control.cluster)
    job = gather(management.state.preview, cluster, PreviewIn(**FREE), EPOCH + SECONDS)
    assert len(job.served) == sum(row.at <= EPOCH + SECONDS for row in happened.served)
    assert len(job.refused) == len(happened.refused)
    assert len({*job.served}) == len(job.served)


def made(management, *, gone, **more):
    """Return the error of a preview."""
    previews = replace(management.state.preview, **more)

    async def make():
        with pytest.raises(FairServeError) as caught:
            await previews.make(PreviewIn(**FREE), gone)
        return caught.value

    return management.on_loop(make)


async def stays():
    return False


def test_a_preview_stops_at_its_time_limit(management, happened):
    error = made(management, gone=stays, time_limit_s=0.01)
    assert isinstance(error, UnavailableError)
    assert error.code == "preview_timeout"


def test_a_preview_stops_when_the_client_disconnects(management, happened):
    async def gone():
        return True

    error = made(management, gone=gone)
    assert error.status == 499


def test_a_concurrent_preview_is_rejected(management, happened, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    whole = previewing.gather

    def held(*given):
        begun.set()
        assert go_on.wait(60)
        return whole(*given)

    monkeypatch.setattr(previewing, "gather", held)
    answers = []
    first = threading.Thread(target=lambda: answers.append(preview(management)))
    first.start()
    assert begun.wait(60)
    error = preview(management, status=409)["error"]
    assert error["code"] == "preview_busy"
    go_on.set()
    first.join(60)
    assert answers[0]["proposed"]["refused_calls"] == 0
    assert preview(management)["window"]["runs"] == 150


PROFILE = {
    "stages": [{"input_tokens": 120, "system_tokens": 0, "output_tokens": 24}],
    "calls_per_interaction": 1,
}


def test_a_running_server_previews_its_own_traffic(tmp_path):
    """A limit rejects some calls; without it the replay rejects none."""
    with torch_server(tmp_path / "data") as server:
        app = server.new_app(profile=PROFILE)
        server.call(server.admin_key, "PUT", PATH, {"system": "rpm-5"})
        client = server.openai(app["api_key"])
        rejected = 0
        for number in range(12):
            try:
                client.chat.completions.create(
                    model="fairserve-tiny-random",
                    user="flooder",
                    messages=[{"role": "user", "content": f"{number}: how do tides work?"}],
                    max_tokens=8,
                )
            except openai.RateLimitError:
                rejected += 1
        client.close()
        assert rejected == 7
        server.wait_for_usage(calls=12)
        folder = server.data_dir / "recording"
        eventually(
            lambda: sum(p.read_bytes().count(b"\n") for p in folder.glob("*.jsonl")) == 1 + 5,
            "the calls were not recorded",
        )
        found = server.call(server.admin_key, "POST", PREVIEW, FREE)
        assert found["window"]["runs"] == 12
        assert found["window"]["estimated_runs"] == 7
        assert (found["window"]["users"], found["workers"]["number"]) == (1, 1)
        assert found["workers"]["costs"]["source"] == "scaled"
        assert found["current"]["refused_calls"] == 7
        assert found["current"]["refused_by_reason"] == {"rpm_user_limit": 7}
        assert found["proposed"]["refused_calls"] == 0
        assert found["proposed"]["completed_interactions"] == 12
        assert found["users"][0]["user"] == "flooder"
        assert found["sentences"][0] == ("0 calls would have been rejected instead of 7.")
        assert server.call(server.admin_key, "GET", PATH)["system"] == "rpm-5"
