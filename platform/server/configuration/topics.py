"""The settings by topic, the most used first, each with a sentence that says when to change it.

The flags of ``fairserve serve --help`` and the tables of ``docs/guide/settings.md`` follow this order. A
test finds settings that are missing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TOPICS: dict[str, dict[str, str]] = {
    "Most used": {
        "host": "To be reached from other machines, and then behind a proxy with TLS.",
        "port": "If another program has the port.",
        "data_dir": "To keep the data on a disk of its own.",
        "database_url": "For more than a trial: PostgreSQL can be backed up and shared.",
        "model": "To serve a real model, or for the tokenizer of external workers.",
        "workers": "To the number of model copies that the machine has memory for.",
        "worker_urls": "To serve with vLLM or other servers that run already.",
        "role": "For more than one server: some with api, two with control, all with redis_url.",
        "system": "To compare with another scheduler, or with plain rate limits (rpm-N).",
        "log_level": "To debug while a fault is searched, to warning where logs cost money.",
        "log_format": "To json where a collector reads the log.",
        "config": "To keep the settings in a file under version control.",
    },
    "Workers": {
        "fleet_file": "For aliases, tokenizers, keys or KV events of workers, and to change them live.",
        "worker_kv_tokens": "To the memory that an embedded worker may use.",
        "worker_max_batch": "Raise it on a machine that decodes more sequences at once.",
    },
    "Scheduling": {
        "system_options": "To tune the system; see the parameters below.",
        "cache_isolation": "If users of a tenant must not share caches, or tenants trust each other.",
    },
    "Queue and calls": {
        "max_queue_wait_s": "Lower it if clients rather retry than wait.",
        "max_queued_calls": "To the memory of the machine: 10,000 calls are a few hundred MB.",
        "max_tenant_share": "Raise it if few tenants share the server; 1 for a single one.",
        "default_max_tokens": "Raise it if clients name no limit and answers are cut off.",
        "keepalive_s": "Below the idle time-out of a proxy; long to see the queue delay in headers.",
        "drain_timeout_s": "To the longest call that a restart must not break.",
        "interaction_idle_timeout_s": "If agents pause longer between calls, and apps set no time-out.",
    },
    "Programs, responses, batches and files": {
        "content_retention_days": "To what law or contracts allow to keep of your clients' contents.",
        "response_store": "Off if contents of answers must not be stored.",
        "program_time_limit_s": "Raise it if declared programs run for hours.",
        "batch_parallel_calls": "Raise it if batches leave workers idle at night.",
        "file_store_url": "To keep files in S3 or another store, for more than one server or much data.",
        "file_max_bytes": "To the largest batch file that your clients upload; adapt the proxy, too.",
        "file_max_bytes_in_all": "To the space of the database or of the file store.",
    },
    "Connections and requests": {
        "trusted_proxies": "Whenever a proxy is in front of the server.",
        "max_connections": "To the open files that the process may have, and the clients at a time.",
        "max_connections_per_address": "Raise it if many clients share an address (NAT).",
        "max_body_bytes": "Raise it for images or very long prompts; adapt the proxy, too.",
        "max_body_memory_bytes": "To the memory of the machine.",
    },
    "Database, journal and secrets": {
        "secret_key": "Always set it with PostgreSQL; keep it with the backups.",
        "secret_key_previous": "While secret_key is rotated.",
        "admin_key": "To choose the first admin key, in automated installations.",
        "database_lease_s": "Lower it for a faster fail-over to another server.",
        "accept_newer_schema": "During a rolling upgrade, or to go back after one.",
        "journal_max_bytes": "To the disk space for outages of the database.",
    },
    "Retention, quotas and money": {
        "ledger_retention_days": "To what law or contracts demand for calls and the audit log.",
        "usage_retention_days": "To what law or contracts demand for usage reports.",
        "trace_recording": "Off if not even pseudonymous traffic may be recorded.",
        "currency": "To the currency of your prices and budgets.",
        "quota_enforcement": "To every_call for plain rate limits; off to observe quotas first.",
    },
    "Background jobs and webhooks": {
        "redis_url": "To run background jobs in processes of their own.",
        "webhook_allowed_networks": "If receivers of webhooks are in your own network.",
    },
    "Endpoint picker": {
        "picker_port": "If another program has the port.",
        "picker_tls": "To a folder if gateways check the certificate; off behind a mesh with TLS.",
        "picker_app": "If gateways send calls without app keys.",
        "picker_background_objectives": "If gateways mark batch traffic with objectives.",
        "picker_fallbacks": "If the gateway tries further endpoints by itself.",
        "pool_name": "To pick from the pods of an InferencePool.",
        "pool_worker_kind": "If the pods do not run vLLM.",
        "pool_worker_key_env": "If the pods ask for a bearer token.",
        "pool_kv_ports": "If the pods publish KV events and do not report where.",
    },
    "Metrics and traces": {
        "metrics_host": "If Prometheus runs on another machine.",
        "metrics_port": "To scrape metrics without a key.",
        "metrics_top_clients": "To 0 where ids of users must not leave the server.",
        "tracing": "To calls if you run an OpenTelemetry collector; content to debug prompts.",
    },
    "Console and sign-in": {
        "console": "To oidc if keys must not be typed into browsers; off to serve the API only.",
        "console_session_hours": "To your rules for sign-ins.",
        "public_url": "With an OpenID provider.",
        "oidc_issuer": "To let people sign in with your OpenID provider.",
        "oidc_client_id": "With an OpenID provider.",
        "oidc_client_secret": "If the provider gave the console a secret.",
        "oidc_groups_claim": "If the provider has groups in another claim, such as Keycloak's roles.",
        "oidc_roles": "With an OpenID provider: who may see, operate and administer.",
    },
}

TOPICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {topic: tuple(settings) for topic, settings in _TOPICS.items()}
)
"""Names of settings by topic."""
WHEN: Mapping[str, str] = MappingProxyType(
    {name: sentence for settings in _TOPICS.values() for name, sentence in settings.items()}
)
"""The sentence that says when to change a setting, by its name."""
