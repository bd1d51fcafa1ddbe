"""Drains of workers of any source, apart from the workers of the API"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_COPY = """
    INSERT INTO fleet_drains (worker_id, drained_by, drained_at)
    SELECT fleet_workers.id,
        (SELECT audit_log.actor FROM audit_log
            WHERE audit_log.action = 'worker.drain' AND audit_log.target = fleet_workers.id
            ORDER BY audit_log.at DESC LIMIT 1),
        (SELECT audit_log.at FROM audit_log
            WHERE audit_log.action = 'worker.drain' AND audit_log.target = fleet_workers.id
            ORDER BY audit_log.at DESC LIMIT 1)
    FROM fleet_workers WHERE fleet_workers.drained
"""


def upgrade() -> None:
    op.create_table(
        "fleet_drains",
        sa.Column("worker_id", sa.String(length=64), nullable=False),
        sa.Column("drained_by", sa.String(length=200), nullable=True),
        sa.Column("drained_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("worker_id", name="pk_fleet_drains"),
    )
    # fleet_workers.drained stays: servers of earlier revisions read it.
    op.execute(_COPY)


def downgrade() -> None:
    op.drop_table("fleet_drains")
