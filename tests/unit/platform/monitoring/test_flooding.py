"""Test the badges of clients that flood."""

import pytest

from fairserve.platform.monitoring.client_views import ClientView
from fairserve.platform.monitoring.flooding import Totals, floods, share_sign, signs, totals, worst

NOTHING = Totals(0, 0)


def client(user="u", *, got=None, due=None, queued=0, refused=0):
    return ClientView(
        tenant="t",
        app="a",
        user=user,
        service_1m=0.0,
        service_5m=0.0,
        service_30m=0.0,
        service_share=got,
        entitled_share=due,
        weight=1.0,
        queued_calls=queued,
        running_calls=0,
        refused_calls=refused,
        blocked=False,
        user_rpm=None,
        app_rpm=None,
        counter=None,
    )


@pytest.mark.parametrize(
    ("got", "due", "tone"),
    [
        (1.0, 1.0, None),  # the only client
        (None, 0.5, None),
        (0.5, None, None),
        (0.55, 0.5, None),
        (0.04, 0.01, None),  # four times almost nothing
        (0.6, 0.35, "warn"),
        (0.98, 0.5, "bad"),  # one of two cannot take more
        (0.08, 0.01, "bad"),  # one of many
        (0.45, 0.1, "bad"),
    ],
)
def test_a_share_far_above_the_entitlement_has_a_badge(got, due, tone):
    sign = share_sign(client(got=got, due=due))
    assert (sign.tone if sign else None) == tone
    if sign:
        assert sign.words == f"takes {got / due:.1f} times its share"


def test_holding_most_of_the_queue_is_flooding_even_with_fair_service():
    fair = client(got=0.5, due=0.5, queued=30)
    assert [sign.words for sign in signs(fair, Totals(40, 0))] == ["75.0 % of the queue"]
    assert not floods(fair, Totals(100, 0))
    assert not floods(client(queued=3), Totals(3, 0)), "a short queue is none"
    assert not signs(fair, NOTHING)


def test_rejections_alone_have_a_badge_but_are_not_flooding():
    refused = client(refused=1500)
    assert [sign.words for sign in signs(refused, Totals(0, 1600))] == ["1,500 calls rejected"]
    assert not floods(refused, Totals(0, 1600))
    assert not signs(client(refused=9), Totals(0, 9))


def test_clients_are_listed_once_worst_first():
    of_all = Totals(40, 0)
    large, larger = client("a", got=0.4, due=0.1), client("b", got=0.6, due=0.1)
    waiting, good = client("c", queued=40), client("d", got=0.1, due=0.1)
    ranked = worst([large, larger, good, waiting, larger], of_all, 3)
    assert [each.user for each in ranked] == ["b", "a", "c"]
    assert len(worst([large, larger], of_all, 1)) == 1


def test_badges_of_a_client_are_sorted_by_severity():
    both = client(got=0.9, due=0.1, queued=20, refused=100)
    assert [sign.tone for sign in signs(both, Totals(20, 100))] == ["bad", "bad", "warn"]


def test_totals_cover_both_lists():
    assert totals([client(queued=3), client(queued=2)], [client(refused=7)]) == (5, 7)
