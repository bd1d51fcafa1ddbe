"""Rules that assign an app's calls to runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("apps", sa.Column("run_rules", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("apps", "run_rules")
