"""A tenant with an end user who has rows in every table, beside other users and tenants."""

import json
from dataclasses import replace
from datetime import UTC, datetime

from call_records import call_record
from sqlalchemy import JSON, LargeBinary, String, func, select

from fairserve.interactions.programs.program import ProgramLimits
from fairserve.platform.background.alarms.alarm import AlarmFinding, AlarmKey
from fairserve.platform.background.alarms.open_alarms import OpenAlarms
from fairserve.platform.background.alarms.store import save as save_alarms
from fairserve.platform.control.messages import InteractionRecord, OpenInteractionRecord, Rows
from fairserve.platform.db import audit
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction
from fairserve.platform.db.models import metadata
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.responses import ConversationItem, StoredConversation, StoredResponse
from fairserve.platform.db.usage_marks import mark_rows
from fairserve.platform.db.webhooks import WebhookEndpoint
from fairserve.platform.reporting.exports.work import make_exports
from fairserve.platform.reporting.usage.levels import TABLES
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.serving.programs import repository as programs
from fairserve.platform.serving.programs.repository import ProgramChange, ProgramKey, SavedProgram

USER = "Ann O'Neil/ä?&%#\"\\ <ann@example.org>"
PERSONAL = (USER, "ann@example.org", "letters-to-ann", "ann-draft", "anns-agent", "dear ann")
"""Planted personal texts, in every place that clients fill."""
ROLLUPS = ["usage_calls", "usage_runs", "usage_refusals"]
KINDS = [
    "settings",
    "contracts",
    "interactions",
    "open_interactions",
    "calls",
    "refusals",
    "programs",
    "responses",
    "conversations",
    "webhook_events",
    "alarms",
    "exports",
    "audit",
]
CALL = call_record(
    "",
    tenant="",
    app="",
    user=USER,
    interaction_id="letters-to-ann",
    agent="anns-agent",
    accepted_at=0.0,
    input_tokens=10,
    output_tokens=3,
    service=16.0,
    cost=7,
    error="dear ann",
)


class Ledger:
    """The ledger, which may claim that a journal entry is not in the database."""

    def __init__(self, real):
        self.real = real
        self.whole = True
        self.flushed = 0

    def flush(self, timeout_s):
        self.flushed += 1
        return self.real.flush(timeout_s) and self.whole


class Programs:
    """The declared runs; records the users whose runs were cancelled."""

    def __init__(self, real):
        self.real = real
        self.cancelled = []

    async def cancel_of_user(self, reason, tenant_id, user):
        await self.real.cancel_of_user(reason, tenant_id, user)
        self.cancelled.append((tenant_id, user))


