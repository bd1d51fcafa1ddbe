"""Headers that name an app's end users, and the origins of its pages in browsers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("apps", sa.Column("user_headers", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("apps", sa.Column("cors_origins", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("apps", "cors_origins")
    op.drop_column("apps", "user_headers")
