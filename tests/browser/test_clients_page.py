"""Test the pages of clients: their shares, one client, and changes by an operator."""

import httpx
import openai
import pytest
from client_pages import ODD, call, hold, path_of, waits


@pytest.fixture(scope="module")
def world(server):
    """Create two tenants whose users have called; one user uses by far the most."""
    one = server.new_app(
        name='<img src=x onerror=alert(1)> "one"', limits={"user_rpm": 400, "app_rpm": 500}
    )
    other = server.new_app(name="other")
    for _ in range(40):
        call(server, one["api_key"], "flooder")
    for user in ("ann", "team/ben", ODD):
        call(server, one["api_key"], user)
    call(server, other["api_key"], "cleo")
    return {"one": one, "other": other}


def rows(visit):
    return visit.page.locator("tbody th[scope=row] > span > a").all_inner_texts()


def save(visit, **fields):
    for label, value in fields.items():
        visit.page.get_by_label(label.replace("_", " "), exact=True).fill(value)
    visit.page.get_by_role("button", name="Save").click()


@pytest.fixture
def operator(operator, world):
    return operator


def test_flooding_clients_are_shown_and_updated_live(operator, server, world):
    operator.open("/console/clients")
    assert operator.page.locator("tr.flood").count() == 0, "nobody waits"
    with waits(server, world["other"], "cleo"):
        operator.open("/console/clients")
        alarm = operator.page.locator(".alarms .bad").first.inner_text()
        assert alarm.startswith("flooder")
        assert "times its share" in alarm
        assert rows(operator)[0] == "flooder"
        assert operator.page.locator("tr.flood").count() == 1
    assert set(rows(operator)) == {"flooder", "ann", "team/ben", ODD, "cleo"}
    operator.page.locator(".live.on").wait_for()
    call(server, world["one"]["api_key"], "newcomer")
    operator.page.get_by_role("link", name="newcomer").wait_for()


def test_the_list_is_searched_sorted_and_paged(operator):
    operator.open("/console/clients")
    operator.page.get_by_label("Search").fill("BEN")
    operator.page.get_by_role("button", name="Show").click()
    operator.page.wait_for_url("**query=BEN**")
    assert rows(operator) == ["team/ben"]
    operator.open("/console/clients?query=OF+OTHER")
    assert rows(operator) == ["cleo"], "by the name of the tenant"
    operator.open("/console/clients?query=nobody-has-this")
    assert "No clients match." in operator.text()
    operator.open("/console/clients")
    operator.page.locator("thead").get_by_role("link", name="Client").click()
    operator.page.wait_for_url("**sort=name**")
    assert operator.page.locator("th[aria-sort=ascending]").count() == 1
    operator.open("/console/clients?limit=2&sort=name")
    first = rows(operator)
    operator.page.get_by_role("link", name="Next").click()
    operator.page.wait_for_url("**offset=2**")
    assert "3 to 4 of" in operator.text()
    assert len(first) == len(rows(operator)) == 2
    assert not set(first) & set(rows(operator))
    assert operator.open("/console/clients?sort=nothing") == 400


def test_the_page_of_one_client(operator, server, world):
    operator.open("/console/clients")
    with waits(server, world["other"], "cleo"):
        operator.page.locator("tbody").get_by_role("link", name="flooder").click()
        operator.page.locator("h1", has_text="flooder").wait_for()
        assert operator.page.url.endswith(path_of(world["one"], "flooder"))
        text = operator.text()
    assert "times its share" in text
    assert "No calls in progress." in text
    assert "of 400" in text, "the app's limit, as far as it is used"
    operator.page.locator("[data-chart=service][aria-label*='Service']").wait_for()
    assert operator.page.locator("table", has_text="Counter").locator("tbody tr").count() >= 2
    for name, place in (("User's rejections", "refusals"), ("User's usage", "usage")):
        operator.page.get_by_role("link", name=name).click()
        operator.page.wait_for_url(f"**/console/{place}?user=flooder**")
        operator.page.go_back()


def test_running_calls_link_to_their_run(operator, server, world):
    held = hold(server, world["one"]["api_key"], "slow", "a/run")
    operator.open(path_of(world["one"], "slow"))
    operator.page.get_by_role("link", name="a/run").click()
    operator.page.locator("h1", has_text="a/run").wait_for()
    server.release()
    held.result(60)


