"""Workers and aliases added through the API; the model that answered a call"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fleet_workers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("url", sa.String(length=1000), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=True),
        sa.Column("tokenizer", sa.String(length=1000), nullable=True),
        sa.Column("kv_events", sa.String(length=1000), nullable=True),
        sa.Column("kv_replay", sa.String(length=1000), nullable=True),
        sa.Column("kv_tokens", sa.BigInteger(), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("api_key_env", sa.String(length=200), nullable=True),
        sa.Column("drained", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_workers"),
        sa.UniqueConstraint("url", name="uq_fleet_workers_url"),
    )
    op.create_table(
        "fleet_aliases",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_fleet_aliases"),
    )
    op.add_column("ledger_calls", sa.Column("served_model", sa.String(length=255), nullable=True))


def downgrade() -> None:
    op.drop_column("ledger_calls", "served_model")
    op.drop_table("fleet_aliases")
    op.drop_table("fleet_workers")
