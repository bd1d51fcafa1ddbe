"""Settings of the console's pages."""

from __future__ import annotations

from pydantic import Field

from fairserve.platform.server.settings_background import BackgroundSettings


class ConsoleSettings(BackgroundSettings):
    """A part of :class:`fairserve.platform.server.settings.Settings`."""

    console: bool = Field(True, description="Serve the console's pages under /console.")
    console_session_hours: float = Field(
        8.0,
        gt=0,
        le=24 * 7,
        description="Hours after which a sign-in to the console ends.",
    )
    console_idle_minutes: float = Field(
        60.0,
        gt=0,
        le=24 * 60 * 7,
        description="Minutes without a request or an open page after which it ends earlier.",
    )
    console_sign_ins: int = Field(
        10,
        ge=1,
        le=1000,
        description="Wrong keys that one address may try to sign in with in five minutes; more are "
        "refused.",
    )
    console_sign_ins_in_all: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description="Wrong keys from all addresses in five minutes from which on each sign-in is "
        "delayed by three seconds. None is refused for it.",
    )
    console_streams: int = Field(
        200,
        ge=1,
        le=10_000,
        description="Live pages of the console that may be open at a time; more are not live.",
    )
