"""Profiles learned from the ledger, and the expected values of each call"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "profile_versions",
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("learned_stages", sa.Integer(), nullable=False),
        sa.Column("calls_learned", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=1000), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_profile_versions_app_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("app_id", "version", name="pk_profile_versions"),
    )
    with op.batch_alter_table("apps") as apps:
        apps.add_column(
            sa.Column(
                "profile_mode", sa.String(length=16), server_default="learned", nullable=False
            )
        )
        apps.add_column(
            sa.Column("profile_version", sa.Integer(), server_default="0", nullable=False)
        )
        apps.add_column(sa.Column("profile_looked_at", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("ledger_calls") as calls:
        calls.add_column(sa.Column("expected_output_tokens", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("ledger_calls") as calls:
        calls.drop_column("expected_output_tokens")
    with op.batch_alter_table("apps") as apps:
        for column in ("profile_looked_at", "profile_version", "profile_mode"):
            apps.drop_column(column)
    op.drop_table("profile_versions")
