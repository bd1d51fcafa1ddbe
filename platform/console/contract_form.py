"""Form of a quota: shows and sets all limits of a tenant, an app, its users, or one user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairserve.platform.console import forms
from fairserve.platform.tenancy.quotas.schemas import ContractBody


def contract_of(form: Mapping[str, str], name: str) -> ContractBody | forms.Wrong:
    """Return the limits in the form of the quota ``name``; a blank field is no limit."""
    limits: dict[str, Any] = {
        limit: forms.given(form.get(f"{name}.{limit}")) for limit in ContractBody.model_fields
    }
    if limits["allowed_models"] is not None:
        limits["allowed_models"] = forms.lines(limits["allowed_models"])
    body = forms.read(ContractBody, limits)
    if isinstance(body, ContractBody):
        return body
    return {f"{name}.{limit}": text for limit, text in body.items()}
