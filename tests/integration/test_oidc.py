"""Sign-in of people at a real OpenID provider, through the shipped application and over HTTP."""

import asyncio
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from constants import defaults
from oidc_provider import oidc_provider

from fairserve.platform.console import state
from fairserve.platform.console.oidc.provider import KEYS_RETRY_S, RETRY_S, Provider
from fairserve.platform.console.sessions import find
from fairserve.platform.console.sign_in.limit import MAX_SIGN_INS
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.db.base import utc_now
from fairserve.platform.server.settings import Settings

BEGIN = "/console/sign-in/oidc"
CALLBACK = f"{BEGIN}/callback"


@pytest.fixture(scope="module")
def running():
    with oidc_provider() as provider:
        yield provider


@pytest.fixture
def provider(running):
    running.fail()
    running.add("u-1", preferred_username="anna", groups=["sre", "unrelated"])
    return running


class Console:
    """The console of a server with a provider, in one browser."""

    def __init__(self, management, provider):
        self.management = management
        self.provider = provider
        self.client = management.client
        self.now_s = 0.0
        self.configure()

    def configure(self, **more):
        """Use other settings, and begin with nothing in memory, as after a restart."""
        running = self.management.state
        settings = Settings(
            data_dir=running.settings.db.data_dir,
            fleet_file=self.management.fleet_file,
            **self.provider.settings(**more),
        )
        running.settings = settings
        running.console = state.ConsoleState(settings.console)
        if running.console.oidc is not None:
            running.console.oidc = Provider(settings.console, clock=lambda: self.now_s)

    def get(self, path, **query):
        return self.client.get(path, params=query or None, follow_redirects=False)

    def begin(self, onward=""):
        """Return the URL of the provider's page."""
        answer = self.get(BEGIN, next=onward)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def finish(self, callback):
        """Open the URL of the callback, and follow the page that it answers."""
        parts = urlsplit(callback)
        assert callback.startswith(self.management.state.settings.console.public_url)
        return self.client.get(f"{parts.path}?{parts.query}", follow_redirects=False)

    def sign_in(self, subject="u-1", onward=""):
        return self.finish(self.provider.consent(self.begin(onward), subject))

    def page(self, path="/console/overview"):
        return self.get(path)

    def csrf(self):
        return re.search('name="csrf" value="([0-9a-f]{64})"', self.page().text)[1]

    def post(self, path, **fields):
        data = {"csrf": self.csrf(), **fields}
        return self.client.post(path, data=data, follow_redirects=False)

    def audit(self, action):
        found = self.management.call(
            self.management.admin_key, "GET", "/admin/audit", action=action, limit=100
        )
        return found["items"]

    def viewer(self, later=timedelta()):
        state = self.management.state
        token = self.client.cookies["fairserve_console"]
        return find(state.session_factory, token, state.settings.tenancy, utc_now() + later)


@pytest.fixture
def console(management, provider):
    return Console(management, provider)


def test_a_person_signs_in_with_the_role_of_its_groups(console):
    page = console.get("/console/sign-in", next="/console/audit").text
    place = re.search(f'href="({BEGIN}[^"]*)"', page)[1]
    begun = console.get(place)
    query = parse_qs(urlsplit(begun.headers["location"]).query)
    assert query["redirect_uri"] == [f"https://console.example{CALLBACK}"], "not from the Host"
    assert query["scope"] == ["openid profile email"]
    (cookie,) = begun.headers.get_list("set-cookie")
    assert all(word in cookie for word in ("HttpOnly", "SameSite=lax", f"Path={BEGIN}"))

    answer = console.finish(console.provider.consent(begun.headers["location"], "u-1"))
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0; url=/console/audit"' in answer.text
    (session, ended) = sorted(answer.headers.get_list("set-cookie"))
    assert all(word in session for word in ("HttpOnly", "SameSite=strict", "Path=/console"))
    assert "Max-Age=0" in ended
    text = console.page().text
    assert "Operator" in text
    assert "anna" in text

    (request,) = console.provider.requests()["forms"][-1:]
    assert request["authorization"].startswith("Basic ")
    assert "client_secret" not in request
    (entry,) = console.audit("console.sign_in")
    assert entry["actor"] == entry["target"] == "oidc:u-1 (anna)"
    assert entry["actor_key_id"] is None
    assert entry["after"] == {"address": "testclient", "by": "oidc", "role": "operator"}


