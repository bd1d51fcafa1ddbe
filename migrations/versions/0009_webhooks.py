"""Webhooks: endpoints, events, deliveries"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def _of(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_{column}"
    return sa.ForeignKeyConstraint([column], [f"{other}.id"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("description", sa.String(length=200), nullable=False),
        sa.Column("since", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", sa.String(length=200), nullable=False),
        sa.Column("secret_version", sa.Integer(), nullable=False),
        sa.Column("secret_id", sa.String(length=16), nullable=False),
        sa.Column("previous_secret_id", sa.String(length=16), nullable=True),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("rests_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tried_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
        _of("webhook_endpoints", "tenant_id", "tenants"),
    )
    op.create_index(
        "ix_webhook_endpoints_tenant_id_created_at",
        "webhook_endpoints",
        ["tenant_id", "created_at"],
    )
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("origin_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_events"),
        _of("webhook_events", "tenant_id", "tenants"),
    )
    op.create_index(
        "ix_webhook_events_tenant_id_user_id", "webhook_events", ["tenant_id", "user_id"]
    )
    op.create_index("ix_webhook_events_created_at", "webhook_events", ["created_at"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("endpoint_id", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("endpoint_id", "event_id", name="pk_webhook_deliveries"),
        _of("webhook_deliveries", "endpoint_id", "webhook_endpoints"),
        _of("webhook_deliveries", "event_id", "webhook_events"),
    )
    for columns in (
        ["endpoint_id", "state", "next_attempt_at"],
        ["endpoint_id", "created_at"],
        ["event_id"],
        ["state", "settled_at"],
    ):
        name = f"ix_webhook_deliveries_{'_'.join(columns)}"
        op.create_index(name, "webhook_deliveries", columns)


def downgrade() -> None:
    for table in ("webhook_deliveries", "webhook_events", "webhook_endpoints"):
        op.drop_table(table)
