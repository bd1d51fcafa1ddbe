"""Rollups of the ledger; all existing rows are marked for rollup"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_CALLS = (
    "calls",
    "completed",
    "refused",
    "cancelled",
    "failed",
    "expired",
    "uncharged_calls",
    "input_tokens",
    "system_tokens",
    "cached_tokens",
    "extend_tokens",
    "output_tokens",
    "wasted_tokens",
    "cost",
    "unpriced_calls",
    "queue_delay_count",
    "ttft_count",
)
_RUNS = (
    "complete",
    "aborted",
    "cancelled",
    "expired",
    "run_calls",
    "wasted_throttled",
    "wasted_cancelled",
    "wasted_failed",
    "wasted_expired",
)


def _rollup(table: str, last_key: list[sa.Column[Any]], columns: list[sa.Column[Any]]) -> None:
    keys: list[sa.Column[Any]] = [
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        *last_key,
    ]
    names = [column.name for column in keys]
    op.create_table(table, *keys, *columns, sa.PrimaryKeyConstraint(*names, name=f"pk_{table}"))
    op.create_index(f"ix_{table}_level_start_s", table, ["level", "start_s"])


def _counts(names: tuple[str, ...]) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _quarter(time: str) -> str:
    if op.get_bind().dialect.name == "postgresql":
        return f"floor(extract(epoch from {time}) / 900)::bigint * 900"
    return f"cast(strftime('%s', substr({time}, 1, 19)) AS INTEGER) / 900 * 900"


def upgrade() -> None:
    _rollup(
        "usage_calls",
        [sa.Column("model", sa.String(length=255), nullable=False)],
        [
            *_counts(_CALLS),
            sa.Column("service", sa.Double(), nullable=False),
            sa.Column("queue_delay_digest", sa.LargeBinary(), nullable=True),
            sa.Column("ttft_digest", sa.LargeBinary(), nullable=True),
        ],
    )
    _rollup("usage_runs", [], _counts(_RUNS))
    _rollup(
        "usage_refusals",
        [sa.Column("reason", sa.String(length=64), nullable=False)],
        _counts(("count", "mid_run")),
    )
    op.create_table(
        "usage_dirty",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("marks", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "start_s", name="pk_usage_dirty"),
    )
    state = op.create_table(
        "usage_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rolled_up_s", sa.Double(), nullable=False),
        sa.Column("raw_from_s", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage_state"),
    )
    op.bulk_insert(state, [{"id": 1, "rolled_up_s": 0.0, "raw_from_s": 0}])
    sources = " UNION ".join(
        f"SELECT tenant_id, app_id, {_quarter(time)} AS start_s FROM {table}"  # noqa: S608
        for table, time in (
            ("ledger_calls", "accepted_at"),
            ("throttling_events", "at"),
            ("interactions", "ended_at"),
        )
    )
    op.execute(
        sa.text(
            f"INSERT INTO usage_dirty SELECT tenant_id, app_id, start_s, 1 FROM ({sources}) AS found"  # noqa: S608
        )
    )


def downgrade() -> None:
    for table in ("usage_state", "usage_dirty", "usage_refusals", "usage_runs", "usage_calls"):
        op.drop_table(table)
