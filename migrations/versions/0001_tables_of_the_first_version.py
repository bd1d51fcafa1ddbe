"""Tables of the first version"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("actor_key_id", sa.String(length=64), nullable=True),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=400), nullable=False),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("after", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at"])
    op.create_index("ix_audit_log_tenant_id_at", "audit_log", ["tenant_id", "at"])

    op.create_table(
        "interactions",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("wasted_tokens", sa.BigInteger(), nullable=False),
        sa.Column("waste_cause", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_interactions"),
    )
    op.create_index("ix_interactions_app_id_opened_at", "interactions", ["app_id", "opened_at"])
    op.create_index("ix_interactions_ended_at", "interactions", ["ended_at"])
    op.create_index(
        "ix_interactions_tenant_id_opened_at", "interactions", ["tenant_id", "opened_at"]
    )

    op.create_table(
        "ledger_calls",
        sa.Column("call_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("interaction_id", sa.String(length=255), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(length=255), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("system_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("extend_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("service", sa.Double(), nullable=False),
        sa.Column("queue_delay_s", sa.Double(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("duration_s", sa.Double(), nullable=True),
        sa.Column("worker", sa.String(length=255), nullable=True),
        sa.Column("wasted", sa.Boolean(), nullable=False),
        sa.Column("charged", sa.Boolean(), nullable=False),
        sa.Column("error", sa.String(length=1000), nullable=False),
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

    schema_info = op.create_table(
        "schema_info",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("min_reader", sa.Integer(), nullable=False),
        sa.Column("compatible", sa.Boolean(), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_schema_info_one_row"),
        sa.PrimaryKeyConstraint("id", name="pk_schema_info"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("suspended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "throttling_events",
        sa.Column("call_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("interaction_id", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=True),
        sa.Column("limit_count", sa.Integer(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=True),
        sa.Column("window_s", sa.Double(), nullable=True),
        sa.Column("retry_after_s", sa.Double(), nullable=True),
        sa.Column("mid_run", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("call_id", name="pk_throttling_events"),
    )
    op.create_index("ix_throttling_events_app_id_at", "throttling_events", ["app_id", "at"])
    op.create_index("ix_throttling_events_at_call_id", "throttling_events", ["at", "call_id"])
    op.create_index("ix_throttling_events_tenant_id_at", "throttling_events", ["tenant_id", "at"])

    op.create_table(
        "throttling_settings",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("system", sa.String(length=64), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_throttling_settings"),
    )
    op.create_table(
        "apps",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("calls_per_interaction", sa.Double(), nullable=False),
        sa.Column("idle_timeout_s", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_apps_tenant_id", ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_apps"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_apps_tenant_id_name"),
    )
    op.create_table(
        "end_users",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("external_id", sa.String(length=200), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("rpm", sa.Integer(), nullable=True),
        sa.Column("blocked", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_end_users_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "external_id", name="pk_end_users"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("app_id", sa.String(length=64), nullable=True),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.Column("secret_id", sa.String(length=16), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(scope = 'admin' AND tenant_id IS NULL AND app_id IS NULL)"
            " OR (scope = 'tenant' AND tenant_id IS NOT NULL AND app_id IS NULL)"
            " OR (scope = 'app' AND tenant_id IS NOT NULL AND app_id IS NOT NULL)",
            name="ck_api_keys_scope",
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
        "limits",
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("user_rpm", sa.Integer(), nullable=True),
        sa.Column("app_rpm", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_limits_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("app_id", name="pk_limits"),
    )
    op.create_table(
        "token_profiles",
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("stage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("input_tokens", sa.Double(), nullable=False),
        sa.Column("system_tokens", sa.Double(), nullable=False),
        sa.Column("output_tokens", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_token_profiles_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("app_id", "stage", name="pk_token_profiles"),
    )
    op.bulk_insert(schema_info, [{"id": 1, "min_reader": 1, "compatible": True}])


def downgrade() -> None:
    for table in (
        "token_profiles",
        "limits",
        "api_keys",
        "end_users",
        "apps",
        "throttling_settings",
        "throttling_events",
        "tenants",
        "schema_info",
        "ledger_calls",
        "interactions",
        "audit_log",
    ):
        op.drop_table(table)
