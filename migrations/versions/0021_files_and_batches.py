"""Files of apps, and batches of calls that are read from them"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0019"
branch_labels = None
depends_on = None


def _time(name: str, *, nullable: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, length: int = 64, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=length), nullable=nullable)


def _whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _owned_by(table: str, column: str, owner: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{owner}.id"], name=f"fk_{table}_{column}", ondelete="CASCADE"
    )


def upgrade() -> None:
    op.create_table(
        "files",
        _text("id"),
        _text("tenant_id"),
        _text("app_id"),
        _text("name", 200),
        _text("purpose", 16),
        _text("state", 16),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        _time("created_at"),
        _time("expires_at"),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
        _owned_by("files", "app_id", "apps"),
    )
    op.create_table(
        "file_parts",
        _text("file_id"),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("file_id", "number", name="pk_file_parts"),
        _owned_by("file_parts", "file_id", "files"),
    )
    op.create_table(
        "batches",
        _text("id"),
        _text("tenant_id"),
        _text("app_id"),
        _text("endpoint"),
        _text("input_file_id"),
        _text("completion_window", 16),
        sa.Column("labels", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("output_expires_s", sa.Integer(), nullable=True),
        _text("state", 16),
        _whole("attempt"),
        _time("lease_until", nullable=True),
        _whole("total"),
        _whole("completed"),
        _whole("failed"),
        sa.Column("result_bytes", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.JSON(none_as_null=True), nullable=True),
        _text("output_file_id", nullable=True),
        _text("error_file_id", nullable=True),
        _time("created_at"),
        _time("in_progress_at", nullable=True),
        _time("finalizing_at", nullable=True),
        _time("cancelling_at", nullable=True),
        _time("expires_at"),
        _time("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
        _owned_by("batches", "app_id", "apps"),
    )
    op.create_table(
        "batch_results",
        _text("batch_id"),
        sa.Column("line", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("succeeded", sa.Boolean(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "line", name="pk_batch_results"),
        _owned_by("batch_results", "batch_id", "batches"),
    )
    for table, columns in (
        ("files", ["tenant_id"]),
        ("files", ["app_id", "created_at"]),
        ("files", ["expires_at"]),
        ("batches", ["app_id", "created_at"]),
        ("batches", ["state", "created_at"]),
        ("batches", ["input_file_id"]),
        ("batches", ["ended_at"]),
    ):
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)


def downgrade() -> None:
    for table in ("batch_results", "batches", "file_parts", "files"):
        op.drop_table(table)
