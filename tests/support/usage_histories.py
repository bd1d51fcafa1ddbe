"""Histories of calls and runs for tests of usage, and their expected sums in plain Python."""

import random
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime

from call_records import call_record

from fairserve.platform.control.messages import InteractionRecord
from fairserve.platform.reporting.usage.rollups import lock_state, marked_days, roll_up_some

START = datetime(2026, 3, 27, 20, tzinfo=UTC).timestamp()
HOURS = 36
"""Three UTC days, and the night in which Berlin's clocks skip an hour."""
OUTCOMES = ["completed", "completed", "refused", "cancelled", "failed", "expired"]


def calls(seed, count, *, start=START, hours=HOURS, tenants=2):
    """Return calls of tenants whose apps and users have the same ids, some of another model."""
    rng = random.Random(seed)
    return [_call(rng, f"c{seed}-{number}", start, hours, tenants) for number in range(count)]


def _call(rng, call_id, start, hours, tenants):
    outcome = rng.choice(OUTCOMES)
    ran = outcome != "refused"
    tokens = [rng.randrange(1000) if ran else 0 for _ in range(5)]
    at = start + rng.randrange(hours * 4) * 900 + rng.choice([0.0, 0.5, 450.0, 899.9999])
    return call_record(
        call_id,
        tenant=f"tn_{rng.randrange(tenants)}",
        app=rng.choice(["app_a", "app_B"]),
        user=rng.choice(["", "Zoe", "anna", "émile"]),
        model=rng.choice(["m", "alias"]),
        served_model=rng.choice(["", "m-2"]),
        interaction_id=f"run{rng.randrange(9)}",
        outcome=outcome,
        accepted_at=at,
        ended_at=at + 9,
        input_tokens=tokens[0],
        system_tokens=tokens[1],
        cached_tokens=tokens[2],
        extend_tokens=tokens[3],
        output_tokens=tokens[4],
        reasoning_tokens=tokens[4] // 3,
        service=float(tokens[0] + tokens[1] + 2 * tokens[4]),
        queue_delay_s=rng.random() if ran else None,
        ttft_s=rng.random() * 3 if outcome == "completed" else None,
        wasted=ran and outcome != "completed",
        charged=rng.random() < 0.9,
        cost=rng.randrange(10**12) if outcome == "completed" else 0,
        price_id=rng.choice(["", "price"]),
        refusal_reason="" if ran else rng.choice(["overloaded_user_limit", "blocked"]),
        mid_run=rng.random() < 0.3,
    )


def runs(seed, count):
    """Return ended interactions; those that are not complete wasted something."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        state = rng.choice(["complete", "aborted", "cancelled", "expired"])
        opened = START + rng.random() * HOURS * 3600
        wasted = 0 if state == "complete" else rng.randrange(1, 5000)
        found.append(
            InteractionRecord(
                interaction_id=f"run{number}",
                tenant=f"tn_{rng.randrange(2)}",
                app=rng.choice(["app_a", "app_B"]),
                user=rng.choice(["", "Zoe", "anna"]),
                state=state,
                opened_at=opened,
                ended_at=opened + rng.random() * 7200,
                calls=rng.randrange(1, 9),
                tokens=9000,
                wasted_tokens=wasted,
                waste_cause=rng.choice(["throttled", "cancelled", "failed", "expired"])
                if wasted
                else "",
            )
        )
    return found


def rewritten(records, seed):
    """Return the records with some charges refunded and other calls changed."""
    rng = random.Random(seed)
    some = rng.sample(records, len(records) // 3)
    return [
        replace(record, charged=False, cost=0)
        if rng.random() < 0.5
        else replace(record, served_model="m-3", output_tokens=7)
        for record in some
    ]


def ended_again(records, seed):
    """Return runs that ended again, hours later."""
    rng = random.Random(seed)
    some = rng.sample(records, len(records) // 3)
    return [replace(run, ended_at=run.ended_at + 9000, state="complete") for run in some]


def call_sums(records, key):
    """Return some sums of charged calls by ``key(record)``."""
    sums = defaultdict(Counter)
    for record in records:
        found = sums[key(record)]
        if not record.charged:
            found["uncharged_calls"] += 1
            continue
        used = record.input_tokens + record.system_tokens + record.output_tokens
        found["calls"] += 1
        found[record.outcome] += 1
        found["input_tokens"] += record.input_tokens
        found["output_tokens"] += record.output_tokens
        found["service"] += record.service
        found["wasted_tokens"] += used if record.wasted else 0
        found["cost"] += record.cost
        found["unpriced_calls"] += bool(used and not record.price_id)
        found["queue_delay_count"] += record.queue_delay_s is not None
        found["ttft_count"] += record.ttft_s is not None
    return sums


def roll_up_uncommitted(session):
    """Roll up everything in the session's transaction, which the caller ends."""
    state = lock_state(session)
    for tenant_id, day_s in marked_days(session):
        after = (day_s, "")
        while after is not None:
            after = roll_up_some(session, state, tenant_id, after)
