"""Roles of admin keys, and sessions of people who sign in through OpenID Connect"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "api_keys", sa.Column("role", sa.String(length=16), nullable=False, server_default="admin")
    )
    with op.batch_alter_table("console_sessions") as table:
        table.alter_column("key_id", existing_type=sa.String(length=64), nullable=True)
        table.add_column(sa.Column("issuer", sa.String(length=200), nullable=True))
        table.add_column(sa.Column("subject", sa.String(length=200), nullable=True))
        table.add_column(sa.Column("name", sa.String(length=200), nullable=True))
        table.add_column(sa.Column("role", sa.String(length=16), nullable=True))
        table.create_index("ix_console_sessions_subject_created_at", ["subject", "created_at"])


def downgrade() -> None:
    op.execute("DELETE FROM console_sessions WHERE key_id IS NULL")
    with op.batch_alter_table("console_sessions") as table:
        table.drop_index("ix_console_sessions_subject_created_at")
        for name in ("role", "name", "subject", "issuer"):
            table.drop_column(name)
        table.alter_column("key_id", existing_type=sa.String(length=64), nullable=False)
    op.drop_column("api_keys", "role")
