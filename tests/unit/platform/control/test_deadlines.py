"""Waits and leases expire in time, and only the current ones."""

from fairserve.platform.control.deadlines import Leases, QueueWaits


def test_a_wait_expires_once():
    waits = QueueWaits(10)
    waits.begin("a", 0)
    waits.begin("b", 5)
    assert list(waits.over(9.9)) == []
    assert list(waits.over(10)) == ["a"]
    waits.end("a")
    assert list(waits.over(20)) == ["b"]


def test_a_requeued_call_has_its_whole_time_again():
    waits = QueueWaits(10)
    waits.begin("a", 0)
    waits.end("a")
    waits.begin("a", 8)
    assert list(waits.over(12)) == [], "the end of the first wait is not that of the second"
    assert list(waits.over(18)) == ["a"]


def test_a_renewed_lease_does_not_expire():
    leases = Leases(10)
    leases.renew("a", 0)
    leases.renew("b", 1)
    leases.renew("a", 5)

    def ended(now_s):
        found = []
        for call_id in leases.over(now_s):
            leases.end(call_id)
            found.append(call_id)
        return found

    assert ended(10.9) == []
    assert ended(11) == ["b"]
    assert ended(15) == ["a"]
    assert len(leases) == 0
