"""Open interactions, so that a restart restores them; the server that holds the database"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "open_interactions",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sink", sa.String(length=255), nullable=True),
        sa.Column("closing", sa.String(length=16), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_open_interactions"),
    )
    op.create_index(
        "ix_open_interactions_tenant_id_user_id", "open_interactions", ["tenant_id", "user_id"]
    )
    op.create_table(
        "server_lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(length=200), nullable=False),
        sa.Column("guard", sa.String(length=200), nullable=False),
        sa.Column("lease_s", sa.Double(), nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_server_lease_one_row"),
        sa.PrimaryKeyConstraint("id", name="pk_server_lease"),
    )


def downgrade() -> None:
    op.drop_table("server_lease")
    op.drop_table("open_interactions")
