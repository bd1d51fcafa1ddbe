"""Bugs of what operators read: logs, audit entries of failed keys, metrics."""

from __future__ import annotations

from catalogue.mutation import Mutation

_ACCESS = ("tests/integration/test_access_log.py",)
_METRICS = ("tests/integration/test_metrics.py",)
_LOGS = ("tests/unit/platform/server/test_logs.py",)

OPERATING = (
    Mutation(
        "worker-gets-no-id-of-the-call",
        "operating",
        "engine/wire/client.py",
        '            "x-request-id": request.call_id,\n',
        "",
        _ACCESS,
    ),
    Mutation(
        "log-line-of-a-call-has-another-id-than-its-answer",
        "operating",
        "platform/serving/decision/check.py",
        "    name_call(record_id)\n",
        "",
        _ACCESS,
    ),
    Mutation(
        "access-log-has-the-ids-of-the-path",
        "operating",
        "platform/server/http/access_log.py",
        'scope["path"] if route is None else route',
        'scope["path"]',
        _ACCESS,
    ),
    Mutation(
        "failed-attempt-is-not-logged",
        "operating",
        "platform/serving/completions/relay.py",
        "        self._log(error)\n        release = ",
        "        release = ",
        _ACCESS,
    ),
    Mutation(
        "key-in-an-error-is-logged",
        "operating",
        "platform/server/logs.py",
        'return _KEY.sub("[key]", line)',
        "return line",
        _LOGS,
    ),
    Mutation(
        "line-break-in-a-message-begins-another-line",
        "operating",
        "platform/server/logs.py",
        "    if text.isprintable():\n        return text\n",
        "    if text:\n        return text\n",
        _LOGS,
    ),
    Mutation(
        "every-failed-key-has-an-entry",
        "operating",
        "platform/tenancy/failed_keys.py",
        "        if self._entries.count(block, now_s):\n            return None\n",
        "",
        ("tests/integration/test_failed_keys.py",),
    ),
    Mutation(
        "wrong-sign-in-is-audited-twice",
        "operating",
        "platform/console/sign_in.py",
        "authenticate(key, audited=False)",
        "authenticate(key)",
        ("tests/integration/test_failed_keys.py",),
    ),
    Mutation(
        "anybody-reads-the-metrics",
        "operating",
        "platform/server/metrics/endpoints.py",
        '@router.get("/metrics", dependencies=[Depends(require_admin)])',
        '@router.get("/metrics")',
        _METRICS,
    ),
    Mutation(
        "every-path-is-a-label",
        "operating",
        "platform/server/http/access_log.py",
        'self._on_request(scope["method"], route, status)',
        'self._on_request(scope["method"], route or scope["path"], status)',
        _METRICS,
    ),
    Mutation(
        "cached-tokens-count-as-prompt-twice",
        "operating",
        "platform/monitoring/call_metrics.py",
        'self._tokens[model, "prompt"] += call.usage.prompt_tokens',
        'self._tokens[model, "prompt"] += call.usage.prompt_tokens + call.usage.cached_tokens',
        _METRICS,
    ),
    Mutation(
        "share-of-the-others-is-missing",
        "operating",
        "platform/monitoring/client_shares.py",
        "            max(0.0, 1.0 - sum(each.entitled for each in top.values())) if others else 0.0,\n",
        "            0.0,\n",
        ("tests/unit/platform/monitoring/test_client_shares.py",),
    ),
)
