"""HEAD is answered wherever GET is: with GET's status and headers, and without a body."""

import re

from fairserve.platform.server.http.head import HeadAsGet

UNEQUAL = {"date", "x-request-id", "content-length", "set-cookie"}
"""Headers of an answer that two requests need not share: what they count may have changed."""
ENDLESS = re.compile(r"/(stream|events)$|/live")


def test_each_route_that_takes_get_takes_head(management):
    """FastAPI answers 405 to HEAD by itself; balancers and link checkers probe with it."""
    client = management.client
    tenant = management.new_tenant("acme")
    keys = {
        "/v1": tenant["api_key"],
        "/admin": management.admin_key,
        "/metri": management.admin_key,
    }
    paths = [path for path, methods in client.app.openapi()["paths"].items() if "get" in methods]
    paths += ["/console/login", "/docs", "/openapi.json", "/console"]
    assert len(paths) > 60
    for path in paths:
        key = next((key for prefix, key in keys.items() if path.startswith(prefix)), None)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = re.sub(r"{[^}]+}", "x", path)
        head = client.head(url, headers=headers, follow_redirects=False)
        assert head.status_code != 405, path
        assert head.content == b"", path
        if ENDLESS.search(path):
            continue
        get = client.get(url, headers=headers, follow_redirects=False)
        assert get.status_code == head.status_code, path
        assert _shared(get) == _shared(head), path
        if path in ("/health", "/docs"):
            assert get.headers["content-length"] == head.headers["content-length"] != "0"


def _shared(answer):
    return {name: value for name, value in answer.headers.items() if name not in UNEQUAL}


def test_a_route_without_get_does_not_take_head(management):
    client = management.client
    answer = client.head("/v1/chat/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert client.post("/health").headers["allow"] == "GET, HEAD"


async def test_an_answer_without_an_end_ends_after_its_head():
    """A stream of events must not go on for a client that gets none of them."""
    sent, ended = [], []

    async def app(scope, receive, send):
        assert scope["method"] == "GET"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"event", "more_body": True})
        ended.append(await receive())

    async def receive():
        raise AssertionError("the client sends nothing more")

    async def send(message):
        sent.append(message)

    await HeadAsGet(app)({"type": "http", "method": "HEAD"}, receive, send)
    assert ended == [{"type": "http.disconnect"}]
    assert [message.get("body") for message in sent] == [None, b""]
