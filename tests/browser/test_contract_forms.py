"""Forms of quotas set limits that apply to calls, and show errors at their fields."""

import openai
import pytest
from client_pages import MODEL, ODD, call, path_of


def set_limits(visit, title, fields):
    """Fill in the form of a quota."""
    form = visit.page.get_by_role("form", name=title)
    for label, value in fields.items():
        form.get_by_label(label, exact=True).fill(value)
    form.get_by_role("button", name="Set limits").click()
    return form


def test_the_quota_of_a_user_is_set_and_applied(operator, server):
    app = server.new_app()
    place = f"/admin/users/{app['tenant_id']}/limited"
    server.call(server.admin_key, "PUT", place, {"weight": 2})
    operator.open(path_of(app, "limited"))
    title = "Quota of the user"
    set_limits(operator, title, {"Calls per minute": "1", "Models": f"{MODEL}\n{ODD}"})
    operator.page.wait_for_url("**?done=user")
    held = server.call(server.admin_key, "GET", place)
    assert held["weight"] == 2
    assert held["contract"]["rpm_limit"] == 1
    assert held["contract"]["allowed_models"] == [MODEL, ODD]
    models = operator.page.get_by_role("form", name=title).get_by_label("Models", exact=True)
    assert models.input_value() == f"{MODEL}\n{ODD}"
    assert operator.page.locator("main img").count() == 0
    call(server, app["api_key"], "limited")
    with pytest.raises(openai.RateLimitError) as rejected:
        call(server, app["api_key"], "limited")
    assert "Rate limit exceeded (contract_rpm): 2 calls of this user" in str(rejected.value)
    wrong = {"Calls per minute": "", "Budget, USD": "3", "Budget period": "often"}
    form = set_limits(operator, title, wrong)
    form.locator("[aria-invalid=true]").wait_for()
    assert "budget_duration is 'often'; allowed: 1h" in form.inner_text()
    assert form.get_by_label("Budget, USD", exact=True).input_value() == "3"
    assert not operator.faults()
    assert server.call(server.admin_key, "GET", place)["contract"] == held["contract"]
    form.get_by_label("Budget period").fill("1d")
    form.get_by_label("Action above the soft budget").select_option("finish_runs")
    form.get_by_role("button", name="Set limits").click()
    operator.page.get_by_text("finish_runs without a soft_budget").wait_for()
    form.get_by_label("Soft budget, USD").fill("2")
    form.get_by_role("button", name="Set limits").click()
    operator.page.wait_for_url("**?done=user")
    contract = server.call(server.admin_key, "GET", place)["contract"]
    assert (contract["rpm_limit"], contract["soft_end"]) == (None, "finish_runs")
    assert {name: float(contract[name]) for name in ("max_budget", "soft_budget")} == {
        "max_budget": 3,
        "soft_budget": 2,
    }
    call(server, app["api_key"], "limited")


def test_quotas_of_tenants_and_apps_are_set(browser, operator, server):
    app = server.new_app(name="contracts")
    operator.open(f"/console/clients/tenants/{app['tenant_id']}")
    set_limits(operator, "Quota of the tenant", {"Parallel calls": "3"})
    operator.page.wait_for_url("**?done=tenant")
    tenant = server.call(server.admin_key, "GET", f"/admin/tenants/{app['tenant_id']}")
    assert tenant["contract"]["max_parallel_requests"] == 3
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"])
        visit.open(f"/console/clients/apps/{app['id']}")
        set_limits(visit, "Quota of the app", {"Calls per minute": "50"})
        visit.page.wait_for_url("**?done=app")
        set_limits(visit, "Quota of each user", {"Tokens per minute": "9000"})
        visit.page.get_by_role("form", name="Quota of each user").wait_for()
        tokens = visit.page.locator("[id='user_contract.tpm_limit']")
        assert tokens.input_value() == "9000"
        assert not visit.faults()
    place = f"/v1/apps/{app['id']}?tenant={app['tenant_id']}"
    held = server.call(server.admin_key, "GET", place)
    assert held["contract"]["rpm_limit"] == 50
    assert held["user_contract"]["tpm_limit"] == 9000
    assert held["name"] == "contracts"


def test_a_limit_shows_what_it_would_have_rejected_while_it_is_entered(browser, operator, server):
    app = server.new_app(name="previewed")
    for _ in range(3):
        call(server, app["api_key"], "ann")
    assert server.platform.ledger.flush(60)
    page = operator.page
    places = {
        "Quota of the app": f"/console/clients/apps/{app['id']}",
        "Quota of the tenant": f"/console/clients/tenants/{app['tenant_id']}",
        "Quota of the user": path_of(app, "ann"),
    }
    for title, place in places.items():
        operator.open(place)
        form = page.get_by_role("form", name=title)
        field = form.get_by_label("Calls per minute", exact=True)
        field.press_sequentially("2")
        form.get_by_text("2 would have rejected 1 of 3 accepted calls of the last hour.").wait_for()
        assert not operator.faults()
        field.press_sequentially("x")
        form.get_by_text("would have rejected").wait_for(state="detached")
        form.get_by_label("Tokens per minute", exact=True).fill("1")
        form.get_by_text("1 would have rejected 3 of 3 accepted calls").wait_for()
        form.get_by_label("Budget period", exact=True).fill("1mo")
        form.get_by_label("Budget, USD", exact=True).fill("5")
        form.get_by_text("5.00 USD would have rejected 0 of 3 accepted calls").wait_for()
    other = server.new_app(name="not previewed")
    query = f"/console/quota-preview?app={app['id']}&rpm_limit=1"
    with browser.visit(server.url) as visit:
        visit.sign_in(other["tenant_key"])
        assert visit.open(query) == 404
        assert visit.open(f"{query}&tenant={app['tenant_id']}") == 404
