"""A flush of the ledger elsewhere covers the last entry that was read, not only the last tick."""

import threading

from fairserve.platform.control.log.marks import LedgerElsewhere, StoredMarks
from fairserve.platform.control.log.shared_cell import EntryId
from fairserve.platform.control.log.wire import LogTick


def tick(entry, stored):
    return EntryId.of(entry), LogTick("speaker", "", 0, stored)


def test_a_flush_waits_for_the_rows_of_the_last_entry():
    marks = StoredMarks()
    marks.last_read = lambda: EntryId(1500, 0)
    marks.ticked(*tick("1000-0", "1000-0"))
    ledger = LedgerElsewhere(marks)
    assert not ledger.flush(0.0), "the entry at 1500 is after the last mark"
    done = threading.Thread(target=marks.ticked, args=tick("2500-0", "2000-0"))
    done.start()
    assert ledger.flush(30.0)
    done.join()
