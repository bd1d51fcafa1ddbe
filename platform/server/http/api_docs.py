"""The description of the API at ``/docs``: Swagger UI from this server, without the internet.

FastAPI's own page loads Swagger UI from a content delivery network and starts it with an inline script.
Here the files come from the package ``fastapi-offline``, and the page keeps to the console's policy:
only our scripts run, and no other host is asked for anything. Its button *Authorize* takes a key, which
stays in the page.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.console.security_headers import HEADERS

OPENAPI_PATH = "/openapi.json"
MAX_AGE_S = 3600
"""Seconds for which a browser keeps a file of Swagger UI."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>FairServe API</title>
<link rel="icon" href="/docs/favicon.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
_START = f"""SwaggerUIBundle({{
  url: "{OPENAPI_PATH}",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "list",
  tagsSorter: "alpha",
  validatorUrl: null,
}});
"""
_FILES = {
    "favicon.png": "image/png",
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
_SCHEME = "key"

router = APIRouter(prefix="/docs", include_in_schema=False)


@router.get("")
def read_docs() -> Response:
    """Return the page."""
    return Response(_PAGE, media_type="text/html", headers=HEADERS)


@router.get("/start.js")
def read_start() -> Response:
    """Return the script that starts Swagger UI."""
    return Response(_START, media_type="text/javascript", headers=HEADERS)


@router.get("/{name}")
def read_file(name: str) -> Response:
    """Return a file of Swagger UI."""
    if name not in _FILES:
        raise NotFoundError(f"there is no /docs/{name}")
    headers = {**HEADERS, "Cache-Control": f"max-age={MAX_AGE_S}"}
    return FileResponse(_folder() / name, media_type=_FILES[name], headers=headers)


def describe_keys(app: FastAPI) -> None:
    """Add to the app's description that its requests carry a key, so that the page asks for one."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        schema = plain()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        if _SCHEME not in schemes:
            schemes[_SCHEME] = {"type": "http", "scheme": "bearer"}
            for path, operations in schema["paths"].items():
                if path.startswith(("/v1/", "/admin/")):
                    for operation in operations.values():
                        operation["security"] = [{_SCHEME: []}]
        return schema

    app.openapi = described  # type: ignore[method-assign]  # as FastAPI documents it
    app.add_route(OPENAPI_PATH, _document(app), include_in_schema=False)


def _document(app: FastAPI) -> Callable[[Request], Response]:
    """Return the endpoint of the description.

    Starlette runs it in a thread: the first request takes seconds of a core, for which no stream may
    wait. The others get the same bytes.
    """
    lock = threading.Lock()
    written: list[bytes] = []

    def read_openapi(request: Request) -> Response:
        with lock:
            if not written:
                written.append(orjson.dumps(app.openapi()))
        return Response(written[0], media_type="application/json")

    return read_openapi


@functools.cache
def _folder() -> Path:
    return Path(str(files("fastapi_offline") / "static"))
