"""Bugs of the server: ledger and control, usage, webhooks, exports, and access rights."""

from __future__ import annotations

from catalogue.mutation import Mutation

_CONTROL = ("tests/unit/platform/control",)
_CELL = ("tests/property/test_cell.py",)
_JOURNAL = (
    "tests/unit/platform/control/*journal*.py",
    "tests/unit/platform/control/*ledger*.py",
    *_CONTROL,
)
_DATABASE = ("tests/integration/*database_ledger*.py", "tests/integration/*checkpoint*.py")

_LEDGER = (
    Mutation(
        "ledger-keeps-the-first-row-of-an-id",
        "ledger",
        "platform/control/ledger.py",
        "self._calls[call.call_id] = call",
        "self._calls.setdefault(call.call_id, call)",
        ("tests/unit/platform/control/*ledger*.py", *_DATABASE),
    ),
    Mutation(
        "ledger-stores-its-position-before-the-commit",
        "ledger",
        "platform/control/ledger.py",
        """        if not self._write(rows):
            return None
        self._store(position)""",
        """        self._store(position)
        if not self._write(rows):
            return None""",
        ("tests/unit/platform/control/*ledger*.py", *_DATABASE),
    ),
    Mutation(
        "ledger-drops-a-batch-with-one-bad-row",
        "ledger",
        "platform/control/ledger.py",
        "            return all(self._write(half) for half in rows.halves())\n",
        "            return True\n",
        ("tests/unit/platform/control/*ledger*.py", *_DATABASE),
    ),
    Mutation(
        "entries-of-a-turn-stay-in-memory",
        "ledger",
        "platform/control/journal/journal.py",
        "            loop.call_soon(self._end_turn)\n",
        "",
        _JOURNAL,
    ),
    Mutation(
        "entries-without-a-waiter-are-not-synced",
        "ledger",
        "platform/control/journal/journal.py",
        "if self._pending or self._asleep:",
        "if self._pending:",
        _JOURNAL,
    ),
    Mutation(
        "accepted-entry-is-not-synced-first",
        "ledger",
        "platform/control/journal/journal.py",
        """            self._unsynced[self._sequence] = pending
""",
        "",
        _JOURNAL,
    ),
    Mutation(
        "restart-fails-calls-that-completed",
        "ledger",
        "platform/control/journal/recovery.py",
        """            elif entry.kind == "closed":
                found.pop(entry.key, None)
""",
        "",
        _JOURNAL,
    ),
    Mutation(
        "torn-tail-of-the-journal-is-kept",
        "ledger",
        "platform/control/journal/recovery.py",
        "            file.truncate(good_end)\n",
        "",
        _JOURNAL,
    ),
    Mutation(
        "segment-of-an-open-call-is-deleted",
        "ledger",
        "platform/control/journal/retention.py",
        "if oldest.number >= self._ledgered.segment - 1 or oldest.open_calls:",
        "if oldest.number >= self._ledgered.segment - 1:",
        _JOURNAL,
    ),
    Mutation(
        "progress-does-not-renew-the-lease",
        "ledger",
        "platform/control/live_calls.py",
        """Renew the lease of a call.\"\"\"
        self._leases.renew(live.call.call_id, now_s)
""",
        """Renew the lease of a call.\"\"\"
""",
        _CONTROL,
    ),
    Mutation(
        "call-of-a-cancelled-run-waits-for-ever",
        "ledger",
        "platform/control/cell.py",
        """            self._fail(live, "its interaction was cancelled", "interaction_cancelled")
""",
        "",
        _CELL,
    ),
    Mutation(
        "restored-cell-forgets-collected-tokens",
        "ledger",
        "platform/control/live_calls.py",
        """self._decoded = dict(state["decoded"])""",
        "self._decoded = {}",
        _CELL,
    ),
    Mutation(
        "restored-cell-repeats-ids-of-shared-rows",
        "ledger",
        "platform/control/free_rows.py",
        """self._made = state["made"]""",
        "self._made = 0",
        _CELL,
    ),
    Mutation(
        "wait-that-ended-expires-the-next-one",
        "ledger",
        "platform/control/deadlines.py",
        "if self._waiting.get(call_id) == number:",
        "if call_id in self._waiting:",
        _CONTROL,
    ),
    Mutation(
        "repeated-attempt-is-charged-twice",
        "ledger",
        "platform/control/recorder.py",
        """{**earlier, "charged": False}""",
        "earlier",
        _CONTROL,
    ),
    Mutation(
        "work-of-a-worker-is-waived",
        "ledger",
        "platform/control/call_state.py",
        "return not (self.superseded and self.unused)",
        "return not self.superseded",
        _CONTROL,
    ),
    Mutation(
        "count-of-a-worker-has-no-bound",
        "ledger",
        "engine/wire/reported_usage.py",
        "type(value) is int and 0 <= value <= most",
        "type(value) is int and 0 <= value",
        ("tests/unit/engine/wire/*usage*.py", "tests/unit/platform/serving/completions/*.py"),
    ),
    Mutation(
        "usage-of-zero-covers-text",
        "ledger",
        "platform/serving/completions/usage.py",
        "if output is None or output < self._least_tokens():",
        "if output is None:",
        ("tests/unit/platform/serving/completions/*.py", "tests/contract/*answers*.py"),
    ),
    Mutation(
        "call-is-retried-after-output",
        "ledger",
        "platform/serving/completions/running_call.py",
        "        if self._is_spent(failure):\n",
        "        if False:\n",
        ("tests/unit/platform/serving/completions/*.py",),
    ),
    Mutation(
        "call-is-retried-without-end",
        "ledger",
        "platform/serving/completions/running_call.py",
        "last or self.attempts >= MAX_ATTEMPTS or ",
        "last or ",
        ("tests/unit/platform/serving/completions/*.py",),
    ),
    Mutation(
        "call-without-a-lease-runs-on",
        "ledger",
        "platform/serving/completions/relay.py",
        "            call.lease_ended()\n",
        "            pass\n",
        ("tests/unit/platform/serving/completions/*.py",),
    ),
    Mutation(
        "first-output-is-reported-late",
        "ledger",
        "platform/serving/completions/running_call.py",
        "._submitted_s\n                self._report_now = True\n",
        "._submitted_s\n",
        ("tests/unit/platform/serving/completions/*.py",),
    ),
    Mutation(
        "form-passes-bytes-that-are-no-text",
        "ledger",
        "engine/wire/event_form.py",
        "if not text or not (text.isascii() or _is_utf8(text)):",
        "if not text:",
        ("tests/unit/engine/wire/test_stream_events.py",),
    ),
    Mutation(
        "flood-of-a-worker-is-read-on",
        "ledger",
        "engine/wire/worker_answer.py",
        "if self._paused or self._backlog_bytes > MAX_BACKLOG_BYTES:",
        "if self._paused:",
        ("tests/unit/engine/wire/test_loop_turns.py",),
    ),
    Mutation(
        "connection-is-kept-after-a-close",
        "ledger",
        "engine/wire/connections.py",
        "self._keeps_alive = self._parser.should_keep_alive()",
        "self._keeps_alive = True",
        ("tests/unit/engine/wire/test_connections.py",),
    ),
    Mutation(
        "answer-runs-on",
        "ledger",
        "platform/serving/completions/usage.py",
        "        self._check_length()\n        if usage",
        "        if usage",
        ("tests/unit/platform/serving/completions/*.py", "tests/contract/*answers*.py"),
    ),
    Mutation(
        "live-service-counts-each-progress-in-full",
        "ledger",
        "platform/monitoring/activity.py",
        "            counted.service = service\n",
        "            counted.service = 0.0\n",
        ("tests/unit/platform/monitoring/*activity*.py", "tests/property/*activity*.py"),
    ),
    Mutation(
        "new-feeder-forgets-what-running-calls-used",
        "ledger",
        "scheduling/dispatch/switch.py",
        "            feeder.charge(call.call_id, usage)\n",
        "",
        ("tests/unit/platform/control/*switch*.py", *_CONTROL),
    ),
    Mutation(
        "nul-characters-reach-postgresql",
        "ledger",
        "platform/db/upsert.py",
        r"""return text.replace("\x00", "")[:chars]""",
        "return text[:chars]",
        _DATABASE,
    ),
    Mutation(
        "sqlite-transactions-lock-late",
        "ledger",
        "platform/db/engine.py",
        '"BEGIN" if reading else "BEGIN IMMEDIATE"',
        '"BEGIN"',
        (
            "tests/integration/*database_schema*.py",
            *_DATABASE,
            "tests/integration/*webhooks_delivery*.py",
        ),
    ),
)

