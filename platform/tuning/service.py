"""Throttling settings in force, and their changes at run time: validated, versioned, audited."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, InvalidRequestError
from fairserve.platform.control.service import ControlService
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.operations import ThrottlingSetting
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.system.in_force import newest_choice
from fairserve.platform.tenancy.system.parameters import (
    Parameter,
    describe,
    effective_options,
    system_config,
)
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.platform.tuning.schemas import (
    ParameterOut,
    ThrottlingChanged,
    ThrottlingChoice,
    ThrottlingOut,
    ThrottlingPut,
)
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig


@dataclass(frozen=True, slots=True)
class Current:
    """The system in force and the parameters set by an operator. Version 0: none were set."""

    system: str
    parameters: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    author: str | None = None
    created_at: datetime | None = None


def load_current(session: Session, settings: TuningSettings) -> Current:
    """Return the newest version, or the server's settings."""
    row = newest_choice(session)
    if row is None:
        return Current(settings.system)
    return _current(row)


def _current(row: ThrottlingSetting) -> Current:
    return Current(row.system, row.parameters, row.version, row.author, row.created_at)


def change(
    session: Session, principal: Principal, settings: TuningSettings, body: ThrottlingPut
) -> tuple[Current, dict[str, Any], list[str]]:
    """Store the next version.

    Returns it with all options for the running control, and the names of the changed parameters that
    apply only to restarted workers.

    Raises InvalidRequestError, which names the parameter, and ConflictError if ``expected_version`` is
    not in force.
    """
    before = load_current(session, settings)
    if body.expected_version is not None and body.expected_version != before.version:
        raise ConflictError(
            f"expected_version does not match: version {before.version} is in force",
            param="expected_version",
        )
    after, options = checked(settings, body)
    row = ThrottlingSetting(
        version=before.version + 1,
        system=body.system,
        parameters=body.parameters,
        author=principal.actor,
        created_at=utc_now(),
    )
    session.add(row)
    session.flush()
    audit.record(
        session,
        principal,
        "throttling.change",
        f"version {row.version}",
        before={"system": before.system, "parameters": before.parameters},
        after={"system": row.system, "parameters": row.parameters},
    )
    was = system_config(settings, before.system, before.parameters)
    return _current(row), options, kept_by_workers(was, after)


def checked(
    settings: TuningSettings, body: ThrottlingChoice
) -> tuple[SystemConfig, dict[str, Any]]:
    """Return the system and all options of a choice. Raises InvalidRequestError for a parameter."""
    try:
        after = system_config(settings, body.system, body.parameters)
        return after, effective_options(settings, body.system, body.parameters)
    except ValueError as error:
        known = body.system in SYSTEMS
        raise InvalidRequestError(str(error), param="parameters" if known else "system") from error


def kept_by_workers(before: SystemConfig, after: SystemConfig) -> list[str]:
    """Return the changed parameters of the workers' scheduler, which apply at their start."""
    if before.local != after.local:
        return ["local"]
    old, new = before.local_options, after.local_options
    return sorted(f"local.{key}" for key in {*old, *new} if old.get(key) != new.get(key))


def report(settings: TuningSettings, current: Current) -> ThrottlingOut:
    """Return the settings in force, with every parameter."""
    config = system_config(settings, current.system, current.parameters)
    return ThrottlingOut(
        version=current.version,
        system=current.system,
        throttle=config.throttle,
        feeder=config.feeder,
        router=config.router,
        local=config.local,
        parameters=[_out(p) for p in describe(settings, current.system, current.parameters)],
        systems=list(dict.fromkeys((*SYSTEMS.offered, current.system))),
        author=current.author,
        created_at=current.created_at,
    )


def _out(parameter: Parameter) -> ParameterOut:
    plain = {name: _json(value) for name, value in asdict(parameter).items()}
    return ParameterOut(**plain)


def _json(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def change_and_apply(
    session: Session,
    principal: Principal,
    settings: TuningSettings,
    control: ControlService,
    body: ThrottlingPut,
) -> ThrottlingChanged:
    """Store a change and apply it after the commit."""
    current, options, kept = change(session, principal, settings, body)
    after_commit(session, lambda: control.apply_throttling(current.system, options))
    return ThrottlingChanged(**report(settings, current).model_dump(), after_worker_restart=kept)
