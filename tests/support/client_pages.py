"""Clients of a live server and their pages in the console."""

from contextlib import contextmanager
from urllib.parse import quote

from processes import eventually
from virtual_cluster import make_call

from fairserve.platform.control.call_state import CallState

MODEL = "fairserve-tiny-random"
ODD = "<img src=x onerror=alert(1)>/\"'&? #%é 用户"
"""An id that must be escaped."""


def call(server, key, user, text="ok", **more):
    """Send a chat call; return the answer with its headers."""
    return server.openai(key).chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": text}], user=user, **more
    )


def hold(server, key, user, run, *, words=1):
    """Return the future of a call that a scripted worker holds until ``server.release()``.

    Its prompt shares no prefix with those of other runs, so that none of its tokens count as cached.
    """
    before = server.holding()
    headers = {"X-Interaction-Id": run}
    filler = "hold " * words
    text = f"hold {run} {filler}"[: len(filler)]
    future = server.threads.submit(call, server, key, user, text, extra_headers=headers)
    eventually(lambda: server.holding() > before or future.done(), "no worker has the call")
    assert not future.done(), future.exception()
    return future


@contextmanager
def waits(server, app, user):
    """Let the monitoring see a call of a user that waits for a worker."""
    call = make_call("w", tenant=app["tenant_id"], app=app["id"], user=user)
    monitoring, now_s = server.platform.monitoring, server._clock()
    waiting = CallState(call, "w", "", now_s, now_s)
    for each in (monitoring.activity, monitoring.app_calls):
        server.client.portal.call(each.call_accepted, waiting, now_s)
    yield
    for each in (monitoring.activity, monitoring.app_calls):
        server.client.portal.call(each.call_dropped, waiting)


def path_of(app, user):
    return "/console/clients/" + "/".join(
        quote(each, safe="") for each in (app["tenant_id"], app["id"], user)
    )