_ROLLUPS = ("tests/integration/*usage_rollups*.py", "tests/property/*reports*.py")
_REPORTS = ("tests/integration/*usage_reports*.py", *_ROLLUPS)

_USAGE = (
    Mutation(
        "postgresql-rounds-quarter-hours",
        "usage",
        "platform/reporting/usage/raw_rows.py",
        'quarter = func.floor(func.extract("epoch", time) / QUARTER_S)',
        'quarter = func.extract("epoch", time) / QUARTER_S',
        _ROLLUPS,
    ),
    Mutation(
        "sqlite-rounds-seconds-up",
        "usage",
        "platform/reporting/usage/raw_rows.py",
        'cast(func.strftime("%s", func.substr(cast(time, String), 1, 19)), Integer)',
        'cast(func.round(func.strftime("%s", cast(time, String)) + 0.5), Integer)',
        _ROLLUPS,
    ),
    Mutation(
        "uncharged-calls-are-counted",
        "usage",
        "platform/reporting/usage/raw_rows.py",
        '_count(LedgerCall, charged).label("calls"),',
        'func.count().label("calls"),',
        _REPORTS,
    ),
    Mutation(
        "reopened-run-stays-in-its-old-quarter-hour",
        "usage",
        "platform/reporting/usage/marks.py",
        'mark_rows(session, ends, "ended_at")',
        'mark_rows(session, ends[:0], "ended_at")',
        (*_ROLLUPS, *_DATABASE),
    ),
    Mutation(
        "mark-made-during-a-rollup-is-lost",
        "usage",
        "platform/reporting/usage/rollups.py",
        '_MARK = ("tenant_id", "app_id", "start_s", "marks")',
        '_MARK = ("tenant_id", "app_id", "start_s")',
        _ROLLUPS,
    ),
    Mutation(
        "rollup-forgets-users-whose-rows-have-gone",
        "usage",
        "platform/reporting/usage/rollups.py",
        "for users in (touched, *(tuple_(*keys).in_(part) for part in parts)):",
        "for users in (touched,):",
        _ROLLUPS,
    ),
    Mutation(
        "days-of-clock-changes-have-24-hours",
        "usage",
        "platform/reporting/usage/zones.py",
        "return begin_s, _midnight(last + timedelta(days=1), zone)",
        "return begin_s, _midnight(last, zone) + DAY_S",
        ("tests/unit/platform/reporting/*zones*.py", *_REPORTS),
    ),
    Mutation(
        "budget-counts-days-of-the-last-period",
        "usage",
        "platform/reporting/usage/spending.py",
        "        UsageCalls.start_s >= begin_s,\n",
        "",
        ("tests/integration/*spending*.py",),
    ),
)

