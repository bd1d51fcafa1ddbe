"""Change the limits of a tenant, an app, each user of an app, or one user.

The limits in force are one row; a subject without limits has none. Control receives a change after its
commit, from :func:`_announce` only, and all rows at its start, through :func:`contract_changed`.
"""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal

from sqlalchemy.orm import Session

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.money import NANO, nano_of
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.apps.inboxes import ControlInbox
from fairserve.platform.tenancy.quotas import repository
from fairserve.platform.tenancy.quotas.repository import Holder
from fairserve.platform.tenancy.quotas.schemas import ContractBody, ContractOut
from fairserve.scheduling.events import ContractChanged
from fairserve.throttling.quotas.quota import UNLIMITED, Quota

NOTHING = ContractOut()
_QUOTA = tuple(field.name for field in fields(Quota))
_AMOUNTS = ("max_budget", "soft_budget")


def shown(contract: Contract | None) -> ContractOut:
    """Return the limits as the API shows them."""
    if contract is None:
        return NOTHING
    values = {name: getattr(contract, name) for name in ContractOut.model_fields}
    for name in _AMOUNTS:
        if values[name] is not None:
            values[name] = Decimal(values[name]) / NANO
    return ContractOut(**values)


def contract_changed(contract: Contract) -> ContractChanged:
    """Return the event with the limits in force, for control."""
    models = contract.allowed_models
    return ContractChanged(
        scope=contract.scope,  # type: ignore[arg-type]  # the column holds no other scope
        tenant=contract.tenant_id,
        app=contract.app_id,
        user=contract.user_id,
        quota=Quota(**{name: getattr(contract, name) for name in _QUOTA}),
        models=None if models is None else tuple(models),
    )


def change(
    session: Session,
    control: ControlInbox,
    holder: Holder,
    body: ContractBody | None,
    *,
    param: str = "contract",
    replace: bool = False,
) -> None:
    """Change a subject's limits; without a ``body`` remove them.

    Fields that the body omits keep their value, or become unlimited with ``replace``. ``param`` names
    the body in errors. Raises InvalidRequestError for limits that contradict each other.
    """
    row = repository.get(session, holder)
    was = shown(row)
    limits = NOTHING if body is None else merged(NOTHING if replace else was, body, param)
    if limits == was:
        return
    before = UNLIMITED if row is None else contract_changed(row).quota
    if limits == NOTHING:
        session.delete(row)
        event = ContractChanged(holder.scope, holder.tenant_id, holder.app_id, holder.user_id)
    else:
        if row is None:
            row = Contract(**holder._asdict())
            session.add(row)
        for name, value in limits:
            amount = name in _AMOUNTS and value is not None
            setattr(row, name, nano_of(value) if amount else value)
        row.updated_at = utc_now()
        event = contract_changed(row)
    session.flush()
    _announce(session, control, event, before)


def _announce(
    session: Session, control: ControlInbox, event: ContractChanged, before: Quota
) -> None:
    """Notify control after the commit; ``before`` is the quota in force until now."""
    reopened = event.quota.period not in (None, before.period)
    after_commit(session, lambda: control.contract_changed(event, reopened=reopened))


def merged(was: ContractOut, body: ContractBody, param: str) -> ContractOut:
    """Return limits after a change. Raises InvalidRequestError for those that contradict each other."""
    given = {name: getattr(body, name) for name in body.model_fields_set}
    if "soft_end" in given:
        given["soft_end"] = given["soft_end"] or "warn"
    if given.get("allowed_models") is not None:
        given["allowed_models"] = list(dict.fromkeys(given["allowed_models"]))
    limits = was.model_copy(update=given)
    if limits.soft_budget is None and limits.soft_end != "warn":
        if "soft_end" in given:
            text = f"soft_end is {limits.soft_end} without a soft_budget"
            raise InvalidRequestError(f"{param}.soft_end: {text}", param=f"{param}.soft_end")
        limits.soft_end = "warn"
    quota = {name: getattr(limits, name) for name in _QUOTA}
    for name in _AMOUNTS:
        if quota[name] is not None:
            quota[name] = nano_of(quota[name])
    try:
        Quota(**quota)
    except ValueError as error:
        word = str(error).split()[0]
        field = f"{param}.{word if word in _QUOTA else 'budget_duration'}"
        raise InvalidRequestError(f"{field}: {error}", param=field) from None
    return limits
