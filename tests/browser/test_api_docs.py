"""``/docs`` in a real Chromium: Swagger UI renders from this server alone, and sends a key."""

import httpx

NAMED = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png", "start.js")


def test_it_renders_without_another_host_and_under_its_policy(browser, server):
    """The visit's problems are requests to other hosts, and what the policy forbids."""
    with browser.visit(server.url) as visit:
        seen = []
        visit.page.on("response", lambda answer: seen.append((answer.url, answer.status)))
        assert visit.open("/docs") == 200
        visit.page.get_by_role("heading", name="FairServe").wait_for()
        visit.page.locator("[data-path='/v1/chat/completions']").wait_for()
        assert visit.page.title() == "FairServe API"
        icon = "fetch(document.querySelector('link[rel~=icon]').href).then(() => null)"
        visit.page.evaluate(icon)  # a Chromium without windows shows none
        assert dict(seen) == {
            f"{server.url}{path}": 200
            for path in ("/docs", "/openapi.json", *(f"/docs/{name}" for name in NAMED))
        }


def test_a_request_of_the_page_carries_the_key(browser, server):
    app = server.new_app(name="docs")
    with browser.visit(server.url) as visit:
        visit.open("/docs")
        visit.page.get_by_role("button", name="Authorize").click()
        dialog = visit.page.locator(".modal-ux")
        dialog.locator("input").fill(app["api_key"])
        dialog.get_by_role("button", name="Apply credentials").click()
        dialog.get_by_role("button", name="Close").click()
        operation = visit.page.locator(
            ".opblock", has=visit.page.locator("[data-path='/v1/models']")
        )
        operation.locator(".opblock-summary-control").click()
        operation.get_by_role("button", name="Try it out").click()
        with visit.page.expect_response("**/v1/models") as answered:
            operation.get_by_role("button", name="Execute").click()
        assert answered.value.status == 200, answered.value.text()


def test_every_answer_has_the_policy(server):
    for path in ("", *(f"/{name}" for name in NAMED)):
        answer = httpx.get(f"{server.url}/docs{path}")
        assert answer.status_code == 200
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(f"{server.url}/docs/redoc.standalone.js").status_code == 404
    assert httpx.get(f"{server.url}/docs/..%2f__init__.py").status_code == 404
