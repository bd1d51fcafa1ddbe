"""Every form of the console that creates or changes objects keeps the same contract.

Without its token, and from a viewer, it is rejected. A bad field is named beside its entry, and nothing
changes. A change is in the audit log with the name of the person.
"""

import json
import re
from typing import NamedTuple

import pytest
from sqlalchemy import func, select

from fairserve.platform.console.guard import COOKIE
from fairserve.platform.console.pages.audit import differences
from fairserve.platform.console.person import Person
from fairserve.platform.console.sessions import begin, find
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.server.settings import Settings
from fairserve.platform.tenancy.roles import NEEDED

ISSUER = "https://login.example"
ANNA = "oidc:4711 (anna)"
TENANT, APP = "/console/clients/tenants/{tenant}", "/console/clients/apps/{app}"
USER, HOOK = "/console/clients/{tenant}/{app}/team/zoé", "/console/webhooks/{tenant}"
PROFILE = {
    "profile.1.input_tokens": "500",
    "profile.1.output_tokens": "20",
    "profile.3.input_tokens": "7",
    "profile.calls_per_interaction": "2",
}
WORKERS, ALIASES = "/console/cluster/workers", "/console/cluster/aliases"
PRICE = {"price.model": "m", "price.input": "1", "price.output": "2"}


class Form(NamedTuple):
    """A form with valid entries, a bad one of them, and the action in the audit log."""

    path: str
    fields: dict
    bad: dict
    action: str


def keys_of(owner, key):
    return [
        Form(f"{owner}/keys", {"key.name": "ci"}, {"key.expires_at": "yesterday"}, "key.create"),
        Form(
            f"{owner}/keys/{{{key}}}",
            {"action": "save", f"{{{key}}}.name": "of ci"},
            {f"{{{key}}}.name": ""},
            "key.change",
        ),
        Form(f"{owner}/keys/rotate", {"grace_s": "60"}, {"grace_s": "-1"}, "key.rotate"),
        Form(f"{owner}/keys/{{{key}}}", {"action": "revoke"}, {}, "key.revoke"),
    ]


def quota(path, name, action):
    fields = {"action": name, f"{name}.rpm_limit": "40", f"{name}.soft_end": "warn"}
    return Form(path, fields, {f"{name}.rpm_limit": "0"}, action)


def actions(path, word, *names):
    return [Form(path, {"action": name}, {}, f"{word}.{action}") for name, action in names]


