"""Declared programs and the steps of their runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "programs",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("declaration", sa.JSON(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=1000), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_programs"),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_programs_app_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_programs_app_id", "programs", ["app_id"])
    op.create_index("ix_programs_state", "programs", ["state"])
    op.create_index("ix_programs_ended_at", "programs", ["ended_at"])
    op.create_table(
        "program_steps",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("program_id", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant_id", "app_id", "program_id", "kind", "name", name="pk_program_steps"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "app_id", "program_id"],
            ["programs.tenant_id", "programs.app_id", "programs.id"],
            name="fk_program_steps_tenant_id_app_id_program_id",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("program_steps")
    op.drop_table("programs")
