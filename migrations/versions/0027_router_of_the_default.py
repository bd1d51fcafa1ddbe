"""The options that the default's router and D2LPM do not have any more leave the stored choices"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_CHARGES = frozenset({"router.cached_weight", "router.charge_cached"})
_OF_D2LPM = _CHARGES | {"router.balance_abs", "router.balance_rel"}
REMOVED = {
    "fairserve": _CHARGES
    | {
        "router.quantum",
        "router.quantum_prompts",
        "router.level_quantum",
        "router.we",
        "router.wq",
    },
    "d2lpm": _OF_D2LPM,
    "dlpm": _OF_D2LPM,
}
SETTINGS = sa.table(
    "throttling_settings",
    sa.column("version", sa.Integer),
    sa.column("system", sa.String),
    sa.column("parameters", sa.JSON),
)


def upgrade() -> None:
    connection = op.get_bind()
    for version, system, parameters in connection.execute(
        sa.select(SETTINGS.c.version, SETTINGS.c.system, SETTINGS.c.parameters)
    ).all():
        removed = REMOVED.get(system, frozenset())
        kept = {name: value for name, value in parameters.items() if name not in removed}
        if len(kept) < len(parameters):
            connection.execute(
                sa.update(SETTINGS).where(SETTINGS.c.version == version).values(parameters=kept)
            )


def downgrade() -> None:
    """Change nothing: the values of the removed parameters are lost."""
