"""Very many clients and runs: in a SQLite database, and in the memory of a server, in seconds.

20 tenants have three apps each; 10,000 users begin runs of two calls evenly over the last days.
One run in ten does not end complete, and one call in forty is rejected.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

from virtual_cluster import make_call

from fairserve.interactions.call import TokenUsage
from fairserve.platform.control.call_state import CallState
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.schema import upgrade
from fairserve.platform.monitoring.activity_bucket import MAX_CLIENTS
from fairserve.platform.reporting.usage.rollups import roll_up

TENANT, APP, USER = "tn_07", "app_07", "user-7"

_OWNERS = """
    INSERT INTO tenants (id, name, weight, created_at)
    SELECT printf('tn_%02d', n), 'Tenant ' || n, 1, :now FROM numbers WHERE n < 20;
"""
_APPS = """
    INSERT INTO apps (id, tenant_id, name, calls_per_interaction, idle_timeout_s, weight, profile_mode,
        profile_version, created_at)
    SELECT printf('app_%02d', n), printf('tn_%02d', n % 20), 'App ' || n, 2, 300, 1, 'learned', 0, :now
    FROM numbers WHERE n < 60;
"""
_STAGES = """
    INSERT INTO token_profiles (app_id, stage, input_tokens, system_tokens, output_tokens)
    SELECT id, 1, 600, 100, 200 FROM apps;
"""
_LIMITS = "INSERT INTO limits (app_id) SELECT id FROM apps"
_RUN = """
    WITH runs AS (
        SELECT n, printf('app_%02d', n % :clients % 60) AS app,
            printf('tn_%02d', n % :clients % 20) AS tenant, 'user-' || (n % :clients) AS user,
            strftime('%Y-%m-%d %H:%M:%f000', :first + n * :gap, 'unixepoch') AS opened,
            strftime('%Y-%m-%d %H:%M:%f000', :first + n * :gap + 9, 'unixepoch') AS ended
        FROM numbers WHERE n < :runs
    )
"""
_RUNS = f"""
    INSERT INTO interactions (tenant_id, app_id, id, user_id, state, opened_at, ended_at, calls,
        tokens, wasted_tokens, waste_cause)
    {_RUN} SELECT tenant, app, 'run_' || n, user,
        CASE n / 20 % 20 WHEN 0 THEN 'aborted' WHEN 1 THEN 'cancelled' ELSE 'complete' END,
        opened, ended, 2, 1800, iif(n / 20 % 20 < 2, 700, 0),
        CASE n / 20 % 20 WHEN 0 THEN 'throttled' WHEN 1 THEN 'cancelled' ELSE '' END FROM runs
"""
_CALLS = f"""
    INSERT INTO ledger_calls (call_id, tenant_id, app_id, user_id, model, interaction_id, stage,
        outcome, accepted_at, ended_at, input_tokens, system_tokens, cached_tokens, extend_tokens,
        output_tokens, reasoning_tokens, service, queue_delay_s, ttft_s, duration_s, worker,
        served_model, parents, wasted, charged, estimated, cost, error, service_tier)
    {_RUN} SELECT 'call_' || n || '_' || step, tenant, app, user, 'model', 'run_' || n, step,
        iif(n / 20 % 20 = 0 AND step = 2, 'refused', 'completed'), opened, ended, 600, 100, 300, 400,
        200, 50, 1100, 0.1, 0.3, 4, 'w0', 'model', '[]', n / 20 % 20 < 2, 1, 0, 0, '', 'default'
    FROM runs, (SELECT 1 AS step UNION ALL SELECT 2)
"""
_REFUSALS = """
    INSERT INTO throttling_events (call_id, at, tenant_id, app_id, user_id, interaction_id, reason,
        scope, limit_count, count, window_s, retry_after_s, mid_run)
    SELECT call_id, accepted_at, tenant_id, app_id, user_id, interaction_id,
        'overloaded_user_limit', 'user', 10, 10, 60, 12.5, 1
    FROM ledger_calls WHERE outcome = 'refused'
"""
_MARKS = """
    INSERT INTO usage_dirty (tenant_id, app_id, start_s, marks)
    SELECT DISTINCT tenant_id, app_id, unixepoch(accepted_at) / 900 * 900, 1 FROM ledger_calls
    UNION SELECT DISTINCT tenant_id, app_id, unixepoch(ended_at) / 900 * 900, 1 FROM interactions
"""


def fill(path, *, clients=10_000, runs=100_000, days=30, rollups=True):
    """Make the database file at ``path``. A rollup takes about 0.1 s for each day of a tenant."""
    engine = connect(f"sqlite:///{path}")
    upgrade(engine)
    now = int(time.time())
    span_s = days * 86_400
    values = {
        "clients": clients,
        "runs": runs,
        "first": now - span_s,
        "gap": (span_s - 60) / runs,
        "now": time.strftime("%Y-%m-%d %H:%M:%S.000000", time.gmtime(now)),
    }
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TEMP TABLE numbers (n INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO numbers VALUES (?)", ((n,) for n in range(runs)))
        statements = (_OWNERS, _APPS, _STAGES, _LIMITS, _RUNS, _CALLS, _REFUSALS, _MARKS)
        for statement in statements:
            database.execute(statement, values)
        database.execute("DROP TABLE numbers")
    if rollups:
        assert roll_up(session_factory(engine))
    engine.dispose()


def call_now(server, *, clients=10_000, waiting=30):
    """Let the monitoring see a call of each client; those of the last ``waiting`` ones still wait."""

    def call(numbers):
        monitoring, now_s = server.platform.monitoring, server._clock()
        listeners = (monitoring.activity, monitoring.app_calls)
        for number in numbers:
            owner = {"tenant": f"tn_{number % 20:02d}", "app": f"app_{number % 60:02d}"}
            made = make_call(f"now-{clients}-{number}", user=f"user-{number}", tokens=(1,), **owner)
            live = CallState(made, f"now-{number}", "", now_s, now_s)
            for each in listeners:
                each.call_accepted(live, now_s)
            if number < clients - waiting:
                monitoring.activity.call_granted(live)
                live.worker_id, live.queue_s, live.started = "w0", 0.1, True
                live.usage = TokenUsage(100 + number % 900, 0, 0, 50)
                for each in listeners:
                    each.call_started(live, now_s)
                    each.call_ended(live, "completed", now_s)

    for first in range(0, clients, MAX_CLIENTS):  # as many as a bucket names
        server.client.portal.call(call, range(first, min(clients, first + MAX_CLIENTS)))
        server.sample()
