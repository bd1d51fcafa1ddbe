"""Bugs of the policies: scheduling, throttling with quotas, and the tracker of interactions."""

from __future__ import annotations

from catalogue.mutation import Mutation

_UNIT = ("tests/unit/scheduling",)
_COUNTERS = (
    "tests/property/*counters*.py",
    "tests/property/*vtc*.py",
    "tests/contract/*feeders*.py",
)
_VTC = ("tests/property/*vtc*.py", "tests/contract/*local_schedulers*.py")
_WSC = ("tests/property/*wsc*.py", "tests/contract/*feeders*.py", *_UNIT)
_DLPM = ("tests/property/*test_dlpm*.py", "tests/contract/*local_schedulers*.py")
_D2LPM = ("tests/property/*d2lpm*.py", "tests/contract/*routers*.py")
_CENTRAL = ("tests/property/*central_dlpm*.py", "tests/property/*test_dlpm*.py")
_TREE = ("tests/property/*prefix_tree*.py", "tests/unit/scheduling/*prefix_tree*.py")
_DISPATCHER = ("tests/unit/scheduling/*dispatcher*.py", *_UNIT, "tests/property/*pool*.py")

_SCHEDULING = (
    Mutation(
        "a-reservation-elsewhere-is-received-service",
        "scheduling",
        "scheduling/feeder/wsc.py",
        "other.served_elsewhere(client, served, reserved, factors)",
        "other.served_elsewhere(client, served + reserved, 0.0, factors)",
        _UNIT,
    ),
    Mutation(
        "a-weight-counts-at-every-level",
        "scheduling",
        "scheduling/level_weights.py",
        "return (tenant, app * user)",
        "return (tenant * app * user, tenant * app * user)",
        (*_WSC, "tests/unit/scheduling/test_level_weights.py"),
    ),
    Mutation(
        "weights-leave-cached-tokens-in",
        "scheduling",
        "scheduling/cost.py",
        "prompt = self._prompt(text, system, cached, cached_weight)",
        "prompt = self._prompt(text, system, cached, 1.0)",
        _WSC,
    ),
    Mutation(
        "a-declared-prompt-counts-as-uncached",
        "scheduling",
        "scheduling/cost.py",
        "cached = expected.cached_tokens if seen else text + system",
        "cached = expected.cached_tokens",
        _WSC,
    ),
    Mutation(
        "a-retry-blocks-the-queue",
        "scheduling",
        "scheduling/feed.py",
        "call = self._feeder.peek(open_workers, self._not_for(open_workers))",
        "call = self._feeder.peek(open_workers)",
        _UNIT,
    ),
    Mutation(
        "hidden-clients-lose-their-place",
        "scheduling",
        "scheduling/counters.py",
        "node.earliest = min(node.earliest, client.earliest)",
        "node.earliest = max(node.earliest, client.earliest)",
        _COUNTERS,
    ),
    Mutation(
        "lift-goes-to-the-largest-counter",
        "scheduling",
        "scheduling/counters.py",
        "return parent.least_served() if self._predicting else parent.least().served",
        "return max(each.served for each in parent.children.values() if each.queued)",
        _COUNTERS,
    ),
    Mutation(
        "newcomer-is-not-lifted",
        "scheduling",
        "scheduling/counters.py",
        "node.served = max(node.served, self._lift_level(parent))",
        "node.served = max(node.served, 0.0)",
        _COUNTERS,
    ),
    Mutation(
        "lift-lowers-a-counter",
        "scheduling",
        "scheduling/counters.py",
        "node.served = max(node.served, self._lift_level(parent))",
        "node.served = self._lift_level(parent)",
        _COUNTERS,
    ),
    Mutation(
        "idle-lift-cannot-be-switched-off",
        "scheduling",
        "scheduling/counters.py",
        "last = parent.last_left if self._lift_when_idle else None",
        "last = parent.last_left",
        _COUNTERS,
    ),
    Mutation(
        "refund-is-charged-only-to-the-tenant",
        "scheduling",
        "scheduling/counters.py",
        """        for node in client.line:
            node.served = max(0.0, node.served - cost)""",
        """        for node in client.line[:1]:
            node.served = max(0.0, node.served - cost)""",
        (*_COUNTERS, "tests/property/*levels*.py", "tests/contract/*levels*.py", *_WSC),
    ),
    Mutation(
        "vtc-charges-a-preempted-call-again",
        "scheduling",
        "scheduling/local/vtc.py",
        "entry.cost = 0.0  # not again after a preemption",
        "entry.cost = cost",
        _VTC,
    ),
    Mutation(
        "vtc-ignores-the-weight-of-output",
        "scheduling",
        "scheduling/local/vtc.py",
        "self._counters.charge(entry.client, self._wq * tokens / entry.call.weight)",
        "self._counters.charge(entry.client, self._wq * tokens)",
        _VTC,
    ),
    Mutation(
        "vtc-keeps-what-a-prediction-did-not-use",
        "scheduling",
        "scheduling/local/vtc.py",
        """            self._counters.release(entry.client, account.outstanding)
""",
        "",
        _VTC,
    ),
    Mutation(
        "wsc-forgets-the-refund-of-a-failed-call",
        "scheduling",
        "scheduling/feeder/slice_charges.py",
        """            self._change(record, -record.charged, 0.0)
""",
        "",
        _WSC,
    ),
    Mutation(
        "wsc-keeps-what-was-reserved-and-not-used",
        "scheduling",
        "scheduling/feeder/slice_charges.py",
        "if record.reserved > 0:",
        "if record.reserved < 0:",
        _WSC,
    ),
    Mutation(
        "wsc-charges-progress-twice",
        "scheduling",
        "scheduling/feeder/slice_charges.py",
        "        record.charged = cost\n",
        "",
        _WSC,
    ),
    Mutation(
        "wsc-max-bypass-is-one-too-many",
        "scheduling",
        "scheduling/feeder/wsc.py",
        "oldest.bypassed >= self.options.max_bypass",
        "oldest.bypassed > self.options.max_bypass",
        _WSC,
    ),
    Mutation(
        "wsc-run-priority-ignores-the-slack",
        "scheduling",
        "scheduling/feeder/wsc.py",
        "return self._counters.reach(self.options.interaction_slack)",
        'return self._counters.reach(float("inf"))',
        _WSC,
    ),
    Mutation(
        "wsc-restore-forgets-the-bypasses",
        "scheduling",
        "scheduling/feeder/wsc.py",
        "self._place(node, _Queued(calls[call_id], seq, bypassed))",
        "self._place(node, _Queued(calls[call_id], seq))",
        _WSC,
    ),
    Mutation(
        "charges-do-not-count-at-other-models",
        "scheduling",
        "scheduling/feeder/wsc.py",
        "other.served_elsewhere(client, served, reserved, factors)",
        "other.served_elsewhere(client, 0.0, 0.0, factors)",
        ("tests/unit/scheduling/*models*.py", *_WSC),
    ),
    Mutation(
        "dlpm-refills-those-in-credit-too",
        "scheduling",
        "scheduling/feeder/deficits.py",
        "quantum * min(missed, math.floor(-self.deficit / quantum) + 1)",
        "quantum * missed",
        (*_CENTRAL, *_DLPM),
    ),
    Mutation(
        "dlpm-serves-who-is-out-of-credit",
        "scheduling",
        "scheduling/feeder/central_dlpm.py",
        "if (best is None or key < best) and may_run(client):",
        "if best is None or key < best:",
        _CENTRAL,
    ),
    Mutation(
        "dlpm-charges-a-preempted-prompt-again",
        "scheduling",
        "scheduling/local/dlpm.py",
        "if matched.per_token < 0:  # a preempted call paid for its prompt before",
        "if matched.running:",
        _DLPM,
    ),
    Mutation(
        "dlpm-charges-cached-tokens",
        "scheduling",
        "scheduling/local/dlpm.py",
        "tokens = call.prompt_tokens - (1 - self.options.cached_weight) * cached_tokens",
        "tokens = call.prompt_tokens",
        _DLPM,
    ),
    Mutation(
        "dlpm-max-bypass-is-one-too-many",
        "scheduling",
        "scheduling/local/dlpm.py",
        "return 0 < self.options.max_bypass <= bypassed",
        "return 0 < self.options.max_bypass < bypassed",
        _DLPM,
    ),
    Mutation(
        "drr-idle-client-saves-up-quanta",
        "scheduling",
        "scheduling/local/drr.py",
        "client.balance += quantum * min(missed, needed)",
        "client.balance += quantum * missed",
        ("tests/property/*drr*.py", "tests/contract/*local_schedulers*.py"),
    ),
    Mutation(
        "d2lpm-refill-exceeds-a-quantum",
        "scheduling",
        "scheduling/routers/credit.py",
        "(needed if rounds is None else min(rounds, needed))",
        "(needed if rounds is None else rounds)",
        _D2LPM,
    ),
    Mutation(
        "d2lpm-forgets-to-charge-output",
        "scheduling",
        "scheduling/routers/d2lpm.py",
        "cost = price * self.options.wq * output_tokens",
        "cost = 0.0",
        _D2LPM,
    ),
    Mutation(
        "d2lpm-follows-the-prefix-without-credit",
        "scheduling",
        "scheduling/routers/d2lpm.py",
        "return loads.least(having & in_credit or in_credit)",
        "return loads.least(having)",
        _D2LPM,
    ),
    Mutation(
        "d2lpm-new-worker-owes-everybody",
        "scheduling",
        "scheduling/routers/credit.py",
        "self._set(slot, max(values))",
        "self._set(slot, min(0.0, *values))",
        _D2LPM,
    ),
    Mutation(
        "preble-explores-where-it-should-exploit",
        "scheduling",
        "scheduling/routers/preble.py",
        "if matched > self.options.exploit_share * call.prompt_tokens:",
        "if matched < self.options.exploit_share * call.prompt_tokens:",
        ("tests/property/*preble*.py", "tests/contract/*routers*.py"),
    ),
    Mutation(
        "evicted-block-keeps-those-below-it",
        "scheduling",
        "scheduling/prefix_tree.py",
        """            self._drop_below(node, cache)
            if cut == 0:""",
        """            if cut == 0:""",
        (*_TREE, "tests/unit/scheduling/*cache_reports*.py"),
    ),
    Mutation(
        "full-cache-evicts-locked-prefixes",
        "scheduling",
        "scheduling/prefix_tree.py",
        """            if not link.locks:
                if node.mask""",
        """            if link.locks >= 0:
                if node.mask""",
        _TREE,
    ),
    Mutation(
        "cleared-cache-is-believed-on",
        "scheduling",
        "scheduling/reports.py",
        """            tree.clear_worker(worker_id)
""",
        "",
        ("tests/unit/scheduling/*cache_reports*.py", *_UNIT),
    ),
    Mutation(
        "feed-window-is-ignored",
        "scheduling",
        "scheduling/pool.py",
        "if worker.waiting_tokens < window_tokens:",
        "if worker.waiting_tokens < 1000 * window_tokens:",
        _DISPATCHER,
    ),
    Mutation(
        "failed-call-returns-to-the-same-worker",
        "scheduling",
        "scheduling/model_pool.py",
        """        live.avoid.append(live.worker_id)
""",
        "",
        _DISPATCHER,
    ),
    Mutation(
        "ended-call-stays-in-the-demand",
        "scheduling",
        "scheduling/model_pool.py",
        """            self.pool.add_demand(worker, -live.demand_tokens)
""",
        "",
        _DISPATCHER,
    ),
    Mutation(
        "loss-removes-the-wrong-worker",
        "scheduling",
        "scheduling/membership.py",
        """        pool.lose(worker)
        del self._homes[event.worker_id]""",
        """        pool.lose(next(iter(pool.pool.workers.values()), worker))
        del self._homes[event.worker_id]""",
        (*_DISPATCHER, "tests/unit/platform/cluster"),
    ),
    Mutation(
        "silent-worker-is-never-lost",
        "scheduling",
        "scheduling/membership.py",
        "now_s - last_s > silence_s",
        "last_s - now_s > silence_s",
        _DISPATCHER,
    ),
)

