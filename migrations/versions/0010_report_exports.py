"""Report exports and their files in parts; interactions of all tenants in the order of time"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_exports",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("asked_by", sa.String(length=16), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("app_id", sa.String(length=64), nullable=True),
        sa.Column("user_id", sa.String(length=200), nullable=True),
        sa.Column("names_users", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("format", sa.String(length=16), nullable=False),
        sa.Column("query", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress", sa.Double(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("error", sa.String(length=1000), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_report_exports"),
    )
    for columns in (["tenant_id", "created_at"], ["state", "created_at"], ["created_at"]):
        op.create_index(f"ix_report_exports_{'_'.join(columns)}", "report_exports", columns)
    op.create_table(
        "report_export_parts",
        sa.Column("export_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("export_id", "attempt", "number", name="pk_report_export_parts"),
        sa.ForeignKeyConstraint(
            ["export_id"],
            ["report_exports.id"],
            name="fk_report_export_parts_export_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_interactions_opened_at", "interactions", ["opened_at"])


def downgrade() -> None:
    op.drop_index("ix_interactions_opened_at", "interactions")
    op.drop_table("report_export_parts")
    op.drop_table("report_exports")