def test_changes_name_the_person_and_sign_out_is_in_the_audit_log(console):
    tenant = console.management.new_tenant("acme")
    app = console.management.new_app(tenant)
    console.sign_in()
    place = f"/console/clients/{tenant['id']}/{app['id']}/alma"
    assert console.post(place, action="block").status_code == 303
    assert console.post("/console/keys", name="mine").status_code == 403
    (entry,) = console.audit("user.change")
    assert (entry["actor"], entry["after"]["blocked"]) == ("oidc:u-1 (anna)", True)
    found = console.management.call(
        console.management.admin_key, "GET", "/admin/audit", actor="oidc:u-1", action="user.change"
    )
    assert found["total"] == 1, "the actor is found without the name"
    assert console.post("/console/sign-out").status_code == 303
    (entry,) = console.audit("console.sign_out")
    assert (entry["actor"], entry["after"]) == ("oidc:u-1 (anna)", {"address": "testclient"})
    assert console.page().status_code == 303


def test_the_highest_role_counts_and_is_read_at_each_sign_in(console):
    before = "Operator"
    console.sign_in()
    for groups, role in (
        (["watch"], "Viewer"),
        (["watch", "night"], "Operator"),
        (["platform", "watch", "sre"], "Admin"),
        ("watch", "Viewer"),
    ):
        console.provider.add("u-1", groups=groups)
        assert f">{before}</span>" in console.page().text
        console.sign_in()
        assert f">{role}</span>" in console.page().text
        denied = console.post("/console/cluster/jobs/x/run").status_code == 403
        assert denied == (role == "Viewer"), role
        before = role


def test_groups_lie_in_a_nested_claim(console):
    console.configure(oidc_groups_claim="realm_access.roles")
    console.provider.add("u-1", realm_access={"roles": ["watch"]}, groups=["platform"])
    console.sign_in()
    assert ">Viewer</span>" in console.page().text


def test_a_person_without_a_role_is_rejected_and_in_the_audit_log(console):
    for claims in ({"groups": ["Watch", "platform2"]}, {"groups": 3}, {}):
        console.provider.add("u-2", email="ben@example.org", **claims)
        answer = console.sign_in("u-2")
        assert answer.status_code == 403
        assert "has a role here" in answer.text
    assert console.page().status_code == 303
    (entry,) = console.audit("console.sign_in_failed")
    assert (entry["actor"], entry["target"]) == ("oidc:u-2 (ben@example.org)", "testclient")
    assert entry["after"] == {"reason": "no_role", "by": "oidc", "attempts": 1}


NOW = 4_000_000_000
FAULTS = {
    "another nonce": {"claims": {"nonce": "x"}},
    "no nonce": {"claims": {"nonce": None}},
    "another issuer": {"claims": {"iss": "http://127.0.0.1:1"}},
    "another audience": {"claims": {"aud": "another"}},
    "another audience for this party": {"claims": {"aud": "another", "azp": "console"}},
    "another party": {"claims": {"aud": ["console", "another"], "azp": "another"}},
    "expired": {"claims": {"exp": 1_000_000_000}},
    "no expiry": {"claims": {"exp": None}},
    "from the future": {"claims": {"iat": NOW, "exp": NOW + 60}},
    "no subject": {"claims": {"sub": None}},
    "a long subject": {"claims": {"sub": "x" * 181}},
    "another access token": {"claims": {"at_hash": "x"}},
    "no signature": {"algorithm": "none"},
    "the public key as a secret": {"algorithm": "HS256"},
    "no tokens": {"token_status": 400},
}


def test_a_token_that_is_not_valid_is_rejected(console):
    with defaults(state, "SignInLimit", limit=100):
        console.configure()
    for name, fault in FAULTS.items():
        console.provider.fail(**fault)
        assert console.sign_in().status_code == 401, name
        assert console.page().status_code == 303, name
    (entry,) = console.audit("console.sign_in_failed")
    assert entry["after"] == {"reason": "oidc_rejected", "by": "oidc", "attempts": 1}
    console.provider.fail()
    assert console.sign_in().status_code == 200


def test_a_callback_counts_only_in_the_browser_that_began(console):
    callback = console.provider.consent(console.begin(), "u-1")
    mine = console.client.cookies.get("fairserve_sign_in")
    forms = len(console.provider.requests()["forms"])
    for change in ("none", "another", "state"):
        console.client.cookies.clear()
        url = callback
        if change == "another":
            console.begin()
        if change == "state":
            console.client.cookies.set("fairserve_sign_in", mine, path=BEGIN)
            url = re.sub("state=[^&]*", "state=x", callback)
        assert console.finish(url).status_code == 401, change
    assert len(console.provider.requests()["forms"]) == forms, "the code was not used"
    console.client.cookies.clear()
    console.client.cookies.set("fairserve_sign_in", mine, path=BEGIN)
    assert console.finish(callback).status_code == 200
    assert console.finish(callback).status_code == 401, "once"
    denied = console.get(f"{CALLBACK}?error=access_denied&state=x")
    assert denied.status_code == 401


