"""Names the run and agent of every call of an agent program that uses any ``openai`` client.

:func:`interaction` opens a run and ends it: it is closed after its block, or cancelled if the block
fails. ``run.client`` is a copy of the caller's client that sends the run's id and user, and the
agent of the context; frameworks that create their own clients get the same from :func:`event_hooks`
or ``run.headers``. The caller's client is unchanged, and keys are never read. Runs: FairServe 3.4
and 4.2; headers: :mod:`fairserve_client.headers`.

Weakness: a call's user is part of its body, which a hook of an HTTP client cannot change, so the
program must set it there. A thread has the context only if it is started with a copy, as
``asyncio.to_thread`` does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar, cast
from urllib.parse import quote

from .headers import (
    AGENT_HEADER,
    CALL_HEADER,
    FINAL_HEADER,
    MAX_PARENTS,
    PARENTS_HEADER,
    RUN_HEADER,
    checked_text,
)
from .openai_calls import C, named_copy

CANCEL_S = 10.0
"""Maximum seconds to cancel a run whose block failed."""
ENDED = ("interaction_not_found", "interaction_closed")
"""Error codes when a run is closed that no call has reached, or that its final call has ended."""


F = TypeVar("F", bound=Callable[..., Any])
After = Iterable["str | Agent"]
"""Predecessors of an agent: ids of calls or of their answers, or agents with all their calls."""


class Agent:
    """An agent: calls made inside ``with`` carry its name. A decorator creates one per call.

    ``calls`` contains the ids of its answered calls. With ``after`` its first calls follow those,
    and later ones its own earlier calls; otherwise the server infers the parents.
    """

    def __init__(self, name: str, after: After | None, run: Run[Any] | None) -> None:
        self.name = checked_text(name, "agent")
        self.after = None if after is None else tuple(after)
        self.run = run
        self.calls: list[str] = []

    def __enter__(self) -> Agent:
        run = self.run or current_run()
        working = self if self.run is run else Agent(self.name, self.after, run)
        _here.set(_Place(run, working, _here.get()))
        return working

    def __exit__(self, *ending: object) -> None:
        _leave()

    def __call__(self, function: F) -> F:
        """Return the function with this agent around each call. Raises TypeError for a generator."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__} is a generator; use `with agent(...)` inside it")

        @functools.wraps(function)
        def working(*args: Any, **more: Any) -> Any:
            with Agent(self.name, self.after, self.run):
                return function(*args, **more)

        @functools.wraps(function)
        async def working_async(*args: Any, **more: Any) -> Any:
            with Agent(self.name, self.after, self.run):
                return await function(*args, **more)

        return cast("F", working_async if inspect.iscoroutinefunction(function) else working)

    def parents(self) -> list[str] | None:
        """Return the parents of a call made now; None lets the server infer them."""
        if self.after is None:
            return None
        found = self.calls or [call for each in self.after for call in _calls_of(each)]
        return found[-MAX_PARENTS:] if found or not self.after else None

    def note(self, call_id: str) -> None:
        """Record an answered call; the id may be that of its answer."""
        plain = call_id.removeprefix("chatcmpl-").removeprefix("cmpl-")
        if plain not in self.calls:
            self.calls.append(plain)


class Run(Generic[C]):
    """A run of agents for one answer to one user."""

    def __init__(self, client: C, run_id: str, user: str | None) -> None:
        self.id = checked_text(run_id, "id")
        self.user = user
        self.client: C = named_copy(client, self._place)
        """Copy of the client whose calls belong to this run and its user, in any thread."""

    def _place(self) -> _Place:
        here = _here.get()
        return here if here is not None and here.run.id == self.id else _Place(self)

    def agent(self, name: str, *, after: After | None = None) -> Agent:
        """Return an agent of this run."""
        return Agent(name, after, self)

    def headers(
        self,
        *,
        agent: str | None = None,
        parents: Iterable[str] | None = None,
        call_id: str | None = None,
        final: bool = False,
    ) -> dict[str, str]:
        """Return the headers of a call. Raises ValueError for values that no header can carry."""
        headers = {RUN_HEADER: self.id}
        if agent is not None:
            headers[AGENT_HEADER] = checked_text(agent, "agent")
        if parents is not None:
            headers[PARENTS_HEADER] = ",".join(_call_id(parent) for parent in parents)
        if call_id is not None:
            headers[CALL_HEADER] = _call_id(call_id)
        if final:
            headers[FINAL_HEADER] = "true"
        return headers


class _Place(NamedTuple):
    """Current position of the code in a run."""

    run: Run[Any]
    agent: Agent | None = None
    outer: _Place | None = None

    def headers(self) -> dict[str, str]:
        if self.agent is None:
            return self.run.headers()
        return self.run.headers(agent=self.agent.name, parents=self.agent.parents())

    def note(self, call_id: str | None) -> None:
        if self.agent is not None and call_id is not None:
            self.agent.note(call_id)


