"""Error pages under ``/console``; a missing sign-in redirects to the sign-in page."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.console.formats import local_time
from fairserve.platform.console.guard import SignInNeededError
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sign_in.steps import SIGN_IN
from fairserve.platform.db.session import DatabaseUnavailableError

PLACE = "/console"


def is_console(request: Request) -> bool:
    """Return whether the request is for a page of the console."""
    path = request.url.path
    return path == PLACE or path.startswith(PLACE + "/")


def error_page(request: Request, error: FairServeError) -> Response:
    """Return the page for a request that failed."""
    by_script = "hx-request" in request.headers
    if isinstance(error, SignInNeededError):
        return _to_sign_in(request, by_script)
    viewer = getattr(request.state, "viewer", None)
    template = "error_part" if by_script else "error"
    title = _TITLES.get(error.status)
    if isinstance(error, DatabaseUnavailableError):
        title = "The database does not answer"
        error.message = _of_database(request)
    answer = page(request, viewer, template, status=error.status, title=title, error=error)
    answer.headers.update(error.headers)
    return answer


def _of_database(request: Request) -> str:
    """Return why a page or a change fails while the database is away, and since when."""
    causes = request.app.state.status.now().causes
    since = next((each.since for each in causes if each.kind == "database"), None)
    when = "" if since is None else Markup(" since {}").format(local_time(since))
    return Markup("This page needs the database, which does not answer{}.").format(when)


def _to_sign_in(request: Request, by_script: bool) -> Response:
    if by_script:
        shown = request.headers.get("hx-current-url", "").partition("/console/")[2]
        onward = f"/console/{shown}" if shown else ""
        place = f"{SIGN_IN}?next={quote(onward, safe='')}"
        return Response(status_code=401, headers={"HX-Redirect": place})
    onward = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method != "GET" or onward in (PLACE, PLACE + "/"):
        return RedirectResponse(SIGN_IN, status_code=303)
    return RedirectResponse(f"{SIGN_IN}?next={quote(onward, safe='')}", status_code=303)


_TITLES = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    409: "Conflict with the current state",
    413: "Too large",
    422: "Invalid request",
    429: "Too many requests",
    500: "The request failed",
    503: "Not available",
}
