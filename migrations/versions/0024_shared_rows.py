"""Rows that calls and interactions without tokens share"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

TABLES = ("interactions", "ledger_calls", "throttling_events")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("shared_by", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "shared_by")
