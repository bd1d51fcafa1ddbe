"""A ledger of any size for ``fairserve bench usage``, generated inside PostgreSQL.

20 tenants have three apps each, an app about 830 users; runs of eight calls, half a minute apart,
begin evenly over 90 days. Most calls complete, one in a hundred is rejected, one fails.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

DAYS = 90
TENANTS = 20
APPS = 60
USERS = 50_000
CALLS_PER_RUN = 8
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
LAST_DAY = FIRST_DAY + timedelta(days=DAYS - 1)

# A run's properties are derived from its number, which a fixed multiplier scatters.
_RUN = """
    SELECT run, 'app_' || lpad(app::text, 2, '0') AS app_id,
        'tn_' || lpad((app % :tenants)::text, 2, '0') AS tenant_id,
        'user-' || (app * :app_users + scattered / 64 % :app_users) AS user_id,
        'model-' || scattered / 7 % 3 AS model,
        'run_' || run AS interaction_id,
        CAST(:first AS timestamptz) + (run * :gap_s) * interval '1 second' AS opened_at
    FROM (
        SELECT run, scattered, scattered % :apps AS app
        FROM (
            SELECT run, run * 2654435761 % 4294967296 / 16 AS scattered
            FROM generate_series(CAST(:begin AS bigint), CAST(:end AS bigint) - 1) AS run
        ) AS numbers
    ) AS placed
"""
_CALLS = f"""
    WITH calls AS (
        SELECT runs.*, step, opened_at + step * interval '30 seconds' AS accepted_at,
            CASE floor(random() * 100) WHEN 0 THEN 'refused' WHEN 1 THEN 'failed'
                ELSE 'completed' END AS outcome,
            400 + floor(random() * 1600)::bigint AS input_tokens,
            20 + floor(random() * 400)::bigint AS output_tokens
        FROM ({_RUN}) AS runs, generate_series(1, :calls) AS step
    ), counted AS (
        SELECT *, (outcome <> 'refused')::int AS ran, (outcome = 'completed')::int AS done
        FROM calls
    )
    INSERT INTO ledger_calls (call_id, tenant_id, app_id, user_id, model, interaction_id, stage,
        outcome, accepted_at, ended_at, input_tokens, system_tokens, cached_tokens, extend_tokens,
        output_tokens, service, queue_delay_s, ttft_s, duration_s, worker, served_model, parents,
        wasted, charged, estimated, cost, price_id, error, reasoning_tokens, service_tier)
    SELECT 'call_' || run || '_' || step, tenant_id, app_id, user_id, model, interaction_id, step,
        outcome, accepted_at, accepted_at + interval '5 seconds', ran * input_tokens, ran * 100,
        ran * input_tokens / 2, ran * input_tokens / 2, done * output_tokens,
        ran * (input_tokens + 100) + 2 * done * output_tokens,
        CASE WHEN ran = 1 THEN -ln(1 - random()) * 0.2 END,
        CASE WHEN done = 1 THEN 0.1 - ln(1 - random()) * 0.4 END,
        CASE WHEN done = 1 THEN 5 END, 'w0', model, '[]', outcome = 'failed', true,
        false, done * (input_tokens * 150 + output_tokens * 600), 'price_1', '',
        0, 'default'
    FROM counted
"""  # noqa: S608
_REFUSALS = """
    INSERT INTO throttling_events (call_id, at, tenant_id, app_id, user_id, interaction_id, reason,
        mid_run)
    SELECT call_id, accepted_at, tenant_id, app_id, user_id, interaction_id,
        CASE stage % 2 WHEN 0 THEN 'overloaded_user_limit' ELSE 'overloaded_app_limit' END, false
    FROM ledger_calls WHERE outcome = 'refused'
"""
_RUNS = f"""
    INSERT INTO interactions (tenant_id, app_id, id, user_id, state, opened_at, ended_at, calls,
        tokens, wasted_tokens, waste_cause)
    SELECT tenant_id, app_id, interaction_id, user_id,
        CASE run % 20 WHEN 0 THEN 'aborted' WHEN 1 THEN 'cancelled' ELSE 'complete' END,
        opened_at, opened_at + interval '250 seconds', :calls, 9000,
        CASE WHEN run % 20 < 2 THEN 4000 ELSE 0 END,
        CASE run % 20 WHEN 0 THEN 'throttled' WHEN 1 THEN 'cancelled' ELSE '' END
    FROM ({_RUN}) AS runs
"""  # noqa: S608
_MARKS = """
    INSERT INTO usage_dirty (tenant_id, app_id, start_s, marks)
    SELECT tenant_id, app_id, start_s, 1 FROM (
        SELECT tenant_id, app_id, floor(extract(epoch FROM accepted_at) / 900)::bigint * 900
            AS start_s FROM ledger_calls
        UNION
        SELECT tenant_id, app_id, floor(extract(epoch FROM ended_at) / 900)::bigint * 900
            FROM interactions
    ) AS found
"""
_OWNERS = """
    INSERT INTO tenants (id, name, weight, created_at)
    SELECT 'tn_' || lpad(n::text, 2, '0'), 'Tenant ' || n, 1 + n % 3, now()
    FROM generate_series(0, CAST(:tenants AS bigint) - 1) AS n
"""
_APPS = """
    INSERT INTO apps (id, tenant_id, name, calls_per_interaction, idle_timeout_s, weight, profile_mode,
        profile_version, created_at)
    SELECT 'app_' || lpad(n::text, 2, '0'), 'tn_' || lpad((n % :tenants)::text, 2, '0'),
        'App ' || n, :calls, 300, 1 + n % 2, 'learned', 0, now()
    FROM generate_series(0, CAST(:apps AS bigint) - 1) AS n
"""
_PROFILES = """
    INSERT INTO token_profiles (app_id, stage, input_tokens, system_tokens, output_tokens)
    SELECT id, 1, 1200, 100, 220 FROM apps
"""


def generate(connection: Connection, rows: int) -> None:
    """Fill an empty database; ``rows`` is rounded up to whole runs. The caller commits."""
    runs = -(-rows // CALLS_PER_RUN)
    values = {
        "tenants": TENANTS,
        "apps": APPS,
        "app_users": USERS // APPS,
        "calls": CALLS_PER_RUN,
        "first": FIRST_DAY,
        "gap_s": (DAYS * 86_400 - 600) / runs,
        "begin": 0,
        "end": runs,
    }
    connection.execute(text("SELECT setseed(0.5)"))
    for statement in (_OWNERS, _APPS, _PROFILES, _CALLS, _REFUSALS, _RUNS, _MARKS):
        used = {name: value for name, value in values.items() if f":{name}" in statement}
        connection.execute(text(statement), used)
    connection.execute(text("ANALYZE"))
