"""Sessions of the console"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "console_sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_console_sessions"),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name="fk_console_sessions_key_id", ondelete="CASCADE"
        ),
    )
    for columns in (["key_id", "created_at"], ["expires_at"]):
        op.create_index(f"ix_console_sessions_{'_'.join(columns)}", "console_sessions", columns)


def downgrade() -> None:
    op.drop_table("console_sessions")