def test_ids_and_names_are_escaped(operator, world):
    operator.open("/console/clients?sort=name")
    operator.page.get_by_role("link", name=ODD, exact=True).click()
    operator.page.locator("h1").get_by_text(ODD).wait_for()
    assert operator.page.url.endswith(path_of(world["one"], ODD))
    save(operator, Weight="3")
    operator.page.wait_for_url("**?done=user")
    assert operator.page.locator("h1").inner_text() == ODD
    assert operator.page.get_by_label("Weight", exact=True).input_value() == "3"
    operator.page.locator(".crumbs a", has_text="one").last.click()
    operator.page.wait_for_url(f"**/console/clients/apps/{world['one']['id']}")
    assert operator.page.locator("h1").inner_text() == world["one"]["name"]
    assert operator.page.locator("main img").count() == 0
    operator.open(f"/console/clients/tenants/{world['one']['tenant_id']}")
    assert operator.page.locator("h1").inner_text() == f"tenant of {world['one']['name']}"
    assert operator.page.locator("main img").count() == 0


def test_the_levels_of_a_tenant_are_set_and_applied(operator, server, world):
    tenant = world["one"]["tenant_id"]
    operator.open(f"/console/clients/tenants/{tenant}")
    assert operator.page.get_by_label("Levels").input_value() == ""
    operator.page.get_by_label("Levels").select_option("tenant > app > user")
    operator.page.locator("form", has=operator.page.get_by_label("Levels")).get_by_role(
        "button", name="Save"
    ).click()
    operator.page.wait_for_url("**?done=tenant")
    assert operator.page.get_by_label("Levels").input_value() == "tenant > app > user"
    call(server, world["one"]["api_key"], "leveled")
    path = f"/admin/clients/{tenant}/{world['one']['id']}/leveled"
    assert [level["path"] for level in server.call(server.admin_key, "GET", path)["levels"]] == [
        [tenant, world["one"]["id"], "leveled"][:depth] for depth in (1, 2, 3)
    ]
    server.call(server.admin_key, "PATCH", f"/admin/tenants/{tenant}", {"levels": None})
    assert len(server.call(server.admin_key, "GET", path)["levels"]) == 2


def test_a_blocked_user_is_rejected_until_unblocked(operator, server, world):
    key = world["one"]["api_key"]
    operator.open(path_of(world["one"], "ann"))
    operator.page.get_by_role("button", name="Block", exact=True).click()
    operator.page.get_by_label("Accepted calls").select_option("cancel_all")
    operator.page.get_by_label("Reason").fill("floods the queue")
    dialog = operator.page.get_by_role("dialog")
    assert "All further calls of this user are rejected" in dialog.inner_text()
    dialog.get_by_role("button", name="Block", exact=True).click()
    operator.page.wait_for_url("**?done=user")
    assert "User settings saved" in operator.text()
    (change, *_) = server.call(
        server.admin_key, "GET", "/admin/audit?action=user.change&target=ann"
    )["items"]
    assert (change["after"]["on_block"], change["after"]["reason"]) == (
        "cancel_all",
        "floods the queue",
    )
    with pytest.raises(openai.PermissionDeniedError) as rejected:
        call(server, key, "ann")
    assert rejected.value.code == "user_blocked"
    operator.open("/console/clients?query=ann")
    assert operator.page.locator("tbody").get_by_text("blocked", exact=True).count() == 1
    operator.open(path_of(world["one"], "ann"))
    operator.page.get_by_role("button", name="Unblock").click()
    operator.page.wait_for_url("**?done=user")
    call(server, key, "ann")


def test_a_change_is_audited_and_keeps_hidden_fields(operator, server, world):
    tenant = world["one"]["tenant_id"]
    place = f"/admin/users/{tenant}/contracted"
    held = {"soft_budget": 5, "soft_end": "finish_runs", "budget_duration": "1d", "rpm_limit": 7}
    server.call(server.admin_key, "PUT", place, {"blocked": True, "contract": held})
    before = server.call(server.admin_key, "GET", place)
    operator.open(path_of(world["one"], "contracted"))
    assert "No calls in the last half hour" in operator.text()
    assert "reject new runs" in operator.text()
    save(operator, Weight="0.5", Calls_per_minute_under_overload="30")
    operator.page.wait_for_url("**?done=user")
    after = server.call(server.admin_key, "GET", place)
    assert (after["weight"], after["rpm"], after["blocked"]) == (0.5, 30, True)
    assert after["contract"] == before["contract"]
    (change, *_) = server.call(
        server.admin_key, "GET", f"/admin/audit?tenant={tenant}&target=contracted"
    )["items"]
    assert change["action"] == "user.change"
    assert (change["before"]["weight"], change["after"]["weight"]) == (1.0, 0.5)
    operator.page.get_by_role("button", name="Unblock").click()
    operator.page.get_by_role("button", name="Block", exact=True).wait_for()
    after = server.call(server.admin_key, "GET", place)
    assert (after["weight"], after["rpm"], after["blocked"]) == (0.5, 30, False)
    assert after["contract"] == before["contract"]
    operator.confirm("Reset to defaults")
    operator.page.get_by_text("all have their defaults").wait_for()
    assert server.call(server.admin_key, "GET", place)["contract"]["rpm_limit"] is None


