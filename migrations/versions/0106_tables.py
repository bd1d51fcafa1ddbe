"""The tables of the first release. Until it is released, they are those of the models.

Its number is above those of the versions before the first release, whose databases no migration
upgrades (:mod:`fairserve.platform.db.schema`). ``STATEMENTS_SHA256`` is the hash of the statements that
create the tables on both databases; a test compares it with the models, so that a changed model needs
a higher number and a new hash. With the first release the statements replace the models here.
"""

from __future__ import annotations

from alembic import op

from fairserve.platform.db.models import metadata

revision = "0106"
down_revision = None
branch_labels = None
depends_on = None

STATEMENTS_SHA256 = "27a23b4f6c3cd13d1042aaa1e6486f2d096bed5d2162f71c6494a69fbb62d8d7"


def upgrade() -> None:
    connection = op.get_bind()
    metadata.create_all(connection, checkfirst=False)
    tables = metadata.tables
    op.bulk_insert(tables["schema_info"], [{"id": 1, "min_reader": 100, "compatible": True}])
    op.bulk_insert(tables["usage_state"], [{"id": 1, "rolled_up_s": 0.0, "raw_from_s": 0}])


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), checkfirst=False)
