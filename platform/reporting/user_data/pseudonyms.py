"""Pseudonyms of erased users, and replacements of the ids that their clients chose.

The replacements are keyed hashes under a random key of the erasure: calls still group into runs and
name their parents, a replayed journal produces the same replacements, and the original ids cannot be
recovered without the key. Other identifying data is cleared: agents and error texts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from fairserve.platform.control.messages import (
    CallRecord,
    InteractionRecord,
    OpenInteractionRecord,
    Rows,
)
from fairserve.platform.db.base import utc_time
from fairserve.platform.db.erasures import Erasure, user_hashes
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.ledger import WIDE_ID_CHARS
from fairserve.platform.db.upsert import fitting_text


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replacement of the ids and texts of one erased user. Equal ids have equal replacements."""

    pseudonym: str
    id_key: str

    def run(self, app_id: str, run_id: str) -> str:
        """Return the replacement of an interaction's id."""
        return self._token("run", app_id, run_id)

    def call(self, app_id: str, run_id: str, name: str) -> str:
        """Return the replacement of a call's name; ``run_id`` is the client's."""
        return self._token("call", app_id, run_id, name)

    def texts(
        self, app_id: str, run_id: str, call_id: str, name: str | None, parents: Iterable[str]
    ) -> dict[str, Any]:
        """Return the replaced texts of a call: fields of ``CallRecord`` and of its row."""
        return {
            "interaction_id": self.run(app_id, run_id),
            "agent": None,
            # Other calls refer to an unnamed call by its id.
            "name": self.call(app_id, run_id, name or call_id),
            "parents": tuple(self.call(app_id, run_id, parent) for parent in parents),
            "error": "",
        }

    def event_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of a webhook event about the user with replaced ids."""
        found = {**data, "user": self.pseudonym}
        if data.get("interaction_id"):
            found["interaction_id"] = self.run(data["app_id"], data["interaction_id"])
        if "text" in data:  # of an alarm about the user
            found["text"] = data["text"].replace(f"User {data['user']}", f"User {self.pseudonym}")
        return found

    def _token(self, *parts: str) -> str:
        fitting = (fitting_text(part, WIDE_ID_CHARS) for part in parts)
        digest = hmac.new(bytes.fromhex(self.id_key), "\0".join(fitting).encode(), hashlib.sha256)
        return f"erased-{digest.hexdigest()[:32]}"


def new_erasure(tenant_id: str, user_hash: str, erased_at: datetime) -> Erasure:
    """Return an erasure with a new pseudonym and a new key."""
    return Erasure(
        tenant_id=tenant_id,
        user_hash=user_hash,
        pseudonym=f"erased-{secrets.token_hex(16)}",
        id_key=secrets.token_hex(32),
        erased_at=erased_at,
    )


def under_pseudonyms(session: Session, hasher: KeyHasher, rows: Rows) -> Rows:
    """Return the records to write, with those of erased users anonymised.

    Open interactions of erased users are omitted: a run does not continue under a pseudonym. Cost: one
    query for the erasures since the earliest record, which usually finds none.
    """
    runs: tuple[InteractionRecord | OpenInteractionRecord, ...] = (*rows.ended, *rows.opened)
    times = [call.accepted_at for call in rows.calls] + [run.opened_at for run in runs]
    if not times:
        return rows
    tenants = {call.tenant for call in rows.calls} | {run.tenant for run in runs}
    erasures = session.scalars(
        select(Erasure).where(
            Erasure.tenant_id.in_(tenants),
            Erasure.erased_at >= utc_time(min(times)),
        )
    ).all()
    if not erasures:
        return rows
    erased = _Erased({(row.tenant_id, row.user_hash): row for row in erasures}, hasher)
    return Rows(
        [erased.call(call) for call in rows.calls],
        [erased.run(run) for run in rows.ended],
        [run for run in rows.opened if not erased.has(run)],
    )


class _Erased:
    """The erasures that may affect a batch of records."""

    def __init__(self, rows: Mapping[tuple[str, str], Erasure], hasher: KeyHasher) -> None:
        self._rows = rows
        self._hasher = hasher
        self._found: dict[tuple[str, str], Erasure | None] = {}

    def call(self, record: CallRecord) -> CallRecord:
        known = self._of(record.tenant, record.user, record.accepted_at)
        if known is None:
            return record
        texts = known.texts(
            record.app, record.interaction_id, record.call_id, record.name, record.parents
        )
        return replace(record, user=known.pseudonym, **texts)

    def run(self, record: InteractionRecord) -> InteractionRecord:
        known = self._of(record.tenant, record.user, record.opened_at)
        if known is None:
            return record
        run_id = known.run(record.app, record.interaction_id)
        return replace(record, user=known.pseudonym, interaction_id=run_id)

    def has(self, record: OpenInteractionRecord) -> bool:
        return self._of(record.tenant, record.user, record.opened_at) is not None

    def _of(self, tenant: str, user: str, at: float) -> Replacement | None:
        if (tenant, user) not in self._found:
            hashes = user_hashes(self._hasher, user)
            rows = (self._rows.get((tenant, each)) for each in hashes)
            self._found[tenant, user] = next((row for row in rows if row is not None), None)
        row = self._found[tenant, user]
        if row is None or utc_time(at) > row.erased_at:
            return None
        return Replacement(row.pseudonym, row.id_key)