# Ordered: later forms change what earlier ones create.
FORMS = [
    Form(
        "/console/clients/tenants",
        {"tenant.name": "made", "tenant.weight": "2"},
        {"tenant.weight": "0"},
        "tenant.create",
    ),
    Form(
        TENANT,
        {"action": "save", "name": "acme", "weight": "3"},
        {"weight": "101"},
        "tenant.change",
    ),
    quota(TENANT, "contract", "tenant.change"),
    Form("/console/audit/{entry}/restore", {}, {}, "tenant.change"),
    *actions(TENANT, "tenant", ("suspend", "change"), ("resume", "change")),
    *keys_of(TENANT, "tenant_key"),
    Form(
        "/console/clients/apps/new?tenant={tenant}",
        {"name": "made", "mode": "pinned", "user_rpm": "60", **PROFILE},
        {"profile.3.input_tokens": "-1"},
        "app.create",
    ),
    Form(
        APP,
        {"action": "save", "name": "chat", "weight": "2", "user_rpm": "60"},
        {"user_rpm": "0"},
        "app.change",
    ),
    Form(
        APP,
        {"action": "profile", **PROFILE},
        {"profile.calls_per_interaction": "0.5"},
        "app.change",
    ),
    Form(
        APP,
        {"action": "requests", "user_headers": "x-a"},
        {"user_headers": "authorization"},
        "app.change",
    ),
    quota(APP, "contract", "app.change"),
    quota(APP, "user_contract", "app.change"),
    Form(f"{APP}/profile", {"mode": "pinned"}, {"mode": "guessed"}, "app.profile"),
    *keys_of(APP, "app_key"),
    Form(USER, {"action": "save", "weight": "2"}, {"weight": "0"}, "user.change"),
    Form(
        USER,
        {"action": "block", "on_block": "finish", "reason": "floods"},
        {"on_block": "now"},
        "user.change",
    ),
    quota(USER, "contract", "user.change"),
    *actions(USER, "user", ("unblock", "change"), ("reset", "reset")),
    Form(
        WORKERS,
        {"worker.id": "a", "worker.url": "http://127.0.0.1:9", "worker.concurrency": "4"},
        {"worker.concurrency": "5000"},
        "worker.join",
    ),
    Form(WORKERS + "/a/drain", {}, {}, "worker.drain"),
    Form(WORKERS + "/a/undrain", {}, {}, "worker.undrain"),
    Form(WORKERS + "/a/remove", {"calls": "finish"}, {}, "worker.remove"),
    Form(
        ALIASES,
        {"alias.name": "org/chat", "alias.target": "m 9\nn 1"},
        {"alias.target": "m 0"},
        "alias.put",
    ),
    Form(ALIASES + "/remove", {"name": "org/chat"}, {}, "alias.remove"),
    Form(
        "/console/prices",
        {**PRICE, "price.valid_from": "2099-01-31T12:00Z"},
        {"price.valid_from": "2020-01-31T12:00Z"},
        "price.create",
    ),
    Form("/console/prices/{price}/delete", {}, {}, "price.delete"),
    Form(
        HOOK,
        {"webhook.url": "https://1.1.1.1/", "webhook.on.calls.throttled": "on"},
        {"webhook.url": "https://10.0.0.1/"},
        "webhook.create",
    ),
    Form(
        HOOK + "/{webhook}",
        {
            "action": "save",
            "{webhook}.url": "https://1.1.1.1/new",
            "{webhook}.on.calls.throttled": "on",
        },
        {"{webhook}.url": ""},
        "webhook.change",
    ),
    *actions(
        HOOK + "/{webhook}",
        "webhook",
        ("test", "test"),
        ("replay", "replay"),
        ("rotate", "rotate"),
        ("disable", "change"),
        ("enable", "change"),
        ("delete", "delete"),
    ),
    *actions(APP, "app", ("delete", "delete"), ("restore", "restore")),
    *actions(TENANT, "tenant", ("delete", "delete"), ("restore", "restore")),
    Form("/console/keys", {"key.name": "anna"}, {"key.role": "owner"}, "key.create"),
    Form(
        "/console/keys/{admin_key}",
        {"action": "save", "{admin_key}.name": "of anna"},
        {"{admin_key}.name": " "},
        "key.change",
    ),
    Form("/console/keys/rotate", {}, {}, "key.rotate"),
]
OF_OTHERS = re.compile("/console/(sign-out|overview|throttling|interactions|cluster/jobs|alarms)")


class World:
    """A tenant with an app and their keys, and a person of each role."""

    def __init__(self, management):
        self.management = management
        state = management.state
        state.settings = Settings(
            data_dir=state.settings.db.data_dir,
            fleet_file=management.fleet_file,
            public_url="https://console.example",
            oidc_issuer=ISSUER,
            oidc_client_id="fairserve",
            oidc_roles=("admin=platform",),
        )
        tenant = management.new_tenant("acme")
        app = management.new_app(tenant)
        (admin_key,) = management.call(management.admin_key, "GET", "/admin/keys")["items"]
        self.ids = {
            "tenant": tenant["id"],
            "tenant_key": tenant["key"]["id"],
            "app": app["id"],
            "app_key": app["key"]["id"],
            "admin_key": admin_key["id"],
        }

    def sign_in(self, role, subject="4711", name="anna"):
        """Sign a person in; return the token of its forms."""
        state = self.management.state
        person = Person(ISSUER, subject, name, role)
        with state.session_factory.begin() as session:
            token = begin(session, person, state.settings.tenancy, utc_now())
        self.management.client.cookies.clear()
        self.management.client.cookies.set(COOKIE, token)
        return find(state.session_factory, token, state.settings.tenancy, utc_now()).csrf

    def filled(self, text):
        """Return a text with the ids of this world."""
        for name, value in self.ids.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def post(self, form, csrf, **more):
        fields = {self.filled(name): value for name, value in {**form.fields, **more}.items()}
        fields["csrf"] = csrf
        path = self.filled(form.path)
        return self.management.client.post(path, data=fields, follow_redirects=False)

    def entries(self):
        with self.management.state.session_factory() as session:
            return session.scalar(select(func.count(AuditEntry.id)))


