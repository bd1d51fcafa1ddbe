"""Failed uses of keys: which get an entry in the audit log."""

from fairserve.platform.tenancy.failed_keys import MAX_ENTRIES, FailureEntries


def test_audit_entries_are_bounded_by_address_and_in_total():
    now = [0.0]
    failures = FailureEntries(clock=lambda: now[0])
    assert [failures.count("a") for _ in range(4)] == [1, None, None, None]
    assert failures.count("b") == 4
    logged = [failures.count(f"c{number}") for number in range(1000)]
    assert logged == [1] * (MAX_ENTRIES - 2) + [None] * (1000 - MAX_ENTRIES + 2)
    now[0] = 301.0
    assert failures.count("a") == 1000 - MAX_ENTRIES + 3