_here: ContextVar[_Place | None] = ContextVar("fairserve_place", default=None)


def _leave() -> None:
    here = _here.get()
    _here.set(None if here is None else here.outer)


def interaction(
    client: C, *, user: str | None = None, id: str | None = None, close: bool | None = None
) -> Interaction[C]:
    """Return a run around a block: ``with`` for a blocking client, ``async with`` for an async one.

    Opens a run for ``user`` (default: the app itself) and ends it: closed, or cancelled if the
    block raises. With ``id`` it joins that run, whose user must be given again, and ends it only if
    ``close`` is true. The client's errors are propagated; a run that has already ended is no error.
    """
    return Interaction(client, user, id, id is None if close is None else close)


def agent(name: str, *, after: After | None = None) -> Agent:
    """Return an agent of the run that is current at its use: for ``with``, and as a decorator."""
    return Agent(name, after, None)


def current_run() -> Run[Any]:
    """Return the current run. Raises LookupError outside a run."""
    here = _here.get()
    if here is None:
        raise LookupError("there is no run here; call it inside `with interaction(...)`")
    return here.run


class Interaction(Generic[C]):
    """Result of :func:`interaction`."""

    def __init__(self, client: C, user: str | None, run_id: str | None, owned: bool) -> None:
        self._client = client
        self._user = user
        self._joined = None if run_id is None else checked_text(run_id, "id")
        self._run_id = ""
        self._owned = owned
        self._async = inspect.iscoroutinefunction(client.post)

    def __enter__(self) -> Run[C]:
        if self._async:
            raise TypeError("the client is async: use `async with interaction(...)`")
        return self._begin(self._joined or self._open()["id"])

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._leaving(error):
            if self._owned:
                self._end(error)

    async def __aenter__(self) -> Run[C]:
        if not self._async:
            raise TypeError("the client is not async: use `with interaction(...)`")
        return self._begin(self._joined or (await self._open())["id"])

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._leaving(error):
            if self._owned:
                await self._end(error)

    def _open(self) -> Any:
        body = {} if self._user is None else {"user": self._user}
        return self._client.post("/interactions", body=body, cast_to=object)

    def _begin(self, run_id: str) -> Run[C]:
        self._run_id = run_id
        run = Run(self._client, run_id, self._user)
        _here.set(_Place(run, None, _here.get()))
        return run

    def _end(self, error: BaseException | None) -> Any:
        path = f"/interactions/{quote(self._run_id, safe='')}"
        if error is None:
            return self._client.post(f"{path}/close", cast_to=object)
        quick = {"timeout": CANCEL_S, "max_retries": 0}
        return self._client.delete(path, cast_to=object, options=quick)

    @contextmanager
    def _leaving(self, error: BaseException | None) -> Iterator[None]:
        """Add a note to the block's error if its run could not be cancelled."""
        _leave()
        try:
            yield
        except Exception as failure:
            if getattr(failure, "code", None) in ENDED:
                return
            if error is None:
                raise
            error.add_note(f"the run could not be cancelled: {type(failure).__name__}")


def event_hooks() -> dict[str, list[Callable[[Any], Any]]]:
    """Return event hooks for an ``httpx`` client, sync or async, that name the context's run and agent.

    Use ``openai.DefaultHttpxClient(event_hooks=event_hooks())`` where an HTTP client is expected.
    """
    return {"request": [add_headers], "response": [note_answer]}


def add_headers(request: Any) -> Awaitable[None]:
    """Add the context's headers to a request; headers that it already has are kept."""
    here = _here.get()
    if here is not None and request.headers.get(RUN_HEADER, here.run.id) == here.run.id:
        for name, value in here.headers().items():
            request.headers.setdefault(name, value)
    return _Done()


def note_answer(response: Any) -> Awaitable[None]:
    """Record an answered call of the context's agent, for agents that follow it."""
    here, headers = _here.get(), response.headers
    if here is not None and response.is_success and headers.get(RUN_HEADER) == here.run.id:
        here.note(headers.get(CALL_HEADER))
    return _Done()


class _Done:
    """Awaitable for async clients, ignored by others."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


def _calls_of(each: str | Agent) -> list[str]:
    """Return all calls of an agent; an agent without calls returns its predecessors."""
    if isinstance(each, Agent):
        return each.calls or each.parents() or []
    return [_call_id(each)]


def _call_id(call_id: str) -> str:
    if "," in call_id:
        raise ValueError(f"call id: is {call_id[:40]!r}; it has no comma")
    return checked_text(call_id, "call id")
