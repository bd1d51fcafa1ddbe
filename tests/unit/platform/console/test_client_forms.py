"""What forms on clients' pages change, and what they leave as it is."""

import pytest

from fairserve.platform.apps.schemas import AppPatch
from fairserve.platform.console.pages import apps, tenants
from fairserve.platform.console.pages.client import Client, changed, path_of
from fairserve.platform.contracts.schemas import ContractBody
from fairserve.platform.tenants.schemas import TenantPatch, UserPut

HELD = UserPut(weight=2, rpm=5, blocked=True, contract=ContractBody(rpm_limit=7))


def test_a_users_form_leaves_what_it_does_not_show():
    body = changed(HELD, {"action": "save", "weight": " 0.5 ", "rpm": " "})
    assert body == UserPut(weight=0.5, rpm=None, blocked=True, contract=HELD.contract)
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
def test_wrong_values_are_told_by_field(weight, rpm, wrong):
    found = changed(HELD, {"action": "save", "weight": weight, "rpm": rpm})
    assert isinstance(found, dict)
    assert set(found) == wrong
    assert all(text.startswith("Allowed: ") and text.endswith(".") for text in found.values())


def test_an_apps_form_sets_its_weight_for_operators_only():
    form = {"action": "save", "name": "new", "weight": "3", "user_rpm": "40", "app_rpm": ""}
    patch = apps.patch_of(form, weigh=True)
    limits = {"user_rpm": 40, "app_rpm": None}
    assert isinstance(patch, AppPatch)
    assert patch.model_dump(exclude_unset=True) == {"name": "new", "weight": 3, "limits": limits}
    patch = apps.patch_of(form, weigh=False)
    assert isinstance(patch, AppPatch)
    assert patch.weight is None
    assert set(apps.patch_of({**form, "user_rpm": "x", "name": " "}, weigh=False)) == {
        "user_rpm",
        "name",
    }
    assert apps.patch_of({"action": "suspend"}, weigh=False) == AppPatch(suspended=True)


def test_a_tenants_form():
    assert tenants.patch_of({"action": "resume"}) == TenantPatch(suspended=False)
    assert tenants.patch_of({"weight": "2"}) == TenantPatch(weight=2)
    assert set(tenants.patch_of({"weight": "101"})) == {"weight"}


def test_ids_are_one_part_of_a_path_each():
    client = Client("tn_1", "app_1", "a/b?c#d é", {})
    assert path_of(client) == "/console/clients/tn_1/app_1/a%2Fb%3Fc%23d%20%C3%A9"