class World:
    """Two tenants with the same user, and another user in the first."""

    def __init__(self, management):
        self.management = management
        self.ledger = management.state.ledger = Ledger(management.platform.ledger)
        self.programs = management.state.programs = Programs(management.programs)
        self.sessions = management.state.session_factory
        # The server continues the alarms that are stored when it first looks: before any is planted.
        management.on_loop(management.platform.alarms._continue)
        self.one, self.other = management.new_tenant("one"), management.new_tenant("other")
        self.app = management.new_app(self.one)
        self.second_app = management.new_app(self.one, "second")
        self.foreign_app = management.new_app(self.other)
        self.began_at = utc_now().timestamp() - 100
        for tenant in (self.one, self.other):
            self.register_webhook(tenant)

    def register_webhook(self, tenant):
        """Register an endpoint for all events, since a long time ago."""
        events = ["interaction.finished", "calls.throttled", "alarm.opened", "alarm.resolved"]
        body = {"url": "https://1.1.1.1/", "events": events}
        made = self.management.call(tenant["api_key"], "POST", "/v1/webhooks", body, status=201)
        with self.sessions.begin() as session:
            endpoint = session.get(WebhookEndpoint, made["id"])
            endpoint.since = dict.fromkeys(endpoint.since, self.began_at - 100)

    def write(self, calls, interactions=(), opened=()):
        """Write as the ledger's thread does."""
        self.management.platform.storage.rows.write(Rows(calls, interactions, opened))

    def opened(self, tenant, app, user):
        """Return a run that has not ended."""
        run = "letters-to-ann-open" if user != "bob" else "bobs-open"
        return OpenInteractionRecord(run, tenant["id"], app["id"], user, self.began_at)

    def records(self, tenant, app, user):
        """Return two calls of a run, a rejected one, another run, and their ends."""
        letters, alone = ("letters-to-ann", "alone") if user != "bob" else ("to-bob", "bobs")
        base = replace(CALL, tenant=tenant["id"], app=app["id"], user=user, interaction_id=letters)
        name = f"{app['id']}-{user[:3]}"
        at = self.began_at
        made = [
            replace(base, call_id=f"{name}-1", name="ann-draft", accepted_at=at, ended_at=at + 1),
            replace(
                base,
                call_id=f"{name}-2",
                name="ann-final",
                parents=("ann-draft",),
                stage=2,
                accepted_at=at + 2,
                ended_at=at + 3,
            ),
            replace(
                base,
                call_id=f"{name}-3",
                name="ann-refused",
                outcome="refused",
                accepted_at=at + 4,
                ended_at=at + 4,
                refusal_reason="overloaded_user_limit",
            ),
            replace(
                base,
                call_id=f"{name}-4",
                interaction_id=alone,
                outcome="failed",
                accepted_at=at + 5,
                ended_at=at + 6,
            ),
        ]
        ended = [
            InteractionRecord(
                run, base.tenant, base.app, user, "complete", at, at + 7, calls, 13 * calls, 0
            )
            for run, calls in ((letters, 2), (alone, 1))
        ]
        return made, ended

    def plant(self, tenant, app, user):
        """Write rows of every kind; return the records."""
        call = self.management.call
        call(
            self.management.admin_key,
            "PUT",
            f"/admin/users/{tenant['id']}/{escaped(user)}",
            {"weight": 2.0, "rpm": 90},
        )
        with self.sessions.begin() as session:
            session.merge(contract(tenant["id"], user))
            for entry in session.scalars(select(AuditEntry).where(AuditEntry.target == user)):
                entry.after = {"note": f"of {user}"}
            key = ProgramKey(tenant["id"], app["id"], f"letters-to-ann-{user}")
            programs.insert(
                session,
                SavedProgram(
                    key,
                    user,
                    {"nodes": [{"prompt": "dear ann"}]},
                    ProgramLimits(),
                    "complete",
                    "",
                    *[datetime.fromtimestamp(self.began_at, UTC)] * 2,
                ),
            )
            steps = {
                "nodes": {f"n{number}": {"output": "dear ann"} for number in range(250)},
                "tasks": {"n0": {"state": "done"}},
            }
            programs.apply(session, [ProgramChange(key, 0, steps)])
            plant_responses(session, key, user, datetime.fromtimestamp(self.began_at, UTC))
            over_share = AlarmFinding(
                AlarmKey("over_share", tenant["id"], app["id"], user),
                "warn",
                {"received": 0.9, "entitled": 0.1, "queued": 1, "models": ["m"]},
            )
            alarms = OpenAlarms(lambda: new_id("al"))
            alarms.update([over_share], self.began_at)
            save_alarms(session, alarms)
        records = self.records(tenant, app, user)
        run = f"{app['id']}/{records[1][0].interaction_id}"
        with self.sessions.begin() as session:
            audit.record(session, None, "interaction.cancel", run, tenant_id=tenant["id"])
        self.write(*records, [self.opened(tenant, app, user)])
        assert roll_up(self.sessions)
        for query in (
            {"user": user, "group_by": "user"},
            {"kind": "interactions", "format": "csv"},
            {"group_by": "app"},
        ):
            call(tenant["api_key"], "POST", "/v1/usage/exports", status=202, **query)
        settings = self.management.state.settings
        while make_exports(self.sessions, settings):
            pass
        return records

    def export(self, key=None, *, user=USER, **query):
        return self.management.call(
            key or self.one["api_key"], "GET", "/v1/user-data", user=user, **query
        )

    def erase(self, key=None, *, user=USER, **query):
        return self.management.call(
            key or self.one["api_key"], "DELETE", "/v1/user-data", user=user, **query
        )

    def usage(self, *groups):
        assert roll_up(self.sessions)
        rows = self.management.call(
            self.management.admin_key, "GET", "/admin/usage", group_by=",".join(groups)
        )
        return rows["items"], rows["sums"]

    def dump(self, *, rolled_up=True):
        """Return every row of every table, as plain values, after pending rollups."""
        if rolled_up:
            assert roll_up(self.sessions)
        with self.sessions() as session:
            return {
                table.name: [row._asdict() for row in session.execute(select(table))]
                for table in metadata.sorted_tables
                if table.name != "usage_state"
            }

    def rollups(self):
        """Return the rollups of apps and tenants, which no erasure changes."""
        assert roll_up(self.sessions)
        with self.sessions() as session:
            return {
                table.table.name: [
                    row._asdict()
                    for row in session.execute(
                        select(table.table).where(~table.table.c.level.like("%_user"))
                    )
                ]
                for table in TABLES
            }


