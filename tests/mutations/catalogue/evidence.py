"""Bugs of the evidence about the product: metrics, comparisons, states of reports, the demo."""

from __future__ import annotations

from catalogue.mutation import Mutation

_ENTITLEMENT = ("tests/unit/benchmarks/reproduce/test_entitlement.py",)
_HEADLINE = ("tests/unit/benchmarks/reproduce/test_headline.py",)
_ABLATION = ("tests/unit/benchmarks/reproduce/test_ablation.py",)
_STATES = ("tests/unit/benchmarks/evidence",)
_DEMO = ("tests/unit/benchmarks/demo",)

EVIDENCE = (
    Mutation(
        "water-filling-knows-no-weights",
        "evidence",
        "scheduling/metrics.py",
        "shares[client] = min(demands[client], total * weight[client] / left)",
        "shares[client] = min(demands[client], total / (len(demands) - len(shares)))",
        _ENTITLEMENT,
    ),
    Mutation(
        "more-than-the-entitlement-satisfies-more",
        "evidence",
        "scheduling/metrics.py",
        "client: min(1.0, served.get(client, 0.0) / share) if share > 0 else 1.0",
        "client: served.get(client, 0.0) / share if share > 0 else 1.0",
        _ENTITLEMENT,
    ),
    Mutation(
        "entitlement-is-that-of-the-best-client",
        "evidence",
        "benchmarks/reproduce/entitlement.py",
        'total = max(sum(each["typical_calls_per_s"].values()) for each in of_systems)',
        'total = max(max(each["typical_calls_per_s"].values()) for each in of_systems)',
        _ENTITLEMENT,
    ),
    Mutation(
        "tokens-count-in-place-of-typical-calls",
        "evidence",
        "benchmarks/reproduce/entitlement.py",
        "typical = _WEIGHTS.typical_call(self._profiles[call.app], call.stage)",
        "typical = 1000.0",
        _ENTITLEMENT,
    ),
    Mutation(
        "nobody-dominates",
        "evidence",
        "benchmarks/reproduce/default/headline.py",
        "return work > 1 / _WORK or least > EQUAL or tail < 1 / _TAIL",
        "return work > 1 / _WORK and least > EQUAL and tail < 1 / _TAIL",
        _HEADLINE,
    ),
    Mutation(
        "every-mechanism-earns-its-place",
        "evidence",
        "benchmarks/reproduce/default/ablation.py",
        "if min(each) > 0.0",
        "if max(each) > 0.0",
        _ABLATION,
    ),
    Mutation(
        "stale-report-is-accepted",
        "evidence",
        "benchmarks/evidence/command.py",
        'self.state == "stale" or (self.state == "missing" and not self.evidence.needs)',
        'self.state == "missing" and not self.evidence.needs',
        _STATES,
    ),
    Mutation(
        "report-of-fewer-seeds-is-fresh",
        "evidence",
        "benchmarks/evidence/command.py",
        "read_origin(document) == now",
        "getattr(read_origin(document), 'short_cases', '') == now.short_cases",
        _STATES,
    ),
    Mutation(
        "demo-is-fast-by-what-it-refuses",
        "evidence",
        "benchmarks/demo/system_run.py",
        'if call.first_token_s is not None or call.outcome != "completed"  # not streamed',
        "if call.first_token_s is not None",
        _DEMO,
    ),
)
