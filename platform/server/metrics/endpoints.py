"""``GET /metrics`` for Prometheus: with an admin key, or without one on the port of its own."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import State
from starlette.routing import Route

from fairserve.platform.server.metrics.metrics import Metrics
from fairserve.platform.server.metrics.requests import RequestMetrics
from fairserve.platform.tenancy.principals import require_admin

router = APIRouter()


@router.get("/metrics", dependencies=[Depends(require_admin)])
async def read_metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    return await _answer(request.app.state)


def metrics_app(state: State) -> Starlette:
    """Return an application with nothing but ``/metrics``, which needs no key.

    ``state`` is that of the API's application; before its platform runs the answer is 503.
    """

    async def read(request: Request) -> Response:
        if not hasattr(state, "metrics"):
            return Response("starting", status_code=503)
        return await _answer(state)

    return Starlette(routes=[Route("/metrics", read, methods=["GET"])])


async def _answer(state: State) -> Response:
    metrics: Metrics = state.metrics
    requests: RequestMetrics = state.request_metrics
    text = await metrics.text([requests.family()])
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
