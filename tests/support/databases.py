"""Marks that choose the databases of a test or a module; without one a test runs on SQLite.

The fixtures ``engine``, ``database_url`` and what is built on them (``sessions``, ``management``, ...)
heed them.
"""

import pytest

ON_POSTGRESQL = pytest.mark.databases("postgresql")
"""Mark of SQL that PostgreSQL plans, locks, types or orders in its own way."""

ON_BOTH = pytest.mark.databases("sqlite", "postgresql")
"""Only where the statements or the code around them differ between the databases."""
