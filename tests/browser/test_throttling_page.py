"""Test the throttling page: a change with a preview, two operators at once, and earlier versions."""

import openai
import pytest
from client_pages import call

PAGE = "/console/throttling"
API = "/admin/throttling"
USER_LIMIT = "#p-throttle\\.user_limit"


@pytest.fixture
def put(server):
    """Return a function that changes the settings over the API."""

    def change(system="fairserve", **parameters):
        given = {name.replace("__", "."): value for name, value in parameters.items()}
        return server.call(server.admin_key, "PUT", API, {"system": system, "parameters": given})

    return change


@pytest.fixture
def holds(server):
    """Return a function for the settings in force: the system, and the value of a parameter."""

    def read(name):
        found = server.call(server.admin_key, "GET", API)
        values = {each["name"]: each["value"] for each in found["parameters"]}
        return found["system"], values[name]

    return read


@pytest.fixture
def newest(server):
    """Return the newest stored version."""
    return lambda: server.call(server.admin_key, "GET", f"{API}/history?limit=1")["items"][0]


@pytest.fixture(scope="module")
def traffic(server):
    """Make some calls of two users; one is rejected."""
    server.call(server.admin_key, "PUT", API, {"system": "rpm-2"})
    app = server.new_app(name="played")
    rejected = 0
    for number in range(5):
        try:
            call(server, app["api_key"], f"u{number % 2}")
        except openai.RateLimitError:
            rejected += 1
    assert rejected == 1
    server.wait_for(
        f"/admin/usage?app={app['id']}",
        server.admin_key,
        lambda report: report["sums"]["calls"] == 5,
    )
    return app


def tab_to(visit, selector):
    """Reach an element by the keyboard only."""
    for _ in range(200):
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate("s => document.activeElement.matches(s)", selector):
            return
    raise AssertionError(f"{selector} is not reached")


def apply(visit):
    visit.page.get_by_role("button", name="Apply").click()


def test_a_limit_is_changed_with_the_keyboard_alone(operator, put, holds, newest):
    put()
    operator.open(PAGE)
    tab_to(operator, USER_LIMIT)
    operator.page.keyboard.press("Control+A")
    operator.page.keyboard.type("7")
    tab_to(operator, "button.main")
    operator.page.keyboard.press("Enter")
    operator.page.wait_for_url("**/throttling?done=throttling")
    assert "are in force" in operator.page.locator(".note").inner_text()
    assert holds("throttle.user_limit") == ("fairserve", 7)
    assert newest()["parameters"] == {"throttle.user_limit": 7}, "the others stay their defaults"
    note = operator.page.locator("#p-throttle\\.user_limit-default").inner_text()
    assert note == "changed 7; default none; “none” (null) is allowed"


def test_enter_in_a_field_applies_nothing(operator, put, newest):
    version = put()["version"]
    operator.open(PAGE)
    operator.page.fill(USER_LIMIT, "9")
    operator.page.press(USER_LIMIT, "Enter")
    operator.page.wait_for_selector("#preview .sentences, #preview .alarm")
    assert newest()["version"] == version


@pytest.mark.parametrize("scripts", [True, False])
def test_an_invalid_value_is_shown_at_its_field(browser, server, put, newest, scripts):
    version = put()["version"]
    with browser.visit(server.url, scripts=scripts) as visit:
        visit.sign_in(server.admin_key)
        visit.open(PAGE)
        visit.page.fill(USER_LIMIT, "a few")
        visit.page.fill("#p-resident_share", "2")
        visit.page.fill("#p-hold_s", "25")
        visit.page.get_by_role("button", name="Preview" if scripts else "Apply").click()
        visit.page.wait_for_selector(f"{USER_LIMIT}[aria-invalid=true]")
        text = visit.page.locator("#p-throttle\\.user_limit-wrong").inner_text()
        assert text == "“a few” is not allowed; must be a whole number, or none"
        described = visit.page.get_attribute(USER_LIMIT, "aria-describedby")
        assert described.startswith("p-throttle.user_limit-wrong ")
        assert visit.page.input_value(USER_LIMIT) == "a few"
        assert visit.page.input_value("#p-hold_s") == "25", "the others are kept"
        if scripts:
            assert not visit.faults()
            visit.page.wait_for_selector(f"{USER_LIMIT}:focus")
        visit.page.fill(USER_LIMIT, "5")
        apply(visit)
        visit.page.wait_for_selector("#p-resident_share[aria-invalid=true]")
        wrong = visit.page.locator("#p-resident_share-wrong").inner_text()
        assert "allowed: over 0, to 1" in wrong
        assert visit.page.locator("[aria-invalid]").count() == 1
        visit.page.fill("#p-resident_share", "none")
        assert newest()["version"] == version, "nothing was stored so far"
        apply(visit)
        visit.page.wait_for_url("**/throttling?done=throttling")
        assert newest()["parameters"] == {
            "hold_s": 25.0,
            "resident_share": None,
            "throttle.user_limit": 5,
        }