@pytest.fixture
def world(management):
    return World(management)


def route_of(path):
    """Return the route that a path of the walk has."""
    path = path.partition("?")[0].replace("/a/", "/{worker_id}/").replace("team/zoé", "{user:path}")
    for name in ("tenant", "app", "price", "webhook", "entry"):
        path = path.replace(f"{{{name}}}", f"{{{name}_id}}")
    return "POST " + re.sub(r"\{\w+_key\}", "{key_id}", path)


def test_the_walk_has_every_form():
    forms = {route for route in NEEDED if route.startswith("POST /console/")}
    own = {route for route in forms if not OF_OTHERS.match(route.removeprefix("POST "))}
    assert {route_of(form.path) for form in FORMS} == own


def test_every_form_keeps_the_contract(world):
    viewer = world.sign_in("viewer", "4712", "vera")
    seen = world.entries()
    for form in FORMS:
        assert world.post(form, viewer).status_code == 403, form
    assert world.entries() == seen
    csrf = world.sign_in("admin")
    bodies = []
    for form in FORMS:
        assert world.post(form, "").status_code == 403, form
        for name in map(world.filled, form.bad):
            answer = world.post(form, csrf, **form.bad)
            assert answer.status_code == 400, form
            assert f'id="{name}-wrong"' in answer.text, (form, name)
            assert "Nothing was changed." in answer.text
        assert world.entries() == seen, form
        answer = world.post(form, csrf)
        assert answer.status_code in (200, 303), (form, answer.text)
        bodies.append(answer.text)
        with world.management.state.session_factory() as session:
            added = session.scalars(select(AuditEntry).order_by(AuditEntry.at)).all()[seen:]
            found = {entry.action for entry in added}
            assert form.action in found, (form, found)
            assert {entry.actor for entry in added} == {ANNA}, form
            for entry in added:
                kind = entry.action.partition(".")[0]
                if kind in ("price", "webhook"):
                    world.ids[kind] = entry.target
                world.ids["entry"] = entry.id
        seen += len(added)
    check_secrets(world, "".join(bodies))


def check_secrets(world, shown):
    """Check that new secrets were shown, each once, and that none is in the audit log."""
    keys = re.findall(r"sk-fs-[atp]-[\w-]{43}", shown)
    secrets = re.findall(r"whsec_[\w+/=-]+", shown)
    assert (len(keys), len(secrets)) == (8, 2)
    assert len({*keys, *secrets}) == 10
    with world.management.state.session_factory() as session:
        entries = session.scalars(select(AuditEntry)).all()
        log = json.dumps([(entry.before, entry.after) for entry in entries])
        for secret in (*keys, *secrets, *session.scalars(select(ApiKey.key_hash))):
            assert secret not in log


@pytest.mark.parametrize(
    ("method", "path", "field", "more"),
    [
        ("PATCH", "/admin/tenants/{tenant}", "contract.rpm_limit", {}),
        ("PATCH", "/v1/apps/{app}?tenant={tenant}", "user_contract.tpm_limit", {"weight": 3}),
        ("PATCH", "/v1/apps/{app}?tenant={tenant}", "limits.user_rpm", {}),
        ("PUT", "/admin/users/{tenant}/ann", "rpm", {"weight": 2, "blocked": True}),
        ("PUT", "/admin/users/{tenant}/ann", "contract.max_budget", {"rpm": 7}),
    ],
)
def test_a_wrong_limit_is_restored_unless_it_was_changed_since(world, method, path, field, more):
    outer, _, name = field.rpartition(".")

    def change(limit):
        limits = {name: limit} | ({"budget_duration": "1d"} if name == "max_budget" else {})
        body = {**more, outer: limits} if outer else {**more, name: limit}
        held = world.management.call(world.management.admin_key, method, world.filled(path), body)
        return held, (held[outer] if outer else held)[name]

    def newest():
        with world.management.state.session_factory() as session:
            latest = select(AuditEntry).order_by(AuditEntry.at.desc(), AuditEntry.id.desc())
            return session.scalars(latest.limit(1)).one()

    before, _ = change(6000)
    change(6)
    world.ids["entry"] = newest().id
    csrf, undo = world.sign_in("admin"), Form("/console/audit/{entry}/restore", {}, {}, "")
    page = world.management.client.get("/console/audit").text
    assert page.count(">Restore 6,000</button>") >= 2, "the button, and that of its dialog"
    assert f"Sets {field} from 6 to 6,000 for" in page
    assert world.post(undo, csrf).headers["location"] == "/console/audit?done=limits"
    entry = newest()
    assert entry.actor == ANNA
    assert list(differences(entry.before, entry.after)) == [(field, 6, 6000)]
    assert {**entry.after, "managed_by": None}.items() <= before.items()
    answer = world.post(undo, csrf)
    assert answer.status_code == 409
    assert f"{field} is 6,000 now, not 6: it was changed since. Nothing was restored" in answer.text
    assert newest().id == entry.id


