"""Test the loop that renews and claims rows."""

import asyncio

import pytest
from sqlalchemy.exc import OperationalError
from until import until

from fairserve.platform.serving import claims


class Rows:
    """Records renewals and claims. The database is away for the first ``away`` renewals."""

    def __init__(self, away=0, due=0):
        self.steps, self.away, self.due = [], away, due

    async def renew(self):
        self.steps.append("renew")
        if self.away:
            self.away -= 1
            raise OperationalError("away", {}, Exception())

    async def claim(self):
        self.steps.append("claim")
        self.due -= 1
        return self.due >= 0


@pytest.fixture
def follow():
    """Return a function that returns the first steps of a loop."""
    tasks = []

    async def follow(rows, number, woken=None):
        work = claims.keep_claims("rows", rows.renew, rows.claim, woken)
        tasks.append(asyncio.create_task(work))
        await until(lambda: len(rows.steps) >= number)
        return rows.steps[:number]

    yield follow
    for task in tasks:
        task.cancel()


async def test_leases_are_renewed_between_claims(follow):
    expected = ["renew", "claim", "renew", "claim", "renew", "claim"]
    assert await follow(Rows(due=2), 6) == expected


async def test_after_an_outage_holders_renew_before_others_claim(follow, monkeypatch, caplog):
    monkeypatch.setattr(claims, "POLL_S", 0.001)
    found = await follow(Rows(away=2), 6)
    assert found == ["renew", "renew", "renew", "renew", "claim", "renew"]
    assert [record.message for record in caplog.records] == [
        "rows wait for the database: OperationalError"
    ]


async def test_a_wake_does_not_wait_for_the_interval(follow, monkeypatch):
    monkeypatch.setattr(claims, "POLL_S", 3600.0)
    rows, woken = Rows(), asyncio.Event()
    await follow(rows, 2, woken)
    woken.set()
    await until(lambda: len(rows.steps) == 4)
