"""Settings of stored responses and conversations."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.platform.serving.kept_rows import RowBounds


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Bounds of stored responses and conversations; beyond them the oldest are deleted."""

    response_store: bool = True
    max_per_app: int = 10_000
    max_bytes_per_app: int = 256 * 1024 * 1024
    max_per_tenant: int = 100_000
    max_bytes_per_tenant: int = 1 << 30

    @property
    def of_app(self) -> RowBounds:
        """Return the bounds of an app."""
        return RowBounds(self.max_per_app, self.max_bytes_per_app)

    @property
    def of_tenant(self) -> RowBounds:
        """Return the bounds of all apps of a tenant."""
        return RowBounds(self.max_per_tenant, self.max_bytes_per_tenant)
