"""Walk the shared tables of docs/security.md: four tenants crowd each, and another finds its place.

A row names a test, or drivers of this module. The last test finds bounded structures in the code that
neither the page nor :data:`NOT_SHARED` names. It sees what is built from the usual parts (a lock with
places, a pool of threads, an ordered dictionary, a comparison of a length with a bound), so it is a
reminder and no proof.
"""

import ast
import re
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from call_records import call_record
from virtual_cluster import make_call

from fairserve.interactions.call import Call
from fairserve.platform.background.alarms import open_alarms
from fairserve.platform.background.alarms.alarm import AlarmFinding, AlarmKey
from fairserve.platform.background.webhooks.budgets import BudgetWatch
from fairserve.platform.base.errors import RateLimitedError, UnavailableError
from fairserve.platform.base.subscribers import Subscribers
from fairserve.platform.console.known_names import KnownNames
from fairserve.platform.console.state import Streams
from fairserve.platform.console.trusted_sessions import TrustedSessions
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.forecast import OutputForecast
from fairserve.platform.control.free_rows import FreeRows
from fairserve.platform.control.retries import RecentAttempts
from fairserve.platform.control.runs import LiveRuns
from fairserve.platform.monitoring import app_calls
from fairserve.platform.monitoring.tracing.call_tracer import CallTracer
from fairserve.platform.reporting.traffic.recorder import TrafficRecorder
from fairserve.platform.serving.batches.execution import BatchExecutionOptions
from fairserve.platform.serving.batches.service import Batches, BatchOptions
from fairserve.platform.serving.bodies import BodyMemory
from fairserve.platform.serving.messages.endpoint import TokenCounts
from fairserve.platform.serving.programs.repository import ProgramKey
from fairserve.platform.serving.programs.service import ProgramOptions, Programs
from fairserve.platform.serving.responses.repository import ResponseKey
from fairserve.platform.serving.responses.service import BackgroundOptions, Responses
from fairserve.platform.tenancy.auth import Authenticator, Principal, _Entry
from fairserve.scheduling.events import InteractionEnded
from fairserve.throttling.overload.new_users import NewUsers
from fairserve.throttling.quotas import contracts
from fairserve.throttling.quotas.contracts import Claim, Contracts
from fairserve.throttling.quotas.quota import Quota

ROOT = Path(__file__).resolve().parents[2]
CROWD = ("a", "b", "c", "d")
MOST = 100_000
"""Attempts of a tenant that fills a table, at most."""


def rows():
    text = (ROOT / "docs/security.md").read_text()
    table = text[text.index("## Shared tables") : text.index("## Not stopped")]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [line.strip("| ").split(" | ") for line in lines]


# --- tables that reject -------------------------------------------------------------------------------


def taking(take):
    """Return ``take`` with True for a place that was taken, and False for a rejection."""

    def tried(tenant):
        try:
            return take(tenant) in (None, True)
        except (RateLimitedError, UnavailableError):
            return False

    return tried


def batches(**options):
    execution = BatchExecutionOptions(max_line_bytes=1)
    return Batches(None, None, {}, BatchOptions(execution=execution, **options))


def bodies():
    memory = BodyMemory(100, 1 / 4, max_body_bytes=1)
    return taking(lambda tenant: memory.reserve(tenant, 1))


def lines_of_batches():
    memory = batches(memory_bytes=100)._memory
    return taking(lambda tenant: memory.reserve(tenant, 1))


def token_counts():
    return taking(TokenCounts(None)._counts.take)


def responses():
    options = BackgroundOptions(max_per_app=MOST)
    served = Responses(None, None, None, options)
    return taking(lambda tenant: served._take_place(ResponseKey(tenant, tenant, "")))


def programs():
    served = Programs(None, None, None, None, ProgramOptions(max_live=100))

    def take(tenant):
        served._check_share(tenant, 1)
        served._coming[ProgramKey(tenant, "app", str(len(served._coming)))] = 0

    return taking(take)


