"""The first steps of an empty installation: a tenant, an app, a call. Shown until all are done."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.db.ledger import LedgerCall


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Which of the steps are done."""

    tenant: bool
    app: bool
    call: bool

    @property
    def done(self) -> bool:
        """Return whether nothing is left."""
        return self.tenant and self.app and self.call


def first_steps(session: Session) -> FirstSteps:
    """Return which steps are done, from the first row of each table. Cost: one query."""
    tenant, app, call = (exists(select(each)) for each in (Tenant, App, LedgerCall))
    found = session.execute(select(tenant, app, call)).one()
    return FirstSteps(found[0], found[1], found[2])
