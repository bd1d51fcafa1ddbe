"""Stored responses, and conversations with their items"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_responses",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("call_id", sa.String(length=255), nullable=False),
        sa.Column("previous_id", sa.String(length=64), nullable=True),
        sa.Column("conversation_id", sa.String(length=64), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("items", sa.JSON(), nullable=False),
        sa.Column("response", sa.JSON(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_stored_responses"),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_stored_responses_app_id", ondelete="CASCADE"
        ),
    )
    op.create_index(
        "ix_stored_responses_app_id_created_at", "stored_responses", ["app_id", "created_at"]
    )
    op.create_index(
        "ix_stored_responses_tenant_id_user_id", "stored_responses", ["tenant_id", "user_id"]
    )
    op.create_index("ix_stored_responses_created_at", "stored_responses", ["created_at"])
    op.create_table(
        "stored_conversations",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_position", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "app_id", "id", name="pk_stored_conversations"),
        sa.ForeignKeyConstraint(
            ["app_id"], ["apps.id"], name="fk_stored_conversations_app_id", ondelete="CASCADE"
        ),
    )
    op.create_index(
        "ix_stored_conversations_app_id_changed_at",
        "stored_conversations",
        ["app_id", "changed_at"],
    )
    op.create_index(
        "ix_stored_conversations_tenant_id_user_id",
        "stored_conversations",
        ["tenant_id", "user_id"],
    )
    op.create_index("ix_stored_conversations_changed_at", "stored_conversations", ["changed_at"])
    op.create_table(
        "stored_conversation_items",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("app_id", sa.String(length=64), nullable=False),
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("item_id", sa.String(length=128), nullable=False),
        sa.Column("item", sa.JSON(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant_id",
            "app_id",
            "conversation_id",
            "position",
            name="pk_stored_conversation_items",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "app_id", "conversation_id"],
            [
                "stored_conversations.tenant_id",
                "stored_conversations.app_id",
                "stored_conversations.id",
            ],
            name="fk_stored_conversation_items_tenant_id_app_id_conversation_id",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("stored_conversation_items")
    op.drop_table("stored_conversations")
    op.drop_table("stored_responses")