def bytes_of_programs():
    served = Programs(None, None, None, None, ProgramOptions(max_bytes=1000))

    def take(tenant):
        served._check_share(tenant, 10)
        key = ProgramKey(tenant, "app", str(len(served._live)))
        served._live[key] = SimpleNamespace(size_bytes=10)

    return taking(take)


def followers():
    subscribers = Subscribers()
    return taking(lambda tenant: subscribers.subscribe("run", print, tenant) is not None)


def live_pages():
    streams, pages = Streams(40), ExitStack()

    def take(tenant):
        streams.check(tenant)
        pages.enter_context(streams.one(tenant))

    return taking(take)


def recorded_calls(folder):
    recorder = TrafficRecorder(folder, max_bytes=1 << 20, retention_s=1.0, block_tokens=16)

    def take(tenant):
        before = len(recorder._pending)
        recorder._take(SimpleNamespace(tenant=tenant, keys=range(500)))
        return len(recorder._pending) > before

    return take


def accounts_of_budgets(monkeypatch):
    monkeypatch.setattr(contracts, "MAX_ACCOUNTS", 100)
    limits, quota, calls = (
        Contracts(),
        Quota(max_budget=100, budget_duration="1d"),
        iter(range(MOST)),
    )

    def take(app):
        number = next(calls)
        asked = [(("app_user", app, str(number)), quota)]
        claim = Claim(tokens=1, cost=1, at=1e9)
        admitted = limits.check(asked, claim, 0.0).admitted
        if admitted:
            limits.reserve(str(number), asked, claim, 0.0)
        return admitted

    return take


def counted_apps(monkeypatch):
    monkeypatch.setattr(app_calls, "MAX_APPS", 100)
    return counted(lambda tenant, number: (f"{tenant} {number}", "ann"))


def counted_users(monkeypatch):
    monkeypatch.setattr(app_calls, "MAX_USERS", 100)
    return counted(lambda tenant, number: (tenant, f"u{number}"))


def counted(named):
    """Return a function that counts a call of an app and a user, which ``named`` returns."""
    calls, numbers = app_calls.AppCalls(), iter(range(MOST))

    def take(tenant):
        app, user = named(tenant, next(numbers))
        live = CallState(make_call("c", tenant=tenant, app=app, user=user), "r", "", 0.0, 0.0)
        found = calls._count(live, 0.0, rejected=True)
        return found is not None and user in found.users

    return take


def alarms_of_tenants(monkeypatch):
    monkeypatch.setattr(open_alarms, "MAX_OPEN", 2 * open_alarms.MAX_OF_TENANT)
    alarms, numbers = open_alarms.OpenAlarms(lambda: "al"), iter(range(MOST))

    def take(tenant):
        before = len(alarms)
        key = AlarmKey("calls_failing", tenant, str(next(numbers)))
        alarms.update([AlarmFinding(key, "bad")], 0.0)
        return len(alarms) > before

    return take


REJECTING = {
    "alarms": alarms_of_tenants,
    "apps of alarms": counted_apps,
    "users of alarms": counted_users,
    "bodies": bodies,
    "lines of batches": lines_of_batches,
    "batches": lambda: taking(batches(max_live=100)._places.take),
    "token counts": token_counts,
    "responses in the background": responses,
    "programs": programs,
    "bytes of programs": bytes_of_programs,
    "followers": followers,
    "live pages": live_pages,
    "recorded calls": recorded_calls,
    "accounts of budgets": accounts_of_budgets,
}
"""Makers of functions that take a place for a tenant, and return whether they got it."""


