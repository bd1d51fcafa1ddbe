"""Check a request and turn it into a call: its model found, its prompt counted, its run identified.

Nothing here has a side effect: a request that is wrong leaves no trace but its answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairserve.engine.wire.reported_usage import MAX_TOKENS, UsageBounds, prompt_bound
from fairserve.engine.wire.request_fields import SERVER_KINDS
from fairserve.interactions.call import Call, ServiceTier, client_id
from fairserve.interactions.run_rules import DEFAULT_RUN_RULES, Clue, RunRule
from fairserve.interactions.tracking.conversation import Conversation
from fairserve.interactions.tracking.identity import (
    TRACEPARENT,
    CallIdentity,
    IdentityError,
    OtherSources,
    client_run_id,
    core_call_id,
    core_run_id,
    identify,
)
from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.base.errors import (
    ContextLengthError,
    InvalidRequestError,
    UnavailableError,
)
from fairserve.platform.base.request_facts import from_proxy, name_call
from fairserve.platform.control.messages import (
    Attached,
    CallSource,
    Submit,
)
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.base import new_id
from fairserve.platform.fleet.models import Models, ServedModel
from fairserve.platform.fleet.prompts.reader import Prompt, PromptTooLongError
from fairserve.platform.serving.decision.end_user import user_in_headers
from fairserve.platform.serving.decision.request import CallRequest
from fairserve.platform.serving.settings import CacheIsolation
from fairserve.platform.tenancy.auth import Principal

RETRY_HEADER = "x-stainless-retry-count"
MAX_TRACEPARENT_CHARS = 128
"""Characters kept of a trace context, which has 55 today; a longer one is cut, and then invalid."""
ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_", "embd-", "rerank-")
"""Prefixes of answers' ids; the id of the call follows."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The server's settings for every request."""

    default_max_tokens: int = 256
    cache_isolation: CacheIsolation = "tenant"
    run_rules: Collection[RunRule] = DEFAULT_RUN_RULES
    """Rules of the apps that choose none."""


@dataclass(slots=True)
class CheckedCall:
    """A call that can be submitted to control, and its ids."""

    message: Submit
    """The message for control, with the core's call."""
    call_id: str
    """Id of the call, as the client knows it; the ledger's where the client chose none."""
    model: ServedModel
    answer_name: str
    """Name of the model in the answer."""
    size_field: str = "max_tokens"
    """Name of the field that makes the call smaller, for error messages."""
    conversation: Conversation | None = None
    """Chat history of a call whose run or parents may be inferred, or that others may continue."""
    continues: bool = False
    """True if the call follows one that its client did not name, in a run that may have ended."""
    attached: Attached | None = None
    """Place of the call in its run, once control has it."""
    prompt_bound: int = MAX_TOKENS
    """Largest count of the prompt by a worker that is believed."""
    call: Call = field(init=False)
    """The core's call."""

    def __post_init__(self) -> None:
        self.call = self.message.call

    @property
    def record_id(self) -> str:
        """Return the id of the call in the ledger."""
        return self.message.record_id

    @property
    def usage_bounds(self) -> UsageBounds:
        """Return what the call can have used at most."""
        return UsageBounds(self.prompt_bound, self.call.samples * self.call.max_output_tokens)

    def begin_new_run(self) -> None:
        """Make the call the root of a new run."""
        self.continues = False
        run = core_run_id(self.call.app, new_id("run"))
        call_id = core_call_id(run, self.call_id)
        self.call = replace(self.call, call_id=call_id, interaction_id=run, parents=(), clues=())
        self.message = replace(self.message, call=self.call)

    @property
    def run_id(self) -> str:
        """Return the id of the run, as the client knows it; control may find it at the submission."""
        run = self.call.interaction_id if self.attached is None else self.attached.interaction_id
        return client_run_id(self.call.app, run)


async def check(
    request: CallRequest, models: Models, options: CheckOptions, runs: ControlService
) -> CheckedCall:
    """Return the call of a request. Raises a FairServeError that names the field that is wrong.

    A call that names no user, in its body or in a header, belongs to the user of its run, else to the
    app itself.
    """
    app, size_bytes = request.principal.app_id or "", len(request.raw) + request.continued_bytes
    identity = request.identity or _identity(request, options)
    conversation = None
    named = identity.run_id is not None
    if request.messages is not None and (named or identity.answer_scopes):
        # Also for a call that names its run and parents: others may continue it.
        conversation = await off_loop(size_bytes, Conversation, request.messages)
    answer = () if conversation is None else conversation.last_answer
    user = request.user or user_in_headers(request.headers, request.principal.user_headers)
    if user is None:
        user = await _user_of_run(identity, app, runs)
        if user is None and identity.run_id is None:
            user = request.continued_user
    owner = (request.principal.tenant_id or "", app, user or app)
    if request.priority_if_granted and runs.priority_granted(*owner):
        request = replace(request, service_tier="priority")
    core_run = None
    if identity.run_id is not None:
        core_run = core_run_id(app, identity.run_id)
    elif _seeks_run(answer, identity.clues):
        core_run = runs.run_of(owner, identity.clues, answer)
    follows = core_run is not None and core_run == request.continued_run
    if follows and identity.parents is None and request.continued_call is not None:
        identity = replace(identity, parents=(request.continued_call,))
    else:
        follows = False
    checked = await _checked(request, identity, core_run, user, conversation, models, options)
    checked.continues = follows and identity.run_id is None
    return checked


