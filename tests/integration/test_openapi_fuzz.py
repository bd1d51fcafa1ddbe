"""No request generated from the server's own description, valid or invalid, is answered with 5xx."""

from collections import Counter
from itertools import product
from pathlib import Path
from urllib.parse import quote

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from whole_server import WholeServer

from fairserve.platform.server.app import create_app
from fairserve.platform.server.settings import Settings

OPENAPI = create_app(Settings(data_dir=Path("unused")), None).openapi()
SCHEMA = schemathesis.openapi.from_dict(OPENAPI)
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (result.ok() for result in SCHEMA.get_all_operations())
}

URL = "http://testserver"


class Fuzzed:
    """A server, keys of every kind, and ids of existing objects that may be changed."""

    def __init__(self, server):
        self.server = server
        tenant, app = server.new_tenant_and_app("own")
        self.keys = {
            "admin": server.admin_key,
            "tenant": tenant["api_key"],
            "app": app["api_key"],
        }
        other, _ = server.new_tenant_and_app("changed")
        body = {"name": "changed", "profile": app["profile"]}
        changed = server.call(tenant["api_key"], "POST", "/v1/apps", body)
        ended = {"X-Interaction-Id": "run", "X-Interaction-Final": "true"}
        server.chat(app["api_key"], "ok", user="ann", headers=ended)
        body = {"url": "http://127.0.0.1:9/", "events": ["calls.throttled"]}
        hook = server.call(tenant["api_key"], "POST", "/v1/webhooks", body)
        event = server.call(tenant["api_key"], "POST", f"/v1/webhooks/{hook['id']}/test")
        export = server.call(tenant["api_key"], "POST", "/v1/usage/exports")
        asked = {"model": "scripted", "input": "ok"}
        response = server.call(app["api_key"], "POST", "/v1/responses", asked)
        first = {"items": [{"role": "user", "content": "ok"}]}
        conversation = server.call(app["api_key"], "POST", "/v1/conversations", first)["id"]
        path = f"/v1/conversations/{conversation}/items"
        file = server.request(
            "POST", "/v1/files", app["api_key"], data={"purpose": "batch"}, files={"file": b"{}"}
        ).json()
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/completions",
            "completion_window": "1h",
        }
        batch = server.call(app["api_key"], "POST", "/v1/batches", body)
        self.ids = {
            "response_id": response["id"],
            "conversation_id": conversation,
            "item_id": server.call(app["api_key"], "GET", path)["first_id"],
            "file_id": file["id"],
            "input_file_id": file["id"],
            "batch_id": batch["id"],
            "app_id": changed["id"],
            "key_id": changed["key"]["id"],
            "tenant_id": other["id"],
            "user": "ann",
            "interaction_id": "run",
            "export_id": export["id"],
            "model": "scripted",
            "tenant": tenant["id"],
            "app": changed["id"],
            "webhook_id": hook["id"],
            "event_id": event["event_id"],
        }


def scopes(path):
    """Return the scopes; those with more access are repeated, to be drawn more often."""
    if path.startswith("/admin/"):
        return ["admin"] * 5 + ["tenant"]
    if path.startswith(("/v1/apps", "/v1/usage", "/v1/user-data", "/v1/webhooks")):
        return ["admin", "admin", "tenant", "tenant", "app"]
    return ["app"] * 5 + ["tenant"]


HOOKS = {"webhook_allowed_networks": "127.0.0.0/8"}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    """Return a server on SQLite, which has no integers above 64 bits and no strict types."""
    with WholeServer(tmp_path_factory.mktemp("server") / "data", **HOOKS) as server:
        yield Fuzzed(server)


@pytest.fixture(scope="module")
def on_postgresql(new_postgres_url, tmp_path_factory):
    """Return a server on PostgreSQL, which allows no NUL in a text and checks every type."""
    folder = tmp_path_factory.mktemp("server") / "data"
    database = {"database_url": new_postgres_url(), "secret_key": "x" * 32}
    with WholeServer(folder, **database, **HOOKS) as server:
        yield Fuzzed(server)


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_request_causes_a_server_error(fuzzed, name, seed):
    operation = OPERATIONS[name]
    fuzzed.server.end_runs(fuzzed.keys["app"])
    cases = st.one_of(
        operation.as_strategy(generation_mode=mode)
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    )
    takes_tenant = any(parameter.name == "tenant" for parameter in operation.query)
    answers = Counter()

    @hypothesis.seed(seed)
    @settings(
        max_examples=settings.default.max_examples // 5,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, scope=st.sampled_from(scopes(operation.path)), known=st.booleans())
    def check(case, scope, known):
        if known:  # generated ids never exist
            for place in (case.path_parameters, case.query, case.body):
                if isinstance(place, dict):
                    place.update({key: value for key, value in fuzzed.ids.items() if key in place})
            if scope == "admin" and takes_tenant:
                case.query["tenant"] = fuzzed.ids["tenant"]
        request = requests.Request(**case.as_transport_kwargs(base_url=URL)).prepare()
        request.headers.pop("Authorization", None)  # a generated key is never valid
        answer = fuzzed.server.request(
            request.method,
            request.url,
            fuzzed.keys[scope],
            headers=dict(request.headers),
            content=request.body,
        )
        answers[answer.status_code] += 1
        if name == "POST /admin/keys/rotate" and answer.status_code == 201:
            fuzzed.server.admin_key = fuzzed.keys["admin"] = answer.json()["api_key"]
        sent = (scope, request.url, request.headers, request.body)
        assert answer.status_code != 401, sent
        assert answer.status_code < 500, (*sent, answer.text)

    check()
    print(name, dict(answers))


HOSTILE = ["\x00", "a\x00b", "\ud800", "x" * 5000, "'\";--", "../..", "1e999", "9" * 30, "%"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_hostile_texts_in_every_parameter(on_postgresql, name):
    """Each parameter alone gets the hostile texts, beside valid ones."""
    fuzzed = on_postgresql
    operation = OPERATIONS[name]
    fuzzed.server.end_runs(fuzzed.keys["app"])
    in_path = [parameter.name for parameter in operation.path_parameters]
    in_query = [parameter.name for parameter in operation.query]
    scope = scopes(operation.path)[0]
    for bad, hostile in product(in_path + in_query, HOSTILE):
        path = operation.path
        for parameter in in_path:
            value = hostile if parameter == bad else fuzzed.ids.get(parameter, "x")
            path = path.replace(f"{{{parameter}}}", escaped(value))
        query = {"user": "ann"} if "user" in in_query else {}
        if scope == "admin" and "tenant" in in_query:
            query["tenant"] = fuzzed.ids["tenant"]
        if bad in in_query:
            query[bad] = hostile
        body = None if operation.method.upper() in ("GET", "DELETE") else {}
        path += "?" + "&".join(f"{name}={escaped(value)}" for name, value in query.items())
        answer = fuzzed.server.request(
            operation.method.upper(), path, fuzzed.keys[scope], json=body
        )
        assert answer.status_code < 500, (scope, path, answer.text)


def escaped(value):
    """Escape for a URL; encode a lone surrogate as three bytes, which are invalid UTF-8."""
    return quote(value.encode("utf-8", "surrogatepass"), safe="")
