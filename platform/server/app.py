"""The FastAPI application: routers, middleware, and errors of what makes no call.

Calls are served by an application of their own
(:mod:`fairserve.platform.server.http.call_routes`), which FastAPI's middleware is behind. All middleware
is plain ASGI: Starlette's ``BaseHTTPMiddleware`` buffers streams. What the endpoints
find on ``app.state`` is in :mod:`fairserve.platform.server.http_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fairserve.engine.wire.loop_turns import LoopTurns
from fairserve.platform.background.alarms import endpoints as alarms
from fairserve.platform.background.jobs import endpoints as jobs
from fairserve.platform.background.webhooks import endpoints as webhooks
from fairserve.platform.base.errors import (
    FairServeError,
    InvalidRequestError,
    NotFoundError,
)
from fairserve.platform.base.request_facts import add_error
from fairserve.platform.base.validation import true_problem
from fairserve.platform.base.version import product_version
from fairserve.platform.console.errors import error_page, is_console
from fairserve.platform.console.routes import console_routes
from fairserve.platform.console.security_headers import ConsoleHeaders
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.db.schemas import NO_CONTROL_CHARACTERS, FieldError
from fairserve.platform.fleet import endpoints as cluster
from fairserve.platform.fleet import fleet_endpoints as fleet
from fairserve.platform.monitoring import endpoints as live
from fairserve.platform.reporting.exports import endpoints as exports
from fairserve.platform.reporting.usage import endpoints as usage
from fairserve.platform.reporting.user_data import endpoints as user_data
from fairserve.platform.server.http import api_docs
from fairserve.platform.server.http.access_log import AccessLog
from fairserve.platform.server.http.call_routes import CallRoutes
from fairserve.platform.server.http.cors import Cors
from fairserve.platform.server.http.error_answers import api_error, error_response
from fairserve.platform.server.http.head import HeadAsGet
from fairserve.platform.server.http.intake import Intake, body_memory
from fairserve.platform.server.http.management import Management
from fairserve.platform.server.http_state import HttpState, put_on
from fairserve.platform.server.metrics import endpoints as metrics
from fairserve.platform.server.metrics.requests import RequestMetrics
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.batches import endpoints as batches
from fairserve.platform.serving.completions import endpoints as completions
from fairserve.platform.serving.completions.limit_headers import LimitHeaders
from fairserve.platform.serving.embeddings import endpoints as embeddings
from fairserve.platform.serving.files import endpoints as files
from fairserve.platform.serving.interactions import admin_endpoints as all_interactions
from fairserve.platform.serving.interactions import endpoints as interactions
from fairserve.platform.serving.messages import endpoints as messages
from fairserve.platform.serving.responses import conversation_endpoints as conversations
from fairserve.platform.serving.responses import endpoints as responses
from fairserve.platform.tenancy.apps import endpoints as apps
from fairserve.platform.tenancy.audit import endpoints as audit
from fairserve.platform.tenancy.keys import endpoints as admin_keys
from fairserve.platform.tenancy.prices import endpoints as prices
from fairserve.platform.tenancy.profiles import endpoints as profiles
from fairserve.platform.tenancy.tenants import endpoints as tenants
from fairserve.platform.tenancy.tenants import users
from fairserve.platform.tuning import endpoints as throttling

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
CALLS = (completions, messages, responses, embeddings)
"""Modules with endpoints for calls."""
MANAGEMENT = (
    admin_keys,
    alarms,
    all_interactions,
    apps,
    audit,
    cluster,
    exports,
    fleet,
    jobs,
    live,
    metrics,
    prices,
    profiles,
    tenants,
    throttling,
    usage,
    user_data,
    users,
    webhooks,
)
"""Modules with endpoints for operators and tenants."""


def create_app(settings: Settings, lifespan: Lifespan) -> FastAPI:
    """Return the application. ``lifespan`` puts the running state on ``app.state``."""
    app = FastAPI(
        title="FairServe",
        version=product_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    console_state = ConsoleState(settings.console)
    requests = RequestMetrics()
    put_on(app, HttpState(settings, console_state, requests))
    modules = (*CALLS, conversations, files, batches, interactions, *MANAGEMENT)
    console = console_routes() if settings.console.console != "off" else ()
    # Not by ``include_router``: it builds each route anew at the first request, and searches it twice.
    app.router.routes += [route for module in modules for route in module.router.routes]
    app.router.routes += console
    api_docs.describe_keys(app)
    app.router.routes += api_docs.router.routes
    for kind in (FairServeError, DataError, OperationalError, Exception):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(ClientDisconnect, _answer_disconnected)
    memory, turns = body_memory(settings), LoopTurns()
    app.add_middleware(Management, answer=_answer, loop_turns=turns)
    app.add_middleware(Intake, settings=settings, answer=_answer, memory=memory)
    app.add_middleware(LimitHeaders)
    app.add_middleware(Cors)
    app.add_middleware(ConsoleHeaders)
    app.add_middleware(HeadAsGet)
    routes = [route for module in CALLS for route in module.router.calls]
    calls = CallRoutes(
        app.build_middleware_stack(), routes, memory, settings.server.max_body_bytes, turns
    )
    app.middleware_stack = AccessLog(app, calls, settings.console.proxy_networks, requests.count)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    return _answer(request, api_error(error))


async def _answer_validation(request: Request, error: Exception) -> Response:
    """Answer a failed validation of body, query or path: the first problem, with its field."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        return _answer(request, InvalidRequestError("the body is not JSON", code="malformed_json"))
    # The first part of a location is body, query or path.
    inner = [{**each, "loc": each["loc"][1:]} for each in errors]
    problem = true_problem(inner, error.body if errors[0]["loc"][0] == "body" else None)
    field = ".".join(map(str, problem.path))
    text, context = problem.text, problem.context
    if isinstance(cause := context.get("error"), FieldError):
        param = f"{field}.{cause.field}" if field else cause.field
        return _answer(request, InvalidRequestError(text, param=param))
    if context.get("pattern") == NO_CONTROL_CHARACTERS:
        text = "control characters are not allowed"
    code = "unknown_parameter" if problem.kind == "extra_forbidden" else None
    message = f"{field}: {text}" if field else text
    return _answer(request, InvalidRequestError(message, param=field or None, code=code))


async def _answer_http(request: Request, error: Exception) -> Response:
    """Answer Starlette's own errors: unknown path, wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _answer(request, NotFoundError(f"there is no {request.url.path}"))
    answer = InvalidRequestError(str(error.detail), code="invalid_request")
    if error.status_code == 405:
        methods = {v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
        allowed = ", ".join(sorted(methods)).replace("GET", "GET, HEAD")
        error.headers = {"Allow": allowed}
        answer.message = f"{request.url.path} does not take {request.method}; allowed: {allowed}"
        answer.code = "method_not_allowed"
    answer.status = error.status_code
    answer.headers = dict(error.headers or {})
    return _answer(request, answer)


async def _answer_disconnected(request: Request, error: Exception) -> Response:
    """Answer a client that disconnected before its body had arrived; nobody reads it."""
    return Response(status_code=499)


def _answer(request: Request, error: FairServeError) -> Response:
    if not is_console(request):
        return error_response(request.scope, error)
    add_error(error)
    return error_page(request, error)