def _seeks_run(answer: Sequence[int], clues: Sequence[Clue]) -> bool:
    """Return whether a call that names no run may continue one: after an answer, or by a clue."""
    return bool(answer) or any(clue.scope is None for clue in clues)


async def _user_of_run(identity: CallIdentity, app: str, runs: ControlService) -> str | None:
    """Return the user of the run that the call names or continues; None if it is not live."""
    run = None if identity.run_id is None else core_run_id(app, identity.run_id)
    if run is None:
        run = next((clue.run_id for clue in identity.clues if clue.run_id), None)
    if run is None:
        return None
    try:
        view = await runs.interaction(run)
    except UnavailableError:  # control adds the user
        return None
    return None if view is None else view.user


async def count(request: CallRequest, models: Models) -> Prompt:
    """Return the prompt of a request. Raises a FairServeError.

    The kinds of workers that the request needs are checked as for a call: a count is of a prompt that
    can be sent.
    """
    model = models.resolve(request.model, request.principal.app_id or "").model
    _able_kinds(request, model)
    return await _count(request, model)


def cache_salt(isolation: CacheIsolation, tenant: str, app: str, user: str, own: str | None) -> str:
    """Return the salt of a call's cached prefixes; ``own`` is the client's, within its domain.

    Prompts with different salts share no cached prefix, so that response times do not reveal what
    another domain has cached. vLLM allows 128 characters without a slash, so whatever is more than a
    tenant's id is hashed.
    """
    domains: dict[CacheIsolation, tuple[str, ...]] = {
        "none": (),
        "tenant": (tenant,),
        "app": (tenant, app),
        "user": (tenant, user),
    }
    domain = domains[isolation]
    if own is None and len(domain) < 2:
        return client_id(domain)
    text = client_id(domain if own is None else (*domain, f"={own}"))
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint_of(
    principal: Principal, endpoint: str, raw: bytes, headers: Mapping[str, str]
) -> str:
    """Return a hash that is equal for equal requests of one app, and different between apps.

    Of the headers, those that name a user count: equal bodies of two users are two requests.
    """
    users = "\n".join(headers.get(name, "") for name in principal.user_headers)
    digest = hashlib.sha256(f"{principal.app_id}\n{endpoint}\n{users}\n".encode())
    digest.update(raw)
    return digest.hexdigest()


def _identity(request: CallRequest, options: CheckOptions) -> CallIdentity:
    rules = request.principal.run_rules
    other = OtherSources(
        request.conversation,
        request.continued_run,
        request.prompt_cache_key,
        own_trace=not from_proxy(),
    )
    try:
        identity = identify(
            request.headers,
            request.metadata,
            options.run_rules if rules is None else rules,
            other,
        )
    except IdentityError as error:
        raise InvalidRequestError(str(error), param=error.source) from error
    if identity.parents is None:
        return identity
    return replace(identity, parents=tuple(_parent(parent) for parent in identity.parents))


def _parent(name: str) -> str:
    """Return the id of a parent, which may be named by the id of its answer."""
    for prefix in ANSWER_PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


async def _checked(
    request: CallRequest,
    identity: CallIdentity,
    core_run: str | None,
    user: str | None,
    conversation: Conversation | None,
    models: Models,
    options: CheckOptions,
) -> CheckedCall:
    principal = request.principal
    record_id = new_id("call")
    name_call(record_id)
    core_run = core_run or core_run_id(principal.app_id or "", new_id("run"))
    resolved = models.resolve(request.model, core_run)  # a run keeps its version of a split model
    model = resolved.model
    model.check_task(request.task)
    kinds = _able_kinds(request, model)
    prompt = await _count(request, model)
    limit = 0
    if request.task == "generate":
        limit = _output_limit(request, prompt, model, options.default_max_tokens)
    call_id = identity.call_id or record_id
    call = _call(request, identity, user, prompt, limit, core_run, call_id, options.cache_isolation)
    call.pool = model.base or model.worker_name
    call.adapter = model.worker_name if model.base else ""
    call.kinds, call.workers = kinds, model.among(request.workers)
    if conversation is not None:
        call.history = conversation.history
        call.answered_prompts = conversation.answered_prompts
        call.tool_results = conversation.tool_results
    bound = prompt_bound(
        call.prompt_tokens,
        model.context_tokens if request.task == "generate" else None,
        exact=prompt.exact,
        complete=not request.has_media,
    )
    return CheckedCall(
        await _message(request, call, record_id),
        call_id,
        model,
        resolved.answer_name,
        size_field="max_tokens" if request.task == "generate" else request.prompt_field,
        conversation=conversation,
        prompt_bound=bound,
    )


