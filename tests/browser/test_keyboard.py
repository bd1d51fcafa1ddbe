"""Keys search for names and open pages; a tenant finds only what is its own."""

import pytest
from client_pages import call
from playwright.sync_api import expect


@pytest.fixture(scope="module")
def app(server):
    app = server.new_app(name="weather <b>research</b>")
    call(server, app["api_key"], "wendy/1")
    server.call(app["api_key"], "POST", "/v1/interactions", {"id": "we run", "user": "wendy/1"})
    return app


def test_keys_search_and_open_pages(operator, app):
    page = operator.page
    operator.open("/console/overview")
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_url("**/console/clients")
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    assert not operator.faults()
    page.get_by_role("button", name="Close").click()
    page.get_by_label("Search").first.focus()
    page.keyboard.press("/")
    assert not page.locator("#search").is_visible(), "a field has the focus"
    page.locator("h1").click()
    page.keyboard.press("/")
    page.keyboard.type("we")
    found = page.locator("#found a")
    expect(found).to_have_text(
        ["tenant of weather <b>research</b>", "weather <b>research</b>", "wendy/1", "we run"]
    )
    assert not operator.faults()
    assert operator.overflow() == 0
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="wendy/1").wait_for()
    page.wait_for_load_state()  # its scripts
    page.keyboard.press("/")
    page.keyboard.type("we")
    page.keyboard.press("Escape")
    expect(page.locator("#search-text")).not_to_be_focused()  # with the next frame
    page.keyboard.press("/")
    page.keyboard.type("w1")
    assert page.locator("#search-text").input_value() == "w1", "it replaces the earlier text"
    page.keyboard.press("Enter")  # before the results of this text are there
    page.wait_for_url("**/console/cluster?worker=w1")


def test_a_list_is_filtered_by_names(operator, app):
    page = operator.page
    operator.open("/console/interactions")
    page.get_by_label("App", exact=True).fill("research")
    offered = page.locator("#app-names option")
    offered.wait_for(state="attached")
    assert offered.all_text_contents() == ["weather <b>research</b>"], "no tenant is offered"
    assert offered.get_attribute("value") == app["id"]
    page.get_by_label("App", exact=True).fill(offered.get_attribute("value"))
    page.get_by_role("button", name="Filter").click()
    page.locator("tbody").get_by_role("link", name="we run").wait_for()
    assert (
        page.locator("tbody")
        .get_by_title(app["tenant_id"])
        .first.inner_text()
        .startswith("tenant of")
    )
    assert not operator.faults()
    operator.open("/console/clients/apps")
    page.get_by_label("Tenant", exact=True).fill("research")
    page.locator(f"#tenant-names option[value='{app['tenant_id']}']").wait_for(state="attached")


def test_a_search_finds_only_what_the_tenant_owns(browser, server, app):
    other = server.new_app(name="water")
    with browser.visit(server.url) as visit:
        visit.sign_in(other["tenant_key"])
        assert visit.open("/console/search?query=w") == 200
        assert visit.page.locator("a").all_inner_texts() == ["water"]


def test_a_search_without_an_answer_is_named(operator):
    page = operator.page
    operator.open("/console/overview")
    page.keyboard.press("/")
    for answer in (
        lambda route: route.abort(),
        lambda route: route.fulfill(status=303, headers={"Location": "/console/sign-in"}),
    ):
        page.route("**/console/search**", answer)
        page.get_by_label("Find").last.fill("")
        page.keyboard.type("we")
        page.locator("#found").get_by_text("The search failed. Enter the text again.").wait_for()
        assert not operator.faults()
        page.unroute("**/console/search**")
        page.keyboard.type("x")
        page.locator("#found").get_by_text("Nothing matches.").wait_for()
