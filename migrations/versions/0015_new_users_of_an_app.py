"""New users per minute of an app; normalised user ids of settings and contracts"""

from __future__ import annotations

import unicodedata

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("limits", sa.Column("new_users_per_minute", sa.Integer(), nullable=True))
    _normalise_users()
    _normalise_contracts()


def downgrade() -> None:
    """Keep the normalised ids."""
    op.drop_column("limits", "new_users_per_minute")


def _normal(user: str) -> str:
    """Return an id as NFC without surrounding whitespace; invalid characters are kept."""
    return unicodedata.normalize("NFC", user).strip()


def _normalise_users() -> None:
    """Merge the rows of each user: blocked if any is, otherwise the row with the normalised id."""
    users = sa.table(
        "end_users",
        sa.column("tenant_id", sa.String),
        sa.column("external_id", sa.String),
        sa.column("blocked", sa.Boolean),
    )
    rows = op.get_bind().execute(sa.select(users)).all()
    taken = {(row.tenant_id, row.external_id) for row in rows}
    for tenant, user, blocked in sorted(rows):
        normal = _normal(user)
        if normal == user or not normal:
            continue
        this = (users.c.tenant_id == tenant) & (users.c.external_id == user)
        if (tenant, normal) not in taken:
            op.execute(users.update().where(this).values(external_id=normal))
            taken.add((tenant, normal))
            continue
        if blocked:
            other = (users.c.tenant_id == tenant) & (users.c.external_id == normal)
            op.execute(users.update().where(other).values(blocked=True))
        op.execute(users.delete().where(this))


def _normalise_contracts() -> None:
    """Keep the contract with the normalised id if a user has two."""
    contracts = sa.table(
        "contracts",
        sa.column("tenant_id", sa.String),
        sa.column("scope", sa.String),
        sa.column("user_id", sa.String),
    )
    of_users = sa.select(contracts.c.tenant_id, contracts.c.user_id).where(
        contracts.c.scope == "user"
    )
    rows = op.get_bind().execute(of_users).all()
    taken = {(row.tenant_id, row.user_id) for row in rows}
    for tenant, user in sorted(taken):
        normal = _normal(user)
        if normal == user or not normal:
            continue
        this = (
            (contracts.c.tenant_id == tenant)
            & (contracts.c.scope == "user")
            & (contracts.c.user_id == user)
        )
        if (tenant, normal) in taken:
            op.execute(contracts.delete().where(this))
        else:
            op.execute(contracts.update().where(this).values(user_id=normal))
            taken.add((tenant, normal))
