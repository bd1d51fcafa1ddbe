"""Marks choose the databases of a test or a module; without one a test runs on SQLite.

The fixtures ``engine``, ``database_url`` and those that use them (``sessions``, ``management``, ...)
follow the marks.
"""

import pytest

ON_POSTGRESQL = pytest.mark.databases("postgresql")
"""Mark of SQL that PostgreSQL plans, locks, types or orders differently."""

ON_BOTH = pytest.mark.databases("sqlite", "postgresql")
"""Mark of tests whose statements or surrounding code differ between the databases."""
