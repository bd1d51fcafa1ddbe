"""From an HTTP body to a call that can be submitted: checked, identified, tokenised.

Nothing here has a side effect: a request that is wrong leaves no trace but its answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from pydantic import ValidationError

from fairserve.engine.wire.base import CompletionPath, WorkerRequest
from fairserve.engine.wire.request_fields import SERVER_KINDS, RequestFieldError, demands
from fairserve.interactions.call import Call, client_id
from fairserve.interactions.conversation import Conversation
from fairserve.interactions.identity import (
    CallIdentity,
    IdentityError,
    core_call_id,
    core_run_id,
    identify,
)
from fairserve.platform.base.errors import (
    BodyTooLargeError,
    ContextLengthError,
    InvalidRequestError,
)
from fairserve.platform.control.messages import Grant, Submit
from fairserve.platform.db.base import new_id
from fairserve.platform.fleet.models import Models, ServedModel
from fairserve.platform.fleet.prompt import Prompt, PromptTooLongError
from fairserve.platform.serving.completions.schemas import (
    ChatBody,
    CompletionBody,
    TextBody,
    invalid,
)
from fairserve.platform.serving.settings import CacheIsolation
from fairserve.platform.tenancy.auth import Principal

INLINE_BODY_BYTES = 64 * 1024
"""Longer bodies are parsed and hashed in a thread."""
RETRY_HEADER = "x-stainless-retry-count"


@dataclass(slots=True)
class PreparedCall:
    """A call, what its worker gets, and how its client wants the answer."""

    path: CompletionPath
    call: Call
    record_id: str
    run_id: str
    """The client's id of the run."""
    call_id: str
    """The client's id of the call; ours where it chose none."""
    body: Mapping[str, Any]
    """The request, of which its worker gets what it honours."""
    model: ServedModel
    answer_name: str
    """The model's name in the answer."""
    stream: bool
    include_usage: bool
    continuous_usage: bool = False
    fingerprint: str = ""
    """Equal for equal requests, of a call whose client library may repeat it."""
    repeated: bool = False
    """The client library says that it sends this again."""
    conversation: Conversation | None = None
    """Of a call whose parents are inferred."""

    @property
    def answer_id(self) -> str:
        """The id of the answer, which may be named as a parent."""
        prefix = "chatcmpl-" if self.path == "/v1/chat/completions" else "cmpl-"
        return prefix + self.call_id

    def submit(self) -> Submit:
        """The message for control."""
        return Submit(
            call=self.call,
            record_id=self.record_id,
            fingerprint=self.fingerprint,
            user_agent_retry=self.repeated,
        )

    def worker_request(self, grant: Grant) -> WorkerRequest:
        """The request for the granted worker."""
        return WorkerRequest(
            path=self.path,
            body=self.body,
            call_id=self.record_id,
            client_id=grant.client_id,
            tenant=self.call.tenant,
            weight=grant.weight,
            cache_salt=self.call.salt,
            token_ids=self.call.token_ids,
            max_output_tokens=self.call.max_output_tokens,
            expected_output_tokens=grant.expected_output_tokens,
        )


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """What the server's settings say about every request."""

    default_max_tokens: int = 256
    cache_isolation: CacheIsolation = "tenant"
    infer_parents: bool = True
    run_from_traceparent: bool = False


def cache_salt(isolation: CacheIsolation, tenant: str, app: str, user: str, own: str | None) -> str:
    """Prompts with different salts share no cached prefix; ``own`` is the client's, within those.

    Isolated, nobody learns from timings what another one has cached.
    """
    domains: dict[CacheIsolation, tuple[str, ...]] = {
        "none": (),
        "tenant": (tenant,),
        "app": (tenant, app),
        "user": (tenant, user),
    }
    domain = domains[isolation]
    return client_id(domain if own is None else (*domain, f"={own}"))


UserOf = Callable[[str], Awaitable[str | None]]
"""Whose a live run is; None for one that is not live."""


