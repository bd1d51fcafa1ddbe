"""The recorder is bounded in bytes, age and memory, protects its salt, and never fails a call."""

import stat

import pytest
from recorded_calls import OPENED_AT, ended, writer

from fairserve.interactions.call import Call, TokenUsage
from fairserve.platform.control.call_state import CallState
from fairserve.platform.reporting.traffic import recorder as recorder_module
from fairserve.platform.reporting.traffic.recorder import TrafficRecorder
from fairserve.platform.reporting.traffic.segments import (
    SEGMENTS,
    delete_recording,
    load_salt,
    read_recording,
    segment_paths,
)


def size(folder):
    return sum(path.stat().st_size for path in segment_paths(folder))


def test_the_oldest_segment_is_deleted_at_the_bound(tmp_path):
    now = [OPENED_AT]
    own = writer(tmp_path, max_bytes=40_000, wall=lambda: now[0])
    for number in range(400):
        now[0] += 1.0
        own.write([ended(str(number), number, run=str(number), keys=[number])])
        assert size(tmp_path) <= 40_000 * (1 + 2 / SEGMENTS)
    calls, _, _ = read_recording(tmp_path, 0.0)
    begun = [call.begin_at - OPENED_AT for call in calls]
    assert begun == list(range(400 - len(begun), 400))
    assert size(tmp_path) > 40_000 * (1 - 2 / SEGMENTS)


def test_expired_segments_are_deleted_even_without_traffic(tmp_path):
    now = [OPENED_AT]
    own = writer(tmp_path, retention_s=1600.0, wall=lambda: now[0])
    for number in range(30):
        now[0] = OPENED_AT + number * 100.0
        own.write([ended(run=str(number), begin_s=number * 100.0)])
    calls, _, _ = read_recording(tmp_path, 0.0)
    ages_s = [now[0] - call.begin_at for call in calls]
    assert max(ages_s) <= 1600
    assert len(ages_s) >= 15
    now[0] += 1700
    own.prune()
    assert segment_paths(tmp_path) == []
    own.write([ended(run="later")])
    assert len(segment_paths(tmp_path)) == 1


def test_a_new_process_begins_a_new_segment_with_equal_prefix_ids(tmp_path):
    writer(tmp_path).write([ended(run="a", keys=[5, 6])])
    writer(tmp_path).write([ended(run="b", keys=[5, 6, 7])])
    assert len(segment_paths(tmp_path)) == 2
    calls, _, _ = read_recording(tmp_path, 0.0)
    assert [call.own_keys.tolist() for call in calls] == [[5, 6], [5, 6, 7]]


def test_files_and_folder_are_private_to_the_user(tmp_path):
    folder = tmp_path / "recording"
    writer(folder).write([ended()])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_salt_is_kept_and_replaced_if_damaged(tmp_path):
    salt = load_salt(tmp_path)
    assert load_salt(tmp_path) == salt
    (tmp_path / "salt").write_bytes(b"short")
    assert len(load_salt(tmp_path)) == len(salt)
    writer(tmp_path).write([ended()])
    delete_recording(tmp_path)
    assert list(tmp_path.iterdir()) == []
    delete_recording(tmp_path / "nowhere")


# --- the thread -------------------------------------------------------------------------------------


class Recorder:
    """A recorder with a frozen clock, and running calls for it."""

    def __init__(self, folder, **options):
        self.folder = folder
        self.recorder = TrafficRecorder(
            folder,
            **{"max_bytes": 1 << 20, "retention_s": 1e9, "block_tokens": 4, **options},
            clock=lambda: 100.0,
            wall=lambda: OPENED_AT,
        )

    def ended(self, name="c1", usage=TokenUsage(30, 10, 8, 5), **more):
        live = CallState(
            call=Call(
                call_id=f"app/run/{name}",
                tenant="tn_1",
                app="app_1",
                user="alice",
                interaction_id="app/run",
                model="m",
                input_tokens=31,
                system_tokens=11,
                max_output_tokens=20,
                stage=1,
                single=True,
            ),
            record_id="row",
            fingerprint="",
            submitted_s=103.0,
            accepted_at=OPENED_AT + 999.0,  # the wall clock jumped
            usage=usage,
            run_opened_at=OPENED_AT + 3.0,
            block_keys=[1, 2],
            **more,
        )
        self.recorder.call_ended(live, "completed", 105.5)

    def written(self):
        self.recorder.start()
        self.recorder.close()
        return read_recording(self.folder, 0.0)[0]


async def test_a_call_is_written_with_worker_counts_and_monotonic_times(tmp_path):
    own = Recorder(tmp_path)
    own.ended()
    own.ended("never-began", TokenUsage())
    first, second = own.written()
    assert (first.begin_at, first.end_at) == (OPENED_AT + 3.0, OPENED_AT + 5.5)
    assert (first.prompt_tokens, first.system_tokens, first.output_tokens) == (40, 10, 5)
    assert (second.prompt_tokens, second.system_tokens, second.output_tokens) == (42, 11, 0)
    assert first.own_keys.tolist() == [1, 2]


async def test_closing_twice_or_unstarted_is_harmless(tmp_path):
    own = Recorder(tmp_path)
    own.recorder.close()
    own.written()
    own.recorder.close()


@pytest.mark.parametrize(("name", "bound"), [("MAX_PENDING_CALLS", 10), ("MAX_PENDING_BLOCKS", 22)])
async def test_records_that_cannot_be_written_are_dropped_and_logged(
    tmp_path, monkeypatch, caplog, name, bound
):
    monkeypatch.setattr(recorder_module, name, bound)
    own = Recorder(tmp_path)
    for number in range(12):
        own.ended(str(number))
    assert len(own.written()) == 5
    assert "7 calls were not recorded" in caplog.text


async def test_an_unusable_folder_is_logged_once_and_fails_no_call(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    own = Recorder(tmp_path / "file" / "recording")
    own.ended()
    own.recorder.start()
    own.ended()
    own.recorder.close()
    assert caplog.text.count("cannot record traffic") == 1


async def test_a_recorder_error_fails_no_call(tmp_path, monkeypatch, caplog):
    own = Recorder(tmp_path)
    monkeypatch.setattr(own.recorder, "_call", lambda live, now_s: 1 / 0)
    own.ended()
    assert "cannot record a call" in caplog.text


async def test_after_an_error_recording_continues_in_a_new_segment(tmp_path, monkeypatch):
    own = writer(tmp_path)
    own.write([ended(run="a", keys=[1])])
    [path] = segment_paths(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        own.write([ended(run="b", keys=[1, 2])])
    path.rmdir()
    own.write([ended(run="c", keys=[1, 2])])
    calls, _, damaged = read_recording(tmp_path, 0.0)
    assert [call.own_keys.tolist() for call in calls] == [[1, 2]]
    assert not damaged
