"""A price of reasoning tokens, and a priority weight of users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0108"
down_revision = "0104"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("prices", sa.Column("reasoning_tokens", sa.BigInteger()))
    op.add_column("end_users", sa.Column("priority_weight", sa.Double()))


def downgrade() -> None:
    op.drop_column("end_users", "priority_weight")
    op.drop_column("prices", "reasoning_tokens")
