"""Forms on client pages change the fields they show and keep all others."""

from decimal import Decimal

import pytest

from fairserve.platform.base.errors import ConflictError, InvalidRequestError
from fairserve.platform.console.forms import contract_of, refused
from fairserve.platform.console.pages import apps, tenants
from fairserve.platform.console.pages.client import ShownClient, changed, path_of
from fairserve.platform.tenancy.apps.schemas import AppPatch
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.tenants.schemas import TenantPatch, UserPut

HELD = UserPut(weight=2, priority_weight=4, rpm=5, blocked=True, contract=ContractBody(rpm_limit=7))


def test_a_user_form_keeps_fields_it_does_not_show():
    body = changed(HELD, {"action": "save", "weight": " 0.5 ", "rpm": " "})
    assert body == HELD.model_copy(update={"weight": 0.5, "rpm": None})
    body = changed(HELD, {"action": "save", "weight": "2", "priority_weight": " "})
    assert body == HELD.model_copy(update={"priority_weight": None})
    assert changed(HELD, {"action": "unblock"}) == HELD.model_copy(update={"blocked": False})
    assert changed(HELD, {"action": "block"}) == HELD


@pytest.mark.parametrize(
    ("weight", "rpm", "wrong"),
    [
        ("", "", {"weight"}),
        ("1,5", "", {"weight"}),
        ("nan", "", {"weight"}),
        ("inf", "", {"weight"}),
        ("0", "0", {"weight", "rpm"}),
        ("1", "1.5", {"rpm"}),
        ("1", "1000001", {"rpm"}),
    ],
)
def test_invalid_values_are_reported_at_their_fields(weight, rpm, wrong):
    found = changed(HELD, {"action": "save", "weight": weight, "rpm": rpm})
    assert isinstance(found, dict)
    assert set(found) == wrong
    assert all(text.startswith("Must be ") and text.endswith(".") for text in found.values())


LIMITS = {
    "rpm_limit": " 30 ",
    "tpm_limit": "",
    "max_budget": "12.5",
    "budget_duration": "1d",
    "soft_end": "warn",
    "allowed_models": "one, with a comma\r\n\r\n two \r\n",
}


def contract_form(name, **more):
    fields = {f"{name}.{limit}": text for limit, text in (LIMITS | more).items()}
    return {"action": name, "weight": "7", "name": "ignored", **fields}


def test_a_contract_form_sets_all_limits():
    body = ContractBody(
        rpm_limit=30,
        tpm_limit=None,
        max_parallel_requests=None,
        max_budget=Decimal("12.5"),
        soft_budget=None,
        soft_end="warn",
        budget_duration="1d",
        allowed_models=["one, with a comma", "two"],
    )
    for name in ("contract", "user_contract"):
        found = contract_of(contract_form(name), name)
        assert found == body
        assert found.model_fields_set == set(ContractBody.model_fields), "blank is no limit"
        patch = apps.patch_of(contract_form(name), weigh=True)
        assert patch.model_dump(exclude_unset=True) == {name: body.model_dump()}
    assert tenants.patch_of(contract_form("contract")) == TenantPatch(contract=body)
    assert changed(HELD, contract_form("contract")) == HELD.model_copy(update={"contract": body})
    nothing = contract_of({"action": "contract"}, "contract")
    assert nothing == ContractBody()
    assert nothing.model_fields_set == set(ContractBody.model_fields)


def test_quota_errors_are_reported_at_their_fields():
    wrong = {
        "rpm_limit": "0",
        "tpm_limit": "many",
        "max_budget": "-1",
        "budget_duration": "a while",
        "soft_end": "never",
        "allowed_models": "fine\n" + "x" * 5000,
    }
    names = {f"user_contract.{limit}" for limit in wrong}
    form = contract_form("user_contract", **wrong)
    assert set(contract_of(form, "user_contract")) == names
    assert set(apps.patch_of(form, weigh=False)) == names
    form = contract_form("contract", allowed_models="m\n" * 101)
    assert set(tenants.patch_of(form)) == {"contract.allowed_models"}
    assert set(changed(HELD, form)) == {"contract.allowed_models"}


def test_contradicting_limits_are_reported_at_their_field():
    error = InvalidRequestError("contract.soft_end: ...", param="contract.soft_end")
    form = {"contract.soft_end": "finish_runs", "name": "a", "key.name": "b"}
    assert refused(error, form) == {"contract.soft_end": "contract.soft_end: ..."}
    assert refused(InvalidRequestError("no", param="weight"), form) == {"": "no"}
    assert refused(ConflictError("taken", param="name"), form) == {"name": "taken"}
    assert refused(ConflictError("taken", param="name"), form, "key.") == {"key.name": "taken"}


def test_only_operators_set_the_weight_of_an_app():
    form = {"action": "save", "name": "new", "weight": "3", "user_rpm": "40", "app_rpm": ""}
    patch = apps.patch_of(form, weigh=True)
    limits = {"user_rpm": 40, "app_rpm": None, "new_users_per_minute": None}
    assert isinstance(patch, AppPatch)
    assert patch.model_dump(exclude_unset=True) == {"name": "new", "weight": 3, "limits": limits}
    for text, granted in (("4", 4.0), ("", None)):
        patch = apps.patch_of({**form, "priority_weight": text}, weigh=True)
        assert isinstance(patch, AppPatch)
        assert patch.model_dump(exclude_unset=True)["priority_weight"] == granted
    patch = apps.patch_of({**form, "priority_weight": "4"}, weigh=False)
    assert isinstance(patch, AppPatch)
    assert patch.weight is None
    assert patch.priority_weight is None
    assert set(apps.patch_of({**form, "user_rpm": "x", "name": " "}, weigh=False)) == {
        "user_rpm",
        "name",
    }
    assert apps.patch_of({"action": "suspend"}, weigh=False) == AppPatch(suspended=True)


def test_a_tenant_form_sets_its_fields():
    form = {"action": "save", "weight": "2", "levels": "tenant > app > user"}
    expected = TenantPatch(weight=2, levels="tenant > app > user")
    assert tenants.patch_of(form) == expected
    cleared = tenants.patch_of({**form, "levels": ""})
    assert cleared == TenantPatch(weight=2, levels=None)
    assert "levels" in cleared.model_fields_set, "those of the system from now on"
    assert set(tenants.patch_of({**form, "levels": "user"})) == {"levels"}
    assert tenants.patch_of({"action": "resume"}) == TenantPatch(suspended=False)
    assert tenants.patch_of({"weight": "2"}) == TenantPatch(weight=2)
    assert set(tenants.patch_of({"weight": "101"})) == {"weight"}


def test_ids_are_single_path_segments():
    client = ShownClient("tn_1", "app_1", "a/b?c#d é", {})
    assert path_of(client) == "/console/clients/tn_1/app_1/a%2Fb%3Fc%23d%20%C3%A9"
