"""The share of a hit, which no system has any more, leaves the stored choices"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

REMOVED = frozenset({"hit_share"})
SETTINGS = sa.table(
    "throttling_settings", sa.column("version", sa.Integer), sa.column("parameters", sa.JSON)
)


def upgrade() -> None:
    connection = op.get_bind()
    for version, parameters in connection.execute(
        sa.select(SETTINGS.c.version, SETTINGS.c.parameters)
    ).all():
        kept = {name: value for name, value in parameters.items() if name not in REMOVED}
        if len(kept) < len(parameters):
            connection.execute(
                sa.update(SETTINGS).where(SETTINGS.c.version == version).values(parameters=kept)
            )


def downgrade() -> None:
    """Change nothing: the values of the removed parameters are lost."""
