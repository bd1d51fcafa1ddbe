"""Order in which people see the settings: by topic, the most used first.

The flags of ``fairserve serve --help`` and the tables of ``docs/guide/settings.md`` follow it. Each
setting has one topic; a test finds those that are missing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TOPICS = {
    "Most used": "host port data_dir database_url model workers worker_urls system log_level"
    " log_format config",
    "Workers": "fleet_file kv_events worker_kv_events worker_kv_tokens worker_max_batch",
    "Scheduling and throttling": "system_options cache_isolation",
    "Queue and calls": "max_queue_wait_s max_queued_calls max_tenant_share"
    " default_max_tokens keepalive_s drain_timeout_s",
    "Interactions": "interaction_idle_timeout_s",
    "Programs, responses, batches and files": "content_retention_days response_store"
    " program_time_limit_s batch_parallel_calls file_store_url file_max_bytes file_max_bytes_in_all",
    "Connections and requests": "trusted_proxies max_connections max_connections_per_address"
    " request_head_timeout_s request_body_timeout_s keep_alive_timeout_s max_body_bytes"
    " max_body_memory_bytes api_docs",
    "Database, journal and secrets": "secret_key secret_key_previous admin_key database_lease_s"
    " accept_newer_schema journal_max_bytes ledger_retention_days",
    "Quotas and money": "contract_limits contract_rates_cut_runs currency",
    "Learned profiles": "profile_learning profile_learning_interval_s profile_window_days"
    " profile_learned_after profile_max_growth_per_day profile_believed_tokens",
    "Usage reports and exports": "usage_retention_days usage_rollup_interval_s export_retention_hours"
    " export_max_unfinished export_max_bytes export_max_bytes_per_tenant export_poll_interval_s",
    "Recorded traffic": "trace_recording trace_max_bytes trace_retention_days",
    "Background jobs": "background_jobs redis_url",
    "Webhooks": "webhook_interval_s webhook_timeout_s webhook_max_attempts webhook_retention_days"
    " webhook_allow_http webhook_allowed_networks",
    "Endpoint picker": "picker_host picker_port picker_tls picker_tls_cert picker_tls_key picker_app"
    " picker_client_headers picker_background_objectives picker_fallbacks pool_name pool_namespace"
    " pool_worker_kind pool_worker_key_env pool_kv_events_port pool_kv_replay_port",
    "Metrics": "metrics_host metrics_port metrics_top_clients",
    "Traces": "tracing trace_content trace_content_max_chars",
    "Console": "console console_session_hours console_idle_minutes console_sign_ins"
    " console_sign_ins_in_all console_streams console_key_sign_in",
    "Sign-in with OpenID Connect": "public_url oidc_issuer oidc_name oidc_client_id"
    " oidc_client_secret oidc_scopes oidc_groups_claim oidc_roles",
}

TOPICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {topic: tuple(names.split()) for topic, names in _TOPICS.items()}
)
"""Names of settings by topic."""