def test_invalid_values_change_nothing_and_are_kept(operator, server, world):
    place = f"/admin/users/{world['one']['tenant_id']}/cautious"
    operator.open(path_of(world["one"], "cautious"))
    save(operator, Weight="a lot", Calls_per_minute_under_overload="0")
    weight = operator.page.get_by_label("Weight", exact=True)
    operator.page.locator("[aria-invalid=true]").first.wait_for()
    assert weight.input_value() == "a lot"
    assert weight.get_attribute("aria-invalid") == "true"
    assert operator.page.locator("[aria-invalid=true]").count() == 2
    assert "Must be a valid number." in operator.text()
    assert not operator.faults()
    assert server.call(server.admin_key, "GET", place)["updated_at"] is None


def test_a_tenant_is_weighed_suspended_and_resumed(operator, server):
    app = server.new_app(name="weighed")
    tenant = app["tenant_id"]
    operator.open("/console/clients/tenants")
    operator.page.get_by_label("Name", exact=True).fill("OF WEIGH")
    operator.page.get_by_role("button", name="Show").click()
    operator.page.wait_for_url("**?name=OF+WEIGH*")
    assert rows(operator) == ["tenant of weighed"]
    operator.page.get_by_role("link", name="tenant of weighed").click()
    save(operator, Weight="1000")
    operator.page.locator("[aria-invalid=true]").wait_for()
    save(operator, Weight="2.5")
    operator.page.wait_for_url("**?done=tenant")
    assert server.call(server.admin_key, "GET", f"/admin/tenants/{tenant}")["weight"] == 2.5
    operator.confirm("Suspend")
    operator.page.get_by_text("Suspended since").wait_for()
    with pytest.raises(openai.AuthenticationError):
        call(server, app["api_key"], "x")
    operator.confirm("Resume")
    operator.page.get_by_role("button", name="Suspend").wait_for()
    call(server, app["api_key"], "x")
    actions = server.call(
        server.admin_key, "GET", f"/admin/audit?tenant={tenant}&action=tenant.change"
    )["items"]
    assert len(actions) == 3


def test_an_app_is_changed(operator, server):
    app = server.new_app(name="changed")
    operator.open(f"/console/clients/apps?tenant={app['tenant_id']}")
    operator.page.get_by_role("link", name="changed", exact=True).click()
    save(operator, Weight="2", Calls_per_minute_of_each_user="40")
    operator.page.wait_for_url("**?done=app")
    place = f"/v1/apps/{app['id']}?tenant={app['tenant_id']}"
    after = server.call(server.admin_key, "GET", place)
    assert (after["weight"], after["limits"]["user_rpm"]) == (2, 40)
    save(operator, Calls_per_minute_of_each_user="")
    operator.page.wait_for_url("**?done=app")
    operator.page.wait_for_load_state()
    assert server.call(server.admin_key, "GET", place)["limits"]["user_rpm"] is None
    operator.page.get_by_label("Source").select_option("pinned")
    operator.page.get_by_role("button", name="Change").click()
    operator.page.wait_for_url("**?done=profile")
    assert server.call(server.admin_key, "GET", place)["profile_mode"] == "pinned"
    versions = operator.page.get_by_role("region", name="Versions of the profile")
    assert "pinned by" in versions.locator("tbody tr").first.inner_text()
    operator.open(f"/console/clients/apps?tenant={app['tenant_id']}")
    assert operator.page.locator("td[data-label=Profile]").inner_text() == "pinned"


