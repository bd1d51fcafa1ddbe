"""Settings of what is done in the background."""

from __future__ import annotations

from fairserve.platform.settings_billing import BillingSettings


class BackgroundSettings(BillingSettings):
    """A part of :class:`fairserve.platform.settings.Settings`."""
