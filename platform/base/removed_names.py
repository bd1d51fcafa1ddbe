"""Names of settings that were removed, each with what replaces it.

A server that is started with one of them does not start: silently ignored, a removed limit would no
longer protect, and a removed switch would be on again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LABORATORY_PARAMETER = (
    "the server uses the system's value; only `fairserve simulate --set` sets another"
)
"""Replacement of each parameter that operators could set before, by the name that it still has there."""

_KEPT_DAYS = "content_retention_days is the retention of programs, responses, batches and files"
_OF_APPS = "each app chooses its {} (docs/guide/apps.md)"
_PARAMETER = "it is a parameter of the system: --set {}=VALUE, or /admin/throttling"


def _always(value: str) -> str:
    return f"the server always uses {value}"


_REPLACED = {
    # The data plane Envoy. A server that had TLS would serve plain HTTP at the same address.
    "data_plane": "the data plane Envoy was removed; put a proxy in front of the server for TLS and"
    " HTTP/2 (docs/guide/proxy.md)",
    "envoy_tls_cert": "the data plane Envoy was removed; put a proxy in front of the server for TLS and"
    " HTTP/2 (docs/guide/proxy.md)",
    # Runs.
    "infer_parents": "parents of calls are always inferred",
    "run_rules": _OF_APPS.format("run_rules"),
    "run_from_traceparent": _OF_APPS.format("run_rules, of which whole_trace is one"),
    "interaction_reopen_grace_s": _always("twice interaction_idle_timeout_s"),
    "user_openings_per_minute": _always("600"),
    # Reports.
    "usage_rollup_interval_s": _always("a second, and rests for 50 times the length of a pass"),
    # The queue and the journal.
    "max_user_share": "a user may have a quarter of max_tenant_share",
    "lease_s": _always("60 seconds"),
    "journal_segment_bytes": _always("16 MiB"),
    # Answers.
    "stream_check_s": _always("5 seconds"),
    "client_buffer_bytes": _always("256 KiB for each call"),
    "client_write_timeout_s": _always("30 seconds"),
    "idempotency_retention_s": _always("an hour"),
    "idempotency_max_entries": _always("10,000 keys"),
    "idempotency_max_bytes": _always("64 MiB"),
    # Programs, responses, batches and files.
    "program_retention_days": _KEPT_DAYS,
    "response_retention_days": _KEPT_DAYS,
    "batch_retention_days": _KEPT_DAYS,
    "file_retention_days": _KEPT_DAYS,
    "program_max_nodes": _always("1,000 nodes"),
    "program_parallel_calls": _always("32 calls of a program"),
    "program_max_live": _always("1,000 programs"),
    "program_max_live_per_app": _always("200 programs of an app"),
    "program_max_bytes": _always("512 MiB"),
    "response_max_per_app": _always("10,000 responses of an app"),
    "response_max_bytes_per_app": _always("256 MiB for an app"),
    "response_max_per_tenant": _always("100,000 responses of a tenant"),
    "response_max_bytes_per_tenant": _always("1 GiB for a tenant"),
    "response_max_background": _always("1,000 responses in the background"),
    "response_max_background_per_app": _always("100 responses of an app in the background"),
    "batch_max_lines": _always("50,000 lines"),
    "batch_max_line_bytes": _always("1 MiB"),
    "batch_max_live": _always("128 batches, of which one tenant may have max_tenant_share"),
    "batch_max_unfinished_per_app": _always("16 batches of an app"),
    "batch_memory_bytes": _always("256 MiB, of which one tenant may have max_tenant_share"),
    "file_max_per_tenant": _always("1,000 files of a tenant"),
    "file_max_bytes_per_tenant": "a tenant may have a sixteenth of file_max_bytes_in_all",
    # Connections and descriptions.
    "request_head_timeout_s": _always("10 seconds"),
    "request_body_timeout_s": _always("30 seconds, and one more for each 64 KiB"),
    "keep_alive_timeout_s": _always("75 seconds"),
    "api_docs": "the description of the API is always at /docs",
    "trace_content": "it is the value content of tracing",
    "trace_content_max_chars": _always("8,192 characters"),
    # Workers and the picker.
    "kv_events": "KV events are followed wherever a worker publishes them",
    "worker_kv_events": "the fleet file has kv_events and kv_replay of a worker (docs/guide/fleet.md)",
    "picker_host": "gateways are served at the address of host",
    "picker_tls_cert": "picker_tls is a folder with tls.crt and tls.key",
    "picker_tls_key": "picker_tls is a folder with tls.crt and tls.key",
    "picker_client_headers": "the gateway names the client in x-gateway-inference-fairness-id",
    "pool_namespace": "pool_name is NAMESPACE/NAME",
    "pool_kv_events_port": "pool_kv_ports has the port of the events and, after a comma, of the replay",
    "pool_kv_replay_port": "pool_kv_ports has the port of the events and, after a comma, of the replay",
    # Quotas and profiles.
    "contract_limits": "it is the value off of quota_enforcement",
    "contract_rates_cut_runs": "it is the value every_call of quota_enforcement",
    "profile_learning": "profiles are always learned; PUT /admin/apps/ID/profile sets one that holds",
    "profile_learning_interval_s": _always("30 seconds"),
    "profile_window_days": _always("14 days"),
    "profile_learned_after": _always("100 calls of a stage"),
    "profile_max_growth_per_day": _always("a factor of 2"),
    "profile_believed_tokens": _always("4,800 weighted tokens"),
    # Reports and recorded traffic.
    "export_retention_hours": _always("72 hours"),
    "export_max_unfinished": _always("20 exports of a tenant"),
    "export_max_bytes": _always("1 GiB"),
    "export_max_bytes_per_tenant": _always("256 MiB for a tenant"),
    "export_poll_interval_s": _always("2 seconds"),
    "trace_max_bytes": _always("128 MiB"),
    "trace_retention_days": _always("7 days"),
    # Background jobs and webhooks.
    "background_jobs": "Celery runs the background jobs if redis_url is set, and the server otherwise",
    "webhook_interval_s": _always("a second"),
    "webhook_timeout_s": _always("10 seconds"),
    "webhook_max_attempts": _always("10 attempts"),
    "webhook_retention_days": _always("7 days"),
    "webhook_allow_http": "webhooks may use http within webhook_allowed_networks",
    # The console.
    "console_idle_minutes": _always("60 minutes"),
    "console_sign_ins": _always("10 wrong keys of an address in five minutes"),
    "console_sign_ins_in_all": _always("100 wrong keys in five minutes"),
    "console_streams": _always("200 live pages"),
    "console_key_sign_in": "it is the value oidc of console",
    "oidc_name": "the sign-in page names the issuer's host",
    "oidc_scopes": "sign-ins ask for openid, profile, email, and for groups if the provider has it",
    # The system.
    "overload_high": _PARAMETER.format("high_watermark"),
    "overload_low": _PARAMETER.format("low_watermark"),
    "immunity_factor": _PARAMETER.format("immunity_factor"),
    "feed_window": "the feed window is that of the system; choose another system with --system",
    "local_scheduler": "embedded workers use the scheduler of the system; choose another system with"
    " --system",
}

REMOVED_SETTINGS: Mapping[str, str] = MappingProxyType(_REPLACED)
"""Replacement of each removed setting, by its name; the flag and the variable have the same name."""