@pytest.mark.parametrize("name", REJECTING)
def test_a_tenant_finds_a_place_beside_four_that_want_all(name, tmp_path, monkeypatch):
    fixtures = {"folder": tmp_path, "monkeypatch": monkeypatch}
    make = REJECTING[name]
    asked = make.__code__.co_varnames[: make.__code__.co_argcount]
    take = make(*(fixtures[each] for each in asked))
    crowd = set(CROWD)
    for _ in range(MOST):
        crowd = {tenant for tenant in sorted(crowd) if take(tenant)}
        if not crowd:
            break
    assert not crowd, "the table has no bound"
    assert take("quiet")


# --- tables that evict --------------------------------------------------------------------------------


class Attempts:
    def __init__(self):
        self.table = RecentAttempts(100)

    def put(self, tenant, key):
        self.table.remember(key, {"tenant": tenant}, 0.0)

    def has(self, key):
        return self.table.take(key, 1.0) is not None


class EndedRuns:
    def __init__(self, monkeypatch):
        monkeypatch.setattr("fairserve.platform.control.runs.MAX_ENDED", 100)
        self.table = LiveRuns()

    def put(self, tenant, key):
        ended = InteractionEnded(key, tenant, "app", "user", "complete", 1, 1, 0, "")
        self.table.ended(ended, 0.0)

    def has(self, key):
        return self.table.view(key) is not None


class Keys:
    def __init__(self):
        self.table = Authenticator(None, None, max_entries=100, monotonic_s=lambda: 0.0)

    def put(self, tenant, key):
        self.table._store(key, _Entry(Principal("app", tenant, "app", key, "sk"), None, 0.0))

    def has(self, key):
        return self.table._cached(key) is not None


class Speeds:
    def __init__(self, monkeypatch):
        monkeypatch.setattr("fairserve.platform.control.forecast.MAX_CLIENTS", 100)
        self.table = OutputForecast()

    @staticmethod
    def _call(tenant, key):
        return Call(
            call_id=key,
            tenant=tenant,
            app="app",
            user=key,
            interaction_id=key,
            model="m",
            pool="m",
            input_tokens=1,
            system_tokens=0,
            max_output_tokens=1000,
        )

    def put(self, tenant, key):
        self.table.completed(self._call(tenant, key), 100, 1.0)

    def has(self, key):
        return self.table._own.get(("m", self._call("quiet", key).client)) is not None


class SharedRows:
    def __init__(self, monkeypatch):
        monkeypatch.setattr("fairserve.platform.control.free_rows.MAX_SHARED", 100)
        self.table = FreeRows()

    def put(self, tenant, key):
        return self.table.share_call(call_record(tenant=tenant, app=key), 0.0).shared_by

    def has(self, key):
        return self.put("quiet", key) > 1