async def prepare(
    path: CompletionPath,
    raw: bytes,
    headers: Mapping[str, str],
    principal: Principal,
    models: Models,
    options: PrepareOptions,
    user_of: UserOf,
) -> PreparedCall:
    """Read a request. Raises a FairServeError that names the field that is wrong.

    A call that names no user is its run's user's (``user_of`` by the core's id), else the app's own.
    """
    plain, body = await off_loop(len(raw), _parse, path, raw, models)
    try:
        identity = identify(headers, body.metadata, traceparent=options.run_from_traceparent)
    except IdentityError as error:
        raise InvalidRequestError(str(error), param=error.source) from error
    if identity.parents is not None:
        parents = tuple(_parent(parent) for parent in identity.parents)
        identity = replace(identity, parents=parents)
    if body.user is None and identity.run_id is not None:
        body.user = await user_of(core_run_id(principal.app_id or "", identity.run_id))
    prepared = await prepare_call(path, plain, body, identity, principal, models, options)
    retry = headers.get(RETRY_HEADER)
    if retry is not None:
        prepared.fingerprint = await off_loop(len(raw), fingerprint_of, principal, path, raw)
        prepared.repeated = retry.strip() not in ("", "0")
    infer = options.infer_parents and identity.run_id is not None
    if infer and isinstance(body, ChatBody):
        # Also of a call that names its parents: others may continue it.
        conversation = await off_loop(len(raw), Conversation, plain["messages"])
        prepared.call.history = conversation.history
        prepared.call.tool_results = conversation.tool_results
        prepared.conversation = conversation
    return prepared


async def prepare_call(
    path: CompletionPath,
    plain: dict[str, Any],
    body: CompletionBody,
    identity: CallIdentity,
    principal: Principal,
    models: Models,
    options: PrepareOptions,
) -> PreparedCall:
    """A request that was read: its model found, tokenised, limited. Raises a FairServeError.

    ``plain``, the request as it came, becomes what goes to the worker.
    """
    record_id = new_id("call")
    # A run stays with its version of a split; a call without a run is one of its own.
    key = identity.run_id or identity.call_id or record_id
    resolved = models.resolve(body.model, core_run_id(principal.app_id or "", key))
    model = resolved.model
    kinds = _able_kinds(body, model)
    prompt = await _read_prompt(model, body, plain, principal.tenant_id or "")
    limit = _output_limit(body, prompt, model, options.default_max_tokens)
    plain["model"] = model.worker_name
    if body.asked_tokens is None:
        plain["max_tokens"] = limit
    call, run_id, call_id = _call(
        principal, body, identity, prompt, limit, record_id, options.cache_isolation
    )
    call.pool, call.kinds = model.worker_name, kinds
    return PreparedCall(
        path=path,
        call=call,
        record_id=record_id,
        run_id=run_id,
        call_id=call_id,
        body=plain,
        model=model,
        answer_name=resolved.answer_name,
        stream=bool(body.stream),
        include_usage=body.include_usage,
        continuous_usage=body.continuous_usage,
    )


def read_body(path: CompletionPath, plain: Mapping[str, Any]) -> CompletionBody:
    """Check the fields of a request. Raises InvalidRequestError naming the first that is wrong."""
    kind = ChatBody if path == "/v1/chat/completions" else TextBody
    try:
        body = kind.model_validate(plain)
        body.demands.extend(demands(path, plain))
    except ValidationError as error:
        raise invalid(error) from error
    except RequestFieldError as error:
        raise InvalidRequestError(str(error), param=error.field, code=error.code) from error
    return body


def _able_kinds(body: CompletionBody, model: ServedModel) -> frozenset[str]:
    """Return the kinds of worker that can serve the request; empty: every kind.

    Raises InvalidRequestError naming a field that no worker of the model can honour. Kinds are of no
    matter while the model has no worker: one that can may come.
    """
    able: frozenset[str] = SERVER_KINDS
    for demand in body.demands:
        able &= demand.kinds
        if not able & (model.kinds or SERVER_KINDS):
            raise InvalidRequestError(
                f"{demand.field}: the workers of {model.names[0]!r} cannot honour it together with"
                " the other fields of this call; leave it out, or choose another model",
                param=demand.field,
                code="unsupported_parameter",
            )
    return frozenset() if able == SERVER_KINDS else able


def fingerprint_of(principal: Principal, path: str, raw: bytes) -> str:
    """Equal for equal requests of one app, and never for those of different apps."""
    digest = hashlib.sha256(f"{principal.app_id}\n{path}\n".encode())
    digest.update(raw)
    return digest.hexdigest()


