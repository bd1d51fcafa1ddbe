"""Inputs of rejections: the load, the state of the run, and money"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TABLE = "throttling_events"


def _columns() -> list[sa.Column[object]]:
    return [
        sa.Column("system", sa.String(length=64), nullable=True),
        sa.Column("overloaded", sa.Boolean(), nullable=True),
        sa.Column("demand_tokens", sa.BigInteger(), nullable=True),
        sa.Column("capacity_tokens", sa.BigInteger(), nullable=True),
        sa.Column("high_watermark", sa.Double(), nullable=True),
        sa.Column("low_watermark", sa.Double(), nullable=True),
        sa.Column("queued_calls", sa.Integer(), nullable=True),
        sa.Column("call_tokens", sa.BigInteger(), nullable=True),
        sa.Column("run_calls", sa.Integer(), nullable=True),
        sa.Column("run_tokens", sa.BigInteger(), nullable=True),
        sa.Column("expected_calls", sa.Double(), nullable=True),
        sa.Column("expected_tokens", sa.Double(), nullable=True),
        sa.Column("immunity_factor", sa.Double(), nullable=True),
        sa.Column("under_way", sa.Boolean(), nullable=True),
        sa.Column("immune", sa.Boolean(), nullable=True),
        sa.Column("budget_limit", sa.BigInteger(), nullable=True),
        sa.Column("budget_spent", sa.BigInteger(), nullable=True),
        sa.Column("budget_held", sa.BigInteger(), nullable=True),
        sa.Column("call_cost", sa.BigInteger(), nullable=True),
    ]


def upgrade() -> None:
    for column in _columns():
        op.add_column(TABLE, column)


def downgrade() -> None:
    for column in reversed(_columns()):
        op.drop_column(TABLE, column.name)
