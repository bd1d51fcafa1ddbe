"""Test the badges of clients that flood."""

import asyncio

import pytest

from fairserve.platform.monitoring.client_views import ClientView
from fairserve.platform.monitoring.flooding import Totals, floods, share_sign, signs, worst

NOTHING = Totals({}, 0)


def of_queue(calls, refused=0):
    return Totals({"m": calls}, refused)


def client(user="u", *, got=None, due=None, queued=0, refused=0, **more):
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
        queued_by_model={"m": queued, **more},
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
    assert [sign.words for sign in signs(fair, of_queue(40))] == ["75.0 % of the queue of m"]
    assert not floods(fair, of_queue(100))
    assert not floods(client(queued=3), of_queue(3)), "a short queue is none"
    assert not signs(fair, NOTHING)


def test_rejections_alone_have_a_badge_but_are_not_flooding():
    refused = client(refused=1500)
    assert [sign.words for sign in signs(refused, of_queue(0, 1600))] == ["1,500 calls rejected"]
    assert not floods(refused, of_queue(0, 1600))
    assert not signs(client(refused=9), of_queue(0, 9))


def test_clients_are_listed_once_worst_first():
    of_all = of_queue(40)
    large, larger = client("a", got=0.4, due=0.1), client("b", got=0.6, due=0.1)
    waiting, good = client("c", queued=40), client("d", got=0.1, due=0.1)
    ranked = worst([large, larger, good, waiting, larger], of_all, 3)
    assert [each.user for each in ranked] == ["b", "a", "c"]
    assert len(worst([large, larger], of_all, 1)) == 1


def test_badges_of_a_client_are_sorted_by_severity():
    both = client(got=0.9, due=0.1, queued=20, refused=100)
    assert [sign.tone for sign in signs(both, of_queue(20, 100))] == ["bad", "bad", "warn"]


def test_the_queue_of_a_model_is_that_of_its_calls_alone():
    of_all = Totals({"m": 1000, "small": 40}, 0)
    assert [sign.words for sign in signs(client(small=36), of_all)] == [
        "90.0 % of the queue of small"
    ]
    assert not floods(client(queued=300, small=19), of_all), "most of all queues, and of none"


async def test_the_queues_of_a_tenant_are_its_own(world):
    for number in range(2):
        await world.submit("h", run=f"held-{number}", user="held")
    tasks = [
        await world.submitted("w", run=f"wait-{user}", user=user, tenant=tenant, app=tenant)
        for user, tenant in (("ann", "t"), ("ben", "t"), ("cat", "other"))
    ]
    clients = world.monitoring.clients
    assert list((await clients.read(None)).queues().values()) == [3]
    (own,) = (await clients.read("t")).queues().items()
    assert own[1] == 2
    assert (await clients.read("t")).page(limit=9, query="ann").items[0].queued_by_model == {
        own[0]: 1
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await clients.read(None)).queues() == {}