_DELIVERY = (
    "tests/integration/*webhooks_delivery*.py",
    "tests/integration/*webhooks_sender*.py",
    "tests/integration/*webhooks_endpoints*.py",
)
_EVENTS = ("tests/integration/*webhooks_events*.py", "tests/integration/*webhooks_budgets*.py")
_WEBHOOK_UNITS = ("tests/unit/platform/background/webhooks",)
_LEASES = ("tests/unit/platform/db/test_leases.py",)

_WEBHOOKS = (
    Mutation(
        "signature-leaves-out-the-time",
        "webhooks",
        "platform/background/webhooks/signature.py",
        'b".".join((event_id.encode(), timestamp.encode(), body))',
        'b".".join((event_id.encode(), body))',
        (*_WEBHOOK_UNITS, *_DELIVERY),
    ),
    Mutation(
        "rotated-secret-signs-for-ever",
        "webhooks",
        "platform/background/webhooks/signature.py",
        "return time is not None and time > now",
        "return time is not None",
        (*_WEBHOOK_UNITS, *_DELIVERY),
    ),
    Mutation(
        "retry-after-of-the-receiver-is-ignored",
        "webhooks",
        "platform/background/webhooks/retries.py",
        "return max(own_s, min(asked_s, _own_delay_s(attempts + 1)))",
        "return own_s",
        (*_WEBHOOK_UNITS, *_DELIVERY),
    ),
    Mutation(
        "private-address-beside-a-public-one-is-sent-to",
        "webhooks",
        "platform/background/webhooks/guard.py",
        "if not all(self._may_be_sent_to(address) for address in addresses):",
        "if not any(self._may_be_sent_to(address) for address in addresses):",
        _WEBHOOK_UNITS,
    ),
    Mutation(
        "row-is-claimed-while-it-is-leased",
        "webhooks",
        "platform/db/leases.py",
        """                column("lease_until") < now,
""",
        """                column("lease_until") > now - LONGEST_LEASE,
""",
        (*_LEASES, *_DELIVERY),
    ),
    Mutation(
        "outcome-of-a-lost-lease-is-recorded",
        "webhooks",
        "platform/background/webhooks/claims.py",
        'fence=("lease_until",)',
        "fence=()",
        _DELIVERY,
    ),
    Mutation(
        "delivery-is-tried-once-too-often",
        "webhooks",
        "platform/background/webhooks/claims.py",
        "outcome.status == 410 or claimed.attempts >= max_attempts",
        "outcome.status == 410 or claimed.attempts > max_attempts",
        _DELIVERY,
    ),
    Mutation(
        "endpoint-gets-events-from-before-it",
        "webhooks",
        "platform/background/webhooks/outbox.py",
        "return since is not None and event.at >= since",
        "return since is not None",
        (*_EVENTS, *_DELIVERY),
    ),
    Mutation(
        "budget-event-comes-only-beyond-the-limit",
        "webhooks",
        "platform/background/webhooks/budgets.py",
        "spent is not None and spent >= met.limits[end]",
        "spent is not None and spent > met.limits[end]",
        ("tests/integration/*webhooks_budgets*.py",),
    ),
)

