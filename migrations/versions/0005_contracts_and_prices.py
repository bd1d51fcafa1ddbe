"""Limits, budgets and prices; weights; suspended and deleted apps; the cost of a call"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_PRESENT = sa.text("deleted_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "contracts",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("rpm_limit", sa.Integer(), nullable=True),
        sa.Column("tpm_limit", sa.BigInteger(), nullable=True),
        sa.Column("max_parallel_requests", sa.Integer(), nullable=True),
        sa.Column("max_budget", sa.BigInteger(), nullable=True),
        sa.Column("soft_budget", sa.BigInteger(), nullable=True),
        sa.Column("soft_end", sa.String(length=16), nullable=False),
        sa.Column("budget_duration", sa.String(length=8), nullable=True),
        sa.Column("allowed_models", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "scope", "app_id", "user_id", name="pk_contracts"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_contracts_tenant_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_contracts_app_id", "contracts", ["app_id"])
    op.create_table(
        "prices",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_prices"),
    )
    op.create_index("ix_prices_model_valid_from", "prices", ["model", "valid_from"], unique=True)
    op.create_table(
        "erasures",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("user_hash", sa.String(length=64), nullable=False),
        sa.Column("pseudonym", sa.String(length=64), nullable=False),
        sa.Column("id_key", sa.String(length=64), nullable=False),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "user_hash", name="pk_erasures"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_erasures_tenant_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_erasures_erased_at", "erasures", ["erased_at"])

    for table, columns in (("tenants", ["name"]), ("apps", ["tenant_id", "name"])):
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("weight", sa.Double(), nullable=False, server_default="1"))
            if table == "apps":
                batch.add_column(sa.Column("suspended_at", sa.DateTime(timezone=True)))
            batch.add_column(sa.Column("deleted_at", sa.DateTime(timezone=True)))
            batch.drop_constraint(f"uq_{table}_{'_'.join(columns)}", type_="unique")
        op.create_index(
            f"ix_{table}_{'_'.join(columns)}",
            table,
            columns,
            unique=True,
            postgresql_where=_PRESENT,
            sqlite_where=_PRESENT,
        )
    op.add_column(
        "api_keys",
        sa.Column("name", sa.String(length=200), nullable=False, server_default=""),
    )
    op.add_column(
        "ledger_calls", sa.Column("cost", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.add_column("ledger_calls", sa.Column("price_id", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("ledger_calls", "price_id")
    op.drop_column("ledger_calls", "cost")
    op.drop_column("api_keys", "name")
    for table, columns in (("apps", ["tenant_id", "name"]), ("tenants", ["name"])):
        op.drop_index(f"ix_{table}_{'_'.join(columns)}", table)
        op.execute(sa.text(f"DELETE FROM {table} WHERE deleted_at IS NOT NULL"))  # noqa: S608
        with op.batch_alter_table(table) as batch:
            batch.drop_column("deleted_at")
            if table == "apps":
                batch.drop_column("suspended_at")
            batch.drop_column("weight")
            batch.create_unique_constraint(f"uq_{table}_{'_'.join(columns)}", columns)
    op.drop_table("erasures")
    op.drop_table("prices")
    op.drop_table("contracts")