def test_two_operators_do_not_overwrite_each_other(operator, server, put, holds):
    put()
    operator.open(PAGE)
    operator.page.fill(USER_LIMIT, "3")
    other = put(throttle__user_limit=11, immunity_factor=6)["version"]
    apply(operator)
    alert = operator.page.get_by_role("alert").inner_text()
    assert "the settings were changed by somebody else" in alert
    assert f"Version {other} is in force, stored by {server.admin_key[:12]}" in alert
    assert "throttle.user_limit default → 11" in alert
    assert "immunity_factor default → 6" in alert
    assert operator.page.input_value(USER_LIMIT) == "3"
    assert holds("throttle.user_limit")[1] == 11
    assert not operator.faults()
    apply(operator)
    operator.page.wait_for_url("**/throttling?done=throttling")
    assert holds("throttle.user_limit")[1] == 3


def test_values_set_by_an_operator_are_kept(operator, put, newest):
    put(high_watermark=2.0, immunity_factor=6)
    operator.open(PAGE)
    operator.page.fill("#p-immunity_factor", "2")  # the default of the parameter
    assert operator.page.get_by_role("button", name="Apply").is_enabled()
    operator.page.get_by_text("Advanced: ").click()
    operator.page.get_by_label("Find", exact=True).first.fill("WEIGHT_cap")
    assert not operator.page.locator("#p-newcomers").is_visible()
    operator.page.fill("#p-feeder\\.weight_cap", "4")
    operator.page.get_by_label("Find", exact=True).first.fill("")
    operator.page.select_option("#p-newcomers", "shared")
    apply(operator)
    operator.page.wait_for_url("**/throttling?done=throttling")
    assert newest()["parameters"] == {
        "high_watermark": 2.0,
        "feeder.weight_cap": 4.0,
        "newcomers": "shared",
    }
    version = newest()["version"]
    assert operator.page.get_by_role("button", name="Apply").is_disabled(), "nothing is changed"
    operator.page.fill("#p-feeder\\.weight_cap", "4.0")
    apply(operator)
    assert "No change: these settings" in operator.page.locator("#settings .alarm").inner_text()
    assert newest()["version"] == version


def test_another_system_shows_its_own_parameters(operator, put, holds):
    put()
    operator.open(PAGE)
    operator.page.select_option("#system", "rpm")
    operator.page.wait_for_selector("#p-throttle\\.limit")
    assert operator.page.locator(USER_LIMIT).count() == 0
    operator.page.fill("#rpm", "7")
    operator.page.keyboard.press("Enter")
    operator.page.wait_for_selector("#settings >> text=Throttle: rpm")
    operator.page.wait_for_selector("#p-throttle\\.limit[value='7']")
    assert (
        "fairserve stays in force until you apply"
        in operator.page.locator("#settings").inner_text()
    )
    apply(operator)
    operator.page.wait_for_url("**/throttling?done=throttling")
    assert holds("throttle.limit") == ("rpm-7", 7)
    assert "local" in operator.page.locator(".alarm.warn").inner_text(), (
        "workers keep their scheduler"
    )
    assert operator.open(f"{PAGE}?system=rpm&rpm=0") == 400
    assert operator.open(f"{PAGE}?system=nothing") == 400
    assert "unknown system" in operator.page.get_by_role("alert").inner_text()