_EXPORTS_TESTS = (
    "tests/integration/*export_work*.py",
    "tests/integration/test_exports.py",
    "tests/integration/*exports*.py",
)
_USER_DATA = ("tests/integration/test_user_data.py", "tests/integration/*user_data*.py")

_EXPORTS = (
    Mutation(
        "app-sees-the-exports-of-other-apps",
        "exports",
        "platform/reporting/exports/repository.py",
        'return [*own, ReportExport.app_id == self.app_id, ReportExport.asked_by == "app"]',
        'return [*own, ReportExport.asked_by == "app"]',
        ("tests/integration/test_exports.py", "tests/integration/*isolation*.py"),
    ),
    Mutation(
        "attempt-that-was-taken-over-goes-on-writing",
        "exports",
        "platform/reporting/exports/claims.py",
        'fence=("attempt", "state")',
        'fence=("state",)',
        _EXPORTS_TESTS,
    ),
    Mutation(
        "lost-attempts-are-never-counted",
        "exports",
        "platform/reporting/exports/claims.py",
        """            export.lost += 1
""",
        """            export.lost += 0
""",
        _EXPORTS_TESTS,
    ),
    Mutation(
        "postgresql-exports-are-claimed-twice",
        "exports",
        "platform/db/leases.py",
        "            .with_for_update(of=self.model, skip_locked=True)\n",
        "",
        _EXPORTS_TESTS,
    ),
    Mutation(
        "export-of-an-erased-user-stays",
        "exports",
        "platform/reporting/exports/erasure.py",
        'has_file = ReportExport.state.in_(("ready", "expired"))',
        'has_file = ReportExport.state.in_(("expired",))',
        (*_USER_DATA, "tests/integration/*exports_lifecycle*.py"),
    ),
    Mutation(
        "erasure-leaves-rejected-calls",
        "exports",
        "platform/reporting/user_data/erasure.py",
        "REFUSALS.name: self._in_batches(REFUSALS, self._refusals),",
        "REFUSALS.name: 0,",
        _USER_DATA,
    ),
    Mutation(
        "calls-after-an-erasure-come-under-the-pseudonym",
        "exports",
        "platform/reporting/user_data/pseudonyms.py",
        "if row is None or utc_time(at) > row.erased_at:",
        "if row is None:",
        _USER_DATA,
    ),
    Mutation(
        "tenant-lifts-a-block-by-erasing-the-user",
        "exports",
        "platform/reporting/user_data/service.py",
        'if row is not None and row.blocked and self._principal.scope != "admin":',
        'if row is not None and row.blocked and self._principal.scope == "app":',
        (*_USER_DATA, "tests/integration/*isolation*.py"),
    ),
)

