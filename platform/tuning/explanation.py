"""A refusal in plain words: which limit it was, what the load was, where its run stood, what was told.

Sentences say only what the event has: one from before revision 12 knows neither load nor run, and has
fewer. Every reason that the core or control can give is in ``REASONS``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Literal, NamedTuple

from fairserve.platform.tuning.schemas import EventOut
from fairserve.throttling.contracts import MAX_ACCOUNTS


class Reason(NamedTuple):
    """What is said of one reason."""

    text: str
    """With fields of the event in braces; ``without`` where one of these is null."""
    without: str
    load: Literal["cause", "any", "told", ""] = ""
    """It refuses because of the load, whatever the load is, beside it; or the load is not told."""
    spares_runs: bool = False
    """It does not refuse calls of a run that is under way and immune."""
    retry: Literal["told", "period", "no"] = "told"
    """What the client was told: a time, the period's end, or nothing."""


_CALLS = "of {limit:,} calls within {window_s:g} s for {whom} was reached"
_BUDGET = (
    "The budget of this {holder} is {budget_limit}: {budget_spent} was spent and {budget_held} held for"
    " calls under way, and this call might have cost {call_cost}."
)
_ROOM = "The budget of this {holder} had no room for what this call might have cost."

REASONS: Mapping[str, Reason] = {
    "user_blocked": Reason("", "An operator has blocked this user.", retry="no"),
    "model_not_allowed": Reason(
        "A contract that it falls under does not allow the model {model}.",
        "A contract that it falls under does not allow its model.",
        retry="no",
    ),
    **{
        f"rpm_{scope}_limit": Reason(
            f"The limit {_CALLS}: this would have been accepted call number {{count:,}}.",
            f"The limit of calls for {whom} was reached.",
            load="any",
        )
        for scope, whom in (("user", "this user"), ("app", "the app as a whole"))
    },
    **{
        f"overloaded_{scope}_limit": Reason(
            f"The limit {_CALLS}: this was call number {{count:,}}; refused calls count, too.",
            f"The limit of calls for {whom} was reached.",
            load="cause",
            spares_runs=True,
        )
        for scope, whom in (("user", "this user"), ("app", "the app as a whole"))
    },
    "overloaded_new_users_limit": Reason(
        "The app may begin runs of {limit:,} new users within {window_s:g} s: this would have been"
        " number {count:,}, and the app had not shown this user for a day.",
        "As many new users as the app may show within a minute had begun runs.",
        load="cause",
        spares_runs=True,
    ),
    "contract_rpm": Reason(
        "A contract allows this {holder} {limit:,} calls within any {window_s:g} s: this would have been"
        " number {count:,}.",
        "The calls a minute that a contract allows this {holder} were used up.",
        load="any",
        spares_runs=True,
    ),
    "contract_tpm": Reason(
        "A contract allows this {holder} {limit:,} tokens within any {window_s:g} s: with the prompt and"
        " the longest answer of this call they would have been {count:,}.",
        "The tokens a minute that a contract allows this {holder} did not suffice for this call.",
        load="any",
        spares_runs=True,
    ),
    "contract_call_too_large": Reason(
        "A contract allows this {holder} {limit:,} tokens a minute, and the prompt and the longest"
        " answer of this call alone have {count:,}.",
        "This call alone has more tokens than a contract allows this {holder} a minute.",
        retry="no",
    ),
    "contract_parallel": Reason(
        "A contract allows this {holder} {limit:,} calls at a time: this would have been number"
        " {count:,}.",
        "All calls at a time that a contract allows this {holder} were under way.",
        load="any",
    ),
    "contract_budget": Reason(_BUDGET, _ROOM, retry="period"),
    "contract_budget_held": Reason(
        f"{_BUDGET} It would fit if those calls cost less than they may.",
        f"{_ROOM} It would fit if the calls under way cost less than they may.",
    ),
    "contract_soft_budget": Reason(
        "The soft end of the budget of this {holder} is {budget_limit}: {budget_spent} was spent, and"
        " beyond it no new run begins.",
        "The budget of this {holder} has passed its soft end, beyond which no new run begins.",
        spares_runs=True,
        retry="period",
    ),
    "contract_too_many_users": Reason(
        "",
        f"The server keeps accounts of {MAX_ACCOUNTS:,} budgets, and this {{holder}} had none of them.",
    ),
    "queue_full": Reason(
        "{count:,} calls were waiting for its model; allowed: {limit:,}.",
        "As many calls were waiting for its model as may.",
        load="told",
    ),
    "queue_share_full": Reason(
        "{count:,} calls of this {scope} were waiting for its model; allowed: {limit:,}.",
        "As many calls of this client were waiting for its model as may.",
        load="told",
    ),
    "draining": Reason("", "The server was stopping and took no new calls."),
}

_MONEY = ("budget_limit", "budget_spent", "budget_held", "call_cost")


def explain(event: EventOut, currency: str = "") -> list[str]:
    """One to four sentences on a refusal, the limit first. ``currency`` is the label of amounts."""
    reason = REASONS.get(event.reason)
    if reason is None:  # of a newer version
        reason = Reason("", "The call was refused: {reason}.")
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
    known["whom"] = "this user" if event.scope == "user" else "the app as a whole"
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
            f"{_percent(demand / capacity)} of its KV capacity was asked for"
            f" ({demand:,} of {capacity:,} tokens, {queued})"
        )
    else:
        asked = f"no worker took its calls ({demand:,} tokens were asked for, {queued})"
    model = f"Its model was {'overloaded' if event.overloaded else 'not overloaded'}: {asked}"
    if reason.load == "any":
        return f"{model}; this limit holds whatever the load is."
    if reason.load == "told" or event.high_watermark is None or event.low_watermark is None:
        return f"{model}."
    return (
        f"{model}; an overload begins at {_percent(event.high_watermark)} and ends at"
        f" {_percent(event.low_watermark)}, and meanwhile who is over a limit begins no new run."
    )


def _run(event: EventOut, reason: Reason) -> str:
    if event.under_way is None or event.run_calls is None or event.run_tokens is None:
        return "Its run was under way." if event.mid_run else ""
    if not event.under_way:
        return "Its run was not under way: this would have been its first call."
    so_far = f"{_number(event.run_calls, 'call')} and {_number(event.run_tokens, 'token')}"
    if not reason.spares_runs or event.immune:
        return f"Its run was under way with {so_far}, which does not count here."
    if event.expected_calls is None or event.expected_tokens is None or not event.immunity_factor:
        return f"Its run was under way with {so_far}, and no longer immune."
    return (
        f"Its run was under way with {so_far}, and no longer immune: that ends at"
        f" {event.immunity_factor:g} times the app's longest usual run,"
        f" {event.expected_calls:,g} calls or {event.expected_tokens:,.0f} tokens."
    )


def _retry(event: EventOut, reason: Reason) -> str:
    if reason.retry == "no":
        return "The client was told no time after which to try again."
    if event.retry_after_s is None:
        return ""
    if reason.retry == "period":
        begins = event.at + timedelta(seconds=event.retry_after_s + 0.5)
        return (
            f"The next period begins at {begins:%Y-%m-%d %H:%M} UTC; the client was told not to try"
            " again before."
        )
    return f"The client was told to come again in {max(1, math.ceil(event.retry_after_s)):,} s."


def _percent(share: float) -> str:
    return f"{100 * share:,.0f} %"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
