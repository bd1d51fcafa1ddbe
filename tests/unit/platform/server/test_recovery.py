"""A start closes the calls that the last process left open in the journal, and loses no row of it."""

from dataclasses import asdict

import pytest
from call_records import call_record

from fairserve.platform.control.journal.entries import JournalEntry
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.rejected_rows import RejectedRows, count_rejected
from fairserve.platform.server import recovery
from fairserve.platform.server.recovery import close_open_calls, write_left_rows


class Kept(Journal):
    """Keeps what is appended."""

    def __init__(self, folder):
        super().__init__(folder, segment_bytes=1 << 20, max_bytes=1 << 20)
        self.entries = []

    def append(self, kind, key, data):
        self.entries.append((kind, key, data))
        return super().append(kind, key, data)


def accepted(key):
    return {
        "call_id": key,
        "tenant": "t",
        "app": "app",
        "user": "u",
        "model": "m",
        "interaction_id": "run",
        "stage": 1,
        "agent": None,
        "outcome": "failed",
        "accepted_at": 1000.0,
        "ended_at": 1000.0,
        "served_model": "m",
    }


def test_calls_that_were_open_have_failed_with_their_last_progress(tmp_path):
    before = Kept(tmp_path / "journal")
    before.open()
    for key in ("began", "waited", "ended"):
        before.append("accepted", key, accepted(key))
    progress = {"input_tokens": 8, "system_tokens": 4, "output_tokens": 1, "worker": "w0"}
    before.append("progress", "began", progress)
    before.append("closed", "ended", {**accepted("ended"), "outcome": "completed"})
    before.close()

    again = Kept(tmp_path / "journal")
    close_open_calls(again)
    again.close()
    closed = {key: data for kind, key, data in again.entries if kind == "closed"}
    assert set(closed) == {"began", "waited"}
    began, waited = closed["began"], closed["waited"]
    assert began["outcome"] == waited["outcome"] == "failed"
    assert began["error"] == waited["error"] == "server stopped"
    assert (began["worker"], began["output_tokens"], began["wasted"]) == ("w0", 1, True)
    assert (waited["output_tokens"], waited["wasted"]) == (0, False)

    third = Kept(tmp_path / "journal")
    close_open_calls(third)
    third.close()
    assert not third.entries, "a call is closed once"


class Sink:
    """A database that takes rows unless it is away."""

    def __init__(self):
        self.calls, self.away = [], False

    def write(self, rows):
        if self.away:
            raise ConnectionError("the database is away")
        self.calls += [call.call_id for call in rows.calls]

    def blames_rows(self, error):
        return False


def test_rows_of_a_cell_reach_the_database_before_their_journal_is_emptied(tmp_path, monkeypatch):
    folder, sink = tmp_path / "journal", Sink()
    write_left_rows(folder, sink)
    assert not folder.exists(), "a first start leaves nothing"
    before = Journal(folder)
    before.open()
    before.append("accepted", "open", accepted("open"))
    ended = call_record("ended", outcome="completed", accepted_at=1.0, ended_at=2.0)
    before.append("closed", "ended", asdict(ended))
    before.close()
    RejectedRows(folder).keep(JournalEntry("closed", "bad", {}), "the database rejects it")

    sink.away = True
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.0)
    with pytest.raises(OSError, match="does not take the rows of"):
        write_left_rows(folder, sink)
    sink.away = False
    monkeypatch.undo()
    write_left_rows(folder, sink)
    assert sink.calls == ["ended"]
    again = Journal(folder)
    assert again.open() == [], "the cell has the call that is open"
    again.close()
    assert count_rejected(folder) == 1, "rejected rows stay for the operator"