def _parse(
    path: CompletionPath, raw: bytes, models: Models
) -> tuple[dict[str, Any], CompletionBody]:
    try:
        plain = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the body is not JSON: {error}", code="malformed_json"
        ) from error
    if not isinstance(plain, dict):
        raise InvalidRequestError("the body must be a JSON object", code="malformed_json")
    _check_size(len(raw), plain.get("model"), models)
    return plain, read_body(path, plain)


def _check_size(size_bytes: int, model: Any, models: Models) -> None:
    """Before the fields are checked, which takes longer than parsing. Raises BodyTooLargeError."""
    limit = models.max_body_bytes_of(model) if isinstance(model, str) else None
    if limit is not None and size_bytes > limit:
        raise BodyTooLargeError(
            f"the body has {size_bytes} bytes; allowed for {model!r}: {limit}, which is more than its"
            " context holds"
        )


async def off_loop(size: int, work: Any, *arguments: Any) -> Any:
    """Run small work at once and large work in a thread."""
    if size <= INLINE_BODY_BYTES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


async def _read_prompt(
    model: ServedModel, body: CompletionBody, plain: dict[str, Any], tenant: str
) -> Prompt:
    """Tokenise. Raises ContextLengthError at once where the prompt cannot fit the context."""
    most = model.context_tokens - 1 if model.reader.exact else None
    try:
        if isinstance(body, ChatBody):
            messages = plain["messages"]
            return await model.reader.chat(messages, body.tools, tenant=tenant, max_tokens=most)
        assert isinstance(body, TextBody)
        plain["prompt"] = body.only_prompt
        return await model.reader.text(body.only_prompt, tenant=tenant, max_tokens=most)
    except PromptTooLongError as error:
        raise _too_long(body, str(error), model.context_tokens) from error


def _too_long(body: CompletionBody, tokens: str, context_tokens: int) -> ContextLengthError:
    field = "messages" if isinstance(body, ChatBody) else "prompt"
    return ContextLengthError(
        f"{field}: the prompt has {tokens}; the context is {context_tokens}, and the answer needs at"
        " least one",
        param=field,
    )


def _output_limit(
    body: CompletionBody, prompt: Prompt, model: ServedModel, default_tokens: int
) -> int:
    """The output limit of one sample. Raises ContextLengthError naming what is too long.

    Where the count is an estimate the worker decides what fits.
    """
    count, context_tokens = len(prompt.token_ids), model.context_tokens
    room = context_tokens - count
    if not prompt.exact:
        default_tokens, room = min(default_tokens, max(1, room)), max(1, context_tokens - 1)
    if room < 1:
        raise _too_long(body, f"{count} tokens", context_tokens)
    asked = body.asked_tokens
    if asked is None:
        return min(default_tokens, room)
    if asked > room:
        raise ContextLengthError(
            f"{body.asked_field} is {asked}; allowed: {room} (the context is {context_tokens}"
            f" tokens and the prompt has {count})",
            param=body.asked_field,
        )
    return asked


def _call(
    principal: Principal,
    body: CompletionBody,
    identity: CallIdentity,
    prompt: Prompt,
    limit: int,
    record_id: str,
    isolation: CacheIsolation,
) -> tuple[Call, str, str]:
    """The core's call, and the client's ids of run and call."""
    tenant, app = principal.tenant_id, principal.app_id
    assert tenant is not None, "only app keys make calls"
    assert app is not None, "only app keys make calls"
    single = identity.run_id is None
    run_id = identity.run_id or new_id("run")
    call_id = identity.call_id or record_id
    core_run = core_run_id(app, run_id)
    parents = identity.parents
    if parents is not None:
        parents = tuple(core_call_id(core_run, parent) for parent in parents)
    user = body.user or app
    call = Call(
        call_id=core_call_id(core_run, call_id),
        tenant=tenant,
        app=app,
        user=user,
        interaction_id=core_run,
        model=body.model,
        input_tokens=prompt.input_tokens,
        system_tokens=prompt.system_tokens,
        max_output_tokens=limit,
        samples=body.n or 1,
        agent=identity.agent,
        parents=parents,
        single=single,
        final=identity.final,
        token_ids=prompt.token_ids,
        salt=cache_salt(isolation, tenant, app, user, body.cache_salt),
    )
    return call, run_id, call_id


def _parent(name: str) -> str:
    """Parents may be named by the ids of their answers, too."""
    return name.removeprefix("chatcmpl-").removeprefix("cmpl-")