def test_a_change_without_limits_is_not_restored(world):
    csrf = world.sign_in("admin")
    form = next(form for form in FORMS if form.action == "tenant.change")
    world.post(form, csrf)
    with world.management.state.session_factory() as session:
        entries = session.scalars(select(AuditEntry.id)).all()
    for world.ids["entry"] in (*entries, "au_none"):
        undo = Form("/console/audit/{entry}/restore", {}, {}, "")
        assert world.post(undo, csrf).status_code == 404
    assert "Restore " not in world.management.client.get("/console/audit").text


def test_a_rejected_app_leaves_nothing_behind(world):
    csrf = world.sign_in("admin")
    form = next(form for form in FORMS if form.action == "app.create")
    seen = world.entries()
    answer = world.post(form, csrf, name="app")
    assert answer.status_code == 400
    assert 'id="name-wrong"' in answer.text
    assert 'value="500"' in answer.text, "the entries are kept"
    assert world.entries() == seen


def test_a_form_keeps_who_manages_an_object_and_its_page_shows_it(world):
    mine = {"managed_by": "a file"}
    ids, call = world.ids, world.management.call
    key, of_tenant = world.management.admin_key, {"tenant": ids["tenant"]}
    call(key, "PATCH", f"/admin/tenants/{ids['tenant']}", mine)
    call(key, "PATCH", f"/v1/apps/{ids['app']}", mine, **of_tenant)
    user = f"/admin/users/{ids['tenant']}/team/zoé"
    call(key, "PUT", user, {"weight": 2} | mine)
    hook = {"url": "https://1.1.1.1/", "events": ["calls.throttled"]} | mine
    ids["webhook"] = call(key, "POST", "/v1/webhooks", hook, status=201, **of_tenant)["id"]
    call(key, "PUT", "/admin/cluster/aliases/org/chat", {"target": "m"} | mine)
    call(key, "POST", "/admin/prices", {"model": "m", "input": 1, "output": 2} | mine, status=201)

    csrf = world.sign_in("admin")
    changed = []
    for form in FORMS:
        own = form.path in (TENANT, APP, USER, ALIASES, HOOK + "/{webhook}")
        if own and form.action not in (
            "tenant.delete",
            "app.delete",
            "webhook.delete",
            "user.reset",
        ):
            changed.append((form.action, world.post(form, csrf).status_code))
    assert len(changed) > 10
    assert {status for _, status in changed} <= {200, 303, 409}, "409: nothing to restore or replay"
    owners = [
        call(key, "GET", f"/admin/tenants/{ids['tenant']}"),
        call(key, "GET", f"/v1/apps/{ids['app']}", **of_tenant),
        call(key, "GET", user),
        *call(key, "GET", "/v1/webhooks", **of_tenant)["items"],
        *call(key, "GET", "/admin/cluster/aliases")["items"],
    ]
    assert [owner["managed_by"] for owner in owners] == ["a file"] * 5
    for path in (TENANT, APP, USER, HOOK, "/console/cluster", "/console/prices"):
        shown = world.management.client.get(world.filled(path)).text
        assert re.search("[Mm]anaged by a file", shown), path
