"""Explain a rejection in sentences: the limit, the load, the state of its run, and the retry time.

The sentences use only fields of the event; a rejection before control has neither load nor run.
``REASONS`` has every reason that the core or control can produce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Literal, NamedTuple

from fairserve.platform.tuning.schemas import EventOut
from fairserve.throttling.quotas.contracts import MAX_ACCOUNTS


class Reason(NamedTuple):
    """Sentences for one reason."""

    text: str
    """Sentence with fields of the event in braces; ``without`` is used if one of these is null."""
    without: str
    load: Literal["cause", "any", "given", ""] = ""
    """Role of the load: ``cause``, ``any`` (no influence), ``given`` (context), or omitted."""
    spares_runs: bool = False
    """True if calls of an immune run in progress are never rejected for this reason."""
    retry: Literal["given", "period", "no"] = "given"
    """Retry in the response: after a time, at the end of the period, or none."""


_CALLS = "of {limit:,} calls within {window_s:g} s for {subject} was reached"
_BUDGET = (
    "The budget of this {holder} is {budget_limit}: {budget_spent} was spent, {budget_held} was reserved"
    " for running calls, and this call could cost up to {call_cost}."
)
_ROOM = "The budget of this {holder} did not cover the maximum cost of this call."

REASONS: Mapping[str, Reason] = {
    "user_blocked": Reason("", "An operator has blocked this user.", retry="no"),
    "model_not_allowed": Reason(
        "Its quota does not allow the model {model}.",
        "Its quota does not allow its model.",
        retry="no",
    ),
    **{
        f"rpm_{scope}_limit": Reason(
            f"The limit {_CALLS}: the call would have been accepted call number {{count:,}}.",
            f"The limit of calls for {subject} was reached.",
            load="any",
        )
        for scope, subject in (("user", "this user"), ("app", "the app as a whole"))
    },
    **{
        f"overloaded_{scope}_limit": Reason(
            f"The limit {_CALLS}: the call was number {{count:,}}, including rejected calls.",
            f"The limit of calls for {subject} was reached.",
            load="cause",
            spares_runs=True,
        )
        for scope, subject in (("user", "this user"), ("app", "the app as a whole"))
    },
    "overloaded_new_users_limit": Reason(
        "The limit of the app is runs of {limit:,} new users within {window_s:g} s: this user, without"
        " calls for a day, would have been number {count:,}.",
        "The app's limit of new users per minute was reached.",
        load="cause",
        spares_runs=True,
    ),
    "contract_rpm": Reason(
        "The quota of this {holder} is {limit:,} calls within {window_s:g} s: the call would have been"
        " number {count:,}.",
        "The calls per minute of this {holder}'s quota were used up.",
        load="any",
        spares_runs=True,
    ),
    "contract_tpm": Reason(
        "The quota of this {holder} is {limit:,} tokens within {window_s:g} s: with the prompt and the"
        " maximum output of this call, usage would have been {count:,}.",
        "The tokens per minute of this {holder}'s quota did not suffice for this call.",
        load="any",
        spares_runs=True,
    ),
    "contract_call_too_large": Reason(
        "The quota of this {holder} is {limit:,} tokens per minute, and the prompt and the maximum"
        " output of this call alone have {count:,}.",
        "This call alone has more tokens than the quota of this {holder} allows per minute.",
        retry="no",
    ),
    "contract_parallel": Reason(
        "The quota of this {holder} is {limit:,} parallel calls: the call would have been number"
        " {count:,}.",
        "All parallel calls of this {holder}'s quota were in use.",
        load="any",
    ),
    "contract_budget": Reason(_BUDGET, _ROOM, retry="period"),
    "contract_budget_held": Reason(
        f"{_BUDGET} It may fit once the running calls have cost less than their maximum.",
        f"{_ROOM} It may fit once the running calls have cost less than their maximum.",
    ),
    "contract_soft_budget": Reason(
        "The soft budget of this {holder} is {budget_limit}: {budget_spent} was spent, and beyond it new"
        " runs are rejected.",
        "The soft budget of this {holder} was exceeded, and beyond it new runs are rejected.",
        spares_runs=True,
        retry="period",
    ),
    "contract_too_many_users": Reason(
        "",
        f"The server's limit of {MAX_ACCOUNTS:,} budgets in use was reached before this {{holder}}'s.",
    ),
    "queue_full": Reason(
        "{count:,} calls were queued for its model; the limit is {limit:,}.",
        "The queue of its model was full.",
        load="given",
    ),
    "queue_share_full": Reason(
        "{count:,} calls of this {scope} were queued for its model; the limit is {limit:,}.",
        "This client's share of its model's queue was full.",
        load="given",
    ),
    "draining": Reason("", "The server was draining and accepted no new calls."),
}

_MONEY = ("budget_limit", "budget_spent", "budget_held", "call_cost")


def explain(event: EventOut, currency: str = "") -> list[str]:
    """Return one to four sentences on a rejection, the limit first. ``currency`` labels amounts."""
    reason = REASONS.get(event.reason)
    if reason is None:  # from a newer version
        reason = Reason("", "The call was rejected: {reason}.")
    sentences = (
        _limit(event, reason, currency),
        _load(event, reason),
        _run(event, reason),
        _retry(event, reason),
    )
    return [sentence for sentence in sentences if sentence]


def _limit(event: EventOut, reason: Reason, currency: str) -> str:
    known = {name: value for name, value in event.model_dump().items() if value is not None}
    known["holder"] = event.scope or "caller"
    known["subject"] = "this user" if event.scope == "user" else "the app as a whole"
    for name in _MONEY:
        if name in known:
            known[name] = _amount(known[name], currency)
    try:
        return (reason.text or reason.without).format(**known)
    except KeyError:
        return reason.without.format(**known)


def _amount(amount: Decimal, currency: str) -> str:
    text = f"{amount:,f}"
    whole, _, part = text.partition(".")
    part = part.rstrip("0").ljust(2, "0")
    return f"{whole}.{part} {currency}".rstrip()


def _load(event: EventOut, reason: Reason) -> str:
    demand, capacity = event.demand_tokens, event.capacity_tokens
    if not reason.load or demand is None or capacity is None:
        return "Its model was overloaded." if reason.load == "cause" else ""
    queued = f"{_number(event.queued_calls or 0, 'call')} in its queue"
    if capacity:
        asked = (
            f"the demand was {_percent(demand / capacity)} of its KV capacity"
            f" ({demand:,} of {capacity:,} tokens, {queued})"
        )
    else:
        asked = f"no worker accepted calls (the demand was {demand:,} tokens, {queued})"
    model = f"Its model was {'overloaded' if event.overloaded else 'not overloaded'}: {asked}"
    if reason.load == "any":
        return f"{model}; this limit applies at any load."
    if reason.load == "given" or event.high_watermark is None or event.low_watermark is None:
        return f"{model}."
    return (
        f"{model}; an overload begins at {_percent(event.high_watermark)} and ends at"
        f" {_percent(event.low_watermark)}, and until then new runs of clients over a limit are"
        " rejected."
    )


def _run(event: EventOut, reason: Reason) -> str:
    if event.under_way is None or event.run_calls is None or event.run_tokens is None:
        return "Its run was in progress." if event.mid_run else ""
    if not event.under_way:
        return "Its run was not in progress: the call would have been its first."
    so_far = f"{_number(event.run_calls, 'call')} and {_number(event.run_tokens, 'token')}"
    if not reason.spares_runs or event.immune:
        return f"Its run was in progress with {so_far}, which does not matter for this limit."
    if event.expected_calls is None or event.expected_tokens is None or not event.immunity_factor:
        return f"Its run was in progress with {so_far} and was no longer immune."
    factor = event.immunity_factor
    most = factor * event.expected_calls, factor * event.expected_tokens
    if event.run_calls < most[0] and event.run_tokens <= most[1]:
        return (
            f"Its run was in progress with {so_far} and was no longer immune: it had been idle for"
            " longer than the runs of its app usually are, and had lost its place."
        )
    return (
        f"Its run was in progress with {so_far} and was no longer immune: immunity ends at"
        f" {event.immunity_factor:g} times the app's longest usual run, which is"
        f" {event.expected_calls:,g} calls or {event.expected_tokens:,.0f} tokens."
    )


def _retry(event: EventOut, reason: Reason) -> str:
    if reason.retry == "no":
        return "A retry does not help, so the response had no Retry-After."
    if event.retry_after_s is None:
        return ""
    if reason.retry == "period":
        begins = event.at + timedelta(seconds=event.retry_after_s + 0.5)
        return (
            f"The next period begins at {begins:%Y-%m-%d %H:%M} UTC, the time of Retry-After in the"
            " response."
        )
    return f"The client may retry after {max(1, math.ceil(event.retry_after_s)):,} s."


def _percent(share: float) -> str:
    return f"{100 * share:,.0f} %"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