_AUTH = ("tests/unit/platform/tenancy/*auth*.py",)
_CONSOLE_UNITS = ("tests/unit/platform/console",)
_FORMS = ("tests/browser/*sign_in*.py", "tests/browser/*clients_page*.py")
_SESSIONS = ("tests/integration/*console_sessions*.py",)
_ISOLATION = ("tests/integration/*management_isolation*.py", "tests/integration/*isolation*.py")

_CONSOLE = (
    Mutation(
        "form-with-any-csrf-token-is-taken",
        "console",
        "platform/console/guard.py",
        "if not compare_digest(given.encode(), viewer.csrf.encode()):",
        "if not given:",
        _FORMS,
    ),
    Mutation(
        "form-of-another-site-is-taken",
        "console",
        "platform/console/guard.py",
        'not in ("same-origin", "none"):',
        'not in ("same-origin", "none", "cross-site"):',
        _FORMS,
    ),
    Mutation(
        "idle-console-session-does-not-end",
        "console",
        "platform/console/sessions.py",
        "if row.expires_at <= now or row.seen_at <= now - IDLE:",
        "if row.expires_at <= now:",
        (*_SESSIONS, *_CONSOLE_UNITS),
    ),
    Mutation(
        "console-session-outlives-its-key",
        "console",
        "platform/console/sessions.py",
        "if key.revoked_at is not None or (",
        "if key.revoked_at is None and (",
        (*_SESSIONS, *_CONSOLE_UNITS),
    ),
    Mutation(
        "console-does-not-escape",
        "console",
        "platform/console/rendering.py",
        "autoescape=True,",
        "autoescape=False,",
        ("tests/browser/*overview*.py", "tests/browser/*interactions_page*.py"),
    ),
    Mutation(
        "console-shows-a-tenant-another-one",
        "console",
        "platform/console/guard.py",
        """    if tenant and tenant != viewer.tenant_id:
        raise not_there(request)
    return viewer.tenant_id""",
        "    return tenant or viewer.tenant_id",
        ("tests/browser/*overview*.py", "tests/browser/*clients_page*.py"),
    ),
    Mutation(
        "revoked-key-is-valid",
        "console",
        "platform/tenancy/auth.py",
        "if any(time is not None for time in (key.revoked_at, *stopped_at)):",
        "if any(time is not None for time in stopped_at):",
        (*_AUTH, "tests/integration/*management_keys*.py"),
    ),
    Mutation(
        "full-table-evicts-from-the-tenant-that-adds",
        "console",
        "interactions/tracking/shares.py",
        "part = children[name if own else largest]",
        "part = children[name]",
        ("tests/unit/interactions/tracking/test_shared_table.py",),
    ),
    Mutation(
        "share-of-a-limit-ignores-what-others-have",
        "console",
        "platform/base/shared_limit.py",
        "return max(least, int(share * (limit - others)))",
        "return max(least, int(share * limit))",
        ("tests/unit/platform/base/test_shared_limit.py", "tests/unit/test_shared_tables.py"),
    ),
    Mutation(
        "pieces-of-prompts-are-found-by-all-tenants",
        "console",
        "platform/fleet/prompt_pieces.py",
        "                (tenant, text[begin:end], mark - begin if begin < mark < end else 0)\n",
        '                ("", text[begin:end], mark - begin if begin < mark < end else 0)\n',
        ("tests/unit/platform/fleet/test_prompt_pieces.py",),
    ),
    Mutation(
        "prompts-are-cut-inside-another-token",
        "console",
        "platform/fleet/prompt_pieces.py",
        "        and not any(_overlaps(token.content, other.content) for other in added)\n",
        "",
        ("tests/property/test_prompt_pieces.py",),
    ),
    Mutation(
        "place-is-held-until-the-answer-ends",
        "console",
        "platform/server/http/management.py",
        'if message["type"] == "http.response.start":',
        'if message["type"] == "http.response.body":',
        ("tests/unit/platform/server/http/test_management.py",),
    ),
    Mutation(
        "cached-key-outlives-its-expiry",
        "console",
        "platform/tenancy/auth.py",
        """                self._check_expiry(entry.expires_at)
                self._known.touch(digest)""",
        "                self._known.touch(digest)",
        (*_AUTH, "tests/integration/*management_keys*.py"),
    ),
    Mutation(
        "key-read-before-its-revocation-is-cached",
        "console",
        "platform/tenancy/auth.py",
        """            if generation == self._generation:
                self._store(digest, entry)""",
        """            if generation <= self._generation:
                self._store(digest, entry)""",
        _AUTH,
    ),
    Mutation(
        "event-stream-outlives-its-key",
        "console",
        "platform/serving/interactions/endpoints.py",
        "lambda: authenticator.confirm(principal),",
        "lambda: asyncio.sleep(0),",
        ("tests/integration/test_gateway/test_event_streams.py",),
    ),
    Mutation(
        "last-admin-key-can-be-revoked",
        "console",
        "platform/tenancy/keys/service.py",
        "if not set(lasting) - {key_id}:",
        "if not lasting:",
        ("tests/integration/test_management_admin_keys.py",),
    ),
    Mutation(
        "viewers-key-changes-anything",
        "console",
        "platform/tenancy/principals.py",
        'if principal.scope == "admin":',
        'if principal.scope == "nobody":',
        ("tests/integration/test_roles.py",),
    ),
    Mutation(
        "viewer-changes-anything-in-the-console",
        "console",
        "platform/console/guard.py",
        """    if viewer.is_admin:
        require_role""",
        """    if viewer.person:
        require_role""",
        ("tests/integration/test_roles.py",),
    ),
    Mutation(
        "sign-in-of-another-browser-counts",
        "console",
        "platform/console/oidc/sign_in.py",
        "if attempt is None or not attempt.is_own(state):",
        "if attempt is None:",
        ("tests/integration/test_oidc.py",),
    ),
    Mutation(
        "id-token-of-another-sign-in-counts",
        "console",
        "platform/console/oidc/provider.py",
        '                    "nonce": attempt.nonce,\n',
        "",
        ("tests/integration/test_oidc.py",),
    ),
    Mutation(
        "client-chooses-its-address",
        "console",
        "platform/base/client_address.py",
        """    if address is None or not _is_trusted(address, trusted_proxies):
        return peer""",
        """    if address is None:
        return peer""",
        ("tests/unit/platform/base/test_client_address.py",),
    ),
    Mutation(
        "attempts-at-once-pass-the-sign-in-limit",
        "console",
        "platform/console/sign_in_limit.py",
        "if wrong + self._attempts[block] < self._limit:",
        "if wrong < self._limit:",
        ("tests/unit/platform/console/test_sign_in_limit.py",),
    ),
    Mutation(
        "blocked-user-returns-with-a-space",
        "console",
        "platform/base/user_ids.py",
        "    text = text.strip()\n",
        "",
        ("tests/integration/test_gateway/test_user_ids.py",),
    ),
    Mutation(
        "header-overrules-the-user-of-the-body",
        "console",
        "platform/serving/decision/check.py",
        "request.user or user_in_headers(request.headers, request.principal.user_headers)",
        "user_in_headers(request.headers, request.principal.user_headers) or request.user",
        ("tests/integration/test_gateway/test_end_users.py",),
    ),
    Mutation(
        "equal-bodies-of-two-users-are-one-request",
        "console",
        "platform/serving/decision/check.py",
        """    digest = hashlib.sha256(f"{principal.app_id}\\n{endpoint}\\n{users}\\n".encode())""",
        """    digest = hashlib.sha256(f"{principal.app_id}\\n{endpoint}\\n".encode())""",
        ("tests/integration/test_gateway/test_end_users.py",),
    ),
    Mutation(
        "page-of-another-app-reads-the-answer",
        "console",
        "platform/serving/cors_headers.py",
        "    if origin not in principal.origins:\n        return",
        "    if origin is None:\n        return",
        ("tests/integration/test_gateway/test_cors.py",),
    ),
    Mutation(
        "origin-of-a-suspended-app-stays",
        "console",
        "platform/tenancy/auth.py",
        "        self.origins.forget()\n",
        "",
        ("tests/integration/test_gateway/test_cors.py",),
    ),
    Mutation(
        "old-read-of-origins-hides-a-change",
        "console",
        "platform/tenancy/apps/origins.py",
        """            if generation == self._generation:
                self._expires_s""",
        """            if generation >= 0:
                self._expires_s""",
        ("tests/unit/platform/tenancy/test_origins.py",),
    ),
    Mutation(
        "cached-key-keeps-the-old-user-headers",
        "console",
        "platform/tenancy/apps/service.py",
        """            self._session.flush()
            self._forget_keys(app.id)""",
        """            self._session.flush()""",
        ("tests/integration/test_gateway/test_end_users.py",),
    ),
    Mutation(
        "tenant-key-acts-for-the-tenant-it-names",
        "console",
        "platform/tenancy/auth.py",
        """    if named is not None and named != principal.tenant_id:
        raise NotFoundError("there is no such tenant", param="tenant")
    return principal""",
        "    return principal if named is None else replace(principal, tenant_id=named)",
        (*_ISOLATION, "tests/integration/*management_apps*.py"),
    ),
    Mutation(
        "app-of-another-tenant-is-found",
        "console",
        "platform/tenancy/apps/repository.py",
        """        .where(App.id == app_id, App.tenant_id == tenant_id)
        .options""",
        """        .where(App.id == app_id)
        .options""",
        _ISOLATION,
    ),
    Mutation(
        "tenant-sees-the-calls-of-another-ones-run",
        "console",
        "platform/serving/interactions/repository.py",
        '            LedgerCall.tenant_id.concat("") == tenant,\n',
        "",
        (
            *_ISOLATION,
            "tests/integration/*database_ledger*.py",
            "tests/unit/platform/serving/interactions",
            "tests/integration/test_gateway/*runs*.py",
        ),
    ),
    Mutation(
        "key-of-another-owner-is-revoked",
        "console",
        "platform/tenancy/keys/service.py",
        "if row is None or keys.owner_of(row) != self._owner:",
        "if row is None:",
        ("tests/integration/*management_keys*.py", *_ISOLATION),
    ),
    Mutation(
        "deletion-of-an-app-is-not-audited",
        "console",
        "platform/tenancy/apps/service.py",
        """            self._audit("app.delete", app, before)
""",
        "",
        ("tests/integration/*management_audit*.py", "tests/integration/*management*.py"),
    ),
    Mutation(
        "tenant-sets-the-weight-of-its-app",
        "console",
        "platform/tenancy/apps/service.py",
        'if weight is not None and self._principal.scope != "admin":',
        'if weight is not None and self._principal.scope == "app":',
        ("tests/integration/*management_apps*.py", *_ISOLATION),
    ),
    Mutation(
        "retry-after-is-rounded-down",
        "console",
        "platform/serving/decision/rejection.py",
        "retry_s = max(1, math.ceil(decision.retry_after_s or 1.0))\n    return RateLimitedError(",
        "retry_s = max(1, math.floor(decision.retry_after_s or 1.0))\n    return RateLimitedError(",
        (
            "tests/unit/platform/serving/decision/*rejection*.py",
            "tests/integration/test_gateway/*limits*.py",
        ),
    ),
)

SERVER = (*_LEDGER, *_USAGE, *_WEBHOOKS, *_EXPORTS, *_CONSOLE)