_THROTTLING_TESTS = ("tests/property/*throttling*.py", "tests/unit/scheduling/*admission*.py")
_CONTRACTS = ("tests/property/*contracts*.py", "tests/unit/scheduling/*admission*.py", *_UNIT)

_THROTTLING = (
    Mutation(
        "calls-to-another-app-use-a-users-limit",
        "throttling",
        "throttling/oit.py",
        'keys.append(("user", arrival.app_user_key, arrival.limits.user_rpm))',
        'keys.append(("user", arrival.user_key, arrival.limits.user_rpm))',
        _THROTTLING_TESTS,
    ),
    Mutation(
        "one-tenant-fills-the-queue",
        "throttling",
        "platform/control/room.py",
        "elif bounds.calls > bounds.of_tenant <= waiting_of_tenant:",
        "elif False:",
        ("tests/unit/platform/control/test_bounds.py",),
    ),
    Mutation(
        "openings-have-no-rate",
        "throttling",
        "scheduling/admission.py",
        "self._openings.record(key, most, now_s)",
        "pass",
        ("tests/unit/platform/control/test_bounds.py",),
    ),
    Mutation(
        "overload-has-no-hysteresis",
        "throttling",
        "throttling/overload.py",
        "elif load <= self.watermarks.low:",
        "else:",
        (*_THROTTLING_TESTS, *_UNIT),
    ),
    Mutation(
        "overload-begins-only-above-the-mark",
        "throttling",
        "throttling/overload.py",
        "if load >= self.watermarks.high:",
        "if load > self.watermarks.high:",
        (*_THROTTLING_TESTS, *_UNIT),
    ),
    Mutation(
        "oit-cuts-runs-in-progress",
        "throttling",
        "throttling/oit.py",
        "if not arrival.overloaded or arrival.under_way:",
        "if not arrival.overloaded:",
        (*_THROTTLING_TESTS, *_UNIT),
    ),
    Mutation(
        "oit-rejects-without-overload",
        "throttling",
        "throttling/oit.py",
        "if not arrival.overloaded or arrival.under_way:",
        "if arrival.under_way:",
        (*_THROTTLING_TESTS, *_UNIT),
    ),
    Mutation(
        "oit-does-not-count-rejected-arrivals",
        "throttling",
        "throttling/oit.py",
        "        for _, key, limit in self._keys(arrival):\n",
        "        for _, key, limit in self._keys(arrival) if decision.admitted else ():\n",
        (*_THROTTLING_TESTS, *_UNIT),
    ),
    Mutation(
        "rpm-admits-one-call-too-many",
        "throttling",
        "throttling/rpm.py",
        "count = self._accepted.count(self._windowed(key, now_s), now_s) + 1",
        "count = self._accepted.count(self._windowed(key, now_s), now_s)",
        _THROTTLING_TESTS,
    ),
    Mutation(
        "retry-after-counts-from-the-oldest-call",
        "throttling",
        "throttling/window.py",
        "return max(0.0, times[-limit] + self.window_s - now_s)",
        "return max(0.0, times[0] + self.window_s - now_s)",
        _THROTTLING_TESTS,
    ),
    Mutation(
        "rate-window-ends-a-second-early",
        "throttling",
        "throttling/rate_window.py",
        "if second >= horizon:",
        "if second > horizon:",
        _CONTRACTS,
    ),
    Mutation(
        "budget-is-not-reserved",
        "throttling",
        "throttling/contracts.py",
        "account.held += claim.cost",
        "account.held += 0",
        _CONTRACTS,
    ),
    Mutation(
        "failed-call-keeps-its-request",
        "throttling",
        "throttling/contracts.py",
        """            if refund:
                meter.requests.correct(-1, held.at_s)
""",
        "",
        _CONTRACTS,
    ),
    Mutation(
        "budget-of-the-last-period-still-counts",
        "throttling",
        "throttling/contracts.py",
        "if account is not None and account.begin >= begin:",
        "if account is not None:",
        _CONTRACTS,
    ),
    Mutation(
        "soft-end-cuts-runs-in-progress",
        "throttling",
        "throttling/contracts.py",
        """            and spent >= soft
            and not claim.run_under_way
""",
        """            and spent >= soft
""",
        _CONTRACTS,
    ),
    Mutation(
        "weeks-begin-on-sunday",
        "throttling",
        "throttling/periods.py",
        "_FIRST = datetime(1970, 1, 5, tzinfo=UTC)",
        "_FIRST = datetime(1970, 1, 4, tzinfo=UTC)",
        _CONTRACTS,
    ),
    Mutation(
        "cancelled-call-costs-nothing",
        "throttling",
        "scheduling/admission.py",
        'frozenset({"completed", "cancelled"})',
        'frozenset({"completed"})',
        _CONTRACTS,
    ),
    Mutation(
        "cached-tokens-cost-the-full-price",
        "throttling",
        "throttling/price.py",
        "(usage.prompt_tokens - cached) * self.input + cached * self.cached",
        "usage.prompt_tokens * self.input",
        (*_CONTRACTS, "tests/unit/platform/control"),
    ),
)

