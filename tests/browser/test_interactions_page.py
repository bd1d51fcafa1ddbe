"""Test runs in the list and on their own page: active, ended, of other tenants, with hostile ids."""

from urllib.parse import quote

import openai
import pytest
from client_pages import MODEL, call, hold

ODD = [
    "a/b c?d=e#f%41&g",
    "<b>bold</b><script>x</script>",
    "quote\"'/{{ 7 * 7 }}",
    "x/stream",
    "x/cancel",
    "läuft/日本",
]
LIST = "/console/interactions"
RUNS = "/v1/interactions"


@pytest.fixture(scope="module")
def app(server):
    return server.new_app(name="pages")


@pytest.fixture(scope="module")
def foreign(server):
    return server.new_app(name="others")


def open_runs(server, app, *ids, user="anna"):
    for run_id in ids:
        server.call(app["api_key"], "POST", RUNS, {"id": run_id, "user": user})


def place(app, run_id):
    return f"{LIST}/{app['tenant_id']}/{app['id']}/{quote(run_id, safe='')}"


def ready(visit):
    visit.page.locator(".live.on").wait_for()


def test_a_run_appears_is_opened_and_cancelled(operator, server, app):
    page = operator.page
    assert operator.open(LIST) == 200
    ready(operator)
    assert page.get_by_text("tale/one").count() == 0
    held = hold(server, app["api_key"], "long", "tale/one")
    row = page.locator("tbody tr", has_text="tale/one")
    row.get_by_text("in progress").wait_for()
    row.get_by_text("1 live").wait_for()
    row.get_by_role("link", name="tale/one").click()
    page.wait_for_url(f"**{place(app, 'tale/one')}")
    page.locator(".graph svg").wait_for()
    page.locator("tbody tr", has_text="running").wait_for()
    page.locator("#gantt .ran.running").wait_for()
    page.get_by_role("button", name="Cancel run").click()
    page.wait_for_url("**?done=cancelled")
    with pytest.raises(openai.APIStatusError):
        held.result(60)
    assert "Run cancelled" in operator.text()
    operator.open(LIST)
    row.get_by_text("cancelled").first.wait_for()
    (change,) = server.call(server.admin_key, "GET", "/admin/audit?action=interaction.cancel")[
        "items"
    ]
    assert change["target"] == f"{app['id']}/tale/one"


def test_the_graph_of_a_run_is_zoomed_by_keys_and_stays_so_while_it_changes(operator, server, app):
    call(server, app["api_key"], "anna", extra_headers={"X-Interaction-Id": "zoomed"})
    operator.open(place(app, "zoomed"))
    ready(operator)
    page, graph = operator.page, operator.page.locator("#graph")
    drawn = graph.locator("svg").get_attribute("viewBox").split()
    assert operator.text().count(" was waiting") == 1
    graph.focus()
    for key in ("+", "+", "ArrowRight", "ArrowDown", "-"):
        page.keyboard.press(key)
    zoomed = graph.locator("svg").get_attribute("viewBox")
    x, y, width, height = map(float, zoomed.split())
    assert [width, height] == pytest.approx([float(each) / 1.5 for each in drawn[2:]])
    assert x > 0 < y
    call(server, app["api_key"], "anna", extra_headers={"X-Interaction-Id": "zoomed"})
    graph.get_by_text("2 calls").wait_for(state="attached")
    assert graph.locator("svg").get_attribute("viewBox") == zoomed
    page.get_by_role("button", name="Show all: graph").click()
    shown = graph.locator("svg").get_attribute("viewBox").split()
    assert float(shown[3]) >= float(drawn[3])
    assert not graph.evaluate("each => each.matches('.zoomed')")


def test_the_end_of_a_run_is_shown_live_in_the_list(browser, server, app):
    open_runs(server, app, "short")
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"])
        visit.open(f"{LIST}?user=anna")
        row = visit.page.locator("tbody tr", has_text="short")
        row.get_by_text("open", exact=True).wait_for()
        server.call(app["api_key"], "DELETE", f"{RUNS}/short")
        row.locator(".badge", has_text="cancelled").wait_for()
        assert visit.page.locator("tbody tr", has_text="short").count() == 1


def test_ids_are_escaped_and_link_to_their_runs(browser, server, app):
    open_runs(server, app, *ODD)
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"])
        for run_id in ODD:
            visit.open(LIST)
            visit.page.get_by_role("link", name=run_id, exact=True).click()
            visit.page.locator("h1 code").wait_for()
            assert visit.page.locator("h1 code").inner_text() == run_id
            ready(visit)
            visit.page.get_by_role("button", name="Cancel run").click()
            visit.page.wait_for_url("**?done=cancelled")
            assert visit.page.locator("h1 code").inner_text() == run_id
            visit.page.locator(".tiles .badge", has_text="cancelled").wait_for()
        assert "49" not in visit.page.title()


