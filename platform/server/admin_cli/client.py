"""The admin commands' HTTP client: JSON requests with one key, which is never shown.

Redirects are not followed, because they would receive the key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fairserve.platform.base.command_line import FAILED, CommandError

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 60.0
PAGE = 1000
"""Items of a list in one request."""
MAX_KEY_CHARS = 256


class RejectedRequestError(CommandError):
    """The server answered a request with an error."""

    def __init__(self, message: str, status: int, param: str = "") -> None:
        """``param`` is the field of the request that is wrong, if it is one."""
        super().__init__(message, FAILED)
        self.status, self.param = status, param


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Follow no redirect: the redirect is the answer."""


class AdminClient:
    """Requests to one server with one key."""

    def __init__(self, url: str, key: str) -> None:
        """Raises CommandError for an invalid URL or key."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
            raise CommandError(
                f"the URL is {url!r}; allowed: http://HOST:PORT or https://HOST:PORT"
            )
        if not key.isascii() or not key.isprintable() or not 0 < len(key) <= MAX_KEY_CHARS:
            raise CommandError("the key is empty, too long, or has characters that keys never have")
        self._url = url.rstrip("/")
        self._key = key
        self._opener = build_opener(_NoRedirects)

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        **query: str | int | bool | None,
    ) -> Any:
        """Return the answer's JSON, None for an empty answer.

        Raises RejectedRequestError if the server rejects the request, and CommandError if it does not
        answer, both with exit code 1.
        ``path`` is quoted, see :func:`path_of`; query parameters of None are left out.
        """
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
            if value is not None
        }
        url = f"{self._url}{path}" + (f"?{urlencode(given)}" if given else "")
        headers = {"Authorization": f"Bearer {self._key}", "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = Request(url, data, headers, method=method)  # noqa: S310  http and https only
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                text = answer.read()
        except HTTPError as error:
            with error:
                raise RejectedRequestError(*_refusal(error)) from None
        except URLError as error:
            raise CommandError(f"{self._url} does not answer: {error.reason}", FAILED) from None
        except (OSError, HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise CommandError(f"{self._url} does not answer: {reason}", FAILED) from None
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise CommandError(
                f"{self._url} does not answer with JSON; is it FairServe?", FAILED
            ) from None

    def items(self, path: str, **query: str | int | bool | None) -> Iterator[Any]:
        """Yield the items of all pages of a list. Raises as :meth:`call` does."""
        offset = 0
        while True:
            page = self.call("GET", path, None, limit=PAGE, offset=offset, **query)
            yield from page["items"]
            offset += len(page["items"])
            if not page["items"] or offset >= page["total"]:
                return


def path_of(*parts: str) -> str:
    """Return a path of these parts, each quoted; slashes in the last one are kept."""
    *heads, last = parts
    return "/" + "/".join([*(quote(head, safe="") for head in heads), quote(last, safe="/")])


def read_key(key_file: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the key of a file, else of FAIRSERVE_API_KEY. Raises CommandError if there is none."""
    if key_file is None:
        key = environment.get("FAIRSERVE_API_KEY", "").strip()
        if not key:
            raise CommandError("no key: set FAIRSERVE_API_KEY, or name a file by --key-file")
        return key
    try:
        return key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise CommandError(f"the key file {key_file} cannot be read: {reason}") from None


def _refusal(error: HTTPError) -> tuple[str, int, str]:
    """Return the message, the status and the field of an error."""
    try:
        answer = json.loads(error.read())["error"]
        return str(answer["message"]), error.code, str(answer.get("param") or "")
    except (ValueError, KeyError, TypeError, OSError, HTTPException):
        where = error.headers.get("Location")
        text = f"the server answers {error.code}" + (f", elsewhere: {where}" if where else "")
        return text, error.code, ""