async def _message(request: CallRequest, call: Call, record_id: str) -> Submit:
    """Return the message for control, with a fingerprint where the client library counts retries."""
    traceparent = request.headers.get(TRACEPARENT, "")[:MAX_TRACEPARENT_CHARS]
    source = CallSource(request.endpoint, traceparent)
    retry, fingerprint = request.headers.get(RETRY_HEADER), ""
    if retry is not None:
        fingerprint = await off_loop(
            len(request.raw),
            fingerprint_of,
            request.principal,
            request.endpoint,
            request.raw,
            request.headers,
        )
    repeated = retry is not None and retry.strip() not in ("", "0")
    return Submit(call, record_id, fingerprint, repeated, source)


def _able_kinds(request: CallRequest, model: ServedModel) -> frozenset[str]:
    """Return the kinds of worker that can serve the request; empty: every kind.

    Raises InvalidRequestError naming a field that no worker of the model can honour. A model without
    workers may get workers of any kind.
    """
    able: frozenset[str] = SERVER_KINDS
    for demand in request.demands:
        able &= demand.kinds
        if not able & (model.kinds or SERVER_KINDS):
            raise InvalidRequestError(
                f"{demand.field}: the workers of {model.names[0]!r} ({model.shown_workers}) cannot"
                " honour it together with the other fields of this call; leave it out, or choose"
                " another model",
                param=demand.field,
                code="unsupported_parameter",
            )
    return frozenset() if able == SERVER_KINDS else able


async def _count(request: CallRequest, model: ServedModel) -> Prompt:
    """Count the prompt. Raises ContextLengthError early where it cannot fit the context."""
    answer_tokens = 1 if request.task == "generate" else 0
    most = model.context_tokens - answer_tokens if model.reader.exact else None
    try:
        return await request.count_tokens(model.reader, request.principal.tenant_id or "", most)
    except PromptTooLongError as error:
        raise _too_long(request, str(error), model.context_tokens) from error


def _too_long(request: CallRequest, tokens: str, context_tokens: int) -> ContextLengthError:
    return ContextLengthError(
        f"{request.prompt_field}: the prompt has {tokens}; the context is {context_tokens}, and the"
        " answer needs at least one",
        param=request.prompt_field,
    )


def _output_limit(
    request: CallRequest, prompt: Prompt, model: ServedModel, default_tokens: int
) -> int:
    """Return the output limit of one sample. Raises ContextLengthError naming the field.

    Where the count is an estimate, the worker decides what fits.
    """
    count, context_tokens = len(prompt.token_ids), model.context_tokens
    left = context_tokens - count
    if not prompt.exact:
        default_tokens, left = min(default_tokens, max(1, left)), max(1, context_tokens - 1)
    if left < 1:
        raise _too_long(request, f"{count} tokens", context_tokens)
    requested = request.max_output_tokens
    if requested is None:
        return min(default_tokens, left)
    if requested > left:
        raise ContextLengthError(
            f"{request.max_output_field} is {requested}; allowed: {left} (the context is"
            f" {context_tokens} tokens and the prompt has {count})",
            param=request.max_output_field,
        )
    return requested


def _tier(request: CallRequest) -> ServiceTier:
    """Return the tier of the call. Whether its app may have it is control's to decide."""
    priority = request.service_tier in ("priority", "fast")
    if request.background and priority:
        raise InvalidRequestError(
            f"service_tier is {request.service_tier!r}, but the call is a background call, whose tier is"
            " 'flex'; leave it out",
            param="service_tier",
            code="unsupported_parameter",
        )
    if request.background or request.service_tier == "flex":
        return "flex"
    return "priority" if priority else "default"


def _call(
    request: CallRequest,
    identity: CallIdentity,
    user: str | None,
    prompt: Prompt,
    limit: int,
    core_run: str,
    call_id: str,
    isolation: CacheIsolation,
) -> Call:
    """Return the core's call, whose ids have the app in front."""
    tenant, app = request.principal.tenant_id, request.principal.app_id
    assert tenant is not None, "only app keys make calls"
    assert app is not None, "only app keys make calls"
    tier = _tier(request)
    parents = identity.parents
    if parents is not None:
        parents = tuple(core_call_id(core_run, parent) for parent in parents)
    call = Call(
        call_id=core_call_id(core_run, call_id),
        tenant=tenant,
        app=app,
        user=user or app,
        interaction_id=core_run,
        model=request.model,
        input_tokens=prompt.input_tokens,
        system_tokens=prompt.system_tokens,
        max_output_tokens=limit,
        samples=request.samples,
        agent=identity.agent,
        parents=parents,
        clues=identity.clues,
        answer_scopes=identity.answer_scopes,
        run_rule=identity.rule or "",
        single=identity.run_id is None,
        final=identity.final,
        token_ids=prompt.token_ids,
        salt=cache_salt(isolation, tenant, app, user or app, request.cache_salt),
        background=tier == "flex",
        priority=tier == "priority",
        streamed=request.stream,
    )
    if request.declared is not None:
        call.declared = True
        call.declared_output_tokens = request.declared.expected_output_tokens
        call.remaining_tokens = request.declared.remaining_tokens
    return call
