"""Times are the reader's, with UTC as a hint, also in parts that are exchanged; charts agree."""

import re
import time

import pytest
from processes import eventually

UTC = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
LOCAL = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
IN_KIRITIMATI = """time => {
    const shown = new Date(`${time.textContent.replace(" ", "T")}+14:00`);
    return shown.getTime() === new Date(time.dateTime).getTime();
}"""
RECORD_TEXTS = """
    window.drawn = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
        window.drawn.push(text);
        return draw.call(this, text, ...more);
    };
"""


def drawn(page, text):
    """Wait until the charts of a page have drawn a text; return all that they have drawn."""

    def texts():
        found = page.evaluate("window.drawn")
        return found if text in found else None

    return eventually(texts, f"{text!r} is not drawn")


@pytest.fixture(scope="module")
def app(server):
    return server.new_app(name="times")


def test_times_are_shown_in_the_readers_zone(browser, server, app):
    with browser.visit(server.url, zone="Pacific/Kiritimati") as visit:
        page = visit.sign_in(server.admin_key).page
        visit.open("/console/interactions")
        page.locator(".live.on").wait_for()
        run = {"id": "run-1", "user": "ann"}
        server.call(app["api_key"], "POST", "/v1/interactions", run)
        opened = page.locator("tbody tr", has_text="run-1").locator("time")
        opened.wait_for()
        for each in (opened, page.locator("#status time")):
            assert LOCAL.fullmatch(each.inner_text())
            assert UTC.fullmatch(each.get_attribute("title"))
            assert each.evaluate(IN_KIRITIMATI)
        visit.open("/console/usage")
        page.get_by_text("Tokens per day as a table").click()
        days = page.locator("figure", has=page.locator("[data-chart=tokens]")).locator("tbody tr")
        assert days.first.locator("td").first.inner_text() == page.evaluate(
            "new Date().toISOString().slice(0, 10)"
        )


@pytest.mark.parametrize("path", ["audit", "refusals"])
def test_a_filter_takes_a_time_of_the_readers_zone(browser, server, path):
    with browser.visit(server.url, zone="Pacific/Kiritimati") as visit:
        visit.sign_in(server.admin_key).open(f"/console/{path}")
        field = visit.page.get_by_label("Since (Pacific/Kiritimati)")
        field.fill("2026-02-01T13:00:05")
        visit.page.get_by_role("button", name="Filter").click()
        visit.page.wait_for_url("**since=2026-01-31T23%3A00%3A05.000Z*")
        assert field.input_value() == "2026-02-01T13:00:05"
        field.fill("")
        visit.page.get_by_role("button", name="Filter").click()
        visit.page.wait_for_url(lambda url: "2026" not in url)
        assert field.input_value() == ""


def test_times_have_their_unit_without_scripts(browser, server, app):
    with browser.visit(server.url, scripts=False) as visit:
        visit.sign_in(server.admin_key).open("/console/clients/tenants")
        assert UTC.fullmatch(visit.page.locator("tbody time").first.inner_text())


def test_charts_of_one_sample_end_with_it(operator, server, app):
    server.sample()
    page = operator.page
    page.add_init_script(RECORD_TEXTS)
    operator.open("/console/overview")
    page.locator(".marks li").get_by_text("times: app created").wait_for()
    texts = drawn(page, " 1 ")  # the number of the first mark
    end = page.evaluate("JSON.parse(document.getElementById('chart-data').textContent).waits.time")
    assert len(end) == 1
    possible = {time.strftime("%Y-%m-%d", time.gmtime(at)) for at in (end[0] - 600, *end)}
    days = {text for text in texts if re.fullmatch(r"[\d-]{10}", text)}
    assert days
    assert days <= possible
    marks = page.locator("ol.marks[reversed] li").all_inner_texts()
    assert marks[-1].endswith("Server started"), "the latest is the first"


def test_an_axis_of_short_times_has_different_labels(operator, server, app):
    server.sample()
    page = operator.page
    page.add_init_script(RECORD_TEXTS)

    def shorten(route):
        answer = route.fetch()
        body = re.sub(
            r'"values":\s*\[[^\]]*\]',
            lambda values: re.sub(r"[\d.]+|null", "0.0003", values[0]),
            answer.text(),
        )
        route.fulfill(response=answer, body=body)

    page.route("**/console/overview", shorten)
    operator.open("/console/overview")
    assert "10 ms" in drawn(page, "20 ms")
