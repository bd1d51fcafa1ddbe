"""The running parts of the server that the services of tenants and apps use."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.platform.tenancy.apps.inboxes import ControlInbox, ProgramInbox
from fairserve.platform.tenancy.auth import Authenticator
from fairserve.platform.tenancy.settings import TenancySettings


@dataclass(frozen=True)
class TenancyParts:
    """Built by the server when it starts; endpoints find it as ``app.state.tenancy``."""

    settings: TenancySettings
    authenticator: Authenticator
    control: ControlInbox
    programs: ProgramInbox