def test_agents_users_and_prompts_are_escaped(browser, server, app):
    html = '<img src=x onerror="alert(1)"><svg onload=alert(2)>'
    client = server.openai(app["api_key"])
    client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": html}, {"role": "user", "content": html}],
        user=html,
        extra_headers={"X-Interaction-Id": "probe", "X-Agent": html, "X-Call-Id": f"id {html}"},
    )
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"])
        pages = (
            place(app, "probe"),
            LIST,
            "/console/clients",
            "/console/refusals",
            "/console/overview",
        )
        for page in pages:
            assert visit.open(page) == 200
            assert visit.page.locator("img, [onload], [onerror]").count() == 0, page
        visit.open(place(app, "probe"))
        row = visit.page.locator("tbody tr").first
        assert html in row.inner_text()
        assert html[:20] in visit.page.locator(".graph svg").inner_html().replace("&lt;", "<")
        assert not visit.faults()
        visit.page.get_by_role("link", name=html, exact=True).click()
        visit.page.get_by_role("heading", name=html, exact=True).wait_for()


def test_a_tenant_sees_its_own_runs_only(browser, server, app, foreign):
    open_runs(server, app, "mine")
    open_runs(server, foreign, "theirs")
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"])
        visit.open(LIST)
        assert visit.page.get_by_text("mine").count() == 1
        assert "theirs" not in visit.text()
        assert foreign["tenant_id"] not in visit.page.content()
        assert visit.page.get_by_label("Tenant").count() == 0
        visit.open(f"{LIST}?app={foreign['id']}")
        assert "No runs match" in visit.text()
        nothing = f"{LIST}/tn_nothing/{foreign['id']}/theirs"
        mixed = f"{LIST}/{app['tenant_id']}/{foreign['id']}/theirs"
        for path in (place(foreign, "theirs"), mixed, nothing, place(app, "nothing")):
            assert visit.open(path) == 404, path
        of_other = f"tenant={foreign['tenant_id']}"
        assert visit.open(f"{LIST}?{of_other}") == 404
        assert visit.open(f"{LIST}/stream?{of_other}") == 404
        token = visit.context.request.get(server.url + LIST).text()
        csrf = token.partition('name="csrf" value="')[2][:64]
        cancel = place(foreign, "theirs").replace(LIST, f"{LIST}/cancel")
        answer = visit.context.request.post(server.url + cancel, form={"csrf": csrf})
        assert answer.status == 404
    runs = server.call(foreign["api_key"], "GET", f"{RUNS}?state=live")["items"]
    assert [run["id"] for run in runs] == ["theirs"]


def test_the_list_is_filtered_and_paged(browser, server, app, foreign):
    many = server.new_app(name="many")
    open_runs(server, many, *(f"done-{number:02}" for number in range(53)), user="filter me")
    for number in range(53):
        server.call(many["api_key"], "DELETE", f"{RUNS}/done-{number:02}")
    open_runs(server, many, "still-live", user="filter me")
    path = f"/admin/interactions?state=ended&limit=1000&app={many['id']}"
    server.wait_for(path, server.admin_key, lambda found: len(found["items"]) == 53)
    with browser.visit(server.url) as visit:
        visit.sign_in(server.admin_key)
        rows = visit.page.locator("tbody tr")
        visit.open(f"{LIST}?app={many['id']}&tenant={many['tenant_id']}")
        assert rows.count() == 50
        assert "still-live" in rows.first.inner_text()
        visit.page.get_by_role("link", name="Older").click()
        visit.page.wait_for_url("**offset=49*")
        assert [rows.nth(n).locator("th").inner_text() for n in range(4)] == [
            f"done-{number:02}" for number in (3, 2, 1, 0)
        ]
        assert visit.page.get_by_role("link", name="Older").count() == 0
        assert visit.page.locator("[sse-connect]").count() == 0
        visit.open(LIST)
        visit.page.get_by_label("User").fill("filter me")
        visit.page.get_by_role("button", name="Filter").click()
        states = visit.page.get_by_role("navigation", name="Runs by state")
        for state, number in (("Active", 1), ("Held", 1), ("In progress", 1)):
            states.get_by_role("link", name=state, exact=True).click()
            states.locator("[aria-current]", has_text=state).wait_for()
            ready(visit)
            assert rows.count() == number
            assert ("No runs match" in visit.text()) == (state == "Held")
        apps = visit.page.get_by_role("navigation", name="Runs by app")
        assert apps.get_by_role("link").all_inner_texts() == ["many"]
        apps.get_by_role("link", name="many").click()
        visit.page.wait_for_url(f"**app={many['id']}")
        assert "user=filter+me&state=live" in visit.page.url
        for state, number in (("ended", 50), ("cancelled", 50), ("expired", 1)):
            visit.open(f"{LIST}?user=filter%20me&state={state}")
            assert rows.count() == number
        assert "No runs match" in visit.text()
        assert visit.open(f"{LIST}?state=odd") == 400
        assert visit.open(f"{LIST}?tenant=odd%20id") == 400
