"""Settings of the sign-in with OpenID Connect: what is missing or unsafe is rejected at the start."""

import sys
from unittest import mock

import pytest
from pydantic import ValidationError

from fairserve.platform.console.oidc.loading import load_provider
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.server.cli import main

GIVEN = {
    "oidc_issuer": "https://login.example/realms/staff",
    "oidc_client_id": "console",
    "oidc_roles": "viewer=all,admin=cn=ops,operator=sre",
    "public_url": "https://console.example",
}


def test_the_highest_role_comes_first_and_groups_may_have_an_equals_sign():
    settings = ConsoleSettings(**GIVEN)
    assert settings.group_roles == (("cn=ops", "admin"), ("sre", "operator"), ("all", "viewer"))
    assert settings.oidc_title == "login.example"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"oidc_client_id": ""}, "oidc_issuer needs oidc_client_id"),
        ({"oidc_roles": "", "public_url": ""}, "oidc_issuer needs oidc_roles and public_url"),
        ({"oidc_roles": "owner=x"}, "each must be viewer=GROUP"),
        ({"oidc_roles": "admin="}, "each must be viewer=GROUP"),
        ({"oidc_issuer": "http://login.example"}, "must be an https URL"),
        ({"oidc_issuer": "https://a@login.example"}, "must be an https URL"),
        ({"public_url": "https://console.example/?x"}, "must be an https URL"),
        ({"public_url": "console.example"}, "must be an https URL"),
        ({"oidc_issuer": "", "console": "oidc"}, "which needs oidc_issuer"),
    ],
)
def test_what_is_missing_or_unsafe_is_rejected(change, message):
    with pytest.raises(ValidationError, match=message):
        ConsoleSettings(**{**GIVEN, **change})


def test_this_machine_needs_no_tls():
    for url in ("http://localhost:9000", "http://127.0.0.1", "http://[::1]:1"):
        assert ConsoleSettings(**{**GIVEN, "public_url": url}).public_url == url


def test_the_client_secret_is_not_shown():
    assert "hidden-secret" not in repr(ConsoleSettings(**GIVEN, oidc_client_secret="hidden-secret"))


def test_a_missing_extra_is_named_at_the_start(capsys):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in GIVEN.items()]
    name = "fairserve.platform.console.oidc.provider"
    with mock.patch.dict(sys.modules, {"authlib.oauth2.auth": None}), mock.patch.dict(sys.modules):
        sys.modules.pop(name, None)
        assert main(["serve", *flags]) == 2
        assert load_provider(ConsoleSettings()) is None
    assert "Authlib is not installed: pip install 'fairserve[oidc]'" in (capsys.readouterr().err)