def plant_responses(session, key, user, at):
    """Write a stored response, and a conversation with an item."""
    owner = {"tenant_id": key.tenant, "app_id": key.app}
    name = f"of-{user[:3]}"
    item = {"type": "message", "role": "user", "content": "dear ann"}
    session.add_all(
        [
            StoredResponse(
                **owner,
                id=f"resp_{name}",
                user_id=user,
                run_id="letters-to-ann",
                call_id="ann-draft",
                status="completed",
                created_at=at,
                items=[item],
                response={"output": [item]},
                size_bytes=9,
            ),
            StoredConversation(
                **owner,
                id=f"conv_{name}",
                user_id=user,
                details={"of": "dear ann"},
                created_at=at,
                changed_at=at,
                next_position=1,
                size_bytes=9,
            ),
        ]
    )
    session.flush()
    session.add(
        ConversationItem(
            **owner,
            conversation_id=f"conv_{name}",
            position=0,
            item_id="msg_ann-draft",
            item=item,
            size_bytes=9,
        )
    )


def contract(tenant_id, user):
    return Contract(
        tenant_id=tenant_id,
        scope="user",
        app_id="",
        user_id=user,
        rpm_limit=9,
        soft_end="warn",
        updated_at=utc_now(),
    )


def escaped(text):
    return "".join(f"%{byte:02x}" for byte in text.encode())


def texts_of(dump):
    """Yield every text of a dump, also within JSON, with its place."""
    for table in metadata.sorted_tables:
        for row in dump.get(table.name, ()):
            for column in table.columns:
                value = row[column.name]
                if isinstance(column.type, String) and value is not None:
                    yield f"{table.name}.{column.name}", value
                elif isinstance(column.type, LargeBinary) and value is not None:
                    yield f"{table.name}.{column.name}", value.decode("utf-8", "replace")
                elif isinstance(column.type, JSON):
                    yield f"{table.name}.{column.name}", json.dumps(value, ensure_ascii=False)


def mentions(dump, *personal):
    """Return the places with any of these texts, also in their JSON form."""
    wanted = {*personal, *(json.dumps(text, ensure_ascii=False)[1:-1] for text in personal)}
    return sorted({place for place, text in texts_of(dump) if any(part in text for part in wanted)})


def of_others(dump, world):
    """Return the rows of the other user and the other tenant, in a fixed order."""
    text = json.dumps([world.other["id"], world.foreign_app["id"]])
    return {
        name: canonical_rows(
            row
            for row in rows
            if any(
                value == "bob" or (isinstance(value, str) and len(value) > 9 and value in text)
                for value in row.values()
            )
        )
        for name, rows in dump.items()
    }


def iso(value):
    return value.hex() if isinstance(value, bytes) else value.isoformat()


def canonical_rows(rows):
    return sorted(json.dumps(row, sort_keys=True, default=iso) for row in rows)


def canonical(rows):
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def mark_everything(session):
    """Mark all raw rows as just written."""
    for model, time in ((LedgerCall, "accepted_at"), (LedgerInteraction, "ended_at")):
        rows = session.execute(select(model.__table__))
        mark_rows(session, [row._asdict() for row in rows], time)


def by_user(world, user):
    """Return a user's calls, runs and rejections in the first tenant's quarter hours."""
    counted = {"usage_calls": "calls", "usage_runs": "complete", "usage_refusals": "count"}
    with world.sessions() as session:
        return {
            name: session.scalar(
                select(func.coalesce(func.sum(metadata.tables[name].c[column]), 0)).where(
                    metadata.tables[name].c.user_id == user,
                    metadata.tables[name].c.tenant_id == world.one["id"],
                    metadata.tables[name].c.level == "quarter_user",
                )
            )
            for name, column in counted.items()
        }


def planted_world(management):
    """Return a world whose user is in two apps of one tenant, beside other users and tenants."""
    world = World(management)
    world.mine = world.plant(world.one, world.app, USER)
    again = world.records(world.one, world.second_app, USER)
    world.write(*again)
    world.mine = (world.mine[0] + again[0], world.mine[1] + again[1])
    world.plant(world.one, world.app, "bob")
    world.plant(world.other, world.foreign_app, USER)
    return world