def test_the_history_shows_changes_with_authors_and_reverts(operator, server, put, holds):
    put(throttle__user_limit=4, resident_share=0.5)
    wanted = put(throttle__user_limit=5)["version"]
    put(throttle__user_limit=6)
    operator.open(PAGE)
    row = operator.page.locator(f"#version-{wanted}")
    text = row.inner_text()
    assert server.admin_key[:12] in text
    assert "throttle.user_limit 4 → 5" in text
    assert "resident_share 0.5 → default" in text
    assert "immunity_factor" not in text
    row.get_by_role("button", name="Revert").click()
    operator.page.wait_for_url("**/throttling?done=reverted")
    assert holds("throttle.user_limit") == ("fairserve", 5)
    newest = operator.page.locator(f"#version-{wanted + 2}").inner_text()
    assert "throttle.user_limit 6 → 5" in newest
    assert "in force" in newest
    put(throttle__user_limit=8)
    operator.page.locator(f"#version-{wanted}").get_by_role("button").click()
    operator.page.wait_for_selector("[role=alert]")
    assert "throttle.user_limit 5 → 8" in operator.page.get_by_role("alert").inner_text()
    assert holds("throttle.user_limit")[1] == 8, "somebody changed it since the page was loaded"


def test_a_long_history_has_pages(operator, put):
    for number in range(21):
        put(throttle__user_limit=100 + number)
    operator.open(PAGE)
    assert operator.page.locator("#history tbody tr").count() == 20
    operator.page.get_by_role("link", name="Older").click()
    operator.page.wait_for_url("**offset=20*")
    while operator.page.get_by_role("link", name="Older").count():
        operator.page.get_by_role("link", name="Older").click()
    assert "the server's settings" in operator.page.locator("#version-0").inner_text()


@pytest.mark.parametrize("scripts", [True, False])
def test_a_preview_shows_the_effect_of_a_change(browser, server, traffic, put, scripts):
    put("rpm-2")
    with browser.visit(server.url, scripts=scripts) as visit:
        visit.sign_in(server.admin_key)
        visit.open(PAGE)
        visit.page.fill("#p-throttle\\.limit", "100")
        visit.page.select_option("#minutes", "30")
        visit.page.get_by_role("button", name="Preview").click()
        visit.page.wait_for_selector("#preview .sentences", timeout=60_000)
        text = visit.page.locator("#preview").inner_text()
        assert "throttle.limit default → 100" in text
        assert "0 calls would have been rejected instead of 1" in text
        assert "Accuracy" in text
        assert "Most affected users" in text
        assert visit.page.locator("#preview tr", has_text="u0").count() == 1
        row = visit.page.locator("#preview tr", has_text="Rejected calls").first
        assert row.locator("td").all_inner_texts() == ["1", "0"]
        assert visit.page.input_value("#p-throttle\\.limit") == "100"
        assert visit.page.get_attribute("#preview", "aria-live") == "polite"
        if scripts:
            assert not visit.faults()
    assert server.call(server.admin_key, "GET", API)["system"] == "rpm-2", "nothing changed"


def test_load_and_rejections_are_live(operator, server, traffic):
    operator.open(PAGE)
    operator.page.wait_for_selector(".live.on")
    assert operator.page.locator("[data-chart=load] canvas").count() == 1
    server.sample()
    operator.page.wait_for_selector("[data-chart=load][aria-label$=' %']")
    assert "rpm user limit" in operator.page.locator("figure").nth(1).inner_text()


def test_tenants_have_no_throttling_page(browser, server):
    app = server.new_app(name="curious")
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"])
        for path in (PAGE, f"{PAGE}/stream"):
            assert visit.open(path) == 404
        visit.open("/console/overview")
        csrf = visit.page.input_value("[name=csrf]")
        for path in (PAGE, f"{PAGE}/preview", f"{PAGE}/revert"):
            form = {"csrf": csrf, "system": "fcfs", "version": "0", "to": "0"}
            assert visit.context.request.post(server.url + path, form=form).status == 404
