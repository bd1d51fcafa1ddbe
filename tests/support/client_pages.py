"""Clients of a live server and their pages in the console."""

from urllib.parse import quote

MODEL = "fairserve-tiny-random"
ODD = "<img src=x onerror=alert(1)>/\"'&? #%é 用户"
"""An id that must stay text."""


def call(server, key, user, words=5):
    with server.openai(key) as client:
        client.completions.create(
            model=MODEL, prompt="a few words " * words, max_tokens=words, user=user
        )


def path_of(app, user):
    return "/console/clients/" + "/".join(
        quote(each, safe="") for each in (app["tenant_id"], app["id"], user)
    )
