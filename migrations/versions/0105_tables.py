"""The tables of the first release.

Its number is above those of the versions before the first release, whose databases no migration
upgrades (:mod:`fairserve.platform.db.schema`).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0105"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alarms",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("severity", sa.String(8), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("subject", sa.String(400), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("affected", sa.JSON(), nullable=False),
        sa.Column("cause", sa.JSON(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("acknowledged_by", sa.String(200), nullable=False),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True)),
        sa.Column("resolved_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_alarms"),
    )
    op.create_index("ix_alarms_opened_at_id", "alarms", ["opened_at", "id"])
    op.create_index("ix_alarms_resolved_at", "alarms", ["resolved_at"])
    op.create_index("ix_alarms_tenant_id_opened_at", "alarms", ["tenant_id", "opened_at"])
    op.create_table(
        "audit_log",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("actor_key_id", sa.String(64)),
        sa.Column("tenant_id", sa.String(64)),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("target", sa.String(400), nullable=False),
        sa.Column("before", sa.JSON(none_as_null=True)),
        sa.Column("after", sa.JSON(none_as_null=True)),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at"])
    op.create_index("ix_audit_log_tenant_id_at", "audit_log", ["tenant_id", "at"])
    op.create_table(
        "fleet_aliases",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("managed_by", sa.String(200)),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_fleet_aliases"),
    )
    op.create_table(
        "fleet_drains",
        sa.Column("worker_id", sa.String(64), nullable=False),
        sa.Column("drained_by", sa.String(200), nullable=False),
        sa.Column("drained_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name="pk_fleet_drains"),
    )
    op.create_table(
        "fleet_workers",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("url", sa.String(1000), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("model", sa.String(255)),
        sa.Column("tokenizer", sa.String(1000)),
        sa.Column("kv_events", sa.String(1000)),
        sa.Column("kv_replay", sa.String(1000)),
        sa.Column("kv_tokens", sa.BigInteger()),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("api_key_env", sa.String(200)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_workers"),
        sa.UniqueConstraint("url", name="uq_fleet_workers_url"),
    )
    op.create_table(
        "installation_facts",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.String(200), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_installation_facts"),
    )
    op.create_table(
        "interactions",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("wasted_tokens", sa.BigInteger(), nullable=False),
        sa.Column("waste_cause", sa.String(16), nullable=False),
        sa.Column("shared_by", sa.BigInteger()),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_interactions"),
    )
    op.create_index("ix_interactions_app_id_opened_at", "interactions", ["app_id", "opened_at"])
    op.create_index("ix_interactions_ended_at", "interactions", ["ended_at"])
    op.create_index("ix_interactions_opened_at", "interactions", ["opened_at"])
    op.create_index(
        "ix_interactions_tenant_id_opened_at", "interactions", ["tenant_id", "opened_at"]
    )
    op.create_table(
        "job_states",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("succeeded_at", sa.DateTime(timezone=True)),
        sa.Column("took_s", sa.Double()),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.String(1000), nullable=False),
        sa.Column("dead_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_job_states"),
    )
    op.create_table(
        "ledger_calls",
        sa.Column("call_id", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("interaction_id", sa.String(255), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(255)),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("system_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("extend_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("service", sa.Double(), nullable=False),
        sa.Column("expected_output_tokens", sa.BigInteger()),
        sa.Column("queue_delay_s", sa.Double()),
        sa.Column("ttft_s", sa.Double()),
        sa.Column("duration_s", sa.Double()),
        sa.Column("worker", sa.String(255)),
        sa.Column("served_model", sa.String(255)),
        sa.Column("name", sa.String(255)),
        sa.Column("parents", sa.JSON(), nullable=False),
        sa.Column("wasted", sa.Boolean(), nullable=False),
        sa.Column("charged", sa.Boolean(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("service_tier", sa.String(16), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("price_id", sa.String(64)),
        sa.Column("error", sa.String(1000), nullable=False),
        sa.Column("shared_by", sa.BigInteger()),
        sa.PrimaryKeyConstraint("call_id", name="pk_ledger_calls"),
    )
    op.create_index("ix_ledger_calls_accepted_at", "ledger_calls", ["accepted_at"])
    op.create_index("ix_ledger_calls_app_id_accepted_at", "ledger_calls", ["app_id", "accepted_at"])
    op.create_index("ix_ledger_calls_interaction_id", "ledger_calls", ["interaction_id"])
    op.create_index(
        "ix_ledger_calls_tenant_id_accepted_at", "ledger_calls", ["tenant_id", "accepted_at"]
    )
    op.create_index(
        "ix_ledger_calls_tenant_id_user_id_accepted_at",
        "ledger_calls",
        ["tenant_id", "user_id", "accepted_at"],
    )
    op.create_table(
        "open_interactions",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sink", sa.String(255)),
        sa.Column("closing", sa.String(16)),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_open_interactions"),
    )
    op.create_index(
        "ix_open_interactions_tenant_id_user_id", "open_interactions", ["tenant_id", "user_id"]
    )
    op.create_table(
        "prices",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger()),
        sa.Column("flex_multiplier", sa.Double(), nullable=False),
        sa.Column("priority_multiplier", sa.Double(), nullable=False),
        sa.Column("author", sa.String(200), nullable=False),
        sa.Column("managed_by", sa.String(200)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_prices"),
    )
    op.create_index("ix_prices_model_valid_from", "prices", ["model", "valid_from"], unique=True)
    op.create_table(
        "report_exports",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("asked_by", sa.String(16), nullable=False),
        sa.Column("tenant_id", sa.String(64)),
        sa.Column("app_id", sa.String(64)),
        sa.Column("user_id", sa.String(200)),
        sa.Column("names_users", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("format", sa.String(16), nullable=False),
        sa.Column("query", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True)),
        sa.Column("progress", sa.Double()),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64)),
        sa.Column("error", sa.String(1000), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_report_exports"),
    )
    op.create_index("ix_report_exports_created_at", "report_exports", ["created_at"])
    op.create_index("ix_report_exports_state_created_at", "report_exports", ["state", "created_at"])
    op.create_index(
        "ix_report_exports_tenant_id_created_at", "report_exports", ["tenant_id", "created_at"]
    )
    schema_info = op.create_table(
        "schema_info",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("min_reader", sa.Integer(), nullable=False),
        sa.Column("compatible", sa.Boolean(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_schema_info_one_row")),
        sa.PrimaryKeyConstraint("id", name="pk_schema_info"),
    )
    op.create_table(
        "server_lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("guard", sa.String(200), nullable=False),
        sa.Column("lease_s", sa.Double(), nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_server_lease_one_row")),
        sa.PrimaryKeyConstraint("id", name="pk_server_lease"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("levels", sa.String(32)),
        sa.Column("managed_by", sa.String(200)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("suspended_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
    )
    op.create_index(
        "ix_tenants_name",
        "tenants",
        ["name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
        sqlite_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "throttling_events",
        sa.Column("call_id", sa.String(64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("interaction_id", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(8)),
        sa.Column("limit_count", sa.Integer()),
        sa.Column("count", sa.Integer()),
        sa.Column("window_s", sa.Double()),
        sa.Column("retry_after_s", sa.Double()),
        sa.Column("mid_run", sa.Boolean(), nullable=False),
        sa.Column("system", sa.String(64)),
        sa.Column("overloaded", sa.Boolean()),
        sa.Column("demand_tokens", sa.BigInteger()),
        sa.Column("capacity_tokens", sa.BigInteger()),
        sa.Column("high_watermark", sa.Double()),
        sa.Column("low_watermark", sa.Double()),
        sa.Column("queued_calls", sa.Integer()),
        sa.Column("call_tokens", sa.BigInteger()),
        sa.Column("run_calls", sa.Integer()),
        sa.Column("run_tokens", sa.BigInteger()),
        sa.Column("expected_calls", sa.Double()),
        sa.Column("expected_tokens", sa.Double()),
        sa.Column("immunity_factor", sa.Double()),
        sa.Column("under_way", sa.Boolean()),
        sa.Column("immune", sa.Boolean()),
        sa.Column("budget_limit", sa.BigInteger()),
        sa.Column("budget_spent", sa.BigInteger()),
        sa.Column("budget_held", sa.BigInteger()),
        sa.Column("call_cost", sa.BigInteger()),
        sa.Column("shared_by", sa.BigInteger()),
        sa.PrimaryKeyConstraint("call_id", name="pk_throttling_events"),
    )
    op.create_index("ix_throttling_events_app_id_at", "throttling_events", ["app_id", "at"])
    op.create_index("ix_throttling_events_at_call_id", "throttling_events", ["at", "call_id"])
    op.create_index("ix_throttling_events_tenant_id_at", "throttling_events", ["tenant_id", "at"])
    op.create_table(
        "throttling_settings",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("system", sa.String(64), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_throttling_settings"),
    )
    op.create_table(
        "usage_calls",
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("start_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("service_tier", sa.String(16), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("completed", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.Column("cancelled", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("expired", sa.BigInteger(), nullable=False),
        sa.Column("uncharged_calls", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("system_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("extend_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("service", sa.Double(), nullable=False),
        sa.Column("wasted_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger(), nullable=False),
        sa.Column("queue_delay_count", sa.BigInteger(), nullable=False),
        sa.Column("ttft_count", sa.BigInteger(), nullable=False),
        sa.Column("queue_delay_digest", sa.LargeBinary()),
        sa.Column("ttft_digest", sa.LargeBinary()),
        sa.PrimaryKeyConstraint(
            "level",
            "tenant_id",
            "start_s",
            "app_id",
            "user_id",
            "model",
            "service_tier",
            name="pk_usage_calls",
        ),
    )
    op.create_index("ix_usage_calls_level_start_s", "usage_calls", ["level", "start_s"])
    op.create_table(
        "usage_dirty",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("start_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("marks", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "start_s", name="pk_usage_dirty"),
    )
    op.create_table(
        "usage_refusals",
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("start_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("mid_run", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "level", "tenant_id", "start_s", "app_id", "user_id", "reason", name="pk_usage_refusals"
        ),
    )
    op.create_index("ix_usage_refusals_level_start_s", "usage_refusals", ["level", "start_s"])
    op.create_table(
        "usage_runs",
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("start_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("complete", sa.BigInteger(), nullable=False),
        sa.Column("aborted", sa.BigInteger(), nullable=False),
        sa.Column("cancelled", sa.BigInteger(), nullable=False),
        sa.Column("expired", sa.BigInteger(), nullable=False),
        sa.Column("run_calls", sa.BigInteger(), nullable=False),
        sa.Column("wasted_throttled", sa.BigInteger(), nullable=False),
        sa.Column("wasted_cancelled", sa.BigInteger(), nullable=False),
        sa.Column("wasted_failed", sa.BigInteger(), nullable=False),
        sa.Column("wasted_expired", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "level", "tenant_id", "start_s", "app_id", "user_id", name="pk_usage_runs"
        ),
    )
    op.create_index("ix_usage_runs_level_start_s", "usage_runs", ["level", "start_s"])
    usage_state = op.create_table(
        "usage_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rolled_up_s", sa.Double(), nullable=False),
        sa.Column("raw_from_s", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage_state"),
    )
    op.create_table(
        "apps",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("calls_per_interaction", sa.Double(), nullable=False),
        sa.Column("idle_timeout_s", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("priority_weight", sa.Double()),
        sa.Column("profile_mode", sa.String(16), nullable=False),
        sa.Column("profile_version", sa.Integer(), nullable=False),
        sa.Column("profile_looked_at", sa.DateTime(timezone=True)),
        sa.Column("user_headers", sa.JSON(none_as_null=True)),
        sa.Column("cors_origins", sa.JSON(none_as_null=True)),
        sa.Column("run_rules", sa.JSON(none_as_null=True)),
        sa.Column("managed_by", sa.String(200)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("suspended_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_apps_tenant_id", ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_apps"),
    )
    op.create_index(
        "ix_apps_tenant_id_name",
        "apps",
        ["tenant_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
        sqlite_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "contracts",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(8), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("rpm_limit", sa.Integer()),
        sa.Column("tpm_limit", sa.BigInteger()),
        sa.Column("max_parallel_requests", sa.Integer()),
        sa.Column("max_budget", sa.BigInteger()),
        sa.Column("soft_budget", sa.BigInteger()),
        sa.Column("soft_end", sa.String(16), nullable=False),
        sa.Column("budget_duration", sa.String(8)),
        sa.Column("allowed_models", sa.JSON(none_as_null=True)),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_contracts_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "scope", "app_id", "user_id", name="pk_contracts"),
    )
    op.create_index("ix_contracts_app_id", "contracts", ["app_id"])
    op.create_table(
        "end_users",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("external_id", sa.String(200), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("priority_weight", sa.Double()),
        sa.Column("rpm", sa.Integer()),
        sa.Column("blocked", sa.Boolean(), nullable=False),
        sa.Column("managed_by", sa.String(200)),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_end_users_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "external_id", name="pk_end_users"),
    )
    op.create_table(
        "erasures",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("user_hash", sa.String(64), nullable=False),
        sa.Column("pseudonym", sa.String(64), nullable=False),
        sa.Column("id_key", sa.String(64), nullable=False),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_erasures_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "user_hash", name="pk_erasures"),
    )
    op.create_index("ix_erasures_erased_at", "erasures", ["erased_at"])
    op.create_table(
        "report_export_parts",
        sa.Column("export_id", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["export_id"],
            ["report_exports.id"],
            name="fk_report_export_parts_export_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("export_id", "attempt", "number", name="pk_report_export_parts"),
    )
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("description", sa.String(200), nullable=False),
        sa.Column("managed_by", sa.String(200)),
        sa.Column("since", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", sa.String(200), nullable=False),
        sa.Column("secret_version", sa.Integer(), nullable=False),
        sa.Column("secret_id", sa.String(16), nullable=False),
        sa.Column("previous_secret_id", sa.String(16)),
        sa.Column("previous_until", sa.DateTime(timezone=True)),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("rests_until", sa.DateTime(timezone=True)),
        sa.Column("tried_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_webhook_endpoints_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
    )
    op.create_index(
        "ix_webhook_endpoints_tenant_id_created_at",
        "webhook_endpoints",
        ["tenant_id", "created_at"],
    )
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("origin_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_webhook_events_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_events"),
    )
    op.create_index("ix_webhook_events_created_at", "webhook_events", ["created_at"])
    op.create_index(
        "ix_webhook_events_tenant_id_user_id", "webhook_events", ["tenant_id", "user_id"]
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(8), nullable=False),
        sa.Column("tenant_id", sa.String(64)),
        sa.Column("app_id", sa.String(64)),
        sa.Column("key_hash", sa.String(64), nullable=False),
        sa.Column("secret_id", sa.String(16), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "(scope = 'admin' AND tenant_id IS NULL AND app_id IS NULL)"
            " OR (scope = 'tenant' AND tenant_id IS NOT NULL AND app_id IS NULL)"
            " OR (scope = 'app' AND tenant_id IS NOT NULL AND app_id IS NOT NULL)",
            name=op.f("ck_api_keys_scope"),
        ),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_api_keys_app_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_api_keys_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("key_hash", name="uq_api_keys_key_hash"),
    )
    op.create_index("ix_api_keys_app_id", "api_keys", ["app_id"])
    op.create_index("ix_api_keys_tenant_id", "api_keys", ["tenant_id"])
    op.create_table(
        "batches",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file_id", sa.String(64), nullable=False),
        sa.Column("completion_window", sa.String(16), nullable=False),
        sa.Column("labels", sa.JSON(none_as_null=True)),
        sa.Column("output_expires_s", sa.Integer()),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True)),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("result_bytes", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.JSON(none_as_null=True)),
        sa.Column("output_file_id", sa.String(64)),
        sa.Column("error_file_id", sa.String(64)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("in_progress_at", sa.DateTime(timezone=True)),
        sa.Column("finalizing_at", sa.DateTime(timezone=True)),
        sa.Column("cancelling_at", sa.DateTime(timezone=True)),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_batches_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_index("ix_batches_app_id_created_at", "batches", ["app_id", "created_at"])
    op.create_index("ix_batches_ended_at", "batches", ["ended_at"])
    op.create_index("ix_batches_input_file_id", "batches", ["input_file_id"])
    op.create_index("ix_batches_state_created_at", "batches", ["state", "created_at"])
    op.create_table(
        "files",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_files_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_app_id_created_at", "files", ["app_id", "created_at"])
    op.create_index("ix_files_expires_at", "files", ["expires_at"])
    op.create_index("ix_files_tenant_id", "files", ["tenant_id"])
    op.create_table(
        "limits",
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("user_rpm", sa.Integer()),
        sa.Column("app_rpm", sa.Integer()),
        sa.Column("new_users_per_minute", sa.Integer()),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_limits_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("app_id", name="pk_limits"),
    )
    op.create_table(
        "profile_versions",
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("learned_stages", sa.Integer(), nullable=False),
        sa.Column("calls_learned", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.Column("author", sa.String(200), nullable=False),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_profile_versions_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("app_id", "version", name="pk_profile_versions"),
    )
    op.create_table(
        "programs",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True)),
        sa.Column("declaration", sa.JSON(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_programs_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_programs"),
    )
    op.create_index("ix_programs_app_id", "programs", ["app_id"])
    op.create_index("ix_programs_ended_at", "programs", ["ended_at"])
    op.create_index("ix_programs_state", "programs", ["state"])
    op.create_table(
        "stored_conversations",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_position", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_stored_conversations_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_stored_conversations"),
    )
    op.create_index(
        "ix_stored_conversations_app_id_changed_at",
        "stored_conversations",
        ["app_id", "changed_at"],
    )
    op.create_index("ix_stored_conversations_changed_at", "stored_conversations", ["changed_at"])
    op.create_index(
        "ix_stored_conversations_tenant_id_user_id",
        "stored_conversations",
        ["tenant_id", "user_id"],
    )
    op.create_table(
        "stored_responses",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("run_id", sa.String(255), nullable=False),
        sa.Column("call_id", sa.String(255), nullable=False),
        sa.Column("previous_id", sa.String(64)),
        sa.Column("conversation_id", sa.String(64)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("items", sa.JSON(), nullable=False),
        sa.Column("response", sa.JSON(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_stored_responses_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_stored_responses"),
    )
    op.create_index(
        "ix_stored_responses_app_id_created_at", "stored_responses", ["app_id", "created_at"]
    )
    op.create_index("ix_stored_responses_created_at", "stored_responses", ["created_at"])
    op.create_index(
        "ix_stored_responses_tenant_id_user_id", "stored_responses", ["tenant_id", "user_id"]
    )
    op.create_table(
        "token_profiles",
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("stage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("input_tokens", sa.Double(), nullable=False),
        sa.Column("system_tokens", sa.Double(), nullable=False),
        sa.Column("output_tokens", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_token_profiles_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("app_id", "stage", name="pk_token_profiles"),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("endpoint_id", sa.String(64), nullable=False),
        sa.Column("event_id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True)),
        sa.Column("last_status", sa.Integer()),
        sa.Column("last_error", sa.String(200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name="fk_webhook_deliveries_endpoint_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["event_id"],
            ["webhook_events.id"],
            name="fk_webhook_deliveries_event_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("endpoint_id", "event_id", name="pk_webhook_deliveries"),
    )
    op.create_index(
        "ix_webhook_deliveries_endpoint_id_created_at",
        "webhook_deliveries",
        ["endpoint_id", "created_at"],
    )
    op.create_index(
        "ix_webhook_deliveries_endpoint_id_state_next_attempt_at",
        "webhook_deliveries",
        ["endpoint_id", "state", "next_attempt_at"],
    )
    op.create_index("ix_webhook_deliveries_event_id", "webhook_deliveries", ["event_id"])
    op.create_index(
        "ix_webhook_deliveries_state_settled_at", "webhook_deliveries", ["state", "settled_at"]
    )
    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("line", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("succeeded", sa.Boolean(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name="fk_batch_results_batch_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "line", name="pk_batch_results"),
    )
    op.create_table(
        "console_sessions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64)),
        sa.Column("issuer", sa.String(200)),
        sa.Column("subject", sa.String(200)),
        sa.Column("name", sa.String(200)),
        sa.Column("role", sa.String(16)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name="fk_console_sessions_key_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_console_sessions"),
    )
    op.create_index("ix_console_sessions_expires_at", "console_sessions", ["expires_at"])
    op.create_index(
        "ix_console_sessions_key_id_created_at", "console_sessions", ["key_id", "created_at"]
    )
    op.create_index(
        "ix_console_sessions_subject_created_at", "console_sessions", ["subject", "created_at"]
    )
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name="fk_file_parts_file_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("file_id", "number", name="pk_file_parts"),
    )
    op.create_table(
        "program_steps",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("program_id", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "app_id", "program_id"],
            ["programs.tenant_id", "programs.app_id", "programs.id"],
            name="fk_program_steps_tenant_id_app_id_program_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "app_id", "program_id", "kind", "name", name="pk_program_steps"
        ),
    )
    op.create_table(
        "stored_conversation_items",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("app_id", sa.String(64), nullable=False),
        sa.Column("conversation_id", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("item_id", sa.String(128), nullable=False),
        sa.Column("item", sa.JSON(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "app_id", "conversation_id"],
            [
                "stored_conversations.tenant_id",
                "stored_conversations.app_id",
                "stored_conversations.id",
            ],
            name="fk_stored_conversation_items_tenant_id_app_id_conversation_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id",
            "app_id",
            "conversation_id",
            "position",
            name="pk_stored_conversation_items",
        ),
    )
    op.bulk_insert(schema_info, [{"id": 1, "min_reader": 100, "compatible": True}])
    op.bulk_insert(usage_state, [{"id": 1, "rolled_up_s": 0.0, "raw_from_s": 0}])


def downgrade() -> None:
    for table in (
        "stored_conversation_items",
        "program_steps",
        "file_parts",
        "console_sessions",
        "batch_results",
        "webhook_deliveries",
        "token_profiles",
        "stored_responses",
        "stored_conversations",
        "programs",
        "profile_versions",
        "limits",
        "files",
        "batches",
        "api_keys",
        "webhook_events",
        "webhook_endpoints",
        "report_export_parts",
        "erasures",
        "end_users",
        "contracts",
        "apps",
        "usage_state",
        "usage_runs",
        "usage_refusals",
        "usage_dirty",
        "usage_calls",
        "throttling_settings",
        "throttling_events",
        "tenants",
        "server_lease",
        "schema_info",
        "report_exports",
        "prices",
        "open_interactions",
        "ledger_calls",
        "job_states",
        "interactions",
        "installation_facts",
        "fleet_workers",
        "fleet_drains",
        "fleet_aliases",
        "audit_log",
        "alarms",
    ):
        op.drop_table(table)