def test_a_tenant_changes_only_permitted_fields_of_its_app(browser, server):
    app = server.new_app(name="owned")
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"])
        visit.open(f"/console/clients/apps/{app['id']}")
        assert visit.page.get_by_label("Weight", exact=True).count() == 0
        assert visit.page.get_by_label("Source").count() == 0
        csrf = visit.page.locator("input[name=csrf]").first.input_value()
        save(visit, Name="renamed", Calls_per_minute_of_the_app="900")
        visit.page.wait_for_url("**?done=app")
        after = server.call(app["tenant_key"], "GET", f"/v1/apps/{app['id']}")
        assert (after["name"], after["limits"]["app_rpm"]) == ("renamed", 900)
        cookies = {each["name"]: each["value"] for each in visit.context.cookies()}
        fields = {"csrf": csrf, "action": "save", "name": "renamed", "weight": "9"}
        answer = httpx.post(
            f"{server.url}/console/clients/apps/{app['id']}",
            data=fields,
            cookies=cookies,
            timeout=60,
        )
        assert answer.status_code == 303, "the weight is not looked at"
        after = server.call(app["tenant_key"], "GET", f"/v1/apps/{app['id']}")
        assert after["weight"] == 1
        server.call(
            app["tenant_key"],
            "POST",
            "/v1/apps",
            {
                "name": "taken",
                "profile": {"stages": [{"input_tokens": 1, "output_tokens": 1}]},
            },
        )
        save(visit, Name="taken")
        visit.page.locator("#name[aria-invalid=true]").wait_for()
        assert "of the tenant has this name" in visit.text()


def test_a_tenant_sees_only_its_own_clients(browser, server, world):
    other, one = world["other"], world["one"]
    with browser.visit(server.url) as visit:
        visit.sign_in(other["tenant_key"])
        visit.open("/console/clients")
        assert rows(visit) == ["cleo"]
        assert "flooder" not in visit.text()
        assert visit.page.locator(".tabs a").all_inner_texts() == ["Apps", "Clients"]
        assert visit.open(path_of(other, "cleo")) == 200
        assert "100 %" in visit.text(), "its share is that of its own tenant's service"
        assert "Counters and credits" not in visit.text(), "they would reveal other tenants"
        csrf = visit.page.locator("input[name=csrf]").first.input_value()
        assert visit.page.get_by_role("button", name="Block", exact=True).count() == 0
        visit.open("/console/clients/apps")
        assert rows(visit) == ["other"]
        cookies = {each["name"]: each["value"] for each in visit.context.cookies()}
        mixed = {**one, "tenant_id": other["tenant_id"]}
        foreign = [
            path_of(one, "flooder"),
            path_of(mixed, "flooder"),
            f"/console/clients?tenant={one['tenant_id']}",
            f"/console/clients/stream?tenant={one['tenant_id']}",
            path_of(one, "flooder").replace("clients/", "clients/stream/"),
            f"/console/clients/apps/{one['id']}",
            f"/console/clients/apps?tenant={one['tenant_id']}",
            "/console/clients/tenants",
            f"/console/clients/tenants/{one['tenant_id']}",
            f"/console/clients/tenants/{other['tenant_id']}",
        ]
        with httpx.Client(base_url=server.url, cookies=cookies, timeout=60) as client:
            for path in foreign:
                assert client.get(path).status_code == 404, path
            fields = {"csrf": csrf, "action": "block", "weight": "1", "mode": "declared"}
            for path in (
                path_of(one, "flooder"),
                path_of(other, "cleo"),
                f"/console/clients/apps/{one['id']}",
                f"/console/clients/apps/{one['id']}/profile",
                f"/console/clients/apps/{other['id']}/profile",
                f"/console/clients/tenants/{one['tenant_id']}",
                f"/console/clients/tenants/{other['tenant_id']}",
            ):
                assert client.post(path, data=fields).status_code == 404, path
    assert not server.call(server.admin_key, "GET", f"/admin/users/{other['tenant_id']}/cleo")[
        "blocked"
    ]


def test_missing_clients_are_not_found(operator, world):
    one = world["one"]
    for path in (
        path_of({**one, "id": "app_none"}, "x"),
        path_of({**one, "tenant_id": "tn_none"}, "x"),
        path_of({**one, "tenant_id": world["other"]["tenant_id"]}, "x"),
        "/console/clients/apps/app_none",
        "/console/clients/tenants/tn_none",
        "/console/clients/tenants/x/y",
    ):
        assert operator.open(path) == 404, path