class Buckets:
    """The tenant that made no row for longest loses its bucket: that takes more tenants than buckets."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr("fairserve.platform.control.free_rows.MAX_TENANTS", 10)
        monkeypatch.setattr("fairserve.platform.control.free_rows.MOST_ROWS", 1)
        self.table = FreeRows()

    def put(self, tenant, key):
        self.table.take(tenant, 0.0)

    def has(self, key):
        return not self.table.take("quiet", 0.0)


class Table:
    """A table of the class under test that tests cannot fill through its public side at little cost."""

    def __init__(self, table):
        self.table = table
        assert table.limit >= 1000
        table.limit = 100

    def put(self, tenant, key):
        self.table.put(tenant, key, "value")

    def has(self, key):
        return self.table.get(key) is not None


class KnownUsers:
    def __init__(self, monkeypatch):
        monkeypatch.setattr("fairserve.throttling.overload.new_users.MAX_USERS", 100)
        self.table = NewUsers()

    def put(self, tenant, user):
        self.table.called(tenant, f"{tenant}'s", user, MOST, 0.0, admitted=True)

    def has(self, user):
        return not self.table.is_new("quiet's", user, 0.0)


EVICTING = {
    "recent attempts": Attempts,
    "ended runs": EndedRuns,
    "keys": Keys,
    "speeds of clients": Speeds,
    "checked sessions": lambda: Table(TrustedSessions()._checked),
    "ended sessions": lambda: Table(TrustedSessions()._ended),
    "known names": lambda: Table(KnownNames()._names),
    "budgets": lambda: Table(BudgetWatch("EUR")._known),
    "spans": lambda: Table(CallTracer(None)._runs),
    "contexts": lambda: Table(CallTracer(None)._contexts),
    "known users": KnownUsers,
    "shared rows": SharedRows,
    "buckets": Buckets,
}
"""Makers of tables of 100 entries, with ``put(tenant, key)`` and ``has(key)``."""


@pytest.mark.parametrize("name", EVICTING)
def test_a_tenant_keeps_its_entry_beside_four_that_want_all(name, monkeypatch):
    table = EVICTING[name](monkeypatch) if name in WITH_SETTINGS else EVICTING[name]()
    table.put("quiet", "kept")
    for number in range(200):
        for tenant in CROWD:
            table.put(tenant, f"{tenant} {number}")
    assert table.has("kept")


WITH_SETTINGS = ("ended runs", "speeds of clients", "known users", "shared rows", "buckets")


# --- the list -----------------------------------------------------------------------------------------


def test_every_row_names_its_code_and_its_tests():
    driven = set()
    for name, code, bound, share, full, tests in rows():
        assert all((bound, share, full)), name
        path, _, part = code.strip("`").partition("::")
        text = (ROOT / path).read_text()
        assert re.search(rf"^(class |def |async def )?{part}\b", text, re.MULTILINE), code
        if found := re.fullmatch(r"`tests/unit/test_shared_tables\.py` \((.+)\)", tests):
            driven |= set(found[1].split(", "))
            continue
        path, test = tests.strip("`").split("::")
        text = (ROOT / path).read_text()
        assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), tests
    assert driven == {*REJECTING, *EVICTING}


FOLDERS = (
    "platform",
    "interactions",
    "throttling",
    "scheduling",
    "engine/wire",
    "benchmarks/policies",
)
PARTS = {
    "BodyMemory", "BoundedSemaphore", "OrderedDict", "Queue", "Rotation", "Semaphore",
    "SharedLimit", "SharedTable", "Shares", "SimpleQueue", "Subscribers",
    "ThreadPoolExecutor", "TurnThreads", "Turns", "lru_cache",
}  # fmt: skip
"""Parts of which bounded structures are built."""


def parts_of(path):
    """Yield the names of the parts in a file, and the lengths that it compares with bounds."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            made = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
            if name in PARTS:
                yield name
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Gt, ast.GtE)):
            compared = ast.unparse(node.left)
            if re.fullmatch(r"len\(self\.\w+\)", compared):
                yield compared


