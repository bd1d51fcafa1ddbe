"""Levels of a tenant's clients, if they differ from those of the system"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("levels", sa.String(length=32), nullable=True))


def downgrade() -> None:
    op.drop_column("tenants", "levels")
