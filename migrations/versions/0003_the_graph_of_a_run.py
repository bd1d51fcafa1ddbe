"""Client names of calls, and the parents of calls"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ledger_calls", sa.Column("name", sa.String(length=255), nullable=True))
    op.add_column("ledger_calls", sa.Column("parents", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("ledger_calls", "parents")
    op.drop_column("ledger_calls", "name")
