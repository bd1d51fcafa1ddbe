"""The setting and a client's salt determine which calls share cached prefixes."""

import itertools

import pytest

from fairserve.platform.serving.decision.check import cache_salt

CALLERS = [
    (tenant, app, user, own)
    for tenant in "ab"
    for app in "pq"
    for user in ("u", "v")
    for own in (None, "", "x")
]


@pytest.mark.parametrize(
    ("isolation", "shared"),
    [
        ("tenant", lambda caller: (caller[0], caller[3])),
        ("app", lambda caller: (caller[0], caller[1], caller[3])),
        ("user", lambda caller: (caller[0], caller[2], caller[3])),
        ("none", lambda caller: caller[3]),
    ],
)
def test_isolation_determines_sharing(isolation, shared):
    for one, other in itertools.combinations(CALLERS, 2):
        same = cache_salt(isolation, *one) == cache_salt(isolation, *other)
        assert same == (shared(one) == shared(other)), (one, other)


def test_no_user_name_or_salt_reaches_another_domain():
    """Separators in names are data: user ``b/=x`` is not user ``b`` with the salt ``x``."""
    tricky = ["b", "b/=x", "b%2F%3Dx", "=x", "x"]
    salts = [cache_salt("user", "a", "p", user, own) for user in tricky for own in (None, *tricky)]
    assert len(set(salts)) == len(salts)


def test_without_isolation_a_prompt_has_no_salt():
    assert cache_salt("none", "a", "p", "u", None) == ""


@pytest.mark.parametrize("own", [None, "a/b@c\\d\0", "x" * 256])
@pytest.mark.parametrize("isolation", ["none", "tenant", "app", "user"])
def test_a_salt_is_one_that_vllm_allows(isolation, own):
    salt = cache_salt(isolation, "tn_1", "app/1", "ann@example.org" * 20, own)
    assert len(salt) <= 128
    assert not set(salt) & set("@/\\\0")
