"""Settings of stored responses and conversations."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.platform.serving.kept_rows import RowBounds


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Bounds of stored responses and conversations; see the settings of the same names."""

    response_store: bool = True
    response_max_per_app: int = 10_000
    response_max_bytes_per_app: int = 256 * 1024 * 1024
    response_max_per_tenant: int = 100_000
    response_max_bytes_per_tenant: int = 1 << 30

    @property
    def of_app(self) -> RowBounds:
        """Return the bounds of an app."""
        return RowBounds(self.response_max_per_app, self.response_max_bytes_per_app)

    @property
    def of_tenant(self) -> RowBounds:
        """Return the bounds of all apps of a tenant."""
        return RowBounds(self.response_max_per_tenant, self.response_max_bytes_per_tenant)
