"""A copy of an ``openai`` client whose completions name their run, agent and user.

The package supports default headers, but no default body for the user. So the copy's own
``request``, through which all its calls go, first amends the options of a completion. Retries
repeat the amended options. The package is not imported: any client with its methods works, and its
type is kept.

Weakness: it relies on the fields of the package's request options (``url``, ``headers``, ``json_data``,
``extra_json``), which are the same in its releases since 1.0 and are not guaranteed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from .headers import CALL_HEADER, RUN_HEADER


class Client(Protocol):
    """The part of ``openai.OpenAI``, ``openai.AsyncOpenAI`` and similar clients that is used."""

    @property
    def with_options(self) -> Callable[..., Any]:
        """Return a copy with other options."""
        ...

    @property
    def post(self) -> Callable[..., Any]:
        """Send a request with the client's key and retries."""
        ...

    @property
    def delete(self) -> Callable[..., Any]:
        """Send a request with the client's key and retries."""
        ...


class Place(Protocol):
    """The place in a run where a call is made."""

    @property
    def run(self) -> Any:
        """Return the run: its ``id`` and its ``user``."""
        ...

    def headers(self) -> dict[str, str]:
        """Return the headers that name run, agent and parents, in lower case."""
        ...

    def note(self, call_id: str | None) -> None:
        """Record an answered call."""
        ...


C = TypeVar("C", bound=Client)


def named_copy(client: C, place: Callable[[], Place]) -> C:
    """Return a copy of the client that names ``place()`` with every completion, as do its own copies.

    Values that a call sets itself are kept; a call that names another run is not changed.
    """
    copied: C = client.with_options(default_headers={RUN_HEADER: place().run.id})
    copy: Any = copied
    request, copies = copy.request, copy.with_options

    def named(cast_to: Any, options: Any, **more: Any) -> Any:
        here = place()
        if not options.url.endswith("/completions") or not _amend(options, here):
            return request(cast_to, options, **more)
        answer = request(cast_to, options, **more)
        if inspect.isawaitable(answer):
            return _noted(answer, options, here)
        here.note(_id_of(answer, options))
        return answer

    copy.request = named
    copy.copy = copy.with_options = lambda **options: named_copy(copies(**options), place)
    return copied


def _amend(options: Any, here: Place) -> bool:
    """Add headers and user if the call lacks them. Return False if it belongs to another run."""
    # A run named by the call replaces the default, for which its name must be spelt alike.
    given = {
        RUN_HEADER if name.lower() == RUN_HEADER else name: value
        for name, value in (options.headers or {}).items()
    }
    if given.get(RUN_HEADER, here.run.id) != here.run.id:
        options.headers = given
        return False
    given_names = {name.lower() for name in given}
    ours = {name: value for name, value in here.headers().items() if name not in given_names}
    options.headers = {**ours, **given}
    extra = options.extra_json or {}
    if here.run.user is not None and {**(options.json_data or {}), **extra}.get("user") is None:
        options.extra_json = {**extra, "user": here.run.user}
    return True


async def _noted(answer: Awaitable[Any], options: Any, here: Place) -> Any:
    answered = await answer
    here.note(_id_of(answered, options))
    return answered


def _id_of(answer: Any, options: Any) -> str | None:
    """Return the id of an answered call: its own, or the answer's, a stream's from its headers."""
    for name, value in options.headers.items():
        if name.lower() == CALL_HEADER:
            return str(value)
    headers = getattr(getattr(answer, "response", answer), "headers", None)
    found = getattr(answer, "id", None) if headers is None else headers.get(CALL_HEADER)
    return found if isinstance(found, str) else None
