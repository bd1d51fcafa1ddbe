"""Test the rail: its order, what a tenant sees of it, and the letters of its pages."""

from fairserve.platform.console.navigation import navigation, rail_of, section_of, tabs_of

RAIL = "Now Alerts Tenants Runs Rejections Fleet Usage Settings Audit"


def test_the_rail_has_the_first_page_of_each_section():
    assert " ".join(page.title for page in rail_of(navigation())) == RAIL
    of_tenant = rail_of(page for page in navigation() if not page.only_admin)
    assert (
        " ".join(page.title for page in of_tenant) == "Now Alerts Apps Runs Rejections Usage Audit"
    )


def test_pages_of_a_section_are_its_tabs():
    tabs = tabs_of(navigation(), "/console/keys")
    assert [page.path for page in tabs][:2] == ["/console/throttling", "/console/keys"]
    assert tabs_of(navigation(), "/console/usage") == [], "it is alone"
    assert tabs_of(navigation(), "/console/clients/tenants/tn_1") == [], "a page of one tenant"
    assert section_of("clients") == section_of("clients/apps") == "tenants"
    assert section_of("") == ""


def test_each_page_has_its_own_letter():
    letters = [page.key for page in navigation()]
    assert sorted(set(letters)) == sorted(letters)
