"""For any calls, the counts by client and bucket finally equal the rows of the ledger."""

import asyncio
from collections import defaultdict

from histories import histories
from hypothesis import given
from hypothesis import strategies as st
from monitored_world import MonitoredWorld
from until import settle

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.messages import Cancel, Grant, Progress, Release

STEPS = histories(
    st.tuples(
        st.sampled_from(
            ["submit", "submit", "progress", "progress", "end", "cancel", "return", "time"]
        ),
        st.integers(0, 30),
        st.integers(0, 40),
    ),
    60,
)
OUTCOMES = ["completed", "failed", "cancelled"]


async def play(steps):
    world = MonitoredWorld("fairserve", capacity=1500, max_queue_wait_s=25.0, lease_s=20.0)
    tasks, reported = {}, defaultdict(lambda: (0, 0))
    counted = defaultdict(float)
    seen = set()

    def look():
        world.monitoring.activity.settle(world.now_s)
        for number, bucket in world.monitoring.activity.buckets().items():
            if number not in seen:
                seen.add(number)
                for owner, service in bucket.clients.items():
                    counted[owner] += service

    def granted():
        found = [
            task.result() for task in tasks.values() if task.done() and task.exception() is None
        ]
        return [grant for grant in found if isinstance(grant, Grant) and grant.call_id in told_of]

    told_of = set()
    for number, (kind, which, amount) in enumerate(steps):
        if kind == "submit":
            user, tenant = f"u{which % 3}", f"t{which % 2}"
            call_id = f"app/r{number}/c"
            told_of.add(call_id)
            tasks[call_id] = await world.submitted(
                "c", run=f"r{number}", user=user, tenant=tenant, app="app"
            )
            await settle()
        elif kind == "time":
            world.pass_time(amount / 3)
            await settle()
            look()
        elif kind == "cancel" and tasks:
            world.control.cancel(Cancel(list(tasks)[which % len(tasks)]))
        elif grants := granted():
            grant = grants[which % len(grants)]
            output = reported[grant.call_id][1] + amount
            usage = TokenUsage(100, 0, min(100, which), output)
            if kind == "progress":
                reported[grant.call_id] = (100, output)
                world.control.progress(Progress(grant.call_id, True, usage, True))
            elif kind == "end":
                told_of.discard(grant.call_id)
                outcome = OUTCOMES[which % 3]
                await world.control.release(Release(grant.call_id, outcome, usage))
            elif kind == "return":
                again = Release(grant.call_id, "failed", usage, retry_on_another_worker=True)
                told_of.discard(grant.call_id)
                tasks[grant.call_id] = asyncio.create_task(world.control.release(again))
                told_of.add(grant.call_id)
                await settle()
    await world.control.drain(0)
    for task in tasks.values():
        task.cancel()
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert all(
        not isinstance(each, Exception) or isinstance(each, FairServeError) for each in results
    )
    world.now_s += 5
    look()
    await world.control.close()
    rows = defaultdict(float)
    for row in world.journal.rows():
        rows[(row["tenant"], row["app"], row["user"])] += row["service"]
    return world, dict(counted), {owner: service for owner, service in rows.items() if service}


@given(STEPS)
def test_the_sum_over_buckets_equals_the_ledger(steps):
    world, counted, rows = asyncio.run(play(steps))
    assert counted == rows
    activity = world.monitoring.activity
    assert all(activity.live_calls(owner) == (0, 0) for owner in activity.clients())
    for bucket in activity.buckets().values():
        assert sum(each.service for each in bucket.tenants.values()) == bucket.whole.service
        assert sum(bucket.clients.values()) == bucket.whole.service