def test_no_sign_in_leads_to_another_site(console):
    for onward in ("https://example.org/", "//example.org", "/console/\\x", "x", "/console/" * 300):
        answer = console.sign_in(onward=onward)
        assert 'content="0; url=/console/overview"' in answer.text, onward


def test_failed_sign_ins_are_limited_by_address(console):
    with defaults(state, "SignInLimit", limit=3):
        console.configure()
    answers = [console.get(f"{CALLBACK}?code=x&state=x").status_code for _ in range(4)]
    assert answers == [401, 401, 401, 429]
    assert len(console.audit("console.sign_in_failed")) == 1


def test_sign_ins_of_a_person_are_limited(console):
    sign_ins = console.management.state.console.sign_ins
    for _ in range(MAX_SIGN_INS - 1):
        asyncio.run(sign_ins.admit("oidc:u-1 (anna)"))
    assert console.sign_in().status_code == 200
    assert console.sign_in().status_code == 429


def test_rotated_keys_are_fetched_once(console):
    console.sign_in()
    fetches = console.provider.requests()["key_fetches"]
    console.sign_in()
    assert console.provider.requests()["key_fetches"] == fetches, "they are cached"
    console.provider.rotate()
    assert console.sign_in().status_code == 401, "keys are fetched again only after some seconds"
    console.now_s += KEYS_RETRY_S
    assert console.sign_in().status_code == 200
    assert console.provider.requests()["key_fetches"] == fetches + 1


def test_without_the_provider_keys_still_work(console):
    down = {"oidc_issuer": "http://127.0.0.1:9"}
    console.configure(**down)
    answer = console.get(BEGIN)
    assert answer.status_code == 503
    assert "127.0.0.1:9 cannot be used for sign-ins at the moment" in answer.text
    key = {"key": console.management.admin_key}
    signed_in = console.client.post("/console/sign-in", data=key, follow_redirects=False)
    assert signed_in.status_code == 303


def test_a_wrong_discovery_document_is_not_used(console):
    for discovery in (
        {"issuer": "http://127.0.0.1:1"},
        {"token_endpoint": "http://192.0.2.1/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
    ):
        console.now_s += RETRY_S
        console.provider.fail(discovery=discovery)
        assert console.get(BEGIN).status_code == 503, discovery
    console.provider.fail()
    assert console.get(BEGIN).status_code == 503, "the failure holds for a moment"
    console.now_s += RETRY_S
    assert console.get(BEGIN).status_code == 303


@pytest.mark.parametrize(
    ("supported", "asked"),
    [
        (["openid", "groups"], "openid profile email groups"),
        (["openid"], "openid profile email"),
        ("groups", "openid profile email"),
        (None, "openid profile email"),
    ],
)
def test_groups_are_asked_for_where_the_provider_has_a_scope_for_them(console, supported, asked):
    console.provider.fail(discovery={"scopes_supported": supported})
    console.configure()
    assert parse_qs(urlsplit(console.begin()).query)["scope"] == [asked]


def test_a_server_without_keys_at_its_sign_in(console):
    console.configure(console="oidc")
    page = console.get("/console/sign-in").text
    assert 'name="key"' not in page
    assert BEGIN in page
    form = {"key": console.management.admin_key}
    assert console.client.post("/console/sign-in", data=form).status_code == 403
    assert console.sign_in().status_code == 200


def test_a_session_of_a_person_ends_by_time_and_with_the_provider(console):
    console.sign_in()
    hours = console.management.state.settings.tenancy.console_session_hours
    assert console.viewer().person.subject == "u-1"
    assert console.viewer(timedelta(hours=hours)) is None
    console.configure(oidc_issuer="https://another.example")
    assert console.page().status_code == 303
    console.configure()
    assert console.page().status_code == 200
    console.management.state.settings = Settings(
        data_dir=console.management.state.settings.db.data_dir
    )
    assert console.page().status_code == 303
    console.management.state.console = ConsoleState(console.management.state.settings.console)
    assert console.get(BEGIN).status_code == 404


def test_concurrent_requests_to_the_provider_are_bounded(console, monkeypatch):
    provider = console.management.state.console.oidc
    monkeypatch.setattr(provider, "_requests", 10)
    assert console.get(BEGIN).status_code == 503
    monkeypatch.setattr(provider, "_requests", 0)
    console.now_s += RETRY_S

    async def urls():
        from fairserve.platform.console.oidc.attempt import Attempt

        return await asyncio.gather(
            *(provider.authorization_url(Attempt.begin("")) for _ in range(20))
        )

    assert len(set(console.client.portal.call(urls))) == 20