_TRACKER_TESTS = ("tests/unit/interactions/*life_cycle*.py", "tests/property/*tracker*.py")
_PROFILES = ("tests/unit/interactions/*profile*.py", "tests/property/*profile*.py")
_IMMUNITY = ("tests/unit/interactions/test_immunity.py",)
_IDENTITY = ("tests/unit/**/*identity*.py",)

_TRACKER = (
    Mutation(
        "immunity-is-unbounded",
        "tracker",
        "interactions/immunity.py",
        "return calls < self.factor * usual.calls and tokens <= self.factor * usual.tokens",
        "return True",
        (*_TRACKER_TESTS, *_IMMUNITY, *_UNIT),
    ),
    Mutation(
        "immunity-ends-one-call-late",
        "tracker",
        "interactions/immunity.py",
        "return calls < self.factor * usual.calls",
        "return calls <= self.factor * usual.calls",
        (*_TRACKER_TESTS, *_IMMUNITY, *_UNIT),
    ),
    Mutation(
        "a-declared-run-is-believed-whole",
        "tracker",
        "interactions/immunity.py",
        "calls = min(profile.calls_per_interaction, MOST_CALLS)",
        "calls = profile.calls_per_interaction",
        _IMMUNITY,
    ),
    Mutation(
        "the-longest-run-is-usual",
        "tracker",
        "interactions/profile_statistics.py",
        "_LONG = 0.99",
        "_LONG = 1.0",
        _PROFILES,
    ),
    Mutation(
        "one-tenant-fills-the-table-of-runs",
        "tracker",
        "interactions/tracker.py",
        'for whose, key in (("user", (tenant, user)), ("tenant", (tenant,))):',
        'for whose, key in (("user", (tenant, user)),):',
        _TRACKER_TESTS,
    ),
    Mutation(
        "a-run-that-ended-still-counts-for-its-user",
        "tracker",
        "interactions/tracker.py",
        "self._live_of[key] -= 1",
        "self._live_of[key] -= 0",
        _TRACKER_TESTS,
    ),
    Mutation(
        "an-empty-run-idles-as-long-as-others",
        "tracker",
        "interactions/tracker.py",
        "idle_s = min(idle_s, self._limits.empty_idle_s)",
        "pass",
        _TRACKER_TESTS,
    ),
    Mutation(
        "another-user-may-join-a-run",
        "tracker",
        "interactions/tracker.py",
        "if run.user != call.user or run.app != call.app or run.tenant != call.tenant:",
        "if run.app != call.app or run.tenant != call.tenant:",
        _TRACKER_TESTS,
    ),
    Mutation(
        "closed-run-takes-more-calls",
        "tracker",
        "interactions/tracker.py",
        """        if run.closing is not None:
            raise InteractionClosedError(""",
        """        if run.closing == "aborted":
            raise InteractionClosedError(""",
        _TRACKER_TESTS,
    ),
    Mutation(
        "run-expires-while-its-call-runs",
        "tracker",
        "interactions/tracker.py",
        """            if run.live:
                continue  # watched again when its last call ends
""",
        "",
        _TRACKER_TESTS,
    ),
    Mutation(
        "run-reopens-after-its-grace",
        "tracker",
        "interactions/tracker.py",
        "return run if until_s > now_s else None",
        "return run",
        _TRACKER_TESTS,
    ),
    Mutation(
        "call-may-be-its-own-parent",
        "tracker",
        "interactions/tracker.py",
        "if parents and call.call_id in parents:",
        "if parents and call.call_id in parents[1:]:",
        _TRACKER_TESTS,
    ),
    Mutation(
        "stage-of-a-child-is-that-of-its-parent",
        "tracker",
        "interactions/run.py",
        "return deepest + 1",
        "return max(1, deepest)",
        ("tests/unit/interactions", "tests/property/*tracker*.py"),
    ),
    Mutation(
        "critical-path-counts-only-the-heaviest-node",
        "tracker",
        "interactions/graph.py",
        "left[node] = weights[node] + below",
        "left[node] = max(weights[node], below)",
        ("tests/unit/interactions/*graph*.py",),
    ),
    Mutation(
        "program-node-is-retried-once-too-often",
        "tracker",
        "interactions/program_run.py",
        "instance.failures <= run.node.retries",
        "instance.failures <= run.node.retries + 1",
        ("tests/unit/interactions/*program_run*.py", "tests/property/*program_run*.py"),
    ),
    Mutation(
        "declared-run-length-is-believed-unbounded",
        "tracker",
        "interactions/profile_learning.py",
        "calls_per_interaction=min(declared.calls_per_interaction, options.believed_calls),",
        "calls_per_interaction=declared.calls_per_interaction,",
        _PROFILES,
    ),
    Mutation(
        "learned-profile-grows-unbounded",
        "tracker",
        "interactions/profile_learning.py",
        "growth = options.max_growth_per_day**days",
        "growth = math.inf",
        _PROFILES,
    ),
    Mutation(
        "understated-stage-is-believed",
        "tracker",
        "interactions/profile_learning.py",
        "if said.total_tokens < _LEAST_SHARE * found.total_tokens:",
        "if said.total_tokens <= 0:",
        _PROFILES,
    ),
    Mutation(
        "metadata-wins-over-the-header",
        "tracker",
        "interactions/identity.py",
        """        if header in self.headers:
            return checked_id(self.headers[header], header), header""",
        """        if header in self.headers and key not in self.metadata:
            return checked_id(self.headers[header], header), header""",
        _IDENTITY,
    ),
    Mutation(
        "end-of-a-sub-agent-ends-its-run",
        "tracker",
        "interactions/identity.py",
        "return checked_id(headers[DYNAMO_PARENT], DYNAMO_PARENT), DYNAMO_PARENT, session, False",
        """final = DYNAMO_FINAL in headers
        return checked_id(headers[DYNAMO_PARENT], DYNAMO_PARENT), DYNAMO_PARENT, session, final""",
        _IDENTITY,
    ),
    Mutation(
        "sub-agent-gets-a-run-of-its-own",
        "tracker",
        "interactions/identity.py",
        "    if DYNAMO_PARENT in headers:\n",
        "    if DYNAMO_PARENT in headers and DYNAMO_FINAL in headers:\n",
        _IDENTITY,
    ),
)

POLICIES = (*_SCHEDULING, *_THROTTLING, *_TRACKER)