NOT_SHARED = {
    "engine/wire/local_queue.py": "the calls at one worker; a fair scheduler has the others",
    "engine/wire/loop_turns.py": "streams take turns by bytes",
    "engine/wire/stream_events.py": "one stream",
    "engine/wire/worker_answer.py": "one answer",
    "interactions/call.py": "a cache of what is computed at once",
    "interactions/lazy_heap.py": "the part itself",
    "interactions/programs/output.py": "one program",
    "interactions/rotation.py": "the part itself",
    "platform/background/alarms/rules.py": "figures of apps that are learned again; none is rejected",
    "platform/background/webhooks/delivery.py": "makes the slots, which are listed",
    "platform/base/client_address.py": "a cache of what is computed at once",
    "platform/monitoring/tenant_calls.py": "a cache of what is computed at once",
    "scheduling/fairness/level_weights.py": "a cache of what is computed at once",
    "platform/base/turns.py": "the part itself",
    "platform/control/log/live_processes.py": "the processes with live calls, which other tables bound",
    "platform/control/log/order.py": "events of one server's calls; it rejects if Redis takes too few",
    "platform/control/log/shared_cell.py": "check sums of ticks, which no tenant makes",
    "platform/console/status.py": "one time for each tenant, which only its status line shows",
    "platform/console/sign_in/limit.py": "addresses that sign in, which are no tenants",
    "platform/tenancy/system/parameters.py": "a cache of what is computed at once, for admins only",
    "platform/control/live_calls.py": "one entry of each queued or running call",
    "platform/control/journal/retention.py": "files of the journal, for the operator",
    "platform/db/watch.py": "one probe of the database at a time",
    "platform/fleet/direct_address.py": "a cache of what is computed at once",
    "platform/fleet/model_pools.py": "models of the fleet, which the operator names",
    "platform/fleet/prompts/reader.py": "uses TurnThreads, which are listed",
    "platform/control/service.py": "uses Subscribers, which are listed",
    "platform/monitoring/activity_bucket.py": "figures for operators: the largest clients are named",
    "platform/monitoring/call_metrics.py": "figures for operators: models of the fleet, known reasons",
    "platform/monitoring/history.py": "pages of operators only",
    "platform/reporting/exports/parts.py": "one export",
    "platform/server/doctor/workers.py": "a command of the operator",
    "platform/server/http/intake.py": "uses BodyMemory, which is listed",
    "platform/server/http/protocol.py": "one connection; connections have a limit by address",
    "platform/server/lifecycle.py": "makes the turns of graphs, which are listed",
    "platform/server/logs.py": "lines of the log: what is beyond the bound is lost, not delayed",
    "platform/serving/batches/execution.py": "one batch",
    "platform/serving/completions/schemas.py": "one request",
    "platform/serving/files/multipart.py": "one upload",
    "platform/serving/files/store.py": "one upload",
    "platform/serving/interactions/events.py": "one follower",
    "scheduling/fairness/counter_node.py": "heaps of entries that are counted elsewhere",
    "scheduling/fairness/falls.py": "one entry of each client that is counted elsewhere",
    "scheduling/fairness/newcomers.py": "users by app; the app with most forgets its oldest",
    "scheduling/fairness/ranking.py": "one entry of each queued call",
    "scheduling/declared_trust.py": "a tenant that is forgotten is a new one",
    "scheduling/fairness/weight_cap.py": "a tenant that is forgotten is a new one",
    "scheduling/feeders/fcfs.py": "one entry of each queued call",
    "benchmarks/policies/drr.py": "one entry of each queued call",
    "scheduling/local/fcfs.py": "one entry of each queued call",
    "scheduling/local/length_prediction.py": "a client that is forgotten is predicted as a new one",
    "scheduling/locality/block_keys.py": "a cache of what is computed at once",
    "scheduling/locality/block_map.py": "blocks that workers report",
    "scheduling/routers/d2lpm.py": "credits of clients with recent calls; sums are kept",
    "benchmarks/policies/preble.py": "a window of the latest calls, a policy to compare with",
    "benchmarks/policies/request_tree.py": "one call",
    "scheduling/feeders/wsc.py": "asks whether one call is queued; the places in the queue are listed",
    "scheduling/routers/round_robin.py": "the next worker of a client, which costs nothing to forget",
    "throttling/overload/window.py": "one window of each app or user with recent calls",
    "throttling/quotas/periods.py": "a cache of what is computed at once",
    "throttling/quotas/quota.py": "a cache of what is computed at once",
}
"""Files with bounded structures that are no shared table, and why."""


def test_no_shared_table_is_missing():
    listed = {code.strip("`").partition("::")[0] for _, code, *_ in rows()}
    listed |= {"interactions/tracking/run_index.py", "interactions/tracking/shares.py"}
    """Parts of the table of runs that ended."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if parts := sorted(set(parts_of(path))):
                found[name] = parts
    missing = {name: parts for name, parts in found.items() if name not in {*listed, *NOT_SHARED}}
    assert not missing, "add them to docs/security.md, or to NOT_SHARED with the reason"
    assert not set(NOT_SHARED) - set(found), "these have no bounded structure any more"
    assert not set(NOT_SHARED) & listed
